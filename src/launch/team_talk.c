/* What the agent says to the hub and hears from it. Until it is sure to talk to the hub it
 * tries again; from then on a connection that is lost or silent means that rank 0 is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "launch/team_state.h"

#ifndef EPA2A_VERSION
#error "the version goes into the hello"
#endif

enum { TURN_PIECES = 128 }; /* of a block, before others have their turn */

/* ---- how it ends ---- */

static void judge(struct team *team, const struct wire_word *verdict)
{
    struct team_run_state *run = &team->run;

    if (run->judged)
        return;
    run->judged = true;
    run->verdict = *verdict;
    if (verdict->status != EPA_OK)
        control_abort(team->control);
}

/* The hub can hear of it, now or later. */
static bool reaches_hub(const struct team *team)
{
    return team->run.phase != MEETING && team->run.word.status != EPA_ERR_INTERRUPTED;
}

void team_fail(struct team *team, const struct wire_word *word)
{
    struct team_run_state *run = &team->run;
    bool better = !run->word_ready ||
                  (run->word.status == EPA_ERR_ABORTED && word->status != EPA_ERR_ABORTED);

    control_abort(team->control);
    if (better) {
        run->word = *word;
        run->word_ready = true;
    }
    if (run->phase >= JOINING)
        conn_put_word(&team->conn, WIRE_WORD, word);
    else if (!reaches_hub(team))
        judge(team, &run->word);
}

void team_fail_with(struct team *team, enum epa_status status, uint32_t lost,
                    const char *fmt, ...)
{
    struct wire_word word = {.status = status, .rank = lost};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    team_fail(team, &word);
}

void team_returned(struct team *team, enum epa_status status)
{
    struct wire_word word = {.status = status, .rank = UINT32_MAX};

    team->run.returned = true;
    if (status != EPA_OK)
        team_fail(team, &word); /* the rank has said why */
    else
        conn_put_word(&team->conn, WIRE_WORD, &word);
}

static void hub_is_gone(struct team *team, const char *how)
{
    struct wire_word word = {.status = EPA_ERR_DIED, .rank = 0};

    conn_close(&team->conn, "%s", how);
    snprintf(word.text, sizeof(word.text), "%s is gone: %s", team->hub_name,
             team->conn.why);
    judge(team, &word);
}

/* ---- coming ---- */

/* A bit for each core of the plan. */
static size_t fill_mask(const struct pin_plan *plan, unsigned char *mask)
{
    size_t bytes = 0;

    memset(mask, 0, WIRE_MASK_MAX);
    for (uint32_t i = 0; i < plan->cores; i++) {
        size_t at = (size_t)plan->order[i] / 8;

        if (at >= WIRE_MASK_MAX)
            continue;
        mask[at] |= (unsigned char)(1 << (plan->order[i] % 8));
        bytes = at + 1 > bytes ? at + 1 : bytes;
    }
    return bytes;
}

static void say_hello(struct team *team)
{
    const char *alike = team->run.asked->alike != NULL ? team->run.asked->alike : "";
    struct wire_greet greet = {.protocol = WIRE_PROTOCOL};
    struct wire_hello hello = {.rank = team->params.place.rank,
                               .size = team->params.place.size,
                               .pid = (uint32_t)team->process.pid,
                               .abi = EPA_ABI,
                               .version = EPA2A_VERSION,
                               .alike = {(const unsigned char *)alike, strlen(alike)}};
    unsigned char mask[WIRE_MASK_MAX], *at;
    size_t room;

    hello.mask = (struct wire_span){mask, fill_mask(&team->pins, mask)};
    room = sizeof(hello) + 64 + hello.mask.bytes + hello.alike.bytes;
    memcpy(hello.host, team->host.name, sizeof(hello.host));
    memcpy(hello.machine, team->host.machine, sizeof(hello.machine));
    memcpy(hello.identity, team->host.identity, sizeof(hello.identity));
    memcpy(greet.token, team->contact.token, sizeof(greet.token));
    at = conn_begin(&team->conn, WIRE_GREET, WIRE_GREET_MAX);
    if (at != NULL)
        conn_end(&team->conn, wire_put_greet(at, WIRE_GREET_MAX, &greet));
    at = conn_begin(&team->conn, WIRE_HELLO, room);
    if (at != NULL)
        conn_end(&team->conn, wire_put_hello(at, room, &hello));
    if (team->run.word_ready)
        conn_put_word(&team->conn, WIRE_WORD, &team->run.word);
}

static void connected(struct team *team, int fd)
{
    uint32_t size = team->params.place.size;
    size_t limit = wire_gather_bytes(size) * size;

    conn_init(&team->conn, fd, limit + 1024);
    team->run.looked_ns = clock_ns();
    team->run.phase = JOINING;
    say_hello(team);
}

void team_dial(struct team *team, int fd)
{
    team->run.phase = DIALING;
    net_dial_init(&team->dial, &team->contact);
    snprintf(team->hub_name, sizeof(team->hub_name), "rank 0 (address %.100s, port %u)",
             team->contact.address[0], team->contact.port);
    if (fd >= 0)
        connected(team, fd);
}

static void dial_turn(struct team *team, short revents, uint64_t now)
{
    const struct team_run_state *run = &team->run;
    int fd = net_dial_turn(&team->dial, revents, now);

    if (fd >= 0)
        connected(team, fd);
    else if (now - run->began_ns > run->settings->start_ns && run->word_ready)
        judge(team, &run->word);
    else if (now - run->began_ns > run->settings->start_ns) {
        struct wire_word word = {.status = EPA_ERR_TIMEOUT, .rank = UINT32_MAX};

        snprintf(word.text, sizeof(word.text),
                 "rank %u (host %.64s) cannot reach rank 0 within %.3g s: %s",
                 team->params.place.rank, team->host.name,
                 (double)run->settings->start_ns * 1e-9, team->dial.why);
        judge(team, &word);
    }
}

/* Whoever listens there is not the hub of this job, or no more. */
static void dial_again(struct team *team, const char *why)
{
    net_dial_again(&team->dial, why); /* which may be the connection's own */
    conn_finish(&team->conn);
    team->run.phase = DIALING;
}

/* ---- running ---- */

static void order_run(struct team *team, const struct wire_welcome *welcome)
{
    uint32_t size = team->params.place.size, me = team->params.place.rank;
    const struct epa_launch *asked = team->run.asked;
    struct team_run order = {.rank_main = asked->rank_main,
                             .arg = asked->arg,
                             .timeout_ns = asked->timeout_ns,
                             .world = {.rank = me, .size = size},
                             .all_cores = team->pins.cores};
    uint32_t mine = wire_get_u32(welcome->node.data + (size_t)me * 4);
    size_t room = sizeof(order) + ((size_t)size + order.all_cores) * 4;
    unsigned char *at = conn_begin(&team->child, WIRE_RUN, room), *to;
    const int32_t *core;

    if (at == NULL)
        return;
    to = at + sizeof(order);
    for (uint32_t r = 0; r < size; r++) {
        uint32_t node = wire_get_u32(welcome->node.data + (size_t)r * 4);

        order.world.local_rank += node == mine && r < me;
        order.world.local_size += node == mine;
        memcpy(to + (size_t)r * 4, &node, 4);
    }
    order.world.local_cores = welcome->local_cores;
    team->pins.ranks = welcome->shares;
    order.world.cores = pin_plan_rank(&team->pins, welcome->share, &core);
    order.first_core = order.world.cores > 0 ? (uint32_t)(core - team->pins.order) : 0;
    memcpy(to + (size_t)size * 4, team->pins.order, (size_t)order.all_cores * 4);
    memcpy(at, &order, sizeof(order));
    conn_end(&team->child, room);
    team->run.ran = true;
}

static void welcomed(struct team *team, const struct conn_message *m)
{
    struct wire_welcome welcome;

    if (team->run.phase != WAITING ||
        !wire_get_welcome(m->data, m->bytes, team->params.place.size, &welcome)) {
        hub_is_gone(team, "it sent what makes no sense");
        return;
    }
    snprintf(team->hub_name, sizeof(team->hub_name), "rank 0 (host %.64s, pid %u)",
             welcome.host, welcome.pid);
    team->run.phase = RUNNING;
    if (!control_aborted(team->control))
        order_run(team, &welcome);
}

/* To the process of the rank, as it is. */
static void pass_on(struct team *team, const struct conn_message *m)
{
    unsigned char *at = conn_begin(&team->child, m->type, m->bytes);

    if (at == NULL)
        return;
    memcpy(at, m->data, m->bytes);
    conn_end(&team->child, m->bytes);
}

static void hear(struct team *team, const struct conn_message *m)
{
    struct team_run_state *run = &team->run;
    struct wire_word word;

    if (m->type == WIRE_REFUSED || m->type == WIRE_VERDICT) {
        if (!wire_get_word(m->data, m->bytes, &word))
            hub_is_gone(team, "it sent what makes no sense");
        else
            judge(team, &word);
        run->rank_0_tells = m->type == WIRE_VERDICT;
        return;
    }
    if (run->phase == JOINING && m->type != WIRE_ALIVE && m->type != WIRE_ABORT) {
        conn_close(&team->conn, "it is no epa2a");
        return;
    }
    if (run->phase == JOINING)
        run->phase = WAITING;
    if (m->type == WIRE_ABORT)
        control_abort(team->control);
    else if (m->type == WIRE_WELCOME)
        welcomed(team, m);
    else if (m->type == WIRE_ALL || m->type == WIRE_LATE)
        pass_on(team, m);
    else if (m->type != WIRE_ALIVE)
        hub_is_gone(team, "it sent what makes no sense");
}

/* ---- leaving ---- */

static bool is_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* What was never written is left out: rank 0 has zeros there, too. */
static void push_block(struct team *team)
{
    struct team_run_state *run = &team->run;
    const struct epa_launch *asked = run->asked;
    uint32_t me = team->params.place.rank;
    size_t bytes = run->ran && me != 0 && asked->block != NULL ? asked->block_bytes : 0;

    for (uint32_t i = 0;
         i < TURN_PIECES && conn_all_sent(&team->conn) && run->block_at < bytes; i++) {
        size_t n = bytes - run->block_at;
        const char *from = asked->block + me * bytes + run->block_at;
        struct wire_piece piece = {.number = run->block_at};

        n = n < WIRE_BLOCK_MAX ? n : WIRE_BLOCK_MAX;
        piece.data = (struct wire_span){(const unsigned char *)from, n};
        if (!is_zero(from, n))
            conn_put_piece(&team->conn, WIRE_BLOCK, &piece);
        run->block_at += n;
        conn_turn(&team->conn, 0);
    }
    if (run->block_at < bytes)
        return;
    conn_put(&team->conn, WIRE_DONE);
    run->phase = DONE;
}

static void check_hub(struct team *team, uint64_t now)
{
    uint64_t limit = team->run.settings->heartbeat_ns, looked = team->run.looked_ns;
    char how[80];

    snprintf(how, sizeof(how), "nothing was heard from it for %.3g s",
             (double)limit * 1e-9);
    team->run.looked_ns = now;
    if (team->conn.fd >= 0 && !conn_is_silent(&team->conn, now, looked, limit))
        conn_keep_alive(&team->conn, now, limit / 5);
    else if (team->run.phase == JOINING)
        dial_again(team, team->conn.fd < 0 ? team->conn.why : how);
    else
        hub_is_gone(team, how);
}

struct pollfd team_hub_poll(const struct team *team)
{
    if (team->run.phase >= JOINING)
        return (struct pollfd){.fd = team->conn.fd, .events = conn_events(&team->conn)};
    return (struct pollfd){.fd = team->run.phase == DIALING ? team->dial.fd : -1,
                           .events = POLLOUT};
}

void team_hub_turn(struct team *team, short revents, uint64_t now)
{
    struct team_run_state *run = &team->run;
    struct conn_message m;

    if (run->judged)
        return;
    if (run->phase == DIALING)
        dial_turn(team, revents, now);
    else if (run->phase >= JOINING) {
        conn_turn(&team->conn, revents);
        while (!run->judged && conn_take(&team->conn, &m))
            hear(team, &m);
        if (!run->judged)
            check_hub(team, now);
    }
    if (run->judged || run->phase < WAITING)
        return;
    if (run->phase == RUNNING || (run->phase == WAITING && control_aborted(team->control)))
        run->phase = team_quiet(team) ? LEAVING : run->phase;
    if (run->phase == LEAVING)
        push_block(team);
    conn_turn(&team->conn, 0);
}
