#include "client/cli/bench.h"

#include <string.h>

#define AT(field) offsetof(struct bench_options, field)

static const char *parse_lengths(const char *text, void *value)
{
    struct bench_lengths lengths = {0};

    for (;; text++) {
        size_t length = strcspn(text, ",");
        uint64_t number;

        if (lengths.count == BENCH_LENGTHS_MAX ||
            !cli_parse_number(text, length, INT32_MAX, &number) || number == 0)
            return "must be up to 32 whole numbers over 0, as in 512,1024,2048";
        lengths.of[lengths.count++] = (uint32_t)number;
        text += length;
        if (!*text)
            break;
    }
    *(struct bench_lengths *)value = lengths;
    return NULL;
}

/* The first rows, which are of random input. */
enum {
    KV_LEN,
    KV_HEADS,
    BATCH_SIZE,
    NUM_HEADS,
    HEAD_DIM,
    SEQ_LENS,
    SEED,
    OF_RANDOM,
    SCALE = OF_RANDOM
};

static const struct cli_option options[] = {
    [KV_LEN] = {"kv-len", "N", NULL, "keys a head (default: as many as query rows)",
                cli_parse_extent, AT(request.kv_len)},
    [KV_HEADS] = {"kv-heads", "G", NULL, "heads of k and v; divides H (default: H)",
                  cli_parse_extent, AT(request.kv_heads)},
    [BATCH_SIZE] = {"batch-size", "B", "4", "batch", cli_parse_count, AT(request.shape.batch)},
    [NUM_HEADS] = {"num-heads", "H", "12", "heads", cli_parse_count, AT(request.shape.heads)},
    [HEAD_DIM] = {"head-dim", "D", "64", "head dimension", cli_parse_count, AT(request.shape.dim)},
    [SEQ_LENS] = {"seq-lens", "LIST", "512,1024,2048", "S, query rows: one configuration each",
                  parse_lengths, AT(lengths)},
    [SEED] = {"seed", "N", "1", "of the random N(0,1) input", cli_parse_u64, AT(request.seed)},
    [SCALE] = {"scale", "X", NULL, "factor of q k^T, as of run (default: 1/sqrt(D))",
               cli_parse_real, AT(request.scale)},
    {"q", "FILE", NULL,
     "read q from a .npy file of float32 [B,H,S,D], the one configuration then; with --k and --v",
     cli_parse_text, AT(request.inputs[REQUEST_Q])},
    {"k", "FILE", NULL, "read k, [B,G,N,D]", cli_parse_text, AT(request.inputs[REQUEST_K])},
    {"v", "FILE", NULL, "read v, [B,G,N,D]", cli_parse_text, AT(request.inputs[REQUEST_V])},
    {"mask", "NAME", "none", "none, causal-bottom-right or causal-top-left", request_parse_mask,
     AT(request.mask)},
    {"warmup", "N", "25", "passes of each before those that are timed", cli_parse_extent,
     AT(warmup)},
    {"repetitions", "N", "100", "passes of each that are timed", cli_parse_count, AT(repetitions)},
    {"transport", "LIST", "region",
     "how tensors travel, as of run; by region or ipc nothing is copied with a pass",
     request_parse_ways, AT(request.ways)},
    {"timeout", "SECONDS", NULL, "give up on a pass after that long (default: never)",
     cli_parse_seconds, AT(request.timeout_ms)},
    CLI_TARGET_OPTIONS,
};

enum cli_exit bench_parse(int argc, char **argv, struct bench_options *out, struct cli_error *error)
{
    const char *random = NULL;
    uint32_t given;

    if (cli_parse(&cli_bench_command, argc, argv, out, sizeof *out, &given, error) != CLI_OK)
        return error->code;
    if (out->versions.count == 0)
        return cli_fail(error, CLI_USAGE,
                        "bench: say which versions: all, or some of auto, v0, v1 and so on");
    out->request.kv_len_given = given & 1u << KV_LEN;
    out->request.kv_heads_given = given & 1u << KV_HEADS;
    out->request.scale_given = given & 1u << SCALE;
    out->request.priority = FA_PRIORITY_NORMAL;
    out->request.shape_from = "the shape";
    for (int i = 0; i < OF_RANDOM && !random; i++)
        random = given & 1u << i ? options[i].name : NULL;
    if (request_check_inputs(&out->request, random, error) != CLI_OK)
        return error->code;
    if (out->request.inputs[REQUEST_Q]) {
        out->lengths.count = 1; /* the files'; its value is unused */
        return CLI_OK;
    }
    for (uint32_t i = 0; i < out->lengths.count; i++) {
        out->request.shape.length = out->lengths.of[i];
        if (request_check_shape(&out->request, error) != CLI_OK)
            return error->code;
    }
    return CLI_OK;
}

static const struct cli_field fields[] = {
    {"status", "\"OK\", or the status of the refusal"},
    {"version", "that was asked for"},
    {"kernel", "that ran; null when status is not OK"},
    {"redirect_reason", "why it is another version's; null when it is not"},
    {"backend", "the daemon's backend: \"cpu\", ..."},
    {"device", "the device's name; null when status is not OK"},
    REQUEST_FIELDS,
    {"passed", "whether the result was right; else nothing was timed. Only when status is OK"},
    {"rel_l2", "L2 norm of o's error over that of the reference; null when infinite or NaN; only "
               "when status is OK"},
    {"max_row_error", "largest relative error of a row of o; as rel_l2"},
    {"rows_checked", "rows that were compared; only when status is OK"},
    {"repetitions", "passes that were timed; only when passed is true"},
    {"warmup", "passes before them; only when passed is true"},
    {"kernel_us", "whole microseconds in the kernel, the median; only when passed is true"},
    {"kernel_p20_us", "20 of 100 took no longer; as kernel_us"},
    {"kernel_p80_us", "80 of 100 took no longer; as kernel_us"},
    {"tflops", "10^12 FLOP a second in that median; null when it is 0; only when passed is true"},
    {"ffma_tflops", "the same of a loop of nothing but multiply-adds, in turn with the versions; "
                    "null where there is none; only when passed is true"},
    {"change_from_v0", "kernel_us over v0's, less 1; null when v0 was not timed in this run; only "
                       "when passed is true"},
    {"client_us", "microseconds from the call to its return here, the median; only when passed is "
                  "true"},
    {"ffma_text", "why there is no such loop on a GPU; else null"},
    {"field", "the request's field at fault, may be empty; only when status is not OK"},
    {"text", "what was wrong; only when status is not OK"},
};

const struct cli_command cli_bench_command = {
    .name = "bench",
    .title = "Time versions side by side, each checked before it is timed",
    .operands = "all|VERSION...",
    .operands_at = AT(versions),
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .notes =
        "VERSION is auto or one that `fa-cli info` lists; all: every one of those.\n"
        "For each length, every version's result is compared with a float64 reference first. Then\n"
        "the versions take turns, one pass each, warm-ups too, so that a device whose clock\n"
        "changes treats all alike. One that is refused, or wrong, is not timed; the others are.\n"
        "The kernel's time is the daemon's, without moving data and waiting, in whole\n"
        "microseconds; the round trip is all that a client waits for. Others' work on the "
        "daemon's\n"
        "device counts in both. %FFMA: of the rate of a loop of nothing but fused multiply-adds,\n"
        "in turn with them.\n"
        "Of several GPUs it is the first that this process sees, too; then by region or ipc only.\n"
        "On a CPU give fewer passes: v0 takes seconds for one at 4,12,2048,64.\n",
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = cli_bench,
};
