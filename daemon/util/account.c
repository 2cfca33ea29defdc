#include "daemon/util/account.h"

#include <assert.h>
#include <inttypes.h>
#include <stdbool.h>
#include <string.h>

static const struct {
    const char *what;
    const char *unit;
    const char *advice;
} resource_words[FAD_RESOURCES] = {
    [FAD_JOBS] = {"requests in flight", "", "await replies first"},
    [FAD_STAGED] = {"staged memory (payloads, inline outputs, scratch)", " bytes",
                    "await replies first, or send tensors in a memfd"},
    [FAD_MAPPED] = {"mapped shared memory", " bytes", "await replies first, or share less"},
};

void fad_account_init(struct fad_account *account, const char *name, struct fad_account *parent,
                      const struct fad_amounts *limit)
{
    memset(account, 0, sizeof *account);
    account->name = name;
    account->parent = parent;
    account->limit = *limit;
}

static enum fa_status check(const struct fad_account *account, const struct fad_amounts *amounts,
                            struct fa_error *error)
{
    for (int r = 0; r < FAD_RESOURCES; r++) {
        assert(account->used.of[r] <= account->limit.of[r]);
        if (amounts->of[r] > account->limit.of[r] - account->used.of[r])
            return fa_error_set(error, FA_RESOURCE_EXHAUSTED, "",
                                "the %s's limit of %" PRIu64 "%s of %s: %" PRIu64
                                " more asked, %" PRIu64 " in use; %s",
                                account->name, account->limit.of[r], resource_words[r].unit,
                                resource_words[r].what, amounts->of[r], account->used.of[r],
                                resource_words[r].advice);
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
