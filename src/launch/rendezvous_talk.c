/* What agents say to the hub, and what it makes of it. An agent greets with the token, says
 * hello with all that must be alike, is welcomed once all ranks are there, and is told the
 * verdict once all are done.
 *
 * Nobody's message is longer than what its sender has earned: a few bytes before the token,
 * an experiment before the rank is known, a piece from then on. A gather has one number at
 * a time and two buffers in turn: who sends piece i + 1 has read all of i, so once all have
 * sent i + 1 nothing is on its way out of the buffer of i, and i + 2 may go there. */
#include "launch/rendezvous_state.h"

#include <signal.h>
#include <stdlib.h>
#include <string.h>

#include "base/clock.h"
#include "launch/nodes.h"

/* A death explains what others saw of it in this time. */
static const uint64_t blame_ns = 1000000000;

/* "rank 3 (host b, pid 4711, address 10.0.0.2)" */
static void who(const struct rendezvous_peer *peer, char *out, size_t room)
{
    snprintf(out, room, "rank %u (host %.64s, pid %u%s%s)", peer->hello.rank, peer->hello.host,
             peer->hello.pid, peer->address[0] != 0 ? ", address " : "", peer->address);
}

/* ---- failures ---- */

static bool decides(const struct rendezvous *rendezvous, const struct wire_word *word, uint64_t now)
{
    enum epa_status have = rendezvous->verdict.status, status = word->status;

    if (have == EPA_OK || (have == EPA_ERR_ABORTED && status != EPA_ERR_ABORTED))
        return true;
    if (status != EPA_ERR_DIED || now - rendezvous->failed_ns >= blame_ns)
        return false;
    /* Libraries abort their process when a peer is gone, and may be heard of before it. */
    return have == EPA_ERR_SYSTEM || have == EPA_ERR_TIMEOUT ||
           (have == EPA_ERR_DIED && rendezvous->verdict.signal == SIGABRT &&
            word->signal != SIGABRT) ||
           /* A rank says that it has lost a peer; then it is known how that peer died. */
           (have == EPA_ERR_DIED && rendezvous->verdict.rank == UINT32_MAX &&
            word->rank != UINT32_MAX);
}

static void fail(struct rendezvous *rendezvous, const struct wire_word *word)
{
    uint64_t now = clock_ns();

    if (rendezvous->reported)
        return;
    if (decides(rendezvous, word, now))
        rendezvous->verdict = *word;
    if (rendezvous->failed_ns != 0)
        return;
    rendezvous->failed_ns = now;
    for (uint32_t r = 0; r < rendezvous->size; r++)
        if (rendezvous->of_rank[r] != NULL)
            conn_put(&rendezvous->of_rank[r]->conn, WIRE_ABORT);
}

void rendezvous_fail(struct rendezvous *rendezvous, enum epa_status status, uint32_t failed_rank,
                     const char *fmt, ...)
{
    struct wire_word word = {.status = status, .rank = failed_rank};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    fail(rendezvous, &word);
}

void rendezvous_lose(struct rendezvous *rendezvous, struct rendezvous_peer *peer, const char *how)
{
    char name[200];

    if (peer->failed_rank)
        return;
    conn_close(&peer->conn, "%s", how);
    who(peer, name, sizeof(name));
    rendezvous_fail(rendezvous, EPA_ERR_DIED, peer->hello.rank, "%s is gone: %s", name,
                    peer->conn.why);
    peer->done = peer->failed_rank = true;
}

/* ---- arrivals ---- */

EPA_PRINTF(3, 4)
static void refuse(struct rendezvous *rendezvous, struct rendezvous_peer *peer, const char *fmt,
                   ...)
{
    struct wire_word word = {.status = EPA_ERR_CONFIG, .rank = UINT32_MAX};
    va_list args;

    va_start(args, fmt);
    vsnprintf(word.text, sizeof(word.text), fmt, args);
    va_end(args);
    snprintf(rendezvous->refused, sizeof(rendezvous->refused), "; refused %s: %.100s",
             peer->address[0] != 0 ? peer->address : "somebody", word.text);
    conn_put_word(&peer->conn, WIRE_REFUSED, &word);
    peer->state = REFUSED;
    peer->since = clock_ns();
}

static void greeted(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                    const struct conn_message *m)
{
    struct wire_greet greet;

    if (m->type != WIRE_GREET || !wire_get_greet(m->data, m->bytes, &greet))
        conn_close(&peer->conn, "it is no process of epa2a");
    else if (greet.protocol != WIRE_PROTOCOL)
        refuse(rendezvous, peer, "another version of epa2a: it speaks protocol %u, rank 0 has %d",
               greet.protocol, WIRE_PROTOCOL);
    else if (!wire_token_is(greet.token, rendezvous->params.token))
        refuse(rendezvous, peer,
               "another job: its token is not rank 0's; EPA2A_JOB_TOKEN, where set, must be "
               "the same for all ranks");
    else {
        peer->state = GREETED;
        peer->conn.limit = WIRE_HELLO_MAX;
    }
}

/* Why a rank cannot take part, or "". */
static void find_fault(const struct rendezvous *rendezvous, const struct wire_hello *hello,
                       char *out, size_t room)
{
    const struct rendezvous_peer *twin =
        hello->rank < rendezvous->size ? rendezvous->of_rank[hello->rank] : NULL;
    const struct epa_launch *asked = rendezvous->params.asked;
    char first[300], name[200];

    *out = 0;
    if (hello->abi != EPA_ABI)
        snprintf(out, room, "runs an epa2a of another plugin ABI: %u there, %u here", hello->abi,
                 EPA_ABI);
    else if (asked->fingerprint != NULL &&
             wire_difference(hello->fingerprint, asked->fingerprint, first, sizeof(first)))
        snprintf(out, room, "was started with another experiment: %s", first);
    else if (hello->size != rendezvous->size || hello->rank >= rendezvous->size)
        snprintf(out, room, "is rank %u of %u there, and there are %u ranks here", hello->rank,
                 hello->size, rendezvous->size);
    else if (twin != NULL) {
        who(twin, name, sizeof(name));
        snprintf(out, room, "connected twice: the first was %s", name);
    }
}

/* All are there: each is told its place. */
static void welcome_all(struct rendezvous *rendezvous)
{
    struct nodes_rank *rank = calloc(rendezvous->size, sizeof(*rank));
    unsigned char *nodes = calloc(rendezvous->size, 4);

    for (uint32_t r = 0; r < rendezvous->size && rank != NULL; r++) {
        const struct rendezvous_peer *peer = rendezvous->of_rank[r];

        rank[r] = (struct nodes_rank){.machine = peer->hello.machine,
                                      .identity = peer->hello.identity,
                                      .mask = peer->mask,
                                      .mask_bytes = peer->mask_bytes};
    }
    if (rank == NULL || nodes == NULL) {
        rendezvous_fail(rendezvous, EPA_ERR_NOMEM, UINT32_MAX,
                        "no memory for the places of %u ranks", rendezvous->size);
    } else {
        nodes_find(rank, rendezvous->size, rendezvous->params.asked->ranks_per_node);
        for (uint32_t r = 0; r < rendezvous->size; r++)
            wire_put_u32(nodes + (size_t)r * 4, rank[r].node);
        rendezvous->started = true;
    }
    for (uint32_t r = 0; r < rendezvous->size && rendezvous->started; r++) {
        struct wire_welcome welcome = {.pid = rendezvous->of_rank[0]->hello.pid,
                                       .share = rank[r].share,
                                       .shares = rank[r].shares,
                                       .local_cores = rank[r].local_cores,
                                       .node = {nodes, (size_t)rendezvous->size * 4}};
        size_t room = sizeof(welcome) + 32 + welcome.node.bytes;
        unsigned char *at = conn_begin(&rendezvous->of_rank[r]->conn, WIRE_WELCOME, room);

        memcpy(welcome.host, rendezvous->of_rank[0]->hello.host, sizeof(welcome.host));
        if (at != NULL)
            conn_end(&rendezvous->of_rank[r]->conn, wire_put_welcome(at, room, &welcome));
    }
    free(rank);
    free(nodes);
}

static void join(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                 const struct conn_message *m)
{
    char fault[400], name[200];
    size_t piece = wire_gather_bytes(rendezvous->size);

    if (m->type != WIRE_HELLO || !wire_get_hello(m->data, m->bytes, &peer->hello)) {
        conn_close(&peer->conn, "it is no process of epa2a");
        return;
    }
    find_fault(rendezvous, &peer->hello, fault, sizeof(fault));
    if (fault[0] != 0) {
        who(peer, name, sizeof(name));
        rendezvous->turned_away +=
            peer->hello.rank < rendezvous->size && rendezvous->of_rank[peer->hello.rank] == NULL;
        refuse(rendezvous, peer, "%s %s", name, fault);
        rendezvous_fail(rendezvous, EPA_ERR_CONFIG, UINT32_MAX, "%s %s", name, fault);
        return;
    }
    peer->mask_bytes = peer->hello.mask.bytes;
    if (peer->mask_bytes > 0)
        memcpy(peer->mask, peer->hello.mask.data, peer->mask_bytes);
    peer->state = JOINED;
    peer->conn.limit = 16 + (piece > WIRE_BLOCK_MAX ? piece : WIRE_BLOCK_MAX);
    rendezvous->of_rank[peer->hello.rank] = peer;
    rendezvous->joined++;
    conn_put(&peer->conn, rendezvous->failed_ns != 0 ? WIRE_ABORT : WIRE_ALIVE);
    if (rendezvous->joined == rendezvous->size && rendezvous->failed_ns == 0)
        welcome_all(rendezvous);
}

/* ---- what ranks do ---- */

static bool gather_room(struct rendezvous_gather *g, uint32_t size)
{
    unsigned char **data = &g->data[g->number & 1];
    size_t *room = &g->room[g->number & 1], want = g->bytes * size;
    unsigned char *p;

    if (want <= *room)
        return true;
    p = realloc(*data, want);
    if (p == NULL)
        return false;
    *data = p;
    *room = want;
    return true;
}

static void gather_all(struct rendezvous *rendezvous)
{
    struct rendezvous_gather *g = &rendezvous->gather;
    struct wire_piece all = {.number = g->number,
                             .data = {g->data[g->number & 1], g->bytes * rendezvous->size}};

    for (uint32_t r = 0; r < rendezvous->size; r++) {
        struct rendezvous_peer *peer = rendezvous->of_rank[r];

        if (conn_bulk_gone(&peer->conn))
            conn_put_bulk(&peer->conn, WIRE_ALL, &all);
        else
            rendezvous_lose(rendezvous, peer,
                            "it sent a chunk before it had read the "
                            "last ones");
    }
    g->number++;
    g->n = 0;
    g->reported_late = false;
}

static void gather_piece(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                         const struct conn_message *m)
{
    struct rendezvous_gather *g = &rendezvous->gather;
    struct wire_piece piece;

    if (!rendezvous->started || !wire_get_piece(m->data, m->bytes, &piece) ||
        piece.number != g->number || peer->gathered != g->number ||
        piece.data.bytes > wire_gather_bytes(rendezvous->size)) {
        rendezvous_lose(rendezvous, peer, "it sent a chunk of something else");
        return;
    }
    if (g->n == 0) {
        g->bytes = piece.data.bytes;
        g->first_ns = clock_ns();
        if (!gather_room(g, rendezvous->size))
            rendezvous_fail(rendezvous, EPA_ERR_NOMEM, UINT32_MAX,
                            "no memory to gather %zu bytes of %u ranks", g->bytes,
                            rendezvous->size);
    }
    if (rendezvous->failed_ns != 0)
        return;
    if (piece.data.bytes != g->bytes) {
        rendezvous_fail(rendezvous, EPA_ERR_SYSTEM, UINT32_MAX,
                        "rank %u has %zu bytes to gather where another has %zu", peer->hello.rank,
                        piece.data.bytes, g->bytes);
        return;
    }
    if (g->bytes > 0)
        memcpy(g->data[g->number & 1] + peer->hello.rank * g->bytes, piece.data.data, g->bytes);
    peer->gathered++;
    if (++g->n == rendezvous->size)
        gather_all(rendezvous);
}

static void block(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                  const struct conn_message *m)
{
    const struct epa_launch *asked = rendezvous->params.asked;
    struct wire_piece piece;

    if (!wire_get_piece(m->data, m->bytes, &piece) || peer->hello.rank == 0 ||
        asked->block == NULL || piece.number > asked->block_bytes ||
        piece.data.bytes > asked->block_bytes - piece.number) {
        rendezvous_lose(rendezvous, peer, "what its rank left has no room here");
        return;
    }
    if (piece.data.bytes > 0)
        memcpy(asked->block + peer->hello.rank * asked->block_bytes + piece.number, piece.data.data,
               piece.data.bytes);
}

static void word(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                 const struct conn_message *m)
{
    struct wire_word said;

    if (!wire_get_word(m->data, m->bytes, &said)) {
        rendezvous_lose(rendezvous, peer, "it sent what makes no sense");
        return;
    }
    if (said.status != EPA_OK) {
        fail(rendezvous, &said);
        return;
    }
    peer->returned = true;
    if (rendezvous->last_end_ns == 0 && rendezvous->params.asked->timeout_ns != 0)
        rendezvous->last_end_ns = clock_ns() + rendezvous->params.asked->timeout_ns;
}

void rendezvous_hear(struct rendezvous *rendezvous, struct rendezvous_peer *peer,
                     const struct conn_message *m)
{
    if (peer->state == STRANGER)
        greeted(rendezvous, peer, m);
    else if (peer->state == GREETED)
        join(rendezvous, peer, m);
    else if (peer->state != JOINED || m->type == WIRE_ALIVE)
        return;
    else if (peer->done)
        rendezvous_lose(rendezvous, peer, "it was done and sent more");
    else if (m->type == WIRE_GATHER)
        gather_piece(rendezvous, peer, m);
    else if (m->type == WIRE_BLOCK)
        block(rendezvous, peer, m);
    else if (m->type == WIRE_WORD)
        word(rendezvous, peer, m);
    else if (m->type == WIRE_DONE)
        peer->done = true;
    else
        rendezvous_lose(rendezvous, peer, "it sent what makes no sense");
}
