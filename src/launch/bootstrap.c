/* Barrier, allgather and abort over memory that all ranks map.
 *
 * Each rank has one word, `arrived`, that counts the barriers it has come to and that only
 * it writes; a barrier is over for a rank once all words have its own count. An allgather
 * goes piece by piece through two slots a rank, in turn, with one barrier for each piece:
 * who has passed the barrier of piece i + 1 knows that all have read piece i, since they
 * read it before they came there, and may write piece i + 2 over it. */
#include "launch/bootstrap.h"

#include <errno.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>

#include "base/clock.h"

enum {
    SLOT_BYTES = 16384,
    SPINS = 1000, /* some 50 us: longer than a barrier of ranks that come at once */
    YIELDS = 200,
    BACKOFF_NS = 20000, /* with the kernel's timer slack about 70 us */
};

struct control_rank {
    _Alignas(64) uint64_t arrived;
    uint32_t returned; /* 1 after the last word; `status` is good then */
    enum epa_status status;
};

struct control {
    _Alignas(64) uint32_t aborted;
    uint32_t ranks;
    size_t bytes;
    char *slots; /* [ranks][2][SLOT_BYTES]; mapped at one address by all */
    struct control_rank rank[];
};

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *err)
{
    size_t slots = (size_t)ranks * 2 * SLOT_BYTES;
    size_t head = sizeof(struct control) + ranks * sizeof(struct control_rank);
    struct control *control =
        mmap(NULL, head + slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (control == MAP_FAILED)
        return epa_fail(err, EPA_ERR_NOMEM, "bootstrap: mmap of %zu shared bytes: %s", head + slots,
                        strerror(errno));
    control->ranks = ranks;
    control->bytes = head + slots;
    control->slots = (char *)control + head;
    *out = control;
    return EPA_OK;
}

void control_destroy(struct control *control)
{
    if (control != NULL)
        munmap(control, control->bytes);
}

void control_abort(struct control *control)
{
    /* Release: what the rank that fails has recorded stands before others see the flag. */
    __atomic_store_n(&control->aborted, 1, __ATOMIC_RELEASE);
}

bool control_aborted(const struct control *control)
{
    return __atomic_load_n(&control->aborted, __ATOMIC_ACQUIRE) != 0;
}

bool control_returned(const struct control *control, uint32_t rank, enum epa_status *out)
{
    /* Acquire: pairs with the release in control_return(). */
    if (__atomic_load_n(&control->rank[rank].returned, __ATOMIC_ACQUIRE) == 0)
        return false;
    *out = control->rank[rank].status;
    return true;
}

void control_return(struct control *control, uint32_t rank, enum epa_status status)
{
    control->rank[rank].status = status;
    /* Release: pairs with the acquire in control_returned(). */
    __atomic_store_n(&control->rank[rank].returned, 1, __ATOMIC_RELEASE);
}

void control_reset(struct control *control)
{
    __atomic_store_n(&control->aborted, 0, __ATOMIC_RELAXED);
    memset(control->rank, 0, control->ranks * sizeof(*control->rank));
}

const uint32_t *control_flag(const struct control *control)
{
    return &control->aborted;
}

static char *slot_of(const struct control *control, uint32_t rank, uint64_t chunk)
{
    return control->slots + ((size_t)rank * 2 + (chunk & 1)) * SLOT_BYTES;
}

/* A rank with a core of its own spins first; one that shares it makes room at once. This is
 * not the data path, so both sleep in the end: someone loads a file or compares gigabytes. */
static void pass_time(const struct epa_world *world, uint32_t turn)
{
    uint32_t spins = world->local_size > world->local_cores ? 0 : SPINS;

    if (turn < spins)
        clock_relax();
    else if (turn < spins + YIELDS)
        sched_yield();
    else
        nanosleep(&(struct timespec){.tv_nsec = BACKOFF_NS}, NULL);
}

static void tell_of_wait(const struct bootstrap *boot, uint32_t rank, uint64_t seen,
                         uint64_t waited_ns, uint64_t *reported_ns)
{
    epa_wait_report(boot->base.observer,
                    &(struct epa_wait_state){.kind = EPA_WAIT_SET_UP,
                                             .peer = rank,
                                             .number = EPA_WAIT_NOBODY,
                                             .seen = seen,
                                             .wanted = boot->epoch,
                                             .waited_ns = waited_ns},
                    reported_ns);
}

static enum epa_status wait_for(struct bootstrap *boot, uint32_t rank)
{
    const uint64_t *arrived = &boot->control->rank[rank].arrived;
    uint64_t start = 0, reported = 0, now, seen;

    /* Acquire: pairs with the release in meet(); what the other wrote is readable. */
    for (uint32_t turn = 0; (seen = __atomic_load_n(arrived, __ATOMIC_ACQUIRE)) < boot->epoch;
         turn++) {
        if (epa_aborted(&boot->base))
            return EPA_ERR_ABORTED;
        pass_time(&boot->base.world, turn);
        if (turn % 64 != 63)
            continue;
        now = clock_ns();
        if (start == 0)
            start = now;
        tell_of_wait(boot, rank, seen, now - start, &reported);
        if (boot->timeout_ns != 0 && now - start > boot->timeout_ns) {
            boot->late = rank;
            return EPA_ERR_TIMEOUT;
        }
    }
    epa_wait_clear(boot->base.observer, reported);
    return EPA_OK;
}

static enum epa_status meet(struct bootstrap *boot)
{
    const struct epa_world *world = &boot->base.world;
    enum epa_status status = epa_aborted(&boot->base) ? EPA_ERR_ABORTED : EPA_OK;

    boot->epoch++;
    /* Release: pairs with the acquire in wait_for(); my slot is written, others' are read. */
    __atomic_store_n(&boot->control->rank[world->rank].arrived, boot->epoch, __ATOMIC_RELEASE);
    for (uint32_t r = 0; r < world->size && status == EPA_OK; r++)
        status = wait_for(boot, r);
    return status;
}

static enum epa_status barrier(struct epa_bootstrap *base)
{
    return meet((struct bootstrap *)base);
}

static enum epa_status allgather(struct epa_bootstrap *base, const void *mine, size_t bytes,
                                 void *all)
{
    struct bootstrap *boot = (struct bootstrap *)base;
    const struct epa_world *world = &base->world;
    size_t at = 0;

    do { /* once for no bytes, too: an allgather is a barrier */
        size_t n = bytes - at < SLOT_BYTES ? bytes - at : SLOT_BYTES;
        uint64_t chunk = boot->chunk++;
        enum epa_status status;

        if (n > 0)
            memcpy(slot_of(boot->control, world->rank, chunk), (const char *)mine + at, n);
        status = meet(boot);
        if (status != EPA_OK)
            return status;
        for (uint32_t r = 0; r < world->size && n > 0; r++)
            memcpy((char *)all + r * bytes + at, slot_of(boot->control, r, chunk), n);
        at += n;
    } while (at < bytes);
    return EPA_OK;
}

static void raise_abort(struct epa_bootstrap *base)
{
    control_abort(((struct bootstrap *)base)->control);
}

static void explain(struct epa_bootstrap *base, struct epa_error *err)
{
    const struct bootstrap *boot = (const struct bootstrap *)base;

    if (boot->late != UINT32_MAX)
        epa_fail(err, EPA_ERR_TIMEOUT,
                 "rank %u waited %.3g s for rank %u to reach barrier %llu of the set-up",
                 base->world.rank, (double)boot->timeout_ns * 1e-9, boot->late,
                 (unsigned long long)boot->epoch);
}

void bootstrap_init(struct bootstrap *out, struct control *control, const struct epa_world *world,
                    uint64_t timeout_ns)
{
    *out = (struct bootstrap){
        .base = {.world = *world,
                 .aborted = &control->aborted,
                 .allgather = allgather,
                 .barrier = barrier,
                 .abort = raise_abort,
                 .explain = explain},
        .control = control,
        .timeout_ns = timeout_ns,
        .late = UINT32_MAX,
    };
}
