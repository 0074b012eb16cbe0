/* The rendezvous never blocks, except for the death of a rank: rank 0's launcher polls its sockets. Another launcher sends a greeting, a
 * proof that it knows the token, and a hello with all values that must be identical in a job. The
 * rendezvous sends a welcome after all ranks have connected, and the verdict after all have ended. In
 * between it forwards the data of each rank for a step of the set-up to all other ranks.
 *
 * The state of the sender limits the length of a message: a few bytes before the proof, an experiment
 * before the rank is known, a step of the set-up after that. The rendezvous drops a peer without proof
 * and continues the launch; the failure of a rank is a failure of the launch. */
#include "launch/rendezvous.h"

#include <errno.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/wait.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "boot/bootstrap.h"
#include "boot/close_open.h"
#include "boot/conn.h"
#include "boot/death.h"
#include "boot/net.h"
#include "boot/nodes.h"
#include "launch/block_file.h"

enum {
    STRANGERS = 32, /* slots for connections without proof */
    ACCEPTS = 16,   /* accepts per turn; fewer than STRANGERS, so each is read before replacement */
    STRANGER_S =
        5, /* time limit for greeting to hello, and for a refused peer to read the reason */
    LAST_TIMES =
        10,       /* factor of the set-up limit for the last return: its CPU time is unknown here */
    LINGER_S = 3, /* wait after a failure for ranks that are about to connect */
    REFUSALS = 5, /* maximum of printed refusals */
};

static const uint64_t second = 1000000000;

struct peer {
    enum { FREE, STRANGER, GREETED, PROVED, JOINED, REFUSED } state;
    struct conn conn;
    uint64_t since_ns; /* time of the connection or of the refusal */
    char address[64];
    struct conn_hello hello;
    int pidfd;     /* -1: another host, or rank 0 itself */
    int results;   /* file with the block of the rank; -1: another host, or no access */
    uint64_t step; /* last set-up step that the rank has reached */
    bool returned, done, lost;
    bool resumed; /* resume_peer() has sent SIGCONT */
};

struct rendezvous {
    const struct epa_launch *asked;
    const struct launcher_settings *settings;
    const struct contact *contact;
    int listener;
    uint32_t size, slots;
    struct nodes_host host;
    struct peer *peer;            /* [slots] */
    struct peer **of_rank;        /* [size]: peer of each rank; NULL: not connected */
    uint32_t joined, turned_away; /* numbers of connected and of refused ranks */
    uint32_t refusals;
    bool started, reported;
    uint64_t created_ns, polled_ns, failed_ns, reported_ns, last_end_ns;
    struct conn_word verdict;
    char refused[500]; /* the last refused process, and the reason */
    uint64_t step;     /* set-up step that some rank has not reached */
    uint32_t reached;  /* number of ranks that have reached it */
    size_t step_bytes; /* bytes of each rank in this step */
};

/* ---- failures ---- */

/* "rank 3 (host b, pid 4711, address 10.0.0.2)" */
static void name_peer(const struct peer *peer, char *out, size_t room)
{
    snprintf(out, room, "rank %u (host %.64s, pid %u%s%s)", peer->hello.rank, peer->hello.host.name,
             peer->hello.pid, peer->address[0] != 0 ? ", address " : "", peer->address);
}

static void fail_launch(struct rendezvous *rdv, struct conn_word word)
{
    uint64_t now = epa_now_ns();

    if (rdv->reported)
        return;
    conn_blame(&rdv->verdict, &word, rdv->failed_ns != 0 ? now - rdv->failed_ns : 0);
    if (rdv->failed_ns != 0)
        return;
    rdv->failed_ns = now;
    for (uint32_t r = 0; r < rdv->size; r++)
        if (rdv->of_rank[r] != NULL)
            conn_say(&rdv->of_rank[r]->conn, CONN_ABORT);
}

/* Finds the cause of the death of a rank of this host. */
static bool find_death(const struct peer *peer, struct conn_word *out)
{
    char name[200], how[DEATH_TEXT];
    struct timespec now;
    int code;

    if (!death_find_code(peer->pidfd, (int32_t)peer->hello.pid, DEATH_WAIT_MS, &code))
        return false;
    clock_gettime(CLOCK_REALTIME, &now);
    name_peer(peer, name, sizeof(name));
    death_describe(code, how);
    *out = conn_word_of(EPA_ERR_DIED, "%s %s", name, how);
    out->signal = WIFSIGNALED(code) ? (uint32_t)WTERMSIG(code) : 0;
    out->died_ns = (uint64_t)now.tv_sec * second + (uint64_t)now.tv_nsec;
    return true;
}

/* Records that a rank is out of reach. Its received messages remain valid. After a failure a silent rank
 * hangs, for example since it was stopped: no loss, but the others need not wait for it. */
static void lose_peer(struct rendezvous *rdv, struct peer *peer, const char *how)
{
    struct conn_word word;
    char name[200];

    if (peer->lost)
        return;
    conn_close(&peer->conn, "%s", how);
    name_peer(peer, name, sizeof(name));
    if (peer->conn.silent)
        death_kill(peer->pidfd);
    if (peer->conn.silent || !find_death(peer, &word))
        word = conn_word_of(EPA_ERR_DIED, "%s is gone: %s", name, peer->conn.why);
    block_file_copy(peer->results, &peer->hello.block_file, rdv->asked, peer->hello.rank);
    word.rank = peer->hello.rank;
    if (!peer->conn.silent || rdv->failed_ns == 0)
        fail_launch(rdv, word);
    peer->done = peer->lost = true;
}

/* ---- new connections ---- */

static void free_peer(struct peer *peer)
{
    conn_finish(&peer->conn);
    close_open(peer->pidfd);
    close_open(peer->results);
    peer->pidfd = peer->results = -1;
    peer->state = FREE;
}

static uint32_t count_strangers(const struct rendezvous *rdv, const char *address)
{
    uint32_t n = 0;

    for (const struct peer *p = rdv->peer; p < rdv->peer + rdv->slots; p++)
        n += p->state != FREE && p->state != PROVED && p->state != JOINED &&
             strcmp(p->address, address) == 0;
    return n;
}

/* Returns true if `a` must make room before `b`: free slots first, then connections without a greeting,
 * then the address with the most connections, then the oldest one. A flood from one host thus displaces
 * its own connections, and not the slow proof of a distant rank. */
static bool makes_room_before(const struct rendezvous *rdv, const struct peer *a,
                              const struct peer *b)
{
    uint32_t more, less;

    if (a->state == FREE || b->state == FREE)
        return b->state != FREE;
    if ((a->state == GREETED) != (b->state == GREETED))
        return b->state == GREETED;
    more = count_strangers(rdv, a->address);
    less = count_strangers(rdv, b->address);
    return more != less ? more > less : a->since_ns < b->since_ns;
}

/* Replaces a connection without proof if all slots are in use. A rank with proof keeps its slot: its
 * launcher would report a closed connection as the loss of rank 0. */
static void add_peer(struct rendezvous *rdv, int fd, const char *address)
{
    struct peer *at = NULL;

    for (struct peer *p = rdv->peer; p < rdv->peer + rdv->slots; p++)
        if (p->state != JOINED && p->state != PROVED &&
            (at == NULL || makes_room_before(rdv, p, at)))
            at = p;
    if (at == NULL) { /* impossible: there are more slots than ranks */
        close(fd);
        return;
    }
    if (at->state != FREE)
        free_peer(at);
    *at = (struct peer){.state = STRANGER, .since_ns = epa_now_ns(), .pidfd = -1, .results = -1};
    conn_init(&at->conn, fd, CONN_GREET_MAX);
    snprintf(at->address, sizeof(at->address), "%s", address);
}

void rendezvous_adopt(struct rendezvous *rdv, int fd)
{
    add_peer(rdv, fd, "");
}

/* Refuses a peer with a message to it and a warning on rank 0. */
static void refuse_peer(struct rendezvous *rdv, struct peer *peer, const struct conn_word *word,
                        const char *why)
{
    const struct epa_launch *asked = rdv->asked;
    const char *from = peer->address[0] != 0 ? peer->address : "a local process";
    char text[500];

    if (word != NULL) /* `why` names the rank */
        snprintf(text, sizeof(text), "%s", why);
    else
        snprintf(text, sizeof(text), "%s: %.400s", from, why);
    snprintf(rdv->refused, sizeof(rdv->refused), "; refused %.480s", text);
    if (rdv->refusals++ < REFUSALS) {
        if (asked->poll_launch != NULL)
            (void)asked->poll_launch(asked->poll_arg, EPA_POLL_PRINTING);
        fprintf(stderr, "warning: rank 0 refused %s\n", text);
    }
    conn_put(&peer->conn, CONN_REFUSED, word, word != NULL ? sizeof(*word) : 0, NULL, 0);
    peer->state = REFUSED;
    peer->since_ns = epa_now_ns();
}

static void on_greeting(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_greet greet, mine;
    char why[100];

    if (m->type != CONN_GREET || !conn_get_greet(m, &greet)) {
        conn_close(&peer->conn, "the peer does not speak the epa2a protocol");
        return;
    }
    if (!conn_make_greet(&mine)) {
        conn_close(&peer->conn, "getrandom: %s", strerror(errno));
        return;
    }
    conn_put(&peer->conn, CONN_CHALLENGE, &mine, sizeof(mine), NULL, 0);
    if (greet.protocol != CONN_PROTOCOL) {
        snprintf(why, sizeof(why),
                 "another version of epa2a: it speaks protocol %u, rank 0 protocol %d",
                 greet.protocol, CONN_PROTOCOL);
        refuse_peer(rdv, peer, NULL, why);
        return;
    }
    conn_seal(&peer->conn, rdv->contact->token, &greet, &mine, false);
    peer->state = GREETED;
}

static void on_proof(struct peer *peer, const struct conn_message *m)
{
    if (m->type != CONN_PROOF || m->bytes != 0) {
        conn_close(&peer->conn, "the peer does not speak the epa2a protocol");
        return;
    }
    conn_say(&peer->conn, CONN_PROOF);
    peer->state = PROVED;
    peer->conn.limit = sizeof(struct conn_hello) + CONN_FINGERPRINT_MAX;
}

/* Returns true if both processes know the name of their job and the names differ. */
static bool is_of_another_job(const struct rendezvous *rdv, const struct conn_hello *hello)
{
    const char *own = rdv->contact->job;

    return own[0] != 0 && hello->job[0] != 0 && strcmp(own, hello->job) != 0;
}

/* Writes the reason why a rank cannot join, or "". */
static void find_mismatch(const struct rendezvous *rdv, const struct conn_hello *hello,
                          const char *fingerprint, char *out, size_t room)
{
    const struct peer *twin = hello->rank < rdv->size ? rdv->of_rank[hello->rank] : NULL;
    const char *wanted = rdv->asked->fingerprint;
    char first[300], name[200];

    *out = 0;
    if (hello->abi != EPA_ABI)
        snprintf(out, room, "runs an epa2a with another plugin ABI: %u there, %u here", hello->abi,
                 EPA_ABI);
    else if (is_of_another_job(rdv, hello))
        snprintf(out, room, "belongs to another job: %s there, %s here", hello->job,
                 rdv->contact->job);
    else if (wanted != NULL && conn_find_difference(fingerprint, wanted, first, sizeof(first)))
        snprintf(out, room, "was started with another experiment: %s", first);
    else if (hello->size != rdv->size || hello->rank >= rdv->size)
        snprintf(out, room, "is rank %u of %u there, but this job has %u ranks", hello->rank,
                 hello->size, rdv->size);
    else if (twin != NULL) {
        name_peer(twin, name, sizeof(name));
        snprintf(out, room, "connected twice: the first connection is %s", name);
    }
}

/* Tells rank 1 the files of all ranks of its host. */
static void send_blocks(struct rendezvous *rdv)
{
    struct conn_member *member = memory_alloc(rdv->size, sizeof(*member));
    uint32_t n = 0;

    for (uint32_t r = 0; r < rdv->size && rdv->size > 1; r++) {
        const struct conn_hello *hello = &rdv->of_rank[r]->hello;

        if (r != 1 && strcmp(hello->host.identity, rdv->of_rank[1]->hello.host.identity) == 0)
            member[n++] = (struct conn_member){r, hello->pid, hello->block_file};
    }
    if (n > 0)
        conn_put(&rdv->of_rank[1]->conn, CONN_BLOCKS, member, n * sizeof(*member), NULL, 0);
    free(member);
}

/* Sends each rank its node and its share of the cores after all ranks have connected. */
static void welcome_all(struct rendezvous *rdv)
{
    struct nodes_rank *rank = memory_alloc(rdv->size, sizeof(*rank));
    uint32_t *node = memory_alloc(rdv->size, sizeof(*node)), hosts = 0;
    char interface[CONN_INTERFACE] = "";
    bool one_network = true;

    for (uint32_t r = 0; r < rdv->size; r++) {
        const struct peer *peer = rdv->of_rank[r];
        bool first = true;

        rank[r] = (struct nodes_rank){.machine = peer->hello.host.machine,
                                      .identity = peer->hello.host.identity,
                                      .mask = peer->hello.mask,
                                      .mask_bytes = peer->hello.mask_bytes};
        for (uint32_t p = 0; p < r; p++)
            first = first && strcmp(rank[p].identity, rank[r].identity) != 0;
        hosts += first;
        one_network = one_network &&
                      strcmp(peer->hello.host.network, rdv->of_rank[0]->hello.host.network) == 0;
        if (interface[0] == 0) /* skips peers on rank 0's host: their route may be the loopback */
            net_interface(peer->conn.fd, interface);
    }
    if (one_network && interface[0] == 0)
        snprintf(interface, sizeof(interface), "lo");
    nodes_find(rank, rdv->size, rdv->asked->ranks_per_node);
    for (uint32_t r = 0; r < rdv->size; r++)
        node[r] = rank[r].node;
    for (uint32_t r = 0; r < rdv->size; r++) {
        struct conn_welcome welcome = {.pid = rdv->of_rank[0]->hello.pid,
                                       .share = rank[r].share,
                                       .shares = rank[r].shares,
                                       .local_cores = rank[r].local_cores,
                                       .hosts = hosts};

        memcpy(welcome.interface, interface, sizeof(welcome.interface));
        memcpy(welcome.host, rdv->of_rank[0]->hello.host.name, sizeof(welcome.host));
        conn_put(&rdv->of_rank[r]->conn, CONN_WELCOME, &welcome, sizeof(welcome), node,
                 rdv->size * sizeof(*node));
    }
    rdv->started = true;
    free(rank);
    free(node);
    send_blocks(rdv);
}

static void on_hello(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_word word = {.status = EPA_ERR_CONFIG, .rank = UINT32_MAX};
    struct conn_hello *hello = &peer->hello;
    size_t piece = bootstrap_slot_bytes(rdv->size);
    char fault[400] = "sent a fingerprint that does not fit the memory", name[200], *fingerprint;
    struct conn_message rest;

    if (!conn_get_hello(m, hello, &rest)) {
        conn_close(&peer->conn, "the peer does not speak the epa2a protocol");
        return;
    }
    fingerprint = strndup((const char *)rest.data, rest.bytes);
    if (fingerprint != NULL)
        find_mismatch(rdv, hello, fingerprint, fault, sizeof(fault));
    free(fingerprint);
    if (fault[0] != 0) {
        name_peer(peer, name, sizeof(name));
        snprintf(word.text, sizeof(word.text), "%s %.300s", name, fault);
        /* Without a token any process of this user can connect, so the launch continues. */
        if (rdv->contact->local[0] != 0 || is_of_another_job(rdv, hello)) {
            refuse_peer(rdv, peer, &word, word.text);
            return;
        }
        rdv->turned_away += hello->rank < rdv->size && rdv->of_rank[hello->rank] == NULL;
        rdv->refusals = REFUSALS; /* no warning: the verdict contains the reason */
        refuse_peer(rdv, peer, &word, word.text);
        fail_launch(rdv, word);
        return;
    }
    peer->state = JOINED;
    peer->conn.limit =
        sizeof(struct conn_piece) + (piece > CONN_BLOCK_MAX ? piece : CONN_BLOCK_MAX);
    rdv->of_rank[hello->rank] = peer;
    rdv->joined++;
    if (strcmp(hello->host.identity, rdv->host.identity) == 0 && hello->rank != 0) {
        peer->pidfd = death_watch((int32_t)hello->pid);
        peer->results = block_file_open((int32_t)hello->pid, &hello->block_file);
    }
    if (rdv->failed_ns != 0)
        conn_say(&peer->conn, CONN_ABORT);
    else if (rdv->joined == rdv->size)
        welcome_all(rdv);
}

/* ---- messages of ranks ---- */

/* A rank has reached a step: forwards its data to the others. */
static void on_step(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    struct conn_message data;
    struct conn_piece piece;

    if (rdv->failed_ns != 0) /* after an abort a rank may already send the next step */
        return;
    if (!rdv->started ||
        !conn_get_step(m, rdv->size, bootstrap_slot_bytes(rdv->size), &piece, &data) ||
        piece.rank != peer->hello.rank || piece.number != rdv->step ||
        peer->step + 1 != rdv->step) {
        lose_peer(rdv, peer, "it sent an unexpected step of the set-up");
        return;
    }
    if (rdv->reached == 0)
        rdv->step_bytes = data.bytes;
    if (data.bytes != rdv->step_bytes)
        fail_launch(rdv, conn_word_of(EPA_ERR_SYSTEM,
                                      "rank %u gathers %zu bytes, but another rank gathers %zu",
                                      peer->hello.rank, data.bytes, rdv->step_bytes));
    if (rdv->failed_ns != 0)
        return;
    for (uint32_t r = 0; r < rdv->size; r++)
        if (r != piece.rank)
            conn_put(&rdv->of_rank[r]->conn, CONN_STEP, m->data, m->bytes, NULL, 0);
    peer->step = rdv->step;
    if (++rdv->reached < rdv->size)
        return;
    rdv->step++;
    rdv->reached = 0;
}

static void on_block(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    const struct epa_launch *asked = rdv->asked;
    struct conn_message data;
    struct conn_piece piece;

    if (peer->hello.rank == 0 || asked->block == NULL ||
        !conn_get_block(m, asked->block_bytes, &piece, &data))
        lose_peer(rdv, peer, "its results do not fit the block of rank 0");
    else if (data.bytes > 0 && !peer->resumed)
        memcpy(asked->block + peer->hello.rank * asked->block_bytes + piece.number, data.data,
               data.bytes);
}

static void on_word(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    uint64_t limit = rdv->asked->timeout_ns;
    struct conn_word word;

    if (!conn_get_word(m, &word) || (peer->done && word.status == EPA_OK)) {
        lose_peer(rdv, peer, "it sent a malformed message");
    } else if (word.status != EPA_OK) {
        fail_launch(rdv, word);
    } else {
        peer->returned = true;
        if (rdv->last_end_ns == 0 && limit != 0)
            rdv->last_end_ns = epa_now_ns() + limit * LAST_TIMES;
    }
}

static void on_message(struct rendezvous *rdv, struct peer *peer, const struct conn_message *m)
{
    if (peer->state == STRANGER)
        on_greeting(rdv, peer, m);
    else if (peer->state == GREETED)
        on_proof(peer, m);
    else if (peer->state == PROVED)
        on_hello(rdv, peer, m);
    else if (m->type == CONN_ALIVE)
        return;
    else if (peer->done && m->type != CONN_WORD) /* a stop may arrive before the verdict */
        lose_peer(rdv, peer, "it sent a message after its last one");
    else if (m->type == CONN_STEP)
        on_step(rdv, peer, m);
    else if (m->type == CONN_BLOCK)
        on_block(rdv, peer, m);
    else if (m->type == CONN_WORD)
        on_word(rdv, peer, m);
    else if (m->type == CONN_DONE)
        peer->done = true;
    else
        lose_peer(rdv, peer, "it sent an unexpected message");
}

/* Reads the messages of a peer. */
static void take_messages(struct rendezvous *rdv, struct peer *peer)
{
    struct conn_message m;

    while (peer->state != REFUSED && conn_take(&peer->conn, &m))
        on_message(rdv, peer, &m);
    if (peer->state == REFUSED) /* closing with unread bytes would discard the refusal */
        conn_discard(&peer->conn);
}

/* ---- time ---- */

/* Moves all deadlines by a pause of this process; conn_find_loss() detects the pause itself. */
static void skip_pause(struct rendezvous *rdv, uint64_t now)
{
    uint64_t polled_ns = rdv->polled_ns;
    uint64_t pause_ns = epa_pause_ns(&polled_ns, now, rdv->settings->heartbeat_ns);

    rdv->created_ns += pause_ns;
    rdv->failed_ns += rdv->failed_ns != 0 ? pause_ns : 0;
    rdv->reported_ns += rdv->reported ? pause_ns : 0;
    rdv->last_end_ns += rdv->last_end_ns != 0 ? pause_ns : 0;
    for (struct peer *peer = rdv->peer; peer < rdv->peer + rdv->slots; peer++)
        peer->since_ns += pause_ns;
}

static void check_start(struct rendezvous *rdv, uint64_t now)
{
    uint32_t missing = rdv->size - rdv->joined, n = 0;
    char names[120] = "";
    size_t used = 0;

    if (rdv->started || rdv->failed_ns != 0 || now - rdv->created_ns < rdv->settings->start_ns)
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
    fail_launch(rdv,
                conn_word_at(
                    conn_word_of(EPA_ERR_TIMEOUT,
                                 "rank%s %s of %u did not connect within %.3g s (launcher.start)%s",
                                 missing > 1 ? "s" : "", names, rdv->size,
                                 (double)rdv->settings->start_ns * 1e-9, rdv->refused),
                    "launcher.start"));
}

static void check_last(struct rendezvous *rdv, uint64_t now)
{
    uint32_t r = 0;

    if (rdv->last_end_ns == 0 || now < rdv->last_end_ns || rdv->failed_ns != 0)
        return;
    while (r < rdv->size && rdv->of_rank[r]->returned)
        r++;
    if (r < rdv->size)
        fail_launch(rdv, conn_word_of(EPA_ERR_TIMEOUT,
                                      "rank %u did not return within %.3g s of the first that did",
                                      r, (double)rdv->asked->timeout_ns * LAST_TIMES * 1e-9));
    rdv->last_end_ns = 0;
}

/* Lets a stopped process of this host leave by itself, with the exit code of the verdict. mpirun
 * returns the code of a killed process instead. The results are copied before: they show where the
 * rank was stopped. */
static void resume_peer(struct rendezvous *rdv, struct peer *peer, uint64_t now)
{
    if (peer->resumed || peer->done || peer->pidfd < 0 || rdv->failed_ns == 0 ||
        now <= peer->conn.heard_ns || now - peer->conn.heard_ns <= rdv->settings->heartbeat_ns / 2)
        return;
    peer->resumed = true;
    block_file_copy(peer->results, &peer->hello.block_file, rdv->asked, peer->hello.rank);
    death_resume(peer->pidfd);
}

static void check_peers(struct rendezvous *rdv, uint64_t now)
{
    for (struct peer *peer = rdv->peer; peer < rdv->peer + rdv->slots; peer++) {
        if (peer->state == JOINED) {
            resume_peer(rdv, peer, now);
            if (!rdv->reported && !peer->lost &&
                conn_find_loss(&peer->conn, now, rdv->polled_ns, rdv->settings->heartbeat_ns))
                lose_peer(rdv, peer, "");
            continue;
        }
        if (peer->state != FREE && peer->state != REFUSED && peer->conn.forged) {
            peer->conn.sealed = false;
            refuse_peer(rdv, peer, NULL,
                        "another job: its token differs from rank 0's, or it has none");
        }
        if (peer->state != FREE &&
            (peer->conn.fd < 0 || now > peer->since_ns + STRANGER_S * second))
            free_peer(peer);
    }
}

/* Sends the verdict to all launchers if no further message is expected. */
static void check_end(struct rendezvous *rdv, bool alone, uint64_t now)
{
    bool early = !rdv->started && !alone && rdv->joined + rdv->turned_away < rdv->size &&
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

const struct conn_word *rendezvous_verdict(const struct rendezvous *rdv)
{
    return &rdv->verdict;
}

bool rendezvous_over(const struct rendezvous *rdv)
{
    if (!rdv->reported)
        return false;
    if (epa_now_ns() - rdv->reported_ns > rdv->settings->heartbeat_ns)
        return true;
    for (uint32_t i = 0; i < rdv->slots; i++)
        if (rdv->peer[i].state != FREE && !conn_all_heard(&rdv->peer[i].conn))
            return false;
    return true;
}

/* ---- the loop ---- */

uint32_t rendezvous_poll_room(uint32_t ranks)
{
    return 1 + ranks + STRANGERS;
}

void rendezvous_polls(const struct rendezvous *rdv, struct pollfd *out)
{
    bool listens = rdv->joined < rdv->size && !rdv->reported;

    out[0] = (struct pollfd){.fd = listens ? rdv->listener : -1, .events = POLLIN};
    for (uint32_t i = 0; i < rdv->slots; i++)
        out[1 + i] =
            (struct pollfd){.fd = rdv->peer[i].conn.fd, .events = conn_events(&rdv->peer[i].conn)};
}

void rendezvous_turn(struct rendezvous *rdv, const struct pollfd *fds, bool alone)
{
    char from[64];
    uint64_t now;

    /* Closed connections first. After the death of a rank, mpirun sends SIGTERM to the other ranks,
     * which report it. If this process waited for a core, it finds both at once; the death is the
     * cause. */
    for (uint32_t i = 0; i < rdv->slots; i++) {
        struct peer *peer = &rdv->peer[i];

        if (peer->state != JOINED || (fds[1 + i].revents & (POLLRDHUP | POLLHUP | POLLERR)) == 0)
            continue;
        while (peer->conn.fd >= 0 && !peer->conn.forged) {
            conn_turn(&peer->conn, POLLIN);
            take_messages(rdv, peer);
        }
        if (!rdv->reported)
            lose_peer(rdv, peer, "");
    }
    for (uint32_t i = 0; i < rdv->slots; i++)
        conn_turn(&rdv->peer[i].conn, fds[1 + i].revents);
    for (struct peer *peer = rdv->peer; peer < rdv->peer + rdv->slots; peer++)
        take_messages(rdv, peer);
    for (uint32_t i = 0; i < ACCEPTS && fds[0].revents != 0; i++) {
        int fd = net_accept(rdv->listener, from, sizeof(from));

        if (fd < 0)
            break;
        add_peer(rdv, fd, from);
    }
    now = epa_now_ns();
    skip_pause(rdv, now);
    check_peers(rdv, now);
    check_start(rdv, now);
    check_last(rdv, now);
    check_end(rdv, alone, now);
    rdv->polled_ns = now;
    for (uint32_t i = 0; i < rdv->slots; i++) /* sends the messages queued above */
        conn_turn(&rdv->peer[i].conn, 0);
}

/* ---- creation and destruction ---- */

void rendezvous_destroy(struct rendezvous *rdv)
{
    if (rdv == NULL)
        return;
    for (uint32_t i = 0; i < rdv->slots; i++)
        free_peer(&rdv->peer[i]);
    free(rdv->peer);
    free(rdv->of_rank);
    free(rdv);
}

/* Raises the limit of open files for the connections, and some for all other purposes. */
static enum epa_status allow_files(uint32_t slots, struct epa_error *err)
{
    struct rlimit limit;
    rlim_t want = 3 * (rlim_t)slots + 64; /* a connection, a pidfd and the block of each rank */

    if (getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur >= want)
        return EPA_OK;
    limit.rlim_cur = want < limit.rlim_max ? want : limit.rlim_max;
    if (limit.rlim_cur < want || setrlimit(RLIMIT_NOFILE, &limit) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "rank 0 needs %llu open files for connections to all ranks; the limit is "
                        "%llu: raise it by ulimit -n",
                        (unsigned long long)want, (unsigned long long)limit.rlim_max);
    return EPA_OK;
}

enum epa_status rendezvous_create(const struct epa_launch *asked,
                                  const struct launcher_settings *settings,
                                  const struct contact *contact, int listener,
                                  struct rendezvous **out, struct epa_error *err)
{
    struct rendezvous *rdv = memory_alloc(1, sizeof(*rdv));
    enum epa_status status;

    rdv->asked = asked;
    rdv->settings = settings;
    rdv->contact = contact;
    rdv->listener = listener;
    nodes_host(&rdv->host);
    rdv->size = asked->ranks;
    rdv->slots = rdv->size + STRANGERS;
    rdv->created_ns = rdv->polled_ns = epa_now_ns();
    rdv->verdict.rank = UINT32_MAX;
    rdv->step = 1;
    rdv->peer = memory_alloc(rdv->slots, sizeof(*rdv->peer));
    for (uint32_t i = 0; i < rdv->slots; i++)
        rdv->peer[i].conn.fd = rdv->peer[i].pidfd = rdv->peer[i].results = -1;
    rdv->of_rank = memory_alloc(rdv->size, sizeof(struct peer *));
    status = allow_files(rdv->slots, err);
    if (status != EPA_OK) {
        rendezvous_destroy(rdv);
        return status;
    }
    *out = rdv;
    return EPA_OK;
}
