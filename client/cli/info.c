/* info.c: `fa-cli info`, what the daemon says of itself. */
#include "client/cli/json.h"
#include "client/cli/options.h"
#include "client/cli/spawn.h"

#include <inttypes.h>
#include <string.h>

static const struct cli_option options[] = {CLI_TARGET_OPTIONS};

#define UUID_TEXT (sizeof "GPU-" + FA_UUID_TEXT)

/* As NVIDIA's tools write a GPU's; a CPU's is all zeroes. */
static void format_uuid(const struct fa_info *info, const struct fa_device *device,
                        char out[UUID_TEXT])
{
    char text[FA_UUID_TEXT];

    fa_uuid_text(device->uuid, text);
    snprintf(out, UUID_TEXT, "%s%s", strcmp(info->backend, "cuda") == 0 ? "GPU-" : "", text);
}

/* --- JSON ------------------------------------------------------------------------------------ */

static bool add_devices(cJSON *object, const struct fa_info *info)
{
    cJSON *array = cJSON_AddArrayToObject(object, "devices");
    bool built = array != NULL;

    for (size_t i = 0; built && i < info->device_count; i++) {
        const struct fa_device *device = &info->devices[i];
        cJSON *entry = cJSON_CreateObject();
        char uuid[UUID_TEXT];

        format_uuid(info, device, uuid);
        built = cJSON_AddItemToArray(array, entry) && cli_json_text(entry, "name", device->name) &&
                cli_json_text(entry, "uuid", uuid) &&
                cli_json_integer(entry, "memory_bytes", device->memory_bytes) &&
                cli_json_integer(entry, "streams", device->streams);
    }
    return built;
}

static bool add_versions(cJSON *object, const struct fa_info *info)
{
    cJSON *array = cJSON_AddArrayToObject(object, "versions");
    bool built = array != NULL;

    for (size_t i = 0; built && i < info->version_count; i++) {
        const struct fa_version_info *version = &info->versions[i];
        cJSON *entry = cJSON_CreateObject();

        built = cJSON_AddItemToArray(array, entry) && cli_json_text(entry, "name", version->name) &&
                cli_json_text(entry, "title", version->title) &&
                cli_json_text(entry, "kernel", version->kernel);
    }
    return built;
}

static bool add_transports(cJSON *object, const struct fa_info *info)
{
    cJSON *array = cJSON_AddArrayToObject(object, "transports");
    bool built = array != NULL;

    for (const char *name = info->transports; built && *name;) {
        int length = (int)strcspn(name, " ");
        char one[sizeof info->transports];

        snprintf(one, sizeof one, "%.*s", length, name);
        built = cJSON_AddItemToArray(array, cJSON_CreateString(one));
        name += length;
        name += strspn(name, " ");
    }
    return built;
}

static bool add_limits(cJSON *object, const struct fa_info *info)
{
    cJSON *limits = cJSON_AddObjectToObject(object, "limits");

    return limits && cli_json_integer(limits, "message_bytes", info->message_bytes) &&
           cli_json_integer(limits, "payload_bytes", info->payload_bytes) &&
           cli_json_integer(limits, "jobs", info->jobs) &&
           cli_json_integer(limits, "staged_bytes", info->staged_bytes) &&
           cli_json_integer(limits, "mapped_bytes", info->mapped_bytes);
}

static enum cli_exit print_json(const struct fa_info *info, struct cli_error *error)
{
    cJSON *object = cJSON_CreateObject();
    char protocol[24];
    bool built;

    snprintf(protocol, sizeof protocol, "%" PRIu32 ".%" PRIu32, info->protocol_major,
             info->protocol_minor);
    built = object && cli_json_text(object, "daemon_version", info->daemon_version) &&
            cli_json_text(object, "protocol", protocol) &&
            cli_json_text(object, "backend", info->backend) && add_transports(object, info) &&
            add_devices(object, info) && add_versions(object, info) && add_limits(object, info);
    return cli_json_print(object, built, error);
}

/* --- For a person ---------------------------------------------------------------------------- */

static void print_bytes(const char *name, uint64_t bytes)
{
    if (bytes >= UINT64_C(10) << 20)
        printf("  %-10s %" PRIu64 " MiB\n", name, bytes >> 20);
    else
        printf("  %-10s %" PRIu64 " KiB\n", name, bytes >> 10);
}

static void print_table(const struct fa_info *info)
{
    printf("daemon      fad %s, protocol %" PRIu32 ".%" PRIu32 "\n", info->daemon_version,
           info->protocol_major, info->protocol_minor);
    printf("backend     %s\n", info->backend);
    printf("transports  %s\n", info->transports);
    puts("devices");
    for (size_t i = 0; i < info->device_count; i++) {
        const struct fa_device *device = &info->devices[i];
        char uuid[UUID_TEXT];

        format_uuid(info, device, uuid);
        printf("  %s, %" PRIu64 " MiB, %" PRIu32 " stream%s, %s\n", device->name,
               device->memory_bytes >> 20, device->streams, device->streams == 1 ? "" : "s", uuid);
    }
    puts("versions");
    for (size_t i = 0; i < info->version_count; i++)
        printf("  %-10s %s (kernel %s)\n", info->versions[i].name, info->versions[i].title,
               info->versions[i].kernel);
    puts("limits");
    print_bytes("message", info->message_bytes);
    print_bytes("payload", info->payload_bytes);
    print_bytes("staged", info->staged_bytes);
    print_bytes("mapped", info->mapped_bytes);
    printf("  %-10s %" PRIu32 "\n", "jobs", info->jobs);
}

static enum cli_exit run(int argc, char **argv, struct cli_error *error)
{
    struct cli_target given;
    struct fa_client *client = NULL;
    uint32_t bits;
    enum cli_exit code =
        cli_parse(&cli_info_command, argc, argv, &given, sizeof given, &bits, error);

    if (code == CLI_OK)
        code = cli_connect(&client, &given, error);
    if (code == CLI_OK && given.json)
        code = print_json(fa_client_info(client), error);
    else if (code == CLI_OK)
        print_table(fa_client_info(client));
    return cli_disconnect(client, code, error);
}

static const struct cli_field fields[] = {
    {"daemon_version", "the daemon's version"},
    {"protocol", "the protocol that it speaks: \"MAJOR.MINOR\""},
    {"backend", "what computes: \"cpu\" or \"cuda\""},
    {"transports", "how tensors may travel, for run --transport (where cuda-ipc is ipc): an array"},
    {"devices", "an array of objects; their fields:"},
    {"  name", "of the device"},
    {"  uuid", "8-4-4-4-12 hexadecimal digits; a GPU's after \"GPU-\""},
    {"  memory_bytes", "the device's memory, in bytes"},
    {"  streams", "ranges of work that run side by side"},
    {"versions", "an array of objects; their fields:"},
    {"  name", "what run --version takes"},
    {"  title", "what it is, in words"},
    {"  kernel", "the kernel that it runs; equal names give equal bits"},
    {"limits", "an object; its fields:"},
    {"  message_bytes", "the largest message, without its payload, in bytes"},
    {"  payload_bytes", "the inline tensors of one request, in bytes"},
    {"  jobs", "requests of one connection at a time"},
    {"  staged_bytes", "inline tensors and scratch of those requests, in bytes"},
    {"  mapped_bytes", "shared memory of those requests, in bytes"},
};

const struct cli_command cli_info_command = {
    .name = "info",
    .title = "Say what the daemon is: devices, versions, limits",
    .options = options,
    .option_count = sizeof options / sizeof options[0],
    .fields = fields,
    .field_count = sizeof fields / sizeof fields[0],
    .run = run,
};
