/* Barrier, allgather and abort over memory that all ranks map.
 *
 * Each rank has one word, `arrived`, that counts the steps it has reached; a step is over for a rank
 * when all words have reached its own count. A barrier is a step, and each part of an allgather is a
 * step. An allgather alternates between two slots per rank. Every rank reads the data of step i before
 * it reaches step i + 1. So a rank that has passed step i + 1 may overwrite the slot of step i with the
 * data of step i + 2. */
#include "boot/bootstrap.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>

enum {
    SLOT_BYTES = 16384,     /* maximum bytes of a slot */
    SLOT_LEAST = 1024,      /* minimum bytes of a slot with many ranks */
    ALL_SLOTS = 256 * 1024, /* limit of all slots: a network launcher sends them to each rank */
    SPIN_NS = 50000,        /* longer than a barrier of ranks that arrive together */
    BURST = 64,             /* polls between two readings of the clock */
    RUNS_PART = 50,         /* a rank is busy if its CPU time is at least this part of the limit */
};

static const uint64_t RUNS_NS = 60000000000u;

struct control_rank {
    _Alignas(64) uint64_t arrived;
    size_t bytes[2];   /* bytes of the rank in each slot; written before `arrived` */
    uint32_t returned; /* 1 after the return; `status` is then valid */
    enum epa_status status;
    /* Process of the rank, for its CPU time; 0: not yet known, or on another host. */
    uint32_t pid;
    clockid_t process_clock, thread_clock;
};

struct control {
    _Alignas(64) uint32_t aborted;
    uint32_t ranks;
    size_t bytes, slot_bytes;
    char *slots; /* [ranks][2][slot_bytes]; at the same address in all processes */
    struct control_rank rank[];
};

size_t bootstrap_slot_bytes(uint32_t ranks)
{
    size_t each = ALL_SLOTS / (ranks > 0 ? ranks : 1);

    return each < SLOT_LEAST ? SLOT_LEAST : each > SLOT_BYTES ? SLOT_BYTES : each;
}

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *err)
{
    size_t slot_bytes = bootstrap_slot_bytes(ranks);
    size_t slots = (size_t)ranks * 2 * slot_bytes;
    size_t head = sizeof(struct control) + ranks * sizeof(struct control_rank);
    struct control *control =
        mmap(NULL, head + slots, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    if (control == MAP_FAILED)
        return epa_fail(err, EPA_ERR_NOMEM, "bootstrap: mmap of %zu shared bytes: %s", head + slots,
                        strerror(errno));
    control->ranks = ranks;
    control->bytes = head + slots;
    control->slot_bytes = slot_bytes;
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
    /* Release: pairs with control_aborted(). The record of the failed rank precedes the flag. */
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

static void record_cpu_clocks(struct control *control, uint32_t rank)
{
    struct control_rank *own = &control->rank[rank];

    if (clock_getcpuclockid(0, &own->process_clock) != 0 ||
        pthread_getcpuclockid(pthread_self(), &own->thread_clock) != 0)
        return;
    (void)clock_getcpuclockid(getpid(), &own->process_clock); /* pid 0 would mean the reader */
    /* Release: pairs with the acquire in control_cpu_ns(). */
    __atomic_store_n(&own->pid, (uint32_t)getpid(), __ATOMIC_RELEASE);
}

/* Returns the CPU time of a rank of this host; 0: unknown. */
static uint64_t control_cpu_ns(const struct control *control, uint32_t rank)
{
    const struct control_rank *other = &control->rank[rank];
    /* Acquire: pairs with the release in record_cpu_clocks(). */
    uint32_t pid = __atomic_load_n(&other->pid, __ATOMIC_ACQUIRE);
    struct timespec used;

    if (pid == 0 ||
        clock_gettime(pid == (uint32_t)getpid() ? other->thread_clock : other->process_clock,
                      &used) != 0)
        return 0;
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

bool wait_limit_expired(struct wait_limit *p, const struct control *control, uint32_t rank,
                        uint64_t now)
{
    uint64_t cpu_ns, pause_ns;

    if (p->limit_ns == 0)
        return false;
    if (p->start_ns == 0 || rank != p->rank) {
        *p =
            (struct wait_limit){p->limit_ns, now, now, now, control_cpu_ns(control, rank), rank, 0};
        return false;
    }
    pause_ns = epa_pause_ns(&p->polled_ns, now, p->limit_ns);
    p->start_ns += pause_ns;
    p->window_ns += pause_ns;
    if (now - p->window_ns <= p->limit_ns)
        return false;
    cpu_ns = control_cpu_ns(control, rank);
    if (cpu_ns < p->cpu_ns || cpu_ns - p->cpu_ns < p->limit_ns / RUNS_PART ||
        now - p->start_ns > p->limit_ns + RUNS_NS) {
        p->waited_ns = now - p->start_ns;
        return true;
    }
    p->window_ns = now;
    p->cpu_ns = cpu_ns;
    return false;
}

static char *slot_of(const struct control *control, uint32_t rank, uint64_t step)
{
    return control->slots + ((size_t)rank * 2 + (step & 1)) * control->slot_bytes;
}

bool control_step(const struct control *control, uint32_t rank, uint64_t step, const void **data,
                  size_t *bytes)
{
    /* Acquire: pairs with the release in control_arrive(). */
    if (__atomic_load_n(&control->rank[rank].arrived, __ATOMIC_ACQUIRE) < step)
        return false;
    *data = slot_of(control, rank, step);
    *bytes = control->rank[rank].bytes[step & 1];
    return true;
}

void control_arrive(struct control *control, uint32_t rank, uint64_t step, const void *data,
                    size_t bytes)
{
    if (bytes > 0)
        memcpy(slot_of(control, rank, step), data, bytes);
    control->rank[rank].bytes[step & 1] = bytes;
    /* Release: pairs with the acquire in wait_for_rank(). This rank has written its slot and has read
     * the slots of the others. */
    __atomic_store_n(&control->rank[rank].arrived, step, __ATOMIC_RELEASE);
}

/* A rank with its own core spins first; a rank that shares its core yields at once. */
static enum epa_status wait_for_rank(struct bootstrap *boot, uint32_t rank)
{
    const struct epa_world *world = &boot->base.world;
    const uint64_t *arrived = &boot->control->rank[rank].arrived;
    const struct epa_wait_config config = {
        .burst = BURST,
        .spin_ns = world->local_size > world->local_cores ? 0 : SPIN_NS,
        .aborted = boot->base.aborted,
        .observer = boot->base.observer,
    };
    struct epa_wait_state state = {
        .kind = EPA_WAIT_SET_UP, .peer = rank, .number = EPA_WAIT_NOBODY, .wanted = boot->step};
    struct wait_limit limit = {.limit_ns = boot->base.set_up_ns};
    struct epa_wait wait = {.timeout_ns = UINT64_MAX};
    enum epa_status status = EPA_OK;

    while (status == EPA_OK) {
        for (uint32_t i = 0; i < config.burst; i++) {
            /* Acquire: pairs with the release in control_arrive(); the other rank's slot is
             * readable. */
            state.seen = __atomic_load_n(arrived, __ATOMIC_ACQUIRE);
            if (state.seen >= boot->step)
                return epa_wait_done(&config, &wait);
            epa_relax();
        }
        status = epa_wait_turn(&config, &wait, &state);
        if (status == EPA_OK && wait_limit_expired(&limit, boot->control, rank, epa_now_ns())) {
            boot->late = rank;
            boot->late_ns = limit.waited_ns;
            status = EPA_ERR_TIMEOUT;
        }
    }
    return status;
}

static void wake_launcher(const struct bootstrap *boot)
{
    if (boot->wake_fd >= 0)
        (void)eventfd_write(boot->wake_fd, 1);
}

static enum epa_status complete_step(struct bootstrap *boot, const void *data, size_t bytes)
{
    const struct epa_world *world = &boot->base.world;
    enum epa_status status = epa_aborted(&boot->base) ? EPA_ERR_ABORTED : EPA_OK;

    control_arrive(boot->control, world->rank, ++boot->step, data, bytes);
    wake_launcher(boot);
    for (uint32_t r = 0; r < world->size && status == EPA_OK; r++)
        status = wait_for_rank(boot, r);
    return status;
}

static enum epa_status bootstrap_barrier(struct epa_bootstrap *base)
{
    return complete_step((struct bootstrap *)base, NULL, 0);
}

static enum epa_status bootstrap_allgather(struct epa_bootstrap *base, const void *mine,
                                           size_t bytes, void *all)
{
    struct bootstrap *boot = (struct bootstrap *)base;
    const struct epa_world *world = &base->world;
    size_t most = boot->control->slot_bytes, at = 0;

    do { /* also once for 0 bytes: an allgather includes a barrier */
        size_t n = bytes - at < most ? bytes - at : most;
        enum epa_status status = complete_step(boot, n > 0 ? (const char *)mine + at : NULL, n);

        if (status != EPA_OK)
            return status;
        for (uint32_t r = 0; r < world->size && n > 0; r++)
            memcpy((char *)all + r * bytes + at, slot_of(boot->control, r, boot->step), n);
        at += n;
    } while (at < bytes);
    return EPA_OK;
}

static void bootstrap_abort(struct epa_bootstrap *base)
{
    struct bootstrap *boot = (struct bootstrap *)base;

    control_abort(boot->control);
    wake_launcher(boot);
}

static void bootstrap_explain(struct epa_bootstrap *base, struct epa_error *err)
{
    const struct bootstrap *boot = (const struct bootstrap *)base;

    if (boot->late != UINT32_MAX)
        epa_fail(err, EPA_ERR_TIMEOUT,
                 "rank %u waited %.3g s for rank %u to reach barrier %llu of the set-up",
                 base->world.rank, (double)boot->late_ns * 1e-9, boot->late,
                 (unsigned long long)boot->step);
}

void bootstrap_init(struct bootstrap *out, struct control *control, const struct epa_world *world,
                    uint64_t timeout_ns)
{
    *out = (struct bootstrap){
        .base = {.world = *world,
                 .aborted = &control->aborted,
                 .set_up_ns = timeout_ns,
                 .allgather = bootstrap_allgather,
                 .barrier = bootstrap_barrier,
                 .abort = bootstrap_abort,
                 .explain = bootstrap_explain},
        .control = control,
        .late = UINT32_MAX,
        .wake_fd = -1,
    };
    record_cpu_clocks(control, world->rank);
}
