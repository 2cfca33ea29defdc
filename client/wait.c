#include "client/internal.h"

#include <errno.h>
#include <limits.h>
#include <poll.h>
#include <string.h>
#include <time.h>

#define NANOSECONDS_PER_MS 1000000

int64_t fa_deadline_after(int milliseconds)
{
    struct timespec now;

    if (milliseconds < 0)
        return FA_NEVER;
    clock_gettime(CLOCK_MONOTONIC, &now);
    return (int64_t)now.tv_sec * 1000 * NANOSECONDS_PER_MS + now.tv_nsec +
           (int64_t)milliseconds * NANOSECONDS_PER_MS;
}

int fa_deadline_left(int64_t deadline)
{
    int64_t left;

    if (deadline == FA_NEVER)
        return -1;
    left = deadline - fa_deadline_after(0);
    if (left <= 0)
        return 0;
    left = (left + NANOSECONDS_PER_MS - 1) / NANOSECONDS_PER_MS;
    return left > INT_MAX ? INT_MAX : (int)left;
}

int fa_client_fd(const struct fa_client *client)
{
    return client ? client->fd : -1;
}

short fa_client_events(const struct fa_client *client)
{
    if (!client || client->fd < 0)
        return 0;
    return client->unsent ? POLLIN | POLLOUT : POLLIN;
}

static bool is_done(const struct fa_client *client, const struct fa_request *request)
{
    return request ? request->state == FA_REQUEST_DONE : !TAILQ_EMPTY(&client->done);
}

/* At least one look at the socket, even when the deadline has passed. */
bool fa_await(struct fa_client *client, const struct fa_request *request, int64_t deadline)
{
    while (!is_done(client, request)) {
        struct pollfd ready = {.fd = client->fd, .events = fa_client_events(client)};
        int left = fa_deadline_left(deadline), found = poll(&ready, 1, left);

        if (found < 0 && errno != EINTR)
            fa_client_break_with(client, FA_RESOURCE_EXHAUSTED, NULL, "the system cannot wait: %s",
                                 strerrordesc_np(errno));
        if (found > 0 && (ready.revents & (POLLIN | POLLHUP | POLLERR | POLLNVAL)))
            fa_receive(client);
        if (client->fd >= 0)
            fa_send(client);
        if (left == 0 || found == 0)
            return is_done(client, request);
    }
    return true;
}

static enum fa_status timed_out(struct fa_client *client)
{
    return fa_client_fail(client, FA_TIMEOUT, NULL, "the daemon did not answer in the time given");
}

enum fa_status fa_wait(struct fa_client *client, struct fa_request *request,
                       struct fa_forward_result *result)
{
    if (!client)
        return FA_INVALID_ARGUMENT;
    if (result)
        memset(result, 0, sizeof *result);
    if (!request || request->client != client)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "request", "is none of this client's");
    if (!fa_await(client, request, fa_deadline_after(client->timeout_ms)))
        return timed_out(client);
    if (result && request->error.status == FA_OK)
        *result = request->answer.forward;
    return fa_request_take(client, request);
}

enum fa_status fa_next(struct fa_client *client, struct fa_request **out)
{
    if (out)
        *out = NULL;
    if (!client)
        return FA_INVALID_ARGUMENT;
    if (!out)
        return fa_client_fail(client, FA_INVALID_ARGUMENT, "out", "is NULL");
    if (TAILQ_EMPTY(&client->flying) && TAILQ_EMPTY(&client->done))
        return fa_client_fail(client, FA_NOT_FOUND, NULL, "nothing is in flight");
    if (!fa_await(client, NULL, fa_deadline_after(client->timeout_ms)))
        return timed_out(client);
    *out = fa_done(client);
    return FA_OK;
}

struct fa_request *fa_done(const struct fa_client *client)
{
    return client ? TAILQ_FIRST(&client->done) : NULL;
}

enum fa_status fa_client_process(struct fa_client *client)
{
    if (!client)
        return FA_INVALID_ARGUMENT;
    if (client->fd < 0)
        return fa_client_tell_closed(client);
    fa_receive(client);
    if (client->fd >= 0)
        fa_send(client);
    if (client->fd >= 0)
        return FA_OK;
    client->untold = false;
    return fa_client_keep_error(client, &client->fault);
}
