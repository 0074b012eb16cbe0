/* Buffers on both sides of a socket. What comes in is bounded by the longest message that
 * is allowed now; what goes out by the protocol, in which expert outputs are waited for. A gathered
 * whole, which goes to all, stays where it is and is sent from there. */
#include "launch/conn.h"

#include <errno.h>
#include <poll.h>
#include <linux/sockios.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"

enum { READ_AHEAD = 4096, PIECE_HEAD = 8 };

void conn_init(struct conn *out, int fd, size_t limit)
{
    uint64_t now = clock_ns();

    *out = (struct conn){.fd = fd, .limit = limit, .heard_ns = now, .said_ns = now};
}

void conn_finish(struct conn *conn)
{
    if (conn->fd >= 0)
        close(conn->fd);
    free(conn->in);
    free(conn->out);
    *conn = (struct conn){.fd = -1};
}

void conn_close(struct conn *conn, const char *fmt, ...)
{
    va_list args;

    if (conn->fd < 0)
        return;
    close(conn->fd);
    conn->fd = -1;
    conn->bulk = NULL;
    va_start(args, fmt);
    vsnprintf(conn->why, sizeof(conn->why), fmt, args);
    va_end(args);
}

static bool grow(unsigned char **data, size_t *room, size_t want)
{
    size_t more = *room < READ_AHEAD ? READ_AHEAD : *room;
    unsigned char *p;

    if (want <= *room)
        return true;
    while (more < want)
        more *= 2;
    p = realloc(*data, more);
    if (p == NULL)
        return false;
    *data = p;
    *room = more;
    return true;
}

/* ---- in ---- */

/* Bytes of the message at the front with its head; 0: not even that is there. */
static size_t front(const struct conn *conn)
{
    size_t have = conn->in_bytes - conn->in_from;

    return have < WIRE_HEAD ? 0 : WIRE_HEAD + (size_t)wire_get_u32(conn->in + conn->in_from + 4);
}

static void read_some(struct conn *conn)
{
    size_t need = front(conn), have = conn->in_bytes - conn->in_from;
    ssize_t n;

    if (need > WIRE_HEAD + conn->limit)
        return; /* conn_take() refuses it */
    if (conn->in_from > 0)
        memmove(conn->in, conn->in + conn->in_from, have);
    conn->in_from = 0;
    conn->in_bytes = have;
    if (!grow(&conn->in, &conn->in_room, need > have ? need : have + READ_AHEAD)) {
        conn_close(conn, "there is no memory for a message of %zu bytes", need);
        return;
    }
    n = recv(conn->fd, conn->in + have, conn->in_room - have, MSG_DONTWAIT);
    if (n > 0) {
        conn->in_bytes += (size_t)n;
        conn->heard_ns = clock_ns();
    } else if (n == 0) {
        conn_close(conn, "its connection was closed");
    } else if (errno != EAGAIN && errno != EINTR) {
        conn_close(conn, "its connection was lost: %s", strerror(errno));
    }
}

bool conn_take(struct conn *conn, struct conn_message *out)
{
    size_t need = front(conn);

    if (need == 0)
        return false;
    if (need > WIRE_HEAD + conn->limit) {
        conn_close(conn, "it sent a message of %zu bytes, where %zu are the most", need - WIRE_HEAD,
                   conn->limit);
        conn->in_from = conn->in_bytes;
        return false;
    }
    if (conn->in_bytes - conn->in_from < need)
        return false;
    *out = (struct conn_message){wire_get_u32(conn->in + conn->in_from),
                                 conn->in + conn->in_from + WIRE_HEAD, need - WIRE_HEAD};
    conn->in_from += need;
    return true;
}

void conn_discard(struct conn *conn)
{
    conn->in_from = conn->in_bytes = 0;
}

/* ---- out ---- */

bool conn_bulk_gone(const struct conn *conn)
{
    return conn->bulk == NULL;
}

bool conn_all_sent(const struct conn *conn)
{
    return conn->fd < 0 || (conn->bulk == NULL && conn->out_from == conn->out_bytes);
}

bool conn_all_heard(const struct conn *conn)
{
    int left = 0;

    return conn_all_sent(conn) &&
           (conn->fd < 0 || ioctl(conn->fd, SIOCOUTQ, &left) != 0 || left == 0);
}

static bool send_some(struct conn *conn, const unsigned char *data, size_t bytes, size_t *from)
{
    ssize_t n;

    while (*from < bytes) {
        n = send(conn->fd, data + *from, bytes - *from, MSG_DONTWAIT | MSG_NOSIGNAL);
        if (n > 0) {
            *from += (size_t)n;
            conn->said_ns = clock_ns();
        } else if (n < 0 && errno == EAGAIN) {
            return false;
        } else if (n < 0 && errno != EINTR) {
            conn_close(conn, "its connection was lost: %s", strerror(errno));
            return false;
        }
    }
    return true;
}

static void write_some(struct conn *conn)
{
    if (conn->bulk != NULL) {
        if (!send_some(conn, conn->out, conn->bulk_at, &conn->out_from) ||
            !send_some(conn, conn->bulk, conn->bulk_bytes, &conn->bulk_from))
            return;
        conn->bulk = NULL;
    }
    if (send_some(conn, conn->out, conn->out_bytes, &conn->out_from))
        conn->out_from = conn->out_bytes = 0;
}

short conn_events(const struct conn *conn)
{
    return (short)(POLLIN | (conn_all_sent(conn) ? 0 : POLLOUT));
}

void conn_turn(struct conn *conn, short revents)
{
    if (conn->fd >= 0 && (revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        read_some(conn);
    if (conn->fd >= 0 && !conn_all_sent(conn))
        write_some(conn);
}

unsigned char *conn_begin(struct conn *conn, uint32_t type, size_t room)
{
    unsigned char *head;

    if (conn->fd < 0)
        return NULL;
    if (conn->out_from == conn->out_bytes && conn->bulk == NULL)
        conn->out_from = conn->out_bytes = 0;
    if (!grow(&conn->out, &conn->out_room, conn->out_bytes + WIRE_HEAD + room)) {
        conn_close(conn, "there is no memory for a message of %zu bytes", room);
        return NULL;
    }
    head = conn->out + conn->out_bytes;
    wire_put_u32(head, type);
    return head + WIRE_HEAD;
}

void conn_end(struct conn *conn, size_t bytes)
{
    wire_put_u32(conn->out + conn->out_bytes + 4, (uint32_t)bytes);
    conn->out_bytes += WIRE_HEAD + bytes;
}

void conn_put(struct conn *conn, uint32_t type)
{
    if (conn_begin(conn, type, 0) != NULL)
        conn_end(conn, 0);
}

void conn_put_word(struct conn *conn, uint32_t type, const struct wire_word *word)
{
    size_t room = sizeof(*word) + 16;
    unsigned char *at = conn_begin(conn, type, room);

    if (at != NULL)
        conn_end(conn, wire_put_word(at, room, word));
}

void conn_put_piece(struct conn *conn, uint32_t type, const struct wire_piece *piece)
{
    size_t room = PIECE_HEAD + piece->data.bytes;
    unsigned char *at = conn_begin(conn, type, room);

    if (at != NULL)
        conn_end(conn, wire_put_piece(at, room, piece));
}

void conn_put_bulk(struct conn *conn, uint32_t type, const struct wire_piece *piece)
{
    struct wire_piece head = {.number = piece->number};
    unsigned char *at = conn_begin(conn, type, PIECE_HEAD);

    if (at == NULL)
        return;
    conn_end(conn, wire_put_piece(at, PIECE_HEAD, &head));
    wire_put_u32(at - 4, (uint32_t)(PIECE_HEAD + piece->data.bytes));
    if (piece->data.bytes == 0)
        return;
    conn->bulk = piece->data.data;
    conn->bulk_bytes = piece->data.bytes;
    conn->bulk_from = 0;
    conn->bulk_at = conn->out_bytes;
}

void conn_keep_alive(struct conn *conn, uint64_t now, uint64_t every_ns)
{
    if (conn->fd >= 0 && conn_all_sent(conn) && now >= conn->said_ns &&
        now - conn->said_ns >= every_ns) {
        conn->said_ns = now;
        conn_put(conn, WIRE_ALIVE);
    }
}

bool conn_is_silent(struct conn *conn, uint64_t now, uint64_t last_poll, uint64_t limit_ns)
{
    if (now - last_poll > limit_ns / 2)
        conn->heard_ns = now;
    return now > conn->heard_ns && now - conn->heard_ns > limit_ns;
}
