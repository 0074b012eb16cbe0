/* Tests of the process launcher `fork` that need its internals: limits of waits, output of a dying
 * rank, a launch that cannot start, and kernels that lack a system call. tests/faults and
 * tests/contract launch the program itself. */
#include <dirent.h>
#include <errno.h>
#include <fcntl.h>
#include <linux/filter.h>
#include <linux/seccomp.h>
#include "test.h"
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "boot/bootstrap.h"
#include "launch/relay.h"
#include "launch/program_registry.h"

enum { MOST = 8 };

/* Memory that all ranks of a test share under any launcher. */
struct status_page {
    enum epa_status status[MOST];
    uint32_t at_exit;
};

static struct status_page *status_page_create(void)
{
    struct status_page *status_page =
        mmap(NULL, sizeof(*status_page), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(status_page, MAP_FAILED);
    for (uint32_t r = 0; r < MOST; r++)
        status_page->status[r] = EPA_AGAIN;
    return status_page;
}

static struct epa_launch
launch_of(uint32_t ranks, enum epa_status (*rank_main)(struct epa_bootstrap *, void *), void *arg)
{
    return (struct epa_launch){.ranks = ranks,
                               .threads = 1,
                               .stop_fd = -1,
                               .grace_ns = 20000000000,
                               .rank_main = rank_main,
                               .arg = arg};
}

static const struct epa_launcher_plugin *const fork_launcher = &launch_fork_plugin;

static enum epa_status run(const struct epa_launch *launch)
{
    return fork_launcher->launch(fork_launcher->plugin.options.defaults, launch, test_error());
}

static enum epa_status wait_in_barrier(struct epa_bootstrap *boot, void *arg)
{
    struct status_page *status_page = arg;

    status_page->status[boot->world.rank] = boot->barrier(boot);
    return status_page->status[boot->world.rank];
}

/* ---- time limit of a wait for a rank ---- */

/* Forks a process that registers as rank 1 of `control`, reports readiness, and then computes or
 * sleeps. */
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

/* Returns the number of limits until the wait for a rank fails, at most 5. The test advances the
 * time itself: one limit passes while a working rank gets a core for a tenth of it, independent of
 * the load of the machine. */
static uint32_t waits_in_vain(bool works)
{
    struct wait_limit wait = {.limit_ns = 200000000};
    struct control *control;
    uint32_t limits = 0;
    uint64_t now = 1;
    bool expired = false;
    pid_t pid;

    assert_int_equal(control_create(2, &control, NULL), EPA_OK);
    pid = other_rank(control, works);
    (void)wait_limit_expired(&wait, control, 1, now);
    while (!expired && limits < 5) {
        uint64_t until = cpu_ns_of(pid) + wait.limit_ns / 10;

        while (works && cpu_ns_of(pid) < until)
            usleep(1000);
        for (uint32_t part = 0; part <= EPA_WAIT_PAUSE_PART && !expired; part++) {
            now += wait.limit_ns / EPA_WAIT_PAUSE_PART;
            expired = wait_limit_expired(&wait, control, 1, now);
        }
        limits++;
    }
    kill(pid, SIGKILL);
    waitpid(pid, NULL, 0);
    control_destroy(control);
    return limits;
}

TEST(a_rank_that_uses_a_core_gets_more_time_than_a_sleeping_one)
{
    assert_int_equal(waits_in_vain(true), 5);
    assert_int_equal(waits_in_vain(false), 1);
}

TEST(pause_between_two_polls_is_no_waiting_time)
{
    struct wait_limit wait = {.limit_ns = 200000000};
    struct control *control;
    uint64_t now = 1, begun = epa_now_ns() - 1000000000, waited;

    assert_int_equal(control_create(2, &control, NULL), EPA_OK);
    (void)wait_limit_expired(&wait, control, 1, now);
    for (uint32_t i = 0; i < EPA_WAIT_PAUSE_PART; i++) {
        now += 10 * wait.limit_ns;
        assert_false(wait_limit_expired(&wait, control, 1, now));
    }
    assert_true(wait_limit_expired(&wait, control, 1, now + 1));
    assert_int_equal(wait.waited_ns, wait.limit_ns + 1);
    control_destroy(control);
    waited = epa_waited_ns(&begun, 1000000, wait.limit_ns);
    assert_int_equal(waited, 1000000 + wait.limit_ns / EPA_WAIT_PAUSE_PART);
}

/* ---- processes: signals, exit handlers, death ---- */

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

/* Ranks ignore the signals that a terminal sends to the whole group, and do not run exit handlers
 * of the parent. */
static enum epa_status survive_signals(struct epa_bootstrap *boot, void *arg)
{
    char c;

    raise(SIGINT);
    raise(SIGTERM);
    raise(SIGHUP);
    raise(SIGPIPE);
    return read(STDIN_FILENO, &c, 1) == 0 ? EPA_OK : EPA_ERR_MISMATCH;
}

static enum epa_status rank_1_is_killed(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 1)
        raise(SIGKILL);
    return wait_in_barrier(boot, arg);
}

static enum epa_status rank_1_leaves(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 1)
        _exit(0);
    return wait_in_barrier(boot, arg);
}

static enum epa_status rank_1_is_wrong(struct epa_bootstrap *boot, void *arg)
{
    return boot->world.rank == 1 ? EPA_ERR_MISMATCH : wait_in_barrier(boot, arg);
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

static void ignore_children(void)
{
    signal(SIGCHLD, SIG_IGN);
}

static uint32_t *exits; /* global, since atexit() takes no argument */

static void count_exit(void)
{
    __atomic_add_fetch(exits, 1, __ATOMIC_RELAXED);
}

static void count_exits(void)
{
    if (atexit(count_exit) != 0)
        _exit(1);
}

/* Each case runs in a process of its own, whose state `before` changes. */
TEST(the_status_of_a_rank_does_not_depend_on_state_of_the_parent)
{
    static const struct {
        const char *label;
        void (*before)(void);
        enum epa_status (*rank_main)(struct epa_bootstrap *, void *);
        enum epa_status status;
        const char *words;
    } cases[] = {
        {"signals", count_exits, survive_signals, EPA_OK, ""},
        {"killed, no pidfd", refuse_pidfd_open, rank_1_is_killed, EPA_ERR_DIED, "rank 1 (pid "},
        {"killed, SIGCHLD ignored", ignore_children, rank_1_is_killed, EPA_ERR_DIED,
         "rank 1 (pid "},
        {"wrong, SIGCHLD ignored", ignore_children, rank_1_is_wrong, EPA_ERR_MISMATCH, ""},
        {"left", NULL, rank_1_leaves, EPA_ERR_DIED, " exited without a status (exit code 0)"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct status_page *status_page = status_page_create();
        struct epa_launch launch = launch_of(3, cases[i].rank_main, status_page);
        struct epa_error err = {EPA_OK, ""};
        int code;
        pid_t pid;

        exits = &status_page->at_exit;
        pid = fork();
        if (pid == 0) {
            if (cases[i].before != NULL)
                cases[i].before();
            /* No assertion here: a failed one would continue with the next test in the child. */
            if (fork_launcher->launch(fork_launcher->plugin.options.defaults, &launch, &err) ==
                    cases[i].status &&
                strstr(err.text, cases[i].words) != NULL)
                _exit(0);
            print_error("%s: %s\n", cases[i].label, err.text);
            _exit(1);
        }
        assert_int_equal(waitpid(pid, &code, 0), pid);
        if (!WIFEXITED(code) || (WEXITSTATUS(code) != 0 && WEXITSTATUS(code) != 77))
            fail_msg("%s: %x", cases[i].label, code);
        assert_int_equal(status_page->at_exit, 0);
        assert_true(cases[i].rank_main == survive_signals || WEXITSTATUS(code) == 77 ||
                    status_page->status[0] == EPA_ERR_ABORTED);
        munmap(status_page, sizeof(*status_page));
    }
}

/* Two ranks that end as `signal` states, at a time when the launcher watches neither. */
struct ends {
    uint32_t signal[2]; /* signal of each rank; 0: it returns EPA_ERR_DIED as if a peer were lost */
    pid_t pid[2];
    uint32_t ready, go;
};

static enum epa_status end_with_signal(struct epa_bootstrap *boot, void *arg)
{
    struct ends *ends = arg;
    uint32_t signal = ends->signal[boot->world.rank];

    ends->pid[boot->world.rank] = getpid();
    __atomic_add_fetch(&ends->ready, 1, __ATOMIC_RELEASE);
    while (__atomic_load_n(&ends->go, __ATOMIC_ACQUIRE) == 0)
        usleep(1000);
    if (signal != 0)
        raise((int)signal);
    return EPA_ERR_DIED;
}

static bool wait_for_both(void *arg, enum epa_poll_reason why)
{
    struct ends *ends = arg;
    siginfo_t info;

    if (__atomic_load_n(&ends->ready, __ATOMIC_ACQUIRE) < 2 || ends->go != 0)
        return false;
    __atomic_store_n(&ends->go, 1, __ATOMIC_RELEASE);
    for (uint32_t r = 0; r < 2; r++)
        (void)waitid(P_PID, (id_t)ends->pid[r], &info, WEXITED | WNOWAIT);
    return false;
}

/* A launcher that had no core for a while finds several dead ranks at once. The report must name
 * the rank that crashed first, since the others died of that crash. */
TEST(the_rank_that_crashed_is_named_among_several_dead_ranks)
{
    static const struct {
        uint32_t signal[2], blamed;
        const char *words;
    } cases[] = {
        {{SIGABRT, SIGKILL}, 1, "rank 1 (pid .. by signal 9"},
        {{SIGABRT, SIGABRT}, 0, "rank 0 (pid .. by signal 6 .. rank 1 (pid .. by signal 6"},
        {{0, SIGABRT}, 1, "rank 1 (pid .. by signal 6"},
    };

    for (size_t i = 0; i < LENGTH(cases); i++) {
        struct ends *ends =
            mmap(NULL, sizeof(*ends), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
        struct epa_launch launch = launch_of(2, end_with_signal, ends);
        uint32_t failed_rank = UINT32_MAX;

        assert_ptr_not_equal(ends, MAP_FAILED);
        memcpy(ends->signal, cases[i].signal, sizeof(ends->signal));
        launch.poll_launch = wait_for_both;
        launch.poll_arg = ends;
        launch.failed_rank = &failed_rank;
        assert_status(run(&launch), EPA_ERR_DIED, cases[i].words);
        assert_int_equal(failed_rank, cases[i].blamed);
        munmap(ends, sizeof(*ends));
    }
}

/* The limit allows the pipes and pidfds of some ranks but not of all; the started ranks wait for
 * the others. */
TEST(a_launch_that_cannot_start_all_ranks_ends_those_it_started)
{
    struct status_page *status_page = status_page_create();
    struct epa_launch launch = launch_of(8, wait_in_barrier, status_page);
    struct rlimit before, low;
    uint32_t files = open_files();
    enum epa_status status;

    assert_int_equal(getrlimit(RLIMIT_NOFILE, &before), 0);
    low = before;
    low.rlim_cur = files + 8;
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &low), 0);
    status = run(&launch);
    assert_int_equal(setrlimit(RLIMIT_NOFILE, &before), 0);
    assert_status(status, EPA_ERR_SYSTEM, "pipe for the output of rank .. Too many open files");
    assert_no_child();
    assert_int_equal(open_files(), files);
    munmap(status_page, sizeof(*status_page));
}

/* ---- output of ranks through the launcher ---- */

/* Redirects standard error to a memory file, which read_stderr() copies to `text`. */
static int catch_stderr(int *saved)
{
    int file = memfd_create("stderr", MFD_CLOEXEC);

    assert_true(file >= 0);
    *saved = dup(STDERR_FILENO);
    dup2(file, STDERR_FILENO);
    return file;
}

static void read_stderr(int file, int saved, char *text, size_t room)
{
    ssize_t n = pread(file, text, room - 1, 0);

    dup2(saved, STDERR_FILENO);
    close(saved);
    close(file);
    assert_true(n >= 0);
    text[n] = '\0';
}

static void write_stderr(const char *text)
{
    if (write(STDERR_FILENO, text, strlen(text)) < 0)
        _exit(99);
}

static enum epa_status speak_and_die(struct epa_bootstrap *boot, void *arg)
{
    if (boot->world.rank == 0)
        write_stderr("one\n\ntwo");
    if (boot->world.rank == 1) {
        printf("to stdout\n");
        fflush(stdout);
        write_stderr("last words");
        raise(SIGKILL);
    }
    return boot->barrier(boot) == EPA_OK ? EPA_OK : EPA_ERR_ABORTED;
}

/* Runs with and without the option prefix. */
TEST(lines_have_a_prefix_and_the_output_of_dead_ranks_is_kept)
{
    const struct epa_options *options = &fork_launcher->plugin.options;

    for (uint32_t prefix = 0; prefix < 2; prefix++) {
        struct epa_launch launch = launch_of(1 + prefix, speak_and_die, NULL);
        char text[512], config[64];
        int saved, file = catch_stderr(&saved);
        enum epa_status status;

        memcpy(config, options->defaults, options->size);
        for (const struct epa_option *o = options->table; o->name != NULL; o++)
            if (strcmp(o->name, "prefix") == 0)
                memcpy(config + o->offset, &(bool){prefix != 0}, sizeof(bool));
        status = fork_launcher->launch(config, &launch, NULL);
        read_stderr(file, saved, text, sizeof(text));
        assert_int_equal(status, prefix != 0 ? EPA_ERR_DIED : EPA_OK);
        if (prefix == 0) {
            assert_string_equal(text, "one\n\ntwo");
            continue;
        }
        assert_words(text, "[rank 0] one\n .. [rank 0] \n .. [rank 0] two\n");
        assert_words(text, "[rank 1] to stdout\n .. [rank 1] last words\n");
    }
}

/* The reader of standard error may have stopped. The launcher continues, drops lines, and relays
 * new ones once the pipe has room again. */
TEST(a_launcher_continues_without_a_reader_of_its_output)
{
    static char line[100], text[1 << 17];
    int from[2], out[2], saved = dup(STDERR_FILENO);
    struct relay relay;
    ssize_t n;

    assert_int_equal(pipe2(from, O_NONBLOCK), 0);
    assert_int_equal(pipe2(out, O_NONBLOCK), 0);
    while (write(out[1], "x", 1) == 1)
        continue;
    assert_int_equal(fcntl(out[1], F_SETFL, 0), 0);
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (uint32_t i = 0; i < 100; i++)
        assert_int_equal(write(from[1], line, sizeof(line)), sizeof(line));
    relay_init(&relay, from[0], 7, true);
    alarm(60); /* limits a launcher that blocks */
    dup2(out[1], STDERR_FILENO);
    relay_turn(&relay);
    assert_true(read(out[0], text, sizeof(text)) > 0);
    assert_int_equal(write(from[1], "again\n", 6), 6);
    relay_turn(&relay);
    dup2(saved, STDERR_FILENO);
    alarm(0);
    n = read(out[0], text, sizeof(text) - 1);
    assert_true(n > 0);
    text[n] = '\0';
    assert_string_equal(text, "[rank 7] again\n");
    close(from[1]);
    relay_finish(&relay);
    close(out[0]);
    close(out[1]);
    close(saved);
}

/* The pipe contains more than one turn of the relay reads, since a rank may write between the last
 * turn and its death. A second writer keeps the pipe open. */
TEST(the_whole_pipe_is_relayed_at_the_end)
{
    static char line[1000], text[100000];
    struct relay relay;
    size_t written = 0, seen = 0;
    int ends[2], saved, file;

    assert_int_equal(pipe2(ends, O_NONBLOCK), 0);
    memset(line, 'x', sizeof(line));
    line[sizeof(line) - 1] = '\n';
    for (ssize_t n; (n = write(ends[1], line, sizeof(line))) > 0;)
        written += (size_t)n;
    file = catch_stderr(&saved);
    relay_init(&relay, ends[0], 7, false);
    relay_finish(&relay);
    read_stderr(file, saved, text, sizeof(text));
    for (const char *c = text; *c != '\0'; c++)
        seen += *c == 'x' || *c == '\n';
    assert_int_equal(seen, written);
    assert_int_equal(relay.from, -1);
    close(ends[1]);
}
