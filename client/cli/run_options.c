#include "client/cli/run.h"

#include <stdio.h>
#include <string.h>

const char *const run_tensor_names[RUN_TENSORS] = {"q", "k", "v", "o", "lse"};

/* --- Parsers of this command's own ----------------------------------------------------------- */

static const char *parse_shape(const char *text, void *value)
{
    struct run_shape shape = {0};
    uint32_t *fields[] = {&shape.batch, &shape.heads, &shape.length, &shape.dim};

    for (size_t i = 0; i < 4; i++) {
        size_t length = strcspn(text, ",");
        uint64_t number;

        if (!cli_parse_number(text, length, INT32_MAX, &number) || (text[length] == ',') != (i < 3))
            return "must be four whole numbers B,H,S,D, as in 4,12,2048,64";
        *fields[i] = (uint32_t)number;
        text += length + 1;
    }
    *(struct run_shape *)value = shape;
    return NULL;
}

static const char *parse_mask(const char *text, void *value)
{
    return fa_mask_parse(text, value) ? NULL
                                      : "must be none, causal-bottom-right or causal-top-left";
}

/* One item: "memfd" sets all tensors, "q=memfd" one. */
static bool parse_transport(const char *text, size_t length, struct run_transports *out)
{
    const char *sign = memchr(text, '=', length);
    const char *name = sign ? sign + 1 : text;
    size_t name_length = length - (size_t)(name - text);
    bool memfd = cli_is(name, name_length, "memfd"), found = false;

    if (!memfd && !cli_is(name, name_length, "inline"))
        return false;
    for (size_t i = 0; i < RUN_TENSORS; i++) {
        if (!sign || cli_is(text, (size_t)(sign - text), run_tensor_names[i])) {
            out->memfd[i] = memfd;
            found = true;
        }
    }
    return found;
}

static const char *parse_transports(const char *text, void *value)
{
    struct run_transports transports = {0};

    for (;;) {
        size_t length = strcspn(text, ",");

        if (!parse_transport(text, length, &transports))
            return "must be inline, memfd, or a list such as q=memfd,o=inline (of q, k, v, o, lse)";
        if (!text[length])
            break;
        text += length + 1;
    }
    *(struct run_transports *)value = transports;
    return NULL;
}

bool run_wants_lse(const struct run_options *options)
{
    return options->lse || options->check;
}

void run_transports_text(const struct run_options *options, char *out, size_t size)
{
    const bool *memfd = options->transports.memfd;
    const size_t count = run_wants_lse(options) ? RUN_TENSORS : RUN_LSE;
    size_t memfds = 0, length = 0;

    for (size_t i = 0; i < count; i++)
        memfds += memfd[i];
    if (memfds == 0 || memfds == count) {
        snprintf(out, size, "%s", memfds ? "memfd" : "inline");
        return;
    }
    for (size_t i = 0; i < count && length < size; i++)
        length += (size_t)snprintf(out + length, size - length, "%s%s=%s", i ? "," : "",
                                   run_tensor_names[i], memfd[i] ? "memfd" : "inline");
}

/* --- The table ------------------------------------------------------------------------------- */

enum { SHAPE, KV_LEN, KV_HEADS, SCALE, SEED }; /* rows that are asked for by their place */

#define AT(field) offsetof(struct run_options, field)

static const struct cli_option options[] = {
    [SHAPE] = {"shape", "B,H,S,D", "1,12,128,64",
               "batch, heads, query rows, head dimension; with --q, --k and --v the files' own",
               parse_shape, AT(shape)},
    [KV_LEN] = {"kv-len", "N", NULL, "keys a head (default: as many as query rows)",
                cli_parse_extent, AT(kv_len)},
    [KV_HEADS] = {"kv-heads", "G", NULL, "heads of k and v; divides H (default: H)",
                  cli_parse_extent, AT(kv_heads)},
    [SCALE] = {"scale", "X", NULL, "factor of q k^T; 0 and negative are legal (default: 1/sqrt(D))",
               cli_parse_real, AT(scale)},
    [SEED] = {"seed", "N", "1", "of the random N(0,1) input", cli_parse_u64, AT(seed)},
    {"mask", "NAME", "none", "none, causal-bottom-right or causal-top-left", parse_mask, AT(mask)},
    {"version", "NAME", "auto", "the kernel version; `fa-cli info` lists them", cli_parse_text,
     AT(version)},
    {"transport", "LIST", "inline",
     "how tensors travel: inline, memfd (shared memory), or each its own, as in q=memfd,lse=inline",
     parse_transports, AT(transports)},
    {"q", "FILE", NULL, "read q from a .npy file of float32 [B,H,S,D]; with --k and --v",
     cli_parse_text, AT(inputs[RUN_Q])},
    {"k", "FILE", NULL, "read k, [B,G,N,D]", cli_parse_text, AT(inputs[RUN_K])},
    {"v", "FILE", NULL, "read v, [B,G,N,D]", cli_parse_text, AT(inputs[RUN_V])},
    {"out", "FILE", NULL, "write o to a .npy file, [B,H,S,D]", cli_parse_text, AT(out)},
    {"lse", "FILE", NULL, "write the rows' log-sum-exp to a .npy file, [B,H,S]", cli_parse_text,
     AT(lse)},
    {"repeat", "N", "1", "how often the pass is run", cli_parse_count, AT(repeat)},
    {"check", NULL, NULL, "compare the result with a float64 reference computed here", NULL,
     AT(check)},
    {"timeout", "SECONDS", NULL, "give up on a pass after that long (default: never)",
     cli_parse_seconds, AT(timeout_ms)},
    CLI_TARGET_OPTIONS,
};

enum cli_exit run_parse(int argc, char **argv, struct run_options *out, struct cli_error *error)
{
    uint32_t given;
    size_t inputs = 0;

    if (cli_parse(&cli_run_command, argc, argv, out, sizeof *out, &given, error) != CLI_OK)
        return error->code;
    out->shape_given = given & 1u << SHAPE;
    out->kv_len_given = given & 1u << KV_LEN;
    out->kv_heads_given = given & 1u << KV_HEADS;
    out->scale_given = given & 1u << SCALE;
    for (size_t i = 0; i < 3; i++)
        inputs += out->inputs[i] != NULL;
    for (size_t i = 0; i < 3 && inputs > 0; i++)
        if (!out->inputs[i])
            return cli_fail(error, CLI_USAGE, "--%s is missing: --q, --k and --v go together",
                            run_tensor_names[i]);
    if (inputs > 0 && given & 1u << SEED)
        return cli_fail(error, CLI_USAGE,
                        "--seed is of random input, and --q, --k and --v are given: leave one out");
    return CLI_OK;
}

static const struct cli_field fields[] = {
    {"status", "\"OK\", or the status of the refusal"},
    {"version", "the version that ran; that was asked for when status is not OK"},
    {"kernel", "the kernel that ran; null when status is not OK"},
    {"redirected", "true when another version ran than was asked for"},
    {"redirect_reason", "why; null when redirected is false"},
    {"backend", "the daemon's backend: \"cpu\", ..."},
    {"device", "the device's name; null when status is not OK"},
    {"dtype", "of the tensors"},
    {"shape", "[B,H,S,D]"},
    {"kv_len", "keys a head"},
    {"kv_heads", "heads of k and v"},
    {"mask", "as --mask"},
    {"scale", "factor of q k^T"},
    {"transport", "of the tensors that travel, as --transport"},
    {"seed", "of the random input; null with --q, --k and --v"},
    {"queue_us", "microseconds from all data being there to the start; as the next five, only when "
                 "status is OK"},
    {"transfer_us", "microseconds of moving data to and from the device"},
    {"kernel_us", "microseconds in the kernel"},
    {"total_us", "microseconds in the daemon"},
    {"client_us", "microseconds from the call to its return here"},
    {"tflops", "10^12 FLOP a second in the kernel; null when kernel_us is 0"},
    {"rel_l2", "L2 norm of o's error over that of the reference; null when infinite or NaN; this "
               "and the next five only with --check, when status is OK"},
    {"max_row_error", "largest relative error of a row of o; null when infinite or NaN"},
    {"max_lse_error", "largest error of a log-sum-exp over max(1, |LSE|); null when infinite or "
                      "NaN"},
    {"rows_checked", "rows that were compared"},
    {"passed", "false when an error is over its tolerance"},
    {"same_bits", "whether the outputs are the first repeat's to the bit"},
    {"field", "the request's field at fault, may be empty; only when status is not OK"},
    {"text", "what was wrong; only when status is not OK"},
};

const struct cli_command cli_run_command = {
    .name = "run",
    .title = "Run an attention forward pass and say how it went",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .notes = "--check passes when no row's relative error is over 1e-5 and no log-sum-exp's over\n"
             "1e-6 max(1, |LSE|). Above 2e12 FLOP it compares up to 64 rows of each head.\n"
             "When it fails by little:\n" RUN_ROUNDING_HINT ".\n"
             "--json prints an object for each repeat.\n",
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = cli_run,
};
