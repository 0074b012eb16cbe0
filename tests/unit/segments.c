/* Tests of shared memory segments of a rank that died in set-up. The report of the death arrives a
 * moment later, and the other ranks must report it instead of their own error. */
#include "test.h"

#include <pthread.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include "../../plugins/common/segments.h"

struct launcher {
    struct epa_bootstrap boot; /* first member */
    uint32_t aborted;
    int32_t dead; /* pid of rank 1 */
};

/* Passes the pid of rank 1, a process that has ended. */
static enum epa_status gather(struct epa_bootstrap *boot, const void *mine, size_t bytes, void *all)
{
    struct segment_card *cards = all;

    assert_int_equal(bytes, sizeof(*cards));
    memcpy(&cards[0], mine, bytes);
    memcpy(&cards[1], mine, bytes);
    cards[1].pid = ((struct launcher *)boot)->dead;
    return EPA_OK;
}

static enum epa_status meet(struct epa_bootstrap *boot)
{
    return epa_aborted(boot) ? EPA_ERR_ABORTED : EPA_OK;
}

static void explain(struct epa_bootstrap *boot, struct epa_error *err)
{
}

static int32_t ended_process(void)
{
    pid_t child = fork();

    if (child == 0)
        _exit(0);
    assert_true(child > 0);
    assert_int_equal(waitpid(child, NULL, 0), child);
    return child;
}

static void *tell(void *arg)
{
    const struct timespec later = {0, 20000000};

    nanosleep(&later, NULL);
    __atomic_store_n(&((struct launcher *)arg)->aborted, 1, __ATOMIC_RELAXED);
    return NULL;
}

static enum epa_status opened(struct launcher *l)
{
    const struct segments_params params = {
        .name = "shm", .boot = &l->boot, .heap_bytes = 4096, .signals = 1, .huge_pages = HUGE_OFF};
    struct segments s;

    l->dead = ended_process();
    l->boot = (struct epa_bootstrap){.world = {.rank = 0, .size = 2},
                                     .aborted = &l->aborted,
                                     .allgather = gather,
                                     .barrier = meet,
                                     .explain = explain};
    return segments_init(&s, &params, test_error());
}

TEST(a_death_reported_late_ends_the_set_up)
{
    struct launcher l = {0};
    enum epa_status status;
    pthread_t thread;

    assert_int_equal(pthread_create(&thread, NULL, tell, &l), 0);
    status = opened(&l);
    pthread_join(thread, NULL);
    assert_status(status, EPA_ERR_ABORTED, "");
}

TEST(inaccessible_memory_has_its_own_error)
{
    struct launcher l = {0};

    assert_status(opened(&l), EPA_ERR_SYSTEM,
                  "shm: rank 0 cannot open the memory of rank 1, /proc/");
}
