/* doctor.c: `fa-cli doctor`, what this machine has and lacks for fad, and what to do about it. */
#include "client/cli/doctor.h"
#include "client/cli/options.h"

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

static const struct cli_option options[] = {
    CLI_OPTION_SOCKET,
    {.name = "json",
     .offset = offsetof(struct cli_target, json),
     .help = "print JSON, one object on a line"},
};

/* --- Findings -------------------------------------------------------------------------------- */

/* One line, whatever a path or an environment variable holds. */
static void keep_line(char *text)
{
    for (char *c = text; *c; c++)
        if ((unsigned char)*c < ' ' || *c == 127)
            *c = '?';
}

void doctor_add(struct doctor_findings *findings, const char *area, enum doctor_state state,
                const char *format, ...)
{
    struct doctor_finding *finding = &findings->list[findings->count];
    va_list arguments;

    if (findings->count == DOCTOR_FINDINGS)
        return;
    findings->count++;
    finding->state = state;
    snprintf(finding->area, sizeof finding->area, "%s", area);
    va_start(arguments, format);
    vsnprintf(finding->text, sizeof finding->text, format, arguments);
    va_end(arguments);
    keep_line(finding->text);
}

void doctor_advise(struct doctor_findings *findings, const char *format, ...)
{
    struct doctor_finding *finding = &findings->list[findings->count - 1];
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(finding->advice, sizeof finding->advice, format, arguments);
    va_end(arguments);
    keep_line(finding->advice);
}

/* --- The verdict ----------------------------------------------------------------------------- */

/* Appends to the verdict, which is cut to fit. */
static void say(struct doctor *doctor, const char *format, ...)
    __attribute__((format(printf, 2, 3)));
static void say(struct doctor *doctor, const char *format, ...)
{
    const size_t length = strlen(doctor->verdict);
    va_list arguments;

    va_start(arguments, format);
    vsnprintf(doctor->verdict + length, sizeof doctor->verdict - length, format, arguments);
    va_end(arguments);
    keep_line(doctor->verdict);
}

/* "inline, memfd and region": the ways that work. Returns how many. */
static size_t say_what_works(struct doctor *doctor)
{
    const char *names[DOCTOR_WAYS];
    size_t count = 0;

    for (enum doctor_way i = 0; i < DOCTOR_WAYS; i++)
        if (doctor->probe.ways[i].outcome == DOCTOR_WORKS)
            names[count++] = doctor_way_names[i];
    for (size_t i = 0; i < count; i++)
        say(doctor, "%s%s", i == 0 ? "" : i + 1 == count ? " and " : ", ", names[i]);
    return count;
}

static void conclude_on_ways(struct doctor *doctor)
{
    size_t working = say_what_works(doctor);

    if (working == 0)
        say(doctor, "nothing works");
    else
        say(doctor, working == 1 ? " works" : " work");
    for (enum doctor_way i = 0; i < DOCTOR_WAYS; i++) {
        const struct doctor_way_result *way = &doctor->probe.ways[i];

        if (way->outcome != DOCTOR_WORKS)
            say(doctor, "; %s does not: %s", doctor_way_names[i], way->text);
        if (way->outcome == DOCTOR_FAILS)
            doctor->works = false;
    }
}

/* Whether there is a daemon at all, though it does not serve this process. */
static bool is_absent(const struct doctor_daemon *daemon)
{
    for (size_t i = 0; i < daemon->socket_count; i++)
        if (daemon->sockets[i].chosen)
            return daemon->status == FA_UNAVAILABLE &&
                   (daemon->sockets[i].error == ENOENT || daemon->sockets[i].error == ECONNREFUSED);
    return false;
}

static void conclude_without_daemon(struct doctor *doctor)
{
    const char *lack = doctor->cuda.backend_lack;

    if (is_absent(&doctor->daemon)) {
        say(doctor, "no daemon runs; ");
    } else {
        doctor->works = false;
        say(doctor, "the daemon does not serve this process (see its line above); ");
    }
    if (lack[0])
        say(doctor, "one started here serves on the CPU, since %s", lack);
    else
        say(doctor, "one started here serves on the GPU");
    if (doctor->host.shared_error)
        say(doctor,
            "; tensors can only go inline or in regions, since no shared memory can be made");
}

static void conclude(struct doctor *doctor)
{
    const bool gpu = !doctor->cuda.backend_lack[0];

    doctor->works = doctor->probe.cpu_works || gpu;
    if (doctor->daemon.client)
        conclude_on_ways(doctor);
    else
        conclude_without_daemon(doctor);
    if (!doctor->probe.cpu_works)
        say(doctor, "; the CPU kernels fail here");
}

/* --- The command ----------------------------------------------------------------------------- */

static enum cli_exit run(int argc, char **argv, struct cli_error *error)
{
    static struct doctor doctor; /* too large for a stack */
    struct cli_target given;
    uint32_t bits;
    enum cli_exit code =
        cli_parse(&cli_doctor_command, argc, argv, &given, sizeof given, &bits, error);

    if (code != CLI_OK)
        return code;
    doctor_probe_cpu(&doctor.probe);
    doctor_host(&doctor.host, &doctor.probe, &doctor.findings);
    doctor_cuda(&doctor.cuda, &doctor.host, &doctor.findings);
    doctor_daemon(&doctor.daemon, given.socket, &doctor.cuda, &doctor.findings);
    doctor_probe_ways(&doctor.probe, &doctor.cuda, &doctor.daemon, &doctor.findings);
    conclude(&doctor);
    if (given.json)
        code = doctor_print_json(&doctor, error);
    else
        doctor_print(&doctor);
    doctor_daemon_release(&doctor.daemon);
    return code == CLI_OK && !doctor.works ? CLI_FAILED : code;
}

static const struct cli_field fields[] = {
    {"works", "whether the exit code is 0"},
    {"verdict", "a sentence on what works, and why the rest does not"},
    {"cpu", "an object; its fields:"},
    {"  processor", "its name"},
    {"  processors", "that this process may use"},
    {"  processors_online", "of the machine"},
    {"  processors_quota", "whose time the control group allows; null: any"},
    {"  kernel", "the fastest kernel, which runs here"},
    {"  works", "whether it computes what float64 does"},
    {"system", "an object; its fields:"},
    {"  linux", "the release"},
    {"  wsl", "whether it is WSL"},
    {"  memory_bytes", "of the machine"},
    {"  available_bytes", "without swapping"},
    {"  memory_limit_bytes", "of the control group; null: none"},
    {"  open_files", "that this process may have (`ulimit -n`)"},
    {"  shared_memory_error", "why no memfd with seals can be made; null: it can"},
    {"cuda", "an object; its fields:"},
    {"  library", "the file of libcuda.so.1; null: it cannot be loaded"},
    {"  library_error", "why not; else null"},
    {"  driver", "the release of the kernel module; null: not loaded"},
    {"  cuda_version", "that the driver knows: \"13.0\"; null: not known"},
    {"  init", "how cuInit ended: \"CUDA_SUCCESS\", ...; null: there is no library"},
    {"  visible_devices", "$CUDA_VISIBLE_DEVICES; null: not set"},
    {"  kernels_built", "whether this build has kernels for GPUs"},
    {"  backend_lack", "why no GPU can serve here; null: one can"},
    {"  ipc_lack", "why CUDA IPC cannot work from this process; null: nothing is known"},
    {"  files", "an array of objects: path, and error (null: may be read and written)"},
    {"  devices", "an array of objects, of what this process sees; their fields:"},
    {"    name", "of the GPU"},
    {"    uuid", "8-4-4-4-12 hexadecimal digits"},
    {"    compute_capability", "\"9.0\""},
    {"    supported", "whether the kernels run on that"},
    {"    memory_bytes", "of the GPU"},
    {"    free_bytes", "of them; null: no context could be made"},
    {"    compute_mode", "default, exclusive-process or prohibited"},
    {"    unified_addressing", "whether it has that"},
    {"    ipc_events", "whether its events can be shared"},
    {"    context", "how making a context ended: \"CUDA_SUCCESS\", ..."},
    {"    ipc_export", "how making an IPC handle ended; null: not tried"},
    {"daemon", "an object; its fields:"},
    {"  sockets", "an array of objects, of the places in their order; their fields:"},
    {"    from", "what names it: \"--socket\", \"$FAD_SOCKET\", ..."},
    {"    path", "the socket"},
    {"    chosen", "whether it is the one taken"},
    {"    error", "of connecting; null: something listens"},
    {"  status", "of connecting: \"OK\", \"UNAVAILABLE\", ..."},
    {"  error", "its text; null when OK. Then the rest is left out:"},
    {"  version", "the daemon's"},
    {"  backend", "what computes: \"cpu\", ..."},
    {"  process", "its number; null: not known"},
    {"  other_pid_namespace", "whether it is known to be in another PID namespace"},
    {"  ipc_lack", "why CUDA IPC cannot reach it; null: nothing is known"},
    {"  devices", "an array of objects: name, uuid, and visible (to this process)"},
    {"transports", "an array of objects; their fields:"},
    {"  name", "inline, memfd, region or cuda-ipc"},
    {"  outcome", "works, fails, not-offered, impossible (from this process) or untried"},
    {"  us", "of a small pass, the median; null when it does not work"},
    {"  text", "why it does not; null when it does"},
    {"findings", "an array of objects, the lines that a person sees; their fields:"},
    {"  area", "what it is about"},
    {"  state", "ok, note or lack"},
    {"  text", "what was found"},
    {"  advice", "what to do; null: nothing"},
};

const struct cli_command cli_doctor_command = {
    .name = "doctor",
    .title = "Say what this machine has and lacks for fad, and what to do",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .notes =
        "Asks the machine and NVIDIA's driver, connects to the daemon if one is there, and tries "
        "each\n"
        "transport that it offers with a small checked pass. A line is ok, a note, or LACK: then\n"
        "something does not work, and below it stands what to do.\n"
        "\n"
        "The exit code is 0 when a fad started here could serve (on the CPU, if by nothing else)\n"
        "and, if a daemon is there, all that it offers works. No daemon is no failure.\n",
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = run,
};
