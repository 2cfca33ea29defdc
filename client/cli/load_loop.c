#include "client/cli/load.h"
#include "client/cli/parallel.h"
#include "client/cli/times.h"

#include <math.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>

#define LOOK_US 100000.0 /* how often timeouts are looked for */

struct loop {
    struct load *load;
    struct pollfd polled[LOAD_CLIENTS_MAX];
    double start_us;   /* of the warm-up */
    double measure_us; /* its end */
    double end_us;     /* of sending */
    double look_us;    /* when to look for timeouts next */
    uint64_t due;      /* with a rate: arrivals whose time has come, warm-up and all */
    uint64_t in_flight;
    uint32_t first;                           /* client that is served first this time */
    struct load_slot *resting, **resting_end; /* in the order in which they get ready */
    bool sending, measuring, timed_out;
};

/* Ctrl-Cs: the first ends sending, the second waiting. The signal is blocked outside ppoll. */
static volatile sig_atomic_t interrupts;

static void on_interrupt(int signal_number)
{
    (void)signal_number;
    interrupts = interrupts + 1;
}

/* --- Sending --------------------------------------------------------------------------------- */

static void stop_sending(struct loop *loop, enum load_end why, double now)
{
    if (!loop->sending)
        return;
    loop->sending = false;
    loop->load->results.end = why;
    if (now < loop->end_us)
        loop->end_us = now;
}

/* The connection is of no use any more, or the daemon takes no work. The first such fault is kept,
 * also when sending has ended by itself. */
static void lose(struct loop *loop, const struct fa_error *how)
{
    struct load_results *results = &loop->load->results;

    stop_sending(loop, LOAD_LOST, cli_now_us());
    if (results->lost.status == FA_OK) {
        results->end = LOAD_LOST;
        results->lost = *how;
    }
}

static double arrival_us(const struct loop *loop, uint64_t arrival)
{
    return loop->start_us + (double)arrival / loop->load->options.rate * 1e6;
}

/* Sends the next request of the client, which has a free slot. */
static void send_one(struct loop *loop, struct load_client *client)
{
    const struct load_options *options = &loop->load->options;
    struct load_slot *slot = client->free;
    struct fa_request *request;

    slot->sent_us = slot->start_us = cli_now_us();
    slot->measured = slot->start_us >= loop->measure_us;
    if (options->rate > 0) {
        slot->start_us = arrival_us(loop, client->next);
        slot->measured = client->next >= options->warmup_arrivals;
    }
    if (fa_forward_submit(client->client, &slot->args, &request) != FA_OK) {
        lose(loop, fa_last_error_record(client->client));
        return;
    }
    if (options->rate > 0) {
        client->next += options->clients;
        if (slot->measured)
            load_count_late(&loop->load->results, slot->sent_us - slot->start_us);
    }
    fa_request_set_user(request, slot);
    client->free = slot->next;
    slot->in_flight = true;
    slot->has_result = false;
    client->in_flight++;
    loop->in_flight++;
}

/* --- Taking ---------------------------------------------------------------------------------- */

static void set_free(struct load_slot *slot)
{
    slot->next = slot->client->free;
    slot->client->free = slot;
}

/* The slot is free again, at once or after a rest when it failed. */
static void put_back(struct loop *loop, struct load_slot *slot, enum fa_status status, double now)
{
    if (status != FA_OK && loop->load->options.rate == 0) {
        slot->ready_us = now + LOAD_REST_US;
        slot->next = NULL;
        *loop->resting_end = slot;
        loop->resting_end = &slot->next;
    } else {
        set_free(slot);
    }
}

/* Takes one request that is done. */
static void take(struct loop *loop, struct load_client *client, struct fa_request *request)
{
    struct load_results *results = &loop->load->results;
    const int timeout_ms = loop->load->options.request.timeout_ms;
    struct load_slot *slot = fa_request_user(request);
    const struct fa_error *error;
    struct fa_forward_result result;
    enum fa_status status = fa_wait(client->client, request, &result);
    double now = cli_now_us();

    slot->in_flight = false;
    slot->has_result = status == FA_OK;
    client->in_flight--;
    loop->in_flight--;
    put_back(loop, slot, status, now);
    if (timeout_ms > 0 && now - slot->sent_us > timeout_ms * 1e3)
        loop->timed_out = true;
    if (status == FA_OK && now >= loop->measure_us && now <= loop->end_us) {
        results->answered++;
        client->answered++;
    }
    if (status == FA_OK) {
        load_count_success(results, slot, &result, now);
        return;
    }
    error = fa_last_error_record(client->client);
    load_count_failure(results, slot, error);
    if (status == FA_SHUTTING_DOWN || fa_client_fd(client->client) < 0)
        lose(loop, error);
}

/* Takes what is done. False when nothing was. */
static bool take_done(struct loop *loop, struct load_client *client)
{
    struct fa_request *request;
    bool any = false;

    while ((request = fa_done(client->client))) {
        take(loop, client, request);
        any = true;
    }
    return any;
}

/* --- Both ------------------------------------------------------------------------------------ */

/* Sends what the client has to send. What that got done no event tells of: it is taken here. */
static void send_due(struct loop *loop, struct load_client *client)
{
    const bool paced = loop->load->options.rate > 0;

    do {
        while (loop->sending && client->free && (!paced || client->next < loop->due))
            send_one(loop, client);
    } while (take_done(loop, client));
}

/* Moves the client's bytes, takes what is done and sends what is due. */
static void serve(struct loop *loop, struct load_client *client)
{
    if (fa_client_process(client->client) != FA_OK)
        lose(loop, fa_last_error_record(client->client));
    take_done(loop, client);
    send_due(loop, client);
}

/* Lets the slots go on that have rested enough. */
static void end_rests(struct loop *loop, double now)
{
    while (loop->resting && loop->resting->ready_us <= now) {
        struct load_slot *slot = loop->resting;

        loop->resting = slot->next;
        if (!loop->resting)
            loop->resting_end = &loop->resting;
        set_free(slot);
        send_due(loop, slot->client);
    }
}

/* The measurement is of what is due in it, not of what the warm-up left behind: each client goes on
 * with its first arrival that is not the warm-up's. */
static void begin_measuring(struct loop *loop)
{
    const struct load_options *options = &loop->load->options;

    loop->measuring = true;
    for (uint32_t i = 0; i < options->clients && options->rate > 0; i++) {
        uint64_t *next = &loop->load->clients[i].next, end = options->warmup_arrivals;

        if (*next < end)
            *next += (end - *next + options->clients - 1) / options->clients * options->clients;
    }
}

/* Looks at the clock: what is due now is sent. */
static void pass_time(struct loop *loop, double now)
{
    const struct load_options *options = &loop->load->options;
    uint64_t first = loop->due,
             passed = (uint64_t)fmax(0, (now - loop->start_us) * 1e-6 * options->rate);

    if (!loop->sending)
        return;
    if (!loop->measuring && now >= loop->measure_us)
        begin_measuring(loop);
    end_rests(loop, now);
    if (options->rate > 0) {
        loop->due = passed + 1 < options->arrivals ? passed + 1 : options->arrivals;
        for (uint64_t i = first; i < loop->due && i < first + options->clients; i++)
            send_due(loop, &loop->load->clients[i % options->clients]);
    }
    if (now >= loop->end_us)
        stop_sending(loop, LOAD_COMPLETE, now);
}

/* --- Waiting --------------------------------------------------------------------------------- */

/* Whether a request is unanswered for longer than --timeout. */
static bool is_timed_out(struct loop *loop, double now)
{
    const struct load_options *options = &loop->load->options;

    if (options->request.timeout_ms == 0 || loop->timed_out || now < loop->look_us)
        return loop->timed_out;
    loop->look_us = now + LOOK_US;
    for (uint32_t i = 0; i < options->clients; i++) {
        const struct load_slot *slots = loop->load->clients[i].slots;

        for (uint32_t k = 0; k < options->inflight; k++)
            if (slots[k].in_flight && now - slots[k].sent_us > options->request.timeout_ms * 1e3)
                return true;
    }
    return false;
}

/* When the clock must be looked at. */
static double next_wake(const struct loop *loop)
{
    const struct load_options *options = &loop->load->options;
    double wake = options->request.timeout_ms > 0 ? loop->look_us : INFINITY;

    if (!loop->sending)
        return wake;
    if (options->rate > 0 && loop->due < options->arrivals)
        wake = fmin(wake, arrival_us(loop, loop->due));
    if (loop->resting)
        wake = fmin(wake, loop->resting->ready_us);
    return fmin(wake, loop->end_us);
}

/* Until a connection has something, or the clock must be looked at. */
static void wait_for_events(struct loop *loop, const sigset_t *mask)
{
    const uint32_t count = loop->load->options.clients;
    double wake = next_wake(loop), left = fmax(0, wake - cli_now_us()) * 1e3;
    struct timespec timeout;

    for (uint32_t i = 0; i < count; i++) {
        const struct fa_client *client = loop->load->clients[i].client;

        /* -1, of a closed one, is left out. */
        loop->polled[i] = (struct pollfd){fa_client_fd(client), fa_client_events(client), 0};
    }
    if (isfinite(wake))
        timeout = (struct timespec){(time_t)(left / 1e9), (long)fmod(left, 1e9)};
    if (ppoll(loop->polled, count, isfinite(wake) ? &timeout : NULL, mask) < 0)
        for (uint32_t i = 0; i < count; i++) /* interrupted: nothing is told */
            loop->polled[i].revents = 0;
}

/* Until sending has ended and all is answered, or nobody waits any more. */
static void go_round(struct loop *loop, const sigset_t *mask)
{
    const uint32_t count = loop->load->options.clients;

    while (loop->sending || loop->in_flight > 0) {
        double now;

        wait_for_events(loop, mask);
        if (interrupts > 0)
            stop_sending(loop, LOAD_INTERRUPTED, cli_now_us());
        if (interrupts > 1)
            return;
        /* Another is first each time: none is always the one whose requests go out ahead. */
        loop->first = loop->first + 1 < count ? loop->first + 1 : 0;
        for (uint32_t k = loop->first; k < loop->first + count; k++) {
            uint32_t i = k < count ? k : k - count;

            if (loop->polled[i].revents)
                serve(loop, &loop->load->clients[i]);
        }
        now = cli_now_us();
        pass_time(loop, now);
        if (is_timed_out(loop, now)) {
            stop_sending(loop, LOAD_TIMED_OUT, now);
            loop->load->results.end = LOAD_TIMED_OUT;
            return;
        }
    }
}

/* --- The whole ------------------------------------------------------------------------------- */

static void sum_up(struct loop *loop)
{
    const struct load_options *options = &loop->load->options;
    struct load_results *results = &loop->load->results;

    results->seconds = fmax(0, loop->end_us - loop->measure_us) * 1e-6;
    if (loop->due > options->warmup_arrivals)
        results->scheduled = loop->due - options->warmup_arrivals;
    for (uint32_t i = 0; i < options->clients; i++) {
        const struct load_client *client = &loop->load->clients[i];

        for (uint32_t k = 0; k < options->inflight; k++)
            results->unanswered += client->slots[k].in_flight && client->slots[k].measured;
        for (uint64_t next = client->next; next < loop->due; next += options->clients)
            if (next >= options->warmup_arrivals)
                load_count_unsent(results, loop->end_us - arrival_us(loop, next));
    }
}

/* Sends the first requests, then waits for events. */
static void run(struct load *load, const sigset_t *mask)
{
    struct loop loop = {.load = load, .sending = true, .start_us = cli_now_us()};

    loop.resting_end = &loop.resting;
    loop.measure_us = loop.start_us + load->options.warmup * 1e6;
    loop.end_us = loop.measure_us + load->options.duration * 1e6;
    for (uint32_t i = 0; i < load->options.clients; i++) {
        load->clients[i].next = i;
        send_due(&loop, &load->clients[i]);
    }
    go_round(&loop, mask);
    sum_up(&loop);
}

void load_loop(struct load *load)
{
    struct sigaction action = {.sa_handler = on_interrupt}, before;
    struct cli_progress progress;
    sigset_t set, mask, waiting;

    sigemptyset(&set);
    sigaddset(&set, SIGINT);
    pthread_sigmask(SIG_BLOCK, &set, &mask);
    waiting = mask;
    sigdelset(&waiting, SIGINT);
    interrupts = 0;
    sigaction(SIGINT, &action, &before);
    if (before.sa_handler == SIG_IGN)
        sigaction(SIGINT, &before, NULL);
    prctl(PR_SET_TIMERSLACK, 1ul); /* nanosecond: ppoll else ends up to 50 us late */
    cli_progress_begin(&progress, "sending load", 0);
    run(load, &waiting);
    cli_progress_end(&progress);
    sigaction(SIGINT, &before, NULL);
    pthread_sigmask(SIG_SETMASK, &mask, NULL);
}
