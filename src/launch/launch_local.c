/* Ranks of this host: processes (fork), or threads of this process (thread), each at addresses of
 * its own, so that ThreadSanitizer sees what they do to each other (it is blind between
 * processes).
 *
 * The launching thread runs no rank: it sleeps in poll() on stop_fd and on a pidfd and an output
 * pipe of each process, or an eventfd that each thread writes when it is done. The first failure
 * that is not ABORTED decides; any failure, and the wish to stop, tells all ranks to leave and
 * starts their grace. A process that has not returned then is killed. A thread cannot be: it is
 * reported and left behind; whoever is last, it or the launching thread, frees the launch. */
#include <errno.h>
#include <poll.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include "plugin/registry.h"
#include "base/clock.h"
#include "launch/process.h"

enum {
    POLL_MS = 100, /* a rank can raise `aborted` and then hang, which only a look at it shows */
    STACK_BYTES = 8 << 20,
};

struct config {
    int pin;
    bool prefix;
};

struct rank {
    struct process process;
    pthread_t thread;
    bool live; /* a thread to be joined */
    uint32_t number;
    struct launch *launch;
};

struct launch {
    const struct config *config;
    struct epa_launch asked;
    struct control *control;
    uint32_t *nodes; /* as in epa_world; NULL: there is one */
    struct pin_plan pins;
    struct rank *rank; /* [ranks] */
    struct epa_error *err;
    enum epa_status first; /* the failure that decides */
    int stop_fd;           /* to poll for reading; -1: no more */
    bool stopping;         /* because it could be read */
    uint64_t grace_end;    /* when who has not returned is given up; 0: nobody failed yet */
    uint64_t first_ns;     /* when the first rank returned; 0: none has */
    struct patience last;  /* with those that have not */
    bool gave_up;          /* it ended */
    uint32_t live;         /* ranks that have not ended */
    struct pollfd *poll;   /* room for [1 + 2 * ranks]: stop_fd, pidfd and output of each */
    nfds_t polled;
    int done_fd;    /* of threads */
    uint32_t users; /* threads that may still look at this, the launching one included */
};

/* ---- how a launch ends ---- */

/* Whether a failure with `status` is the one that decides. */
static bool decides(struct launch *l, enum epa_status status)
{
    bool first = l->first == EPA_OK || (l->first == EPA_ERR_ABORTED && status != EPA_ERR_ABORTED);

    if (first)
        l->first = status;
    control_abort(l->control);
    return first;
}

EPA_PRINTF(3, 4)
static void fail(struct launch *l, enum epa_status status, const char *fmt, ...)
{
    char text[sizeof(l->err->text)];
    va_list args;

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (decides(l, status))
        epa_fail(l->err, status, "%s", text);
}

/* A rank came back from rank_main with `status`. */
static void rank_returned(struct launch *l, enum epa_status status)
{
    if (status != EPA_OK)
        decides(l, status); /* the rank has said why */
    else if (l->first_ns == 0)
        l->first_ns = clock_ns();
}

static void rank_stays(struct launch *l, const char *who)
{
    fail(l, EPA_ERR_TIMEOUT, "%s did not return within %.3g s of the request to stop", who,
         (double)l->asked.grace_ns * 1e-9);
}

/* What poll() said of stop_fd. */
static void check_stop(struct launch *l, short revents)
{
    if (revents == 0)
        return;
    l->stop_fd = -1;
    l->stopping = (revents & (POLLIN | POLLHUP)) != 0;
    if (l->stopping)
        fail(l, EPA_ERR_INTERRUPTED, "interrupted");
}

static uint32_t missing_rank(const struct launch *l)
{
    enum epa_status status;
    uint32_t rank = 0;

    while (rank + 1 < l->asked.ranks && control_returned(l->control, rank, &status))
        rank++;
    return rank;
}

/* To be called at least as often as pause_ms() says. True once the grace is over. */
static bool check_time(struct launch *l)
{
    uint64_t now = clock_ns();
    enum epa_poll_reason why = l->stopping ? EPA_POLL_STOPPING : EPA_POLL;
    bool at_once = l->asked.poll_launch != NULL && l->asked.poll_launch(l->asked.poll_arg, why);

    if (l->first_ns != 0 && !l->gave_up &&
        patience_ends(&l->last, l->control, missing_rank(l), now)) {
        l->gave_up = true;
        fail(l, EPA_ERR_TIMEOUT, "rank %u did not return within %.3g s of the first that did",
             missing_rank(l), (double)l->asked.timeout_ns * 1e-9);
    }
    if (l->grace_end == 0 && control_aborted(l->control))
        l->grace_end = now + l->asked.grace_ns;
    return l->grace_end != 0 && (at_once || now >= l->grace_end);
}

static int pause_ms(const struct launch *l)
{
    uint64_t now = clock_ns(), end = now + POLL_MS * 1000000ull;

    if (l->grace_end != 0 && l->grace_end < end)
        end = l->grace_end;
    return end <= now ? 1 : (int)((end - now + 999999) / 1000000);
}

/* ---- a rank ---- */

static struct epa_world world_of(const struct launch *l, uint32_t rank)
{
    uint32_t ranks = l->asked.ranks, node = l->asked.ranks_per_node;
    struct epa_world world = {.rank = rank, .size = ranks, .node = l->nodes};

    if (node == 0 || node > ranks)
        node = ranks;
    world.local_rank = rank % node;
    world.local_size = ranks - (rank - world.local_rank);
    if (world.local_size > node)
        world.local_size = node;
    /* Nodes of one host share its cores: a node has its part of them, so that a rank which
     * compares it with local_size yields exactly when all ranks are more than all cores. */
    world.local_cores = (uint32_t)((uint64_t)l->pins.cores * world.local_size / ranks);
    if (world.local_cores == 0)
        world.local_cores = 1;
    world.cores = pin_plan_rank(&l->pins, rank, &world.core);
    return world;
}

static enum epa_status run_rank(struct launch *l, uint32_t rank)
{
    struct epa_world world = world_of(l, rank);
    struct bootstrap boot;
    enum epa_status status;

    pin_rank(&world);
    bootstrap_init(&boot, l->control, &world, l->asked.timeout_ns);
    status = l->asked.rank_main(&boot.base, l->asked.arg);
    control_return(l->control, rank, status);
    return status;
}

/* ---- life ---- */

static void release(struct launch *l)
{
    /* Each releases what it did here; the last acquires it and may free. */
    if (__atomic_sub_fetch(&l->users, 1, __ATOMIC_ACQ_REL) != 0)
        return;
    if (l->done_fd >= 0)
        close(l->done_fd);
    free(l->poll);
    free(l->rank);
    free(l->nodes);
    pin_plan_finish(&l->pins);
    control_destroy(l->control);
    free(l);
}

static enum epa_status init(struct launch *l)
{
    uint32_t ranks = l->asked.ranks, per_node = l->asked.ranks_per_node;
    enum epa_status status = control_create(ranks, &l->control, l->err);

    if (status == EPA_OK)
        status = pin_plan_init(&l->pins, (enum pin)l->config->pin, ranks, l->asked.threads, l->err);
    if (status != EPA_OK)
        return status;
    l->rank = calloc(ranks, sizeof(*l->rank));
    l->poll = calloc(1 + 2 * (size_t)ranks, sizeof(*l->poll));
    l->nodes = per_node != 0 && per_node < ranks ? calloc(ranks, sizeof(*l->nodes)) : NULL;
    if (l->rank == NULL || l->poll == NULL ||
        (l->nodes == NULL && per_node != 0 && per_node < ranks))
        return epa_fail(l->err, EPA_ERR_NOMEM, "no memory to watch %u ranks", ranks);
    for (uint32_t r = 0; r < ranks; r++) {
        process_init(&l->rank[r].process);
        l->rank[r].number = r;
        l->rank[r].launch = l;
        if (l->nodes != NULL)
            l->nodes[r] = r / per_node;
    }
    return EPA_OK;
}

static enum epa_status launch(const void *config, const struct epa_launch *asked,
                              struct epa_error *err, void (*run)(struct launch *))
{
    struct launch *l = calloc(1, sizeof(*l));
    enum epa_status status;

    if (l == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a launch");
    *l = (struct launch){.config = config,
                         .last = {.limit_ns = asked->timeout_ns},
                         .asked = *asked,
                         .err = err,
                         .stop_fd = asked->stop_fd,
                         .done_fd = -1,
                         .users = 1};
    status = init(l);
    if (status == EPA_OK) {
        run(l);
        status = l->first;
    }
    release(l);
    return status;
}

/* ---- processes ---- */

static int process_main(void *arg)
{
    struct rank *rank = arg;

    for (uint32_t r = 0; r <= rank->number; r++)
        process_close_inherited(&rank->launch->rank[r].process);
    return process_code(run_rank(rank->launch, rank->number));
}

static void before_output(void *arg)
{
    const struct epa_launch *asked = arg;

    (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
}

static enum epa_status start_process(struct launch *l, uint32_t r)
{
    struct process *process = &l->rank[r].process;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        process_start(process, r, l->config->prefix, process_main, &l->rank[r], &err);

    if (status != EPA_OK) {
        fail(l, status, "%s", err.text);
        return status;
    }
    l->live++;
    if (l->asked.poll_launch != NULL) {
        process->relay.before = before_output;
        process->relay.arg = &l->asked;
    }
    return EPA_OK;
}

/* What came of a rank that is no more; `code` as waitpid() gave it. */
static void judge_process(struct launch *l, uint32_t r, int code)
{
    struct process *process = &l->rank[r].process;
    enum epa_status word = EPA_OK, before = l->first, status;
    bool has_word = control_returned(l->control, r, &word);
    char who[64], how[256] = "";

    snprintf(who, sizeof(who), "rank %u (pid %d)", r, (int)process->pid);
    status = process_judge(process, code, has_word, word, who, how, sizeof(how));
    if (status == EPA_ERR_TIMEOUT)
        rank_stays(l, who);
    else if (status != EPA_OK)
        fail(l, status, "%s", how);
    else
        rank_returned(l, word);
    if (before != EPA_ERR_DIED && l->first == EPA_ERR_DIED && l->asked.failed_rank != NULL)
        *l->asked.failed_rank = r;
}

static void reap(struct launch *l, uint32_t r)
{
    enum epa_status word = EPA_OK;
    int code;

    (void)control_returned(l->control, r, &word);
    if (!process_ended(&l->rank[r].process, word, &code))
        return;
    judge_process(l, r, code); /* before its last words: others wait for it */
    process_finish(&l->rank[r].process);
    l->live--;
}

static void add_poll(struct launch *l, int fd)
{
    if (fd >= 0)
        l->poll[l->polled++] = (struct pollfd){.fd = fd, .events = POLLIN};
}

/* Until a rank ends or says something, the user wants to stop, or it is time to look. True
 * if ranks may have news. Only what is open is polled: poll() counts against the limit of
 * open files. */
static bool wait_for_news(struct launch *l)
{
    bool stop = l->stop_fd >= 0, blind = false;
    int ready;

    l->polled = 0;
    add_poll(l, l->stop_fd);
    for (uint32_t r = 0; r < l->asked.ranks; r++) {
        const struct process *process = &l->rank[r].process;

        if (process->pid == 0)
            continue;
        add_poll(l, process->pidfd);
        add_poll(l, process->relay.from);
        blind |= process->pidfd < 0;
    }
    ready = poll(l->poll, l->polled, blind ? 1 : pause_ms(l));
    if (ready > 0 && stop)
        check_stop(l, l->poll[0].revents);
    return ready != 0 || blind;
}

static void run_processes(struct launch *l)
{
    enum epa_status status = EPA_OK;

    fflush(stdout); /* or ranks would print it again */
    fflush(stderr);
    for (uint32_t r = 0; r < l->asked.ranks && status == EPA_OK; r++)
        status = start_process(l, r);
    while (l->live > 0) {
        bool news = wait_for_news(l), over = check_time(l);

        for (uint32_t r = 0; r < l->asked.ranks; r++) {
            if (l->rank[r].process.pid != 0 && news) {
                relay_turn(&l->rank[r].process.relay);
                reap(l, r);
            }
            if (over)
                process_kill(&l->rank[r].process);
        }
    }
}

static enum epa_status launch_fork(const void *config, const struct epa_launch *asked,
                                   struct epa_error *err)
{
    return launch(config, asked, err, run_processes);
}

/* ---- threads ---- */

static void *thread_main(void *arg)
{
    struct rank *rank = arg;
    struct launch *l = rank->launch;

    (void)run_rank(l, rank->number);
    eventfd_write(l->done_fd, 1);
    release(l);
    return NULL;
}

static int start_thread(struct launch *l, uint32_t r, const pthread_attr_t *attr)
{
    struct rank *rank = &l->rank[r];
    int failed;

    __atomic_add_fetch(&l->users, 1, __ATOMIC_RELAXED);
    failed = pthread_create(&rank->thread, attr, thread_main, rank);
    rank->live = failed == 0;
    if (failed == 0)
        l->live++;
    else
        release(l);
    return failed;
}

static void start_threads(struct launch *l)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    pthread_attr_t attr;
    sigset_t all, before;
    int failed = pthread_attr_init(&attr);

    if (failed == 0)
        failed = pthread_attr_setstacksize(&attr, STACK_BYTES);
    /* Signals are the launching thread's, except those that tell of a fault in another. */
    sigfillset(&all);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&all, faults[i]);
    pthread_sigmask(SIG_BLOCK, &all, &before);
    for (uint32_t r = 0; r < l->asked.ranks && failed == 0; r++)
        failed = start_thread(l, r, &attr);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    if (failed != 0)
        fail(l, EPA_ERR_SYSTEM, "thread for rank %u: %s", l->live, strerror(failed));
}

static void join_threads(struct launch *l)
{
    enum epa_status status;

    for (uint32_t r = 0; r < l->asked.ranks; r++) {
        if (!l->rank[r].live || !control_returned(l->control, r, &status))
            continue;
        pthread_join(l->rank[r].thread, NULL);
        l->rank[r].live = false;
        l->live--;
        rank_returned(l, status);
    }
}

/* False: the grace is over and some rank has not returned. */
static bool threads_turn(struct launch *l)
{
    struct pollfd fds[2] = {{.fd = l->stop_fd, .events = POLLIN},
                            {.fd = l->done_fd, .events = POLLIN}};
    eventfd_t count;

    if (poll(fds, 2, pause_ms(l)) > 0) {
        check_stop(l, fds[0].revents);
        if (fds[1].revents != 0)
            eventfd_read(l->done_fd, &count);
    }
    join_threads(l);
    return !check_time(l);
}

static void run_threads(struct launch *l)
{
    char who[32];

    l->done_fd = eventfd(0, EFD_CLOEXEC);
    if (l->done_fd < 0) {
        fail(l, EPA_ERR_SYSTEM, "eventfd: %s", strerror(errno));
        return;
    }
    start_threads(l);
    while (l->live > 0 && threads_turn(l))
        continue;
    for (uint32_t r = 0; r < l->asked.ranks; r++) {
        if (!l->rank[r].live)
            continue;
        pthread_detach(l->rank[r].thread);
        if (l->asked.leaked_ranks != NULL)
            ++*l->asked.leaked_ranks;
        snprintf(who, sizeof(who), "rank %u", r);
        rank_stays(l, who);
    }
}

static enum epa_status launch_thread(const void *config, const struct epa_launch *asked,
                                     struct epa_error *err)
{
    return launch(config, asked, err, run_threads);
}

/* ---- descriptors ---- */

static const struct config defaults = {.pin = PIN_CORE, .prefix = true};
static const struct epa_option fork_options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks"},
    {.name = "prefix",
     EPA_BOOL(struct config, prefix),
     .help = "prefix each line of a rank's standard error with its number"},
    {0},
};
static const struct epa_option thread_options[] = {
    {.name = "pin",
     EPA_CHOICE(struct config, pin),
     .choices = pin_choices,
     .help = "cores of the ranks"},
    {0},
};

const struct epa_launcher_plugin launch_fork_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "fork",
               .summary = "ranks are processes of this host",
               .options = {fork_options, sizeof(struct config), &defaults}},
    .launch = launch_fork,
};

const struct epa_launcher_plugin launch_thread_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_LAUNCHER, struct epa_launcher_plugin), .name = "thread",
               .summary = "ranks are threads of this process, for ThreadSanitizer",
               .options = {thread_options, sizeof(struct config), &defaults}},
    .launch = launch_thread,
};
