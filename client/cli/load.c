/* load.c: `fa-cli load`. Runs one pass alone as the reference, connects the clients, runs the load
 * and reports it. */
#include "client/cli/load.h"
#include "client/cli/spawn.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

#define CHECKED_FLOPS UINT64_C(1000000000) /* up to here the reference is compared with float64 */

/* --- Before the load ------------------------------------------------------------------------- */

/* Asked before it is taken, as request_make_room does. */
static enum cli_exit check_memory(const struct load *load, struct cli_error *error)
{
    const struct load_options *options = &load->options;
    double needed =
        (double)request_clone_bytes(&load->tensors) * options->clients * options->inflight;
    uint64_t available = request_available_bytes();

    if (needed <= (double)available)
        return CLI_OK;
    return cli_fail(error, CLI_FAILED,
                    "the tensors of %" PRIu32 " x %" PRIu32
                    " requests in flight need %.0f MiB, %" PRIu64
                    " MiB of memory are available; take a smaller shape, --clients or --inflight",
                    options->clients, options->inflight, needed / (1 << 20), available >> 20);
}

/* Each connection is a descriptor, and so is each request's shared memory. */
static void raise_descriptor_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

/* More would be refused, one and all. */
static enum cli_exit check_inflight(const struct load *load, struct cli_error *error)
{
    const uint32_t limit = fa_client_info(load->clients[0].client)->jobs;

    if (limit == 0 || load->options.inflight <= limit)
        return CLI_OK;
    return cli_fail(error, CLI_USAGE,
                    "--inflight %" PRIu32 ": the daemon takes %" PRIu32
                    " requests in flight of a connection (its option --jobs); take at most so many",
                    load->options.inflight, limit);
}

/* One pass alone on the first client, without a deadline: its output is what all others must be. */
static enum cli_exit run_reference(struct load *load, struct cli_error *error)
{
    struct load_client *client = &load->clients[0];
    struct request_options options = load->options.request;
    struct fa_forward_args args;
    struct request_places places;
    struct fa_error wrong, ignored;
    enum fa_status status, released;

    options.deadline_us = 0;
    status = request_places_alloc(&places, &load->tensors, client->client, 1, NULL, &wrong);
    if (status == FA_OK)
        status = request_upload(&load->tensors, client->client, &places, 0, &wrong);
    if (status == FA_OK)
        status = request_poison(&load->tensors, client->client, &wrong);
    args = request_args(&load->tensors, &options);
    if (status == FA_OK) {
        status = fa_forward(client->client, &args, &load->reference);
        wrong = *fa_last_error_record(client->client);
    }
    if (status == FA_OK)
        status = request_download(&load->tensors, client->client, &wrong);
    released = request_places_release(&places, client->client, status == FA_OK ? &wrong : &ignored);
    if (status != FA_OK || released != FA_OK)
        return request_fail(&options, client->client, &wrong, error);
    load->checked = fa_problem_flops(&load->tensors.problem) <= CHECKED_FLOPS;
    if (load->checked && request_check(&load->tensors, &load->check, error) != CLI_OK)
        return error->code;
    if (load->checked && !load->check.passed)
        return cli_fail(error, CLI_CHECK,
                        "a pass alone, before the load, is not what it should be; `fa-cli run "
                        "--check` tells more");
    return CLI_OK;
}

/* Makes the client's slots. */
static enum cli_exit fill(const struct load *load, struct load_client *client,
                          struct cli_error *error)
{
    const uint32_t count = load->options.inflight;
    struct fa_error wrong;

    client->slots = calloc(count, sizeof *client->slots);
    if (!client->slots)
        return cli_fail(error, CLI_FAILED, "no memory; take a smaller --inflight");
    if (request_places_alloc(&client->places, &load->tensors, client->client, count, NULL,
                             &wrong) != FA_OK)
        return request_fail(&load->options.request, client->client, &wrong, error);
    for (uint32_t i = 0; i < count; i++) {
        struct load_slot *slot = &client->slots[i];

        if (!request_tensors_clone(&slot->tensors, &load->tensors))
            return cli_fail(error, CLI_FAILED,
                            "no memory for the tensors: %s; take a smaller shape, --clients or "
                            "--inflight",
                            strerror(errno));
        if (request_upload(&slot->tensors, client->client, &client->places, i, &wrong) != FA_OK ||
            request_poison(&slot->tensors, client->client, &wrong) != FA_OK)
            return request_fail(&load->options.request, client->client, &wrong, error);
        slot->args = request_args(&slot->tensors, &load->options.request);
        slot->client = client;
        slot->next = client->free;
        client->free = slot;
    }
    return CLI_OK;
}

/* --- After the load -------------------------------------------------------------------------- */

/* Whether the slot's output is the reference's to the bit. */
static bool has_reference_bits(const struct load *load, const struct load_slot *slot)
{
    const size_t bytes = load->tensors.count[REQUEST_O] * sizeof(float);

    return memcmp(slot->tensors.data[REQUEST_O], load->tensors.data[REQUEST_O], bytes) == 0;
}

/* Compares the client's last results with the reference, when its connection is idle. What the
 * daemon does not hand over any more is left out. */
static void compare(const struct load *load, struct load_client *client)
{
    client->same_bits = true;
    for (uint32_t i = 0; i < load->options.inflight && client->in_flight == 0; i++) {
        struct load_slot *slot = &client->slots[i];
        struct fa_error wrong;

        if (!slot->has_result || request_download(&slot->tensors, client->client, &wrong) != FA_OK)
            continue;
        client->compared = true;
        client->same_bits &= has_reference_bits(load, slot);
    }
}

/* --- The command ----------------------------------------------------------------------------- */

/* Others did connect, so this one is probably over a limit. */
static enum cli_exit blame_client(const struct load *load, uint32_t index, struct cli_error *error)
{
    char why[sizeof error->text];

    memcpy(why, error->text, sizeof why);
    return cli_fail(error, error->code, "--clients %" PRIu32 ": client %" PRIu32 ": %s",
                    load->options.clients, index + 1, why);
}

/* Connects all clients; the reference runs when there is one. */
static enum cli_exit connect_all(struct load *load, struct cli_error *error)
{
    const struct cli_target *target = &load->options.request.target;
    const int timeout_ms = load->options.request.timeout_ms;
    enum cli_exit code = CLI_OK;

    for (uint32_t i = 0; i < load->options.clients && code == CLI_OK; i++) {
        struct load_client *client = &load->clients[i];

        code = i == 0 ? cli_connect(&client->client, target, error)
                      : cli_connect_again(&client->client, target, error);
        if (code != CLI_OK && i > 0)
            return blame_client(load, i, error);
        if (code != CLI_OK)
            return code;
        load->connected++;
        if (timeout_ms > 0)
            fa_client_set_timeout(client->client, timeout_ms);
        if (i == 0)
            code = check_inflight(load, error);
        if (i == 0 && code == CLI_OK)
            code = run_reference(load, error);
        if (code == CLI_OK)
            code = fill(load, client, error);
    }
    return code;
}

/* What the exit code and the line on stderr tell. */
static enum cli_exit judge(const struct load *load, struct cli_error *error)
{
    const struct load_results *results = &load->results;
    const uint64_t failed = results->failed + results->warmup_failed;
    const uint32_t different = load_different(load);
    char line[sizeof(struct fa_error) + 32];

    if (different > 0)
        return cli_fail(error, CLI_CHECK,
                        "%" PRIu32 " of %" PRIu32
                        " client%s got a result that differs from that of a pass alone",
                        different, load_compared(load), load_compared(load) == 1 ? "" : "s");
    if (results->end == LOAD_LOST) {
        fa_error_format(&results->lost, line, sizeof line);
        return cli_fail(error, CLI_FAILED, "the daemon went away, the load ended early: %s", line);
    }
    if (results->end == LOAD_TIMED_OUT)
        return cli_fail(error, CLI_FAILED,
                        "TIMEOUT: the daemon did not answer a pass in %g s; give a longer "
                        "--timeout, or none",
                        load->options.request.timeout_ms * 1e-3);
    if (failed > 0)
        return cli_fail(error, CLI_FAILED, "%" PRIu64 " request%s failed; see above", failed,
                        failed == 1 ? "" : "s");
    if (results->unsent > 0)
        return cli_fail(error, CLI_FAILED,
                        "the daemon is slower than the rate: %" PRIu64 " %s never sent",
                        results->unsent, results->unsent == 1 ? "was" : "were");
    if (results->answered == 0 && results->end == LOAD_COMPLETE)
        return cli_fail(error, CLI_FAILED,
                        "none was answered in the measurement; take a longer --duration");
    return CLI_OK;
}

static enum cli_exit load_and_report(struct load *load, struct cli_error *error)
{
    load_loop(load);
    for (uint32_t i = 0; i < load->options.clients; i++)
        compare(load, &load->clients[i]);
    if (!load->options.request.target.json)
        load_print(load);
    else if (load_print_json(load, error) != CLI_OK)
        return error->code;
    return judge(load, error);
}

static enum cli_exit prepare(struct load *load, int argc, char **argv, struct cli_error *error)
{
    if (load_parse(argc, argv, &load->options, error) != CLI_OK ||
        request_tensors_init(&load->tensors, &load->options.request, error) != CLI_OK ||
        check_memory(load, error) != CLI_OK)
        return error->code;
    raise_descriptor_limit();
    load->clients = calloc(load->options.clients, sizeof *load->clients);
    return load->clients ? CLI_OK
                         : cli_fail(error, CLI_FAILED, "no memory; take a smaller --clients");
}

/* Closes the client, then frees what its requests used. */
static void release_client(struct load *load, struct load_client *client, bool close)
{
    struct fa_error ignored;

    if (close)
        fa_client_close(client->client);
    request_places_release(&client->places, NULL, &ignored);
    for (uint32_t i = 0; client->slots && i < load->options.inflight; i++)
        request_tensors_release(&client->slots[i].tensors);
    free(client->slots);
}

enum cli_exit cli_load(int argc, char **argv, struct cli_error *error)
{
    struct load *load = calloc(1, sizeof *load);
    enum cli_exit code;

    if (!load)
        return cli_fail(error, CLI_FAILED, "no memory");
    code = prepare(load, argc, argv, error);
    if (code == CLI_OK)
        code = connect_all(load, error);
    if (code == CLI_OK)
        code = load_and_report(load, error);
    /* The first is cli_disconnect's, when a spawned daemon has no other client any more. */
    for (uint32_t i = 1; i < load->connected; i++)
        release_client(load, &load->clients[i], true);
    code = cli_disconnect(load->connected > 0 ? load->clients[0].client : NULL, code, error);
    if (load->connected > 0)
        release_client(load, &load->clients[0], false);
    request_tensors_release(&load->tensors);
    free(load->clients);
    free(load);
    return code;
}
