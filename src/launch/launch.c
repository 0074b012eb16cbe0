/* Watches ranks: processes (fork), or threads of this process, whose heaps have different addresses, so
 * that ThreadSanitizer detects races between ranks (it cannot between processes).
 *
 * The launching thread runs no rank: it sleeps in poll() on stop_fd, a pidfd and an output pipe of each
 * process, an eventfd that ranks write, and the connections of a launcher to ranks of other processes.
 * The verdict is the first failure other than ABORTED, or the death that caused it. A failure or a
 * request to stop aborts all ranks and starts the grace period, after which processes are killed. A
 * thread cannot be killed: the launch reports it and leaves it behind. The last user, this thread or the
 * launching thread, frees the launch. */
#include "launch/launch.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "launch/launcher.h"

enum { POLL_MS = 100 }; /* only polling detects a rank that raises `aborted` and then hangs */

/* ---- end of a launch ---- */

void launch_fail(struct launch *l, struct conn_word word)
{
    uint64_t now = epa_now_ns();

    control_abort(l->control);
    l->abort_known = true;
    if (l->failure.status == EPA_OK)
        l->failed_ns = now;
    conn_blame(&l->failure, &word, now - l->failed_ns);
    if (l->launcher != NULL)
        launcher_report(l->launcher, &word);
}

enum epa_status launch_report(const struct launch *l, const struct conn_word *verdict,
                              struct epa_error *err)
{
    if (verdict->status == EPA_ERR_DIED && l->asked.failed_rank != NULL)
        *l->asked.failed_rank = verdict->rank;
    if (verdict->status != EPA_OK && verdict->text[0] != 0)
        (void)epa_fail(err, (enum epa_status)verdict->status, "%s", verdict->text);
    return (enum epa_status)verdict->status;
}

/* rank_main() of a rank has returned `status`. */
static void rank_returned(struct launch *l, enum epa_status status)
{
    if (status != EPA_OK)
        launch_fail(l, conn_word_of(status, "%s", "")); /* the rank has recorded the reason */
    else if (l->launcher != NULL)
        launcher_report(l->launcher, &(struct conn_word){.rank = UINT32_MAX});
    else if (l->first_ns == 0)
        l->first_ns = epa_now_ns();
}

static void fail_by_grace(struct launch *l, const char *who)
{
    launch_fail(l, conn_word_of(EPA_ERR_TIMEOUT,
                                "%s did not return within %.3g s of the request to stop", who,
                                (double)l->asked.grace_ns * 1e-9));
}

static void check_stop(struct launch *l, short revents)
{
    struct conn_word word = conn_word_of(EPA_ERR_INTERRUPTED, "interrupted");
    sigset_t pending;

    if (revents == 0)
        return;
    l->stop_fd = -1;
    l->stopping = (revents & (POLLIN | POLLHUP)) != 0;
    if (!l->stopping)
        return;
    /* The signal that requested the stop stays pending for the reader of stop_fd. */
    word.signal = sigpending(&pending) == 0 && (sigismember(&pending, SIGTERM) == 1 ||
                                                sigismember(&pending, SIGHUP) == 1)
                      ? SIGTERM
                      : SIGINT;
    launch_fail(l, word);
}

void launch_share_signal(uint32_t number)
{
    struct timespec now = {0, 0};
    sigset_t blocked, both;

    sigemptyset(&both);
    sigaddset(&both, SIGINT);
    sigaddset(&both, SIGTERM);
    sigaddset(&both, SIGHUP);
    if ((number != SIGINT && number != SIGTERM) || sigprocmask(SIG_BLOCK, NULL, &blocked) != 0 ||
        sigismember(&blocked, SIGINT) != 1 || sigismember(&blocked, SIGTERM) != 1)
        return;
    while (sigtimedwait(&both, NULL, &now) > 0)
        continue;
    (void)kill(getpid(), (int)number);
}

static uint32_t missing_rank(const struct launch *l)
{
    enum epa_status status;
    uint32_t rank = 0;

    while (rank + 1 < l->asked.ranks && control_returned(l->control, rank, &status))
        rank++;
    return rank;
}

static void check_time(struct launch *l)
{
    uint64_t now = epa_now_ns(), pause_ns = epa_pause_ns(&l->polled_ns, now, l->asked.grace_ns);
    enum epa_poll_reason why = l->stopping ? EPA_POLL_STOPPING : EPA_POLL;
    bool at_once = l->asked.poll_launch != NULL && l->asked.poll_launch(l->asked.poll_arg, why);

    if (l->first_ns != 0 && wait_limit_expired(&l->last, l->control, missing_rank(l), now)) {
        l->first_ns = 0;
        launch_fail(l, conn_word_of(EPA_ERR_TIMEOUT,
                                    "rank %u did not return within %.3g s of the first that did",
                                    missing_rank(l), (double)l->last.waited_ns * 1e-9));
    }
    if (!control_aborted(l->control))
        return;
    l->grace_end_ns += l->grace_end_ns != 0 ? pause_ns : 0;
    if (l->grace_end_ns == 0) /* no grace before rendezvous: mpirun kills this process in 1 s */
        l->grace_end_ns = l->meeting ? now : now + l->asked.grace_ns;
    l->grace_over = at_once || now >= l->grace_end_ns;
}

static int pause_ms(const struct launch *l, bool blind)
{
    uint64_t now = epa_now_ns(), end = now + POLL_MS * 1000000ull;

    if (blind)
        return 1;
    if (l->pause_ms != 0)
        return l->pause_ms;
    if (l->grace_end_ns != 0 && l->grace_end_ns < end)
        end = l->grace_end_ns;
    return end <= now ? 1 : (int)((end - now + 999999) / 1000000);
}

/* ---- a rank ---- */

void launch_find_neighbours(struct epa_world *world)
{
    for (uint32_t r = 0; r < world->size; r++) {
        world->local_rank += epa_same_node(world, r) && r < world->rank;
        world->local_size += epa_same_node(world, r);
    }
}

enum epa_status launch_run_rank(struct launch *l, struct epa_world *world, int wake)
{
    struct bootstrap boot;
    enum epa_status status;

    pin_rank(world);
    bootstrap_init(&boot, l->control, world, l->asked.timeout_ns);
    boot.wake_fd = wake;
    status = l->asked.rank_main(&boot.base, l->asked.arg);
    fflush(stdout);
    fflush(stderr);
    control_return(l->control, world->rank, status);
    return status;
}

static enum epa_status run_local(const struct launch_rank *rank)
{
    struct launch *l = rank->launch;
    struct epa_world world = {.rank = rank->number, .size = l->asked.ranks, .node = l->node};

    launch_find_neighbours(&world);
    /* Each node of a host gets its share of the cores. A rank compares the share with local_size and
     * thus yields exactly if the host has more ranks than cores. */
    world.local_cores = (uint32_t)((uint64_t)l->pins.cores * world.local_size / world.size);
    if (world.local_cores == 0)
        world.local_cores = 1;
    world.cores = pin_plan_rank(&l->pins, world.rank, &world.core);
    return launch_run_rank(l, &world, -1);
}

/* ---- processes ---- */

bool launch_start_process(struct launch_rank *rank, int (*run)(void *rank))
{
    struct launch *l = rank->launch;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    fflush(stdout); /* otherwise the rank would print the buffer again */
    fflush(stderr);
    status = process_start(&rank->process, rank->number, l->prefix, run, rank, &err);
    if (status != EPA_OK) {
        launch_fail(l, conn_word_of(status, "%s", err.text));
        return false;
    }
    rank->process.relay.asked = &l->asked;
    launch_set_live(rank, true);
    return true;
}

static int process_main(void *arg)
{
    struct launch_rank *rank = arg;

    for (struct launch_rank *r = rank->launch->rank; r <= rank; r++)
        process_close_inherited(&r->process);
    return process_code(run_local(rank));
}

/* Evaluates the end of a rank's process; `code` as of waitpid(). A kept process must not end, and its
 * rank has already reported its return. */
static void evaluate_end(struct launch_rank *rank, int code)
{
    struct launch *l = rank->launch;
    enum epa_status word = EPA_OK;
    bool has_word = control_returned(l->control, rank->number, &word) && !l->kept;
    uint32_t number = WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0;
    struct timespec now;
    char who[128];

    clock_gettime(CLOCK_REALTIME, &now);
    snprintf(who, sizeof(who), "rank %u (%s%.64s%spid %d)", rank->number,
             l->host != NULL ? "host " : "", l->host != NULL ? l->host : "",
             l->host != NULL ? ", " : "", (int)rank->process.pid);
    if (number != 0 && rank->process.killed) {
        if (l->meeting)
            launch_fail(l, conn_word_of(EPA_ERR_TIMEOUT, "%s was not ready in time", who));
        else
            fail_by_grace(l, who);
    } else if (number == 0 && has_word && WEXITSTATUS(code) == process_code(word)) {
        rank_returned(l, word);
    } else {
        l->death = number != 0
                       ? conn_word_of(EPA_ERR_DIED, "%s was killed by signal %u (%s)", who, number,
                                      strsignal((int)number))
                       : conn_word_of(EPA_ERR_DIED,
                                      has_word ? "%s returned and then exited with code %d"
                                               : "%s exited without a status (exit code %d)",
                                      who, WEXITSTATUS(code));
        l->death.rank = rank->number;
        l->death.signal = number;
        l->death.died_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
        launch_fail(l, l->death);
    }
}

/* Relays the output of a rank's process and checks for its return or end. */
static void check_process(struct launch_rank *rank)
{
    struct launch *l = rank->launch;
    enum epa_status word = EPA_OK;
    bool returned = control_returned(l->control, rank->number, &word);
    int code;

    if (rank->process.pid == 0)
        return;
    relay_turn(&rank->process.relay);
    if (process_ended(&rank->process, word, &code)) {
        evaluate_end(rank, code); /* before the last output, since other ranks wait for the abort */
        process_finish(&rank->process);
        launch_set_live(rank, false);
    } else if (returned && rank->live && l->kept) {
        launch_set_live(rank, false);
        rank_returned(l, word);
    }
}

/* ---- threads ---- */

static void *thread_main(void *arg)
{
    struct launch_rank *rank = arg;
    struct launch *l = rank->launch;

    (void)run_local(rank);
    eventfd_write(l->wake, 1);
    launch_release(l);
    return NULL;
}

static int start_thread(struct launch_rank *rank, const pthread_attr_t *attr)
{
    struct launch *l = rank->launch;
    int failed;

    __atomic_add_fetch(&l->users, 1, __ATOMIC_RELAXED);
    failed = pthread_create(&rank->thread, attr, thread_main, rank);
    launch_set_live(rank, failed == 0);
    if (failed != 0)
        launch_release(l);
    return failed;
}

static void start_threads(struct launch *l)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    const size_t stack_bytes = 8 << 20;
    pthread_attr_t attr;
    sigset_t all, before;
    int failed = pthread_attr_init(&attr);

    if (failed == 0)
        failed = pthread_attr_setstacksize(&attr, stack_bytes);
    /* Only the launching thread receives signals, except signals of faults. */
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (uint32_t r = 0; r < l->n && failed == 0; r++)
        failed = start_thread(&l->rank[r], &attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed != 0)
        launch_fail(l, conn_word_of(EPA_ERR_SYSTEM, "thread for rank %u: %s%s%s", l->live,
                                    strerror(failed), memory_limit(), process_limit(failed)));
}

static void check_thread(struct launch_rank *rank)
{
    enum epa_status status;

    if (!rank->live || !control_returned(rank->launch->control, rank->number, &status))
        return;
    pthread_join(rank->thread, NULL);
    launch_set_live(rank, false);
    rank_returned(rank->launch, status);
}

static void leak_thread(struct launch_rank *rank)
{
    struct launch *l = rank->launch;
    char who[32];

    pthread_detach(rank->thread);
    if (l->asked.leaked_ranks != NULL)
        ++*l->asked.leaked_ranks;
    snprintf(who, sizeof(who), "rank %u", rank->number);
    fail_by_grace(l, who);
}

/* ---- the loop ---- */

/* Adds open descriptors only, since poll() counts all entries against the limit of open files. */
static nfds_t add_poll(struct launch *l, nfds_t n, int fd)
{
    if (fd >= 0)
        l->poll[n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    return n;
}

static void poll_once(struct launch *l)
{
    bool stop = l->stop_fd >= 0, blind = false;
    nfds_t own = add_poll(l, add_poll(l, 0, l->stop_fd), l->wake), all;
    eventfd_t count;

    for (uint32_t r = 0; r < l->n; r++) {
        const struct process *process = &l->rank[r].process;

        own = add_poll(l, add_poll(l, own, process->pidfd), process->relay.from);
        blind |= process->pid != 0 && process->pidfd < 0; /* a kernel without pidfd */
    }
    all = own + (l->launcher != NULL ? launcher_polls(l->launcher, l->poll + own) : 0);
    if (poll(l->poll, all, pause_ms(l, blind)) < 0)
        for (nfds_t i = 0; i < all; i++)
            l->poll[i].revents = 0;
    if (stop)
        check_stop(l, l->poll[0].revents);
    if (l->wake >= 0)
        (void)eventfd_read(l->wake, &count);
    for (uint32_t r = 0; r < l->n; r++)
        (l->threads ? check_thread : check_process)(&l->rank[r]);
    if (l->launcher != NULL)
        l->launcher_over = launcher_turn(l->launcher, l->poll + own);
    check_time(l);
    for (uint32_t r = 0; r < l->n && l->grace_over; r++)
        if (l->rank[r].live)
            process_kill(&l->rank[r].process);
}

void launch_watch(struct launch *l)
{
    while ((l->live > 0 && !(l->threads && l->grace_over)) ||
           (l->launcher != NULL && !l->launcher_over))
        poll_once(l);
    for (uint32_t r = 0; r < l->n; r++)
        if (l->rank[r].live)
            leak_thread(&l->rank[r]);
}

/* ---- creation and release ---- */

void launch_release(struct launch *l)
{
    /* Acquire and release: each user publishes its writes; the last one sees all and frees. */
    if (l == NULL || __atomic_sub_fetch(&l->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (l->wake >= 0 && l->launcher == NULL)
        close(l->wake);
    free(l->poll);
    free(l->rank);
    free(l->node);
    pin_plan_finish(&l->pins);
    if (l->launcher == NULL)
        control_destroy(l->control);
    free(l);
}

struct launch *launch_create(const struct epa_launch *asked, uint32_t first, uint32_t ranks,
                             uint32_t more)
{
    struct launch *l = memory_alloc(1, sizeof(*l));

    *l = (struct launch){.asked = *asked,
                         .n = ranks,
                         .last = {.limit_ns = asked->timeout_ns},
                         .stop_fd = asked->stop_fd,
                         .wake = -1,
                         .users = 1};
    l->rank = memory_alloc(ranks, sizeof(*l->rank));
    l->poll = memory_alloc(2 + 2 * (size_t)ranks + more, sizeof(*l->poll));
    l->node = memory_alloc(asked->ranks, sizeof(*l->node));
    for (uint32_t r = 0; r < ranks; r++) {
        process_init(&l->rank[r].process);
        l->rank[r].number = first + r;
        l->rank[r].launch = l;
    }
    return l;
}

/* ---- ranks of this host: launchers fork and thread ---- */

struct config {
    int pin;
    bool prefix;
};

static enum epa_status launch_here(const struct config *config, const struct epa_launch *asked,
                                   bool threads, struct epa_error *err)
{
    uint32_t per_node = asked->ranks_per_node != 0 ? asked->ranks_per_node : asked->ranks;
    struct launch *l = launch_create(asked, 0, asked->ranks, 0);
    enum epa_status status = control_create(asked->ranks, &l->control, err);

    if (status == EPA_OK)
        status = pin_plan_init(&l->pins, (enum pin)config->pin, asked->ranks, asked->threads, err);
    if (status == EPA_OK && threads && (l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        status = epa_fail(err, EPA_ERR_SYSTEM, "eventfd: %s", strerror(errno));
    if (status == EPA_OK) {
        bool good = true;

        l->threads = threads;
        l->prefix = config->prefix;
        for (uint32_t r = 0; r < asked->ranks; r++)
            l->node[r] = r / per_node;
        if (threads)
            start_threads(l);
        for (uint32_t r = 0; r < l->n && !threads && good; r++)
            good = launch_start_process(&l->rank[r], process_main);
        launch_watch(l);
        status = launch_report(l, &l->failure, err);
    }
    launch_release(l);
    return status;
}

static enum epa_status launch_fork(const void *config, const struct epa_launch *asked,
                                   struct epa_error *err)
{
    return launch_here(config, asked, false, err);
}

static enum epa_status launch_thread(const void *config, const struct epa_launch *asked,
                                     struct epa_error *err)
{
    return launch_here(config, asked, true, err);
}

static const struct config defaults = {.pin = PIN_CORE, .prefix = true};
static const struct epa_option options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks",
     .tune = "*"},
    {.name = "prefix",
     EPA_BOOL(struct config, prefix),
     .help = "prefix each line of a rank's standard error with its number"},
    {0},
};
static const struct epa_option thread_options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks",
     .tune = "*"},
    {0},
};

const struct epa_launcher_plugin launch_fork_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork",
               .summary = "ranks are processes of this host",
               .options = {options, sizeof(struct config), &defaults}},
    .launch = launch_fork,
};

const struct epa_launcher_plugin launch_thread_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "thread",
               .summary = "ranks are threads of this process, for ThreadSanitizer",
               .options = {thread_options, sizeof(struct config), &defaults}},
    .launch = launch_thread,
};
