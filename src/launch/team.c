/* An agent's life: it starts the process of its rank, looks for the hub or is it, and stays
 * in poll() until the verdict is there and the process has come to rest. */
#include "launch/team.h"

#include <errno.h>
#include <poll.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/team_state.h"

enum {
    OWN_POLLS = 5, /* stop_fd, pidfd, output and socket of the process, the hub */
    LOOK_MS = 20,
    LEAVE_MS = 1000,   /* for a kept process to end */
    REPORT_MS = 30000, /* and for rank 0 to report, if leave() waits for all ranks */
    REPORT_S = 5,      /* for rank 0 to report a failure before we leave with it */
};

/* ---- the process ---- */

static enum epa_status start_process(struct team *team, struct epa_error *err)
{
    int ends[2];
    enum epa_status status;

    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    conn_init(&team->child, ends[0],
              wire_gather_bytes(team->params.place.size) + sizeof(struct team_met));
    team->child_end = ends[1];
    fflush(stdout); /* or the rank would print it again */
    fflush(stderr);
    status = process_start(&team->process, team->params.place.rank,
                           team->run.settings->prefix, team_rank_process, team, err);
    close(ends[1]);
    if (status != EPA_OK)
        conn_finish(&team->child);
    return status;
}

/* "rank 3 (host b, pid 4711)" */
static void name_rank(const struct team *team, char *out, size_t room)
{
    snprintf(out, room, "rank %u (host %.64s, pid %d)", team->params.place.rank,
             team->host.name, (int)team->process.pid);
}

static void fail_dead(struct team *team, enum epa_status status, int code, const char *how)
{
    struct wire_word word = {.status = status,
                             .rank = team->params.place.rank,
                             .signal = WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0};

    snprintf(word.text, sizeof(word.text), "%s", how);
    team_fail(team, &word);
}

/* The process is no more. */
static void judge_process(struct team *team, int code)
{
    struct team_run_state *run = &team->run;
    enum epa_status word = EPA_OK, status;
    bool has_word = control_returned(team->control, 0, &word);
    char who[128], how[256] = "";

    name_rank(team, who, sizeof(who));
    if (!run->ran && run->left && !team->process.killed)
        return;
    /* One that is kept has given its word, and is to live on. */
    status = process_judge(&team->process, code, has_word && !team_keeps(team), word, who,
                           how, sizeof(how));
    if (status == EPA_ERR_TIMEOUT && run->ran)
        team_fail_with(team, status, UINT32_MAX,
                       "%s did not return within %.3g s of being told to", who,
                       (double)run->asked->grace_ns * 1e-9);
    else if (status == EPA_ERR_TIMEOUT)
        team_fail_with(team, status, UINT32_MAX, "%s was not ready in time", who);
    else if (status != EPA_OK)
        fail_dead(team, status, code, how);
    else
        team_returned(team, word);
    run->returned = true;
}

static void reap(struct team *team)
{
    enum epa_status word = EPA_OK;
    int code;

    (void)control_returned(team->control, 0, &word);
    if (team->process.pid == 0 || !process_ended(&team->process, word, &code))
        return;
    judge_process(team, code); /* before its last words: others wait for it */
    process_finish(&team->process);
    conn_finish(&team->child);
    team->lost = team_keeps(team);
}

bool team_quiet(const struct team *team)
{
    if (team->process.pid == 0)
        return true;
    if (!team_keeps(team))
        return !team->run.ran;
    return team->met && (!team->run.ran || team->run.returned);
}

static void met(struct team *team, const struct conn_message *m)
{
    struct team_met met;

    if (m->bytes != sizeof(met))
        return;
    memcpy(&met, m->data, sizeof(met));
    team->met = true;
    if (met.err.status != EPA_OK) {
        team_fail_with(team, met.err.status, UINT32_MAX, "rank %u (host %.64s): %s",
                       team->params.place.rank, team->host.name, met.err.text);
        return;
    }
    team->contact = met.contact;
    if (team->run.phase == MEETING)
        team_dial(team, -1);
}

static void hear_process(struct team *team, const struct conn_message *m)
{
    struct wire_word word = {.status = EPA_ERR_ABORTED, .rank = UINT32_MAX};
    enum epa_status status = EPA_OK;
    unsigned char *at;

    if (m->type == WIRE_CONTACT) {
        met(team, m);
    } else if (m->type == WIRE_ABORT) {
        team_fail(team, &word);
    } else if (m->type == WIRE_RETURNED && team_keeps(team)) {
        if (control_returned(team->control, 0, &status) && !team->run.returned)
            team_returned(team, status);
    } else if (m->type == WIRE_GATHER && team->run.phase == RUNNING) {
        at = conn_begin(&team->conn, WIRE_GATHER, m->bytes);
        if (at != NULL) {
            memcpy(at, m->data, m->bytes);
            conn_end(&team->conn, m->bytes);
        }
    }
}

static void process_turn(struct team *team, short revents)
{
    struct conn_message m;

    if (team->process.pid == 0)
        return;
    relay_turn(&team->process.relay);
    conn_turn(&team->child, revents);
    while (conn_take(&team->child, &m))
        hear_process(team, &m);
    reap(team);
    if (team->process.pid != 0)
        conn_turn(&team->child, 0);
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
    if ((number != SIGINT && number != SIGTERM) ||
        sigprocmask(SIG_BLOCK, NULL, &blocked) != 0 || sigismember(&blocked, SIGINT) != 1 ||
        sigismember(&blocked, SIGTERM) != 1)
        return;
    while (sigtimedwait(&both, NULL, &now) > 0)
        continue;
    (void)kill(getpid(), (int)number);
}

static void check_stop(struct team *team, short revents)
{
    struct wire_word word = {.status = EPA_ERR_INTERRUPTED, .rank = UINT32_MAX};

    if (revents == 0)
        return;
    team->run.stop_fd = -1;
    if ((revents & (POLLIN | POLLHUP)) == 0)
        return;
    team->run.stopping = true;
    word.signal = pending_signal();
    snprintf(word.text, sizeof(word.text), "interrupted");
    team_fail(team, &word);
}

static void check_time(struct team *team, uint64_t now)
{
    struct team_run_state *run = &team->run;
    enum epa_look why = run->stopping ? EPA_LOOK_STOPPING : EPA_LOOK;
    bool at_once = run->asked->look != NULL && run->asked->look(run->asked->look_arg, why);

    if (run->phase == MEETING && !run->judged &&
        now - run->began_ns > run->settings->start_ns)
        team_fail_with(team, EPA_ERR_TIMEOUT, UINT32_MAX,
                       "rank %u (host %.64s) did not meet the others within %.3g s",
                       team->params.place.rank, team->host.name,
                       (double)run->settings->start_ns * 1e-9);
    if (run->grace_end_ns == 0 && control_aborted(team->control))
        run->grace_end_ns = now + run->asked->grace_ns;
    if (!team_keeps(team) && !run->ran && !run->left && control_aborted(team->control)) {
        run->left = true;
        conn_put(&team->child, WIRE_LEAVE);
    }
    if (run->grace_end_ns != 0 && (at_once || now >= run->grace_end_ns) &&
        (!team_quiet(team) || run->left))
        process_kill(&team->process);
}

static bool is_over(const struct team *team)
{
    bool at_rest = team_keeps(team) ? team_quiet(team) : team->process.pid == 0;

    return team->run.judged && at_rest && (team->hub == NULL || hub_over(team->hub));
}

static int pause_ms(const struct team *team, uint64_t now)
{
    uint64_t due = now + LOOK_MS * 1000000ull, hub;

    if (team->process.pid != 0 && team->process.pidfd < 0)
        return 1;
    if (team->hub != NULL && (hub = hub_due_ns(team->hub)) < due)
        due = hub;
    return due <= now ? 0 : (int)((due - now + 999999) / 1000000);
}

static void turn(struct team *team, struct pollfd *fds)
{
    uint32_t n = OWN_POLLS;

    fds[0] = (struct pollfd){.fd = team->run.stop_fd, .events = POLLIN};
    fds[1] = (struct pollfd){.fd = team->process.pidfd, .events = POLLIN};
    fds[2] = (struct pollfd){.fd = team->process.relay.from, .events = POLLIN};
    fds[3] = (struct pollfd){.fd = team->process.pid == 0 ? -1 : team->child.fd,
                             .events = conn_events(&team->child)};
    fds[4] = team_hub_poll(team);
    if (team->hub != NULL)
        n += hub_polls(team->hub, fds + OWN_POLLS);
    if (poll(fds, n, pause_ms(team, clock_ns())) < 0)
        for (uint32_t i = 0; i < n; i++)
            fds[i].revents = 0;
    check_stop(team, fds[0].revents);
    process_turn(team, fds[3].revents);
    team_hub_turn(team, fds[4].revents, clock_ns());
    if (team->hub != NULL)
        hub_turn(team->hub, fds + OWN_POLLS, n - OWN_POLLS);
    check_time(team, clock_ns());
}

/* ---- a launch ---- */

/* Rank 0 has its hub at hand, and is connected to it like everybody else. */
static enum epa_status start_hub(struct team *team, struct epa_error *err)
{
    struct hub_params params = {.asked = team->run.asked,
                                .token = team->contact.token,
                                .listener = team->listener,
                                .listeners = team->listeners,
                                .start_ns = team->run.settings->start_ns,
                                .heartbeat_ns = team->run.settings->heartbeat_ns};
    enum epa_status status = hub_create(&params, &team->hub, err);
    int ends[2];

    if (status != EPA_OK)
        return status;
    if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC | SOCK_NONBLOCK, 0, ends) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "socketpair: %s", strerror(errno));
    hub_adopt(team->hub, ends[0]);
    team_dial(team, ends[1]);
    return EPA_OK;
}

static void before_output(void *arg)
{
    const struct epa_launch *asked = arg;

    (void)asked->look(asked->look_arg, EPA_LOOK_PRINTS);
}

static enum epa_status begin(struct team *team, struct epa_error *err)
{
    const struct epa_launch *asked = team->run.asked;
    enum epa_status status;

    if (asked->ranks != team->params.place.size)
        return epa_fail(err, EPA_ERR_CONFIG, "%u ranks are asked for, and there are %u: %s",
                        asked->ranks, team->params.place.size, team->params.place.how);
    hub_destroy(team->hub);
    team->hub = NULL;
    conn_finish(&team->conn);
    control_reset(team->control);
    status = pin_plan_init(&team->pins, (enum pin)team->run.settings->pin, 1,
                           asked->threads, err);
    if (status == EPA_OK && team->process.pid == 0 && !team->lost)
        status = start_process(team, err);
    if (status != EPA_OK)
        return status;
    team->process.relay.prefix = team->run.settings->prefix;
    team->process.relay.before = asked->look != NULL ? before_output : NULL;
    team->process.relay.arg = (void *)(uintptr_t)asked;
    if (team->params.place.rank == 0)
        status = start_hub(team, err);
    else if (team->met)
        team_dial(team, -1);
    if (status == EPA_OK && team->lost)
        team_fail_with(
            team, EPA_ERR_UNSUPPORTED, UINT32_MAX,
            "the process of rank %u (host %.64s) was lost in an earlier run, and "
            "cannot be started again in this job",
            team->params.place.rank, team->host.name);
    return status;
}

static void end(struct team *team, const struct epa_launch *asked, struct epa_error *err)
{
    const struct wire_word *verdict = &team->run.verdict;
    /* What rank 0 says for all the others do not say again. */
    bool tells = !team->run.rank_0_tells || team->params.place.rank == 0;

    if (verdict->status == EPA_ERR_DIED && tells && asked->lost != NULL)
        *asked->lost = verdict->rank;
    if (verdict->status != EPA_OK && tells && verdict->text[0] != 0)
        (void)epa_fail(err, verdict->status, "%s", verdict->text);
    if (verdict->status == EPA_ERR_INTERRUPTED)
        share_signal(verdict->signal);
}

/* One that could not even begin: what there is of it ends. */
static void give_up(struct team *team)
{
    int code;

    if (team->process.pid == 0 || team_keeps(team))
        return;
    process_kill(&team->process);
    while (!process_ended(&team->process, EPA_OK, &code))
        (void)poll(NULL, 0, 1);
    process_finish(&team->process);
    conn_finish(&team->child);
}

enum epa_status team_launch(struct team *team, const struct team_settings *settings,
                            const struct epa_launch *asked, struct epa_error *err)
{
    struct pollfd *fds =
        calloc(OWN_POLLS + NET_LISTENERS + asked->ranks + 64, sizeof(*fds));
    enum epa_status status;

    team->run = (struct team_run_state){.settings = settings,
                                        .asked = asked,
                                        .stop_fd = asked->stop_fd,
                                        .began_ns = clock_ns()};
    status = fds == NULL
                 ? epa_fail(err, EPA_ERR_NOMEM, "no memory to watch %u ranks", asked->ranks)
                 : begin(team, err);
    if (status != EPA_OK) {
        give_up(team);
    } else {
        while (!is_over(team))
            turn(team, fds);
        status = team->run.verdict.status;
        end(team, asked, err);
        relay_turn(&team->process.relay);
    }
    team->process.relay.before = NULL; /* `asked` does not stay */
    net_dial_finish(&team->dial);
    pin_plan_finish(&team->pins);
    free(fds);
    return status;
}

/* ---- life ---- */

static void end_process(struct team *team)
{
    /* Killed, it would be a failure after all; after one, it may wait for who is gone. */
    uint64_t ms = team->run.verdict.status == EPA_OK ? REPORT_MS : LEAVE_MS;
    uint64_t kill_ns = clock_ns() + ms * 1000000;
    int code;

    if (team->process.pid == 0)
        return;
    conn_put(&team->child, WIRE_LEAVE);
    while (!process_ended(&team->process, EPA_OK, &code)) {
        conn_turn(&team->child, 0);
        relay_turn(&team->process.relay);
        if (clock_ns() > kill_ns)
            process_kill(&team->process);
        (void)poll(NULL, 0, 1);
    }
    process_finish(&team->process);
}

static void wait_for_rank_0(struct team *team)
{
    uint64_t end_ns = clock_ns() + REPORT_S * 1000000000ull;
    struct conn_message m;

    if (!team_keeps(team) || team->params.place.rank == 0 ||
        team->run.verdict.status == EPA_OK)
        return;
    while (team->conn.fd >= 0 && clock_ns() < end_ns) {
        struct pollfd fd = {.fd = team->conn.fd, .events = POLLIN};

        if (poll(&fd, 1, LOOK_MS) > 0)
            conn_turn(&team->conn, fd.revents);
        while (conn_take(&team->conn, &m))
            continue;
    }
}

void team_destroy(struct team *team)
{
    if (team == NULL)
        return;
    end_process(team);
    wait_for_rank_0(team);
    hub_destroy(team->hub);
    conn_finish(&team->child);
    conn_finish(&team->conn);
    for (uint32_t i = 0; i < team->listeners; i++)
        close(team->listener[i]);
    control_destroy(team->control);
    free(team);
}

enum epa_status team_create(const struct team_params *params, struct team **out,
                            struct epa_error *err)
{
    struct team *team = calloc(1, sizeof(*team));
    bool listens = params->place.rank == 0 && params->place.size > 1;
    enum epa_status status = EPA_OK;

    if (team == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for an agent");
    team->params = *params;
    team->met = params->meet == NULL;
    process_init(&team->process);
    team->child.fd = team->conn.fd = team->dial.fd = -1;
    nodes_host(&team->host);
    if (params->contact != NULL)
        team->contact = *params->contact;
    if (listens && params->contact != NULL)
        status = net_listen_at(&team->contact, params->interface, &team->listener[0], err);
    else if (listens)
        status =
            net_listen_anywhere(params->interface, &team->contact, &team->listener[0], err);
    team->listeners = status == EPA_OK && listens;
    if (status == EPA_OK)
        status = control_create(1, &team->control, err);
    if (status != EPA_OK) {
        team_destroy(team);
        return status;
    }
    *out = team;
    return EPA_OK;
}
