#include "client/internal.h"
#include "proto/fa_socket.h"

#include <assert.h>
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/time.h>
#include <unistd.h>

/* How long opening may take in all. */
#define OPEN_TIMEOUT_MS 10000

#define NO_MEMORY "no memory for a client"

static const struct fa_error no_memory = {FA_RESOURCE_EXHAUSTED, "", NO_MEMORY};

/* --- Errors ---------------------------------------------------------------------------------- */

static void format_error(struct fa_client *client)
{
    fa_error_format(&client->error, client->error_line, sizeof client->error_line);
}

enum fa_status fa_client_keep_error(struct fa_client *client, const struct fa_error *error)
{
    client->error = *error;
    format_error(client);
    return error->status;
}

enum fa_status fa_error_set_list(struct fa_error *error, enum fa_status status, const char *field,
                                 const char *format, va_list args)
{
    char text[sizeof error->text];

    vsnprintf(text, sizeof text, format, args);
    return fa_error_set(error, status, field, "%s", text);
}

enum fa_status fa_client_fail(struct fa_client *client, enum fa_status status, const char *field,
                              const char *format, ...)
{
    va_list args;

    va_start(args, format);
    fa_error_set_list(&client->error, status, field, format, args);
    va_end(args);
    format_error(client);
    return status;
}

const char *fa_last_error(const struct fa_client *client)
{
    return client ? client->error_line : "RESOURCE_EXHAUSTED: " NO_MEMORY;
}

const struct fa_error *fa_last_error_record(const struct fa_client *client)
{
    return client ? &client->error : &no_memory;
}

/* --- Connecting ------------------------------------------------------------------------------ */

static enum fa_status connect_failed(struct fa_client *client, const char *path, int error)
{
    const char *reason = strerrordesc_np(error);

    switch (error) {
    case EAGAIN: /* the listening socket's queue stayed full */
        return fa_client_fail(client, FA_TIMEOUT, "socket",
                              "the daemon at %s accepted no connection in %d s; see its log, or "
                              "give another socket",
                              path, OPEN_TIMEOUT_MS / 1000);
    case EACCES:
    case EPERM:
        return fa_client_fail(client, FA_UNAVAILABLE, "socket",
                              "no access to %s (%s); join the group that owns the socket, or give "
                              "another socket",
                              path, reason);
    default:
        return fa_client_fail(client, FA_UNAVAILABLE, "socket",
                              "no daemon listens at %s (%s); start fad, or give another socket",
                              path, reason);
    }
}

/* A nonblocking connect() to a full queue fails at once and offers nothing to poll for, so the
 * socket blocks, for as long as is left, until it is connected. */
static enum fa_status connect_socket(struct fa_client *client, const struct sockaddr_un *address,
                                     int64_t deadline)
{
    for (;;) {
        int left = fa_deadline_left(deadline);
        struct timeval wait = {left / 1000, left % 1000 * 1000};

        if (left == 0)
            return connect_failed(client, address->sun_path, EAGAIN);
        if (setsockopt(client->fd, SOL_SOCKET, SO_SNDTIMEO, &wait, sizeof wait) == 0 &&
            connect(client->fd, (const struct sockaddr *)address, sizeof *address) == 0)
            break;
        if (errno != EINTR)
            return connect_failed(client, address->sun_path, errno);
    }
    if (fcntl(client->fd, F_SETFL, O_NONBLOCK) != 0)
        return connect_failed(client, address->sun_path, errno);
    return FA_OK;
}

static enum fa_status say_hello(struct fa_client *client, int64_t deadline)
{
    Fad__Hello hello = FAD__HELLO__INIT;
    uint8_t message[64];
    struct fa_call call = {.type = FA_FRAME_HELLO, .fd = -1, .deadline = deadline};
    const Fad__Reply *reply;
    enum fa_status status;

    hello.has_protocol_major = hello.has_protocol_minor = true;
    hello.protocol_major = FA_PROTOCOL_MAJOR;
    hello.protocol_minor = FA_PROTOCOL_MINOR;
    assert(fad__hello__get_packed_size(&hello) <= sizeof message);
    call.message = (struct iovec){message, fad__hello__pack(&hello, message)};
    status = fa_call_run(client, &call, &reply);
    if (status == FA_TIMEOUT)
        return fa_client_fail(client, FA_TIMEOUT, "socket",
                              "the daemon at %s did not answer in %d s; see its log, or give "
                              "another socket",
                              client->address.sun_path, OPEN_TIMEOUT_MS / 1000);
    if (status != FA_OK)
        return status;
    if (!reply->hello)
        return fa_client_distrust(client, "hello", "the daemon's reply has none");
    return fa_info_take(client, reply->hello);
}

static enum fa_status try_to_connect(struct fa_client *client)
{
    int64_t deadline = fa_deadline_after(OPEN_TIMEOUT_MS);
    enum fa_status status;

    client->fd = socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (client->fd < 0)
        return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, "socket",
                              "the system gives no socket: %s", strerrordesc_np(errno));
    status = connect_socket(client, &client->address, deadline);
    return status == FA_OK ? say_hello(client, deadline) : status;
}

/* To client->address. */
static enum fa_status client_connect(struct fa_client *client)
{
    enum fa_status status;

    client->connection++;
    client->broken = false;
    client->untold = false;
    fa_receive_init(client);
    status = try_to_connect(client);
    if (status != FA_OK)
        fa_client_disconnect(client, status);
    return status;
}

enum fa_status fa_client_open(struct fa_client **out, const char *socket_path)
{
    struct fa_client *client;
    struct fa_error error;

    if (!out)
        return FA_INVALID_ARGUMENT;
    *out = client = calloc(1, sizeof *client);
    if (!client)
        return FA_RESOURCE_EXHAUSTED;
    client->fd = -1;
    client->timeout_ms = -1;
    client->next_id = 1;
    TAILQ_INIT(&client->flying);
    TAILQ_INIT(&client->done);
    TAILQ_INIT(&client->idle);
    TAILQ_INIT(&client->regions);
    fa_arena_init(&client->arena);
    fa_arena_init(&client->kept);
    fa_error_set(&client->error, FA_OK, NULL, "no call has failed");
    format_error(client);

    if (fa_socket_address(socket_path, &client->address, &error) != FA_OK) {
        client->address.sun_path[0] = '\0';
        client->closed_by = error.status;
        return fa_client_keep_error(client, &error);
    }
    return client_connect(client);
}

enum fa_status fa_client_reconnect(struct fa_client *client)
{
    if (!client)
        return FA_INVALID_ARGUMENT;
    if (client->address.sun_path[0] == '\0')
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "socket",
                              "this client was opened with a path that is none");
    if (client->fd >= 0)
        fa_client_break_with(client, FA_DISCONNECTED, NULL,
                             "the client connected again before the daemon answered");
    return client_connect(client);
}

void fa_client_close(struct fa_client *client)
{
    if (!client)
        return;
    if (client->fd >= 0)
        close(client->fd);
    fa_requests_release(client);
    fa_regions_release(client);
    free(client->devices);
    free(client->versions);
    free(client);
}

/* --- Small calls ----------------------------------------------------------------------------- */

void fa_client_set_timeout(struct fa_client *client, int milliseconds)
{
    if (client)
        client->timeout_ms = milliseconds < 0 ? -1 : milliseconds;
}

const struct fa_info *fa_client_info(const struct fa_client *client)
{
    return client ? &client->info : NULL;
}
