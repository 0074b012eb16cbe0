/* Launchers of ranks that another program starts one by one: creation, launch and end. */
#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "boot/close_open.h"
#include "launch/launch.h"
#include "launch/launch_rank.h"
#include "launch/launch_watch.h"
#include "launch/launcher_rank.h"
#include "launch/launcher_state.h"
#include "launch/launcher_turn.h"
#include "launch/rendezvous.h"

enum {
    POLL_MS = 20,
    LEAVE_MS = 1000,   /* time limit of a kept process to end after a failure */
    REPORT_MS = 30000, /* the same without failure: leave() may wait for rank 0's report */
    REPORT_S = 5,      /* after a failure, wait for rank 0 to report it before this process ends */
};

static enum epa_status begin_launch(struct launcher *l, struct epa_error *err)
{
    struct launch_rank *rank = l->launch->rank;
    enum epa_status status = EPA_OK;
    int ends[2];

    if (l->process.pid != 0) {
        rank->process = l->process;
        rank->process.relay.prefix = l->launch->prefix;
        rank->process.relay.asked = &l->launch->asked;
    } else if (keeps_process(l) && !l->lost && !launch_start_process(rank, launcher_kept_process)) {
        return launch_report(l->launch, &l->launch->failure, err);
    }
    if (l->rank == 0) { /* rank 0 connects to its own rendezvous like every other rank */
        status = rendezvous_create(&l->launch->asked, l->settings, &l->order->contact, l->listener,
                                   &l->rendezvous, err);
        if (status == EPA_OK &&
            socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
            status = epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
        if (status != EPA_OK)
            return status;
        rendezvous_adopt(l->rendezvous, ends[0]);
        launcher_start_dialling(l, ends[1]);
    } else if (l->met || l->params.contact != NULL) {
        launcher_start_dialling(l, -1);
    }
    if (l->lost)
        launch_fail(l->launch,
                    conn_word_of(EPA_ERR_UNSUPPORTED,
                                 "the process of %s died in an earlier run, and this job cannot "
                                 "start it again",
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
    l->ran = l->judged = l->rank_0_reports = false;
    l->verdict = (struct conn_word){.rank = UINT32_MAX};
    l->sent = l->block_at = 0;
    l->began_ns = l->turned_ns = epa_now_ns();
    launch->launcher = l;
    launch->control = l->control;
    launch->wake = l->wake;
    launch->kept = keeps_process(l);
    launch->meeting = !l->met;
    launch->pause_ms = POLL_MS;
    launch->host = l->host.name;
    launch->prefix = settings->prefix;
    status = begin_launch(l, err);
    if (status == EPA_OK) {
        launch_watch(launch);
        status = report_end(l, err);
        l->lost = keeps_process(l) && launch->rank->process.pid == 0;
    }
    l->process = launch->rank->process; /* survives this launch */
    relay_turn(&l->process.relay);
    l->process.relay.asked = NULL;
    net_dial_finish(&l->dial);
    launch_release(launch);
    l->launch = NULL;
    return status;
}

/* ---- creation and destruction ---- */

static void end_process(struct launcher *l)
{
    /* After success a kill would turn the result into a failure. After a failure the process may wait
     * for a dead peer. */
    uint32_t ms = l->verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;

    if (l->process.pid == 0)
        return;
    (void)eventfd_write(l->orders, ORDER_LEAVE);
    if (!process_wait(&l->process, ms) && l->verdict.status == EPA_OK)
        fprintf(stderr,
                "warning: rank %u (host %s, pid %d) did not exit within %g s after its last run, "
                "and was killed\n",
                l->rank, l->host.name, (int)l->process.pid, ms * 1e-3);
    process_finish(&l->process);
}

static void wait_for_rank_0(struct launcher *l)
{
    uint64_t end_ns = epa_now_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (!keeps_process(l) || l->rank == 0 || l->verdict.status == EPA_OK)
        return;
    while (l->conn.fd >= 0 && epa_now_ns() < end_ns) {
        struct pollfd fd = {.fd = l->conn.fd, .events = POLLIN};

        if (poll(&fd, 1, POLL_MS) > 0)
            conn_turn(&l->conn, fd.revents);
        while (conn_take(&l->conn, &m))
            continue;
    }
}

void launcher_destroy(struct launcher *l)
{
    if (l == NULL)
        return;
    end_process(l);
    wait_for_rank_0(l);
    rendezvous_destroy(l->rendezvous);
    conn_finish(&l->conn);
    close_open(l->listener);
    close_open(l->wake);
    close_open(l->orders);
    control_destroy(l->control);
    if (l->order != MAP_FAILED)
        munmap(l->order, l->order_bytes);
    free(l);
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
    l->parent = getppid();
    process_init(&l->process);
    l->conn.fd = l->dial.conn.fd = l->listener = -1;
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->orders = eventfd(0, EFD_CLOEXEC);
    nodes_host(&l->host);
    snprintf(l->me, sizeof(l->me), "rank %u (host %.64s)", l->rank, l->host.name);
    l->order_bytes = sizeof(*l->order) + l->size * sizeof(l->order->node[0]);
    l->order =
        mmap(NULL, l->order_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (l->order == MAP_FAILED || l->wake < 0 || l->orders < 0)
        status =
            epa_fail(err, EPA_ERR_SYSTEM, "mmap or eventfd of a launcher: %s", strerror(errno));
    if (status == EPA_OK && params->contact != NULL)
        l->order->contact = *params->contact;
    if (status == EPA_OK && l->size == 1)
        snprintf(l->order->contact.token, sizeof(l->order->contact.token), "alone");
    if (status == EPA_OK)
        status = conn_check_mac(err);
    if (status == EPA_OK && l->rank == 0 && l->size > 1)
        status = net_listen(&l->order->contact, params->interface, &l->listener, err);
    if (status == EPA_OK)
        status = control_create(l->size, &l->control, err);
    if (status != EPA_OK) {
        launcher_destroy(l);
        return status;
    }
    *out = l;
    return EPA_OK;
}
