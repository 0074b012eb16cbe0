/* epa2a/wait.h: how a thread waits. */
#include <epa2a/wait.h>

#include <sys/resource.h>

#include "test.h"

/* Sleeps of a wait of 400 ms on cores that are short. 63 ranks that wait for the last one must
 * leave it the cores: with a sleep of at most 1 ms they took both of two, and it never came. Of
 * time in which the machine does other things no more counts than one sleep can take. */
TEST(a_long_wait_wakes_up_rarely)
{
    struct rusage before, after;
    uint64_t waited = 0;

    getrusage(RUSAGE_THREAD, &before);
    while (waited < 400000000) {
        uint64_t begin = epa_now_ns(), ns;

        epa_backoff(waited, 0);
        ns = epa_now_ns() - begin;
        waited += ns < EPA_WAIT_BACKOFF_MAX_NS ? ns : EPA_WAIT_BACKOFF_MAX_NS;
    }
    getrusage(RUSAGE_THREAD, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 1, 300);
}

static long sleeps_of(uint64_t waited_ns, uint64_t spin_ns)
{
    struct rusage before, after;

    getrusage(RUSAGE_THREAD, &before);
    epa_backoff(waited_ns, spin_ns);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_nvcsw - before.ru_nvcsw;
}

/* Who yields for longer keeps others from these cores: see epa_backoff(). */
TEST(a_wait_sleeps_after_200_us)
{
    assert_int_equal(sleeps_of(100000, 0), 0);
    assert_int_equal(sleeps_of(200000, 0), 1);
    assert_int_equal(sleeps_of(500000, UINT64_MAX), 0); /* it spins */
}
