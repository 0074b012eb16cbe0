/* epa2a/wait.h: how a thread waits. */
#include <epa2a/wait.h>

#include <sys/resource.h>

#include "test.h"

/* Sleeps of a wait of 400 ms on cores that are short. 63 ranks that wait for the last one must
 * leave it the cores: with a sleep of at most 1 ms they took both of two, and it never came. */
TEST(a_long_wait_wakes_up_rarely)
{
    uint64_t begin = epa_now_ns(), waited;
    struct rusage before, after;

    getrusage(RUSAGE_THREAD, &before);
    while ((waited = epa_now_ns() - begin) < 400000000)
        epa_backoff(waited, 0);
    getrusage(RUSAGE_THREAD, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 1, 300);
}
