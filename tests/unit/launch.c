/* What both launchers promise: what a rank sees, and how a launch ends. */
#include <sched.h>
#include <unistd.h>

#include "test.h"

#include "launch/bootstrap.h"
#include "launch_status_page.h"

static const struct epa_launcher_plugin *const fork_launcher = &launch_fork_plugin;
static const struct epa_launcher_plugin *const thread_launcher = &launch_thread_plugin;

static uint32_t cores; /* that this process may use */

static enum epa_status check_world(struct epa_bootstrap *boot, void *arg)
{
    const struct epa_world *w = &boot->world;
    struct status_page *status_page = arg;
    uint32_t all[MOST], node = w->rank / 2, share = cores * w->local_size / 5;

    __atomic_add_fetch(&status_page->count, 1, __ATOMIC_RELAXED);
    if (w->size != 5 || w->local_rank != w->rank % 2 || w->local_size != (node < 2 ? 2u : 1u))
        return EPA_ERR_MISMATCH;
    if (w->local_cores != (share > 0 ? share : 1)) /* nodes of one host divide its cores */
        return EPA_ERR_MISMATCH;
    if (boot->allgather(boot, &w->rank, sizeof(w->rank), all) != EPA_OK)
        return EPA_ERR_SYSTEM;
    for (uint32_t r = 0; r < 5; r++) {
        if (all[r] != r || epa_same_node(w, r) != (r / 2 == node))
            return EPA_ERR_MISMATCH;
    }
    return EPA_OK;
}

static void each_rank_knows_its_place(const struct epa_launcher_plugin *launcher)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(5, check_world, status_page);
    struct epa_error err;
    cpu_set_t mask;

    assert_int_equal(sched_getaffinity(0, sizeof(mask), &mask), 0);
    cores = (uint32_t)CPU_COUNT(&mask);
    launch.ranks_per_node = 2;
    assert_int_equal(run(launcher, &launch, &err), EPA_OK);
    assert_int_equal(status_page->count, 5);
    status_page_destroy(status_page);
}

static enum epa_status note_core(struct epa_bootstrap *boot, void *arg)
{
    const struct epa_world *w = &boot->world;
    struct status_page *status_page = arg;
    cpu_set_t mask;

    if (w->cores != 1 || sched_getaffinity(0, sizeof(mask), &mask) != 0)
        return EPA_ERR_SYSTEM;
    if (CPU_COUNT(&mask) != 1 || !CPU_ISSET((size_t)w->core[0], &mask))
        return EPA_ERR_MISMATCH;
    if (sched_getcpu() != w->core[0])
        return EPA_ERR_MISMATCH;
    status_page->core[w->rank] = w->core[0];
    return EPA_OK;
}

static void ranks_have_cores_of_their_own(const struct epa_launcher_plugin *launcher)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(1, note_core, status_page);
    struct epa_error err;
    cpu_set_t mask;

    assert_int_equal(sched_getaffinity(0, sizeof(mask), &mask), 0);
    launch.ranks = CPU_COUNT(&mask) < MOST ? (uint32_t)CPU_COUNT(&mask) : MOST;
    assert_int_equal(run(launcher, &launch, &err), EPA_OK);
    for (uint32_t r = 0; r < launch.ranks; r++) {
        for (uint32_t other = 0; other < r; other++)
            assert_int_not_equal(status_page->core[r], status_page->core[other]);
    }
    status_page_destroy(status_page);
}

static enum epa_status rank_1_finds_wrong_data(struct epa_bootstrap *boot, void *arg)
{
    return boot->world.rank == 1 ? EPA_ERR_MISMATCH : wait_in_barrier(boot, arg);
}

static void a_failure_of_its_own_wins_over_aborted(const struct epa_launcher_plugin *launcher)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(3, rank_1_finds_wrong_data, status_page);
    struct epa_error err;

    assert_int_equal(run(launcher, &launch, &err), EPA_ERR_MISMATCH);
    assert_string_equal(err.text, "");
    assert_int_equal(status_page->status[0], EPA_ERR_ABORTED);
    assert_int_equal(status_page->status[2], EPA_ERR_ABORTED);
    status_page_destroy(status_page);
}

static enum epa_status rank_1_stays(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    while (boot->world.rank == 1 && !epa_aborted(boot))
        usleep(20000); /* one that uses its core is given longer */
    return epa_aborted(boot) ? EPA_ERR_ABORTED : EPA_OK;
}

static void the_last_rank_must_return(const struct epa_launcher_plugin *launcher)
{
    struct epa_launch launch = launch_of(2, rank_1_stays, NULL);
    struct epa_error err;

    launch.timeout_ns = 30000000;
    assert_int_equal(run(launcher, &launch, &err), EPA_ERR_TIMEOUT);
    assert_words(err.text, "rank 1 .. 0.03");
}

static enum epa_status rank_0_stops_all(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    if (boot->world.rank == 0 && write(status_page->pipe_end, "x", 1) != 1)
        return EPA_ERR_SYSTEM;
    while (!epa_aborted(boot))
        sched_yield();
    status_page->status[boot->world.rank] = EPA_ERR_ABORTED;
    return EPA_ERR_ABORTED;
}

static void stop_fd_ends_the_launch(const struct epa_launcher_plugin *launcher)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(3, rank_0_stops_all, status_page);
    struct epa_error err;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    launch.stop_fd = ends[0];
    status_page->pipe_end = ends[1];
    assert_int_equal(run(launcher, &launch, &err), EPA_ERR_INTERRUPTED);
    for (uint32_t r = 0; r < 3; r++)
        assert_int_equal(status_page->status[r], EPA_ERR_ABORTED);
    close(ends[0]);
    close(ends[1]);
    status_page_destroy(status_page);
}

static void hold_promises(const struct epa_launcher_plugin *launcher)
{
    each_rank_knows_its_place(launcher);
    ranks_have_cores_of_their_own(launcher);
    a_failure_of_its_own_wins_over_aborted(launcher);
    the_last_rank_must_return(launcher);
    stop_fd_ends_the_launch(launcher);
}

TEST(ranks_that_are_processes_are_placed_pinned_and_ended)
{
    hold_promises(fork_launcher);
}

/* Once rank 1 has returned, so that nobody but rank 0 needs the grace. */
static enum epa_status rank_0_aborts_and_stays(struct epa_bootstrap *boot, void *arg)
{
    const struct control *control = ((struct bootstrap *)boot)->control;
    struct status_page *status_page = arg;
    enum epa_status status;

    if (boot->world.rank != 0)
        return EPA_OK;
    while (!control_returned(control, 1, &status))
        sched_yield();
    boot->abort(boot);
    while (__atomic_load_n(&status_page->release, __ATOMIC_ACQUIRE) == 0)
        sched_yield();
    munmap(status_page, sizeof(*status_page));
    return EPA_OK;
}

TEST(a_rank_that_ignores_its_own_abort_is_named)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(2, rank_0_aborts_and_stays, status_page);
    struct epa_error err;

    launch.grace_ns = 200000000;
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_TIMEOUT);
    assert_non_null(strstr(err.text, "rank 0 (pid "));
    assert_non_null(strstr(err.text, ") did not return within 0.2 s of the request to stop"));
    status_page_destroy(status_page);
}

/* Processes came first: a fork in a process that had threads is no test of theirs. */
TEST(ranks_that_are_threads_are_placed_pinned_and_ended)
{
    hold_promises(thread_launcher);
}

TEST(a_thread_that_stays_is_named_and_left_behind)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(2, rank_0_aborts_and_stays, status_page);
    struct epa_error err;
    uint32_t leaked_ranks = 0;

    launch.grace_ns = 200000000;
    launch.leaked_ranks = &leaked_ranks;
    assert_int_equal(run(thread_launcher, &launch, &err), EPA_ERR_TIMEOUT);
    assert_string_equal(err.text, "rank 0 did not return within 0.2 s of the request to stop");
    assert_int_equal(leaked_ranks, 1);
    __atomic_store_n(&status_page->release, 1, __ATOMIC_RELEASE); /* it unmaps the status page */
}
