/* Watches ranks: processes (fork), or threads of this process. With the launcher thread all ranks are
 * threads, whose heaps have different addresses, so that ThreadSanitizer detects races between ranks (it
 * cannot between processes). With the launchers env and mpi this process has one rank.
 *
 * The launching thread runs no rank: it sleeps in poll() on stop_fd, a pidfd and an output pipe of each
 * process, an eventfd that ranks write, and the connections of a launcher to ranks of other processes.
 * The verdict is the first failure other than ABORTED, or the death that caused it. A failure or a
 * request to stop aborts all ranks and starts the grace period, after which processes are killed. A
 * thread cannot be killed: the launch reports it and leaves it behind. The last user, this thread or the
 * launching thread, frees the launch. */
#include "launch/launch_watch.h"

#include <poll.h>
#include <signal.h>
#include <sys/eventfd.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "launch/launch_rank.h"
#include "launch/launcher_turn.h"

enum { POLL_MS = 100 }; /* only polling detects a rank that raises `aborted` and then hangs */

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
    for (uint32_t r = 0; r < l->n && l->launcher == NULL; r++)
        (l->threads ? launch_check_thread : launch_check_process)(&l->rank[r]);
    if (l->launcher != NULL)
        l->launcher_over = launcher_turn(l->launcher, l->poll + own);
    check_time(l);
    for (uint32_t r = 0; r < l->n && l->grace_over; r++)
        if (l->rank[r].live && l->threads)
            launch_leak_thread(&l->rank[r]);
        else if (l->rank[r].live)
            process_kill(&l->rank[r].process);
}

void launch_watch(struct launch *l)
{
    while (l->live > 0 || (l->launcher != NULL && !l->launcher_over))
        poll_once(l);
}
