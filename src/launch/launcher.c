/* An agent's life: it starts the process of its rank, looks for the hub or is it, and stays
 * in poll() until the verdict is there and the process has come to rest. */
#include "launch/launcher.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/launcher_state.h"

enum {
    OWN_POLLS = 5, /* stop_fd, pidfd, output and socket of the process, the hub */
    POLL_MS = 20,
    LEAVE_MS = 1000,   /* for a kept process to end */
    REPORT_MS = 30000, /* and for rank 0 to report, if leave() waits for all ranks */
    REPORT_S = 5,      /* for rank 0 to report a failure before we leave with it */
};

/* ---- the process ---- */

static enum epa_status start_process(struct launcher *launcher, struct epa_error *err)
{
    int ends[2];
    enum epa_status status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    conn_init(&launcher->child, ends[0],
              wire_gather_bytes(launcher->params.process_id.size) + sizeof(struct launcher_met));
    launcher->child_end = ends[1];
    fflush(stdout); /* or the rank would print it again */
    fflush(stderr);
    status = process_start(&launcher->process, launcher->params.process_id.rank,
                           launcher->run.settings->prefix, launcher_rank_process, launcher, err);
    close(ends[1]);
    if (status != EPA_OK)
        conn_finish(&launcher->child);
    return status;
}

/* "rank 3 (host b, pid 4711)" */
static void name_rank(const struct launcher *launcher, char *out, size_t room)
{
    snprintf(out, room, "rank %u (host %.64s, pid %d)", launcher->params.process_id.rank,
             launcher->host.name, (int)launcher->process.pid);
}

static void fail_dead(struct launcher *launcher, enum epa_status status, int code, const char *how)
{
    struct wire_word word = {.status = status,
                             .rank = launcher->params.process_id.rank,
                             .signal = WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0};

    snprintf(word.text, sizeof(word.text), "%s", how);
    launcher_fail(launcher, &word);
}

/* The process is no more. */
static void judge_process(struct launcher *launcher, int code)
{
    struct launcher_run_state *run = &launcher->run;
    enum epa_status word = EPA_OK, status;
    bool has_word = control_returned(launcher->control, 0, &word);
    char who[128], how[256] = "";

    name_rank(launcher, who, sizeof(who));
    if (!run->ran && run->left && !launcher->process.killed)
        return;
    /* One that is kept has given its word, and is to live on. */
    status = process_judge(&launcher->process, code, has_word && !launcher_keeps(launcher), word,
                           who, how, sizeof(how));
    if (status == EPA_ERR_TIMEOUT && run->ran)
        launcher_fail_with(launcher, status, UINT32_MAX,
                           "%s did not return within %.3g s of the request to stop", who,
                           (double)run->asked->grace_ns * 1e-9);
    else if (status == EPA_ERR_TIMEOUT)
        launcher_fail_with(launcher, status, UINT32_MAX, "%s was not ready in time", who);
    else if (status != EPA_OK)
        fail_dead(launcher, status, code, how);
    else
        launcher_returned(launcher, word);
    run->returned = true;
}

static void reap(struct launcher *launcher)
{
    enum epa_status word = EPA_OK;
    int code;

    (void)control_returned(launcher->control, 0, &word);
    if (launcher->process.pid == 0 || !process_ended(&launcher->process, word, &code))
        return;
    judge_process(launcher, code); /* before its last words: others wait for it */
    process_finish(&launcher->process);
    conn_finish(&launcher->child);
    launcher->failed_rank = launcher_keeps(launcher);
}

bool launcher_quiet(const struct launcher *launcher)
{
    if (launcher->process.pid == 0)
        return true;
    if (!launcher_keeps(launcher))
        return !launcher->run.ran;
    return launcher->met && (!launcher->run.ran || launcher->run.returned);
}

static void met(struct launcher *launcher, const struct conn_message *m)
{
    struct launcher_met met;

    if (m->bytes != sizeof(met))
        return;
    memcpy(&met, m->data, sizeof(met));
    launcher->met = true;
    if (met.err.status != EPA_OK) {
        launcher_fail_with(launcher, met.err.status, UINT32_MAX, "rank %u (host %.64s): %s",
                           launcher->params.process_id.rank, launcher->host.name, met.err.text);
        return;
    }
    launcher->contact = met.contact;
    if (launcher->run.phase == MEETING)
        launcher_dial(launcher, -1);
}

static void hear_process(struct launcher *launcher, const struct conn_message *m)
{
    struct wire_word word = {.status = EPA_ERR_ABORTED, .rank = UINT32_MAX};
    enum epa_status status = EPA_OK;
    unsigned char *at;

    if (m->type == WIRE_CONTACT) {
        met(launcher, m);
    } else if (m->type == WIRE_ABORT) {
        launcher_fail(launcher, &word);
    } else if (m->type == WIRE_RETURNED && launcher_keeps(launcher)) {
        if (control_returned(launcher->control, 0, &status) && !launcher->run.returned)
            launcher_returned(launcher, status);
    } else if (m->type == WIRE_GATHER && launcher->run.phase == RUNNING) {
        at = conn_begin(&launcher->conn, WIRE_GATHER, m->bytes);
        if (at != NULL) {
            memcpy(at, m->data, m->bytes);
            conn_end(&launcher->conn, m->bytes);
        }
    }
}

static void process_turn(struct launcher *launcher, short revents)
{
    struct conn_message m;

    if (launcher->process.pid == 0)
        return;
    relay_turn(&launcher->process.relay);
    conn_turn(&launcher->child, revents);
    while (conn_take(&launcher->child, &m))
        hear_process(launcher, &m);
    reap(launcher);
    if (launcher->process.pid != 0)
        conn_turn(&launcher->child, 0);
}

/* ---- the loop ---- */

/* The signal that asked to stop, which stays pending for who reads stop_fd. */
static uint32_t pending_signal(void)
{
    sigset_t pending;

    if (sigpending(&pending) != 0 || sigismember(&pending, SIGTERM) != 1)
        return SIGINT;
    return SIGTERM;
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
    if ((number != SIGINT && number != SIGTERM) || sigprocmask(SIG_BLOCK, NULL, &blocked) != 0 ||
        sigismember(&blocked, SIGINT) != 1 || sigismember(&blocked, SIGTERM) != 1)
        return;
    while (sigtimedwait(&both, NULL, &now) > 0)
        continue;
    (void)kill(getpid(), (int)number);
}

static void check_stop(struct launcher *launcher, short revents)
{
    struct wire_word word = {.status = EPA_ERR_INTERRUPTED, .rank = UINT32_MAX};

    if (revents == 0)
        return;
    launcher->run.stop_fd = -1;
    if ((revents & (POLLIN | POLLHUP)) == 0)
        return;
    launcher->run.stopping = true;
    word.signal = pending_signal();
    snprintf(word.text, sizeof(word.text), "interrupted");
    launcher_fail(launcher, &word);
}

static void check_time(struct launcher *launcher, uint64_t now)
{
    struct launcher_run_state *run = &launcher->run;
    enum epa_poll_reason why = run->stopping ? EPA_POLL_STOPPING : EPA_POLL;
    bool at_once =
        run->asked->poll_launch != NULL && run->asked->poll_launch(run->asked->poll_arg, why);

    if (run->phase == MEETING && !run->judged && now - run->began_ns > run->settings->start_ns)
        launcher_fail_with(
            launcher, EPA_ERR_TIMEOUT, UINT32_MAX,
            "rank %u (host %.64s) did not meet the others within %.3g s (launcher.start)",
            launcher->params.process_id.rank, launcher->host.name,
            (double)run->settings->start_ns * 1e-9);
    if (run->grace_end_ns == 0 && control_aborted(launcher->control))
        run->grace_end_ns = now + run->asked->grace_ns;
    if (!launcher_keeps(launcher) && !run->ran && !run->left &&
        control_aborted(launcher->control)) {
        run->left = true;
        conn_put(&launcher->child, WIRE_LEAVE);
    }
    if (run->grace_end_ns != 0 && (at_once || now >= run->grace_end_ns) &&
        (!launcher_quiet(launcher) || run->left))
        process_kill(&launcher->process);
}

static bool is_over(const struct launcher *launcher)
{
    bool at_rest = launcher_keeps(launcher) ? launcher_quiet(launcher) : launcher->process.pid == 0;

    return launcher->run.judged && at_rest &&
           (launcher->rendezvous == NULL || rendezvous_over(launcher->rendezvous));
}

static int pause_ms(const struct launcher *launcher, uint64_t now)
{
    uint64_t due = now + POLL_MS * 1000000ull, rendezvous;

    if (launcher->process.pid != 0 && launcher->process.pidfd < 0)
        return 1;
    if (launcher->rendezvous != NULL &&
        (rendezvous = rendezvous_due_ns(launcher->rendezvous)) < due)
        due = rendezvous;
    return due <= now ? 0 : (int)((due - now + 999999) / 1000000);
}

static void turn(struct launcher *launcher, struct pollfd *fds)
{
    uint32_t n = OWN_POLLS;

    fds[0] = (struct pollfd){.fd = launcher->run.stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = launcher->process.pidfd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = launcher->process.relay.from, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = launcher->process.pid == 0 ? -1 : launcher->child.fd,
                             .events = conn_events(&launcher->child)};
    fds[4] = launcher_rendezvous_poll(launcher);
    if (launcher->rendezvous != NULL)
        n += rendezvous_polls(launcher->rendezvous, fds + OWN_POLLS);
    if (poll(fds, n, pause_ms(launcher, clock_ns())) < 0)
        for (uint32_t i = 0; i < n; i++)
            fds[i].revents = 0;
    check_stop(launcher, fds[0].revents);
    process_turn(launcher, fds[3].revents);
    launcher_rendezvous_turn(launcher, fds[4].revents, clock_ns());
    if (launcher->rendezvous != NULL)
        rendezvous_turn(launcher->rendezvous, fds + OWN_POLLS, n - OWN_POLLS);
    check_time(launcher, clock_ns());
}

/* ---- a launch ---- */

/* Rank 0 has its hub at hand, and is connected to it like everybody else. */
static enum epa_status start_rendezvous(struct launcher *launcher, struct epa_error *err)
{
    struct rendezvous_params params = {.asked = launcher->run.asked,
                                       .token = launcher->contact.token,
                                       .listener = launcher->listener,
                                       .listeners = launcher->listeners,
                                       .start_ns = launcher->run.settings->start_ns,
                                       .heartbeat_ns = launcher->run.settings->heartbeat_ns};
    enum epa_status status = rendezvous_create(&params, &launcher->rendezvous, err);
    int ends[2];

    if (status != EPA_OK)
        return status;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    rendezvous_adopt(launcher->rendezvous, ends[0]);
    launcher_dial(launcher, ends[1]);
    return EPA_OK;
}

static void before_output(void *arg)
{
    const struct epa_launch *asked = arg;

    (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
}

static enum epa_status begin(struct launcher *launcher, struct epa_error *err)
{
    const struct epa_launch *asked = launcher->run.asked;
    enum epa_status status;

    if (asked->ranks != launcher->params.process_id.size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%u ranks are requested, and there are %u: "
                        "%s",
                        asked->ranks, launcher->params.process_id.size,
                        launcher->params.process_id.source);
    rendezvous_destroy(launcher->rendezvous);
    launcher->rendezvous = NULL;
    conn_finish(&launcher->conn);
    control_reset(launcher->control);
    status = pin_plan_init(&launcher->pins, (enum pin)launcher->run.settings->pin, 1,
                           asked->threads, err);
    if (status == EPA_OK && launcher->process.pid == 0 && !launcher->failed_rank)
        status = start_process(launcher, err);
    if (status != EPA_OK)
        return status;
    launcher->process.relay.prefix = launcher->run.settings->prefix;
    launcher->process.relay.before = asked->poll_launch != NULL ? before_output : NULL;
    launcher->process.relay.arg = (void *)(uintptr_t)asked;
    if (launcher->params.process_id.rank == 0)
        status = start_rendezvous(launcher, err);
    else if (launcher->met)
        launcher_dial(launcher, -1);
    if (status == EPA_OK && launcher->failed_rank)
        launcher_fail_with(launcher, EPA_ERR_UNSUPPORTED, UINT32_MAX,
                           "the process of rank %u (host %.64s) was lost in an earlier run, and "
                           "cannot be started again in this job",
                           launcher->params.process_id.rank, launcher->host.name);
    return status;
}

static void end(struct launcher *launcher, const struct epa_launch *asked, struct epa_error *err)
{
    const struct wire_word *verdict = &launcher->run.verdict;
    /* What rank 0 says for all the others do not say again. */
    bool tells = !launcher->run.rank_0_tells || launcher->params.process_id.rank == 0;

    if (verdict->status == EPA_ERR_DIED && tells && asked->failed_rank != NULL)
        *asked->failed_rank = verdict->rank;
    if (verdict->status != EPA_OK && tells && verdict->text[0] != 0)
        (void)epa_fail(err, verdict->status, "%s", verdict->text);
    if (verdict->status == EPA_ERR_INTERRUPTED)
        share_signal(verdict->signal);
}

/* One that could not even begin: what there is of it ends. */
static void give_up(struct launcher *launcher)
{
    int code;

    if (launcher->process.pid == 0 || launcher_keeps(launcher))
        return;
    process_kill(&launcher->process);
    while (!process_ended(&launcher->process, EPA_OK, &code))
        (void)poll(NULL, 0, 1);
    process_finish(&launcher->process);
    conn_finish(&launcher->child);
}

enum epa_status launcher_launch(struct launcher *launcher, const struct launcher_settings *settings,
                                const struct epa_launch *asked, struct epa_error *err)
{
    struct pollfd *fds = calloc(OWN_POLLS + NET_LISTENERS + asked->ranks + 64, sizeof(*fds));
    enum epa_status status;

    launcher->run = (struct launcher_run_state){
        .settings = settings, .asked = asked, .stop_fd = asked->stop_fd, .began_ns = clock_ns()};
    status = fds == NULL ? epa_fail(err, EPA_ERR_NOMEM, "no memory to watch %u ranks", asked->ranks)
                         : begin(launcher, err);
    if (status != EPA_OK) {
        give_up(launcher);
    } else {
        while (!is_over(launcher))
            turn(launcher, fds);
        status = launcher->run.verdict.status;
        end(launcher, asked, err);
        relay_turn(&launcher->process.relay);
    }
    launcher->process.relay.before = NULL; /* `asked` does not stay */
    net_dial_finish(&launcher->dial);
    pin_plan_finish(&launcher->pins);
    free(fds);
    return status;
}

/* ---- life ---- */

static void end_process(struct launcher *launcher)
{
    /* Killed, it would be a failure after all; after one, it may wait for who is gone. */
    uint64_t ms = launcher->run.verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;
    uint64_t kill_ns = clock_ns() + ms * 1000000;
    int code;

    if (launcher->process.pid == 0)
        return;
    conn_put(&launcher->child, WIRE_LEAVE);
    while (!process_ended(&launcher->process, EPA_OK, &code)) {
        conn_turn(&launcher->child, 0);
        relay_turn(&launcher->process.relay);
        if (clock_ns() > kill_ns)
            process_kill(&launcher->process);
        (void)poll(NULL, 0, 1);
    }
    process_finish(&launcher->process);
}

static void wait_for_rank_0(struct launcher *launcher)
{
    uint64_t end_ns = clock_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (!launcher_keeps(launcher) || launcher->params.process_id.rank == 0 ||
        launcher->run.verdict.status == EPA_OK)
        return;
    while (launcher->conn.fd >= 0 && clock_ns() < end_ns) {
        struct pollfd fd = {.fd = launcher->conn.fd, .events = POLLIN};

        if (poll(&fd, 1, POLL_MS) > 0)
            conn_turn(&launcher->conn, fd.revents);
        while (conn_take(&launcher->conn, &m))
            continue;
    }
}

void launcher_destroy(struct launcher *launcher)
{
    if (launcher == NULL)
        return;
    end_process(launcher);
    wait_for_rank_0(launcher);
    rendezvous_destroy(launcher->rendezvous);
    conn_finish(&launcher->child);
    conn_finish(&launcher->conn);
    for (uint32_t i = 0; i < launcher->listeners; i++)
        close(launcher->listener[i]);
    control_destroy(launcher->control);
    free(launcher);
}

enum epa_status launcher_create(const struct launcher_params *params, struct launcher **out,
                                struct epa_error *err)
{
    struct launcher *launcher = calloc(1, sizeof(*launcher));
    bool listens = params->process_id.rank == 0 && params->process_id.size > 1;
    enum epa_status status = EPA_OK;

    if (launcher == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a launcher");
    launcher->params = *params;
    launcher->met = params->meet == NULL;
    process_init(&launcher->process);
    launcher->child.fd = launcher->conn.fd = launcher->dial.fd = -1;
    nodes_host(&launcher->host);
    if (params->contact != NULL)
        launcher->contact = *params->contact;
    if (listens && params->contact != NULL)
        status = net_listen_at(&launcher->contact, params->interface, &launcher->listener[0], err);
    else if (listens)
        status =
            net_listen_anywhere(params->interface, &launcher->contact, &launcher->listener[0], err);
    launcher->listeners = status == EPA_OK && listens;
    if (status == EPA_OK)
        status = control_create(1, &launcher->control, err);
    if (status != EPA_OK) {
        launcher_destroy(launcher);
        return status;
    }
    *out = launcher;
    return EPA_OK;
}
