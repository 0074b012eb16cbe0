/* A launcher's connection to the rendezvous, which it dials or has itself. What the ranks of other
 * processes bring to the set-up it writes into the control page (process.h) that it shares with
 * the process of its rank, as if they were here. Until the rendezvous has proved who it is, it
 * dials again; from then on a connection that is closed or silent means that rank 0 is lost. */
#include "launch/launch.h"

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
#include "launch/conn.h"
#include "launch/process.h"

enum {
    POLL_MS = 20,
    LEAVE_MS = 1000,   /* for a kept process to end */
    REPORT_MS = 30000, /* and for rank 0 to report, if leave() waits for all ranks */
    REPORT_S = 5,      /* for rank 0 to report a failure before we leave with it */
    TURN_PIECES = 128, /* of a block, before others have their turn */
};

/* Orders to a process that is kept. */
enum { ORDER_RUN = 1, ORDER_LEAVE };

/* Shared with the process of the rank: what it is to run. */
struct order {
    struct epa_launch asked;
    struct epa_world world; /* without cores */
    char interface[CONN_INTERFACE];
    enum pin pin;
    uint32_t share, shares;
    /* The result of meet(), once `met` is set. */
    uint32_t met;
    struct epa_error err;
    struct launcher_contact contact;
    uint32_t node[];
};

struct launcher {
    struct launcher_params params;
    struct launcher_contact contact;
    struct nodes_host host;
    int listener;
    int wake,
        orders; /* eventfds: written by the process of the rank, and read by one that is kept */
    struct control *control;
    struct order *order;
    size_t order_bytes;
    struct process process;        /* that is kept, between launches */
    bool met;                      /* meet() has returned, or there is none */
    bool lost;                     /* the process was to be kept, and is gone */
    pid_t parent;
    struct rendezvous *rendezvous; /* rank 0; stays until the next launch, as its connections do */
    struct net_dial dial;
    struct conn conn; /* to the rendezvous */
    char rendezvous_name[200];
    /* The launch at hand. */
    const struct launcher_settings *settings;
    struct launch *launch;
    enum phase {
        MEETING, /* meet() has not returned: the address of the rendezvous is not known */
        DIALING, /* until it has proved that it is the rendezvous */
        WAITING, /* for all ranks */
        RUNNING,
        LEAVING, /* the results of the rank are being sent */
        DONE,
    } phase;
    bool ran;                 /* the rank was started */
    bool judged;              /* the verdict is there */
    struct conn_word verdict; /* how it ended for all */
    bool rank_0_reports;      /* the verdict is the rendezvous', so rank 0 has it as well */
    uint64_t sent;            /* steps of the set-up */
    size_t block_at;
    uint64_t began_ns, polled_ns;
};

bool launcher_keeps_process(const struct launcher *l)
{
    return l->params.meet != NULL;
}

/* mpirun is gone, and so may be all that this rank would wait for. */
static bool is_orphan(const struct launcher *l)
{
    return l->params.meet != NULL && getppid() != l->parent;
}

static uint32_t my_rank(const struct launcher *l)
{
    return l->params.process_id.rank;
}

static const struct epa_launch *asked_of(const struct launcher *l)
{
    return &l->launch->asked;
}

/* ---- the process of the rank ---- */

static enum epa_status run_order(struct launcher *l)
{
    const struct order *order = l->order;
    struct launch launch = {.asked = order->asked, .control = l->control};
    struct epa_world world = order->world;
    enum epa_status status;

    if (pin_plan_init(&launch.pins, order->pin, order->shares, order->asked.threads, NULL) ==
        EPA_OK)
        world.cores = pin_plan_rank(&launch.pins, order->share, &world.core);
    status = launch_run_rank(&launch, &world, l->wake);
    pin_plan_finish(&launch.pins);
    return status;
}

/* What the launcher has open is its own. */
static struct launcher *close_inherited(const struct launch_rank *rank)
{
    struct launcher *l = rank->launch->launcher;

    process_close_inherited(&rank->process);
    if (l->listener >= 0)
        close(l->listener);
    if (l->conn.fd >= 0)
        close(l->conn.fd);
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
    order->contact = l->contact;
    status = l->params.meet(l->params.arg, &order->contact, &order->err);
    if (status != EPA_OK)
        (void)epa_fail(&order->err, status, "no reason was given");
    /* Release: pairs with the acquire in look_at_rank(). */
    __atomic_store_n(&order->met, 1, __ATOMIC_RELEASE);
    (void)eventfd_write(l->wake, 1);
    (void)pin_plan_init(&all, PIN_NONE, 1, 1, NULL);
    while (eventfd_read(l->orders, &what) == 0 && what == ORDER_RUN) {
        if (all.cores > 0) /* an earlier launch may have left us on one */
            (void)pin_self_any(all.order, all.cores);
        status = run_order(l);
        (void)eventfd_write(l->wake, 1);
    }
    pin_plan_finish(&all);
    if (l->params.leave != NULL)
        l->params.leave(l->params.arg);
    return process_code(status);
}

/* ---- how it ends ---- */

static void judge(struct launcher *l, struct conn_word verdict)
{
    if (l->judged)
        return;
    l->judged = true;
    l->verdict = verdict;
    if (verdict.status == EPA_OK)
        return;
    control_abort(l->control);
    l->launch->abort_known = true;
}

/* What failed here is sent now or later or, where the rendezvous is not to be reached, is the
 * verdict. */
void launcher_report(struct launcher *l, const struct conn_word *word)
{
    if (l->phase >= WAITING)
        conn_put_word(&l->conn, CONN_WORD, word);
    else if (l->phase == MEETING || word->status == EPA_ERR_INTERRUPTED)
        judge(l, l->launch->failure);
}

static void lose_rendezvous(struct launcher *l, const char *how)
{
    conn_close(&l->conn, "%s", how);
    judge(l, conn_word_of(EPA_ERR_DIED, 0, 0, "%s is gone: %s", l->rendezvous_name, l->conn.why));
}

void launcher_lose_process(struct launcher *l)
{
    l->lost = launcher_keeps_process(l);
}

/* ---- the rendezvous ---- */

static void say_hello(struct launcher *l)
{
    const char *fingerprint = asked_of(l)->fingerprint != NULL ? asked_of(l)->fingerprint : "";
    struct {
        struct conn_hello hello;
        unsigned char mask[CONN_MASK_MAX];
    } first = {.hello = {.rank = my_rank(l),
                         .size = l->params.process_id.size,
                         .pid = (uint32_t)getpid(),
                         .abi = EPA_ABI}};
    size_t bytes = strlen(fingerprint);

    memcpy(first.hello.host, l->host.name, sizeof(first.hello.host));
    memcpy(first.hello.machine, l->host.machine, sizeof(first.hello.machine));
    memcpy(first.hello.identity, l->host.identity, sizeof(first.hello.identity));
    first.hello.mask_bytes = (uint32_t)pin_mask(first.mask, sizeof(first.mask));
    conn_put(&l->conn, CONN_HELLO, &first, sizeof(first.hello) + first.hello.mask_bytes,
             fingerprint, bytes < CONN_FINGERPRINT_MAX ? bytes : CONN_FINGERPRINT_MAX);
    if (l->launch->failure.status != EPA_OK)
        conn_put_word(&l->conn, CONN_WORD, &l->launch->failure);
}

/* `fd` is a connection to it, or -1. */
static void dial(struct launcher *l, int fd)
{
    const struct launcher_contact *contact = &l->contact;

    l->phase = DIALING;
    net_dial_init(&l->dial, contact, fd);
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (address %.100s, port %u)",
             contact->local[0] != 0 ? contact->local : contact->address[0], contact->port);
}

static void dial_turn(struct launcher *l, short revents, uint64_t now)
{
    uint32_t size = l->params.process_id.size;
    enum net_dialed dialed = net_dial_turn(&l->dial, revents, now, &l->conn);

    if (dialed == NET_PROVED) {
        l->conn.limit = bootstrap_slot_bytes(size) + size * sizeof(uint32_t) + 1024;
        l->polled_ns = now;
        l->phase = WAITING;
        say_hello(l);
    } else if (dialed == NET_REFUSED) {
        judge(l, conn_word_of(EPA_ERR_CONFIG, UINT32_MAX, 0, "%s", l->dial.why));
    } else if (is_orphan(l) || now - l->began_ns > l->settings->start_ns) {
        if (l->launch->failure.status != EPA_OK)
            judge(l, l->launch->failure);
        else
            judge(l,
                  conn_word_of(
                      EPA_ERR_TIMEOUT, UINT32_MAX, 0,
                      "rank %u (host %.64s) cannot reach rank 0 within %.3g s (launcher.start): %s",
                      my_rank(l), l->host.name, (double)l->settings->start_ns * 1e-9, l->dial.why));
    }
}

/* All ranks have connected: ours is started. */
static void hear_welcome(struct launcher *l, const struct conn_message *m)
{
    uint32_t size = l->params.process_id.size, me = my_rank(l);
    struct launch_rank *rank = l->launch->rank;
    struct order *order = l->order;
    struct conn_welcome w;

    if (l->phase > RUNNING) /* a failure here crossed it on its way */
        return;
    if (l->phase != WAITING || !conn_get_welcome(m, size, &w, order->node)) {
        lose_rendezvous(l, "it sent a malformed message");
        return;
    }
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (host %.64s, pid %u)", w.host,
             w.pid);
    l->phase = RUNNING;
    if (control_aborted(l->control))
        return;
    order->asked = *asked_of(l);
    order->pin = (enum pin)l->settings->pin;
    order->share = w.share;
    order->shares = w.shares;
    order->world = (struct epa_world){
        .rank = me, .size = size, .node = order->node, .local_cores = w.local_cores};
    /* Ranks of rank 0's host may have connected by the loopback: the interface by which others did
     * is theirs, too. */
    net_interface(l->conn.fd, order->interface);
    if (order->interface[0] == 0)
        memcpy(order->interface, w.interface, sizeof(order->interface));
    order->world.interface = w.hosts > 1 ? order->interface : NULL;
    for (uint32_t r = 0; r < size; r++) {
        order->world.local_rank += order->node[r] == order->node[me] && r < me;
        order->world.local_size += order->node[r] == order->node[me];
    }
    l->ran = true;
    if (!launcher_keeps_process(l))
        (void)launch_start_process(rank, rank_process); /* has reported why not */
    else if (eventfd_write(l->orders, ORDER_RUN) == 0)
        launch_set_live(rank, true);
}

/* Another rank has reached a step. */
static void hear_step(struct launcher *l, const struct conn_message *m)
{
    uint32_t size = l->params.process_id.size;
    struct conn_message data;
    struct conn_piece piece;
    const void *before;
    size_t bytes;

    if (!conn_get_step(m, size, bootstrap_slot_bytes(size), &piece, &data) ||
        piece.rank == my_rank(l) || piece.number == 0 || piece.number > l->sent + 1 ||
        (piece.number > 1 &&
         !control_step(l->control, piece.rank, piece.number - 1, &before, &bytes)))
        lose_rendezvous(l, "it sent a malformed message");
    else
        control_arrive(l->control, piece.rank, piece.number, data.data, data.bytes);
}

static void hear(struct launcher *l, const struct conn_message *m)
{
    struct conn_word word;

    if ((m->type == CONN_REFUSED || m->type == CONN_VERDICT) && conn_get_word(m, &word)) {
        judge(l, word);
        l->rank_0_reports = m->type == CONN_VERDICT;
    } else if (m->type == CONN_ABORT) {
        control_abort(l->control);
        l->launch->abort_known = true;
    } else if (m->type == CONN_WELCOME) {
        hear_welcome(l, m);
    } else if (m->type == CONN_STEP) {
        hear_step(l, m);
    } else if (m->type != CONN_ALIVE) {
        lose_rendezvous(l, "it sent a malformed message");
    }
}

static bool is_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* What was never written is left out: rank 0 has zeros there, too. */
static void push_block(struct launcher *l)
{
    const struct epa_launch *asked = asked_of(l);
    uint32_t me = my_rank(l);
    size_t bytes = l->ran && me != 0 && asked->block != NULL ? asked->block_bytes : 0;

    for (uint32_t i = 0; i < TURN_PIECES && conn_all_sent(&l->conn) && l->block_at < bytes; i++) {
        const char *from = asked->block + me * bytes + l->block_at;
        size_t n = bytes - l->block_at < CONN_BLOCK_MAX ? bytes - l->block_at : CONN_BLOCK_MAX;

        if (!is_zero(from, n))
            conn_put_piece(&l->conn, CONN_BLOCK, me, l->block_at, from, n);
        l->block_at += n;
        conn_turn(&l->conn, 0);
    }
    if (l->block_at < bytes)
        return;
    conn_say(&l->conn, CONN_DONE);
    l->phase = DONE;
}

static void conn_turns(struct launcher *l, short revents, uint64_t now)
{
    struct conn_message m;
    char how[80];

    if (!l->judged && l->phase == DIALING) {
        dial_turn(l, revents, now);
    } else if (!l->judged && l->phase >= WAITING) {
        conn_turn(&l->conn, revents);
        while (!l->judged && conn_take(&l->conn, &m))
            hear(l, &m);
        if (!l->judged && conn_find_loss(&l->conn, now, l->polled_ns, l->settings->heartbeat_ns,
                                         how, sizeof(how)))
            lose_rendezvous(l, how);
        l->polled_ns = now;
    }
    if (l->judged)
        return;
    if ((l->phase == RUNNING || (l->phase == WAITING && control_aborted(l->control))) &&
        l->launch->live == 0)
        l->phase = LEAVING;
    if (l->phase == LEAVING)
        push_block(l);
    conn_turn(&l->conn, 0);
}

/* ---- one launch ---- */

/* What is new in the memory that the process shares. */
static void look_at_rank(struct launcher *l)
{
    const struct epa_error *err = &l->order->err;
    struct launch *launch = l->launch;
    const void *data;
    size_t bytes;

    /* Acquire: pairs with the release in kept_process(). */
    if (!l->met && __atomic_load_n(&l->order->met, __ATOMIC_ACQUIRE) != 0) {
        l->met = true;
        launch_set_live(launch->rank, l->ran);
        if (err->status != EPA_OK) {
            launch_fail(launch,
                        conn_word_of(err->status, UINT32_MAX, 0, "rank %u (host %.64s): %.300s",
                                     my_rank(l), l->host.name, err->text));
        } else {
            l->contact = l->order->contact;
            if (l->phase == MEETING)
                dial(l, -1);
        }
    }
    /* The rank may be one step ahead: what others bring to the next is not in its slot yet. */
    while (l->phase == RUNNING && control_step(l->control, my_rank(l), l->sent + 1, &data, &bytes))
        conn_put_piece(&l->conn, CONN_STEP, my_rank(l), ++l->sent, data, bytes);
    if (control_aborted(l->control) && !launch->abort_known)
        launch_fail(launch, conn_word_of(EPA_ERR_ABORTED, UINT32_MAX, 0, "%s", ""));
    if (l->phase < RUNNING && !l->judged && is_orphan(l))
        launch_fail(launch, conn_word_of(EPA_ERR_DIED, UINT32_MAX, 0,
                                         "rank %u (host %.64s): mpirun was gone before all ranks "
                                         "had met",
                                         my_rank(l), l->host.name));
    else if (!l->met && !l->judged && epa_now_ns() - l->began_ns > l->settings->start_ns)
        launch_fail(
            launch,
            conn_word_of(
                EPA_ERR_TIMEOUT, UINT32_MAX, 0,
                "rank %u (host %.64s) did not meet the others within %.3g s (launcher.start)",
                my_rank(l), l->host.name, (double)l->settings->start_ns * 1e-9));
    if (!l->met && l->rendezvous != NULL && control_aborted(l->control))
        rendezvous_expect_nobody(l->rendezvous); /* they do not know where it is */
}

uint32_t launcher_polls(const struct launcher *l, struct pollfd *out)
{
    out[0] = l->phase == DIALING
                 ? net_dial_poll(&l->dial)
                 : (struct pollfd){.fd = l->conn.fd, .events = conn_events(&l->conn)};
    return 1 + (l->rendezvous != NULL ? rendezvous_polls(l->rendezvous, out + 1) : 0);
}

int launcher_pause_ms(const struct launcher *l)
{
    return l->judged ? 1 : POLL_MS;
}

void launcher_turn(struct launcher *l, const struct pollfd *fds, uint32_t n)
{
    look_at_rank(l);
    conn_turns(l, fds[0].revents, epa_now_ns());
    if (l->rendezvous != NULL)
        rendezvous_turn(l->rendezvous, fds + 1, n - 1);
}

bool launcher_is_meeting(const struct launcher *l)
{
    return !l->met;
}

bool launcher_over(const struct launcher *l)
{
    return l->judged && (l->rendezvous == NULL || rendezvous_over(l->rendezvous));
}

/* Rank 0 has the rendezvous at hand, and is connected to it like everybody else. */
static enum epa_status start_rendezvous(struct launcher *l, struct epa_error *err)
{
    struct rendezvous_params params = {.asked = asked_of(l),
                                       .token = l->contact.token,
                                       .listener = l->listener,
                                       .start_ns = l->settings->start_ns,
                                       .heartbeat_ns = l->settings->heartbeat_ns};
    enum epa_status status = rendezvous_create(&params, &l->rendezvous, err);
    int ends[2];

    if (status != EPA_OK)
        return status;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    rendezvous_adopt(l->rendezvous, ends[0]);
    dial(l, ends[1]);
    return EPA_OK;
}

static enum epa_status begin(struct launcher *l, struct epa_error *err)
{
    struct launch_rank *rank = l->launch->rank;
    enum epa_status status = EPA_OK;

    if (l->process.pid != 0) {
        rank->process = l->process;
        launch_take_output(rank);
    } else if (launcher_keeps_process(l) && !l->lost && !launch_start_process(rank, kept_process)) {
        return launch_report(l->launch, &l->launch->failure, err);
    }
    if (my_rank(l) == 0)
        status = start_rendezvous(l, err);
    else if (l->met || l->params.contact != NULL)
        dial(l, -1);
    if (status == EPA_OK && l->lost)
        launch_fail(
            l->launch,
            conn_word_of(
                EPA_ERR_UNSUPPORTED, UINT32_MAX, 0,
                "the process of rank %u (host %.64s) was lost in an earlier run, and cannot be "
                "started again in this job",
                my_rank(l), l->host.name));
    return status;
}

/* A signal that stopped one rank stops all: each is to end as if it had received the same signal,
 * where signals are looked for. */
static void share_signal(uint32_t number)
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

static enum epa_status end(const struct launcher *l, struct epa_error *err)
{
    const struct conn_word *verdict = &l->verdict;

    /* Nobody outside knows better than we do that the rank here has died. */
    if (l->launch->death.status != EPA_OK && verdict->status != EPA_ERR_DIED && my_rank(l) != 0)
        return launch_report(l->launch, &l->launch->death, err);
    if (verdict->status == EPA_ERR_INTERRUPTED)
        share_signal(verdict->signal);
    /* What rank 0 reports for all, the others do not. */
    if (l->rank_0_reports && my_rank(l) != 0)
        return (enum epa_status)verdict->status;
    return launch_report(l->launch, verdict, err);
}

enum epa_status launcher_launch(struct launcher *l, const struct launcher_settings *settings,
                                const struct epa_launch *asked, struct epa_error *err)
{
    struct launch *launch;
    enum epa_status status;

    if (asked->ranks != l->params.process_id.size)
        return epa_fail(err, EPA_ERR_CONFIG, "%u ranks are requested, and there are %u: %s",
                        asked->ranks, l->params.process_id.size, l->params.process_id.source);
    launch = launch_create(asked, my_rank(l), 1, 1 + rendezvous_poll_room(asked->ranks));
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
    l->began_ns = epa_now_ns();
    launch->launcher = l;
    launch->control = l->control;
    launch->wake = l->wake;
    launch->host = l->host.name;
    launch->prefix = settings->prefix;
    status = begin(l, err);
    if (status == EPA_OK) {
        launch_watch(launch);
        status = end(l, err);
    }
    l->process = launch->rank->process; /* of this launch nothing is used any more */
    relay_turn(&l->process.relay);
    l->process.relay.before = NULL;
    net_dial_finish(&l->dial);
    launch_release(launch);
    l->launch = NULL;
    return status;
}

/* ---- life ---- */

static void end_process(struct launcher *l)
{
    /* Killed, it would be a failure after all; after one, it may wait for who is gone. */
    uint64_t ms = l->verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;
    uint64_t kill_ns = epa_now_ns() + ms * 1000000;
    int code;

    if (l->process.pid == 0)
        return;
    (void)eventfd_write(l->orders, ORDER_LEAVE);
    while (!process_ended(&l->process, EPA_OK, &code)) {
        relay_turn(&l->process.relay);
        if (epa_now_ns() > kill_ns && !l->process.killed) {
            process_kill(&l->process);
            if (l->verdict.status == EPA_OK)
                fprintf(stderr,
                        "warning: rank %u (host %s, pid %d) did not leave within %g s of its last "
                        "run, and was killed\n",
                        my_rank(l), l->host.name, (int)l->process.pid, (double)ms * 1e-3);
        }
        (void)poll(NULL, 0, 1);
    }
    process_finish(&l->process);
}

static void wait_for_rank_0(struct launcher *l)
{
    uint64_t end_ns = epa_now_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (!launcher_keeps_process(l) || my_rank(l) == 0 || l->verdict.status == EPA_OK)
        return;
    while (l->conn.fd >= 0 && epa_now_ns() < end_ns) {
        struct pollfd fd = {.fd = l->conn.fd, .events = POLLIN};

        if (poll(&fd, 1, POLL_MS) > 0)
            conn_turn(&l->conn, fd.revents);
        while (conn_take(&l->conn, &m))
            continue;
    }
}

void launcher_meet_here(struct launcher_contact *contact, uint32_t job)
{
    snprintf(contact->token, sizeof(contact->token), "local");
    snprintf(contact->local, sizeof(contact->local), "epa2a.%u.%08x.%u", (unsigned)getuid(), job,
             contact->port);
}

void launcher_destroy(struct launcher *l)
{
    if (l == NULL)
        return;
    end_process(l);
    wait_for_rank_0(l);
    rendezvous_destroy(l->rendezvous);
    conn_finish(&l->conn);
    if (l->listener >= 0)
        close(l->listener);
    if (l->wake >= 0)
        close(l->wake);
    if (l->orders >= 0)
        close(l->orders);
    control_destroy(l->control);
    if (l->order != NULL)
        munmap(l->order, l->order_bytes);
    free(l);
}

enum epa_status launcher_create(const struct launcher_params *params, struct launcher **out,
                                struct epa_error *err)
{
    struct launcher *l = memory_alloc(1, sizeof(*l));
    uint32_t size = params->process_id.size;
    enum epa_status status = EPA_OK;
    unsigned char mac[MAC_BYTES];
    void *shared;

    l->params = *params;
    l->met = params->meet == NULL;
    l->parent = getppid();
    process_init(&l->process);
    l->conn.fd = l->dial.conn.fd = l->listener = -1;
    l->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK);
    l->orders = eventfd(0, EFD_CLOEXEC);
    nodes_host(&l->host);
    if (params->contact != NULL)
        l->contact = *params->contact;
    if (size == 1)
        snprintf(l->contact.token, sizeof(l->contact.token), "alone");
    l->order_bytes = sizeof(*l->order) + size * sizeof(l->order->node[0]);
    shared = mmap(NULL, l->order_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared != MAP_FAILED)
        l->order = shared;
    if (shared == MAP_FAILED || l->wake < 0 || l->orders < 0)
        status =
            epa_fail(err, EPA_ERR_SYSTEM, "mmap or eventfd of a launcher: %s", strerror(errno));
    if (status == EPA_OK && !mac_of("key", 3, "", 0, mac))
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "ranks cannot prove to each other who they are: this epa2a was built "
                          "without OpenSSL, and the kernel has no AF_ALG with hmac(sha256)");
    if (status == EPA_OK && my_rank(l) == 0 && size > 1)
        status = net_listen(&l->contact, params->interface, &l->listener, err);
    if (status == EPA_OK)
        status = control_create(size, &l->control, err);
    if (status != EPA_OK) {
        launcher_destroy(l);
        return status;
    }
    *out = l;
    return EPA_OK;
}
