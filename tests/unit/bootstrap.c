/* Ranks are threads here, so that ThreadSanitizer sees whether a barrier orders memory. */
#include <pthread.h>
#include <sched.h>
#include <signal.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "test.h"

#include "launch/bootstrap.h"

enum { MOST = 8 };

struct rank {
    pthread_t thread;
    struct bootstrap boot;
    void (*body)(struct rank *);
    enum epa_status status;
    uint64_t wrong;
    uint32_t *shared; /* [MOST], plain words */
};

static void *rank_thread(void *arg)
{
    struct rank *rank = arg;

    rank->body(rank);
    return NULL;
}

static void run_ranks(uint32_t n, uint64_t timeout_ns, void (*body)(struct rank *),
                      struct rank *rank)
{
    struct control *control;
    uint32_t shared[MOST] = {0};

    assert_int_equal(control_create(n, &control, NULL), EPA_OK);
    for (uint32_t r = 0; r < n; r++) {
        struct epa_world world = {
            .rank = r, .size = n, .local_rank = r, .local_size = n, .local_cores = 2};

        rank[r] = (struct rank){.body = body, .shared = shared};
        bootstrap_init(&rank[r].boot, control, &world, timeout_ns);
        assert_int_equal(pthread_create(&rank[r].thread, NULL, rank_thread, &rank[r]), 0);
    }
    for (uint32_t r = 0; r < n; r++)
        pthread_join(rank[r].thread, NULL);
    control_destroy(control);
}

static void check_all(const struct rank *rank, uint32_t n)
{
    for (uint32_t r = 0; r < n; r++) {
        assert_int_equal(rank[r].status, EPA_OK);
        assert_int_equal(rank[r].wrong, 0);
    }
}

/* Plain loads and stores: a barrier that lets one rank go early is a wrong value or a race. */
static void write_meet_read(struct rank *rank)
{
    struct epa_bootstrap *boot = &rank->boot.base;
    uint32_t size = boot->world.size;

    for (uint32_t round = 1; round <= 1000 && rank->status == EPA_OK; round++) {
        rank->shared[boot->world.rank] = round;
        rank->status = boot->barrier(boot);
        for (uint32_t r = 0; r < size; r++)
            rank->wrong += rank->shared[r] != round;
        if (rank->status == EPA_OK)
            rank->status = boot->barrier(boot);
    }
}

TEST(what_was_written_before_a_barrier_is_read_after_it)
{
    struct rank rank[MOST];

    run_ranks(MOST, 0, write_meet_read, rank);
    check_all(rank, MOST);
    run_ranks(1, 0, write_meet_read, rank);
    check_all(rank, 1);
}

static unsigned char byte_of(uint32_t rank, size_t bytes, size_t i)
{
    return (unsigned char)(i * 31 + bytes * 7 + rank * 101 + (i >> 13));
}

static void gather_sizes(struct rank *rank)
{
    static const size_t sizes[] = {1, 0, 8, 4095, 16384, 16385, 32768, 100003, 1 << 20, 3};
    struct epa_bootstrap *boot = &rank->boot.base;
    uint32_t size = boot->world.size;
    unsigned char *mine = malloc(1 << 20), *all = malloc((size_t)size << 20);

    for (size_t s = 0; s < LENGTH(sizes); s++) {
        for (size_t i = 0; i < sizes[s]; i++)
            mine[i] = byte_of(boot->world.rank, sizes[s], i);
        if (rank->status == EPA_OK)
            rank->status = boot->allgather(boot, mine, sizes[s], all);
        for (uint32_t r = 0; r < size; r++)
            for (size_t i = 0; i < sizes[s]; i++)
                rank->wrong += all[r * sizes[s] + i] != byte_of(r, sizes[s], i);
    }
    free(mine);
    free(all);
}

TEST(allgather_brings_any_number_of_bytes_in_order_of_ranks)
{
    struct rank rank[MOST];

    run_ranks(5, 0, gather_sizes, rank);
    check_all(rank, 5);
}

static void gather_often(struct rank *rank)
{
    struct epa_bootstrap *boot = &rank->boot.base;
    uint32_t size = boot->world.size, all[MOST];

    for (uint32_t i = 0; i < 1000 && rank->status == EPA_OK; i++) {
        uint32_t mine = i * MOST + boot->world.rank;

        rank->status = boot->allgather(boot, &mine, sizeof(mine), all);
        for (uint32_t r = 0; r < size; r++)
            rank->wrong += all[r] != i * MOST + r;
    }
}

TEST(one_allgather_after_the_other_needs_no_barrier_between)
{
    struct rank rank[MOST];

    run_ranks(MOST, 0, gather_often, rank);
    check_all(rank, MOST);
}

static void rank_1_aborts(struct rank *rank)
{
    struct epa_bootstrap *boot = &rank->boot.base;
    char all[MOST], mine = 0;

    if (boot->world.rank == 1)
        boot->abort(boot);
    else if (boot->world.rank == 0)
        rank->status = boot->barrier(boot);
    else
        rank->status = boot->allgather(boot, &mine, 1, all);
}

TEST(an_abort_frees_those_who_wait)
{
    struct rank rank[MOST];

    run_ranks(4, 0, rank_1_aborts, rank);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(rank[r].status, r == 1 ? EPA_OK : EPA_ERR_ABORTED);
}

/* Rank 2 comes once rank 0 is there, so that it waits for nobody else. */
static void rank_1_stays_away(struct rank *rank)
{
    uint32_t me = rank->boot.base.world.rank;
    const void *data;
    size_t bytes;

    while (me == 2 && !control_step(rank->boot.control, 0, 1, &data, &bytes))
        sched_yield();
    if (me != 1)
        rank->status = rank->boot.base.barrier(&rank->boot.base);
}

TEST(a_rank_that_does_not_come_is_named_after_the_timeout)
{
    struct rank rank[MOST];
    struct epa_error err = {EPA_OK, ""}, none = {EPA_OK, ""};

    run_ranks(3, 20000000, rank_1_stays_away, rank);
    assert_int_equal(rank[0].status, EPA_ERR_TIMEOUT);
    assert_int_equal(rank[2].status, EPA_ERR_TIMEOUT);
    rank[2].boot.base.explain(&rank[2].boot.base, &err);
    assert_int_equal(err.status, EPA_ERR_TIMEOUT);
    assert_words(err.text, "rank 2 .. 0.02 .. rank 1 .. 1");
    rank[1].boot.base.explain(&rank[1].boot.base, &none);
    assert_int_equal(none.status, EPA_OK);
}

TEST(last_word_is_known_only_once_given)
{
    struct control *control;
    enum epa_status status = EPA_OK;

    assert_int_equal(control_create(2, &control, NULL), EPA_OK);
    assert_false(control_returned(control, 1, &status));
    control_return(control, 1, EPA_ERR_MISMATCH);
    assert_true(control_returned(control, 1, &status));
    assert_int_equal(status, EPA_ERR_MISMATCH);
    assert_false(control_returned(control, 0, &status));
    control_reset(control);
    assert_false(control_returned(control, 1, &status));
    control_destroy(control);
}

/* A process that names itself a rank of `control`, says so and then does as it is told. */
static pid_t other_rank(struct control *control, bool works)
{
    struct epa_world world = {.rank = 1, .size = 2, .local_size = 2, .local_cores = 2};
    struct bootstrap boot;
    int ends[2];
    char c;
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    pid = fork();
    if (pid == 0) {
        bootstrap_init(&boot, control, &world, 0);
        if (write(ends[1], "x", 1) != 1)
            _exit(1);
        while (works)
            continue;
        pause();
    }
    assert_true(pid > 0);
    assert_int_equal(read(ends[0], &c, 1), 1);
    close(ends[0]);
    close(ends[1]);
    return pid;
}

static uint64_t cpu_ns_of(pid_t pid)
{
    struct timespec used;
    clockid_t clock;

    assert_int_equal(clock_getcpuclockid(pid, &clock), 0);
    assert_int_equal(clock_gettime(clock, &used), 0);
    return (uint64_t)used.tv_sec * 1000000000u + (uint64_t)used.tv_nsec;
}

/* Limits until a rank is waited for in vain, 5 at most. Time is that of the test alone: one limit
 * goes by while who works has a core for a tenth of it, however long the machine takes for that. */
static uint32_t waits_in_vain(bool works)
{
    struct wait_limit wait = {.limit_ns = 200000000};
    struct control *control;
    uint32_t limits = 0;
    uint64_t now = 1;
    pid_t pid;

    assert_int_equal(control_create(2, &control, NULL), EPA_OK);
    pid = other_rank(control, works);
    while (!wait_limit_expired(&wait, control, 1, now) && limits < 5) {
        uint64_t until = cpu_ns_of(pid) + wait.limit_ns / 10;

        while (works && cpu_ns_of(pid) < until)
            usleep(1000);
        now += wait.limit_ns + 1;
        limits++;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    control_destroy(control);
    return limits;
}

TEST(who_uses_a_core_is_waited_for_longer_than_who_sleeps)
{
    assert_int_equal(waits_in_vain(true), 5);
    assert_int_equal(waits_in_vain(false), 1);
}
