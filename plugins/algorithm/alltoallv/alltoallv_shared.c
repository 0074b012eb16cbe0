/* mode shared. Every rank maps every part of a window: counts, rows by expert, expert outputs by
 * expert. Dispatch: write counts, barrier, write rows to the place from which the expert reads,
 * barrier. Combine: barrier, and the weighted sum of expert outputs, read from the place where the
 * experts wrote them.
 *
 * One set of buffers suffices. Consider the state after barrier 3n, the barrier of combine n (or the
 * state before the first dispatch):
 *   - Counts are written before barrier 3n + 1. The readers of the previous counts have since entered
 *     barrier 3n - 1.
 *   - Rows are written at rank r after barrier 3n + 1. Rank r has reached dispatch n + 1, and its
 *     experts have read the previous rows.
 *   - Rank r writes its expert outputs after barrier 3n + 2. Every rank has reached this barrier and
 *     has read the previous expert outputs in its combine n. */
#include "alltoallv.h"

#include <string.h>
#include <sys/mman.h>
#include <sys/statvfs.h>

static uint64_t *arrived_at(const struct av *a, uint32_t rank)
{
    return (uint64_t *)(void *)a->shm.base[rank];
}

static int *counts_at(const struct av *a, uint32_t rank)
{
    return (int *)(void *)(a->shm.base[rank] + a->shm.counts_at);
}

/* Barrier with a time limit: each rank counts barriers in its part of the window and waits until all
 * others have the same count. */
static enum epa_status wait_for_all(struct av *a, const char *what)
{
    uint64_t meeting = ++a->shm.meetings;
    struct av_poll poll = {.what = what};

    /* Release: pairs with the acquire below. A rank that reads the count sees this rank's stores. */
    __atomic_store_n(arrived_at(a, a->h.world.rank), meeting, __ATOMIC_RELEASE);
    for (uint32_t i = 1; i < a->s.size; i++) {
        uint32_t r = (a->h.world.rank + i) % a->s.size;

        poll.peer = r;
        while ((poll.seen = __atomic_load_n(arrived_at(a, r), __ATOMIC_ACQUIRE)) < meeting) {
            enum epa_status status = av_poll(a, &poll);

            if (status == EPA_ERR_TIMEOUT)
                return algo_fail(algo_awaits(&a->h, r), status,
                                 "rank %u waited %.3f s for the %s of rank %u (meeting %llu)",
                                 a->h.world.rank, av_timeout_s(a), what, r,
                                 (unsigned long long)meeting);
            if (status != EPA_OK)
                return status;
        }
    }
    epa_wait_clear(a->h.observer, poll.reported_ns);
    return EPA_OK;
}

/* Barrier: stores before it are visible to all ranks after it. */
static enum epa_status synchronise_window(struct av *a, const char *what)
{
    enum epa_status status = av_check(a, "MPI_Win_sync", MPI_Win_sync(a->shm.window));

    if (status == EPA_OK)
        status = wait_for_all(a, what);
    return status == EPA_OK ? av_check(a, "MPI_Win_sync", MPI_Win_sync(a->shm.window)) : status;
}

/* Computes a->next, the place of this rank's first row for each expert. Rows are ordered by expert,
 * then by source; all ranks compute the same layout. */
static enum epa_status lay_out_rows(struct av *a)
{
    for (uint32_t owner = 0; owner < a->s.size; owner++) {
        uint64_t end = 0;

        for (uint32_t i = 0; i < a->s.local; i++) {
            uint32_t e = owner * a->s.local + i;

            for (uint32_t source = 0; source < a->s.size; source++) {
                int n = counts_at(a, source)[e];

                if (source == a->h.world.rank)
                    a->next[e] = (uint32_t)end;
                if (owner == a->h.world.rank)
                    a->counts[source * a->s.local + i] = n;
                end += (uint64_t)n;
            }
        }
        if (end > a->s.entries)
            return algo_too_full(&a->h, owner, end, a->s.entries);
    }
    return EPA_OK;
}

static enum epa_status place_shared(struct av *a)
{
    enum epa_status status;

    memcpy(counts_at(a, a->h.world.rank), a->count, a->s.experts * sizeof(*a->count));
    status = synchronise_window(a, "counts");
    return status == EPA_OK ? lay_out_rows(a) : status;
}

static enum epa_status deliver_shared(struct av *a, const char **recv, char **y)
{
    char *mine = a->shm.base[a->h.world.rank];
    enum epa_status status = synchronise_window(a, "rows");

    (void)av_lay_out(a);
    *recv = mine + a->shm.rows_at;
    *y = mine + a->shm.y_at;
    return status;
}

static void copy_outputs(void *arg, uint32_t worker, uint32_t workers)
{
    const struct epa_moe *m = arg;
    uint64_t row_bytes = 2 * (uint64_t)m->hidden;
    uint64_t first = m->recv_rows * worker / workers;
    uint64_t end = m->recv_rows * (worker + 1) / workers;

    if (first < end)
        memcpy((char *)m->y_space + first * row_bytes, (const char *)m->y + first * row_bytes,
               (end - first) * row_bytes);
}

static enum epa_status return_shared(struct av *a, struct epa_moe *m)
{
    enum epa_status status = EPA_OK;

    if (m->y != m->y_space)
        status = av_parallel(a, "copy_outputs", copy_outputs, m);
    return status == EPA_OK ? synchronise_window(a, "expert outputs") : status;
}

static void place_parts(struct av *a)
{
    struct av_shared *w = &a->shm;

    w->counts_at = EPA_LINE_BYTES;
    w->rows_at = epa_round_up(w->counts_at + a->s.experts * sizeof(int), ALGO_PAGE);
    w->y_at = epa_round_up(w->rows_at + a->s.entries * a->s.message_bytes, ALGO_PAGE);
    w->bytes = epa_round_up(w->y_at + a->s.entries * a->s.output_bytes, ALGO_PAGE);
}

/* Checks the free space of /dev/shm, where MPI libraries keep windows. Without space a rank would fail
 * alone inside a collective call, or its first store would kill it. */
static enum epa_status check_room(const struct av *a, struct epa_error *err)
{
    static const char folder[] = "/dev/shm";
    uint64_t need = (uint64_t)a->s.size * a->shm.bytes, room;
    struct statvfs fs;

    if (statvfs(folder, &fs) != 0)
        return EPA_OK;
    room = (uint64_t)fs.f_bavail * fs.f_frsize;
    if (need <= room)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_NOMEM, "moe.max_tokens",
                        "alltoallv with mode: shared takes %llu MiB in %s for %u ranks, and %llu "
                        "MiB are free there: lower moe.max_tokens, set algorithm.capacity, or "
                        "give it more room",
                        (unsigned long long)(need >> 20), folder, a->s.size,
                        (unsigned long long)(room >> 20));
}

static enum epa_status join_node(struct av *a, struct epa_error *err)
{
    int size = 0;
    enum epa_status status =
        av_check(a, "MPI_Comm_split_type",
                 MPI_Comm_split_type(a->comm, MPI_COMM_TYPE_SHARED, (int)a->h.world.rank,
                                     MPI_INFO_NULL, &a->shm.node));

    if (status != EPA_OK)
        return epa_fail(err, status, "alltoallv: %s", a->h.last.text);
    MPI_Comm_size(a->shm.node, &size);
    if ((uint32_t)size == a->s.size)
        return EPA_OK;
    return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "algorithm.mode",
                        "alltoallv with mode: shared needs all ranks in one shared memory, and "
                        "MPI has %d of %u there with rank %u; set mode: messages",
                        size, a->s.size, a->h.world.rank);
}

static enum epa_status make_window(struct av *a)
{
    struct av_shared *w = &a->shm;
    MPI_Info info = MPI_INFO_NULL;
    char *mine = NULL;
    enum epa_status status = av_check(a, "MPI_Info_create", MPI_Info_create(&info));

    if (status != EPA_OK)
        return status;
    /* Parts share no page, so that each part is in memory near its owner. */
    MPI_Info_set(info, "alloc_shared_noncontig", "true");
    status = av_check(a, "MPI_Win_allocate_shared",
                      MPI_Win_allocate_shared((MPI_Aint)(w->bytes + ALGO_PAGE), 1, info, w->node,
                                              &mine, &w->window));
    MPI_Info_free(&info);
    if (status == EPA_OK)
        status = av_check(a, "MPI_Win_set_errhandler",
                          MPI_Win_set_errhandler(w->window, MPI_ERRORS_RETURN));
    if (status == EPA_OK)
        status = av_check(a, "MPI_Win_lock_all", MPI_Win_lock_all(MPI_MODE_NOCHECK, w->window));
    w->locked = status == EPA_OK;
    return status;
}

/* Finds the address of each part, from its first page boundary on: ranks map the window's file at
 * different page-aligned addresses. */
static enum epa_status map_window(struct av *a)
{
    struct av_shared *w = &a->shm;
    enum epa_status status = EPA_OK;
    int *model = NULL, found = 0;

    MPI_Win_get_attr(w->window, MPI_WIN_MODEL, &model, &found);
    if (!found || *model != MPI_WIN_UNIFIED)
        return algo_fail(&a->h, EPA_ERR_UNSUPPORTED,
                         "this MPI has no unified memory model, which loads and stores need");
    for (uint32_t r = 0; r < a->s.size && status == EPA_OK; r++) {
        MPI_Aint bytes = 0;
        int unit = 0;
        char *part = NULL;

        status = av_check(a, "MPI_Win_shared_query",
                          MPI_Win_shared_query(w->window, (int)r, &bytes, &unit, &part));
        part += epa_round_up((uintptr_t)part, ALGO_PAGE) - (uintptr_t)part;
        w->base[r] = part;
        a->into[r] = part + w->rows_at;
        a->from[r] = part + w->y_at;
    }
    return status;
}

/* The owner touches its part first, which places the pages near its core. */
static void touch_window(const struct av *a)
{
    char *mine = a->shm.base[a->h.world.rank];
    size_t skip = epa_round_up((uintptr_t)mine, AV_HUGE_PAGE) - (uintptr_t)mine;

    if (skip + AV_HUGE_PAGE <= a->shm.bytes) /* a failure leaves small pages */
        (void)madvise(mine + skip, (a->shm.bytes - skip) / AV_HUGE_PAGE * AV_HUGE_PAGE,
                      MADV_HUGEPAGE);
    memset(mine, 0, a->shm.bytes);
}

static enum epa_status create_shared(struct av *a, struct epa_error *err)
{
    enum epa_status status;

    place_parts(a);
    a->shm.base = algo_alloc(&a->h, a->s.size, sizeof(*a->shm.base));
    if (a->shm.base == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "alltoallv: no memory for %u windows", a->s.size);
    status = check_room(a, err);
    /* All ranks have arrived, so the following collective calls may block without a time limit. */
    if (status == EPA_OK)
        status = av_barrier(a, "MPI_Ibarrier before the window");
    if (status == EPA_OK)
        status = join_node(a, err);
    if (status == EPA_OK)
        status = make_window(a);
    if (status == EPA_OK)
        status = map_window(a);
    if (status == EPA_OK)
        touch_window(a);
    if (status != EPA_OK && status != EPA_ERR_ABORTED)
        return epa_fail(err, status, "alltoallv with mode: shared: %s", a->h.last.text);
    return status;
}

static void destroy_shared(struct av *a)
{
    struct av_shared *w = &a->shm;

    if (w->window != MPI_WIN_NULL && !a->failed) {
        if (w->locked)
            MPI_Win_unlock_all(w->window);
        MPI_Win_free(&w->window);
    }
    if (w->node != MPI_COMM_NULL && !a->failed)
        MPI_Comm_free(&w->node);
}

const struct av_way av_shared = {place_shared, deliver_shared, return_shared, create_shared,
                                 destroy_shared};
