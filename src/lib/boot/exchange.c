/* Frames of an allgather with error reports.
 *
 * A rank detects two kinds of failures. All ranks see a reported failure and values that differ between
 * ranks, so each returns. A failed gather() and damaged data concern one rank only: this rank calls
 * gather() once more to report the failure, since the other ranks are in this call or the next one. */
#include "boot/exchange.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>

#include <epa2a/plugin.h>

enum { MAGIC = 0x32617065 };

struct frame {
    uint32_t magic, version, abi;
    uint32_t rank, ranks;
    uint32_t call;
    int32_t status; /* not EPA_OK: `data` contains a message */
    uint32_t bytes; /* used bytes of `data` */
    uint64_t total; /* bytes of the rank in this exchange_call() */
    uint32_t check; /* hash of `data` */
    uint32_t zero;
    unsigned char data[];
};

enum epa_status exchange_init(struct exchange *out, const struct exchange_params *params,
                              struct epa_error *err)
{
    size_t bytes = (params->ranks + (size_t)1) * params->frame_bytes;
    void *frames = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (frames == MAP_FAILED)
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno, "bootstrap: mmap of %zu bytes: %s", bytes,
                              strerror(errno));
    *out = (struct exchange){.params = *params, .bytes = bytes, .frames = frames};
    return EPA_OK;
}

void exchange_finish(struct exchange *x)
{
    if (x->frames != NULL)
        munmap(x->frames, x->bytes);
    *x = (struct exchange){.frames = NULL};
}

static uint32_t hash_bytes(const unsigned char *data, size_t bytes)
{
    uint32_t h = 2166136261u; /* FNV-1a */

    for (size_t i = 0; i < bytes; i++)
        h = (h ^ data[i]) * 16777619u;
    return h;
}

static const struct frame *frame_of(const struct exchange *x, uint32_t rank)
{
    return (const void *)(x->frames + (rank + (size_t)1) * x->params.frame_bytes);
}

static size_t room_of(const struct exchange *x)
{
    return x->params.frame_bytes - sizeof(struct frame);
}

/* Sends a frame and receives the frames of all ranks. Frames that gather() does not fill are invalid. */
static enum epa_status gather_frames(struct exchange *x, enum epa_status status, const void *data,
                                     size_t bytes, uint64_t total, struct epa_error *err)
{
    const struct exchange_params *p = &x->params;
    struct frame *mine = (void *)x->frames;

    memset(x->frames, 0, x->bytes);
    *mine = (struct frame){.magic = MAGIC,
                           .version = p->version,
                           .abi = EPA_ABI,
                           .rank = p->rank,
                           .ranks = p->ranks,
                           .call = x->calls++,
                           .status = status,
                           .bytes = (uint32_t)bytes,
                           .total = total};
    if (bytes > 0)
        memcpy(mine->data, data, bytes);
    mine->check = hash_bytes(mine->data, bytes);
    return p->gather(p->arg, mine, sizeof(*mine) + bytes, x->frames + p->frame_bytes, err);
}

static enum epa_status gather_failure(struct exchange *x, enum epa_status status,
                                      const struct epa_error *failure, struct epa_error *err)
{
    size_t bytes = strnlen(failure->text, sizeof(failure->text) - 1) + 1;

    return gather_frames(x, status, failure->text, bytes < room_of(x) ? bytes : room_of(x), 0, err);
}

/* Returns the status of the first rank that reports a failure, and its message. */
static enum epa_status find_failure(const struct exchange *x, struct epa_error *out)
{
    for (uint32_t r = 0; r < x->params.ranks; r++) {
        const struct frame *f = frame_of(x, r);

        if (f->magic != MAGIC || f->status >= EPA_OK || f->bytes > room_of(x))
            continue;
        return epa_fail(out, (enum epa_status)f->status, "rank %u: %.*s", r, (int)f->bytes,
                        (const char *)f->data);
    }
    return EPA_OK;
}

/* Finds values that must be equal on all ranks, or must equal the index. All ranks find the same. */
static enum epa_status find_mismatch(const struct exchange *x, struct epa_error *out)
{
    const struct frame *first = frame_of(x, 0);

    for (uint32_t r = 0; r < x->params.ranks; r++) {
        const struct frame *f = frame_of(x, r);

        if (f->magic != MAGIC)
            continue;
        if (f->version != first->version || f->abi != first->abi)
            return epa_fail(
                out, EPA_ERR_CONFIG,
                "rank %u has version %u.%u.%u of libepa2a with plugin ABI %u, rank 0 has "
                "version %u.%u.%u with plugin ABI %u",
                r, f->version >> 16, f->version >> 8 & 255, f->version & 255, f->abi,
                first->version >> 16, first->version >> 8 & 255, first->version & 255, first->abi);
        if (f->ranks != first->ranks)
            return epa_fail(out, EPA_ERR_CONFIG,
                            "rank %u expects %u ranks, rank 0 expects %u ranks", r, f->ranks,
                            first->ranks);
        if (f->rank != r)
            return epa_fail(out, EPA_ERR_CONFIG,
                            "the allgather delivered data of rank %u at index %u; the rank of each "
                            "process must equal its index in the allgather",
                            f->rank, r);
        if (f->total != first->total)
            return epa_fail(out, EPA_ERR_CONFIG,
                            "rank %u gathers %llu bytes, rank 0 gathers %llu bytes; all ranks must "
                            "make the same calls in the same order",
                            r, (unsigned long long)f->total, (unsigned long long)first->total);
    }
    return EPA_OK;
}

/* Finds data that gather() has damaged or not delivered. */
static enum epa_status find_damage(const struct exchange *x, struct epa_error *out)
{
    uint32_t me = x->params.rank;
    const struct frame *mine = (const void *)x->frames;

    if (memcmp(mine, frame_of(x, me), sizeof(*mine) + mine->bytes) != 0)
        return epa_fail(out, EPA_ERR_SYSTEM,
                        "the allgather did not deliver the data of this rank, rank %u, at index %u",
                        me, me);
    for (uint32_t r = 0; r < x->params.ranks; r++) {
        const struct frame *f = frame_of(x, r);

        if (f->magic != MAGIC || f->bytes > room_of(x) || f->check != hash_bytes(f->data, f->bytes))
            return epa_fail(out, EPA_ERR_SYSTEM,
                            "the allgather did not deliver the data of rank %u to rank %u", r, me);
        if (f->call != mine->call || f->bytes != mine->bytes)
            return epa_fail(out, EPA_ERR_SYSTEM,
                            "the allgather delivered call %u of rank %u to call %u of rank %u",
                            f->call, r, mine->call, me);
    }
    return EPA_OK;
}

/* All ranks return this failure from the present call. */
static enum epa_status fail_agreed(struct exchange *x, const struct epa_error *failure,
                                   struct epa_error *err)
{
    x->agreed = true;
    x->failure = *failure;
    if (err != NULL)
        *err = *failure;
    return failure->status;
}

static enum epa_status report_failure(struct exchange *x, const struct epa_error *failure,
                                      struct epa_error *err)
{
    struct epa_error found = {EPA_OK, ""};

    if (gather_failure(x, failure->status, failure, NULL) == EPA_OK)
        (void)find_failure(x, &found);
    return fail_agreed(x, found.status != EPA_OK ? &found : failure, err);
}

static enum epa_status exchange_part(struct exchange *x, const void *data, size_t bytes,
                                     uint64_t total, bool last, struct epa_error *err)
{
    struct epa_error found = {EPA_OK, ""};
    enum epa_status status = gather_frames(x, EPA_OK, data, bytes, total, &found);

    if (status == EPA_ERR_ABORTED || status == EPA_ERR_TIMEOUT || status == EPA_ERR_DIED) {
        if (err != NULL && err->status == EPA_OK)
            *err = found;
        return status; /* the group has failed; other ranks find this in their own waits */
    }
    if (status == EPA_OK && find_failure(x, &found) != EPA_OK)
        return fail_agreed(x, &found, err);
    if (status == EPA_OK && find_mismatch(x, &found) != EPA_OK)
        return fail_agreed(x, &found, err);
    if (status == EPA_OK && find_damage(x, &found) == EPA_OK)
        return EPA_OK;
    return last ? fail_agreed(x, &found, err) : report_failure(x, &found, err);
}

enum epa_status exchange_call(struct exchange *x, enum epa_status status, const void *mine,
                              size_t bytes, void *all, bool last, struct epa_error *err)
{
    size_t at = 0;

    x->agreed = false;
    if (status != EPA_OK) {
        struct epa_error failure = {.status = status};

        if (err != NULL)
            failure = *err;
        failure.status = status;
        return report_failure(x, &failure, err);
    }
    do { /* also once for 0 bytes: an allgather includes a barrier */
        size_t n = bytes - at < room_of(x) ? bytes - at : room_of(x);

        status = exchange_part(x, n > 0 ? (const char *)mine + at : NULL, n, bytes,
                               last && at + n == bytes, err);
        for (uint32_t r = 0; status == EPA_OK && n > 0 && r < x->params.ranks; r++)
            memcpy((char *)all + r * bytes + at, frame_of(x, r)->data, n);
        at += n;
    } while (status == EPA_OK && at < bytes);
    return status;
}

enum epa_status exchange_agree(struct exchange *x, enum epa_status status, bool last,
                               struct epa_error *err)
{
    struct epa_error failure = x->failure;

    if (!x->agreed || status == EPA_OK)
        return exchange_call(x, status, NULL, 0, NULL, last, err);
    x->agreed = false;
    if (err != NULL)
        *err = failure;
    return failure.status;
}
