/* Ranks as processes of this host.
 *
 * The parent only watches: it sleeps in poll() on a pidfd and an output pipe of each rank
 * and on stop_fd, and runs no rank itself. Ranks die with it (PR_SET_PDEATHSIG), leave no
 * file, and give their status as a last word in the control page, so that a rank which
 * exits without one is known to have died whatever its exit code. */
#include <errno.h>
#include <fcntl.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/syscall.h>
#include <sys/wait.h>
#include <unistd.h>

#include "plugin/builtin.h"
#include "launch/launch.h"
#include "launch/relay.h"

/* In builds with LeakSanitizer only: _exit() would skip its check. */
extern void __lsan_do_leak_check(void) __attribute__((weak));

struct config {
    int pin;
    bool prefix;
};

struct rank {
    pid_t pid; /* 0: not started, or reaped */
    int pidfd; /* -1: the kernel gave none, so waitpid() is asked every millisecond */
    bool killed;
    struct relay relay;
};

struct launch {
    const struct config *config;
    const struct epa_launch *asked;
    struct control *control;
    struct pin_plan pins;
    struct watch watch;
    struct rank *rank;   /* [ranks] */
    struct pollfd *poll; /* room for [1 + 2 * ranks]: stop_fd, pidfd and output of each */
    nfds_t polled;
    uint32_t live;
};

/* A shell shows it for a rank run by hand; the launcher goes by the last word. */
static int exit_code(enum epa_status status)
{
    return -(int)status & 0xff;
}

/* Output goes to the parent, input comes from nowhere, and signals of the terminal, which
 * reach ranks as well, are the parent's to judge. */
static void detach(int output)
{
    int null;

    dup2(output, STDOUT_FILENO);
    dup2(output, STDERR_FILENO);
    if (output > STDERR_FILENO)
        close(output);
    null = open("/dev/null", O_RDWR | O_CLOEXEC);
    if (null < 0 || dup2(null, STDIN_FILENO) < 0)
        close(STDIN_FILENO);
    if (null > STDERR_FILENO)
        close(null);
    signal(SIGINT, SIG_IGN);
    signal(SIGTERM, SIG_IGN);
    signal(SIGPIPE, SIG_IGN);
}

/* The parent's ends of this rank and of those that were started before it. */
static void close_inherited(const struct launch *launch, uint32_t rank)
{
    for (uint32_t r = 0; r <= rank; r++) {
        if (launch->rank[r].pidfd >= 0)
            close(launch->rank[r].pidfd);
        if (launch->rank[r].relay.from >= 0)
            close(launch->rank[r].relay.from);
    }
}

_Noreturn static void rank_process(const struct launch *launch, uint32_t rank, int output,
                                   pid_t parent)
{
    struct epa_world world = launch_world(launch->asked, &launch->pins, rank);
    struct bootstrap boot;
    enum epa_status status;

    /* A parent that died before prctl() sends nothing; then we have another one already. */
    if (prctl(PR_SET_PDEATHSIG, SIGKILL) != 0 || getppid() != parent)
        _exit(1);
    close_inherited(launch, rank);
    detach(output);
    launch_pin(&world);
    bootstrap_init(&boot, launch->control, &world, launch->asked->timeout_ns);
    status = launch->asked->rank_main(&boot.base, launch->asked->arg);
    bootstrap_return(&boot, status);
    fflush(stdout);
    fflush(stderr);
    if (__lsan_do_leak_check != NULL)
        __lsan_do_leak_check();
    _exit(exit_code(status)); /* not exit(): what the parent registered is the parent's */
}

static enum epa_status start_rank(struct launch *launch, uint32_t r)
{
    struct rank *rank = &launch->rank[r];
    pid_t parent = getpid(), pid;
    int ends[2], failed;

    if (pipe2(ends, O_CLOEXEC) != 0) {
        watch_failed(&launch->watch, EPA_ERR_SYSTEM, "pipe for the output of rank %u: %s",
                     r, strerror(errno));
        return EPA_ERR_SYSTEM;
    }
    fcntl(ends[0], F_SETFL, O_NONBLOCK);
    relay_init(&rank->relay, ends[0], r, launch->config->prefix);
    rank->pidfd = -1;
    pid = fork();
    failed = errno;
    if (pid == 0)
        rank_process(launch, r, ends[1], parent);
    close(ends[1]);
    if (pid < 0) {
        relay_finish(&rank->relay);
        watch_failed(&launch->watch, EPA_ERR_SYSTEM, "fork of rank %u: %s", r,
                     strerror(failed));
        return EPA_ERR_SYSTEM;
    }
    rank->pid = pid;
    rank->pidfd = (int)syscall(SYS_pidfd_open, pid, 0);
    launch->live++;
    return EPA_OK;
}

/* What came of a rank that is no more; `code` as waitpid() gave it. */
static void judge(struct launch *launch, uint32_t r, pid_t pid, int code)
{
    enum epa_status status = EPA_OK, before = launch->watch.first;
    bool word = control_returned(launch->control, r, &status);
    char who[64];

    snprintf(who, sizeof(who), "rank %u (pid %d)", r, (int)pid);
    if (WIFSIGNALED(code) && launch->rank[r].killed)
        watch_gave_up(&launch->watch, who);
    else if (WIFSIGNALED(code))
        watch_failed(&launch->watch, EPA_ERR_DIED, "%s was killed by signal %d (%s)", who,
                     WTERMSIG(code), strsignal(WTERMSIG(code)));
    else if (!word)
        watch_failed(&launch->watch, EPA_ERR_DIED, "%s left without a word (exit code %d)",
                     who, WEXITSTATUS(code));
    else if (WEXITSTATUS(code) != exit_code(status))
        watch_failed(&launch->watch, EPA_ERR_DIED,
                     "%s was done and then left with exit code %d", who, WEXITSTATUS(code));
    else
        watch_returned(&launch->watch, status);
    if (before != EPA_ERR_DIED && launch->watch.first == EPA_ERR_DIED &&
        launch->asked->lost != NULL)
        *launch->asked->lost = r;
}

static void reap(struct launch *launch, uint32_t r)
{
    struct rank *rank = &launch->rank[r];
    pid_t pid = rank->pid;
    enum epa_status status = EPA_OK;
    int code;
    pid_t got = waitpid(pid, &code, WNOHANG);

    if (got == 0 || (got < 0 && errno == EINTR))
        return;
    if (got < 0) { /* SIGCHLD is ignored and the kernel has reaped it: the word remains */
        (void)control_returned(launch->control, r, &status);
        code = exit_code(status) << 8;
    }
    judge(launch, r, pid, code); /* before its last words: others wait for it */
    relay_finish(&rank->relay);
    if (rank->pidfd >= 0)
        close(rank->pidfd);
    rank->pidfd = -1;
    rank->pid = 0;
    launch->live--;
}

static void add_poll(struct launch *launch, int fd)
{
    if (fd >= 0)
        launch->poll[launch->polled++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Until a rank ends or says something, the user wants to stop, or it is time to look. True
 * if ranks may have news. Only what is open is polled: poll() counts against the limit of
 * open files. */
static bool wait_for_news(struct launch *launch)
{
    int pause_ms = watch_pause_ms(&launch->watch), ready;
    bool stop = launch->watch.stop_fd >= 0, blind = false;

    launch->polled = 0;
    add_poll(launch, launch->watch.stop_fd);
    for (uint32_t r = 0; r < launch->asked->ranks; r++) {
        if (launch->rank[r].pid == 0)
            continue;
        add_poll(launch, launch->rank[r].pidfd);
        add_poll(launch, launch->rank[r].relay.from);
        blind |= launch->rank[r].pidfd < 0;
    }
    ready = poll(launch->poll, launch->polled, blind ? 1 : pause_ms);
    if (ready > 0 && stop)
        watch_stop(&launch->watch, launch->poll[0].revents);
    return ready != 0 || blind;
}

static void turn(struct launch *launch)
{
    bool news = wait_for_news(launch), over = watch_turn(&launch->watch);

    for (uint32_t r = 0; r < launch->asked->ranks; r++) {
        struct rank *rank = &launch->rank[r];

        if (rank->pid != 0 && news) {
            relay_turn(&rank->relay);
            reap(launch, r);
        }
        if (rank->pid != 0 && over && !rank->killed)
            rank->killed = kill(rank->pid, SIGKILL) == 0;
    }
}

static void finish(struct launch *launch)
{
    free(launch->poll);
    free(launch->rank);
    pin_plan_finish(&launch->pins);
    control_destroy(launch->control);
}

static enum epa_status init(struct launch *launch, struct epa_error *err)
{
    uint32_t ranks = launch->asked->ranks;
    enum epa_status status = control_create(ranks, &launch->control, err);

    if (status == EPA_OK)
        status = pin_plan_init(&launch->pins, (enum pin)launch->config->pin, ranks,
                               launch->asked->threads, err);
    if (status != EPA_OK)
        return status;
    launch->rank = calloc(ranks, sizeof(*launch->rank));
    launch->poll = calloc(1 + 2 * (size_t)ranks, sizeof(*launch->poll));
    if (launch->rank == NULL || launch->poll == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to watch %u ranks", ranks);
    watch_init(&launch->watch, launch->asked, launch->control, err);
    return EPA_OK;
}

static enum epa_status launch_fork(const void *config, const struct epa_launch *asked,
                                   struct epa_error *err)
{
    struct launch launch = {.config = config, .asked = asked};
    enum epa_status status = init(&launch, err);

    if (status == EPA_OK) {
        fflush(stdout); /* or ranks would print it again */
        fflush(stderr);
        for (uint32_t r = 0; r < asked->ranks && status == EPA_OK; r++)
            status = start_rank(&launch, r);
        while (launch.live > 0)
            turn(&launch);
        status = launch.watch.first;
    }
    finish(&launch);
    return status;
}

static const struct config defaults = {.pin = PIN_CORE, .prefix = true};
static const struct epa_option options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "where ranks run"},
    {.name = "prefix",
     EPA_BOOL(struct config, prefix),
     .help = "put the rank's number before each line of its standard error"},
    {0},
};

const struct epa_launcher_plugin launch_fork_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin),
               .name = "fork", .summary = "ranks are processes of this host",
               .options = {options, sizeof(struct config), &defaults}},
    .launch = launch_fork,
};
