/* Tests that the emulator finds faults of kernels, either by a message that ends the process (each
 * such probe runs in its own process) or by wrong results. gpu/gemm.c, tests/oracle/layer.py and
 * all runs of `epa2a verify` on CPUs show that correct kernels pass. A wait polls once more after
 * its time limit, since its thread may not have had a core for that long. */
#include <sys/wait.h>
#include <unistd.h>

#include "../../unit/test.h"
#include "probe.h"

/* Runs a fault in its own process, which must fail with `words` on standard error, or succeed
 * without output if there are no words. */
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

TEST(a_fault_is_reported)
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

/* From here on kernels run in this process, which can no longer fork probes. */
TEST(a_fault_spoils_results)
{
    static const enum probe_fault faults[] = {TILES_EARLY_SUM, TILES_EARLY_RELEASE,
                                              TILES_NO_READ_WAIT};

    for (size_t i = 0; i < LENGTH(faults); i++)
        assert_int_not_equal(probe_run(faults[i]), 0);
}

/* A thread that was stopped for long finds rows that arrived meanwhile: it polls once more after
 * the time limit. */
TEST(a_row_that_arrived_before_the_last_poll_is_found)
{
    assert_int_not_equal(probe_late_row(false), 0);
    assert_int_not_equal(probe_late_row(true), 0);
}

TEST(lanes_of_a_line_see_it_at_one_time)
{
    assert_int_equal(probe_torn_line(), 0);
}

/* A pause counts as two of four parts of the time limit at most. */
TEST(a_wait_does_not_count_the_pause_of_its_host)
{
    assert_true(probe_suspended_word() >= 0.5);
}

TEST(a_wait_does_not_count_the_pause_of_its_thread)
{
    assert_int_equal(probe_stalled_word(), 0);
}

/* The wait polls once after the poll that reads the clock, not as often as between two clock
 * reads. */
TEST(a_wait_for_a_missing_word_times_out)
{
    assert_int_equal(probe_late_word() % 32, 1);
}
