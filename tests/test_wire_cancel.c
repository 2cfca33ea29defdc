/* test_wire_cancel.c: cancelling requests, their deadlines and their priorities. */
#include "tests/helpers/wire_region.h"

#include <string.h>
#include <unistd.h>

/* A cancelled or late request that takes minutes is answered at once: a test that ends at
 * all has seen it. */

static void make_low(struct wire_forward *f)
{
    wire_forward_make_long(f);
    f->message.has_priority = true;
    f->message.priority = FAD__PRIORITY__LOW;
}

/* --- Cancel ---------------------------------------------------------------------------------- */

START_TEST(cancel_of_a_long_request_at_work)
{
    struct wire_forward slow, f;
    int fd = wire_greet();

    make_low(&slow);
    wire_forward_make(&f, WIRE_SMALL, 0);
    for (uint64_t id = 10; id < 20; id++) {
        ck_assert(wire_forward_send(fd, &slow, id));
        wire_forward_run(fd, &f, 5); /* served beside it: it has been given out by now */
        ck_assert(wire_cancel(fd, id));
        wire_expect(fd, id, FA_CANCELLED, "");
        ck_assert(!wire_cancel(fd, id));
        wire_serves(fd);
    }
    wire_forward_free(&slow);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Its priority is the same, so that it stays behind the one at work. */
START_TEST(cancel_of_a_request_that_waits)
{
    struct wire_forward slow;
    int fd = wire_greet();

    wire_forward_make_long(&slow);
    for (uint64_t id = 10; id < 18; id++)
        ck_assert(wire_forward_send(fd, &slow, id));
    for (uint64_t id = 17; id >= 10; id--) { /* the last first */
        ck_assert(wire_cancel(fd, id));
        wire_expect(fd, id, FA_CANCELLED, "");
        ck_assert(!wire_cancel(fd, id));
    }
    wire_serves(fd);
    wire_forward_free(&slow);
    close(fd);
}
END_TEST

/* Several cancels of one request, before its answer: each is answered, it once. */
START_TEST(cancels_glued_together)
{
    struct wire_forward slow;
    int fd = wire_greet();

    wire_forward_make_long(&slow);
    for (int round = 0; round < 20; round++) {
        struct wire_bytes bytes = {0};
        unsigned seen = 0, found = 0;

        wire_forward_append(&slow, 10, &bytes);
        for (uint64_t id = 11; id < 15; id++)
            wire_append_cancel(&bytes, id, 10);
        wire_send_bytes(fd, &bytes);
        for (int i = 0; i < 5; i++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            ck_assert(reply.frame.id >= 10 && reply.frame.id < 15);
            ck_assert(!(seen & 1u << (reply.frame.id - 10)));
            seen |= 1u << (reply.frame.id - 10);
            if (reply.frame.id == 10)
                ck_assert_int_eq(reply.message->status, FAD__STATUS__CANCELLED);
            else
                found += reply.message->cancel->found;
            wire_release(&reply);
        }
        ck_assert_uint_ge(found, 1);
        wire_ping(fd, 10); /* its id is free again */
    }
    wire_serves(fd);
    wire_forward_free(&slow);
    close(fd);
}
END_TEST

/* Its answer is one of the two, and the connection goes on whichever it was. */
START_TEST(cancel_races_the_result)
{
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, (struct wire_shape){1, 4, 4, 64, 64, 64}, 0x1f);
    for (int round = 0; round < 100; round++) {
        struct wire_bytes bytes = {0};
        bool answered = false;

        wire_forward_append(&f, 10, &bytes);
        wire_append_cancel(&bytes, 11, 10);
        wire_send_bytes_fds(fd, &bytes, &f.memfd, 1);
        for (int i = 0; i < 2; i++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            if (reply.frame.id == 10) {
                ck_assert(reply.message->status == FAD__STATUS__OK ||
                          reply.message->status == FAD__STATUS__CANCELLED);
                if (reply.message->status == FAD__STATUS__OK)
                    wire_forward_check(&f, &reply);
                answered = true;
            } else {
                ck_assert_uint_eq(reply.frame.id, 11);
                ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
                /* once answered it is not found any more */
                ck_assert(!(answered && reply.message->cancel->found));
            }
            wire_release(&reply);
        }
    }
    wire_serves(fd);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

START_TEST(cancel_finds_nothing_but_forwards_in_flight)
{
    static const uint8_t data[1 << 20];
    struct wire_region region;
    struct wire_forward f;
    struct wire_bytes bytes = {0};
    struct wire_reply reply;
    int fd = wire_greet(), other = wire_greet();

    ck_assert(!wire_cancel(fd, 0));
    ck_assert(!wire_cancel(fd, 5));
    ck_assert(!wire_cancel(fd, UINT64_MAX));
    wire_append_cancel(&bytes, 5, 5); /* itself */
    wire_send_bytes(fd, &bytes);
    wire_receive(fd, &reply);
    ck_assert(reply.message->cancel && !reply.message->cancel->found);
    wire_release(&reply);
    wire_forward_make(&f, WIRE_SMALL, 0);
    wire_forward_run(fd, &f, 7);
    ck_assert(!wire_cancel(fd, 7)); /* it is done */
    wire_region_alloc(&region, fd, sizeof data);
    wire_append_write(&bytes, 8, region.id, 0, data, sizeof data);
    wire_append_cancel(&bytes, 9, 8);
    wire_send_bytes(fd, &bytes);
    for (int i = 0; i < 2; i++) {
        wire_receive(fd, &reply);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__OK);
        if (reply.frame.id == 9)
            ck_assert(!reply.message->cancel->found);
        wire_release(&reply);
    }
    wire_region_release(&region, fd);
    wire_forward_free(&f);
    make_low(&f);
    ck_assert(wire_forward_send(fd, &f, 10));
    wire_serves(fd);
    ck_assert(!wire_cancel(other, 10)); /* another connection's */
    ck_assert(!wire_has_news(fd));
    ck_assert(wire_cancel(fd, 10));
    wire_expect(fd, 10, FA_CANCELLED, "");
    wire_forward_free(&f);
    close(other);
    close(fd);
}
END_TEST

START_TEST(cancel_that_cannot_be_is_refused)
{
    Fad__Cancel message = FAD__CANCEL__INIT;
    struct wire_bytes bytes = {0};
    int fd = wire_greet();

    wire_append_message(&bytes, FA_FRAME_CANCEL, 5, &message.base, NULL, 0);
    wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, "id", "missing");
    message.has_id = true;
    wire_append_message(&bytes, FA_FRAME_CANCEL, 5, &message.base, "data", 4);
    wire_bytes_refused(fd, &bytes, FA_INVALID_ARGUMENT, "header.payload_length", "");
    close(fd);
}
END_TEST

/* A cancelled request gives back all that it held: a client may cancel and send again for ever. */
START_TEST(cancelled_requests_leave_nothing)
{
    struct wire_forward slow;
    int fd = wire_greet();

    wire_forward_make(&slow, (struct wire_shape){1, 1, 1, 1, 1, 16}, 0x1f);
    slow.message.heads = slow.message.kv_heads = slow.message.q_len = 64;
    slow.message.kv_len = 1 << 30;
    if (test_on_cuda())
        wire_forward_set_version(&slow, "v1"); /* see wire_forward_make_long */
    for (int t = 0; t <= FAD_V; t++)
        wire_forward_set_strides(&slow, (enum fad_tensor)t, 0, 0, 0);
    slow.shared[FAD_O].offset = 4096;
    slow.shared[FAD_LSE].offset = 1 << 20;
    wire_forward_grow(&slow, 2 << 20);
    for (uint64_t id = 10; id < 100; id++) {
        ck_assert(wire_forward_send(fd, &slow, id));
        ck_assert(wire_cancel(fd, id));
        wire_expect(fd, id, FA_CANCELLED, "");
        ck_assert_int_eq(wire_daemon_mappings(), 0);
    }
    wire_expect_idle(fd);
    wire_forward_free(&slow);
    close(fd);
}
END_TEST

/* --- Deadlines ------------------------------------------------------------------------------- */

START_TEST(deadline_ends_long_work_and_what_waits_behind_it)
{
    struct wire_forward slow;
    int fd = wire_greet();

    wire_forward_make_long(&slow);
    slow.message.has_deadline_us = true;
    slow.message.deadline_us = 20000;
    ck_assert(wire_forward_send(fd, &slow, 10));
    wire_expect(fd, 10, FA_DEADLINE_EXCEEDED, "");
    slow.message.has_deadline_us = false;
    ck_assert(wire_forward_send(fd, &slow, 11)); /* at work, without an end */
    slow.message.has_deadline_us = true;
    for (uint64_t id = 12; id < 16; id++) { /* behind it, each with less time than the one before */
        slow.message.deadline_us = 1000 * (17 - id);
        ck_assert(wire_forward_send(fd, &slow, id));
    }
    for (unsigned seen = 0; seen != 0xf;) {
        struct wire_reply reply;

        wire_receive(fd, &reply);
        ck_assert(reply.frame.id >= 12 && reply.frame.id < 16);
        ck_assert_int_eq(reply.message->status, FAD__STATUS__DEADLINE_EXCEEDED);
        seen |= 1u << (reply.frame.id - 12);
        wire_release(&reply);
    }
    ck_assert(!wire_cancel(fd, 12));
    ck_assert(wire_cancel(fd, 11));
    wire_expect(fd, 11, FA_CANCELLED, "");
    wire_serves(fd);
    wire_forward_free(&slow);
    close(fd);
}
END_TEST

START_TEST(deadline_of_a_microsecond_and_of_almost_for_ever)
{
    static const uint64_t far[] = {UINT64_MAX, UINT64_MAX / 1000, UINT64_MAX / 1000 + 1,
                                   (uint64_t)1 << 63, 3600000000u};
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make_long(&f);
    f.message.has_deadline_us = true;
    f.message.deadline_us = 1;
    ck_assert(wire_forward_send(fd, &f, 5));
    wire_expect(fd, 5, FA_DEADLINE_EXCEEDED, "");
    wire_forward_free(&f);
    wire_forward_make(&f, WIRE_SMALL, 0);
    f.message.has_deadline_us = true;
    for (size_t i = 0; i < sizeof far / sizeof far[0]; i++) {
        f.message.deadline_us = far[i];
        wire_forward_run(fd, &f, 6);
    }
    f.message.deadline_us = 0;
    wire_refused(fd, &f, FA_INVALID_ARGUMENT, "deadline_us");
    wire_forward_free(&f);
    wire_forward_make(&f, (struct wire_shape){0, 4, 2, 3, 5, 8}, 0); /* nothing to do */
    f.message.has_deadline_us = true;
    f.message.deadline_us = 1;
    wire_forward_run(fd, &f, 7);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Whichever comes first, once. */
START_TEST(deadline_and_cancel_of_one_request)
{
    struct wire_forward slow;
    int fd = wire_greet();

    wire_forward_make_long(&slow);
    slow.message.has_deadline_us = true;
    for (uint64_t id = 10; id < 40; id++) {
        struct wire_bytes bytes = {0};

        slow.message.deadline_us = 200 * (id - 9);
        wire_forward_append(&slow, id, &bytes);
        wire_send_bytes(fd, &bytes);
        while (!wire_has_news(fd) && id % 3 == 0)
            ;
        wire_append_cancel(&bytes, 5, id);
        wire_send_bytes(fd, &bytes);
        for (int i = 0; i < 2; i++) {
            struct wire_reply reply;

            wire_receive(fd, &reply);
            ck_assert(reply.frame.id == 5 || reply.frame.id == id);
            if (reply.frame.id == id)
                ck_assert(reply.message->status == FAD__STATUS__DEADLINE_EXCEEDED ||
                          (id % 3 && reply.message->status == FAD__STATUS__CANCELLED));
            wire_release(&reply);
        }
    }
    wire_serves(fd);
    wire_forward_free(&slow);
    close(fd);
}
END_TEST

/* --- Priorities ------------------------------------------------------------------------------ */

START_TEST(every_priority_serves_and_no_other_number_does)
{
    static const int bad[] = {0, 4, 9, -1, INT32_MAX, INT32_MIN};
    struct wire_forward f;
    int fd = wire_greet();

    wire_forward_make(&f, WIRE_SMALL, 0);
    f.message.has_priority = true;
    for (int p = FAD__PRIORITY__LOW; p <= (int)FAD__PRIORITY__HIGH; p++) {
        f.message.priority = (Fad__Priority)p;
        wire_forward_run(fd, &f, 5);
    }
    for (size_t i = 0; i < sizeof bad / sizeof bad[0]; i++) {
        f.message.priority = (Fad__Priority)bad[i];
        wire_refused(fd, &f, FA_INVALID_ARGUMENT, "priority");
    }
    wire_forward_free(&f);
    close(fd);
}
END_TEST

/* Each overtakes long work of its own connection, whatever the two priorities are. */
START_TEST(no_priority_starves_another)
{
    struct wire_forward slow, f;
    int fd = wire_greet();

    wire_forward_make_long(&slow);
    wire_forward_make(&f, WIRE_SMALL, 0);
    slow.message.has_priority = f.message.has_priority = true;
    for (int p = FAD__PRIORITY__LOW; p <= (int)FAD__PRIORITY__HIGH; p++) {
        slow.message.priority = (Fad__Priority)p;
        ck_assert(wire_forward_send(fd, &slow, 10));
        for (int q = FAD__PRIORITY__LOW; q <= (int)FAD__PRIORITY__HIGH; q++) {
            f.message.priority = (Fad__Priority)q;
            if (p != q)
                wire_forward_run(fd, &f, 11);
        }
        ck_assert(wire_cancel(fd, 10));
        wire_expect(fd, 10, FA_CANCELLED, "");
    }
    wire_forward_free(&slow);
    wire_forward_free(&f);
    close(fd);
}
END_TEST

Suite *test_suite(void)
{
    const TTest *const tests[] = {
        cancel_of_a_long_request_at_work,
        cancel_of_a_request_that_waits,
        cancels_glued_together,
        cancel_races_the_result,
        cancel_finds_nothing_but_forwards_in_flight,
        cancel_that_cannot_be_is_refused,
        cancelled_requests_leave_nothing,
        deadline_ends_long_work_and_what_waits_behind_it,
        deadline_of_a_microsecond_and_of_almost_for_ever,
        deadline_and_cancel_of_one_request,
        every_priority_serves_and_no_other_number_does,
        no_priority_starves_another,
    };
    return wire_suite("wire_cancel", tests, sizeof tests / sizeof tests[0]);
}
