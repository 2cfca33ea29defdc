/* region.h: memory of a connection's that outlives a request.
 *
 *     OPENING -> NAMED -> RELEASED -> CLOSING -> freed
 *
 * While it is NAMED requests find it by its id. RELEASED: no more; it waits for the requests in
 * flight that use it. A connection that closes releases all of its regions.
 * A client's allocation by CUDA IPC is charged with its real size, known once it is open; over the
 * limit it never gets a name. */
#ifndef FAD_CLIENT_REGION_H
#define FAD_CLIENT_REGION_H

#include "daemon/backend/backend.h"
#include "daemon/connection/pending.h"
#include "daemon/util/account.h"

enum fad_region_state {
    FAD_REGION_OPENING,
    FAD_REGION_NAMED,
    FAD_REGION_RELEASED,
    FAD_REGION_CLOSING
};

struct fad_client_region {
    TAILQ_ENTRY(fad_client_region) link; /* the connection's list, while NAMED */
    struct fad_connection *connection;
    enum fad_region_state state;
    uint64_t id;
    const char *field; /* of the request that opens it; static */
    uint32_t uses;     /* by requests in flight */
    bool writable;     /* by requests */
    struct fad_region region;
    struct fad_amounts charge;
    struct fad_op op;           /* the backend's call that opens or closes it */
    struct fad_pending pending; /* the request that opens it, or later the one that releases it */
    bool answering;             /* pending is in flight */
    struct fa_error refusal;    /* of one that is over a limit, as opening it showed; else FA_OK */
};

TAILQ_HEAD(fad_regions, fad_client_region);

/* Begins to open a region for a connection's request, whose reply follows (RegionReply). The
 * source's descriptor, which passed fad_memfd_check, is taken whatever is returned. Requests
 * may write to it if the source says writable, and always to OWNED memory. field names what of the
 * request is the memory, for the error of an opening that fails. */
enum fa_status fad_region_open(struct fad_connection *connection, uint16_t type, uint64_t id,
                               const struct fad_region_source *source, const char *field,
                               struct fa_error *error);

/* The NAMED region with the id, or NULL. */
struct fad_client_region *fad_region_find(const struct fad_connection *connection, uint64_t id);

/* A request in flight uses it, until fad_region_unuse. */
void fad_region_use(struct fad_client_region *region);
void fad_region_unuse(struct fad_client_region *region);

/* Releases it for a request of the client's, whose reply comes when the memory is gone. */
void fad_region_release(struct fad_client_region *region, uint16_t type, uint64_t id);

/* Releases all of a connection that closes. Its connection->busy goes down with each. */
void fad_region_release_all(struct fad_connection *connection);

#endif
