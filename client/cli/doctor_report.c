#include "client/cli/doctor.h"
#include "client/cli/json.h"
#include "proto/fa_status.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <string.h>

/* --- For a person ---------------------------------------------------------------------------- */

#define TEXT_COLUMN 16
#define TEXT_WIDTH  100

/* Of the word that text begins with: up to a space, but a `command` is one. */
static int word_length(const char *text)
{
    bool command = false;
    int length = 0;

    for (; text[length] && (command || text[length] != ' '); length++)
        if (text[length] == '`')
            command = !command;
    return length;
}

/* Prints text from TEXT_COLUMN on, broken between words. */
static void print_wrapped(const char *text)
{
    int column = TEXT_COLUMN;

    while (*text) {
        const int length = word_length(text);

        if (column > TEXT_COLUMN && column + 1 + length > TEXT_WIDTH) {
            printf("\n%*s", TEXT_COLUMN, "");
            column = TEXT_COLUMN;
        }
        column += printf("%s%.*s", column > TEXT_COLUMN ? " " : "", length, text);
        text += length;
        text += strspn(text, " ");
    }
    putchar('\n');
}

void doctor_print(const struct doctor *doctor)
{
    static const char *const marks[] = {"ok", "note", "LACK"};

    for (size_t i = 0; i < doctor->findings.count; i++) {
        const struct doctor_finding *finding = &doctor->findings.list[i];
        char advice[sizeof finding->advice + 8];

        printf("%-9s %-6s", finding->area, marks[finding->state]);
        print_wrapped(finding->text);
        if (!finding->advice[0])
            continue;
        snprintf(advice, sizeof advice, "-> %s", finding->advice);
        printf("%*s", TEXT_COLUMN, "");
        print_wrapped(advice);
    }
    printf("\n%-*s", TEXT_COLUMN, "verdict");
    print_wrapped(doctor->verdict);
}

/* --- JSON ------------------------------------------------------------------------------------ */

/* Empty becomes null. */
static bool text_or_null(cJSON *object, const char *name, const char *text)
{
    return cli_json_text(object, name, text[0] ? text : NULL);
}

static bool errno_or_null(cJSON *object, const char *name, int error)
{
    return cli_json_text(object, name, error ? strerror(error) : NULL);
}

static bool bytes_or_null(cJSON *object, const char *name, uint64_t bytes, uint64_t none)
{
    return bytes == none ? cJSON_AddNullToObject(object, name) != NULL
                         : cli_json_integer(object, name, bytes);
}

static bool truth(cJSON *object, const char *name, bool value)
{
    return cJSON_AddBoolToObject(object, name, value) != NULL;
}

/* Appends an object to an array; NULL without memory. */
static cJSON *append(cJSON *array)
{
    cJSON *entry = cJSON_CreateObject();

    if (cJSON_AddItemToArray(array, entry))
        return entry;
    cJSON_Delete(entry);
    return NULL;
}

static bool add_machine(cJSON *object, const struct doctor *doctor)
{
    const struct doctor_host *host = &doctor->host;
    cJSON *cpu = cJSON_AddObjectToObject(object, "cpu");
    cJSON *system = cJSON_AddObjectToObject(object, "system");

    return cpu && system && cli_json_text(cpu, "processor", host->processor) &&
           cli_json_integer(cpu, "processors", (uint64_t)host->processors) &&
           cli_json_integer(cpu, "processors_online", (uint64_t)host->processors_online) &&
           cli_json_real(cpu, "processors_quota", host->quota) &&
           text_or_null(cpu, "kernel", doctor->probe.kernel) &&
           truth(cpu, "works", doctor->probe.cpu_works) &&
           cli_json_text(system, "linux", host->kernel_release) &&
           truth(system, "wsl", host->wsl) &&
           cli_json_integer(system, "memory_bytes", host->memory_bytes) &&
           bytes_or_null(system, "available_bytes", host->available_bytes, UINT64_MAX) &&
           bytes_or_null(system, "memory_limit_bytes", host->memory_limit, UINT64_MAX) &&
           bytes_or_null(system, "open_files", host->open_files, UINT64_MAX) &&
           errno_or_null(system, "shared_memory_error", host->shared_error);
}

static bool add_device(cJSON *array, const struct cuda_probe_device *device)
{
    cJSON *entry = append(array);
    char uuid[FA_UUID_TEXT], arch[16];

    fa_uuid_text(device->uuid, uuid);
    snprintf(arch, sizeof arch, "%d.%d", device->arch / 10, device->arch % 10);
    return entry && cli_json_text(entry, "name", device->name) &&
           cli_json_text(entry, "uuid", uuid) && cli_json_text(entry, "compute_capability", arch) &&
           truth(entry, "supported", doctor_arch_serves(device->arch)) &&
           cli_json_integer(entry, "memory_bytes", device->memory_bytes) &&
           bytes_or_null(entry, "free_bytes", device->free_bytes, 0) &&
           cli_json_text(entry, "compute_mode", doctor_mode_name(device->mode)) &&
           truth(entry, "unified_addressing", device->unified_addressing) &&
           truth(entry, "ipc_events", device->ipc_events) &&
           text_or_null(entry, "context", device->context.name) &&
           text_or_null(entry, "ipc_export", device->ipc_export.name);
}

static bool add_files(cJSON *object, const struct doctor_cuda *cuda)
{
    cJSON *array = cJSON_AddArrayToObject(object, "files");
    bool built = array != NULL;

    for (size_t i = 0; built && i < cuda->file_count; i++) {
        cJSON *entry = append(array);

        built = entry && cli_json_text(entry, "path", cuda->files[i].path) &&
                errno_or_null(entry, "error", cuda->files[i].error);
    }
    return built;
}

static bool add_cuda(cJSON *object, const struct doctor_cuda *cuda)
{
    const struct cuda_probe *probe = &cuda->probe;
    cJSON *part = cJSON_AddObjectToObject(object, "cuda"), *array;
    char version[16] = "";
    bool built;

    if (probe->version)
        snprintf(version, sizeof version, "%d.%d", probe->version / 1000,
                 probe->version % 1000 / 10);
    built = part && text_or_null(part, "library", probe->library) &&
            text_or_null(part, "library_error", probe->load_error) &&
            text_or_null(part, "driver", probe->module) &&
            text_or_null(part, "cuda_version", version) &&
            text_or_null(part, "init", probe->init.name) &&
            cli_json_text(part, "visible_devices", cuda->visible_devices) &&
            truth(part, "kernels_built", cuda->kernels) &&
            text_or_null(part, "backend_lack", cuda->backend_lack) &&
            text_or_null(part, "ipc_lack", cuda->ipc_lack) && add_files(part, cuda);
    array = built ? cJSON_AddArrayToObject(part, "devices") : NULL;
    built = array != NULL;
    for (size_t i = 0; built && i < probe->device_count; i++)
        built = add_device(array, &probe->devices[i]);
    return built;
}

static bool add_sockets(cJSON *object, const struct doctor_daemon *daemon)
{
    cJSON *array = cJSON_AddArrayToObject(object, "sockets");
    bool built = array != NULL;

    for (size_t i = 0; built && i < daemon->socket_count; i++) {
        const struct doctor_socket *socket = &daemon->sockets[i];
        cJSON *entry = append(array);

        built = entry && cli_json_text(entry, "from", socket->from) &&
                cli_json_text(entry, "path", socket->path) &&
                truth(entry, "chosen", socket->chosen) &&
                errno_or_null(entry, "error", socket->error);
    }
    return built;
}

static bool add_served_devices(cJSON *object, const struct fa_info *info,
                               const struct doctor_cuda *cuda)
{
    cJSON *array = cJSON_AddArrayToObject(object, "devices");
    bool built = array != NULL;

    for (size_t i = 0; built && i < info->device_count; i++) {
        cJSON *entry = append(array);
        char uuid[FA_UUID_TEXT];

        fa_uuid_text(info->devices[i].uuid, uuid);
        built = entry && cli_json_text(entry, "name", info->devices[i].name) &&
                cli_json_text(entry, "uuid", uuid) &&
                truth(entry, "visible", doctor_sees(cuda, info->devices[i].uuid));
    }
    return built;
}

static bool add_daemon(cJSON *object, const struct doctor *doctor)
{
    const struct doctor_daemon *daemon = &doctor->daemon;
    const struct fa_info *info = fa_client_info(daemon->client);
    cJSON *part = cJSON_AddObjectToObject(object, "daemon");

    if (!part || !add_sockets(part, daemon) ||
        !cli_json_text(part, "status", fa_status_name(daemon->status)) ||
        !text_or_null(part, "error", daemon->error))
        return false;
    return !info || (cli_json_text(part, "version", info->daemon_version) &&
                     cli_json_text(part, "backend", info->backend) &&
                     bytes_or_null(part, "process", (uint64_t)daemon->pid, 0) &&
                     truth(part, "other_pid_namespace", daemon->other_namespace) &&
                     text_or_null(part, "ipc_lack", daemon->ipc_lack) &&
                     add_served_devices(part, info, &doctor->cuda));
}

static bool add_transports(cJSON *object, const struct doctor_probe *probe)
{
    static const char *const outcomes[] = {[DOCTOR_UNTRIED] = "untried",
                                           [DOCTOR_NOT_OFFERED] = "not-offered",
                                           [DOCTOR_IMPOSSIBLE] = "impossible",
                                           [DOCTOR_WORKS] = "works",
                                           [DOCTOR_FAILS] = "fails"};
    cJSON *array = cJSON_AddArrayToObject(object, "transports");
    bool built = array != NULL;

    for (size_t i = 0; built && i < DOCTOR_WAYS; i++) {
        const struct doctor_way_result *way = &probe->ways[i];
        cJSON *entry = append(array);

        built = entry && cli_json_text(entry, "name", doctor_way_names[i]) &&
                cli_json_text(entry, "outcome", outcomes[way->outcome]) &&
                cli_json_us(entry, "us", way->outcome == DOCTOR_WORKS ? way->us : NAN) &&
                text_or_null(entry, "text", way->text);
    }
    return built;
}

static bool add_findings(cJSON *object, const struct doctor_findings *findings)
{
    static const char *const states[] = {"ok", "note", "lack"};
    cJSON *array = cJSON_AddArrayToObject(object, "findings");
    bool built = array != NULL;

    for (size_t i = 0; built && i < findings->count; i++) {
        const struct doctor_finding *finding = &findings->list[i];
        cJSON *entry = append(array);

        built = entry && cli_json_text(entry, "area", finding->area) &&
                cli_json_text(entry, "state", states[finding->state]) &&
                cli_json_text(entry, "text", finding->text) &&
                text_or_null(entry, "advice", finding->advice);
    }
    return built;
}

enum cli_exit doctor_print_json(const struct doctor *doctor, struct cli_error *error)
{
    cJSON *object = cJSON_CreateObject();
    bool built = object && truth(object, "works", doctor->works) &&
                 cli_json_text(object, "verdict", doctor->verdict) && add_machine(object, doctor) &&
                 add_cuda(object, &doctor->cuda) && add_daemon(object, doctor) &&
                 add_transports(object, &doctor->probe) && add_findings(object, &doctor->findings);

    return cli_json_print(object, built, error);
}
