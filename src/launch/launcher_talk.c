/* What the agent says to the hub and hears from it. Until it is sure to talk to the hub it
 * tries again; from then on a connection that is lost or silent means that rank 0 is. */
#include <errno.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "launch/launcher_state.h"

#ifndef EPA2A_VERSION
#error "the version goes into the hello"
#endif

enum { TURN_PIECES = 128 }; /* of a block, before others have their turn */

/* ---- how it ends ---- */

static void judge(struct launcher *launcher, const struct wire_word *verdict)
{
    struct launcher_run_state *run = &launcher->run;

    if (run->judged)
        return;
    run->judged = true;
    run->verdict = *verdict;
    if (verdict->status != EPA_OK)
        control_abort(launcher->control);
}

/* The hub can hear of it, now or later. */
static bool reaches_rendezvous(const struct launcher *launcher)
{
    return launcher->run.phase != MEETING && launcher->run.word.status != EPA_ERR_INTERRUPTED;
}

void launcher_fail(struct launcher *launcher, const struct wire_word *word)
{
    struct launcher_run_state *run = &launcher->run;
    bool better = !run->word_ready ||
                  (run->word.status == EPA_ERR_ABORTED && word->status != EPA_ERR_ABORTED);

    control_abort(launcher->control);
    if (better) {
        run->word = *word;
        run->word_ready = true;
    }
    if (run->phase >= JOINING)
        conn_put_word(&launcher->conn, WIRE_WORD, word);
    else if (!reaches_rendezvous(launcher))
        judge(launcher, &run->word);
}

void launcher_fail_with(struct launcher *launcher, enum epa_status status, uint32_t failed_rank,
                        const char *fmt, ...)
{
    struct wire_word word = {.status = status, .rank = failed_rank};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    launcher_fail(launcher, &word);
}

void launcher_returned(struct launcher *launcher, enum epa_status status)
{
    struct wire_word word = {.status = status, .rank = UINT32_MAX};

    launcher->run.returned = true;
    if (status != EPA_OK)
        launcher_fail(launcher, &word); /* the rank has said why */
    else
        conn_put_word(&launcher->conn, WIRE_WORD, &word);
}

static void rendezvous_is_gone(struct launcher *launcher, const char *how)
{
    struct wire_word word = {.status = EPA_ERR_DIED, .rank = 0};

    conn_close(&launcher->conn, "%s", how);
    snprintf(word.text, sizeof(word.text), "%s is gone: %s", launcher->rendezvous_name,
             launcher->conn.why);
    judge(launcher, &word);
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

static void say_hello(struct launcher *launcher)
{
    const char *fingerprint =
        launcher->run.asked->fingerprint != NULL ? launcher->run.asked->fingerprint : "";
    struct wire_greet greet = {.protocol = WIRE_PROTOCOL};
    struct wire_hello hello = {
        .rank = launcher->params.process_id.rank,
        .size = launcher->params.process_id.size,
        .pid = (uint32_t)launcher->process.pid,
        .abi = EPA_ABI,
        .version = EPA2A_VERSION,
        .fingerprint = {(const unsigned char *)fingerprint, strlen(fingerprint)}};
    unsigned char mask[WIRE_MASK_MAX], *at;
    size_t room;

    hello.mask = (struct wire_span){mask, fill_mask(&launcher->pins, mask)};
    room = sizeof(hello) + 64 + hello.mask.bytes + hello.fingerprint.bytes;
    memcpy(hello.host, launcher->host.name, sizeof(hello.host));
    memcpy(hello.machine, launcher->host.machine, sizeof(hello.machine));
    memcpy(hello.identity, launcher->host.identity, sizeof(hello.identity));
    memcpy(greet.token, launcher->contact.token, sizeof(greet.token));
    at = conn_begin(&launcher->conn, WIRE_GREET, WIRE_GREET_MAX);
    if (at != NULL)
        conn_end(&launcher->conn, wire_put_greet(at, WIRE_GREET_MAX, &greet));
    at = conn_begin(&launcher->conn, WIRE_HELLO, room);
    if (at != NULL)
        conn_end(&launcher->conn, wire_put_hello(at, room, &hello));
    if (launcher->run.word_ready)
        conn_put_word(&launcher->conn, WIRE_WORD, &launcher->run.word);
}

static void connected(struct launcher *launcher, int fd)
{
    uint32_t size = launcher->params.process_id.size;
    size_t limit = wire_gather_bytes(size) * size;

    conn_init(&launcher->conn, fd, limit + 1024);
    launcher->run.looked_ns = clock_ns();
    launcher->run.phase = JOINING;
    say_hello(launcher);
}

void launcher_dial(struct launcher *launcher, int fd)
{
    launcher->run.phase = DIALING;
    net_dial_init(&launcher->dial, &launcher->contact);
    snprintf(launcher->rendezvous_name, sizeof(launcher->rendezvous_name),
             "rank 0 (address %.100s, port %u)", launcher->contact.address[0],
             launcher->contact.port);
    if (fd >= 0)
        connected(launcher, fd);
}

static void dial_turn(struct launcher *launcher, short revents, uint64_t now)
{
    const struct launcher_run_state *run = &launcher->run;
    int fd = net_dial_turn(&launcher->dial, revents, now);

    if (fd >= 0)
        connected(launcher, fd);
    else if (now - run->began_ns > run->settings->start_ns && run->word_ready)
        judge(launcher, &run->word);
    else if (now - run->began_ns > run->settings->start_ns) {
        struct wire_word word = {.status = EPA_ERR_TIMEOUT, .rank = UINT32_MAX};

        snprintf(word.text, sizeof(word.text),
                 "rank %u (host %.64s) cannot reach rank 0 within %.3g s (launcher.start): %s",
                 launcher->params.process_id.rank, launcher->host.name,
                 (double)run->settings->start_ns * 1e-9, launcher->dial.why);
        judge(launcher, &word);
    }
}

/* Whoever listens there is not the hub of this job, or no more. */
static void dial_again(struct launcher *launcher, const char *why)
{
    net_dial_again(&launcher->dial, why); /* which may be the connection's own */
    conn_finish(&launcher->conn);
    launcher->run.phase = DIALING;
}

/* ---- running ---- */

static void order_run(struct launcher *launcher, const struct wire_welcome *welcome)
{
    uint32_t size = launcher->params.process_id.size, me = launcher->params.process_id.rank;
    const struct epa_launch *asked = launcher->run.asked;
    struct launcher_run order = {.rank_main = asked->rank_main,
                                 .arg = asked->arg,
                                 .timeout_ns = asked->timeout_ns,
                                 .world = {.rank = me, .size = size},
                                 .all_cores = launcher->pins.cores};
    uint32_t mine = wire_get_u32(welcome->node.data + (size_t)me * 4);
    size_t room = sizeof(order) + ((size_t)size + order.all_cores) * 4;
    unsigned char *at = conn_begin(&launcher->child, WIRE_RUN, room), *to;
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
    launcher->pins.ranks = welcome->shares;
    order.world.cores = pin_plan_rank(&launcher->pins, welcome->share, &core);
    order.first_core = order.world.cores > 0 ? (uint32_t)(core - launcher->pins.order) : 0;
    memcpy(to + (size_t)size * 4, launcher->pins.order, (size_t)order.all_cores * 4);
    memcpy(at, &order, sizeof(order));
    conn_end(&launcher->child, room);
    launcher->run.ran = true;
}

static void welcomed(struct launcher *launcher, const struct conn_message *m)
{
    struct wire_welcome welcome;

    if (launcher->run.phase != WAITING ||
        !wire_get_welcome(m->data, m->bytes, launcher->params.process_id.size, &welcome)) {
        rendezvous_is_gone(launcher, "it sent what makes no sense");
        return;
    }
    snprintf(launcher->rendezvous_name, sizeof(launcher->rendezvous_name),
             "rank 0 (host %.64s, pid %u)", welcome.host, welcome.pid);
    launcher->run.phase = RUNNING;
    if (!control_aborted(launcher->control))
        order_run(launcher, &welcome);
}

/* To the process of the rank, as it is. */
static void pass_on(struct launcher *launcher, const struct conn_message *m)
{
    unsigned char *at = conn_begin(&launcher->child, m->type, m->bytes);

    if (at == NULL)
        return;
    memcpy(at, m->data, m->bytes);
    conn_end(&launcher->child, m->bytes);
}

static void hear(struct launcher *launcher, const struct conn_message *m)
{
    struct launcher_run_state *run = &launcher->run;
    struct wire_word word;

    if (m->type == WIRE_REFUSED || m->type == WIRE_VERDICT) {
        if (!wire_get_word(m->data, m->bytes, &word))
            rendezvous_is_gone(launcher, "it sent what makes no sense");
        else
            judge(launcher, &word);
        run->rank_0_tells = m->type == WIRE_VERDICT;
        return;
    }
    if (run->phase == JOINING && m->type != WIRE_ALIVE && m->type != WIRE_ABORT) {
        conn_close(&launcher->conn, "it is no epa2a");
        return;
    }
    if (run->phase == JOINING)
        run->phase = WAITING;
    if (m->type == WIRE_ABORT)
        control_abort(launcher->control);
    else if (m->type == WIRE_WELCOME)
        welcomed(launcher, m);
    else if (m->type == WIRE_ALL || m->type == WIRE_LATE)
        pass_on(launcher, m);
    else if (m->type != WIRE_ALIVE)
        rendezvous_is_gone(launcher, "it sent what makes no sense");
}

/* ---- leaving ---- */

static bool is_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

/* What was never written is left out: rank 0 has zeros there, too. */
static void push_block(struct launcher *launcher)
{
    struct launcher_run_state *run = &launcher->run;
    const struct epa_launch *asked = run->asked;
    uint32_t me = launcher->params.process_id.rank;
    size_t bytes = run->ran && me != 0 && asked->block != NULL ? asked->block_bytes : 0;

    for (uint32_t i = 0; i < TURN_PIECES && conn_all_sent(&launcher->conn) && run->block_at < bytes;
         i++) {
        size_t n = bytes - run->block_at;
        const char *from = asked->block + me * bytes + run->block_at;
        struct wire_piece piece = {.number = run->block_at};

        n = n < WIRE_BLOCK_MAX ? n : WIRE_BLOCK_MAX;
        piece.data = (struct wire_span){(const unsigned char *)from, n};
        if (!is_zero(from, n))
            conn_put_piece(&launcher->conn, WIRE_BLOCK, &piece);
        run->block_at += n;
        conn_turn(&launcher->conn, 0);
    }
    if (run->block_at < bytes)
        return;
    conn_put(&launcher->conn, WIRE_DONE);
    run->phase = DONE;
}

static void check_rendezvous(struct launcher *launcher, uint64_t now)
{
    uint64_t limit = launcher->run.settings->heartbeat_ns, looked = launcher->run.looked_ns;
    char how[80];

    snprintf(how, sizeof(how), "nothing was heard from it for %.3g s (launcher.heartbeat)",
             (double)limit * 1e-9);
    launcher->run.looked_ns = now;
    if (launcher->conn.fd >= 0 && !conn_is_silent(&launcher->conn, now, looked, limit))
        conn_keep_alive(&launcher->conn, now, limit / 5);
    else if (launcher->run.phase == JOINING)
        dial_again(launcher, launcher->conn.fd < 0 ? launcher->conn.why : how);
    else
        rendezvous_is_gone(launcher, how);
}

struct pollfd launcher_rendezvous_poll(const struct launcher *launcher)
{
    if (launcher->run.phase >= JOINING)
        return (struct pollfd){.fd = launcher->conn.fd, .events = conn_events(&launcher->conn)};
    return (struct pollfd){.fd = launcher->run.phase == DIALING ? launcher->dial.fd : -1,
                           .events = POLLOUT};
}

void launcher_rendezvous_turn(struct launcher *launcher, short revents, uint64_t now)
{
    struct launcher_run_state *run = &launcher->run;
    struct conn_message m;

    if (run->judged)
        return;
    if (run->phase == DIALING)
        dial_turn(launcher, revents, now);
    else if (run->phase >= JOINING) {
        conn_turn(&launcher->conn, revents);
        while (!run->judged && conn_take(&launcher->conn, &m))
            hear(launcher, &m);
        if (!run->judged)
            check_rendezvous(launcher, now);
    }
    if (run->judged || run->phase < WAITING)
        return;
    if (run->phase == RUNNING || (run->phase == WAITING && control_aborted(launcher->control)))
        run->phase = launcher_quiet(launcher) ? LEAVING : run->phase;
    if (run->phase == LEAVING)
        push_block(launcher);
    conn_turn(&launcher->conn, 0);
}
