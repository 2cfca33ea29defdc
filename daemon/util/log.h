/* log.h: the daemon's log, one line an event on standard error (the journal's, under systemd).
 *
 * A log must not become a client's weapon: lines that clients cause are held back when they come
 * too fast, and no line waits for whoever reads the log. What was held back is counted and said. */
#ifndef FAD_LOG_H
#define FAD_LOG_H

#include <stdbool.h>
#include <stdint.h>

enum fad_log_level { FAD_LOG_ERROR, FAD_LOG_INFO };

/* A token bucket: burst at once, then so many a second. */
struct fad_bucket {
    uint64_t burst;
    uint64_t interval_ns; /* in which one token comes */
    uint64_t full_ns;     /* when it will be full again */
};

/* A full one. */
void fad_bucket_init(struct fad_bucket *bucket, uint32_t burst, uint32_t per_second);

/* Is there a token? And takes one, which must be there. Time must not go backwards. */
bool fad_bucket_has(const struct fad_bucket *bucket, uint64_t now_ns);
void fad_bucket_take(struct fad_bucket *bucket, uint64_t now_ns);

/* One client's part of the log. */
struct fad_log_client {
    struct fad_bucket bucket;
    uint64_t held; /* its lines that were not written because it caused too many */
};

void fad_log_client_init(struct fad_log_client *client);

/* Lines above the level are dropped. FAD_LOG_INFO at first. */
void fad_log_set_level(enum fad_log_level level);

/* Writes "fad: ..." and a newline in one write. Control characters in the text become '?', so that
 * no client forges a line. When standard error takes nothing at the moment the line is held back;
 * this never waits. */
void fad_log(enum fad_log_level level, const char *format, ...)
    __attribute__((format(printf, 2, 3)));

/* The same, level INFO, for a line that a client causes: held back when the client's tokens or
 * those for all clients are spent. client NULL: one that comes once a client. */
void fad_log_of_client(struct fad_log_client *client, uint64_t now_ns, const char *format, ...)
    __attribute__((format(printf, 3, 4)));

/* Says how many lines were held back since it last did, if any. Call it from time to time. */
void fad_log_say_held(void);

/* Lines held back since the start. */
uint64_t fad_log_held(void);

/* Counts lines that were held back, and said, before this program began. */
void fad_log_add_held(uint64_t lines);

#endif
