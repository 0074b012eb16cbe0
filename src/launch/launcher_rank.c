/* The process of a rank. It does what its agent tells it to over a socket: runs a rank, once
 * or as often as there are launches. The bootstrap of the rank goes over the same socket, and
 * the word `aborted` is memory that both map. */
#include <errno.h>
#include <poll.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/launcher_state.h"

enum { POLL_MS = 10 };

/* Beyond the rank's own limit, in which its agent should have said who is late. */
static const uint64_t default_timeout_ns = 2000000000;

struct member {
    struct epa_bootstrap base; /* first: a pointer to it is one to all of this */
    struct conn *conn;
    struct control *control;
    uint64_t timeout_ns, number; /* of the next piece */
    uint32_t late;
    bool timed_out;
};

/* ---- messages ---- */

static void send_all(struct conn *conn)
{
    while (conn->fd >= 0 && !conn_all_sent(conn)) {
        struct pollfd fd = {.fd = conn->fd, .events = POLLOUT};

        (void)poll(&fd, 1, POLL_MS);
        conn_turn(conn, (short)(fd.revents & ~POLLIN));
    }
}

/* For `wait_ms` at most. False: nothing has come. */
static bool receive(struct conn *conn, int wait_ms, struct conn_message *out)
{
    struct pollfd fd = {.fd = conn->fd, .events = POLLIN};

    if (conn_take(conn, out))
        return true;
    if (conn->fd < 0 || poll(&fd, 1, wait_ms) <= 0)
        return false;
    conn_turn(conn, fd.revents);
    return conn_take(conn, out);
}

/* ---- the bootstrap ---- */

static enum epa_status output(struct member *m, size_t bytes, struct wire_piece *out)
{
    uint64_t begun = clock_ns(), end = begun + m->timeout_ns + default_timeout_ns, reported = 0;
    struct conn_message message;
    struct wire_word late;

    for (;;) {
        if (epa_aborted(&m->base) || m->conn->fd < 0)
            return EPA_ERR_ABORTED;
        if (m->timeout_ns != 0 && clock_ns() > end) {
            m->timed_out = true;
            return EPA_ERR_TIMEOUT;
        }
        epa_wait_report(m->base.observer,
                        &(struct epa_wait_state){.kind = EPA_WAIT_SET_UP,
                                                 .peer = EPA_WAIT_NOBODY,
                                                 .number = EPA_WAIT_NOBODY,
                                                 .seen = m->number,
                                                 .wanted = m->number + 1,
                                                 .waited_ns = clock_ns() - begun},
                        &reported);
        if (!receive(m->conn, POLL_MS, &message))
            continue;
        if (message.type == WIRE_LATE && wire_get_word(message.data, message.bytes, &late)) {
            m->timed_out = true;
            m->late = late.rank;
            return EPA_ERR_TIMEOUT;
        }
        if (message.type == WIRE_ALL && wire_get_piece(message.data, message.bytes, out) &&
            out->number == m->number && out->data.bytes == bytes * m->base.world.size) {
            epa_wait_clear(m->base.observer, reported);
            return EPA_OK;
        }
    }
}

static enum epa_status allgather(struct epa_bootstrap *base, const void *mine, size_t bytes,
                                 void *all)
{
    struct member *m = (struct member *)base;
    size_t most = wire_gather_bytes(base->world.size), at = 0;

    do { /* once for no bytes, too: an allgather is a barrier */
        size_t n = bytes - at < most ? bytes - at : most;
        struct wire_piece piece = {.number = m->number,
                                   .data = {(const unsigned char *)mine + at, n}};
        enum epa_status status;

        conn_put_piece(m->conn, WIRE_GATHER, &piece);
        send_all(m->conn);
        status = output(m, n, &piece);
        if (status != EPA_OK)
            return status;
        m->number++;
        for (uint32_t r = 0; r < base->world.size && n > 0; r++)
            memcpy((char *)all + r * bytes + at, piece.data.data + r * n, n);
        at += n;
    } while (at < bytes);
    return EPA_OK;
}

static enum epa_status barrier(struct epa_bootstrap *base)
{
    return allgather(base, "", 0, NULL);
}

static void raise_abort(struct epa_bootstrap *base)
{
    struct member *m = (struct member *)base;

    control_abort(m->control);
    conn_put(m->conn, WIRE_ABORT);
    send_all(m->conn);
}

static void explain(struct epa_bootstrap *base, struct epa_error *err)
{
    const struct member *m = (const struct member *)base;

    if (!m->timed_out)
        return;
    if (m->late == UINT32_MAX)
        epa_fail(err, EPA_ERR_TIMEOUT,
                 "rank %u waited %.3g s for others in step %llu of the set-up, and heard "
                 "nothing",
                 base->world.rank, (double)(m->timeout_ns + default_timeout_ns) * 1e-9,
                 (unsigned long long)m->number);
    else
        epa_fail(err, EPA_ERR_TIMEOUT,
                 "rank %u waited %.3g s for rank %u to reach step %llu of the set-up",
                 base->world.rank, (double)m->timeout_ns * 1e-9, m->late,
                 (unsigned long long)m->number);
}

/* ---- commands ---- */

/* Runs the rank as `order` says; what it points to is behind it, and stays as it is. */
static enum epa_status run(struct launcher *launcher, struct conn *conn,
                           const struct launcher_run *order, const uint32_t *node,
                           const int32_t *core)
{
    struct member m = {.base = {.world = order->world,
                                .aborted = control_flag(launcher->control),
                                .allgather = allgather,
                                .barrier = barrier,
                                .abort = raise_abort,
                                .explain = explain},
                       .conn = conn,
                       .control = launcher->control,
                       .timeout_ns = order->timeout_ns,
                       .late = UINT32_MAX};

    m.base.world.node = node;
    m.base.world.core = core + order->first_core;
    if (order->all_cores > 0) /* an earlier launch may have left us on one */
        (void)pin_self_any(core, order->all_cores);
    launch_pin(&m.base.world);
    return order->rank_main(&m.base, order->arg);
}

static enum epa_status obey(struct launcher *launcher, struct conn *conn,
                            const struct conn_message *m)
{
    enum epa_status status = EPA_ERR_NOMEM;
    struct launcher_run *order = malloc(m->bytes); /* its own: the message does not stay */

    if (order != NULL) {
        const uint32_t *node;

        memcpy(order, m->data, m->bytes);
        node = (const uint32_t *)(order + 1);
        status = run(launcher, conn, order, node, (const int32_t *)(node + order->world.size));
        free(order);
    }
    control_return(launcher->control, 0, status);
    fflush(stdout);
    fflush(stderr);
    conn_put(conn, WIRE_RETURNED);
    send_all(conn);
    return status;
}

static void meet(struct launcher *launcher, struct conn *conn)
{
    struct launcher_met met = {.err = {EPA_OK, ""}, .contact = launcher->contact};
    enum epa_status status = launcher->params.meet(launcher->params.arg, &met.contact, &met.err);
    unsigned char *at;

    if (status != EPA_OK)
        (void)epa_fail(&met.err, status, "no reason was given");
    at = conn_begin(conn, WIRE_CONTACT, sizeof(met));
    if (at == NULL)
        return;
    memcpy(at, &met, sizeof(met));
    conn_end(conn, sizeof(met));
    send_all(conn);
}

static void close_inherited(struct launcher *launcher)
{
    process_close_inherited(&launcher->process);
    for (uint32_t i = 0; i < launcher->listeners; i++)
        close(launcher->listener[i]);
    conn_finish(&launcher->child);
}

int launcher_rank_process(void *arg)
{
    struct launcher *launcher = arg;
    enum epa_status status = EPA_OK;
    struct conn_message message;
    struct conn conn;

    close_inherited(launcher);
    conn_init(&conn, launcher->child_end, SIZE_MAX / 2); /* the agent is trusted */
    if (launcher->params.meet != NULL)
        meet(launcher, &conn);
    for (;;) {
        bool any = receive(&conn, -1, &message);

        if (any && message.type == WIRE_RUN)
            status = obey(launcher, &conn, &message);
        if ((any && message.type == WIRE_LEAVE) || (!any && conn.fd < 0) ||
            (any && message.type == WIRE_RUN && !launcher_keeps(launcher)))
            break;
    }
    conn_finish(&conn);
    if (launcher->params.leave != NULL)
        launcher->params.leave(launcher->params.arg);
    return process_code(status);
}
