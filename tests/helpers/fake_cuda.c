#include "tests/helpers/fake_cuda.h"

#include "tests/helpers/fake_daemon.h"
#include "tests/helpers/test.h"

#include <dlfcn.h>
#include <fcntl.h>
#include <limits.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

const uint8_t fake_cuda_uuids[2][16] = {{0xaa, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15},
                                        {0xbb, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15}};

const char *fake_cuda_path(bool old)
{
    static char path[PATH_MAX];

    snprintf(path, sizeof path, "%s/tests/%s", test_build_dir(), old ? "oldcuda" : "fakecuda");
    return path;
}

/* That it is there by its soname is what libfa's dlopen then looks for first. */
const struct fake_cuda *fake_cuda_load(void)
{
    char path[PATH_MAX + 32];
    const struct fake_cuda *fake;
    void *library;

    snprintf(path, sizeof path, "%s/libcuda.so.1", fake_cuda_path(false));
    library = dlopen(path, RTLD_NOW | RTLD_LOCAL);
    ck_assert_msg(library != NULL, "%s", dlerror());
    fake = dlsym(library, "fake_cuda_control");
    ck_assert_ptr_nonnull(fake);
    return fake;
}

void *fake_cuda_open(const uint8_t bytes[64], struct fake_cuda_handle *out)
{
    char path[64];
    void *memory;
    int fd;

    memcpy(out, bytes, sizeof *out);
    ck_assert_uint_eq(out->magic, FAKE_CUDA_MEMORY);
    snprintf(path, sizeof path, "/proc/%d/fd/%d", (int)out->pid, (int)out->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    ck_assert_int_ge(fd, 0);
    memory = mmap(NULL, out->size, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    ck_assert_ptr_ne(memory, MAP_FAILED);
    close(fd);
    return memory;
}

void fake_cuda_expect_memory(const uint8_t *bytes, size_t size, const void *base, uint64_t id)
{
    struct fake_cuda_handle handle;

    ck_assert_uint_eq(size, sizeof handle);
    memcpy(&handle, bytes, sizeof handle);
    ck_assert_uint_eq(handle.magic, FAKE_CUDA_MEMORY);
    ck_assert_uint_eq(handle.base, (uintptr_t)base);
    ck_assert_uint_eq(handle.id, id);
}

void fake_cuda_expect_event(const uint8_t *bytes, size_t size, uint32_t number)
{
    struct fake_cuda_event_handle handle;

    ck_assert_uint_eq(size, sizeof handle);
    memcpy(&handle, bytes, sizeof handle);
    ck_assert_uint_eq(handle.magic, FAKE_CUDA_EVENT);
    ck_assert_uint_eq(handle.number, number);
}

static void serve_ipc(Fad__HelloReply *hello, const void *data)
{
    static char *transports[] = {FAKE_TEXT("inline"), FAKE_TEXT("memfd"), FAKE_TEXT("region"),
                                 FAKE_TEXT("cuda-ipc")};
    (void)data;

    hello->backend = FAKE_TEXT("cuda");
    hello->n_transports = sizeof transports / sizeof transports[0];
    hello->transports = transports;
    hello->n_devices = 1;
}

void fake_cuda_hello(int fd)
{
    fake_hello_as(fd, serve_ipc, NULL);
}
