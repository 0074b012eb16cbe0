/* What is wrong in a kernel is found: by what is said at its end, which ends the process, so that
 * each probe runs in one of its own; or by wrong results. That what is right comes out right is
 * what gpu/gemm.c, tests/oracle/layer.py and all runs of `epa2a verify` on CPUs show. And a wait
 * whose time is up looks once more, as its kernel may not have run for that long. */
#include <sys/wait.h>
#include <unistd.h>

#include "../../unit/test.h"
#include "probe.h"

/* In a process of its own, which ends in failure and says so; or in silence, if there are no
 * words. */
static void expect(enum probe_fault fault, const char *words)
{
    char said[8192];
    size_t n = 0;
    ssize_t got;
    int fd[2], status;
    pid_t child;

    assert_int_equal(pipe(fd), 0);
    child = fork();
    assert_true(child >= 0);
    if (child == 0) {
        (void)dup2(fd[1], STDERR_FILENO);
        _exit(probe_run(fault) != 0);
    }
    close(fd[1]);
    while (n < sizeof(said) - 1 && (got = read(fd[0], said + n, sizeof(said) - 1 - n)) > 0)
        n += (size_t)got;
    said[n] = '\0';
    close(fd[0]);
    assert_int_equal(waitpid(child, &status, 0), child);
    if (words == NULL ? n != 0 : strstr(said, words) == NULL)
        fail_msg("fault %d: expected \"%s\", it says: %s", fault, words, said);
    assert_int_equal(words == NULL, status == 0);
}

TEST(a_fault_is_said)
{
    static const struct {
        enum probe_fault fault;
        const char *words;
    } faults[] = {
        {PROBE_NONE, NULL},
        {PROBE_LOST_BARRIER, "its threads wait for each other in vain"},
        {PROBE_OTHER_BARRIER, "its threads are at different kinds of __syncthreads"},
        {PROBE_FOREIGN_LANE, "which is not in its mask"},
        {PROBE_CROOKED_STORE, "stores 16 bytes at"},
#ifdef __SANITIZE_ADDRESS__
        {PROBE_BEHIND_MEMORY, "AddressSanitizer"},
#endif
        {PROBE_CLUSTER, NULL},
        {PROBE_CLUSTER_EARLY, "of its cluster, which may not run yet"},
        {PROBE_CLUSTER_ENDED, "of its cluster, which has ended"},
        {TILES_RIGHT, NULL},
        {TILES_PADDING, NULL},
        {TILES_NO_FULL, "none of its threads has waited for"},
        {TILES_PARITY, "phase of parity 0, which misses 4 arrivals and 0 bytes"},
        {TILES_BYTES, "misses 0 arrivals and 16 bytes"},
        {TILES_NO_FENCE, "without a fence to the async proxy"},
        {TILES_EARLY_FENCE, "without a fence to the async proxy"},
        {TILES_NO_WGMMA_FENCE, "wgmma without wgmma.fence"},
        {TILES_NO_STORE_WAIT, "its bulk stores may still read shared memory"},
        {TILES_NO_INIT_FENCE, "without fence.mbarrier_init"},
        {TILES_ODD_LANE, "wgmma of its warpgroup"},
        {TILES_OTHER_DESCRIPTOR, "issues another wgmma than the first lane"},
        {TILES_NAMED, "named barrier 1 is of 96 threads"},
        {TILES_REGISTERS, "its threads have 75776 registers, and were launched with 64512"},
        {TILES_ODD_REGISTERS, "has not the registers of all of its warpgroup"},
        {TILES_CROOKED, "only tiles at multiples of 1024 bytes"},
    };

    for (size_t i = 0; i < LENGTH(faults); i++)
        expect(faults[i].fault, faults[i].words);
}

/* From here on kernels run in this process, which no probe is forked of then. */
TEST(a_fault_spoils_results)
{
    static const enum probe_fault faults[] = {TILES_EARLY_SUM, TILES_EARLY_RELEASE,
                                              TILES_NO_READ_WAIT};

    for (size_t i = 0; i < LENGTH(faults); i++)
        assert_int_not_equal(probe_run(faults[i]), 0);
}

/* Who was stopped for long finds what came meanwhile: after the clock there is one more look. */
TEST(a_row_that_came_before_the_last_look_is_found)
{
    assert_int_not_equal(probe_late_row(false), 0);
    assert_int_not_equal(probe_late_row(true), 0);
}

TEST(lanes_of_a_line_see_it_at_one_time)
{
    assert_int_equal(probe_torn_line(), 0);
}

/* One poll beyond that at which the clock is looked at, not as many as between two looks. */
TEST(a_word_that_never_came_is_given_up)
{
    assert_int_equal(probe_late_word() % 32, 1);
}
