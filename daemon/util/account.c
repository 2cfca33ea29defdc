#include "daemon/util/account.h"

#include <assert.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>

static const struct {
    const char *what;
    const char *advice;
} resource_words[FAD_RESOURCES] = {
    [FAD_JOBS] = {"requests in flight", "await replies first"},
    [FAD_STAGED] = {"bytes of staged memory (payloads, inline outputs, scratch, copies)",
                    "await replies first, or keep tensors in a region"},
    [FAD_MAPPED] = {"bytes of shared memory and regions",
                    "await replies or release regions first, or share less"},
    [FAD_REGIONS] = {"regions", "release some first"},
    [FAD_CONNECTIONS] = {"connections", "close some, or try again later"},
};

void fad_account_init(struct fad_account *account, const char *name, struct fad_account *parent,
                      bool halves, const struct fad_amounts *limit)
{
    assert(!halves || parent);
    memset(account, 0, sizeof *account);
    snprintf(account->name, sizeof account->name, "%s", name);
    account->parent = parent;
    account->halves = halves;
    account->limit = *limit;
}

static enum fa_status refuse(const struct fad_account *account, int r, const char *half,
                             uint64_t limit, uint64_t asked, struct fa_error *error)
{
    return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "",
                        "%s's limit of %" PRIu64 " %s%s: %" PRIu64 " more asked, %" PRIu64
                        " in use; %s",
                        account->name, limit, resource_words[r].what, half, asked,
                        account->used.of[r], resource_words[r].advice);
}

/* What the account may hold of the parent's limit: half of what others leave, rounded up so that a
 * limit of 1 lets somebody work. */
static uint64_t half_left(const struct fad_account *account, int r)
{
    const uint64_t others = account->parent->used.of[r] - account->used.of[r];
    const uint64_t left = account->parent->limit.of[r] - others;
    return left / 2 + left % 2;
}

static enum fa_status check(const struct fad_account *account, const struct fad_amounts *amounts,
                            struct fa_error *error)
{
    for (int r = 0; r < FAD_RESOURCES; r++) {
        const uint64_t asked = amounts->of[r], used = account->used.of[r];
        uint64_t half;

        if (asked == 0)
            continue;
        assert(used <= account->limit.of[r]);
        if (asked > account->limit.of[r] - used)
            return refuse(account, r, "", account->limit.of[r], asked, error);
        if (!account->halves)
            continue;
        half = half_left(account, r);
        if (used > half || asked > half - used)
            return refuse(account, r, " (half of what others leave of its uid's)", half, asked,
                          error);
    }
    return FA_OK;
}

enum fa_status fad_account_charge(struct fad_account *account, const struct fad_amounts *amounts,
                                  struct fa_error *error)
{
    for (struct fad_account *a = account; a; a = a->parent) {
        enum fa_status status = check(a, amounts, error);
        if (status != FA_OK)
            return status;
    }
    for (struct fad_account *a = account; a; a = a->parent)
        for (int r = 0; r < FAD_RESOURCES; r++)
            a->used.of[r] += amounts->of[r];
    return FA_OK;
}

void fad_account_release(struct fad_account *account, const struct fad_amounts *amounts)
{
    for (struct fad_account *a = account; a; a = a->parent) {
        for (int r = 0; r < FAD_RESOURCES; r++) {
            assert(a->used.of[r] >= amounts->of[r]);
            a->used.of[r] -= amounts->of[r];
        }
    }
}

void fad_account_deinit(struct fad_account *account)
{
    for (int r = 0; r < FAD_RESOURCES; r++)
        assert(account->used.of[r] == 0);
    (void)account;
}
