/* Buffers on both sides of a socket. The longest permitted message bounds the input; the protocol bounds
 * the output, since each side waits for replies. Neither side sends the token: the key of each direction
 * is an HMAC of both nonces with the token, so a correct MAC proves that the sender knows the token. The
 * sequence number prevents a replay. */
#include "boot/conn.h"

#include <errno.h>
#include <linux/sockios.h>
#include <poll.h>
#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/ioctl.h>
#include <sys/random.h>
#include <sys/socket.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "boot/close_open.h"

enum {
    READ_AHEAD = 4096,
    KEY_MOST = 64,
    TURN_PIECES = 128,     /* maximum of chunks of a block in one turn */
    BLAME_NS = 1000000000, /* a death explains failures of other ranks within this time */
};

struct head {
    uint32_t type, bytes;
    uint64_t number;
};

#ifdef EPA2A_OPENSSL
#include <openssl/evp.h>
#include <openssl/hmac.h>

bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES])
{
    unsigned int n = 0;

    return key_bytes <= KEY_MOST &&
           HMAC(EVP_sha256(), key, (int)key_bytes, data, bytes, out, &n) != NULL && n == MAC_BYTES;
}
#else
#include <linux/if_alg.h>
#include <sys/socket.h>
#include <unistd.h>

static bool hash_by_kernel(int fd, const char *data, size_t bytes, unsigned char *out)
{
    enum { MOST = 1 << 15 }; /* the kernel's maximum per call */

    while (bytes > MOST) {
        if (send(fd, data, MOST, MSG_MORE) != MOST)
            return false;
        data += MOST;
        bytes -= MOST;
    }
    return send(fd, data, bytes, 0) == (ssize_t)bytes && read(fd, out, MAC_BYTES) == MAC_BYTES;
}

bool mac_of(const void *key, size_t key_bytes, const void *data, size_t bytes,
            unsigned char out[MAC_BYTES])
{
    struct sockaddr_alg at = {
        .salg_family = AF_ALG, .salg_type = "hash", .salg_name = "hmac(sha256)"};
    int fd = key_bytes <= KEY_MOST ? socket(AF_ALG, SOCK_SEQPACKET | SOCK_CLOEXEC, 0) : -1;
    int one = fd < 0 || bind(fd, (struct sockaddr *)&at, sizeof(at)) != 0 ||
                      setsockopt(fd, SOL_ALG, ALG_SET_KEY, key, (socklen_t)key_bytes) != 0
                  ? -1
                  : accept4(fd, NULL, NULL, SOCK_CLOEXEC);
    bool good = one >= 0 && hash_by_kernel(one, data, bytes, out);

    close_open(one);
    close_open(fd);
    return good;
}
#endif

enum epa_status conn_check_mac(struct epa_error *err)
{
    unsigned char mac[MAC_BYTES];

    return mac_of("key", 3, "", 0, mac)
               ? EPA_OK
               : epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "ranks cannot authenticate each other: this epa2a was built without "
                          "OpenSSL, and the kernel has no AF_ALG with hmac(sha256)");
}

/* Compares in constant time, so that the duration reveals no byte. */
static bool mac_is(const unsigned char *a, const unsigned char *b)
{
    unsigned char differs = 0;

    for (size_t i = 0; i < MAC_BYTES; i++)
        differs |= a[i] ^ b[i];
    return differs == 0;
}

/* ---- messages: only these functions check the bytes of other hosts ---- */

const char conn_magic[8] = {'e', 'p', 'a', '2', 'a', 'h', 'u', 'b'};

bool conn_get(const struct conn_message *m, void *out, size_t bytes, struct conn_message *rest)
{
    if (m->bytes < bytes)
        return false;
    memcpy(out, m->data, bytes);
    *rest = (struct conn_message){m->type, m->data + bytes, m->bytes - bytes};
    return true;
}

/* Terminates the text and replaces all characters except printable ASCII by '?'. */
static void conn_clean(char *text, size_t room)
{
    text[room - 1] = 0;
    for (; *text != 0; text++)
        if (*text < ' ' || *text > '~')
            *text = '?';
}

bool conn_get_greet(const struct conn_message *m, struct conn_greet *out)
{
    struct conn_message rest;

    return conn_get(m, out, sizeof(*out), &rest) && rest.bytes == 0 &&
           memcmp(out->magic, conn_magic, sizeof(out->magic)) == 0;
}

bool conn_get_hello(const struct conn_message *m, struct conn_hello *out, struct conn_message *rest)
{
    if (m->type != CONN_HELLO || !conn_get(m, out, sizeof(*out), rest) ||
        out->mask_bytes > sizeof(out->mask))
        return false;
    conn_clean(out->host.name, sizeof(out->host.name));
    conn_clean(out->host.machine, sizeof(out->host.machine));
    conn_clean(out->job, sizeof(out->job));
    conn_clean(out->host.network, sizeof(out->host.network));
    conn_clean(out->host.identity, sizeof(out->host.identity));
    return true;
}

uint32_t conn_get_members(const struct conn_message *m, uint32_t ranks, struct conn_member *out)
{
    size_t n = m->bytes / sizeof(*out);

    if (n > ranks || m->bytes != n * sizeof(*out))
        return UINT32_MAX;
    memcpy(out, m->data, m->bytes);
    for (size_t i = 0; i < n; i++)
        if (out[i].rank >= ranks)
            return UINT32_MAX;
    return (uint32_t)n;
}

bool conn_get_welcome(const struct conn_message *m, uint32_t ranks, struct conn_welcome *out,
                      uint32_t *node)
{
    struct conn_message nodes;
    uint32_t known = 0;

    if (!conn_get(m, out, sizeof(*out), &nodes) || nodes.bytes != ranks * sizeof(*node) ||
        out->share >= out->shares || out->shares > ranks || out->local_cores == 0 ||
        out->hosts == 0 || out->hosts > ranks)
        return false;
    memcpy(node, nodes.data, nodes.bytes);
    for (uint32_t r = 0; r < ranks; r++) { /* nodes are numbered in order of appearance */
        if (node[r] > known)
            return false;
        known += node[r] == known;
    }
    conn_clean(out->host, sizeof(out->host));
    conn_clean(out->interface, sizeof(out->interface));
    return true;
}

struct conn_word conn_word_of(enum epa_status status, const char *fmt, ...)
{
    struct conn_word word = {.status = status, .rank = UINT32_MAX};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    return word;
}

struct conn_word conn_word_at(struct conn_word word, const char *key)
{
    snprintf(word.key, sizeof(word.key), "%s", key);
    return word;
}

/* Returns true if the rank of `word` died before the rank of `other`. Libraries abort or crash after the
 * death of a peer, and such a report may arrive first or, if a launcher waits for a core, carry the
 * earlier time. SIGKILL is a first cause: only an external process sends it to a rank that its launcher
 * has not killed. */
static bool died_before(const struct conn_word *word, const struct conn_word *other)
{
    if (word->rank == UINT32_MAX || other->rank == UINT32_MAX) /* a rank reports a lost peer */
        return word->rank != UINT32_MAX && other->rank == UINT32_MAX;
    if ((word->signal == SIGKILL) != (other->signal == SIGKILL))
        return word->signal == SIGKILL;
    if (word->died_ns != 0 && other->died_ns != 0)
        return word->died_ns < other->died_ns;
    return word->signal != SIGABRT && other->signal == SIGABRT;
}

static bool decides(const struct conn_word *word, const struct conn_word *verdict)
{
    int32_t have = verdict->status, status = word->status;

    if (have == EPA_OK || (have == EPA_ERR_ABORTED && status != EPA_ERR_ABORTED))
        return true;
    /* After Ctrl-C, UCX aborts a rank whose peers have closed, and the report of a launcher that waits
     * for a core arrives after the report of the abort. */
    if (status == EPA_ERR_INTERRUPTED && word->signal == SIGINT && have == EPA_ERR_DIED)
        return verdict->rank == UINT32_MAX || verdict->signal == SIGABRT;
    return status == EPA_ERR_DIED && (have == EPA_ERR_SYSTEM || have == EPA_ERR_TIMEOUT ||
                                      (have == EPA_ERR_DIED && died_before(word, verdict)));
}

/* Returns true for a crash, whose cause is unknown: the rank itself or the death of a peer. */
static bool crashed(const struct conn_word *word)
{
    return word->status == EPA_ERR_DIED && word->died_ns != 0 && word->signal != SIGKILL;
}

void conn_blame(struct conn_word *verdict, const struct conn_word *word, uint64_t since_ns)
{
    struct conn_word other = *word;
    size_t used, more;

    if (since_ns >= BLAME_NS && verdict->status != EPA_ERR_ABORTED)
        return;
    if (decides(word, verdict)) {
        other = *verdict;
        *verdict = *word;
    }
    used = strlen(verdict->text);
    more = strlen(other.text);
    if (crashed(verdict) && crashed(&other) && used + strlen("; ") + more < sizeof(verdict->text)) {
        memcpy(verdict->text + used, "; ", strlen("; "));
        memcpy(verdict->text + used + strlen("; "), other.text, more + 1);
    }
}

bool conn_get_word(const struct conn_message *m, struct conn_word *out)
{
    struct conn_message rest;

    if (!conn_get(m, out, sizeof(*out), &rest) || rest.bytes != 0)
        return false;
    conn_clean(out->key, sizeof(out->key));
    conn_clean(out->text, sizeof(out->text));
    return out->status <= 0 && out->status >= EPA_ERR_INTERRUPTED && out->signal < 65;
}

bool conn_get_step(const struct conn_message *m, uint32_t ranks, size_t most,
                   struct conn_piece *out, struct conn_message *data)
{
    return conn_get(m, out, sizeof(*out), data) && out->rank < ranks && data->bytes <= most;
}

bool conn_get_block(const struct conn_message *m, size_t block_bytes, struct conn_piece *out,
                    struct conn_message *data)
{
    return conn_get(m, out, sizeof(*out), data) && out->number <= block_bytes &&
           data->bytes <= block_bytes - out->number;
}

/* Skips leading blanks of a line. Returns the number of bytes to show, at most 100. An empty line becomes
 * "nothing". */
static int shown_bytes(const char **line, size_t bytes)
{
    for (; bytes > 0 && **line == ' '; bytes--)
        ++*line;
    if (bytes == 0)
        *line = "nothing";
    return bytes == 0 ? 7 : bytes > 100 ? 100 : (int)bytes;
}

bool conn_find_difference(const char *there, const char *here, char *out, size_t room)
{
    const char *section = "", *key = "";
    size_t a, b, section_bytes = 0, key_bytes = 0;

    for (;; there += a + (there[a] != 0), here += b + (here[b] != 0)) {
        a = strcspn(there, "\n");
        b = strcspn(here, "\n");
        if (a != b || memcmp(there, here, a) != 0)
            break;
        if (there[a] == 0 && here[b] == 0)
            return false;
        if (b > 0 && *here != ' ') {
            section = here;
            section_bytes = here[b - 1] == ':' ? b - 1 : 0;
        }
    }
    if (memchr(here, ':', b) != NULL)
        key_bytes = (size_t)((const char *)memchr(here, ':', b) - here) + 1;
    if (key_bytes > a || memcmp(there, here, key_bytes) != 0)
        key_bytes = 0;
    if (key_bytes == 0 || *here != ' ')
        section_bytes = 0;
    key = here;
    there += key_bytes;
    here += key_bytes;
    a = (size_t)shown_bytes(&there, a - key_bytes);
    b = (size_t)shown_bytes(&here, b - key_bytes);
    key_bytes = key_bytes > 0 ? (size_t)shown_bytes(&key, key_bytes) : 0;
    snprintf(out, room, "%.*s%s%.*s%s%.*s there, %.*s here", (int)section_bytes, section,
             section_bytes > 0 ? "." : "", (int)key_bytes, key, key_bytes > 0 ? " " : "", (int)a,
             there, (int)b, here);
    conn_clean(out, room);
    return true;
}

/* ---- connections ---- */

void conn_init(struct conn *out, int fd, size_t limit)
{
    uint64_t now = epa_now_ns();

    *out = (struct conn){.fd = fd, .limit = limit, .heard_ns = now, .said_ns = now};
}

void conn_finish(struct conn *conn)
{
    close_open(conn->fd);
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
    va_start(args, fmt);
    vsnprintf(conn->why, sizeof(conn->why), fmt, args);
    va_end(args);
}

bool conn_make_greet(struct conn_greet *out)
{
    *out = (struct conn_greet){.protocol = CONN_PROTOCOL};
    memcpy(out->magic, conn_magic, sizeof(out->magic));
    return getrandom(out->nonce, sizeof(out->nonce), 0) == (ssize_t)sizeof(out->nonce);
}

void conn_seal(struct conn *conn, const char *token, const struct conn_greet *launcher,
               const struct conn_greet *rendezvous, bool is_launcher)
{
    unsigned char data[sizeof(launcher->nonce) + sizeof(rendezvous->nonce) + 1];
    size_t key = strnlen(token, CONN_TOKEN);
    bool good = true;

    memcpy(data, launcher->nonce, sizeof(launcher->nonce));
    memcpy(data + sizeof(launcher->nonce), rendezvous->nonce, sizeof(rendezvous->nonce));
    for (unsigned char way = 0; way < 2; way++) { /* 0: messages of the launcher */
        data[sizeof(data) - 1] = way;
        good &= mac_of(token, key, data, sizeof(data),
                       (way == 0) == is_launcher ? conn->key_out : conn->key_in);
    }
    conn->sealed = true;
    if (!good)
        conn_close(conn, "HMAC-SHA-256 is not available");
}

static bool grow_buffer(unsigned char **data, size_t *room, size_t want)
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

/* Reads the head of the next message. Returns false if it is incomplete. */
static bool peek_head(const struct conn *conn, struct head *out)
{
    if (conn->in_bytes - conn->in_from < sizeof(*out))
        return false;
    memcpy(out, conn->in + conn->in_from, sizeof(*out));
    return true;
}

/* Returns true for messages without a MAC. A rendezvous that cannot verify the proof refuses without a
 * MAC; this message is accepted only in place of its first message with a MAC. */
static bool is_plain(const struct conn *conn, const struct head *head)
{
    return !conn->sealed ||
           (conn->number_in == 1 && head->type == CONN_REFUSED && head->bytes == 0);
}

static size_t frame_bytes(const struct conn *conn, const struct head *head)
{
    return sizeof(*head) + head->bytes + (is_plain(conn, head) ? 0 : MAC_BYTES);
}

/* Closes a connection after an error of send() or recv(). The kernel resets, rather than closes, a
 * connection with unread bytes whose process has ended. */
static void close_after_error(struct conn *conn)
{
    if (errno == ECONNRESET || errno == EPIPE)
        conn_close(conn, "its connection was closed");
    else
        conn_close(conn, "its connection was lost: %s", strerror(errno));
}

static void receive_bytes(struct conn *conn)
{
    size_t have = conn->in_bytes - conn->in_from, need = 0;
    struct head head;
    ssize_t n;

    if (peek_head(conn, &head)) {
        if (head.bytes > conn->limit)
            return; /* conn_take() closes the connection */
        need = frame_bytes(conn, &head);
    }
    if (conn->in_from > 0)
        memmove(conn->in, conn->in + conn->in_from, have);
    conn->in_from = 0;
    conn->in_bytes = have;
    if (!grow_buffer(&conn->in, &conn->in_room, need > have ? need : have + READ_AHEAD)) {
        conn_close(conn, "no memory for a message of %zu bytes", need);
        return;
    }
    n = recv(conn->fd, conn->in + have, conn->in_room - have, MSG_DONTWAIT);
    if (n > 0) {
        conn->in_bytes += (size_t)n;
        conn->heard_ns = epa_now_ns();
    } else if (n == 0) {
        conn_close(conn, "its connection was closed");
    } else if (errno != EAGAIN && errno != EINTR) {
        close_after_error(conn);
    }
}

bool conn_take(struct conn *conn, struct conn_message *out)
{
    unsigned char mac[MAC_BYTES];
    const unsigned char *at;
    struct head head;
    bool good;

    if (conn->forged || !peek_head(conn, &head))
        return false;
    if (head.bytes > conn->limit) {
        conn_close(conn, "it sent a message of %u bytes; the maximum is %zu", head.bytes,
                   conn->limit);
        conn->in_from = conn->in_bytes;
        return false;
    }
    if (conn->in_bytes - conn->in_from < frame_bytes(conn, &head))
        return false;
    at = conn->in + conn->in_from;
    good = head.number == conn->number_in;
    if (!is_plain(conn, &head))
        good &= mac_of(conn->key_in, MAC_BYTES, at, sizeof(head) + head.bytes, mac) &&
                mac_is(mac, at + sizeof(head) + head.bytes);
    conn->in_from += frame_bytes(conn, &head);
    conn->number_in++;
    conn->forged = !good;
    *out = (struct conn_message){head.type, at + sizeof(head), head.bytes};
    return good;
}

void conn_discard(struct conn *conn)
{
    conn->in_from = conn->in_bytes = 0;
}

/* ---- out ---- */

bool conn_all_sent(const struct conn *conn)
{
    return conn->fd < 0 || conn->out_from == conn->out_bytes;
}

bool conn_all_heard(const struct conn *conn)
{
    int left = 0;

    return conn_all_sent(conn) &&
           (conn->fd < 0 || ioctl(conn->fd, SIOCOUTQ, &left) != 0 || left == 0);
}

/* Closes a connection that takes no more bytes. The peer may have sent the reason before its end, so the
 * received bytes are read before. */
static void close_after_send(struct conn *conn)
{
    int error = errno;
    size_t have;

    do {
        have = conn->in_bytes - conn->in_from;
        receive_bytes(conn);
    } while (conn->fd >= 0 && conn->in_bytes - conn->in_from > have);
    errno = error;
    if (conn->fd >= 0)
        close_after_error(conn);
}

static void send_bytes(struct conn *conn)
{
    while (conn->out_from < conn->out_bytes) {
        ssize_t n = send(conn->fd, conn->out + conn->out_from, conn->out_bytes - conn->out_from,
                         MSG_DONTWAIT | MSG_NOSIGNAL);

        if (n > 0) {
            conn->out_from += (size_t)n;
            conn->said_ns = epa_now_ns();
        } else if (n < 0 && errno == EAGAIN) {
            return;
        } else if (n < 0 && errno != EINTR) {
            close_after_send(conn);
            return;
        }
    }
    conn->out_from = conn->out_bytes = 0;
}

short conn_events(const struct conn *conn)
{
    return (short)(POLLIN | POLLRDHUP | (conn_all_sent(conn) ? 0 : POLLOUT));
}

void conn_turn(struct conn *conn, short revents)
{
    if (conn->fd >= 0 && (revents & (POLLIN | POLLHUP | POLLERR)) != 0)
        receive_bytes(conn);
    if (conn->fd >= 0 && !conn_all_sent(conn))
        send_bytes(conn);
}

void conn_put(struct conn *conn, uint32_t type, const void *head, size_t head_bytes,
              const void *tail, size_t tail_bytes)
{
    struct head first = {type, (uint32_t)(head_bytes + tail_bytes), conn->number_out};
    size_t bytes = sizeof(first) + head_bytes + tail_bytes;
    unsigned char *at;

    if (conn->fd < 0)
        return;
    if (!grow_buffer(&conn->out, &conn->out_room, conn->out_bytes + bytes + MAC_BYTES)) {
        conn_close(conn, "no memory for a message of %zu bytes", bytes);
        return;
    }
    at = conn->out + conn->out_bytes;
    memcpy(at, &first, sizeof(first));
    if (head_bytes > 0)
        memcpy(at + sizeof(first), head, head_bytes);
    if (tail_bytes > 0)
        memcpy(at + sizeof(first) + head_bytes, tail, tail_bytes);
    if (conn->sealed && !mac_of(conn->key_out, MAC_BYTES, at, bytes, at + bytes)) {
        conn_close(conn, "HMAC-SHA-256 is not available");
        return;
    }
    conn->out_bytes += bytes + (conn->sealed ? MAC_BYTES : 0);
    conn->number_out++;
}

void conn_say(struct conn *conn, uint32_t type)
{
    conn_put(conn, type, NULL, 0, NULL, 0);
}

void conn_put_word(struct conn *conn, uint32_t type, const struct conn_word *word)
{
    conn_put(conn, type, word, sizeof(*word), NULL, 0);
}

void conn_put_piece(struct conn *conn, uint32_t type, uint32_t rank, uint64_t number,
                    const void *data, size_t bytes)
{
    struct conn_piece piece = {.number = number, .rank = rank};

    conn_put(conn, type, &piece, sizeof(piece), data, bytes);
}

static bool is_zero(const char *data, size_t bytes)
{
    return data[0] == 0 && memcmp(data, data + 1, bytes - 1) == 0;
}

bool conn_put_block(struct conn *conn, uint32_t rank, const char *data, size_t bytes, size_t *at)
{
    for (uint32_t i = 0; i < TURN_PIECES && conn_all_sent(conn) && *at < bytes; i++) {
        size_t n = bytes - *at < CONN_BLOCK_MAX ? bytes - *at : CONN_BLOCK_MAX;

        if (!is_zero(data + *at, n))
            conn_put_piece(conn, CONN_BLOCK, rank, *at, data + *at, n);
        *at += n;
        conn_turn(conn, 0);
    }
    return *at >= bytes;
}

bool conn_find_loss(struct conn *conn, uint64_t now, uint64_t polled_ns, uint64_t limit_ns)
{
    if (now - polled_ns > limit_ns / 2)
        conn->heard_ns = now;
    if (conn->forged) {
        conn_close(conn, "message authentication failed");
    } else if (conn->fd >= 0 && now > conn->heard_ns && now - conn->heard_ns > limit_ns) {
        conn->silent = true;
        conn_close(conn, "it sent no message for %.3g s (launcher.heartbeat)",
                   (double)limit_ns * 1e-9);
    } else if (conn->fd >= 0 && conn_all_sent(conn) && now >= conn->said_ns &&
               now - conn->said_ns >= limit_ns / 5) {
        conn->said_ns = now;
        conn_say(conn, CONN_ALIVE);
    }
    return conn->fd < 0;
}
