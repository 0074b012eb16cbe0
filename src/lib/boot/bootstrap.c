/* Barrier, allgather and abort over memory that all ranks map.
 *
 * Each rank has one word, `arrived`, that counts the steps it has reached; a step is over for a rank
 * when all words have reached its own count. A barrier is a step, and each part of an allgather is a
 * step. An allgather alternates between two slots per rank. Every rank reads the data of step i before
 * it reaches step i + 1. So a rank that has passed step i + 1 may overwrite the slot of step i with the
 * data of step i + 2. */
#include "boot/bootstrap.h"

#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <sched.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "boot/close_open.h"

enum {
    SLOT_BYTES = 16384,     /* maximum bytes of a slot */
    SLOT_LEAST = 1024,      /* minimum bytes of a slot with many ranks */
    ALL_SLOTS = 256 * 1024, /* limit of all slots: a network launcher sends them to each rank */
    SPIN_NS = 50000,        /* longer than a barrier of ranks that arrive together */
    BURST = 64,             /* polls between two readings of the clock */
    CLAIM_NS = 10000000,    /* longest wait for the text of a failure */
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
    RUNS_PART = 50, /* a rank is busy if its CPU time is at least this part of the limit */
};

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

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

enum failure_state { FAILURE_NONE, FAILURE_CLAIMED, FAILURE_SET };

struct control {
    _Alignas(64) uint32_t aborted;
    uint32_t ranks;
    size_t bytes, slot_bytes;
    size_t slots_at;          /* offset of the slots [ranks][2][slot_bytes] */
    uint32_t users;           /* ranks of the creating process that use its mapping */
    uint32_t failure_state;   /* enum failure_state */
    struct epa_error failure; /* valid with FAILURE_SET; the claiming rank writes it */
    struct control_rank rank[];
};

size_t bootstrap_slot_bytes(uint32_t ranks)
{
    size_t each = ALL_SLOTS / (ranks > 0 ? ranks : 1);

    return each < SLOT_LEAST ? SLOT_LEAST : each > SLOT_BYTES ? SLOT_BYTES : each;
}

static size_t control_bytes(uint32_t ranks)
{
    return sizeof(struct control) + ranks * sizeof(struct control_rank) +
           (size_t)ranks * 2 * bootstrap_slot_bytes(ranks);
}

/* Maps the pages of `fd`; -1: pages for child processes and threads only. */
static enum epa_status map_control(uint32_t ranks, int fd, struct control **out,
                                   struct epa_error *err)
{
    size_t bytes = control_bytes(ranks);
    void *at =
        mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED | (fd < 0 ? MAP_ANONYMOUS : 0), fd, 0);

    if (at == MAP_FAILED)
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno, "bootstrap: mmap of %zu shared bytes: %s",
                              bytes, strerror(errno));
    *out = at;
    return EPA_OK;
}

/* The memory of a new control is 0. */
static void init_control(struct control *control, uint32_t ranks)
{
    control->ranks = ranks;
    control->bytes = control_bytes(ranks);
    control->slot_bytes = bootstrap_slot_bytes(ranks);
    control->slots_at = control->bytes - (size_t)ranks * 2 * control->slot_bytes;
}

enum epa_status control_create(uint32_t ranks, struct control **out, struct epa_error *err)
{
    enum epa_status status = map_control(ranks, -1, out, err);

    if (status == EPA_OK)
        init_control(*out, ranks);
    return status;
}

void control_destroy(struct control *control)
{
    if (control != NULL)
        munmap(control, control->bytes);
}

/* ---- pages of processes that did not start each other ---- */

static int create_file(void)
{
    /* vm.memfd_noexec may require the flag; kernels before 6.3 reject it. */
    int fd = memfd_create("epa2a-boot", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);

    return fd < 0 && errno == EINVAL ? memfd_create("epa2a-boot", MFD_CLOEXEC | MFD_ALLOW_SEALING)
                                     : fd;
}

enum epa_status control_share(uint32_t ranks, uint32_t users, struct control **out,
                              struct control_card *card, struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    int fd = create_file();
    struct stat st;

    if (fd < 0 || fchmod(fd, 0600) != 0 || ftruncate(fd, (off_t)control_bytes(ranks)) != 0 ||
        fcntl(fd, F_ADD_SEALS, SEALS) != 0 || fstat(fd, &st) != 0)
        status = epa_fail_errno(err, errno == ENOMEM ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM, errno,
                                "bootstrap: a memfd of %zu bytes: %s", control_bytes(ranks),
                                strerror(errno));
    if (status == EPA_OK)
        status = map_control(ranks, fd, out, err);
    if (status != EPA_OK) {
        close_open(fd);
        return status;
    }
    init_control(*out, ranks);
    (*out)->users = users;
    *card = (struct control_card){
        .pid = getpid(), .fd = fd, .dev = st.st_dev, .ino = st.st_ino, .address = (uintptr_t)*out};
    return EPA_OK;
}

/* Checks identity, size and seals: access beyond the end of a shorter file would kill the process. */
static bool is_file_of(int fd, const struct control_card *card, uint32_t ranks)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_dev == card->dev && st.st_ino == card->ino &&
           (size_t)st.st_size == control_bytes(ranks) && seals >= 0 && (seals & SEALS) == SEALS;
}

enum epa_status control_attach(uint32_t ranks, const struct control_card *card,
                               struct control **out, struct epa_error *err)
{
    enum epa_status status;
    char path[64];
    int fd;

    if (card->pid == getpid()) {
        /* One address for all threads, so that ThreadSanitizer sees the order of accesses. */
        *out = (struct control *)(uintptr_t)card->address; /* NOLINT(performance-no-int-to-ptr) */
        return EPA_OK;
    }
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", card->pid, card->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0)
        return epa_fail_errno(
            err, EPA_ERR_SYSTEM, errno,
            "cannot open %s, the page that the ranks of this host share: %s; all ranks "
            "of a host must run as one user, in one PID and user namespace with /proc "
            "mounted",
            path, strerror(errno));
    status = is_file_of(fd, card, ranks)
                 ? map_control(ranks, fd, out, err)
                 : epa_fail(err, EPA_ERR_SYSTEM,
                            "%s is not the page that the ranks of this host share; are all ranks "
                            "in one PID namespace?",
                            path);
    close(fd);
    return status;
}

void control_detach(struct control *control, const struct control_card *card)
{
    /* The last rank of the creating process unmaps the page. Acquire and release: all accesses
     * precede the unmapping. */
    if (control != NULL &&
        (card->pid != getpid() || __atomic_sub_fetch(&control->users, 1, __ATOMIC_ACQ_REL) == 0))
        munmap(control, control->bytes);
}

void control_fail(struct control *control, enum epa_status status, const char *text)
{
    uint32_t none = FAILURE_NONE;

    /* Release: pairs with the acquire in control_failure(). */
    if (__atomic_compare_exchange_n(&control->failure_state, &none, FAILURE_CLAIMED, false,
                                    __ATOMIC_RELAXED, __ATOMIC_RELAXED)) {
        control->failure.status = status;
        snprintf(control->failure.text, sizeof(control->failure.text), "%s", text);
        __atomic_store_n(&control->failure_state, FAILURE_SET, __ATOMIC_RELEASE);
    }
    control_abort(control);
}

bool control_failure(const struct control *control, struct epa_error *out)
{
    uint64_t begun_ns = epa_now_ns();

    /* A rank that has claimed the record writes it soon, or it has died. */
    while (__atomic_load_n(&control->failure_state, __ATOMIC_ACQUIRE) == FAILURE_CLAIMED &&
           epa_now_ns() - begun_ns < CLAIM_NS)
        sched_yield();
    if (__atomic_load_n(&control->failure_state, __ATOMIC_ACQUIRE) != FAILURE_SET)
        return false;
    *out = control->failure;
    out->text[sizeof(out->text) - 1] = 0;
    return true;
}

/* ---- state of ranks ---- */

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
        *p = (struct wait_limit){.limit_ns = p->limit_ns,
                                 .strict = p->strict,
                                 .polled_ns = now,
                                 .start_ns = now,
                                 .window_ns = now,
                                 .cpu_ns = control_cpu_ns(control, rank),
                                 .rank = rank};
        return false;
    }
    pause_ns = epa_pause_ns(&p->polled_ns, now, p->limit_ns);
    p->start_ns += pause_ns;
    p->window_ns += pause_ns;
    if (now - p->window_ns <= p->limit_ns)
        return false;
    cpu_ns = control_cpu_ns(control, rank);
    if (p->strict || cpu_ns < p->cpu_ns || cpu_ns - p->cpu_ns < p->limit_ns / RUNS_PART ||
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
    return (char *)control + control->slots_at +
           ((size_t)rank * 2 + (step & 1)) * control->slot_bytes;
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
    struct wait_limit limit = {.limit_ns = boot->base.set_up_ns, .strict = boot->strict};
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

enum epa_status bootstrap_gather(struct bootstrap *boot, const void *mine, size_t bytes, void *all,
                                 size_t stride)
{
    enum epa_status status = complete_step(boot, mine, bytes);

    for (uint32_t r = 0; status == EPA_OK && r < boot->base.world.size; r++) {
        size_t n = boot->control->rank[r].bytes[boot->step & 1];

        memcpy((char *)all + r * stride, slot_of(boot->control, r, boot->step),
               n < stride ? n : stride);
    }
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
        epa_fail(epa_awaits(err, boot->late), EPA_ERR_TIMEOUT,
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
