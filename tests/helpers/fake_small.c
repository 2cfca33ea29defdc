#include "tests/helpers/fake_small.h"

#include <check.h>
#include <stdlib.h>
#include <string.h>

void fake_small_init(struct fake_small *small, int number)
{
    memset(small, 0, sizeof *small);
    for (int i = 0; i < FAKE_SMALL_WIDTH; i++) {
        small->q[i] = (float)number;
        small->o[i] = -1;
    }
    small->args = (struct fa_forward_args){
        .batch = 1, .heads = 1, .q_len = 1, .kv_len = 1, .head_dim = FAKE_SMALL_WIDTH};
    small->args.q.data = small->q;
    small->args.k.data = small->k;
    small->args.v.data = small->v;
    small->args.o.data = small->o;
}

void fake_small_submit(struct fa_client *client, struct fake_small *small, int count)
{
    for (int i = 0; i < count; i++) {
        fake_small_init(&small[i], i);
        ck_assert_int_eq(fa_forward_submit(client, &small[i].args, &small[i].request), FA_OK);
        ck_assert_ptr_nonnull(small[i].request);
        fa_request_set_user(small[i].request, &small[i]);
    }
}

void fake_small_wait(struct fa_client *client, struct fake_small *small, enum fa_status status)
{
    struct fa_forward_result result;

    ck_assert_ptr_eq(fa_request_user(small->request), small);
    memset(&result, 1, sizeof result);
    ck_assert_int_eq(fa_wait(client, small->request, &result), status);
    if (status == FA_OK) {
        for (int i = 0; i < FAKE_SMALL_WIDTH; i++)
            ck_assert(small->o[i] == small->q[i] + 1000);
        ck_assert_uint_eq(result.total_us, (uint64_t)small->q[0]);
    } else {
        ck_assert_int_eq(fa_last_error_record(client)->status, status);
        ck_assert_uint_eq(result.total_us, 0);
        ck_assert(small->o[0] == -1);
    }
}

bool fake_small_read(int fd, struct fake_frame *frames, int count)
{
    for (int i = 0; i < count; i++) {
        if (!fake_read(fd, &frames[i])) {
            ck_assert_int_eq(i, 0);
            return false;
        }
        ck_assert_int_eq(frames[i].frame.type, FA_FRAME_FORWARD);
    }
    return true;
}

int fake_small_number(const struct fake_frame *frame)
{
    float number;

    memcpy(&number, frame->payload, sizeof number);
    return (int)number;
}

uint8_t *fake_small_reply(const struct fake_frame *frame, size_t *size)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    Fad__ForwardReply forward = FAD__FORWARD_REPLY__INIT;
    const int number = fake_small_number(frame);
    float o[FAKE_SMALL_WIDTH];

    for (int i = 0; i < FAKE_SMALL_WIDTH; i++)
        o[i] = (float)(number + 1000);
    reply.has_status = true;
    reply.forward = &forward;
    forward.has_total_us = true;
    forward.total_us = (uint64_t)number;
    return fake_reply_bytes(FA_FRAME_REPLY | FA_FRAME_FORWARD, frame->frame.id, &reply, o, sizeof o,
                            size);
}

void fake_small_answer(int fd, const struct fake_frame *frame)
{
    size_t size;
    uint8_t *bytes = fake_small_reply(frame, &size);

    fake_send(fd, bytes, size);
    free(bytes);
}

void fake_last_word(int fd, uint64_t id, int status, const char *text)
{
    Fad__Reply reply = FAD__REPLY__INIT;
    uint8_t *bytes;
    size_t size;

    reply.has_status = true;
    reply.status = (Fad__Status)status;
    reply.text = FAKE_TEXT(text);
    bytes = fake_reply_bytes(FA_FRAME_REPLY, id, &reply, NULL, 0, &size);
    fake_send(fd, bytes, size);
    free(bytes);
}

unsigned fake_random(unsigned *state)
{
    *state = *state * 1664525u + 1013904223u;
    return *state >> 8;
}

void fake_shuffle(int *order, int count, unsigned seed)
{
    for (int i = 0; i < count; i++) {
        int other = (int)(fake_random(&seed) % (unsigned)(i + 1));
        order[i] = order[other];
        order[other] = i;
    }
}
