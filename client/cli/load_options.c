#include "client/cli/load.h"

#include <float.h>
#include <math.h>

/* --- Parsers of this command's own ----------------------------------------------------------- */

static const char *parse_clients(const char *text, void *value)
{
    if (cli_parse_count(text, value) || *(uint32_t *)value > LOAD_CLIENTS_MAX)
        return "must be a whole number from 1 to 512";
    return NULL;
}

static const char *parse_inflight(const char *text, void *value)
{
    if (cli_parse_count(text, value) || *(uint32_t *)value > LOAD_INFLIGHT_MAX)
        return "must be a whole number from 1 to 1024";
    return NULL;
}

static const char *parse_rate(const char *text, void *value)
{
    if (cli_parse_real(text, value) || !(*(double *)value > 0) || *(double *)value > 1e6)
        return "must be a number over 0 and at most 1000000";
    return NULL;
}

static const char *parse_warmup(const char *text, void *value)
{
    if (cli_parse_real(text, value) || !(*(double *)value >= 0) || *(double *)value > 86400)
        return "must be a number of seconds from 0 to 86400";
    return NULL;
}

static const char *parse_duration(const char *text, void *value)
{
    if (cli_parse_real(text, value) || !(*(double *)value > 0) || *(double *)value > 86400)
        return "must be a number of seconds over 0 and at most 86400";
    return NULL;
}

/* --- The table ------------------------------------------------------------------------------- */

#define AT(field) offsetof(struct load_options, field)

static const struct cli_option options[] = {
    REQUEST_OPTIONS,
    {"clients", "N", "1", "connections, each with requests of its own", parse_clients, AT(clients)},
    {"inflight", "K", NULL,
     "requests in flight on a connection; with --rate at most so many (default: 1, with --rate 16)",
     parse_inflight, AT(inflight)},
    {"rate", "R", NULL,
     "send R requests a second in all, evenly spaced, whether or not earlier ones are answered, up "
     "to --inflight on a connection (default: the next when one is answered)",
     parse_rate, AT(rate)},
    {"duration", "SECONDS", "5", "how long to measure", parse_duration, AT(duration)},
    {"warmup", "SECONDS", "1", "how long to send before that without measuring", parse_warmup,
     AT(warmup)},
    CLI_TARGET_OPTIONS,
};

/* Requests that are due before that second: the first at 0, then one each 1/rate. A product that is
 * a whole number but for its rounding counts as one. */
static uint64_t arrivals_before(double seconds, double rate)
{
    return (uint64_t)ceil(rate * seconds * (1 - 4 * DBL_EPSILON));
}

enum cli_exit load_parse(int argc, char **argv, struct load_options *out, struct cli_error *error)
{
    uint32_t given;

    if (cli_parse(&cli_load_command, argc, argv, out, sizeof *out, &given, error) != CLI_OK)
        return error->code;
    request_set_given(&out->request, given);
    if (out->inflight == 0)
        out->inflight = out->rate > 0 ? 16 : 1;
    out->warmup_arrivals = arrivals_before(out->warmup, out->rate);
    out->arrivals = arrivals_before(out->warmup + out->duration, out->rate);
    if (out->rate > 0 && out->arrivals == out->warmup_arrivals)
        return cli_fail(error, CLI_USAGE,
                        "--rate: %g a second are none in %g s; give a longer --duration", out->rate,
                        out->duration);
    return CLI_OK;
}

static const struct cli_field fields[] = {
    {"version", "the version that ran"},
    {"kernel", "the kernel that ran"},
    {"redirected", "true when another version ran than was asked for"},
    {"backend", "the daemon's backend: \"cpu\", ..."},
    {"device", "the device's name"},
    REQUEST_FIELDS,
    {"clients", "as --clients"},
    {"inflight", "requests in flight on a connection, with a rate the most"},
    {"rate", "as --rate; null without"},
    {"warmup_s", "as --warmup"},
    {"duration_s", "as --duration"},
    {"ended", "\"complete\", \"interrupted\" (Ctrl-C), \"lost\" (the daemon went away) or "
              "\"timeout\" (--timeout)"},
    {"seconds", "measured: from the end of the warm-up until sending ended; 0: it ended before"},
    {"answered", "replies that were OK and came in that time, whenever their request was sent"},
    {"requests", "that were measured: sent (with a rate: due) in that time, and answered or ended "
                 "by the connection's end, also after it"},
    {"failed", "of them, not OK"},
    {"unanswered", "requests in flight when waiting for them ended"},
    {"warmup_failed", "requests of the warm-up that failed"},
    {"by_status",
     "an object: the number of measured requests for each status but OK that occurred"},
    {"warmup_by_status", "the same of the warm-up"},
    {"examples", "an object: for each of these statuses, the first one's field and text"},
    {"requests_per_s", "answered over seconds; null when nothing was answered"},
    {"gflops", "10^9 FLOP a second of theirs; null as above"},
    {"latency_us", "an object, in microseconds: from sending (with a rate: from when a request was "
                   "due) to having the reply here, of those that were OK; its fields:"},
    {"  min", "the shortest; null when there was none, as are all"},
    {"  mean", "the average"},
    {"  p50", "the median; as the next three at most 1/32 too large"},
    {"  p90", "90 of 100 took no longer"},
    {"  p99", "99 of 100 took no longer"},
    {"  p999", "999 of 1000 took no longer"},
    {"  max", "the longest"},
    {"queue_us", "the daemon's part of it, with the same fields: until the start"},
    {"transfer_us", "moving data to and from the device"},
    {"kernel_us", "in the kernel"},
    {"total_us", "in the daemon"},
    {"latency_omits_unsent",
     "true when requests were never sent (unsent): the latencies above leave "
     "them out, and would be longer"},
    {"client_answered", "an array: of answered, each client's; their sum is answered"},
    {"slowest_per_s", "requests_per_s of the slowest client; null as that is"},
    {"fastest_per_s", "of the fastest"},
    {"scheduled", "requests that were due after the warm-up: requests, unanswered and unsent; null "
                  "without a rate, as are the next three"},
    {"unsent", "of them, not sent, since --inflight were in flight: the daemon is slower than the "
               "rate"},
    {"late", "of them, sent over 1 ms after they were due, or never"},
    {"late_max_us", "the longest such delay, in microseconds; of one that was not sent, until "
                    "sending ended"},
    {"compared", "clients whose last results were compared with that of a request alone"},
    {"different", "of them, those that have a result with other bits"},
    {"rel_l2", "L2 norm of that request's error against float64 over the reference's; null when "
               "the shape is over 1e9 FLOP, and it was not compared"},
};

const struct cli_command cli_load_command = {
    .name = "load",
    .title = "Send many forward passes at once and say how fast they were answered",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .notes =
        "Before the load, one pass is run alone and, up to 1e9 FLOP, compared with float64. When "
        "it\n"
        "fails, the line on stderr says why, and nothing is printed to stdout, with --json too.\n"
        "After the load, the last result of each request in flight must have that pass's bits.\n"
        "Without --rate each connection keeps --inflight requests in flight: a daemon that stalls\n"
        "gets fewer. With --rate requests are due at fixed times and dealt to the connections in\n"
        "turns; one that waits because its connection has --inflight in flight is sent later, and\n"
        "its latency counts from when it was due. One that waits when the warm-up ends is "
        "dropped;\n"
        "one that waits at the end was never sent: the exit code then is 1.\n"
        "Requests a second count the replies that came in the measured time, whenever their\n"
        "requests were sent. Latencies are of the requests that were sent in it, also when the\n"
        "reply came later.\n"
        "Without --rate one that failed is followed by the next after 1 ms, so that refusals do "
        "not\n"
        "become the load. By default the daemon takes 64 requests in flight and 64 regions of a\n"
        "connection, and of a user 128 connections, 256 requests and 256 regions.\n"
        "Ctrl-C ends the load early: what is in flight is awaited (a second Ctrl-C ends that "
        "too),\n"
        "and the results are printed.\n"
        "With --transport memfd, region or ipc every request in flight has inputs of its own.\n",
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = cli_load,
};
