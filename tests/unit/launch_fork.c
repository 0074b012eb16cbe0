/* What only processes can do: die in every way, be stopped, outlive their parent. */
#include <dirent.h>
#include <errno.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include <sched.h>
#include "test.h"
#include <signal.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "launch_status_page.h"

static const struct epa_launcher_plugin *const fork_launcher = &launch_fork_plugin;

static uint32_t open_files(void)
{
    DIR *dir = opendir("/proc/self/fd");
    uint32_t n = 0;

    assert_non_null(dir);
    while (readdir(dir) != NULL)
        n++;
    closedir(dir);
    return n;
}

static void assert_no_child(void)
{
    assert_int_equal(waitpid(-1, NULL, WNOHANG), -1);
    assert_int_equal(errno, ECHILD);
}

static enum epa_status meet_1000_times(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i <= 1000 && status == EPA_OK; i++) {
        __atomic_add_fetch(&status_page->count, 1, __ATOMIC_RELAXED);
        status = boot->barrier(boot);
        if (__atomic_load_n(&status_page->count, __ATOMIC_RELAXED) < i * boot->world.size)
            return EPA_ERR_MISMATCH;
    }
    return status;
}

TEST(eight_ranks_meet_1000_times_on_two_cores)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(8, meet_1000_times, status_page);
    struct epa_error err;
    cpu_set_t before, two;

    assert_int_equal(sched_getaffinity(0, sizeof(before), &before), 0);
    CPU_ZERO(&two);
    for (size_t i = 0; i < CPU_SETSIZE && CPU_COUNT(&two) < 2; i++) {
        if (CPU_ISSET(i, &before))
            CPU_SET(i, &two);
    }
    assert_int_equal(sched_setaffinity(0, sizeof(two), &two), 0);
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_OK);
    assert_int_equal(sched_setaffinity(0, sizeof(before), &before), 0);
    assert_int_equal(status_page->count, 8000);
    status_page_destroy(status_page);
}

static enum epa_status survive_signals(struct epa_bootstrap *boot, void *arg)
{
    char c;

    (void)boot, (void)arg;
    raise(SIGINT);
    raise(SIGTERM);
    raise(SIGHUP);
    raise(SIGPIPE);
    return read(STDIN_FILENO, &c, 1) == 0 ? EPA_OK : EPA_ERR_MISMATCH;
}

TEST(fork_ranks_ignore_the_terminal)
{
    struct epa_launch launch = launch_of(1, survive_signals, NULL);
    struct epa_error err;

    assert_int_equal(run(fork_launcher, &launch, &err), EPA_OK);
}

static enum epa_status rank_2_is_killed(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    status_page->pid[boot->world.rank] = getpid();
    if (boot->world.rank == 2)
        raise(SIGKILL);
    return wait_in_barrier(boot, status_page);
}

TEST(a_killed_rank_is_named_and_frees_the_others)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(4, rank_2_is_killed, status_page);
    uint32_t files = open_files();
    struct epa_error err;
    char text[128];

    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_DIED);
    snprintf(text, sizeof(text), "rank 2 (pid %d) was killed by signal 9 (Killed)",
             status_page->pid[2]);
    assert_string_equal(err.text, text);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(status_page->status[r], r == 2 ? EPA_AGAIN : EPA_ERR_ABORTED);
    assert_no_child();
    assert_int_equal(open_files(), files);
    status_page_destroy(status_page);
}

static enum epa_status rank_1_leaves(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 1)
        _exit(0);
    return wait_in_barrier(boot, arg);
}

TEST(a_rank_that_exits_with_0_and_no_word_has_died)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(2, rank_1_leaves, status_page);
    struct epa_error err;

    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_DIED);
    assert_non_null(strstr(err.text, "rank 1 (pid "));
    assert_non_null(strstr(err.text, ") left without a word (exit code 0)"));
    assert_int_equal(status_page->status[0], EPA_ERR_ABORTED);
    status_page_destroy(status_page);
}

static enum epa_status rank_1_stops(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    __atomic_store_n(&status_page->pid[boot->world.rank], getpid(), __ATOMIC_RELAXED);
    if (boot->world.rank == 1)
        raise(SIGSTOP);
    /* Its limit begins once rank 1 is there. */
    while (__atomic_load_n(&status_page->pid[1], __ATOMIC_RELAXED) == 0 && !epa_aborted(boot))
        usleep(1000);
    return wait_in_barrier(boot, status_page);
}

TEST(a_stopped_rank_is_killed_after_the_grace_and_not_called_dead)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(2, rank_1_stops, status_page);
    struct epa_error err;

    launch.grace_ns = 50000000;
    launch.timeout_ns = 50000000;
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_TIMEOUT);
    assert_string_equal(err.text, "");
    assert_int_equal(status_page->status[0], EPA_ERR_TIMEOUT);
    assert_int_equal(kill(status_page->pid[1], 0), -1);
    assert_no_child();
    status_page_destroy(status_page);
}

/* As a second signal does. */
static bool end_at_once(void *arg, enum epa_poll_reason why)
{
    bool *stopping = arg;

    *stopping = *stopping || why == EPA_POLL_STOPPING;
    return why == EPA_POLL_STOPPING;
}

TEST(who_looks_on_may_end_the_grace)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(2, rank_1_stops, status_page);
    struct epa_error err;
    bool stopping = false;
    int ends[2];

    assert_int_equal(pipe(ends), 0);
    assert_int_equal(write(ends[1], "x", 1), 1);
    launch.stop_fd = ends[0];
    launch.grace_ns = UINT64_MAX / 4; /* longer than any test may take */
    launch.poll_launch = end_at_once;
    launch.poll_arg = &stopping;
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_INTERRUPTED);
    assert_string_equal(err.text, "interrupted");
    assert_true(stopping);
    assert_no_child();
    close(ends[0]);
    close(ends[1]);
    status_page_destroy(status_page);
}

static enum epa_status rank_1_finds_wrong_data(struct epa_bootstrap *boot, void *arg)
{
    return boot->world.rank == 1 ? EPA_ERR_MISMATCH : wait_in_barrier(boot, arg);
}

static enum epa_status nothing(struct epa_bootstrap *boot, void *arg)
{
    (void)arg;
    return boot->barrier(boot);
}

/* Room for some ranks' pipes and pidfds, not for all; those that run wait for the others. */
TEST(a_launch_that_cannot_start_all_ranks_ends_those_it_started)
{
    struct epa_launch launch = launch_of(8, nothing, NULL);
    struct rlimit before, low;
    uint32_t files = open_files();
    enum epa_status status;
    struct epa_error err;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = files + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    status = run(fork_launcher, &launch, &err);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_int_equal(status, EPA_ERR_SYSTEM);
    assert_non_null(strstr(err.text, "pipe for the output of rank "));
    assert_non_null(strstr(err.text, "Too many open files"));
    assert_no_child();
    assert_int_equal(open_files(), files);
}

static void refuse_pidfd_open(void)
{
    struct sock_filter code[] = {
        BPF_STMT(BPF_LD | BPF_W | BPF_ABS, offsetof(struct seccomp_data, nr)),
        BPF_JUMP(BPF_JMP | BPF_JEQ | BPF_K, SYS_pidfd_open, 0, 1),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ERRNO | ENOSYS),
        BPF_STMT(BPF_RET | BPF_K, SECCOMP_RET_ALLOW),
    };
    struct sock_fprog program = {LENGTH(code), code};

    if (prctl(PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0) != 0 ||
        prctl(PR_SET_SECCOMP, SECCOMP_MODE_FILTER, &program) != 0)
        _exit(77);
}

TEST(a_kernel_without_pidfd_will_do)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(3, rank_2_is_killed, status_page);
    struct epa_error err;
    int code;
    pid_t pid = fork();

    if (pid == 0) {
        refuse_pidfd_open();
        _exit(run(fork_launcher, &launch, &err) == EPA_ERR_DIED ? 0 : 1);
    }
    assert_int_equal(waitpid(pid, &code, 0), pid);
    assert_true(WIFEXITED(code));
    assert_int_equal(status_page->status[0], EPA_ERR_ABORTED);
    status_page_destroy(status_page);
    if (WEXITSTATUS(code) == 77) {
        print_message("seccomp filters are not allowed here\n");
        skip();
    }
    assert_int_equal(WEXITSTATUS(code), 0);
}

TEST(ignored_sigchld_loses_no_status)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(3, rank_1_finds_wrong_data, status_page);
    struct epa_error err;

    signal(SIGCHLD, SIG_IGN);
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_MISMATCH);
    launch.rank_main = rank_2_is_killed;
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_ERR_DIED);
    signal(SIGCHLD, SIG_DFL);
    status_page_destroy(status_page);
}

static enum epa_status sleep_for_ever(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    if (boot->barrier(boot) == EPA_OK && write(status_page->pipe_end, "x", 1) == 1) {
        for (;;)
            pause();
    }
    return EPA_ERR_SYSTEM;
}

/* Ranks hold the write end of a pipe, so its end of file is their death. */
TEST(no_rank_outlives_a_killed_launcher)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(4, sleep_for_ever, status_page);
    struct epa_error err;
    char c[4];
    int ends[2];
    pid_t pid;

    assert_int_equal(pipe(ends), 0);
    status_page->pipe_end = ends[1];
    pid = fork();
    if (pid == 0)
        _exit(run(fork_launcher, &launch, &err) == EPA_OK);
    close(ends[1]);
    for (uint32_t r = 0; r < 4; r++)
        assert_int_equal(read(ends[0], c, 1), 1);
    assert_int_equal(kill(pid, SIGKILL), 0);
    assert_int_equal(read(ends[0], c, 1), 0);
    assert_int_equal(waitpid(pid, NULL, 0), pid);
    close(ends[0]);
    status_page_destroy(status_page);
}

static uint32_t *exits; /* atexit() takes no argument */

static void count_exit(void)
{
    if (exits != NULL)
        __atomic_add_fetch(exits, 1, __ATOMIC_RELAXED);
}

TEST(ranks_do_not_run_what_the_parent_registered_for_exit)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(3, nothing, NULL);
    struct epa_error err;

    exits = &status_page->at_exit;
    assert_int_equal(atexit(count_exit), 0);
    assert_int_equal(run(fork_launcher, &launch, &err), EPA_OK);
    exits = NULL;
    assert_int_equal(status_page->at_exit, 0);
    status_page_destroy(status_page);
}
