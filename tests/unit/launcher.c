/* Launchers that keep the process of their rank from launch to launch, as MPI wants it. What MPI
 * does there, memory that all share does here. */
#include <sched.h>
#include "test.h"
#include <signal.h>

#include "launch/launcher.h"
#include "started.h"

static struct meeting {
    struct launcher_contact contact;
    uint32_t there;
} * meeting;

/* What a test's launchers do; set before they are forked. */
static struct plan {
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *);
    enum epa_status (*meet)(void *, struct launcher_contact *, struct epa_error *);
    uint64_t start_ns;
    uint32_t launches;
} plan;

/* In the process of the rank: rank 0 tells the others. */
static enum epa_status meet(void *arg, struct launcher_contact *contact, struct epa_error *err)
{
    const struct started_rank *me = arg;

    (void)err;
    if (me->world.rank == 0) {
        meeting->contact = *contact;
        /* Release: pairs with the acquire below; the contact is written. */
        __atomic_store_n(&meeting->there, 1, __ATOMIC_RELEASE);
    }
    while (__atomic_load_n(&meeting->there, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    *contact = meeting->contact;
    return EPA_OK;
}

static void leave(void *arg)
{
    ((struct started_rank *)arg)->left++;
}

static void client(struct started *s, uint32_t r)
{
    struct epa_launch asked = started_launch(s, plan.rank_main);
    struct launcher_settings settings = {
        .pin = PIN_CORE, .start_ns = plan.start_ns, .heartbeat_ns = 5000000000};
    struct launcher_params params = {.process_id = {.rank = r, .size = s->size},
                                     .interface = "lo",
                                     .meet = plan.meet,
                                     .leave = leave,
                                     .arg = &s->rank[r]};
    enum epa_status status;
    struct launcher *launcher = NULL;
    struct epa_error err = {EPA_OK, ""};

    s->rank[r].world.rank = r;
    asked.grace_ns = 300000000;
    status = launcher_create(&params, &launcher, &err);
    for (uint32_t i = 0; i <= plan.launches && launcher != NULL; i++) {
        err = (struct epa_error){EPA_OK, ""};
        settings.pin = i % 2 == 0 ? PIN_CORE : PIN_NONE;
        status = launcher_launch(launcher, &settings, &asked, &err);
    }
    started_note(s, r, status, &err);
    launcher_destroy(launcher);
}

static struct started *run(uint32_t size, struct plan p)
{
    struct started *s = started_create(size);

    plan = p;
    if (plan.start_ns == 0)
        plan.start_ns = 20000000000;
    meeting =
        mmap(NULL, sizeof(*meeting), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    assert_ptr_not_equal(meeting, MAP_FAILED);
    started_run(s, client);
    munmap(meeting, sizeof(*meeting));
    return s;
}

static void assert_all(const struct started *s, enum epa_status want)
{
    for (uint32_t r = 0; r < s->size; r++) {
        if (s->rank[r].status != want)
            print_message("rank %u: %s\n", r, s->rank[r].text);
        assert_int_equal(s->rank[r].status, want);
    }
}

/* Cores it may use are counted in `count` of launches that do not pin. */
static enum epa_status count_runs(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    struct started_rank *me = &s->rank[boot->world.rank];
    cpu_set_t mask;

    if (me->runs == 0)
        me->pid = getpid();
    me->runs += me->pid == getpid();
    if (sched_getaffinity(0, sizeof(mask), &mask) == 0)
        me->failed_rank = (uint32_t)CPU_COUNT(&mask);
    return boot->barrier(boot);
}

#define TEST_OF_RANKS(name, begin) TEST_OF(name, struct started, s, begin, started_destroy)

TEST_OF_RANKS(one_process_runs_all_launches, run(3, (struct plan){count_runs, meet, 0, 5}))
{
    cpu_set_t mask;

    assert_int_equal(sched_getaffinity(0, sizeof(mask), &mask), 0);
    assert_all(s, EPA_OK);
    for (uint32_t r = 0; r < 3; r++) {
        assert_int_equal(s->rank[r].runs, 6);
        assert_int_equal(s->rank[r].left, 1);
        assert_int_equal(s->rank[r].failed_rank, CPU_COUNT(&mask)); /* the last did not pin */
    }
}

/* Its rendezvous has all ranks before its process is ready. */
TEST_OF_RANKS(a_lone_rank_runs_once_it_is_ready, run(1, (struct plan){count_runs, meet, 0, 1}))
{
    assert_all(s, EPA_OK);
    assert_int_equal(s->rank[0].runs, 2);
}

static enum epa_status fail_twice(struct epa_bootstrap *boot, void *arg)
{
    struct started *s = arg;
    struct started_rank *me = &s->rank[boot->world.rank];

    if (boot->world.rank == 1 && ++me->runs < 3)
        return EPA_ERR_MISMATCH;
    return boot->barrier(boot);
}

TEST_OF_RANKS(a_launch_that_fails_leaves_the_next_alone,
              run(3, (struct plan){fail_twice, meet, 0, 2}))
{
    assert_all(s, EPA_OK);
}

static enum epa_status rank_2_dies(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    if (boot->world.rank == 2)
        raise(SIGKILL);
    return boot->barrier(boot);
}

TEST_OF_RANKS(a_lost_rank_is_named, run(3, (struct plan){rank_2_dies, meet, 0, 0}))
{
    assert_all(s, EPA_ERR_DIED);
    assert_non_null(strstr(s->rank[0].text, "was killed by signal 9 (Killed)"));
}

TEST_OF_RANKS(after_a_rank_was_lost_launches_are_refused_on_all,
              run(3, (struct plan){rank_2_dies, meet, 0, 2}))
{
    assert_all(s, EPA_ERR_UNSUPPORTED);
    assert_non_null(strstr(s->rank[0].text, "the process of rank 2 (host "));
    assert_non_null(strstr(s->rank[0].text, "was lost in an earlier run"));
    assert_int_equal(s->rank[0].left, 1);
}

static enum epa_status rank_1_stops(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    if (boot->world.rank == 1)
        raise(SIGSTOP);
    return boot->world.rank == 0 ? EPA_ERR_TIMEOUT : boot->barrier(boot);
}

TEST_OF_RANKS(a_stopped_rank_is_killed_after_the_grace,
              run(3, (struct plan){rank_1_stops, meet, 0, 0}))
{
    assert_all(s, EPA_ERR_TIMEOUT);
}

static enum epa_status rank_1_cannot_meet(void *arg, struct launcher_contact *contact,
                                          struct epa_error *err)
{
    if (((const struct started_rank *)arg)->world.rank == 1)
        return epa_fail(err, EPA_ERR_SYSTEM, "no library here");
    return meet(arg, contact, err);
}

TEST_OF_RANKS(a_rank_that_cannot_meet_says_why,
              run(2, (struct plan){count_runs, rank_1_cannot_meet, 500000000, 0}))
{
    assert_int_equal(s->rank[1].status, EPA_ERR_SYSTEM);
    assert_non_null(strstr(s->rank[1].text, "rank 1 (host "));
    assert_non_null(strstr(s->rank[1].text, "): no library here"));
    assert_int_equal(s->rank[0].status, EPA_ERR_TIMEOUT);
    assert_non_null(strstr(s->rank[0].text, "rank 1 of 2 did not connect within 0.5 s"));
}

static enum epa_status rank_1_never_meets(void *arg, struct launcher_contact *contact,
                                          struct epa_error *err)
{
    while (((const struct started_rank *)arg)->world.rank == 1)
        pause();
    return meet(arg, contact, err);
}

TEST_OF_RANKS(a_rank_that_never_meets_is_killed,
              run(2, (struct plan){count_runs, rank_1_never_meets, 500000000, 0}))
{
    assert_all(s, EPA_ERR_TIMEOUT);
    assert_non_null(strstr(s->rank[1].text, "did not meet the others within 0.5 s"));
}
