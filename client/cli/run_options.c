#include "client/cli/run.h"

#define AT(field) offsetof(struct run_options, field)

static const struct cli_option options[] = {
    REQUEST_OPTIONS,
    {"q", "FILE", NULL,
     "read q from a .npy file of float32 [B,H,S,D], whose shape then is the default; "
     "with --k and --v",
     cli_parse_text, AT(request.inputs[REQUEST_Q])},
    {"k", "FILE", NULL, "read k, [B,G,N,D]", cli_parse_text, AT(request.inputs[REQUEST_K])},
    {"v", "FILE", NULL, "read v, [B,G,N,D]", cli_parse_text, AT(request.inputs[REQUEST_V])},
    {"out", "FILE", NULL, "write o to a .npy file, [B,H,S,D]", cli_parse_text, AT(out)},
    {"lse", "FILE", NULL, "write the rows' log-sum-exp to a .npy file, [B,H,S]", cli_parse_text,
     AT(lse)},
    {"repeat", "N", "1", "how often the pass is run", cli_parse_count, AT(repeat)},
    {"check", NULL, NULL, "compare the result with a float64 reference computed here", NULL,
     AT(check)},
    CLI_TARGET_OPTIONS,
};

enum cli_exit run_parse(int argc, char **argv, struct run_options *out, struct cli_error *error)
{
    uint32_t given;

    if (cli_parse(&cli_run_command, argc, argv, out, sizeof *out, &given, error) != CLI_OK)
        return error->code;
    request_set_given(&out->request, given);
    out->request.wants_lse = out->lse || out->check;
    return request_check_inputs(&out->request, given & 1u << REQUEST_SEED ? "seed" : NULL, error);
}

static const struct cli_field fields[] = {
    {"status", "\"OK\", or the status of the refusal"},
    {"version", "the version that ran; that was asked for when status is not OK"},
    {"kernel", "the kernel that ran; null when status is not OK"},
    {"redirected", "true when another version ran than was asked for"},
    {"redirect_reason", "why; null when redirected is false"},
    {"backend", "the daemon's backend: \"cpu\", ..."},
    {"device", "the device's name; null when status is not OK"},
    REQUEST_FIELDS,
    {"queue_us", "microseconds from all data being there to the start; as the next five, only when "
                 "status is OK"},
    {"transfer_us", "microseconds of moving data to and from the device"},
    {"kernel_us", "microseconds in the kernel"},
    {"total_us", "microseconds in the daemon"},
    {"client_us",
     "microseconds from the call to its return here, of the pass alone: not of the copies "
     "to and from a region or device memory"},
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
    .notes =
        "With --transport region the inputs are written into the daemon's memory once, before the\n"
        "passes, and outputs read back after; the round trip is of the pass alone. So it is with\n"
        "--transport ipc, in memory of this process on the daemon's first device, for which it "
        "needs\n"
        "NVIDIA's driver (libcuda.so.1) and the daemon a GPU.\n"
        "--check passes when no row's relative error is over 1e-5 and no log-sum-exp's over\n"
        "1e-6 max(1, |LSE|). Above 2e12 FLOP it compares up to 64 rows of each head.\n"
        "When it fails by little:\n" REQUEST_ROUNDING_HINT ".\n"
        "--json prints an object for each repeat.\n",
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = cli_run,
};
