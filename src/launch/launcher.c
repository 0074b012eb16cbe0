/* A launcher's connection to the rendezvous. The launcher of rank 0 contains the rendezvous; other
 * launchers dial it. The launcher writes the set-up data of other ranks to the control page (process.h)
 * that it shares with the process of its rank. It dials again until the rendezvous has proved that it
 * knows the token; from then on a closed or silent connection means that rank 0 is lost. */
#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/text.h"
#include "launch/bootstrap.h"
#include "launch/close_open.h"
#include "launch/launch.h"
#include "launch/net.h"
#include "launch/rendezvous.h"

enum {
    POLL_MS = 20,
    LEAVE_MS = 1000,   /* time limit of a kept process to end after a failure */
    REPORT_MS = 30000, /* the same without failure: leave() may wait for rank 0's report */
    REPORT_S = 5,      /* after a failure, wait for rank 0 to report it before this process ends */
};

/* Orders to a kept process. */
enum { ORDER_RUN = 1, ORDER_LEAVE };

/* The launch to run, in memory shared with the process of the rank. */
struct order {
    struct epa_launch asked;
    struct epa_world world; /* without cores */
    enum pin pin;
    struct conn_welcome welcome;
    /* Result of meet(); valid if `met` is set. */
    uint32_t met;
    struct epa_error err;
    struct launcher_contact contact;
    uint32_t node[];
};

struct launcher {
    struct launcher_params params;
    uint32_t rank, size; /* of params.process_id */
    struct nodes_host host;
    char me[96]; /* "rank 3 (host b)" */
    int listener;
    int wake, orders; /* eventfds: the rank's process writes wake; a kept process reads orders */
    struct control *control;
    struct order *order;
    size_t order_bytes;
    struct process process; /* kept process between launches */
    bool met;               /* meet() has returned or does not exist */
    bool lost;              /* the kept process has died */
    pid_t parent;
    struct rendezvous *rendezvous; /* of rank 0; lives with its connections until the next launch */
    struct net_dial dial;
    struct conn conn; /* to the rendezvous */
    char rendezvous_name[200];
    /* The present launch. */
    const struct launcher_settings *settings;
    struct launch *launch;
    enum phase {
        MEETING, /* meet() has not returned: the address of the rendezvous is unknown */
        DIALING, /* the rendezvous has not proved that it knows the token */
        WAITING, /* connected; waits for all ranks */
        RUNNING,
        LEAVING, /* the launcher sends the results of the rank */
        DONE,
    } phase;
    bool ran;                 /* the rank has started */
    bool judged;              /* `verdict` is valid */
    struct conn_word verdict; /* result of the launch for all ranks */
    bool rank_0_reports;      /* the verdict is from the rendezvous, so rank 0 has it as well */
    uint64_t sent;            /* number of set-up steps sent */
    size_t block_at;
    uint64_t began_ns, polled_ns, turned_ns;
};

static bool keeps_process(const struct launcher *l)
{
    return l->params.meet != NULL;
}

/* Returns true if mpirun has ended; other ranks may have ended, too. */
static bool is_orphan(const struct launcher *l)
{
    return keeps_process(l) && getppid() != l->parent;
}

/* ---- the process of the rank ---- */

static enum epa_status run_order(struct launcher *l)
{
    const struct order *order = l->order;
    struct launch launch = {.asked = order->asked, .control = l->control};
    struct epa_world world = order->world;
    enum epa_status status;

    if (pin_plan_init(&launch.pins, order->pin, order->welcome.shares, order->asked.threads,
                      NULL) == EPA_OK)
        world.cores = pin_plan_rank(&launch.pins, order->welcome.share, &world.core);
    status = launch_run_rank(&launch, &world, l->wake);
    pin_plan_finish(&launch.pins);
    return status;
}

/* Closes the launcher's descriptors in the process of the rank. */
static struct launcher *close_inherited(const struct launch_rank *rank)
{
    struct launcher *l = rank->launch->launcher;

    process_close_inherited(&rank->process);
    close_open(l->listener);
    close_open(l->conn.fd);
    if (l->rendezvous != NULL)
        rendezvous_close_inherited(l->rendezvous);
    return l;
}

static int rank_process(void *rank)
{
    return process_code(run_order(close_inherited(rank)));
}

/* Runs the ranks of all launches. */
static int kept_process(void *rank)
{
    struct launcher *l = close_inherited(rank);
    struct order *order = l->order;
    enum epa_status status;
    struct pin_plan all = {0};
    eventfd_t what;

    order->err.status = EPA_OK;
    status = l->params.meet(l->params.arg, &order->contact, &order->err);
    if (status != EPA_OK)
        (void)epa_fail(&order->err, status, "no reason was given");
    /* Release: pairs with the acquire in check_rank(). */
    __atomic_store_n(&order->met, 1, __ATOMIC_RELEASE);
    (void)eventfd_write(l->wake, 1);
    (void)pin_plan_init(&all, PIN_NONE, 1, 1, NULL);
    while (eventfd_read(l->orders, &what) == 0 && what == ORDER_RUN) {
        if (all.cores > 0) /* an earlier launch may have pinned this process to one core */
            (void)pin_self(all.order, all.cores);
        status = run_order(l);
        (void)eventfd_write(l->wake, 1);
    }
    pin_plan_finish(&all);
    if (l->params.leave != NULL)
        l->params.leave(l->params.arg);
    return process_code(status);
}

/* ---- end of a launch ---- */

static void set_verdict(struct launcher *l, struct conn_word verdict)
{
    if (l->judged)
        return;
    l->judged = true;
    l->launch->pause_ms = 1;
    l->verdict = verdict;
    if (verdict.status == EPA_OK)
        return;
    control_abort(l->control);
    l->launch->abort_known = true;
}

/* Sends a failure of this process now or later; it becomes the verdict if the rendezvous is out of
 * reach. */
void launcher_report(struct launcher *l, const struct conn_word *word)
{
    if (l->phase >= WAITING)
        conn_put_word(&l->conn, CONN_WORD, word);
    else if (l->phase == MEETING || word->status == EPA_ERR_INTERRUPTED)
        set_verdict(l, l->launch->failure);
}

static void lose_rendezvous(struct launcher *l, const char *how)
{
    struct conn_word word;

    conn_close(&l->conn, "%s", how);
    word = conn_word_of(EPA_ERR_DIED, "%s is gone: %s", l->rendezvous_name, l->conn.why);
    word.rank = 0;
    set_verdict(l, word);
}

/* ---- the rendezvous ---- */

static void say_hello(struct launcher *l)
{
    const char *fingerprint =
        l->launch->asked.fingerprint != NULL ? l->launch->asked.fingerprint : "";
    struct conn_hello hello = {.rank = l->rank,
                               .size = l->size,
                               .pid = (uint32_t)getpid(),
                               .abi = EPA_ABI,
                               .host = l->host};

    memcpy(hello.job, l->order->contact.job, sizeof(hello.job));
    hello.mask_bytes = (uint32_t)pin_mask(hello.mask, sizeof(hello.mask));
    conn_put(&l->conn, CONN_HELLO, &hello, sizeof(hello), fingerprint,
             strnlen(fingerprint, CONN_FINGERPRINT_MAX));
    if (l->launch->failure.status != EPA_OK)
        conn_put_word(&l->conn, CONN_WORD, &l->launch->failure);
}

/* Starts dialling the rendezvous. `fd`: an existing connection to it, or -1. */
static void start_dialling(struct launcher *l, int fd)
{
    const struct launcher_contact *contact = &l->order->contact;

    l->phase = DIALING;
    net_dial_init(&l->dial, contact, fd);
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (address %.100s, port %u)",
             contact->local[0] != 0 ? contact->local : contact->address[0], contact->port);
}

static void advance_dialling(struct launcher *l, short revents, uint64_t now)
{
    enum net_dialed dialed = net_dial_turn(&l->dial, revents, now, &l->conn);

    if (dialed == NET_PROVED) {
        l->conn.limit = bootstrap_slot_bytes(l->size) + l->size * sizeof(uint32_t) + 1024;
        l->polled_ns = now;
        l->phase = WAITING;
        say_hello(l);
    } else if (dialed == NET_REFUSED) {
        set_verdict(l, conn_word_of(EPA_ERR_CONFIG, "%s", l->dial.why));
    } else if (is_orphan(l) || now - l->began_ns > l->settings->start_ns) {
        set_verdict(l,
                    l->launch->failure.status != EPA_OK
                        ? l->launch->failure
                        : conn_word_of(EPA_ERR_TIMEOUT,
                                       "%s cannot reach rank 0 within %.3g s (launcher.start): %s",
                                       l->me, (double)l->settings->start_ns * 1e-9, l->dial.why));
    }
}

/* All ranks have connected: starts the rank of this launcher. */
static void on_welcome(struct launcher *l, const struct conn_message *m)
{
    struct launch_rank *rank = l->launch->rank;
    struct order *order = l->order;
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
    l->ran = true;
    if (!keeps_process(l))
        (void)launch_start_process(rank, rank_process); /* reports a failure itself */
    else if (eventfd_write(l->orders, ORDER_RUN) == 0)
        launch_set_live(rank, true);
}

/* Another rank has reached a step of the set-up. */
static void on_step(struct launcher *l, const struct conn_message *m)
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

static void on_message(struct launcher *l, const struct conn_message *m)
{
    struct conn_word word;

    if ((m->type == CONN_REFUSED || m->type == CONN_VERDICT) && conn_get_word(m, &word)) {
        set_verdict(l, word);
        l->rank_0_reports = m->type == CONN_VERDICT;
    } else if (m->type == CONN_ABORT) {
        control_abort(l->control);
        l->launch->abort_known = true;
    } else if (m->type == CONN_WELCOME) {
        on_welcome(l, m);
    } else if (m->type == CONN_STEP) {
        on_step(l, m);
    } else if (m->type != CONN_ALIVE) {
        lose_rendezvous(l, "it sent a malformed message");
    }
}

static void send_block(struct launcher *l)
{
    const struct epa_launch *asked = &l->launch->asked;
    size_t bytes = l->ran && l->rank != 0 && asked->block != NULL ? asked->block_bytes : 0;
    const char *from = bytes > 0 ? asked->block + l->rank * bytes : NULL;

    if (!conn_put_block(&l->conn, l->rank, from, bytes, &l->block_at))
        return;
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
            on_message(l, &m);
        if (!l->judged && conn_find_loss(&l->conn, now, l->polled_ns, l->settings->heartbeat_ns))
            lose_rendezvous(l, "");
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

/* ---- one launch ---- */

/* Reads the news of the rank's process from the shared memory. */
static void check_rank(struct launcher *l)
{
    const struct epa_error *err = &l->order->err;
    struct launch *launch = l->launch;
    const void *data;
    size_t bytes;

    /* Acquire: pairs with the release in kept_process(). */
    if (!l->met && __atomic_load_n(&l->order->met, __ATOMIC_ACQUIRE) != 0) {
        l->met = true;
        launch->meeting = false;
        launch_set_live(launch->rank, l->ran);
        if (err->status != EPA_OK) {
            launch_fail(launch, conn_word_of(err->status, "%s: %.300s", l->me, err->text));
        } else if (l->phase == MEETING) {
            start_dialling(l, -1);
        }
    }
    /* The rank is at most one step ahead of the other ranks, so the slot still holds its data. */
    while (l->phase == RUNNING && control_step(l->control, l->rank, l->sent + 1, &data, &bytes))
        conn_put_piece(&l->conn, CONN_STEP, l->rank, ++l->sent, data, bytes);
    if (control_aborted(l->control) && !launch->abort_known)
        launch_fail(launch, conn_word_of(EPA_ERR_ABORTED, "%s", ""));
    if (l->phase < RUNNING && !l->judged && is_orphan(l))
        launch_fail(launch, conn_word_of(EPA_ERR_DIED,
                                         "%s: mpirun ended before all ranks had connected", l->me));
    else if (!l->met && !l->judged && epa_now_ns() - l->began_ns > l->settings->start_ns)
        launch_fail(launch,
                    conn_word_of(EPA_ERR_TIMEOUT,
                                 "%s did not reach the other ranks within %.3g s (launcher.start)",
                                 l->me, (double)l->settings->start_ns * 1e-9));
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

bool launcher_turn(struct launcher *l, const struct pollfd *fds)
{
    uint64_t now = epa_now_ns();

    l->began_ns += epa_pause_ns(&l->turned_ns, now, l->settings->start_ns);
    check_rank(l);
    advance_connection(l, fds[0].revents, now);
    if (l->rendezvous == NULL)
        return l->judged;
    /* Other ranks cannot connect before meet() has sent them the address. */
    rendezvous_turn(l->rendezvous, fds + 1, !l->met && control_aborted(l->control));
    return l->judged && rendezvous_over(l->rendezvous);
}

static enum epa_status begin_launch(struct launcher *l, struct epa_error *err)
{
    struct launch_rank *rank = l->launch->rank;
    enum epa_status status = EPA_OK;
    int ends[2];

    if (l->process.pid != 0) {
        rank->process = l->process;
        rank->process.relay.prefix = l->launch->prefix;
        rank->process.relay.asked = &l->launch->asked;
    } else if (keeps_process(l) && !l->lost && !launch_start_process(rank, kept_process)) {
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
        start_dialling(l, ends[1]);
    } else if (l->met || l->params.contact != NULL) {
        start_dialling(l, -1);
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
        return epa_fail(err, EPA_ERR_CONFIG, "the experiment has %u ranks, but %u were started: %s",
                        asked->ranks, l->size, l->params.process_id.source);
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
    unsigned char mac[MAC_BYTES];

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
    if (status == EPA_OK && !mac_of("key", 3, "", 0, mac))
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "ranks cannot authenticate each other: this epa2a was built without "
                          "OpenSSL, and the kernel has no AF_ALG with hmac(sha256)");
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
