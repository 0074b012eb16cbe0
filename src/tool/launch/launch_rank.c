/* Ranks of a launch: processes, or threads of this process, with their ends and failures. */
#include "launch/launch_rank.h"

#include <signal.h>
#include <stdio.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "boot/death.h"
#include "launch/launcher_verdict.h"

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

void launch_rank_returned(struct launch *l, enum epa_status status)
{
    if (status != EPA_OK)
        launch_fail(l, conn_word_of(status, "%s", "")); /* the rank has recorded the reason */
    else if (l->launcher != NULL)
        launcher_report(l->launcher, &(struct conn_word){.rank = UINT32_MAX});
    else if (l->first_ns == 0)
        l->first_ns = epa_now_ns();
}

/* "rank 3 (host b, pid 4711)" */
static void name_rank(const struct launch_rank *rank, char *out, size_t room)
{
    const char *host = rank->launch->host;
    pid_t pid = rank->process.pid != 0 ? rank->process.pid : getpid();

    if (rank->launch->threads && rank->launch->launcher == NULL)
        snprintf(out, room, "rank %u", rank->number);
    else
        snprintf(out, room, "rank %u (%s%.64s%spid %d)", rank->number, host != NULL ? "host " : "",
                 host != NULL ? host : "", host != NULL ? ", " : "", (int)pid);
}

static void fail_by_grace(struct launch *l, const char *who)
{
    if (l->meeting) {
        launch_fail(l, conn_word_of(EPA_ERR_TIMEOUT, "%s was not ready in time", who));
        return;
    }
    launch_fail(l, conn_word_of(EPA_ERR_TIMEOUT,
                                "%s did not return within %.3g s of the request to stop", who,
                                (double)l->asked.grace_ns * 1e-9));
}

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
        error_add_remedy(&err);
        launch_fail(l, conn_word_at(conn_word_of(status, "%s", err.text), err.key));
        return false;
    }
    rank->process.relay.asked = &l->asked;
    launch_set_live(rank, true);
    return true;
}

int launch_process_main(void *arg)
{
    struct launch_rank *rank = arg;

    for (struct launch_rank *r = rank->launch->rank; r <= rank; r++)
        process_close_inherited(&r->process);
    return process_code(run_local(rank));
}

void launch_rank_died(struct launch_rank *rank, uint32_t number, const char *how)
{
    struct launch *l = rank->launch;
    struct timespec now;
    char who[128];

    clock_gettime(CLOCK_REALTIME, &now);
    name_rank(rank, who, sizeof(who));
    l->death = conn_word_of(EPA_ERR_DIED, "%s %s", who, how);
    l->death.rank = rank->number;
    l->death.signal = number;
    l->death.died_ns = (uint64_t)now.tv_sec * 1000000000u + (uint64_t)now.tv_nsec;
    launch_fail(l, l->death);
}

/* Evaluates the end of a rank's process; `code` as of waitpid(). */
static void evaluate_end(struct launch_rank *rank, int code)
{
    struct launch *l = rank->launch;
    enum epa_status word = EPA_OK;
    bool has_word = control_returned(l->control, rank->number, &word);
    char who[128], how[DEATH_TEXT];

    name_rank(rank, who, sizeof(who));
    if (WIFSIGNALED(code) && rank->process.killed) {
        fail_by_grace(l, who);
    } else if (!WIFSIGNALED(code) && has_word && WEXITSTATUS(code) == process_code(word)) {
        launch_rank_returned(l, word);
    } else if (!WIFSIGNALED(code) && has_word) {
        snprintf(how, sizeof(how), "returned and then exited with code %d", WEXITSTATUS(code));
        launch_rank_died(rank, 0, how);
    } else {
        death_describe(code, how);
        launch_rank_died(rank, WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0, how);
    }
}

void launch_check_process(struct launch_rank *rank)
{
    struct launch *l = rank->launch;
    enum epa_status word = EPA_OK;
    int code;

    if (rank->process.pid == 0)
        return;
    (void)control_returned(l->control, rank->number, &word);
    relay_turn(&rank->process.relay);
    if (process_ended(&rank->process, word, &code)) {
        evaluate_end(rank, code); /* before the last output, since other ranks wait for the abort */
        process_finish(&rank->process);
        launch_set_live(rank, false);
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

int launch_create_thread(pthread_t *out, void *(*run)(void *arg), void *arg)
{
    static const int faults[] = {SIGSEGV, SIGBUS, SIGFPE, SIGILL, SIGABRT, SIGTRAP};
    const size_t stack_bytes = 8 << 20;
    pthread_attr_t attr;
    sigset_t set, before;
    int failed = pthread_attr_init(&attr);

    if (failed != 0)
        return failed;
    failed = pthread_attr_setstacksize(&attr, stack_bytes);
    /* Only the launching thread receives signals, except signals of faults. */
    sigfillset(&set);
    for (size_t i = 0; i < sizeof(faults) / sizeof(faults[0]); i++)
        sigdelset(&set, faults[i]);
    pthread_sigmask(SIG_SETMASK, &set, &before);
    if (failed == 0)
        failed = pthread_create(out, &attr, run, arg);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    pthread_attr_destroy(&attr);
    return failed;
}

void launch_start_threads(struct launch *l)
{
    int failed = 0;

    for (uint32_t r = 0; r < l->n && failed == 0; r++) {
        __atomic_add_fetch(&l->users, 1, __ATOMIC_RELAXED);
        failed = launch_create_thread(&l->rank[r].thread, thread_main, &l->rank[r]);
        launch_set_live(&l->rank[r], failed == 0);
        if (failed != 0)
            launch_release(l);
    }
    if (failed != 0)
        launch_fail(l, conn_word_of(EPA_ERR_SYSTEM, "thread for rank %u: %s%s%s", l->live,
                                    strerror(failed), memory_limit(), process_limit(failed)));
}

void launch_check_thread(struct launch_rank *rank)
{
    enum epa_status status;

    if (!rank->live || !control_returned(rank->launch->control, rank->number, &status))
        return;
    pthread_join(rank->thread, NULL);
    launch_set_live(rank, false);
    launch_rank_returned(rank->launch, status);
}

void launch_leak_thread(struct launch_rank *rank)
{
    struct launch *l = rank->launch;
    char who[128];

    launch_set_live(rank, false);
    l->leaked = true;
    pthread_detach(rank->thread);
    if (l->asked.leaked_ranks != NULL)
        ++*l->asked.leaked_ranks;
    if (l->launcher != NULL && l->death.status != EPA_OK)
        return; /* the rank has crashed */
    name_rank(rank, who, sizeof(who));
    fail_by_grace(l, who);
}
