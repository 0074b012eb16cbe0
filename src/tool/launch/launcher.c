/* Launchers of ranks that another program starts one by one: creation, launch and end. */
#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/socket.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "boot/close_open.h"
#include "launch/crash.h"
#include "launch/launch.h"
#include "launch/launch_rank.h"
#include "launch/launch_watch.h"
#include "launch/launcher_rank.h"
#include "launch/launcher_state.h"
#include "launch/launcher_turn.h"
#include "launch/rendezvous.h"

enum {
    PAUSE_MS = 20,
    LEAVE_MS = 1000,   /* time limit of a kept process to end after a failure */
    REPORT_MS = 30000, /* the same without failure: leave() may wait for rank 0's report */
    REPORT_S = 5,      /* after a failure, wait for rank 0 to report it before this process ends */
};

static enum epa_status begin_launch(struct launcher *l, struct epa_error *err)
{
    enum epa_status status;
    int ends[2];

    crash_catch(l->wake);
    status = l->has_thread ? EPA_OK : launcher_start_rank(l, err);
    if (status != EPA_OK)
        return status;
    l->launch->rank->thread = l->thread;
    launch_set_live(l->launch->rank, !l->met && !l->lost);
    if (l->rank == 0) { /* rank 0 connects to its own rendezvous like every other rank */
        status = rendezvous_create(&l->launch->asked, l->settings, &l->contact, l->listener,
                                   &l->rendezvous, err);
        if (status == EPA_OK &&
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
            status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "socketpair: %s", strerror(errno));
        if (status != EPA_OK)
            return status;
        rendezvous_adopt(l->rendezvous, ends[0]);
        launcher_start_dialling(l, ends[1]);
    } else if (l->met || l->params.contact != NULL) {
        launcher_start_dialling(l, -1);
    }
    if (l->lost)
        launch_fail(
            l->launch,
            conn_word_of(EPA_ERR_UNSUPPORTED,
                         "%s was lost in an earlier run, and this job cannot start it again",
                         l->me));
    return EPA_OK;
}

static enum epa_status report_end(const struct launcher *l, struct epa_error *err)
{
    const struct conn_word *verdict = &l->verdict;

    /* This process knows the cause of its rank's death better than the verdict does. */
    if (l->launch->death.status != EPA_OK && verdict->status != EPA_ERR_DIED && l->rank != 0)
        return launch_report(l->launch, &l->launch->death, err);
    if (verdict->status == EPA_ERR_INTERRUPTED)
        launch_share_signal(verdict->signal);
    /* Only rank 0 prints the verdict for all ranks. */
    if (l->rank_0_reports && l->rank != 0)
        return (enum epa_status)verdict->status;
    return launch_report(l->launch, verdict, err);
}

enum epa_status launcher_launch(struct launcher *l, const struct launcher_settings *settings,
                                const struct epa_launch *asked, struct epa_error *err)
{
    struct launch *launch;
    enum epa_status status;

    if (asked->ranks != l->size)
        return epa_fail_key(err, EPA_ERR_CONFIG, "ranks",
                            "the experiment has %u ranks, but %u were started: %s", asked->ranks,
                            l->size, l->params.process_id.source);
    launch = launch_create(asked, l->rank, 1, 1 + rendezvous_poll_room(asked->ranks));
    rendezvous_destroy(l->rendezvous);
    l->rendezvous = NULL;
    conn_finish(&l->conn);
    control_reset(l->control);
    l->settings = settings;
    l->launch = launch;
    l->phase = MEETING;
    l->ran = l->judged = l->rank_0_reports = l->rank_0_lost = l->warned = false;
    l->stopping_ns = 0;
    l->verdict = (struct conn_word){.rank = UINT32_MAX};
    l->sent = l->block_at = 0;
    l->began_ns = l->turned_ns = epa_now_ns();
    launch->launcher = l;
    launch->control = l->control;
    launch->wake = l->wake;
    launch->threads = true;
    launch->meeting = !l->met;
    launch->pause_ms = PAUSE_MS;
    launch->host = l->host.name;
    status = begin_launch(l, err);
    if (status == EPA_OK) {
        launch_watch(launch);
        if (l->rank_0_lost)
            launcher_read_members(l);
        status = report_end(l, err);
        l->lost = l->lost || launch->leaked;
    }
    net_dial_finish(&l->dial);
    launcher_close_members(l);
    launch_release(launch);
    l->launch = NULL;
    return status;
}

/* ---- creation and destruction ---- */

static void end_rank(struct launcher *l)
{
    /* After success the end of a process that waits for its peers would turn the result into a failure.
     * After a failure the rank may wait for a dead peer. */
    uint32_t ms = l->verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;

    if (l->lost || launcher_end_rank(l, ms))
        return;
    l->lost = true;
    if (l->verdict.status == EPA_OK)
        fprintf(stderr,
                "warning: rank %u (host %s, pid %d) did not leave within %g s after its last run\n",
                l->rank, l->host.name, (int)getpid(), ms * 1e-3);
}

static void wait_for_rank_0(struct launcher *l)
{
    uint64_t end_ns = epa_now_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (l->params.meet == NULL || l->rank == 0 || l->verdict.status == EPA_OK)
        return;
    while (l->conn.fd >= 0 && epa_now_ns() < end_ns) {
        struct pollfd fd = {.fd = l->conn.fd, .events = POLLIN};

        if (poll(&fd, 1, PAUSE_MS) > 0)
            conn_turn(&l->conn, fd.revents);
        while (conn_take(&l->conn, &m))
            continue;
    }
}

bool launcher_destroy(struct launcher *l)
{
    if (l == NULL)
        return true;
    end_rank(l);
    wait_for_rank_0(l);
    rendezvous_destroy(l->rendezvous);
    conn_finish(&l->conn);
    close_open(l->listener);
    close_open(l->rank_0_pidfd);
    if (l->lost)
        return false; /* the thread of the rank uses the rest */
    close_open(l->wake);
    control_destroy(l->control);
    pthread_cond_destroy(&l->ordered);
    pthread_mutex_destroy(&l->lock);
    free(l->order.node);
    free(l);
    return true;
}

enum epa_status launcher_create(const struct launcher_params *params, struct launcher **out,
                                struct epa_error *err)
{
    struct launcher *l = memory_alloc(1, sizeof(*l));
    enum epa_status status = EPA_OK;

    l->params = *params;
    l->rank = params->process_id.rank;
    l->size = params->process_id.size;
    l->met = params->meet == NULL;
    l->lost = crash_signal() != 0; /* in a launch of an earlier launcher */
    l->parent = getppid();
    l->conn.fd = l->dial.conn.fd = l->listener = l->rank_0_pidfd = -1;
    pthread_mutex_init(&l->lock, NULL);
    pthread_cond_init(&l->ordered, NULL);
    l->order.node = memory_alloc(l->size, sizeof(*l->order.node));
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    nodes_host(&l->host);
    snprintf(l->me, sizeof(l->me), "rank %u (host %.64s)", l->rank, l->host.name);
    if (l->wake < 0)
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "eventfd of a launcher: %s",
                                strerror(errno));
    if (status == EPA_OK && params->contact != NULL)
        l->contact = *params->contact;
    if (status == EPA_OK && l->size == 1)
        snprintf(l->contact.token, sizeof(l->contact.token), "alone");
    if (status == EPA_OK)
        status = conn_check_mac(err);
    if (status == EPA_OK && l->rank == 0 && l->size > 1)
        status = net_listen(&l->contact, params->interface, &l->listener, err);
    l->meet_contact = l->contact;
    if (status == EPA_OK)
        status = control_create(l->size, &l->control, err);
    if (status != EPA_OK) {
        (void)launcher_destroy(l);
        return status;
    }
    *out = l;
    return EPA_OK;
}
