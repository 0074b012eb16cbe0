/* The rendezvous never waits: its sockets are polled by the agent that it is in. An agent greets,
 * proves that it knows the token, says hello with all that must be alike, is welcomed once all
 * ranks are there, and is told the verdict once all are done.
 *
 * Nobody's message is longer than what its sender has earned: a few bytes before the proof, an
 * experiment before the rank is known, a step of the set-up from then on. Who fails the proof is
 * dropped and the launch goes on; a failure of a rank is one of all. */
#include "launch/rendezvous.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/bootstrap.h"
#include "launch/conn.h"
#include "launch/net.h"
#include "launch/nodes.h"

enum {
    STRANGERS = 32,
    STRANGER_S = 5,  /* to greet and say hello; and for one refused to have read why */
    LAST_TIMES = 10, /* the limit of set-up, for the last to return: nobody here sees if it runs */
    LINGER_S = 3,    /* after a failure, for ranks that are about to come */
    MISSING_MS = 50, /* into a step of the set-up, until those who wait are told for whom */
    REFUSALS = 5,    /* that are printed */
};

/* A death explains what others saw of it in this time. */
static const uint64_t second = 1000000000, blame_ns = 1000000000;

enum peer_state { STRANGER, GREETED, PROVED, JOINED, REFUSED };

struct peer {
    struct conn conn;
    enum peer_state state;
    uint64_t since; /* connected, or refused */
    char address[64];
    struct conn_hello hello;
    unsigned char mask[CONN_MASK_MAX]; /* of cores */
    uint64_t gathered;                 /* the last step of the set-up that it has come to */
    bool returned, done, lost;
};

struct rendezvous {
    struct rendezvous_params params;
    uint32_t size, slots;
    struct peer **slot;           /* [slots]; NULL: free */
    struct peer **of_rank;        /* [size]; NULL: not there */
    uint32_t joined, turned_away; /* ranks; of those that are here for nothing */
    uint32_t refusals;
    bool started, reported, alone; /* alone: nobody else will come */
    uint64_t created_ns, looked_ns, failed_ns, reported_ns, last_end_ns;
    struct conn_word verdict;
    char refused[200]; /* of strangers, the last one: who and why */
    /* The step of the set-up at hand. */
    uint64_t step, step_ns;
    uint32_t came, missing; /* ranks; the one that others were told to be missing */
    size_t step_bytes;      /* of each rank */
    unsigned char *data;
    size_t data_room;
};

/* ---- failures ---- */

/* "rank 3 (host b, pid 4711, address 10.0.0.2)" */
static void name_peer(const struct peer *peer, char *out, size_t room)
{
    snprintf(out, room, "rank %u (host %.64s, pid %u%s%s)", peer->hello.rank, peer->hello.host,
             peer->hello.pid, peer->address[0] != 0 ? ", address " : "", peer->address);
}

static bool decides(const struct rendezvous *rdv, const struct conn_word *word, uint64_t now)
{
    int32_t have = rdv->verdict.status, status = word->status;

    if (have == EPA_OK || (have == EPA_ERR_ABORTED && status != EPA_ERR_ABORTED))
        return true;
    if (status != EPA_ERR_DIED || now - rdv->failed_ns >= blame_ns)
        return false;
    /* Libraries abort their process when a peer is gone, and may be heard of before it. */
    return have == EPA_ERR_SYSTEM || have == EPA_ERR_TIMEOUT ||
           (have == EPA_ERR_DIED && rdv->verdict.signal == SIGABRT && word->signal != SIGABRT) ||
           /* A rank says that it has lost a peer; then it is known how that peer died. */
           (have == EPA_ERR_DIED && rdv->verdict.rank == UINT32_MAX && word->rank != UINT32_MAX);
}

static void fail_by_word(struct rendezvous *rdv, const struct conn_word *word)
{
    uint64_t now = clock_ns();

    if (rdv->reported)
        return;
    if (decides(rdv, word, now))
        rdv->verdict = *word;
    if (rdv->failed_ns != 0)
        return;
    rdv->failed_ns = now;
    for (uint32_t r = 0; r < rdv->size; r++)
        if (rdv->of_rank[r] != NULL)
            conn_say(&rdv->of_rank[r]->conn, CONN_ABORT);
}

EPA_PRINTF(4, 5)
static void fail(struct rendezvous *rdv, enum epa_status status, uint32_t lost, const char *fmt,
                 ...)
{
    struct conn_word word = {.status = status, .rank = lost};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    fail_by_word(rdv, &word);
}

/* A rank's agent can be asked nothing more. It keeps its place: its words are still good. */
static void lose(struct rendezvous *rdv, struct peer *peer, const char *how)
{
    char name[200];

    if (peer->lost)
        return;
    conn_close(&peer->conn, "%s", how);
    name_peer(peer, name, sizeof(name));
    fail(rdv, EPA_ERR_DIED, peer->hello.rank, "%s is gone: %s", name, peer->conn.why);
    peer->done = peer->lost = true;
}

/* ---- arrivals ---- */

static void forget(struct rendezvous *rdv, uint32_t slot)
{
    conn_finish(&rdv->slot[slot]->conn);
    free(rdv->slot[slot]);
    rdv->slot[slot] = NULL;
}

/* Where strangers have all places, the first of them who came makes room. */
static void add_peer(struct rendezvous *rdv, int fd, const char *address)
{
    uint32_t at = UINT32_MAX;

    for (uint32_t i = 0; i < rdv->slots && (at == UINT32_MAX || rdv->slot[at] != NULL); i++) {
        const struct peer *peer = rdv->slot[i];

        if (peer == NULL ||
            (peer->state != JOINED && (at == UINT32_MAX || peer->since < rdv->slot[at]->since)))
            at = i;
    }
    if (at != UINT32_MAX && rdv->slot[at] != NULL)
        forget(rdv, at);
    if (at != UINT32_MAX)
        rdv->slot[at] = calloc(1, sizeof(**rdv->slot));
    if (at == UINT32_MAX || rdv->slot[at] == NULL) {
        close(fd);
        return;
    }
    conn_init(&rdv->slot[at]->conn, fd, CONN_GREET_MAX);
    rdv->slot[at]->since = clock_ns();
    snprintf(rdv->slot[at]->address, sizeof(rdv->slot[at]->address), "%s", address);
}

void rendezvous_adopt(struct rendezvous *rdv, int fd)
{
    add_peer(rdv, fd, "");
}

/* Drops a peer with a word for it and one for whoever reads rank 0's output. */
static void refuse(struct rendezvous *rdv, struct peer *peer, const struct conn_word *word,
                   const char *why)
{
    const char *from = peer->address[0] != 0 ? peer->address : "somebody";

    snprintf(rdv->refused, sizeof(rdv->refused), "; refused %s: %.100s", from, why);
    if (rdv->refusals++ < REFUSALS) {
        if (rdv->params.asked->poll_launch != NULL)
            (void)rdv->params.asked->poll_launch(rdv->params.asked->poll_arg, EPA_POLL_PRINTING);
        fprintf(stderr, "warning: rank 0 refused %s: %s\n", from, why);
    }
    if (word != NULL)
        conn_put_word(&peer->conn, CONN_REFUSED, word);
    else
        conn_say(&peer->conn, CONN_REFUSED);
    peer->state = REFUSED;
    peer->since = clock_ns();
}

static void hear_greeting(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_greet greet, mine;
    char why[100];

    if (m->type != CONN_GREET || !conn_get_greet(m, &greet)) {
        conn_close(&peer->conn, "it is no process of epa2a");
        return;
    }
    conn_make_greet(&mine);
    conn_put(&peer->conn, CONN_CHALLENGE, &mine, sizeof(mine), NULL, 0);
    if (greet.protocol != CONN_PROTOCOL) {
        snprintf(why, sizeof(why), "another version of epa2a: it speaks protocol %u, rank 0 has %d",
                 greet.protocol, CONN_PROTOCOL);
        refuse(rdv, peer, NULL, why);
        return;
    }
    conn_seal(&peer->conn, rdv->params.token, &greet, &mine, false);
    peer->state = GREETED;
}

static void hear_proof(struct peer *peer, const struct conn_message *m)
{
    if (m->type != CONN_PROOF || m->bytes != 0) {
        conn_close(&peer->conn, "it is no process of epa2a");
        return;
    }
    conn_say(&peer->conn, CONN_PROOF);
    peer->state = PROVED;
    peer->conn.limit = sizeof(struct conn_hello) + CONN_MASK_MAX + CONN_FINGERPRINT_MAX;
}

struct line {
    const char *at;
    size_t bytes;
};

static bool next_line(struct line *rest, struct line *out)
{
    const char *end = rest->bytes == 0 ? NULL : memchr(rest->at, '\n', rest->bytes);
    size_t bytes = end != NULL ? (size_t)(end - rest->at) : rest->bytes;

    *out = (struct line){rest->at, bytes};
    if (rest->bytes == 0)
        return false;
    bytes += end != NULL;
    *rest = (struct line){rest->at + bytes, rest->bytes - bytes};
    return true;
}

/* Bytes of the key and its colon at the start of a line, blanks included; 0: it has none. */
static size_t key_bytes(struct line line)
{
    const char *colon = line.bytes == 0 ? NULL : memchr(line.at, ':', line.bytes);

    return colon == NULL ? 0 : (size_t)(colon - line.at) + 1;
}

static struct line trim(struct line line, size_t skip)
{
    for (; line.bytes > 0 && (skip > 0 || *line.at == ' '); skip -= skip > 0) {
        line.at++;
        line.bytes--;
    }
    if (line.bytes > 100)
        line.bytes = 100;
    return line.bytes > 0 ? line : (struct line){"nothing", 7};
}

/* The first line in which fingerprints differ, in words: "bench.warmup: 20 there, 10 here".
 * False: they are alike. */
static bool find_difference(struct line there, const char *here, char *out, size_t room)
{
    struct line ours = {here, strlen(here)}, section = {"", 0}, a, b;

    for (;;) {
        bool more = next_line(&there, &a);

        more |= next_line(&ours, &b);
        if (!more)
            return false;
        if (a.bytes != b.bytes || (a.bytes > 0 && memcmp(a.at, b.at, a.bytes) != 0))
            break;
        if (b.bytes > 0 && b.at[0] != ' ')
            section = b.at[b.bytes - 1] == ':' ? b : (struct line){"", 0};
    }
    {
        size_t key = key_bytes(b);
        bool alike = key > 0 && key == key_bytes(a) && memcmp(a.at, b.at, key) == 0;
        bool nested = alike && b.at[0] == ' ' && section.bytes > 0;
        struct line name = trim((struct line){b.at, key}, 0);

        a = trim(a, alike ? key : 0);
        b = trim(b, alike ? key : 0);
        snprintf(out, room, "%.*s%s%.*s%s%.*s there, %.*s here",
                 nested ? (int)section.bytes - 1 : 0, section.at, nested ? "." : "",
                 alike ? (int)name.bytes : 0, name.at, alike ? " " : "", (int)a.bytes, a.at,
                 (int)b.bytes, b.at);
    }
    conn_clean(out, room);
    return true;
}

/* Why a rank cannot take part, or "". */
static void find_fault(const struct rendezvous *rdv, const struct conn_hello *hello,
                       struct line fingerprint, char *out, size_t room)
{
    const struct peer *twin = hello->rank < rdv->size ? rdv->of_rank[hello->rank] : NULL;
    const struct epa_launch *asked = rdv->params.asked;
    char first[300], name[200];

    *out = 0;
    if (hello->abi != EPA_ABI)
        snprintf(out, room, "runs an epa2a of another plugin ABI: %u there, %u here", hello->abi,
                 EPA_ABI);
    else if (asked->fingerprint != NULL &&
             find_difference(fingerprint, asked->fingerprint, first, sizeof(first)))
        snprintf(out, room, "was started with another experiment: %s", first);
    else if (hello->size != rdv->size || hello->rank >= rdv->size)
        snprintf(out, room, "is rank %u of %u there, and there are %u ranks here", hello->rank,
                 hello->size, rdv->size);
    else if (twin != NULL) {
        name_peer(twin, name, sizeof(name));
        snprintf(out, room, "connected twice: the first was %s", name);
    }
}

/* All are there: each is told its place. */
static void welcome_all(struct rendezvous *rdv)
{
    struct nodes_rank *rank = calloc(rdv->size, sizeof(*rank));
    uint32_t *node = calloc(rdv->size, sizeof(*node));
    char interface[CONN_INTERFACE] = "";
    uint32_t hosts = 0;

    if (rank == NULL || node == NULL) {
        fail(rdv, EPA_ERR_NOMEM, UINT32_MAX, "no memory for the places of %u ranks", rdv->size);
        free(rank);
        free(node);
        return;
    }
    for (uint32_t r = 0; r < rdv->size; r++)
        rank[r] = (struct nodes_rank){.machine = rdv->of_rank[r]->hello.machine,
                                      .identity = rdv->of_rank[r]->hello.identity,
                                      .mask = rdv->of_rank[r]->mask,
                                      .mask_bytes = rdv->of_rank[r]->hello.mask_bytes};
    nodes_find(rank, rdv->size, rdv->params.asked->ranks_per_node);
    for (uint32_t r = 0; r < rdv->size; r++)
        node[r] = rank[r].node;
    for (uint32_t r = 0; r < rdv->size; r++) {
        bool first = true;

        for (uint32_t p = 0; p < r; p++)
            first = first && strcmp(rank[p].identity, rank[r].identity) != 0;
        hosts += first;
        if (interface[0] == 0) /* that of who is on rank 0's host may be the loopback */
            net_interface(rdv->of_rank[r]->conn.fd, interface);
    }
    for (uint32_t r = 0; r < rdv->size; r++) {
        struct conn_welcome welcome = {.pid = rdv->of_rank[0]->hello.pid,
                                       .share = rank[r].share,
                                       .shares = rank[r].shares,
                                       .local_cores = rank[r].local_cores,
                                       .hosts = hosts};

        memcpy(welcome.interface, interface, sizeof(welcome.interface));
        memcpy(welcome.host, rdv->of_rank[0]->hello.host, sizeof(welcome.host));
        conn_put(&rdv->of_rank[r]->conn, CONN_WELCOME, &welcome, sizeof(welcome), node,
                 rdv->size * sizeof(*node));
    }
    rdv->started = true;
    free(rank);
    free(node);
}

static void hear_hello(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_word word = {.status = EPA_ERR_CONFIG, .rank = UINT32_MAX};
    struct conn_hello *hello = &peer->hello;
    struct conn_message rest;
    size_t piece = bootstrap_slot_bytes(rdv->size);
    char fault[400], name[200];

    if (!conn_get_hello(m, hello, &rest)) {
        conn_close(&peer->conn, "it is no process of epa2a");
        return;
    }
    memcpy(peer->mask, rest.data, hello->mask_bytes);
    find_fault(
        rdv, hello,
        (struct line){(const char *)rest.data + hello->mask_bytes, rest.bytes - hello->mask_bytes},
        fault, sizeof(fault));
    if (fault[0] != 0) {
        name_peer(peer, name, sizeof(name));
        snprintf(word.text, sizeof(word.text), "%s %.300s", name, fault);
        rdv->turned_away += hello->rank < rdv->size && rdv->of_rank[hello->rank] == NULL;
        rdv->refusals = REFUSALS; /* it is said by the verdict */
        refuse(rdv, peer, &word, word.text);
        fail_by_word(rdv, &word);
        return;
    }
    peer->state = JOINED;
    peer->conn.limit =
        sizeof(struct conn_piece) + (piece > CONN_BLOCK_MAX ? piece : CONN_BLOCK_MAX);
    rdv->of_rank[hello->rank] = peer;
    rdv->joined++;
    if (rdv->failed_ns != 0)
        conn_say(&peer->conn, CONN_ABORT);
    else if (rdv->joined == rdv->size)
        welcome_all(rdv);
}

/* ---- what ranks do ---- */

static bool make_room(struct rendezvous *rdv)
{
    size_t want = rdv->step_bytes * rdv->size;
    unsigned char *p = want > rdv->data_room ? realloc(rdv->data, want) : rdv->data;

    if (want > rdv->data_room && p == NULL)
        return false;
    rdv->data = p;
    rdv->data_room = want > rdv->data_room ? want : rdv->data_room;
    return true;
}

static void hear_step(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_message rest;
    struct conn_piece piece;

    if (!rdv->started || !conn_get(m, &piece, sizeof(piece), &rest) || piece.number != rdv->step ||
        peer->gathered + 1 != rdv->step || rest.bytes > bootstrap_slot_bytes(rdv->size)) {
        lose(rdv, peer, "it sent a chunk of something else");
        return;
    }
    if (rdv->came == 0) {
        rdv->step_bytes = rest.bytes;
        rdv->step_ns = clock_ns();
        if (!make_room(rdv))
            fail(rdv, EPA_ERR_NOMEM, UINT32_MAX, "no memory to gather %zu bytes of %u ranks",
                 rest.bytes, rdv->size);
    }
    if (rdv->failed_ns != 0)
        return;
    if (rest.bytes != rdv->step_bytes) {
        fail(rdv, EPA_ERR_SYSTEM, UINT32_MAX,
             "rank %u has %zu bytes to gather where another has %zu", peer->hello.rank, rest.bytes,
             rdv->step_bytes);
        return;
    }
    if (rest.bytes > 0)
        memcpy(rdv->data + peer->hello.rank * rest.bytes, rest.data, rest.bytes);
    peer->gathered = rdv->step;
    if (++rdv->came < rdv->size)
        return;
    for (uint32_t r = 0; r < rdv->size; r++)
        conn_put_piece(&rdv->of_rank[r]->conn, CONN_ALL, rdv->step, rdv->data,
                       rdv->step_bytes * rdv->size);
    rdv->step++;
    rdv->came = rdv->missing = 0;
}

static void hear_block(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    const struct epa_launch *asked = rdv->params.asked;
    struct conn_message rest;
    struct conn_piece piece;

    if (peer->hello.rank == 0 || asked->block == NULL ||
        !conn_get_block(m, asked->block_bytes, &piece, &rest)) {
        lose(rdv, peer, "what its rank left has no room here");
        return;
    }
    if (rest.bytes > 0)
        memcpy(asked->block + peer->hello.rank * asked->block_bytes + piece.number, rest.data,
               rest.bytes);
}

static void hear_word(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    uint64_t limit = rdv->params.asked->timeout_ns;
    struct conn_word word;

    if (!conn_get_word(m, &word)) {
        lose(rdv, peer, "it sent what makes no sense");
    } else if (word.status != EPA_OK) {
        fail_by_word(rdv, &word);
    } else {
        peer->returned = true;
        if (rdv->last_end_ns == 0 && limit != 0)
            rdv->last_end_ns = clock_ns() + limit * LAST_TIMES;
    }
}

static void hear(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    if (peer->state == STRANGER)
        hear_greeting(rdv, peer, m);
    else if (peer->state == GREETED)
        hear_proof(peer, m);
    else if (peer->state == PROVED)
        hear_hello(rdv, peer, m);
    else if (m->type == CONN_ALIVE)
        return;
    else if (peer->done)
        lose(rdv, peer, "it was done and sent more");
    else if (m->type == CONN_GATHER)
        hear_step(rdv, peer, m);
    else if (m->type == CONN_BLOCK)
        hear_block(rdv, peer, m);
    else if (m->type == CONN_WORD)
        hear_word(rdv, peer, m);
    else if (m->type == CONN_DONE)
        peer->done = true;
    else
        lose(rdv, peer, "it sent what makes no sense");
}

/* ---- time ---- */

static void check_start(struct rendezvous *rdv, uint64_t now)
{
    uint32_t missing = rdv->size - rdv->joined, n = 0;
    char names[120] = "";
    size_t used = 0;

    if (rdv->started || rdv->failed_ns != 0 || now - rdv->created_ns < rdv->params.start_ns)
        return;
    for (uint32_t r = 0; r < rdv->size && n < 8; r++) { /* "2, 5 and 7" */
        if (rdv->of_rank[r] != NULL)
            continue;
        n++;
        used += (size_t)snprintf(names + used, sizeof(names) - used, "%s%u",
                                 n == 1         ? ""
                                 : n == missing ? " and "
                                                : ", ",
                                 r);
    }
    if (missing > n)
        snprintf(names + used, sizeof(names) - used, " and %u more", missing - n);
    fail(rdv, EPA_ERR_TIMEOUT, UINT32_MAX,
         "rank%s %s of %u did not connect within %.3g s (launcher.start)%s", missing > 1 ? "s" : "",
         names, rdv->size, (double)rdv->params.start_ns * 1e-9, rdv->refused);
}

/* Who waits long in a step is told for whom; its own limit says when that is too long. */
static void check_step(struct rendezvous *rdv, uint64_t now)
{
    uint32_t missing = 0;

    if (rdv->came == 0 || rdv->failed_ns != 0 || now - rdv->step_ns < MISSING_MS * 1000000ull)
        return;
    while (missing + 1 < rdv->size && rdv->of_rank[missing]->gathered == rdv->step)
        missing++;
    if (missing == rdv->missing)
        return;
    rdv->missing = missing;
    for (uint32_t r = 0; r < rdv->size; r++)
        conn_put_piece(&rdv->of_rank[r]->conn, CONN_MISSING, rdv->step, &missing, sizeof(missing));
}

static void check_last(struct rendezvous *rdv, uint64_t now)
{
    uint32_t r = 0;

    if (rdv->last_end_ns == 0 || now < rdv->last_end_ns || rdv->failed_ns != 0)
        return;
    while (r < rdv->size && rdv->of_rank[r]->returned)
        r++;
    if (r < rdv->size)
        fail(rdv, EPA_ERR_TIMEOUT, UINT32_MAX,
             "rank %u did not return within %.3g s of the first that did", r,
             (double)rdv->params.asked->timeout_ns * LAST_TIMES * 1e-9);
    rdv->last_end_ns = 0;
}

static void check_peer(struct rendezvous *rdv, struct peer *peer, uint64_t now)
{
    uint64_t limit = rdv->params.heartbeat_ns;
    char how[80];

    if (peer->conn.forged) {
        lose(rdv, peer, "it sent what the token does not prove");
    } else if (peer->conn.fd < 0) {
        lose(rdv, peer, "");
    } else if (conn_is_silent(&peer->conn, now, rdv->looked_ns, limit)) {
        snprintf(how, sizeof(how), "nothing was heard from it for %.3g s (launcher.heartbeat)",
                 (double)limit * 1e-9);
        lose(rdv, peer, how);
    } else {
        conn_keep_alive(&peer->conn, now, limit / 5);
    }
}

static void check_peers(struct rendezvous *rdv, uint64_t now)
{
    for (uint32_t i = 0; i < rdv->slots; i++) {
        struct peer *peer = rdv->slot[i];

        if (peer == NULL)
            continue;
        if (peer->state != JOINED && peer->state != REFUSED && peer->conn.forged) {
            peer->conn.sealed = false;
            refuse(rdv, peer, NULL, "another job: its token is not rank 0's, or it has none");
        }
        if (peer->state != JOINED && (peer->conn.fd < 0 || now > peer->since + STRANGER_S * second))
            forget(rdv, i);
        else if (peer->state == JOINED && !rdv->reported && !peer->lost)
            check_peer(rdv, peer, now);
    }
}

/* Once nothing is to be waited for, all hear how it ended. */
static void check_end(struct rendezvous *rdv, uint64_t now)
{
    bool early = !rdv->started && !rdv->alone && rdv->joined + rdv->turned_away < rdv->size &&
                 rdv->verdict.status != EPA_ERR_TIMEOUT;

    if (rdv->reported || (rdv->failed_ns == 0 && !rdv->started) ||
        (early && now - rdv->failed_ns < LINGER_S * second))
        return;
    for (uint32_t r = 0; r < rdv->size; r++)
        if (rdv->of_rank[r] != NULL && !rdv->of_rank[r]->done)
            return;
    for (uint32_t r = 0; r < rdv->size; r++)
        if (rdv->of_rank[r] != NULL)
            conn_put_word(&rdv->of_rank[r]->conn, CONN_VERDICT, &rdv->verdict);
    rdv->reported = true;
    rdv->reported_ns = now;
}

void rendezvous_expect_nobody(struct rendezvous *rdv)
{
    rdv->alone = true;
}

bool rendezvous_over(const struct rendezvous *rdv)
{
    if (!rdv->reported)
        return false;
    if (clock_ns() - rdv->reported_ns > rdv->params.heartbeat_ns)
        return true;
    for (uint32_t i = 0; i < rdv->slots; i++)
        if (rdv->slot[i] != NULL && !conn_all_heard(&rdv->slot[i]->conn))
            return false;
    return true;
}

/* ---- the loop ---- */

uint32_t rendezvous_poll_room(uint32_t ranks)
{
    return 1 + ranks + STRANGERS;
}

uint32_t rendezvous_polls(const struct rendezvous *rdv, struct pollfd *out)
{
    bool listens = rdv->joined < rdv->size && !rdv->reported;
    uint32_t n = 0;

    out[n++] = (struct pollfd){.fd = listens ? rdv->params.listener : -1, .events = POLLIN};
    for (uint32_t i = 0; i < rdv->slots; i++)
        if (rdv->slot[i] != NULL)
            out[n++] = (struct pollfd){.fd = rdv->slot[i]->conn.fd,
                                       .events = conn_events(&rdv->slot[i]->conn)};
    return n;
}

void rendezvous_turn(struct rendezvous *rdv, const struct pollfd *fds, uint32_t n)
{
    char from[64];
    uint32_t at = 1;
    uint64_t now;

    for (uint32_t i = 0; i < rdv->slots && at < n; i++) {
        struct peer *peer = rdv->slot[i];
        struct conn_message m;

        if (peer == NULL)
            continue;
        conn_turn(&peer->conn, fds[at++].revents);
        while (peer->state != REFUSED && conn_take(&peer->conn, &m))
            hear(rdv, peer, &m);
        if (peer->state == REFUSED) /* read, or closing would take back what it was told */
            conn_discard(&peer->conn);
    }
    if (n > 0 && fds[0].revents != 0) {
        int fd = net_accept(rdv->params.listener, from, sizeof(from));

        if (fd >= 0)
            add_peer(rdv, fd, from);
    }
    now = clock_ns();
    check_peers(rdv, now);
    check_start(rdv, now);
    check_step(rdv, now);
    check_last(rdv, now);
    check_end(rdv, now);
    rdv->looked_ns = now;
    for (uint32_t i = 0; i < rdv->slots; i++) /* what has been queued since */
        if (rdv->slot[i] != NULL)
            conn_turn(&rdv->slot[i]->conn, 0);
}

/* ---- life ---- */

void rendezvous_destroy(struct rendezvous *rdv)
{
    if (rdv == NULL)
        return;
    for (uint32_t i = 0; i < rdv->slots && rdv->slot != NULL; i++)
        if (rdv->slot[i] != NULL)
            forget(rdv, i);
    free(rdv->slot);
    free(rdv->of_rank);
    free(rdv->data);
    free(rdv);
}

/* A connection a rank, and some for all else. */
static enum epa_status allow_files(uint32_t slots, struct epa_error *err)
{
    struct rlimit limit;
    rlim_t want = (rlim_t)slots + 64;

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want)
        return EPA_OK;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    if (limit.rlim_cur < want || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "rank 0 needs %llu open files for a connection to each rank, and "
                        "may have %llu; raise it: ulimit -n",
                        (unsigned long long)want, (unsigned long long)limit.rlim_max);
    return EPA_OK;
}

enum epa_status rendezvous_create(const struct rendezvous_params *params, struct rendezvous **out,
                                  struct epa_error *err)
{
    struct rendezvous *rdv = calloc(1, sizeof(*rdv));
    enum epa_status status;

    if (rdv == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the rendezvous");
    rdv->params = *params;
    rdv->size = params->asked->ranks;
    rdv->slots = rdv->size + STRANGERS;
    rdv->created_ns = rdv->looked_ns = clock_ns();
    rdv->verdict.rank = UINT32_MAX;
    rdv->step = 1;
    rdv->slot = calloc(rdv->slots, sizeof(*rdv->slot));
    rdv->of_rank = calloc(rdv->size, sizeof(*rdv->of_rank));
    status = allow_files(rdv->slots, err);
    if (rdv->slot == NULL || rdv->of_rank == NULL)
        status =
            epa_fail(err, EPA_ERR_NOMEM, "no memory for the connections of %u ranks", rdv->size);
    if (status != EPA_OK) {
        rendezvous_destroy(rdv);
        return status;
    }
    *out = rdv;
    return EPA_OK;
}
