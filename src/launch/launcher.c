/* An agent's life: it starts the process of its rank, dials the rendezvous or is it, and stays in
 * poll() until the verdict is there and the process has come to rest.
 *
 * With the process it shares memory: the control page of bootstrap.h, where it stands in for the
 * ranks of others, and an order. A byte over a socket says that there is something new in it.
 * Until it is sure to talk to the rendezvous it tries again; from then on a connection that is
 * lost or silent means that rank 0 is. */
#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/conn.h"
#include "launch/net.h"
#include "launch/nodes.h"
#include "launch/process.h"
#include "launch/rendezvous.h"

enum {
    OWN_POLLS = 5, /* stop_fd, pidfd, output and socket of the process, the rendezvous */
    POLL_MS = 20,
    LEAVE_MS = 1000,   /* for a kept process to end */
    REPORT_MS = 30000, /* and for rank 0 to report, if leave() waits for all ranks */
    REPORT_S = 5,      /* for rank 0 to report a failure before we leave with it */
    TURN_PIECES = 128, /* of a block, before others have their turn */
    RUN = 'r',
    LEAVE = 'l', /* what the process is told */
};

enum phase {
    MEETING, /* meet() has not returned: the address of the rendezvous is not known */
    DIALING, /* until it has proved that it is the rendezvous */
    WAITING, /* for all ranks */
    RUNNING,
    LEAVING, /* what the rank left is on its way */
    DONE,
};

/* Shared with the process. */
struct order {
    /* What it is to run. */
    enum epa_status (*rank_main)(struct epa_bootstrap *, void *arg);
    void *arg;
    uint64_t timeout_ns;
    struct epa_world world; /* without cores */
    char interface[CONN_INTERFACE];
    enum pin pin;
    uint32_t share, shares, threads;
    /* What came of meet(), once `met` is set. */
    uint32_t met;
    struct epa_error err;
    struct launcher_contact contact;
    uint32_t node[];
};

/* The launch at hand. */
struct run {
    const struct launcher_settings *settings;
    const struct epa_launch *asked;
    enum phase phase;
    bool stopping;            /* stop_fd could be read */
    bool ran, returned;       /* the rank was told to run; it has, or will not */
    bool left;                /* the process was told to end */
    bool abort_known;         /* to the rendezvous */
    bool word_ready, judged;  /* of the words below */
    struct conn_word word;    /* what went wrong here first */
    struct conn_word death;   /* of the rank here; status 0: it lives, or ended well */
    struct conn_word verdict; /* how it ended for all */
    bool rank_0_tells;        /* the verdict is the rendezvous', so rank 0 has it as well */
    uint64_t sent, step;      /* steps of the set-up that were passed on, and that all came to */
    size_t block_at;
    int stop_fd;
    uint64_t began_ns, grace_end_ns;
    uint64_t looked_ns; /* for signs of life of the rendezvous, last */
};

struct launcher {
    struct launcher_params params;
    struct launcher_contact contact;
    struct nodes_host host;
    int listener;
    struct control *control;
    struct order *order;
    size_t order_bytes;
    struct process process;
    int child, child_end;          /* our end of the socket to it; its own, while it is forked */
    bool met;                      /* meet() has returned, or there is none */
    bool lost;                     /* the process was to be kept, and is gone */
    struct rendezvous *rendezvous; /* rank 0; stays until the next launch, as its connections do */
    struct net_dial dial;
    struct conn conn; /* to the rendezvous */
    char rendezvous_name[200];
    struct run run;
};

static bool keeps_process(const struct launcher *l)
{
    return l->params.meet != NULL;
}

static uint32_t my_rank(const struct launcher *l)
{
    return l->params.process_id.rank;
}

/* ---- the process of the rank ---- */

static void run_order(struct launcher *l, int fd, const struct pin_plan *all)
{
    const struct order *order = l->order;
    struct epa_world world = order->world;
    struct pin_plan plan = {0};
    struct bootstrap boot;
    enum epa_status status;

    if (all->cores > 0) /* an earlier launch may have left us on one */
        (void)pin_self_any(all->order, all->cores);
    if (pin_plan_init(&plan, order->pin, order->shares, order->threads, NULL) == EPA_OK)
        world.cores = pin_plan_rank(&plan, order->share, &world.core);
    pin_rank(&world);
    bootstrap_init(&boot, l->control, &world, order->timeout_ns);
    boot.wake_fd = fd;
    status = order->rank_main(&boot.base, order->arg);
    pin_plan_finish(&plan);
    fflush(stdout);
    fflush(stderr);
    control_return(l->control, world.rank, status);
}

/* A process_start() function: runs a rank, once or as often as there are launches. */
static int rank_process(void *arg)
{
    struct launcher *l = arg;
    struct order *order = l->order;
    enum epa_status status = EPA_OK;
    struct pin_plan all = {0};
    int fd = l->child_end;
    char told;

    process_close_inherited(&l->process);
    close(l->child);
    if (l->listener >= 0)
        close(l->listener);
    if (keeps_process(l)) {
        order->err.status = EPA_OK;
        order->contact = l->contact;
        status = l->params.meet(l->params.arg, &order->contact, &order->err);
        if (status != EPA_OK)
            (void)epa_fail(&order->err, status, "no reason was given");
        /* Release: pairs with the acquire in look_at_process(). */
        __atomic_store_n(&order->met, 1, __ATOMIC_RELEASE);
        (void)!send(fd, "", 1, MSG_NOSIGNAL);
    }
    (void)pin_plan_init(&all, PIN_NONE, 1, 1, NULL);
    while (recv(fd, &told, 1, 0) == 1 && told == RUN) {
        run_order(l, fd, &all);
        (void)control_returned(l->control, my_rank(l), &status);
        (void)!send(fd, "", 1, MSG_NOSIGNAL);
        if (!keeps_process(l))
            break;
    }
    pin_plan_finish(&all);
    close(fd);
    if (l->params.leave != NULL)
        l->params.leave(l->params.arg);
    return process_code(status);
}

static enum epa_status start_process(struct launcher *l, struct epa_error *err)
{
    int ends[2];
    enum epa_status status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    l->child = ends[0];
    l->child_end = ends[1];
    fflush(stdout); /* or the rank would print it again */
    fflush(stderr);
    status = process_start(&l->process, my_rank(l), l->run.settings->prefix, rank_process, l, err);
    close(ends[1]);
    if (status != EPA_OK) {
        close(l->child);
        l->child = -1;
    }
    return status;
}

static void finish_process(struct launcher *l)
{
    process_finish(&l->process);
    close(l->child);
    l->child = -1;
}

static void tell_process(struct launcher *l, char what)
{
    (void)!send(l->child, &what, 1, MSG_DONTWAIT | MSG_NOSIGNAL);
}

/* Whether it does nothing for this launch any more. */
static bool is_quiet(const struct launcher *l)
{
    if (l->process.pid == 0)
        return true;
    if (!keeps_process(l))
        return !l->run.ran;
    return l->met && (!l->run.ran || l->run.returned);
}

/* ---- how it ends ---- */

static void abort_rank(struct launcher *l)
{
    control_abort(l->control);
    l->run.abort_known = true;
}

static void judge(struct launcher *l, const struct conn_word *verdict)
{
    if (l->run.judged)
        return;
    l->run.judged = true;
    l->run.verdict = *verdict;
    if (verdict->status != EPA_OK)
        abort_rank(l);
}

/* Something went wrong here: the rendezvous is told, now or later, or, where it is not to be
 * reached, that is how it ends. */
static void fail_by_word(struct launcher *l, const struct conn_word *word)
{
    struct run *run = &l->run;

    abort_rank(l);
    if (!run->word_ready ||
        (run->word.status == EPA_ERR_ABORTED && word->status != EPA_ERR_ABORTED)) {
        run->word = *word;
        run->word_ready = true;
    }
    if (run->phase >= WAITING)
        conn_put_word(&l->conn, CONN_WORD, word);
    else if (run->phase == MEETING || run->word.status == EPA_ERR_INTERRUPTED)
        judge(l, &run->word);
}

EPA_PRINTF(4, 5)
static struct conn_word make_word(enum epa_status status, uint32_t rank, uint32_t signal,
                                  const char *fmt, ...)
{
    struct conn_word word = {.status = status, .rank = rank, .signal = signal};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    return word;
}

EPA_PRINTF(3, 4)
static void fail(struct launcher *l, enum epa_status status, const char *fmt, ...)
{
    struct conn_word word = {.status = status, .rank = UINT32_MAX};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    fail_by_word(l, &word);
}

static void rank_returned(struct launcher *l, enum epa_status status)
{
    struct conn_word word = {.status = status, .rank = UINT32_MAX};

    l->run.returned = true;
    if (status != EPA_OK)
        fail_by_word(l, &word); /* the rank has said why */
    else if (l->run.phase >= WAITING)
        conn_put_word(&l->conn, CONN_WORD, &word);
}

/* The process is no more. */
static void judge_process(struct launcher *l, int code)
{
    struct run *run = &l->run;
    enum epa_status word = EPA_OK, status;
    bool has_word = control_returned(l->control, my_rank(l), &word);
    char who[128], how[256] = "";

    if (!run->ran && run->left && !l->process.killed)
        return;
    snprintf(who, sizeof(who), "rank %u (host %.64s, pid %d)", my_rank(l), l->host.name,
             (int)l->process.pid);
    /* One that is kept has given its word, and is to live on. */
    status = process_judge(&l->process, code, has_word && !keeps_process(l), word, who, how,
                           sizeof(how));
    run->returned = true;
    if (status == EPA_ERR_TIMEOUT && run->ran)
        fail(l, status, "%s did not return within %.3g s of the request to stop", who,
             (double)run->asked->grace_ns * 1e-9);
    else if (status == EPA_ERR_TIMEOUT)
        fail(l, status, "%s was not ready in time", who);
    else if (status == EPA_OK)
        rank_returned(l, word);
    else {
        run->death = make_word(status, my_rank(l), WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0,
                               "%s", how);
        fail_by_word(l, &run->death);
    }
}

static void reap(struct launcher *l)
{
    enum epa_status word = EPA_OK;
    int code;

    (void)control_returned(l->control, my_rank(l), &word);
    if (l->process.pid == 0 || !process_ended(&l->process, word, &code))
        return;
    judge_process(l, code); /* before its last words: others wait for it */
    finish_process(l);
    l->lost = keeps_process(l);
}

/* ---- the rendezvous ---- */

static void rendezvous_is_gone(struct launcher *l, const char *how)
{
    struct conn_word word;

    conn_close(&l->conn, "%s", how);
    word = make_word(EPA_ERR_DIED, 0, 0, "%s is gone: %s", l->rendezvous_name, l->conn.why);
    judge(l, &word);
}

static void say_hello(struct launcher *l)
{
    const char *fingerprint = l->run.asked->fingerprint != NULL ? l->run.asked->fingerprint : "";
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
    if (l->run.word_ready)
        conn_put_word(&l->conn, CONN_WORD, &l->run.word);
}

/* Begins to look for it; `fd` is a connection to it, or -1. */
static void dial(struct launcher *l, int fd)
{
    const struct launcher_contact *contact = &l->contact;

    l->run.phase = DIALING;
    net_dial_init(&l->dial, contact, fd);
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (address %.100s, port %u)",
             contact->local[0] != 0 ? contact->local : contact->address[0], contact->port);
}

static void dial_turn(struct launcher *l, short revents, uint64_t now)
{
    const struct run *run = &l->run;
    uint32_t size = l->params.process_id.size;
    enum net_dialed dialed = net_dial_turn(&l->dial, revents, now, &l->conn);
    struct conn_word word = {.status = EPA_ERR_CONFIG, .rank = UINT32_MAX};

    if (dialed == NET_PROVED) {
        l->conn.limit = bootstrap_slot_bytes(size) * size + 1024;
        l->run.looked_ns = now;
        l->run.phase = WAITING;
        say_hello(l);
    } else if (dialed == NET_REFUSED) {
        snprintf(word.text, sizeof(word.text), "%s", l->dial.why);
        judge(l, &word);
    } else if (now - run->began_ns > run->settings->start_ns) {
        word = make_word(EPA_ERR_TIMEOUT, UINT32_MAX, 0,
                         "rank %u (host %.64s) cannot reach rank 0 within %.3g s "
                         "(launcher.start): %s",
                         my_rank(l), l->host.name, (double)run->settings->start_ns * 1e-9,
                         l->dial.why);
        judge(l, run->word_ready ? &run->word : &word);
    }
}

/* All are there: the rank is told its place, and to run. */
static void hear_welcome(struct launcher *l, const struct conn_message *m)
{
    const struct epa_launch *asked = l->run.asked;
    uint32_t size = l->params.process_id.size, me = my_rank(l);
    struct order *order = l->order;
    struct conn_welcome w;

    if (l->run.phase > RUNNING) /* what failed here crossed it on its way */
        return;
    if (l->run.phase != WAITING || !conn_get_welcome(m, size, &w, order->node)) {
        rendezvous_is_gone(l, "it sent what makes no sense");
        return;
    }
    snprintf(l->rendezvous_name, sizeof(l->rendezvous_name), "rank 0 (host %.64s, pid %u)", w.host,
             w.pid);
    l->run.phase = RUNNING;
    if (control_aborted(l->control))
        return;
    order->rank_main = asked->rank_main;
    order->arg = asked->arg;
    order->timeout_ns = asked->timeout_ns;
    order->pin = (enum pin)l->run.settings->pin;
    order->share = w.share;
    order->shares = w.shares;
    order->threads = asked->threads;
    order->world = (struct epa_world){
        .rank = me, .size = size, .node = order->node, .local_cores = w.local_cores};
    /* Ranks of rank 0's host may have come by the loopback: what led others there is theirs, too. */
    net_interface(l->conn.fd, order->interface);
    if (order->interface[0] == 0)
        memcpy(order->interface, w.interface, sizeof(order->interface));
    order->world.interface = w.hosts > 1 ? order->interface : NULL;
    for (uint32_t r = 0; r < size; r++) {
        order->world.local_rank += order->node[r] == order->node[me] && r < me;
        order->world.local_size += order->node[r] == order->node[me];
    }
    l->run.ran = true;
    tell_process(l, RUN);
}

/* The others have come to the step, or those before the first that is missing. */
static void hear_step(struct launcher *l, const struct conn_message *m)
{
    uint32_t size = l->params.process_id.size, me = my_rank(l);
    struct conn_step step;

    if (!conn_get_step(m, size, bootstrap_slot_bytes(size), &step) ||
        step.number != l->run.step + 1 || (m->type == CONN_ALL && step.number != l->run.sent)) {
        rendezvous_is_gone(l, "it sent what makes no sense");
        return;
    }
    if (step.missing == me) /* it would wait for nobody, and read what is not there */
        return;
    for (uint32_t r = 0; r < step.missing; r++)
        if (r != me)
            control_arrive(l->control, r, step.number, step.data + r * step.bytes, step.bytes);
    if (m->type == CONN_ALL)
        l->run.step++;
}

static void hear(struct launcher *l, const struct conn_message *m)
{
    struct run *run = &l->run;
    struct conn_word word;

    if (m->type == CONN_REFUSED || m->type == CONN_VERDICT) {
        if (!conn_get_word(m, &word))
            rendezvous_is_gone(l, "it sent what makes no sense");
        else
            judge(l, &word);
        run->rank_0_tells = m->type == CONN_VERDICT;
    } else if (m->type == CONN_ABORT) {
        abort_rank(l);
    } else if (m->type == CONN_WELCOME) {
        hear_welcome(l, m);
    } else if (m->type == CONN_ALL || m->type == CONN_MISSING) {
        hear_step(l, m);
    } else if (m->type != CONN_ALIVE) {
        rendezvous_is_gone(l, "it sent what makes no sense");
    }
}

static bool is_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* What was never written is left out: rank 0 has zeros there, too. */
static void push_block(struct launcher *l)
{
    struct run *run = &l->run;
    const struct epa_launch *asked = run->asked;
    size_t bytes = run->ran && my_rank(l) != 0 && asked->block != NULL ? asked->block_bytes : 0;

    for (uint32_t i = 0; i < TURN_PIECES && conn_all_sent(&l->conn) && run->block_at < bytes; i++) {
        const char *from = asked->block + my_rank(l) * bytes + run->block_at;
        size_t n = bytes - run->block_at;

        n = n < CONN_BLOCK_MAX ? n : CONN_BLOCK_MAX;
        if (!is_zero(from, n))
            conn_put_piece(&l->conn, CONN_BLOCK, run->block_at, from, n);
        run->block_at += n;
        conn_turn(&l->conn, 0);
    }
    if (run->block_at < bytes)
        return;
    conn_say(&l->conn, CONN_DONE);
    run->phase = DONE;
}

static void check_rendezvous(struct launcher *l, uint64_t now)
{
    uint64_t limit = l->run.settings->heartbeat_ns, looked = l->run.looked_ns;
    char how[80];

    snprintf(how, sizeof(how), "nothing was heard from it for %.3g s (launcher.heartbeat)",
             (double)limit * 1e-9);
    l->run.looked_ns = now;
    if (l->conn.forged)
        rendezvous_is_gone(l, "it sent what the token does not prove");
    else if (l->conn.fd < 0 || conn_is_silent(&l->conn, now, looked, limit))
        rendezvous_is_gone(l, how);
    else
        conn_keep_alive(&l->conn, now, limit / 5);
}

static void rendezvous_turns(struct launcher *l, short revents, uint64_t now)
{
    struct run *run = &l->run;
    struct conn_message m;

    if (run->judged)
        return;
    if (run->phase == DIALING)
        dial_turn(l, revents, now);
    else if (run->phase >= WAITING) {
        conn_turn(&l->conn, revents);
        while (!run->judged && conn_take(&l->conn, &m))
            hear(l, &m);
        if (!run->judged)
            check_rendezvous(l, now);
    }
    if (run->judged)
        return;
    if (run->phase == RUNNING || (run->phase == WAITING && control_aborted(l->control)))
        run->phase = is_quiet(l) ? LEAVING : run->phase;
    if (run->phase == LEAVING)
        push_block(l);
    conn_turn(&l->conn, 0);
}

/* ---- the loop ---- */

static void hear_met(struct launcher *l)
{
    const struct epa_error *err = &l->order->err;

    l->met = true;
    if (err->status != EPA_OK) {
        fail(l, err->status, "rank %u (host %.64s): %.300s", my_rank(l), l->host.name, err->text);
        return;
    }
    l->contact = l->order->contact;
    if (l->run.phase == MEETING)
        dial(l, -1);
}

/* What is new in the memory that the process shares. */
static void look_at_process(struct launcher *l)
{
    struct run *run = &l->run;
    enum epa_status status = EPA_OK;
    const void *data;
    size_t bytes;

    /* Acquire: pairs with the release in rank_process(). */
    if (!l->met && __atomic_load_n(&l->order->met, __ATOMIC_ACQUIRE) != 0)
        hear_met(l);
    if (run->phase == RUNNING && run->sent == run->step &&
        control_step(l->control, my_rank(l), run->step + 1, &data, &bytes)) {
        conn_put_piece(&l->conn, CONN_GATHER, run->step + 1, data, bytes);
        run->sent++;
    }
    if (control_aborted(l->control) && !run->abort_known) {
        struct conn_word word = {.status = EPA_ERR_ABORTED, .rank = UINT32_MAX};

        fail_by_word(l, &word);
    }
    if (keeps_process(l) && run->ran && !run->returned &&
        control_returned(l->control, my_rank(l), &status))
        rank_returned(l, status);
}

static void process_turn(struct launcher *l)
{
    char bytes[64];

    if (l->process.pid == 0)
        return;
    relay_turn(&l->process.relay);
    while (recv(l->child, bytes, sizeof(bytes), MSG_DONTWAIT) == (ssize_t)sizeof(bytes))
        continue;
    look_at_process(l);
    reap(l);
}

/* Who stops one rank has stopped all: each is to end as if it had got the same signal, where
 * it is looked for. */
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

static void check_stop(struct launcher *l, short revents)
{
    struct conn_word word;
    sigset_t pending;
    bool term;

    if (revents == 0)
        return;
    l->run.stop_fd = -1;
    if ((revents & (POLLIN | POLLHUP)) == 0)
        return;
    l->run.stopping = true;
    /* The signal that asked to stop, which stays pending for who reads stop_fd. */
    term = sigpending(&pending) == 0 &&
           (sigismember(&pending, SIGTERM) == 1 || sigismember(&pending, SIGHUP) == 1);
    word = make_word(EPA_ERR_INTERRUPTED, UINT32_MAX, term ? SIGTERM : SIGINT, "interrupted");
    fail_by_word(l, &word);
}

static void check_time(struct launcher *l, uint64_t now)
{
    struct run *run = &l->run;
    enum epa_poll_reason why = run->stopping ? EPA_POLL_STOPPING : EPA_POLL;
    bool at_once =
        run->asked->poll_launch != NULL && run->asked->poll_launch(run->asked->poll_arg, why);

    if (!l->met && !run->judged && now - run->began_ns > run->settings->start_ns)
        fail(l, EPA_ERR_TIMEOUT,
             "rank %u (host %.64s) did not meet the others within %.3g s (launcher.start)",
             my_rank(l), l->host.name, (double)run->settings->start_ns * 1e-9);
    if (!control_aborted(l->control))
        return;
    if (!l->met && l->rendezvous != NULL)
        rendezvous_expect_nobody(l->rendezvous); /* they do not know where it is */
    if (run->grace_end_ns ==
        0) /* within meet() it hears nothing, and mpirun kills us in a second */
        run->grace_end_ns = l->met ? now + run->asked->grace_ns : now;
    if (!keeps_process(l) && !run->ran && !run->left) {
        run->left = true;
        tell_process(l, LEAVE);
    }
    if ((at_once || now >= run->grace_end_ns) && (!is_quiet(l) || run->left))
        process_kill(&l->process);
}

static bool is_over(const struct launcher *l)
{
    bool at_rest = keeps_process(l) ? is_quiet(l) : l->process.pid == 0;

    return l->run.judged && at_rest && (l->rendezvous == NULL || rendezvous_over(l->rendezvous));
}

static void turn(struct launcher *l, struct pollfd *fds)
{
    bool blind = l->process.pid != 0 && l->process.pidfd < 0;
    uint32_t n = OWN_POLLS;

    fds[0] = (struct pollfd){.fd = l->run.stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = l->process.pidfd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = l->process.relay.from, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = l->child, .events = POLLIN};
    fds[4] = l->run.phase == DIALING
                 ? net_dial_poll(&l->dial)
                 : (struct pollfd){.fd = l->conn.fd, .events = conn_events(&l->conn)};
    if (l->rendezvous != NULL)
        n += rendezvous_polls(l->rendezvous, fds + OWN_POLLS);
    if (poll(fds, n, blind || l->run.judged ? 1 : POLL_MS) < 0)
        for (uint32_t i = 0; i < n; i++)
            fds[i].revents = 0;
    check_stop(l, fds[0].revents);
    process_turn(l);
    rendezvous_turns(l, fds[4].revents, clock_ns());
    if (l->rendezvous != NULL)
        rendezvous_turn(l->rendezvous, fds + OWN_POLLS, n - OWN_POLLS);
    check_time(l, clock_ns());
}

/* ---- a launch ---- */

/* Rank 0 has the rendezvous at hand, and is connected to it like everybody else. */
static enum epa_status start_rendezvous(struct launcher *l, struct epa_error *err)
{
    struct rendezvous_params params = {.asked = l->run.asked,
                                       .token = l->contact.token,
                                       .listener = l->listener,
                                       .start_ns = l->run.settings->start_ns,
                                       .heartbeat_ns = l->run.settings->heartbeat_ns};
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

static void before_output(void *arg)
{
    const struct epa_launch *asked = arg;

    (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
}

static enum epa_status begin(struct launcher *l, struct epa_error *err)
{
    const struct epa_launch *asked = l->run.asked;
    enum epa_status status = EPA_OK;

    if (asked->ranks != l->params.process_id.size)
        return epa_fail(err, EPA_ERR_CONFIG, "%u ranks are requested, and there are %u: %s",
                        asked->ranks, l->params.process_id.size, l->params.process_id.source);
    rendezvous_destroy(l->rendezvous);
    l->rendezvous = NULL;
    conn_finish(&l->conn);
    control_reset(l->control);
    if (l->process.pid == 0 && !l->lost)
        status = start_process(l, err);
    if (status != EPA_OK)
        return status;
    l->process.relay.prefix = l->run.settings->prefix;
    l->process.relay.before = asked->poll_launch != NULL ? before_output : NULL;
    l->process.relay.arg = (void *)(uintptr_t)asked;
    if (my_rank(l) == 0)
        status = start_rendezvous(l, err);
    else if (l->met || l->params.contact != NULL)
        dial(l, -1);
    if (status == EPA_OK && l->lost)
        fail(l, EPA_ERR_UNSUPPORTED,
             "the process of rank %u (host %.64s) was lost in an earlier run, and cannot be "
             "started again in this job",
             my_rank(l), l->host.name);
    return status;
}

static enum epa_status end(struct launcher *l, struct epa_error *err)
{
    const struct run *run = &l->run;
    const struct epa_launch *asked = run->asked;
    /* What rank 0 says for all the others do not say again. */
    bool tells = !run->rank_0_tells || my_rank(l) == 0;
    const struct conn_word *verdict = &run->verdict;

    /* Nobody outside knows better than we do that the rank here has died. */
    if (run->death.status != EPA_OK && verdict->status != EPA_ERR_DIED && my_rank(l) != 0) {
        verdict = &run->death;
        tells = true;
    }
    if (verdict->status == EPA_ERR_DIED && tells && asked->failed_rank != NULL)
        *asked->failed_rank = verdict->rank;
    if (verdict->status != EPA_OK && tells && verdict->text[0] != 0)
        (void)epa_fail(err, (enum epa_status)verdict->status, "%s", verdict->text);
    if (verdict->status == EPA_ERR_INTERRUPTED)
        share_signal(verdict->signal);
    return (enum epa_status)verdict->status;
}

/* One that could not even begin: what there is of it ends. */
static void give_up(struct launcher *l)
{
    int code;

    if (l->process.pid == 0 || keeps_process(l))
        return;
    process_kill(&l->process);
    while (!process_ended(&l->process, EPA_OK, &code))
        (void)poll(NULL, 0, 1);
    finish_process(l);
}

enum epa_status launcher_launch(struct launcher *l, const struct launcher_settings *settings,
                                const struct epa_launch *asked, struct epa_error *err)
{
    struct pollfd *fds = calloc(OWN_POLLS + rendezvous_poll_room(asked->ranks), sizeof(*fds));
    enum epa_status status;

    l->run = (struct run){
        .settings = settings, .asked = asked, .stop_fd = asked->stop_fd, .began_ns = clock_ns()};
    status = fds == NULL ? epa_fail(err, EPA_ERR_NOMEM, "no memory to watch %u ranks", asked->ranks)
                         : begin(l, err);
    if (status != EPA_OK) {
        give_up(l);
    } else {
        while (!is_over(l))
            turn(l, fds);
        status = end(l, err);
        relay_turn(&l->process.relay);
    }
    l->process.relay.before = NULL; /* `asked` does not stay */
    net_dial_finish(&l->dial);
    free(fds);
    return status;
}

/* ---- life ---- */

static void end_process(struct launcher *l)
{
    /* Killed, it would be a failure after all; after one, it may wait for who is gone. */
    uint64_t ms = l->run.verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;
    uint64_t kill_ns = clock_ns() + ms * 1000000;
    int code;

    if (l->process.pid == 0)
        return;
    tell_process(l, LEAVE);
    while (!process_ended(&l->process, EPA_OK, &code)) {
        relay_turn(&l->process.relay);
        if (clock_ns() > kill_ns)
            process_kill(&l->process);
        (void)poll(NULL, 0, 1);
    }
    finish_process(l);
}

static void wait_for_rank_0(struct launcher *l)
{
    uint64_t end_ns = clock_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (!keeps_process(l) || my_rank(l) == 0 || l->run.verdict.status == EPA_OK)
        return;
    while (l->conn.fd >= 0 && clock_ns() < end_ns) {
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
    control_destroy(l->control);
    if (l->order != NULL)
        munmap(l->order, l->order_bytes);
    free(l);
}

enum epa_status launcher_create(const struct launcher_params *params, struct launcher **out,
                                struct epa_error *err)
{
    struct launcher *l = calloc(1, sizeof(*l));
    uint32_t size = params->process_id.size;
    enum epa_status status = EPA_OK;
    unsigned char mac[MAC_BYTES];
    void *shared;

    if (l == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a launcher");
    l->params = *params;
    l->met = params->meet == NULL;
    process_init(&l->process);
    l->child = l->conn.fd = l->dial.conn.fd = l->listener = -1;
    nodes_host(&l->host);
    if (params->contact != NULL)
        l->contact = *params->contact;
    if (size == 1)
        snprintf(l->contact.token, sizeof(l->contact.token), "alone");
    l->order_bytes = sizeof(*l->order) + size * sizeof(l->order->node[0]);
    shared = mmap(NULL, l->order_bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    if (shared == MAP_FAILED)
        status = epa_fail(err, EPA_ERR_NOMEM, "mmap of %zu shared bytes: %s", l->order_bytes,
                          strerror(errno));
    else
        l->order = shared;
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
