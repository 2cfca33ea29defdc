#include "tests/helpers/wire_forward.h"

#include "tests/helpers/test.h"
#include "tests/helpers/wire_region.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

static bool is_output(int tensor)
{
    return tensor == FAD_O || tensor == FAD_LSE;
}

static struct fa_extents extents_of(const struct wire_forward *f, int tensor)
{
    const Fad__Forward *m = &f->message;

    switch (tensor) {
    case FAD_K:
    case FAD_V:
        return (struct fa_extents){m->batch, m->kv_heads, m->kv_len, m->head_dim};
    case FAD_LSE:
        return (struct fa_extents){m->batch, m->heads, m->q_len, 1};
    default:
        return (struct fa_extents){m->batch, m->heads, m->q_len, m->head_dim};
    }
}

static uint64_t packed_bytes(const struct wire_forward *f, int tensor)
{
    struct fa_extents e = extents_of(f, tensor);
    return (uint64_t)e.batch * e.heads * e.rows * e.width * sizeof(float);
}

static struct fa_strides strides_of(const struct wire_forward *f, int tensor)
{
    const Fad__Tensor *t = &f->tensors[tensor];

    if (t->has_stride_row)
        return (struct fa_strides){t->stride_batch, t->stride_head, t->stride_row};
    return fa_packed_strides(extents_of(f, tensor));
}

/* --- Making ---------------------------------------------------------------------------------- */

int wire_memfd(uint64_t size, int seals)
{
    int fd = memfd_create(WIRE_MEMFD, MFD_CLOEXEC | MFD_ALLOW_SEALING);

    ck_assert_msg(fd >= 0, "memfd_create: %s", strerror(errno));
    ck_assert_int_eq(ftruncate(fd, (off_t)size), 0);
    if (seals)
        ck_assert_int_eq(fcntl(fd, F_ADD_SEALS, seals), 0);
    return fd;
}

static void set_shape(Fad__Forward *m, struct wire_shape shape)
{
    m->has_batch = m->has_heads = m->has_kv_heads = m->has_q_len = m->has_kv_len = true;
    m->has_head_dim = m->has_dtype = true;
    m->batch = shape.batch;
    m->heads = shape.heads;
    m->kv_heads = shape.kv_heads;
    m->q_len = shape.q_len;
    m->kv_len = shape.kv_len;
    m->head_dim = shape.head_dim;
    m->dtype = FAD__DTYPE__FLOAT32;
}

static void place(struct wire_forward *f, int tensor, bool shared, uint64_t offset)
{
    Fad__Tensor *const in_message[FAD_TENSORS] = {&f->tensors[FAD_Q], &f->tensors[FAD_K],
                                                  &f->tensors[FAD_V], &f->tensors[FAD_O],
                                                  &f->tensors[FAD_LSE]};
    Fad__Tensor **const fields[FAD_TENSORS] = {&f->message.q, &f->message.k, &f->message.v,
                                               &f->message.o, &f->message.lse};

    fad__tensor__init(&f->tensors[tensor]);
    fad__inline_location__init(&f->inlined[tensor]);
    fad__memfd_location__init(&f->shared[tensor]);
    fad__region_location__init(&f->lodged[tensor]);
    fad__cuda_ipc_location__init(&f->ipc[tensor]);
    *fields[tensor] = in_message[tensor];
    if (shared) {
        f->tensors[tensor].memfd = &f->shared[tensor];
        f->shared[tensor].has_offset = true;
        f->shared[tensor].offset = offset;
        return;
    }
    f->tensors[tensor].inline_bytes = &f->inlined[tensor];
    if (is_output(tensor))
        return;
    f->inlined[tensor].has_offset = f->inlined[tensor].has_length = true;
    f->inlined[tensor].offset = offset;
    f->inlined[tensor].length = packed_bytes(f, tensor);
}

static void fill(uint8_t *to, uint64_t bytes, uint64_t *seed)
{
    for (uint64_t i = 0; i < bytes; i += sizeof(float)) {
        float value = (float)(int64_t)(wire_random(seed) % 20001 - 10000) / 5000.0f;
        memcpy(to + i, &value, sizeof value);
    }
}

void wire_forward_make(struct wire_forward *f, struct wire_shape shape, unsigned shared)
{
    uint64_t offsets[FAD_TENSORS], ends[2] = {0, 0}, seed = 88172645463325252u;

    memset(f, 0, sizeof *f);
    f->memfd = -1;
    fad__forward__init(&f->message);
    set_shape(&f->message, shape);
    for (int t = 0; t < FAD_TENSORS; t++) {
        uint64_t *end = &ends[shared >> t & 1];

        offsets[t] = *end;
        place(f, t, shared >> t & 1, offsets[t]);
        if ((shared >> t & 1) || !is_output(t))
            *end += (packed_bytes(f, t) + 63) / 64 * 64;
    }
    f->payload.data = calloc(1, ends[0] + 1);
    f->payload.size = ends[0];
    ck_assert_ptr_nonnull(f->payload.data);
    if (shared) {
        f->memory_size = ends[1] ? ends[1] : 64;
        f->memfd = wire_memfd(f->memory_size, F_SEAL_SHRINK);
        f->memory = mmap(NULL, f->memory_size, PROT_READ | PROT_WRITE, MAP_SHARED, f->memfd, 0);
        ck_assert_ptr_ne(f->memory, MAP_FAILED);
        memset(f->memory, 0xff, f->memory_size); /* NaN */
    }
    for (int t = 0; t <= FAD_V; t++)
        fill((shared >> t & 1 ? f->memory : f->payload.data) + offsets[t], packed_bytes(f, t),
             &seed);
}

void wire_forward_make_long(struct wire_forward *f)
{
    /* On CUDA by the version that keeps no state for each piece of the keys: it would be gigabytes.
     * Its arithmetic is that of a whole row. */
    wire_forward_make(f, (struct wire_shape){1, 1, 1, 1, 1, test_on_cuda() ? 16 : 1}, 0);
    if (test_on_cuda())
        wire_forward_set_version(f, "v1");
    f->message.heads = f->message.kv_heads = f->message.q_len = 64;
    f->message.kv_len = 1 << 29;
    for (int t = 0; t <= FAD_V; t++)
        wire_forward_set_strides(f, (enum fad_tensor)t, 0, 0, 0);
}

void wire_forward_free(struct wire_forward *f)
{
    wire_free(&f->payload);
    if (f->memory)
        munmap(f->memory, f->memory_size);
    if (f->memfd >= 0)
        close(f->memfd);
}

void wire_forward_grow_sparse(struct wire_forward *f, size_t size)
{
    munmap(f->memory, f->memory_size);
    f->memory_size = size;
    ck_assert_int_eq(ftruncate(f->memfd, (off_t)size), 0);
    f->memory = mmap(NULL, size, PROT_READ | PROT_WRITE, MAP_SHARED, f->memfd, 0);
    ck_assert_ptr_ne(f->memory, MAP_FAILED);
}

void wire_forward_grow(struct wire_forward *f, size_t bytes)
{
    size_t old = f->memory_size;

    wire_forward_grow_sparse(f, old + bytes);
    memset(f->memory + old, 0xff, bytes);
}

float *wire_forward_at(const struct wire_forward *f, enum fad_tensor tensor)
{
    ck_assert(f->memory && f->tensors[tensor].memfd);
    return (float *)(void *)(f->memory + f->shared[tensor].offset);
}

uint64_t wire_forward_span(const struct wire_forward *f, enum fad_tensor tensor)
{
    uint64_t elements;

    ck_assert(fa_span(extents_of(f, tensor), strides_of(f, tensor), &elements));
    return elements * sizeof(float);
}

uint8_t *wire_forward_bytes(const struct wire_forward *f, enum fad_tensor tensor)
{
    if (f->regions[tensor])
        return f->regions[tensor]->memory + f->lodged[tensor].offset;
    if (f->tensors[tensor].memfd)
        return f->memory + f->shared[tensor].offset;
    ck_assert(!is_output(tensor));
    return f->payload.data + f->inlined[tensor].offset;
}

void wire_forward_use_ipc(struct wire_forward *f, enum fad_tensor tensor)
{
    static uint8_t handle[64] = {1, 2, 3}, uuid[16] = {4, 5, 6};
    Fad__CudaIpcLocation *ipc = &f->ipc[tensor];

    f->tensors[tensor].inline_bytes = NULL;
    f->tensors[tensor].memfd = NULL;
    f->tensors[tensor].cuda_ipc = ipc;
    ipc->has_handle = ipc->has_buffer_id = ipc->has_device_uuid = ipc->has_offset = true;
    ipc->handle = (ProtobufCBinaryData){sizeof handle, handle};
    ipc->device_uuid = (ProtobufCBinaryData){sizeof uuid, uuid};
}

void wire_forward_set_strides(struct wire_forward *f, enum fad_tensor tensor, int64_t batch,
                              int64_t head, int64_t row)
{
    Fad__Tensor *t = &f->tensors[tensor];

    t->has_stride_batch = t->has_stride_head = t->has_stride_row = true;
    t->stride_batch = batch;
    t->stride_head = head;
    t->stride_row = row;
}

void wire_forward_set_version(struct wire_forward *f, const char *version)
{
    f->message.has_version = true;
    f->message.version.data = (uint8_t *)(uintptr_t)version;
    f->message.version.len = strlen(version);
}

/* --- Sending --------------------------------------------------------------------------------- */

void wire_forward_append(const struct wire_forward *f, uint64_t id, struct wire_bytes *bytes)
{
    size_t size = fad__forward__get_packed_size(&f->message);
    uint8_t *message = malloc(size + 1);
    struct wire_frame frame;

    ck_assert_ptr_nonnull(message);
    fad__forward__pack(&f->message, message);
    frame = wire_make(FA_FRAME_FORWARD, id, message, size, f->payload.data, f->payload.size);
    frame.nfds = f->memfd >= 0;
    wire_append_frame(bytes, &frame);
    free(message);
}

bool wire_forward_send(int fd, const struct wire_forward *f, uint64_t id)
{
    struct wire_bytes bytes = {0};
    bool sent;

    wire_forward_append(f, id, &bytes);
    if (f->memfd >= 0)
        sent = wire_try_send_fds(fd, bytes.data, bytes.size, FA_FRAME_HEADER_SIZE, &f->memfd, 1);
    else
        sent = wire_try_send(fd, bytes.data, bytes.size);
    wire_free(&bytes);
    return sent;
}

/* --- Checking -------------------------------------------------------------------------------- */

static void make_problem(const struct wire_forward *f, struct fa_problem *problem,
                         struct fa_tensors *tensors)
{
    const Fad__Forward *m = &f->message;
    const void *inputs[3];

    *problem = (struct fa_problem){.batch = m->batch,
                                   .heads = m->heads,
                                   .kv_heads = m->kv_heads,
                                   .q_len = m->q_len,
                                   .kv_len = m->kv_len,
                                   .head_dim = m->head_dim,
                                   .dtype = FA_DTYPE_FLOAT32,
                                   .mask = (enum fa_mask)m->mask};
    problem->scale = m->has_scale ? m->scale : 1.0 / sqrt((double)m->head_dim);
    problem->q = strides_of(f, FAD_Q);
    problem->k = strides_of(f, FAD_K);
    problem->v = strides_of(f, FAD_V);
    problem->o = strides_of(f, FAD_O);
    problem->lse = strides_of(f, FAD_LSE);
    for (int t = 0; t <= FAD_V; t++)
        inputs[t] = wire_forward_bytes(f, (enum fad_tensor)t);
    *tensors = (struct fa_tensors){.q = inputs[FAD_Q], .k = inputs[FAD_K], .v = inputs[FAD_V]};
}

/* Where an output's elements are: in memory or in the reply's payload. */
static const float *output_at(const struct wire_forward *f, const struct wire_reply *reply,
                              enum fad_tensor tensor)
{
    uint64_t offset = 0;

    if (!f->tensors[tensor].inline_bytes)
        return (const float *)(const void *)wire_forward_bytes(f, tensor);
    if (tensor == FAD_LSE)
        fa_output_layout(f->tensors[FAD_O].inline_bytes ? packed_bytes(f, FAD_O) : 0,
                         packed_bytes(f, FAD_LSE), &offset);
    return (const float *)(const void *)(reply->payload + offset);
}

static void check_reply(const struct wire_forward *f, const struct wire_reply *reply)
{
    const Fad__ForwardReply *result = reply->message->forward;
    uint64_t o_bytes = f->tensors[FAD_O].inline_bytes ? packed_bytes(f, FAD_O) : 0, at;
    uint64_t lse_bytes =
        f->message.lse && f->tensors[FAD_LSE].inline_bytes ? packed_bytes(f, FAD_LSE) : 0;

    ck_assert_msg(reply->message->status == FAD__STATUS__OK, "%s: %s: %s",
                  fa_status_name((enum fa_status)reply->message->status), reply->message->field,
                  reply->message->text);
    ck_assert_ptr_nonnull(result);
    ck_assert(result->version && result->kernel && result->device);
    ck_assert(result->has_queue_us && result->has_transfer_us && result->has_kernel_us &&
              result->has_total_us);
    ck_assert_uint_eq(result->payload_o_bytes, o_bytes);
    ck_assert_uint_eq(reply->frame.payload_length, fa_output_layout(o_bytes, lse_bytes, &at));
}

void wire_forward_check(const struct wire_forward *f, const struct wire_reply *reply)
{
    const Fad__Forward *m = &f->message;
    struct fa_problem problem;
    struct fa_tensors tensors;
    struct fa_deviation deviation = {0};
    const float *o = output_at(f, reply, FAD_O), *lse = output_at(f, reply, FAD_LSE);
    double *o_reference, *lse_reference;

    check_reply(f, reply);
    make_problem(f, &problem, &tensors);
    o_reference = malloc(((size_t)m->q_len * m->head_dim + 1) * sizeof(double));
    lse_reference = malloc(((size_t)m->q_len + 1) * sizeof(double));
    ck_assert(o_reference && lse_reference);
    for (uint32_t b = 0; b < m->batch; b++) {
        for (uint32_t h = 0; h < m->heads; h++) {
            struct fa_range rows = {((uint64_t)b * m->heads + h) * m->q_len, m->q_len};
            const float *lse_here = lse + b * problem.lse.batch + h * problem.lse.head;

            ck_assert(fa_reference(&problem, &tensors, rows, o_reference, lse_reference));
            fa_deviation_add(&deviation, o + b * problem.o.batch + h * problem.o.head,
                             problem.o.row, m->lse ? lse_here : NULL, problem.lse.row, o_reference,
                             m->lse ? lse_reference : NULL, m->q_len, m->head_dim);
        }
    }
    ck_assert_double_le(fa_deviation_l2(&deviation), 1e-5);
    ck_assert_double_le(deviation.max_row, 1e-4);
    ck_assert_double_le(deviation.max_lse, 4e-6);
    free(o_reference);
    free(lse_reference);
}

void wire_forward_run(int fd, const struct wire_forward *f, uint64_t id)
{
    struct wire_reply reply;

    ck_assert(wire_forward_send(fd, f, id));
    wire_receive(fd, &reply);
    ck_assert_uint_eq(reply.frame.id, id);
    ck_assert_uint_eq(reply.frame.type, FA_FRAME_REPLY | FA_FRAME_FORWARD);
    wire_forward_check(f, &reply);
    wire_release(&reply);
}

void wire_serves(int fd)
{
    static uint64_t next = 1u << 20;
    struct wire_forward f;

    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_run(fd, &f, next++);
    wire_ping(fd, next++);
    wire_forward_free(&f);
}

void wire_refused(int fd, const struct wire_forward *f, enum fa_status status, const char *field)
{
    static uint64_t next = 1u << 30;

    ck_assert(wire_forward_send(fd, f, next));
    wire_expect(fd, next++, status, field);
    wire_serves(fd);
}
