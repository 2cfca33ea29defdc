/* exporter [uid]: a process with memory on the GPU, as a client of the daemon's has, that does what
 * it is told on stdin, line by line, until that ends. It is exec'd, since CUDA does not survive a
 * fork, and it may be killed at any time. peer.h is the other end. Answers each line with "ok ..."
 * or "error ...":
 *
 *     alloc SLOT BYTES KIND      KIND: malloc, pool (cudaMallocAsync), managed, vmm (cuMemCreate)
 *     free SLOT
 *     handle SLOT                ok HANDLE BUFFER_ID UUID OFFSET SIZE: as CudaIpcLocation has them,
 *                                and the size of the whole allocation
 *     put SLOT OFFSET BYTES MS   and so many raw bytes: they are there after a kernel of so many
 *                                milliseconds, on the stream; the answer comes before
 *     get SLOT OFFSET BYTES      ok, and the raw bytes, when all that was put is there
 *     event N                    ok HANDLE: of the interprocess event N, made when it is new
 *     record N                   on the stream
 *     hold, release              nothing on the stream goes on in between; no kernel runs meanwhile
 *     memory                     ok FREE TOTAL: of the GPU, in bytes */
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda.h>
#include <cuda_runtime.h>
#include <pthread.h>
#include <unistd.h>

namespace
{

constexpr int SLOTS = 64, EVENTS = 16, STAGES = 16;

struct slot {
    char kind[16];
    void *memory;
    size_t size;
    CUmemGenericAllocationHandle physical; /* vmm */
};

struct stage {
    void *memory;
    size_t size;
};

slot slots[SLOTS];
stage stages[STAGES]; /* of the last puts, taken in turns */
unsigned next_stage;
cudaEvent_t events[EVENTS];
cudaStream_t stream;

pthread_mutex_t gate_lock = PTHREAD_MUTEX_INITIALIZER;
pthread_cond_t gate_moved = PTHREAD_COND_INITIALIZER;
bool held;

char answer[512];

/* What to answer when a call failed, or NULL. */
const char *failure(const char *what, cudaError_t error)
{
    if (error == cudaSuccess)
        return nullptr;
    cudaGetLastError();
    snprintf(answer, sizeof answer, "error %s: %s", what, cudaGetErrorName(error));
    return answer;
}

const char *failure(const char *what, CUresult result)
{
    if (result == CUDA_SUCCESS)
        return nullptr;
    snprintf(answer, sizeof answer, "error %s: %d", what, (int)result);
    return answer;
}

#define TRY(call)                                         \
    do {                                                  \
        if (const char *problem = failure(#call, (call))) \
            return problem;                               \
    } while (0)

/* A driver's function, without linking libcuda. */
template <typename Function> bool find(const char *name, Function **out)
{
    cudaDriverEntryPointQueryResult found;
    void *address = nullptr;

    if (cudaGetDriverEntryPointByVersion(name, &address, 12000, cudaEnableDefault, &found) !=
            cudaSuccess ||
        found != cudaDriverEntryPointSuccess)
        return false;
    memcpy(out, &address, sizeof address);
    return true;
}

#define DRIVER(name, version)                 \
    static decltype(version) *name = nullptr; \
    if (!name && !find(#name, &name))         \
    return "error no " #name

__global__ void spin(uint64_t nanoseconds)
{
    uint64_t begun, now;

    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(begun));
    do
        asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    while (now - begun < nanoseconds);
}

char *put_hex(char *out, const void *data, size_t size)
{
    for (size_t i = 0; i < size; i++)
        out += snprintf(out, 3, "%02x", ((const unsigned char *)data)[i]);
    return out;
}

/* --- Memory ---------------------------------------------------------------------------------- */

const char *alloc_vmm(slot &slot)
{
    DRIVER(cuMemGetAllocationGranularity, cuMemGetAllocationGranularity);
    DRIVER(cuMemCreate, cuMemCreate);
    DRIVER(cuMemAddressReserve, cuMemAddressReserve);
    DRIVER(cuMemMap, cuMemMap);
    DRIVER(cuMemSetAccess, cuMemSetAccess);
    CUmemAllocationProp prop = {};
    CUmemAccessDesc access = {};
    CUdeviceptr address = 0;
    size_t unit = 0;

    prop.type = CU_MEM_ALLOCATION_TYPE_PINNED;
    prop.location.type = CU_MEM_LOCATION_TYPE_DEVICE;
    prop.requestedHandleTypes = CU_MEM_HANDLE_TYPE_POSIX_FILE_DESCRIPTOR;
    access.location = prop.location;
    access.flags = CU_MEM_ACCESS_FLAGS_PROT_READWRITE;
    TRY(cuMemGetAllocationGranularity(&unit, &prop, CU_MEM_ALLOC_GRANULARITY_MINIMUM));
    slot.size = (slot.size + unit - 1) / unit * unit;
    TRY(cuMemCreate(&slot.physical, slot.size, &prop, 0));
    TRY(cuMemAddressReserve(&address, slot.size, 0, 0, 0));
    TRY(cuMemMap(address, slot.size, 0, slot.physical, 0));
    TRY(cuMemSetAccess(address, slot.size, &access, 1));
    slot.memory = (void *)address;
    return "ok";
}

const char *alloc(slot &slot)
{
    if (slot.memory)
        return "error the slot is taken";
    if (strcmp(slot.kind, "vmm") == 0)
        return alloc_vmm(slot);
    if (strcmp(slot.kind, "pool") == 0) {
        TRY(cudaMallocAsync(&slot.memory, slot.size, stream));
        TRY(cudaStreamSynchronize(stream));
    } else if (strcmp(slot.kind, "managed") == 0) {
        TRY(cudaMallocManaged(&slot.memory, slot.size));
    } else {
        TRY(cudaMalloc(&slot.memory, slot.size));
    }
    return "ok";
}

const char *free_slot(slot &slot)
{
    if (strcmp(slot.kind, "vmm") == 0) {
        DRIVER(cuMemUnmap, cuMemUnmap);
        DRIVER(cuMemRelease, cuMemRelease);
        DRIVER(cuMemAddressFree, cuMemAddressFree);
        TRY(cuMemUnmap((CUdeviceptr)slot.memory, slot.size));
        TRY(cuMemRelease(slot.physical));
        TRY(cuMemAddressFree((CUdeviceptr)slot.memory, slot.size));
    } else {
        TRY(cudaFree(slot.memory)); /* waits for all work */
    }
    slot = {};
    return "ok";
}

const char *handle(const slot &slot)
{
    DRIVER(cuPointerGetAttribute, cuPointerGetAttribute);
    DRIVER(cuMemGetAddressRange, cuMemGetAddressRange_v2);
    const CUdeviceptr at = (CUdeviceptr)slot.memory;
    cudaIpcMemHandle_t handle;
    cudaDeviceProp device;
    CUdeviceptr base = 0;
    size_t size = 0;
    unsigned long long id = 0;
    char *out = answer + snprintf(answer, sizeof answer, "ok ");

    TRY(cudaGetDeviceProperties(&device, 0));
    TRY(cuMemGetAddressRange(&base, &size, at));
    TRY(cuPointerGetAttribute(&id, CU_POINTER_ATTRIBUTE_BUFFER_ID, at));
    TRY(cudaIpcGetMemHandle(&handle, slot.memory));
    out = answer + 3; /* the macros may have used it */
    memcpy(answer, "ok ", 3);
    out = put_hex(out, &handle, sizeof handle);
    out += snprintf(out, 32, " %llu ", id);
    out = put_hex(out, &device.uuid, sizeof device.uuid);
    snprintf(out, 64, " %llu %zu", at - base, size);
    return answer;
}

/* --- Bytes ----------------------------------------------------------------------------------- */

/* Host memory of at least the size, kept. */
void *host(size_t size)
{
    static void *memory;
    static size_t have;

    if (size > have) {
        memory = realloc(memory, size);
        have = size;
    }
    return memory;
}

const char *put(const slot &slot, size_t offset, size_t bytes, unsigned milliseconds)
{
    stage &stage = stages[next_stage++ % STAGES];
    char *const to = (char *)slot.memory + offset;
    void *data = host(bytes);

    if (fread(data, 1, bytes, stdin) != bytes)
        exit(1);
    if (!slot.memory || offset + bytes > slot.size)
        return "error outside of the slot";
    if (milliseconds == 0 && !held) {
        TRY(cudaMemcpyAsync(to, data, bytes, cudaMemcpyHostToDevice, stream));
        TRY(cudaStreamSynchronize(stream));
        return "ok";
    }
    if (stage.size < bytes) {
        TRY(cudaFree(stage.memory));
        stage = {};
        TRY(cudaMalloc(&stage.memory, bytes));
        stage.size = bytes;
    }
    TRY(cudaMemcpy(stage.memory, data, bytes, cudaMemcpyHostToDevice));
    if (milliseconds) {
        spin<<<1, 1, 0, stream>>>((uint64_t)milliseconds * 1000000);
        TRY(cudaGetLastError());
    }
    TRY(cudaMemcpyAsync(to, stage.memory, bytes, cudaMemcpyDeviceToDevice, stream));
    return "ok";
}

const char *get(const slot &slot, size_t offset, size_t bytes)
{
    void *data = host(bytes);

    if (!slot.memory || offset + bytes > slot.size)
        return "error outside of the slot";
    TRY(cudaStreamSynchronize(stream));
    TRY(cudaMemcpy(data, (char *)slot.memory + offset, bytes, cudaMemcpyDeviceToHost));
    puts("ok");
    fwrite(data, 1, bytes, stdout);
    return nullptr;
}

/* --- Order ----------------------------------------------------------------------------------- */

void await_release(void *)
{
    pthread_mutex_lock(&gate_lock);
    while (held)
        pthread_cond_wait(&gate_moved, &gate_lock);
    pthread_mutex_unlock(&gate_lock);
}

void set_held(bool now)
{
    pthread_mutex_lock(&gate_lock);
    held = now;
    pthread_cond_broadcast(&gate_moved);
    pthread_mutex_unlock(&gate_lock);
}

const char *hold()
{
    set_held(true);
    TRY(cudaLaunchHostFunc(stream, await_release, nullptr));
    return "ok";
}

const char *event_handle(cudaEvent_t &event)
{
    cudaIpcEventHandle_t handle;

    if (!event)
        TRY(cudaEventCreateWithFlags(&event, cudaEventDisableTiming | cudaEventInterprocess));
    TRY(cudaIpcGetEventHandle(&handle, event));
    memcpy(answer, "ok ", 3);
    put_hex(answer + 3, &handle, sizeof handle);
    return answer;
}

const char *record(cudaEvent_t event)
{
    TRY(cudaEventRecord(event, stream));
    return "ok";
}

const char *memory()
{
    size_t available = 0, total = 0;

    TRY(cudaMemGetInfo(&available, &total));
    snprintf(answer, sizeof answer, "ok %zu %zu", available, total);
    return answer;
}

/* --- The lines ------------------------------------------------------------------------------- */

/* What is to be answered; NULL: it has been. */
const char *obey(const char *line)
{
    unsigned at = 0, milliseconds = 0;
    size_t first = 0, second = 0;
    char kind[16];

    if (sscanf(line, "alloc %u %zu %15s", &at, &first, kind) == 3 && at < SLOTS) {
        if (!slots[at].memory) {
            slots[at].size = first;
            memcpy(slots[at].kind, kind, sizeof kind);
        }
        return alloc(slots[at]);
    }
    if (sscanf(line, "free %u", &at) == 1 && at < SLOTS)
        return free_slot(slots[at]);
    if (sscanf(line, "handle %u", &at) == 1 && at < SLOTS)
        return handle(slots[at]);
    if (sscanf(line, "put %u %zu %zu %u", &at, &first, &second, &milliseconds) == 4 && at < SLOTS)
        return put(slots[at], first, second, milliseconds);
    if (sscanf(line, "get %u %zu %zu", &at, &first, &second) == 3 && at < SLOTS)
        return get(slots[at], first, second);
    if (sscanf(line, "event %u", &at) == 1 && at < EVENTS)
        return event_handle(events[at]);
    if (sscanf(line, "record %u", &at) == 1 && at < EVENTS)
        return record(events[at]);
    if (strcmp(line, "hold\n") == 0)
        return hold();
    if (strcmp(line, "memory\n") == 0)
        return memory();
    if (strcmp(line, "release\n") != 0)
        return "error what is that";
    set_held(false);
    return "ok";
}

} // namespace

int main(int argc, char **argv)
{
    char line[256];

    if (argc > 1) {
        const uid_t uid = (uid_t)strtoul(argv[1], nullptr, 10);
        if (setresuid(uid, uid, uid) != 0)
            return 1;
    }
    if (const char *problem = failure("cudaStreamCreate",
                                      cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking))) {
        puts(problem);
        return 1;
    }
    puts("ok");
    fflush(stdout);
    while (fgets(line, sizeof line, stdin)) {
        if (const char *text = obey(line))
            puts(text);
        fflush(stdout);
    }
    _exit(0); /* the stream may be held */
}
