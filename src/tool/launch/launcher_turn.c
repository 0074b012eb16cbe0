/* A launcher's connection to the rendezvous. The launcher of rank 0 contains the rendezvous; other
 * launchers dial it. The launcher writes the set-up data of other ranks to the control page
 * (bootstrap.h) that it shares with the thread of its rank. It dials again until the rendezvous has proved that it
 * knows the token; from then on a closed or silent connection means that rank 0 is lost. */
#include "launch/launcher_turn.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "boot/close_open.h"
#include "boot/death.h"
#include "launch/block_file.h"
#include "launch/crash.h"
#include "launch/launch_rank.h"
#include "launch/launcher_rank.h"
#include "launch/launcher_state.h"
#include "launch/launcher_verdict.h"
#include "launch/rendezvous.h"

/* Wait after SIGTERM before a known death is written. */
static const uint64_t warn_ns = 250000000;

void launcher_close_members(struct launcher *l)
{
    for (uint32_t i = 0; i < l->members; i++)
        close_open(l->member_file[i]);
    free(l->member);
    free(l->member_file);
    l->member = NULL;
    l->member_file = NULL;
    l->members = 0;
}

void launcher_read_members(struct launcher *l)
{
    for (uint32_t i = 0; i < l->members; i++)
        block_file_copy(l->member_file[i], &l->member[i].block_file, &l->launch->asked,
                        l->member[i].rank);
}

static void lose_rendezvous(struct launcher *l, const char *how)
{
    struct conn_word word;
    char death[DEATH_TEXT];
    int code;

    conn_close(&l->conn, "%s", how);
    word = conn_word_of(EPA_ERR_DIED, "%s is gone: %s", l->rendezvous_name, l->conn.why);
    if (l->conn.silent)
        death_kill(l->rank_0_pidfd); /* a stopped process would stay */
    else if (death_find_code(l->rank_0_pidfd, l->rank_0_pid, DEATH_WAIT_MS, &code)) {
        death_describe(code, death);
        word = conn_word_of(EPA_ERR_DIED, "%s %s", l->rendezvous_name, death);
    }
    word.rank = 0;
    launcher_set_verdict(l, word);
}

static void say_hello(struct launcher *l)
{
    const char *fingerprint =
        l->launch->asked.fingerprint != NULL ? l->launch->asked.fingerprint : "";
    struct conn_hello hello = {.rank = l->rank,
                               .size = l->size,
                               .pid = (uint32_t)getpid(),
                               .abi = EPA_ABI,
                               .block_file = block_file_describe(&l->launch->asked),
                               .host = l->host};

    memcpy(hello.job, l->contact.job, sizeof(hello.job));
    hello.mask_bytes = (uint32_t)pin_mask(hello.mask, sizeof(hello.mask));
    conn_put(&l->conn, CONN_HELLO, &hello, sizeof(hello), fingerprint,
             strnlen(fingerprint, CONN_FINGERPRINT_MAX));
    if (l->launch->failure.status != EPA_OK)
        conn_put_word(&l->conn, CONN_WORD, &l->launch->failure);
}

void launcher_start_dialling(struct launcher *l, int fd)
{
    const struct contact *contact = &l->contact;

    l->phase = DIALING;
    net_dial_init(&l->dial, contact, fd);
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (address %.100s, port %u)",
             contact->local[0] != 0 ? contact->local : contact->address[0], contact->port);
}

static void advance_dialling(struct launcher *l, short revents, uint64_t now)
{
    enum net_dialed dialed = net_dial_turn(&l->dial, revents, now, &l->conn);

    if (dialed == NET_PROVED) {
        l->conn.limit = bootstrap_slot_bytes(l->size) +
                        l->size * (sizeof(uint32_t) + sizeof(struct conn_member)) + 1024;
        l->polled_ns = now;
        l->phase = WAITING;
        say_hello(l);
    } else if (dialed == NET_REFUSED) {
        launcher_set_verdict(l, conn_word_of(EPA_ERR_CONFIG, "%s", l->dial.why));
    } else if (is_orphan(l) || now - l->began_ns > l->settings->start_ns) {
        launcher_set_verdict(
            l, l->launch->failure.status != EPA_OK
                   ? l->launch->failure
                   : conn_word_at(
                         conn_word_of(EPA_ERR_TIMEOUT,
                                      "%s cannot reach rank 0 within %.3g s (launcher.start): %s",
                                      l->me, (double)l->settings->start_ns * 1e-9, l->dial.why),
                         "launcher.start"));
    }
}

/* All ranks have connected: starts the rank of this launcher. */
static void on_welcome(struct launcher *l, const struct conn_message *m)
{
    struct order *order = &l->order;
    struct conn_welcome *w = &order->welcome;
    char interface[CONN_INTERFACE];

    if (l->phase > RUNNING) /* a failure of this process crossed the message */
        return;
    if (l->phase != WAITING || !conn_get_welcome(m, l->size, w, order->node)) {
        lose_rendezvous(l, "it sent a malformed message");
        return;
    }
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (host %.64s, pid %u)", w->host,
             w->pid);
    l->phase = RUNNING;
    if (control_aborted(l->control))
        return;
    order->asked = l->launch->asked;
    order->pin = (enum pin)l->settings->pin;
    order->world = (struct epa_world){
        .rank = l->rank, .size = l->size, .node = order->node, .local_cores = w->local_cores};
    launch_find_neighbours(&order->world);
    /* A rank on rank 0's host may have connected over the loopback; it then uses the interface that
     * other hosts connected to. */
    net_interface(l->conn.fd, interface);
    if (interface[0] != 0)
        memcpy(w->interface, interface, sizeof(interface));
    order->world.interface = w->hosts > 1 ? w->interface : NULL;
    if (l->rank != 0 && order->node[0] == order->node[l->rank]) {
        l->rank_0_pid = (int32_t)w->pid;
        close_open(l->rank_0_pidfd);
        l->rank_0_pidfd = death_watch(l->rank_0_pid);
    }
    l->ran = true;
    launcher_run_rank(l);
}

/* Opens the files of the ranks of this host while their processes exist. */
static void on_blocks(struct launcher *l, const struct conn_message *m)
{
    uint32_t n;

    launcher_close_members(l);
    l->member = memory_alloc(l->size, sizeof(*l->member));
    l->member_file = memory_alloc(l->size, sizeof(*l->member_file));
    n = conn_get_members(m, l->size, l->member);
    if (l->rank != 1 || n == UINT32_MAX) {
        lose_rendezvous(l, "it sent a malformed message");
        return;
    }
    for (uint32_t i = 0; i < n; i++)
        l->member_file[i] = block_file_open((int32_t)l->member[i].pid, &l->member[i].block_file);
    l->members = n;
}

/* Another rank has reached a step of the set-up. */
static void on_rank_step(struct launcher *l, const struct conn_message *m)
{
    struct conn_message data;
    struct conn_piece piece;
    const void *before;
    size_t bytes;

    if (!conn_get_step(m, l->size, bootstrap_slot_bytes(l->size), &piece, &data) ||
        piece.rank == l->rank || piece.number == 0 || piece.number > l->sent + 1 ||
        (piece.number > 1 &&
         !control_step(l->control, piece.rank, piece.number - 1, &before, &bytes)))
        lose_rendezvous(l, "it sent a malformed message");
    else
        control_arrive(l->control, piece.rank, piece.number, data.data, data.bytes);
}

static void on_rank_message(struct launcher *l, const struct conn_message *m)
{
    struct conn_word word;

    if ((m->type == CONN_REFUSED || m->type == CONN_VERDICT) && conn_get_word(m, &word)) {
        launcher_set_verdict(l, word);
        l->rank_0_reports = m->type == CONN_VERDICT;
    } else if (m->type == CONN_ABORT) {
        control_abort(l->control);
        l->launch->abort_known = true;
    } else if (m->type == CONN_WELCOME) {
        on_welcome(l, m);
    } else if (m->type == CONN_BLOCKS) {
        on_blocks(l, m);
    } else if (m->type == CONN_STEP) {
        on_rank_step(l, m);
    } else if (m->type != CONN_ALIVE) {
        lose_rendezvous(l, "it sent a malformed message");
    }
}

/* Sends the block to rank 0. A read of the holes of a block would allocate their memory. */
static void send_block(struct launcher *l)
{
    const struct epa_launch *asked = &l->launch->asked;
    size_t bytes = l->ran && l->rank != 0 && asked->block != NULL ? asked->block_bytes : 0;

    while (l->block_at < bytes) {
        size_t end;

        block_file_find_data(asked, l->rank, l->block_at, &l->block_at, &end);
        if (!conn_put_block(&l->conn, l->rank, asked->block + l->rank * bytes, end, &l->block_at))
            return;
    }
    conn_say(&l->conn, CONN_DONE);
    l->phase = DONE;
}

static void advance_connection(struct launcher *l, short revents, uint64_t now)
{
    struct conn_message m;

    if (l->judged)
        return;
    if (l->phase == DIALING) {
        advance_dialling(l, revents, now);
    } else if (l->phase >= WAITING) {
        conn_turn(&l->conn, revents);
        while (!l->judged && conn_take(&l->conn, &m))
            on_rank_message(l, &m);
        if (!l->judged && conn_find_loss(&l->conn, now, l->polled_ns, l->settings->heartbeat_ns)) {
            l->rank_0_lost = true;
            lose_rendezvous(l, "");
        }
        l->polled_ns = now;
    }
    if (l->judged)
        return;
    if ((l->phase == RUNNING || (l->phase == WAITING && control_aborted(l->control))) &&
        l->launch->live == 0)
        l->phase = LEAVING;
    if (l->phase == LEAVING)
        send_block(l);
    conn_turn(&l->conn, 0);
}

/* ---- turns ---- */

static void check_meeting(struct launcher *l)
{
    const struct epa_error *err = &l->meet_err;
    struct launch *launch = l->launch;
    struct conn_word word;

    /* Acquire: pairs with the release in meet_ranks(). */
    if (l->met || __atomic_load_n(&l->meet_over, __ATOMIC_ACQUIRE) == 0)
        return;
    l->met = true;
    launch->meeting = false;
    crash_catch(l->wake); /* meet() may have loaded libraries */
    if (!l->lost)
        launch_set_live(launch->rank, l->ran);
    if (err->status != EPA_OK) {
        word = conn_word_of(err->status, "%s: %.300s", l->me, err->text);
        launch_fail(launch, conn_word_at(word, err->key));
    } else if (l->phase == MEETING) {
        l->contact = l->meet_contact;
        launcher_start_dialling(l, -1);
    }
}

/* Reads the news of the rank. */
static void check_rank(struct launcher *l)
{
    struct launch *launch = l->launch;
    const void *data;
    size_t bytes;

    check_meeting(l);
    /* The rank is at most one step ahead of the other ranks, so the slot still holds its data. */
    while (l->phase == RUNNING && control_step(l->control, l->rank, l->sent + 1, &data, &bytes))
        conn_put_piece(&l->conn, CONN_STEP, l->rank, ++l->sent, data, bytes);
    launcher_check_rank(l);
    if (control_aborted(l->control) && !launch->abort_known)
        launch_fail(launch, conn_word_of(EPA_ERR_ABORTED, "%s", ""));
    if (l->phase < RUNNING && !l->judged && is_orphan(l))
        launch_fail(launch, conn_word_of(EPA_ERR_DIED,
                                         "%s: mpirun ended before all ranks had connected", l->me));
    else if (!l->met && !l->judged && epa_now_ns() - l->began_ns > l->settings->start_ns)
        launch_fail(
            launch,
            conn_word_at(
                conn_word_of(EPA_ERR_TIMEOUT,
                             "%s did not reach the other ranks within %.3g s (launcher.start)",
                             l->me, (double)l->settings->start_ns * 1e-9),
                "launcher.start"));
}

/* After the death of a rank, mpirun sends SIGTERM to the other ranks, and SIGKILL one second later.
 * The ranks may need longer to end, and the report follows their end. So a process that still waits
 * warn_ns after SIGTERM writes the death that it knows. */
static void warn_of_death(struct launcher *l, uint64_t now)
{
    const struct epa_launch *asked = &l->launch->asked;
    const struct conn_word *known = l->judged               ? &l->verdict
                                    : l->rendezvous != NULL ? rendezvous_verdict(l->rendezvous)
                                                            : NULL;

    if (!l->launch->stopping)
        return;
    if (l->stopping_ns == 0)
        l->stopping_ns = now;
    if (l->warned || now - l->stopping_ns < warn_ns || known == NULL ||
        known->status != EPA_ERR_DIED || (l->rank_0_reports && l->rank != 0))
        return;
    l->warned = true;
    if (asked->poll_launch != NULL)
        (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
    if (l->rank != 0)
        fprintf(stderr, "[rank %u] ", l->rank);
    fprintf(stderr, "warning: %s; other ranks have not ended yet\n", known->text);
}

uint32_t launcher_polls(const struct launcher *l, struct pollfd *out)
{
    out[0] = l->phase == DIALING
                 ? net_dial_poll(&l->dial)
                 : (struct pollfd){.fd = l->conn.fd, .events = conn_events(&l->conn)};
    if (l->rendezvous == NULL)
        return 1;
    rendezvous_polls(l->rendezvous, out + 1);
    return 1 + rendezvous_poll_room(l->size);
}

/* Returns true if no further rank connects. Other ranks cannot connect before meet() has sent them the
 * address. After SIGTERM mpirun ends the ranks that have not connected, too, and sends SIGKILL one second
 * later. */
static bool ends_alone(const struct launcher *l)
{
    return l->params.meet != NULL &&
           (l->launch->stopping || (!l->met && control_aborted(l->control)));
}

bool launcher_turn(struct launcher *l, const struct pollfd *fds)
{
    uint64_t now = epa_now_ns();

    l->began_ns += epa_pause_ns(&l->turned_ns, now, l->settings->start_ns);
    check_rank(l);
    advance_connection(l, fds[0].revents, now);
    if (l->rendezvous != NULL)
        rendezvous_turn(l->rendezvous, fds + 1, ends_alone(l));
    warn_of_death(l, now);
    if (l->rendezvous == NULL)
        return l->judged;
    return l->judged && rendezvous_over(l->rendezvous);
}
