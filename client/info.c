#include "client/internal.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

static enum fa_status no_room(struct fa_client *client)
{
    return fa_client_fail(client, FA_RESOURCE_EXHAUSTED, NULL, "no memory for the daemon's hello");
}

static enum fa_status take_devices(struct fa_client *client, const Fad__HelloReply *hello)
{
    if (hello->n_devices == 0)
        return FA_OK;
    client->devices = calloc(hello->n_devices, sizeof *client->devices);
    if (!client->devices)
        return no_room(client);
    for (size_t i = 0; i < hello->n_devices; i++) {
        const Fad__Device *from = hello->devices[i];
        struct fa_device *to = &client->devices[i];

        FA_TAKE_STRING(to->name, from->name);
        if (from->has_uuid && from->uuid.len != sizeof to->uuid)
            return fa_client_distrust(client, "hello.devices.uuid",
                                      "the daemon sent one that has not 16 bytes");
        if (from->has_uuid)
            memcpy(to->uuid, from->uuid.data, sizeof to->uuid);
        to->memory_bytes = from->memory_bytes;
        to->streams = from->streams;
    }
    client->info.devices = client->devices;
    client->info.device_count = hello->n_devices;
    return FA_OK;
}

static enum fa_status take_versions(struct fa_client *client, const Fad__HelloReply *hello)
{
    if (hello->n_versions == 0)
        return FA_OK;
    client->versions = calloc(hello->n_versions, sizeof *client->versions);
    if (!client->versions)
        return no_room(client);
    for (size_t i = 0; i < hello->n_versions; i++) {
        const Fad__Version *from = hello->versions[i];
        struct fa_version_info *to = &client->versions[i];

        FA_TAKE_STRING(to->name, from->name);
        FA_TAKE_STRING(to->title, from->title);
        FA_TAKE_STRING(to->kernel, from->kernel);
    }
    client->info.versions = client->versions;
    client->info.version_count = hello->n_versions;
    return FA_OK;
}

/* Joins the names with spaces, leaving out whole names that do not fit. */
static void take_transports(struct fa_info *info, const Fad__HelloReply *hello)
{
    size_t used = 0;

    for (size_t i = 0; i < hello->n_transports; i++) {
        size_t length = strlen(hello->transports[i]);
        size_t space = used > 0;

        if (length >= sizeof info->transports - used - space)
            continue;
        if (space)
            info->transports[used++] = ' ';
        memcpy(info->transports + used, hello->transports[i], length + 1);
        used += length;
    }
}

enum fa_status fa_info_take(struct fa_client *client, const Fad__HelloReply *hello)
{
    struct fa_info *info = &client->info;
    enum fa_status status;

    if (!hello->has_protocol_major || hello->protocol_major != FA_PROTOCOL_MAJOR)
        return fa_client_fail(client, FA_PROTOCOL_MISMATCH, "protocol_major",
                              "the daemon speaks protocol %u.%u, this client %u.%u; use a libfa of "
                              "the daemon's version",
                              hello->protocol_major, hello->protocol_minor, FA_PROTOCOL_MAJOR,
                              FA_PROTOCOL_MINOR);
    free(client->devices);
    free(client->versions);
    client->devices = NULL;
    client->versions = NULL;
    memset(info, 0, sizeof *info);
    info->protocol_major = hello->protocol_major;
    info->protocol_minor = hello->protocol_minor;
    FA_TAKE_STRING(info->daemon_version, hello->daemon_version);
    FA_TAKE_STRING(info->backend, hello->backend);
    take_transports(info, hello);
    if (hello->limits) {
        info->message_bytes = hello->limits->message_bytes;
        info->payload_bytes = hello->limits->payload_bytes;
        info->jobs = hello->limits->jobs;
        info->staged_bytes = hello->limits->staged_bytes;
        info->mapped_bytes = hello->limits->mapped_bytes;
        info->regions = hello->limits->regions;
    }
    info->connection = hello->connection;
    status = take_devices(client, hello);
    return status == FA_OK ? take_versions(client, hello) : status;
}

bool fa_info_has_transport(const struct fa_info *info, const char *name)
{
    const size_t length = strlen(name);

    for (const char *word = info->transports; *word; word += strspn(word, " ")) {
        size_t end = strcspn(word, " ");

        if (end == length && memcmp(word, name, length) == 0)
            return true;
        word += end;
    }
    return false;
}

void fa_uuid_text(const uint8_t uuid[16], char out[FA_UUID_TEXT])
{
    size_t length = 0;

    for (size_t i = 0; i < 16; i++)
        length +=
            (size_t)snprintf(out + length, FA_UUID_TEXT - length,
                             i == 4 || i == 6 || i == 8 || i == 10 ? "-%02x" : "%02x", uuid[i]);
}
