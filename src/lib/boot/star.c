/* A rank greets rank 0, proves that it knows the secret of the job, and says its number. Rank 0 reads
 * few bytes of a peer without proof, drops such a peer after some seconds, and continues. */
#include "boot/star.h"

#include <errno.h>
#include <poll.h>
#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/eventfd.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "boot/close_open.h"
#include "boot/conn.h"
#include "boot/net.h"

enum {
    STRANGERS = 32, /* slots for connections without proof */
    POLL_MS = 20,   /* between two readings of `aborted` */
};

/* A rank waits longer than rank 0, whose message names the missing rank. */
static const uint64_t stranger_ns = 5000000000, linger_ns = 500000000, late_ns = 3000000000;

static const uint64_t abort_lock_ns = 2000000000; /* longest wait of star_send_abort() */

struct hello {
    uint32_t rank, ranks, pid, zero;
    char host[72];
    char job[CONN_JOB];
};

struct guest {
    enum { FREE, NEW, GREETED, PROVED, JOINED, REFUSED } state;
    struct conn conn;
    uint64_t since_ns;
    struct hello hello;
    char name[128]; /* "rank 3 (host b, pid 4711)" */
    char *to;       /* place of its data in the present gather */
    bool arrived;   /* its data of the present gather have arrived */
    char *early;    /* its data of the next gather, which star_watch() has read */
    bool is_early;
};

struct star {
    struct star_params params;
    int listener;        /* -1: none */
    struct guest *guest; /* rank 0: [slots]; else one: rank 0 */
    uint32_t slots, joined;
    struct guest **of_rank;   /* rank 0: [ranks]; NULL: not connected */
    struct pollfd *poll;      /* [slots + 1] */
    struct pollfd *watched;   /* [slots + 1]; of star_watch() */
    int wake;                 /* eventfd that ends star_watch(); -1: none */
    size_t data_bytes;        /* bytes of a message with data from a guest */
    char *early;              /* [slots][data_bytes] */
    struct epa_error failure; /* rank 0: of the start */
    uint32_t busy;            /* 1: a thread uses the connections */
};

/* Time of a wait, without pauses of this process. */
struct limit {
    uint64_t limit_ns, begun_ns, waited_ns;
};

static bool limit_expired(struct limit *l)
{
    l->waited_ns = epa_waited_ns(&l->begun_ns, l->waited_ns, l->limit_ns);
    return l->waited_ns >= l->limit_ns;
}

static bool try_lock(struct star *star)
{
    /* Acquire: pairs with the release in unlock(). */
    return __atomic_exchange_n(&star->busy, 1, __ATOMIC_ACQUIRE) == 0;
}

static bool lock_within(struct star *star, uint64_t limit_ns)
{
    uint64_t begun_ns = epa_now_ns();

    while (!try_lock(star)) {
        if (epa_now_ns() - begun_ns >= limit_ns)
            return false;
        sched_yield();
    }
    return true;
}

static void lock(struct star *star)
{
    /* Other threads hold the lock for one poll without waiting. */
    (void)lock_within(star, UINT64_MAX);
}

static void unlock(struct star *star)
{
    __atomic_store_n(&star->busy, 0, __ATOMIC_RELEASE);
}

/* ---- connecting ---- */

static void name_guest(struct guest *guest, const struct hello *hello)
{
    guest->hello = *hello;
    guest->hello.host[sizeof(hello->host) - 1] = guest->hello.job[sizeof(hello->job) - 1] = 0;
    snprintf(guest->name, sizeof(guest->name), "rank %u (host %s, pid %u)", hello->rank,
             guest->hello.host, hello->pid);
}

static void free_guest(struct guest *guest)
{
    conn_finish(&guest->conn);
    guest->state = FREE;
}

static void send_failure(struct guest *guest, const struct epa_error *failure)
{
    struct conn_word word = conn_word_of(failure->status, "%s", failure->text);

    conn_put_word(&guest->conn, CONN_ABORT, &word);
    conn_turn(&guest->conn, 0);
}

/* Sends the reason to a peer, which then closes the connection. */
static void refuse_guest(struct guest *guest, const struct epa_error *why)
{
    struct conn_word word = conn_word_of(why->status, "%s", why->text);

    conn_put_word(&guest->conn, CONN_REFUSED, &word);
    guest->state = REFUSED;
    guest->since_ns = epa_now_ns();
}

/* Takes a free slot, or the slot of the oldest connection without proof. */
static void accept_guest(struct star *star)
{
    struct guest *at = NULL;
    char from[80];
    int fd = net_accept(star->listener, from, sizeof(from));

    if (fd < 0)
        return;
    for (struct guest *g = star->guest; g < star->guest + star->slots; g++)
        if (g->state != PROVED && g->state != JOINED &&
            (at == NULL || g->state == FREE || g->since_ns < at->since_ns)) {
            at = g;
            if (g->state == FREE)
                break;
        }
    if (at == NULL) { /* impossible: there are more slots than ranks */
        close(fd);
        return;
    }
    free_guest(at);
    *at = (struct guest){.state = NEW, .since_ns = epa_now_ns(), .early = at->early};
    conn_init(&at->conn, fd, CONN_GREET_MAX);
}

static void on_greeting(struct star *star, struct guest *guest, const struct conn_message *m)
{
    struct conn_greet greet, mine;

    if (m->type != CONN_GREET || !conn_get_greet(m, &greet) || !conn_make_greet(&mine)) {
        conn_close(&guest->conn, "the peer does not speak the epa2a protocol");
        return;
    }
    conn_put(&guest->conn, CONN_CHALLENGE, &mine, sizeof(mine), NULL, 0);
    if (greet.protocol != CONN_PROTOCOL) { /* the peer compares the versions, too */
        guest->state = REFUSED;
        return;
    }
    conn_seal(&guest->conn, star->params.contact->token, &greet, &mine, false);
    guest->state = GREETED;
}

/* Returns EPA_OK, or the reason why a rank with proof cannot join; the job then fails. */
static enum epa_status on_hello(struct star *star, struct guest *guest,
                                const struct conn_message *m, struct epa_error *err)
{
    const struct star_params *p = &star->params;
    struct conn_message rest;
    struct hello hello;

    if (m->type != CONN_HELLO || !conn_get(m, &hello, sizeof(hello), &rest)) {
        conn_close(&guest->conn, "the peer does not speak the epa2a protocol");
        return EPA_OK;
    }
    name_guest(guest, &hello);
    if (strcmp(guest->hello.job, p->contact->job) != 0) {
        refuse_guest(guest, &(struct epa_error){.status = EPA_ERR_CONFIG,
                                                .text = "another job uses MASTER_PORT"});
        return EPA_OK;
    }
    if (star->failure.status != EPA_OK) {
        guest->state = JOINED;
        star->joined++;
        send_failure(guest, &star->failure);
        return EPA_OK;
    }
    if (hello.ranks != p->ranks)
        return epa_fail(err, EPA_ERR_CONFIG, "%s expects %u ranks, rank 0 expects %u ranks",
                        guest->name, hello.ranks, p->ranks);
    if (hello.rank == 0 || hello.rank >= p->ranks || star->of_rank[hello.rank] != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s connects, but %s has this number; RANK of each "
                        "process must be different",
                        guest->name,
                        hello.rank != 0 && hello.rank < p->ranks ? star->of_rank[hello.rank]->name
                                                                 : "another rank");
    star->of_rank[hello.rank] = guest;
    star->joined++;
    guest->state = JOINED;
    guest->conn.limit = p->frame_bytes + sizeof(struct conn_word);
    return EPA_OK;
}

static enum epa_status serve_guest(struct star *star, struct guest *guest, short revents,
                                   struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    struct conn_message m;

    conn_turn(&guest->conn, revents);
    while (status == EPA_OK && guest->state != JOINED && conn_take(&guest->conn, &m)) {
        if (guest->state == NEW) {
            on_greeting(star, guest, &m);
        } else if (guest->state == GREETED && m.type == CONN_PROOF) {
            conn_say(&guest->conn, CONN_PROOF);
            guest->conn.limit = sizeof(struct hello);
            guest->state = PROVED;
        } else if (guest->state == PROVED) {
            status = on_hello(star, guest, &m, err);
        }
    }
    if (guest->conn.forged && guest->state != REFUSED) {
        guest->conn.sealed = false; /* the peer accepts this refusal without a MAC */
        conn_say(&guest->conn, CONN_REFUSED);
        guest->state = REFUSED;
    }
    conn_turn(&guest->conn, 0);
    if (guest->state == JOINED && guest->conn.fd < 0 && star->failure.status != EPA_OK)
        return EPA_OK; /* the rank has received the failure */
    if (guest->state == JOINED && guest->conn.fd < 0)
        return epa_fail(err, EPA_ERR_DIED, "%s is gone: %s", guest->name, guest->conn.why);
    if (guest->state != JOINED &&
        (guest->conn.fd < 0 || epa_now_ns() - guest->since_ns > stranger_ns))
        free_guest(guest);
    return status;
}

static void poll_guests(struct star *star, int wait_ms)
{
    for (uint32_t i = 0; i < star->slots; i++) {
        const struct guest *g = &star->guest[i];

        star->poll[i] = (struct pollfd){.fd = g->state == FREE ? -1 : g->conn.fd,
                                        .events = conn_events(&g->conn)};
    }
    star->poll[star->slots] = (struct pollfd){.fd = star->listener, .events = POLLIN};
    if (poll(star->poll, star->slots + 1, wait_ms) < 0)
        for (uint32_t i = 0; i <= star->slots; i++)
            star->poll[i].revents = 0;
}

/* Sends a failure to all connected ranks. */
static void tell_failure(struct star *star, const struct epa_error *failure)
{
    for (uint32_t i = 0; i < star->slots; i++)
        if (star->guest[i].state == JOINED)
            send_failure(&star->guest[i], failure);
}

/* Accepts and serves connections until all ranks have joined, a rank causes a failure, or the limit
 * expires. */
static enum epa_status serve_until_joined(struct star *star, uint64_t limit_ns,
                                          struct epa_error *err)
{
    struct limit limit = {.limit_ns = limit_ns};
    enum epa_status status = EPA_OK;
    uint32_t missing = 1;

    while (status == EPA_OK && star->joined + 1 < star->params.ranks) {
        poll_guests(star, POLL_MS);
        if (star->poll[star->slots].revents != 0)
            accept_guest(star);
        for (uint32_t i = 0; i < star->slots && status == EPA_OK; i++)
            if (star->guest[i].state != FREE)
                status = serve_guest(star, &star->guest[i], star->poll[i].revents, err);
        if (status != EPA_OK || !limit_expired(&limit))
            continue;
        while (missing < star->params.ranks && star->of_rank[missing] != NULL)
            missing++;
        status =
            epa_fail(epa_awaits(err, missing), EPA_ERR_TIMEOUT,
                     "rank 0 waited %.3g s for rank %u to connect; %u of %u ranks are connected",
                     (double)limit.waited_ns * 1e-9, missing, star->joined + 1, star->params.ranks);
    }
    return status;
}

/* Rank 0: waits until all ranks have joined. After a failure, ranks that are about to connect receive
 * the reason, too. */
static enum epa_status wait_for_ranks(struct star *star, struct epa_error *err)
{
    enum epa_status status = serve_until_joined(star, star->params.connect_ns, &star->failure);

    if (status == EPA_OK)
        return EPA_OK;
    for (uint32_t i = 0; i < star->slots; i++)
        if (star->guest[i].state == PROVED) { /* the rank that caused the failure */
            star->guest[i].state = JOINED;
            star->joined++;
        }
    tell_failure(star, &star->failure);
    if (status != EPA_ERR_TIMEOUT)
        (void)serve_until_joined(star, late_ns, NULL);
    return epa_fail(epa_awaits_as(err, &star->failure), status, "%s", star->failure.text);
}

/* Other ranks: connects to rank 0. */
static enum epa_status dial_rank_0(struct star *star, struct epa_error *err)
{
    const struct star_params *p = &star->params;
    struct limit limit = {.limit_ns = p->connect_ns};
    struct hello hello = {.rank = p->rank, .ranks = p->ranks, .pid = (uint32_t)getpid()};
    struct guest *root = &star->guest[0];
    enum net_dialed dialed = NET_TRYING;
    enum epa_status status = EPA_OK;
    struct net_dial dial;

    net_dial_init(&dial, p->contact, -1);
    while (dialed == NET_TRYING && !limit_expired(&limit)) {
        struct pollfd fd = net_dial_poll(&dial);

        (void)poll(&fd, 1, POLL_MS);
        dialed = net_dial_turn(&dial, fd.revents, epa_now_ns(), &root->conn);
    }
    if (dialed == NET_REFUSED)
        status = epa_fail(err, EPA_ERR_CONFIG, "rank %u cannot join: %s", p->rank, dial.why);
    else if (dialed == NET_TRYING)
        status = epa_fail(epa_awaits(err, 0), EPA_ERR_TIMEOUT,
                          "rank %u waited %.3g s for rank 0 to listen: %s", p->rank,
                          (double)limit.waited_ns * 1e-9, dial.why);
    net_dial_finish(&dial);
    if (status != EPA_OK)
        return status;
    root->state = JOINED;
    root->conn.limit = p->ranks * p->frame_bytes + sizeof(struct conn_word);
    snprintf(root->name, sizeof(root->name), "rank 0");
    (void)gethostname(hello.host, sizeof(hello.host) - 1);
    snprintf(hello.job, sizeof(hello.job), "%s", p->contact->job);
    conn_put(&root->conn, CONN_HELLO, &hello, sizeof(hello), NULL, 0);
    conn_turn(&root->conn, 0); /* rank 0 waits for the hello; star_gather() may follow much later */
    return EPA_OK;
}

enum epa_status star_create(const struct star_params *params, struct star **out,
                            struct epa_error *err)
{
    bool leads = params->rank == 0;
    struct star *star = calloc(1, sizeof(*star));
    enum epa_status status = EPA_OK;

    if (star == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for connections");
    star->params = *params;
    star->listener = params->listener;
    star->wake = -1;
    star->slots = leads ? params->ranks - 1 + STRANGERS : 1;
    star->guest = calloc(star->slots, sizeof(*star->guest));
    star->of_rank = calloc(params->ranks, sizeof(struct guest *));
    star->poll = calloc(star->slots + (size_t)1, sizeof(*star->poll));
    star->watched = calloc(star->slots + (size_t)1, sizeof(*star->watched));
    star->data_bytes = (leads ? 1 : params->ranks) * params->frame_bytes;
    star->early = calloc(star->slots, star->data_bytes);
    if (star->guest == NULL || star->of_rank == NULL || star->poll == NULL ||
        star->watched == NULL || star->early == NULL)
        status =
            epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u connections", star->slots);
    else if ((star->wake = eventfd(0, EFD_CLOEXEC | EFD_NONBLOCK)) < 0)
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "eventfd: %s", strerror(errno));
    for (uint32_t i = 0; status == EPA_OK && i < star->slots; i++) {
        star->guest[i].conn.fd = -1;
        star->guest[i].early = star->early + i * star->data_bytes;
    }
    if (status == EPA_OK)
        status = conn_check_mac(err);
    if (status == EPA_OK)
        status = leads ? wait_for_ranks(star, err) : dial_rank_0(star, err);
    star->listener = -1; /* listener and contact belong to the caller */
    star->params.contact = NULL;
    for (uint32_t i = 0; status == EPA_OK && i < star->slots; i++)
        if (star->guest[i].state != JOINED && star->guest[i].state != FREE)
            free_guest(&star->guest[i]);
    if (status != EPA_OK)
        star_destroy(star);
    else
        *out = star;
    return status;
}

void star_destroy(struct star *star)
{
    if (star == NULL)
        return;
    for (uint32_t i = 0; star->guest != NULL && i < star->slots; i++) {
        /* The kernel discards a failure that is on its way if the connection has unread bytes. */
        if (star->guest[i].state == JOINED)
            conn_turn(&star->guest[i].conn, POLLIN);
        if (star->guest[i].state != FREE)
            free_guest(&star->guest[i]);
    }
    close_open(star->wake);
    free(star->guest);
    free(star->of_rank);
    free(star->poll);
    free(star->watched);
    free(star->early);
    free(star);
}

/* ---- gathering ---- */

/* A failed start keeps its status. A failure of a connected group has interrupted this rank. */
static enum epa_status status_of(const struct conn_word *word)
{
    switch (word->status) {
    case EPA_ERR_CONFIG:
    case EPA_ERR_UNSUPPORTED:
    case EPA_ERR_NOMEM:
    case EPA_ERR_DIED:
        return (enum epa_status)word->status;
    default:
        return EPA_ERR_ABORTED;
    }
}

/* Takes the next message of a guest. Returns true if the message has data, which go to `to`. With `to`
 * NULL only failures are expected. */
static bool take_message(const struct star *star, struct guest *guest, char *to,
                         struct epa_error *err)
{
    struct conn_word word;
    struct conn_message m;

    if (!conn_take(&guest->conn, &m)) {
        if (guest->conn.forged)
            conn_close(&guest->conn, "message authentication failed");
        if (guest->conn.fd < 0)
            (void)epa_fail(err, EPA_ERR_DIED, "%s is gone: %s", guest->name, guest->conn.why);
        return false;
    }
    if ((m.type == CONN_ABORT || m.type == CONN_REFUSED) && conn_get_word(&m, &word))
        (void)epa_fail(err, status_of(&word), "%s", word.text);
    else if (m.type != CONN_STEP || m.bytes != star->data_bytes || to == NULL)
        (void)epa_fail(err, EPA_ERR_SYSTEM, "%s sent an unexpected message", guest->name);
    else
        memcpy(to, m.data, m.bytes);
    return err->status == EPA_OK;
}

/* Takes the data of a guest for the present gather, then failures that the guest sends while it waits
 * for other ranks. */
static void take_data(const struct star *star, struct guest *guest, struct epa_error *err)
{
    if (guest->arrived) {
        (void)take_message(star, guest, NULL, err);
    } else if (guest->is_early) {
        memcpy(guest->to, guest->early, star->data_bytes);
        guest->is_early = false;
        guest->arrived = true;
    } else {
        guest->arrived = take_message(star, guest, guest->to, err);
    }
}

/* Returns a guest whose data have not arrived, or to which data are still to send; NULL: none. */
static const struct guest *find_late(struct star *star, bool receive, struct epa_error *err)
{
    const struct guest *late = NULL;

    for (uint32_t i = 0; i < star->slots && err->status == EPA_OK; i++) {
        struct guest *g = &star->guest[i];

        if (g->state != JOINED)
            continue;
        if (receive)
            take_data(star, g, err);
        if (!receive && g->conn.fd < 0 && g->conn.out_from != g->conn.out_bytes)
            (void)epa_fail(err, EPA_ERR_DIED, "%s is gone: %s", g->name, g->conn.why);
        if (receive ? !g->arrived : !conn_all_sent(&g->conn))
            late = g;
    }
    return late;
}

/* Reads and writes all connections until the data of all guests have arrived, or, without `receive`,
 * until all data are sent. */
static enum epa_status turn_until_done(struct star *star, bool receive, const uint32_t *aborted,
                                       uint64_t limit_ns, struct epa_error *err)
{
    struct limit limit = {.limit_ns = limit_ns};

    for (;;) {
        struct epa_error found = {EPA_OK, ""};
        const struct guest *late = find_late(star, receive, &found);

        if (found.status != EPA_OK)
            return epa_fail(err, found.status, "%s", found.text);
        if (late == NULL)
            return EPA_OK;
        if (aborted != NULL && __atomic_load_n(aborted, __ATOMIC_RELAXED) != 0)
            return EPA_ERR_ABORTED;
        if (limit_expired(&limit))
            return epa_fail(epa_awaits(err, late->hello.rank), EPA_ERR_TIMEOUT,
                            "rank %u waited %.3g s for %s", star->params.rank,
                            (double)limit.waited_ns * 1e-9, late->name);
        poll_guests(star, POLL_MS);
        for (uint32_t i = 0; i < star->slots; i++)
            if (star->guest[i].state == JOINED)
                conn_turn(&star->guest[i].conn, star->poll[i].revents);
    }
}

static enum epa_status gather_at_rank_0(struct star *star, const void *mine, char *all,
                                        const uint32_t *aborted, struct epa_error *err)
{
    size_t bytes = star->params.frame_bytes;
    uint64_t limit_ns = star->params.timeout_ns;
    enum epa_status status;

    memcpy(all, mine, bytes);
    for (uint32_t i = 0; i < star->slots; i++) {
        star->guest[i].to = all + star->guest[i].hello.rank * bytes;
        star->guest[i].arrived = false;
    }
    status = turn_until_done(star, true, aborted, limit_ns, err);
    for (uint32_t i = 0; i < star->slots && status == EPA_OK; i++)
        if (star->guest[i].state == JOINED)
            conn_put(&star->guest[i].conn, CONN_STEP, all, star->params.ranks * bytes, NULL, 0);
    return status == EPA_OK ? turn_until_done(star, false, aborted, limit_ns, err) : status;
}

static enum epa_status gather_at_other(struct star *star, const void *mine, char *all,
                                       const uint32_t *aborted, struct epa_error *err)
{
    uint64_t limit_ns = star->params.timeout_ns;

    star->guest[0].to = all;
    star->guest[0].arrived = false;
    conn_put(&star->guest[0].conn, CONN_STEP, mine, star->params.frame_bytes, NULL, 0);
    return turn_until_done(star, true, aborted,
                           limit_ns < UINT64_MAX - linger_ns ? limit_ns + linger_ns : limit_ns,
                           err);
}

enum epa_status star_gather(struct star *star, const void *mine, void *all, const uint32_t *aborted,
                            struct epa_error *err)
{
    enum epa_status status;

    lock(star);
    status = star->params.rank == 0 ? gather_at_rank_0(star, mine, all, aborted, err)
                                    : gather_at_other(star, mine, all, aborted, err);
    unlock(star);
    return status;
}

/* ---- failures ---- */

/* Reads the connections without waiting. */
static void find_failure(struct star *star, struct epa_error *out)
{
    poll_guests(star, 0);
    for (uint32_t i = 0; i < star->slots && out->status == EPA_OK; i++) {
        struct guest *g = &star->guest[i];

        if (g->state != JOINED)
            continue;
        conn_turn(&g->conn, star->poll[i].revents);
        if (!g->is_early)
            g->is_early = take_message(star, g, g->early, out);
        if (g->is_early && out->status == EPA_OK)
            (void)take_message(star, g, NULL, out);
    }
}

/* Fills `watched` with the open connections and returns their number. */
static uint32_t list_open(struct star *star)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < star->slots; i++) {
        const struct guest *g = &star->guest[i];

        if (g->state == JOINED && g->conn.fd >= 0)
            star->watched[n++] = (struct pollfd){.fd = g->conn.fd, .events = conn_events(&g->conn)};
    }
    return n;
}

bool star_watch(struct star *star, struct epa_error *out)
{
    uint32_t n;

    do {
        bool reads = try_lock(star); /* false: the thread in star_gather() reads the connections */

        n = 0;
        if (reads) {
            find_failure(star, out);
            n = list_open(star);
            unlock(star);
        }
        if (out->status != EPA_OK)
            return true;
        star->watched[n] = (struct pollfd){.fd = star->wake, .events = POLLIN};
        (void)poll(star->watched, n + 1, reads ? -1 : POLL_MS);
    } while (star->watched[n].revents == 0);
    return false;
}

void star_end_watch(struct star *star)
{
    (void)eventfd_write(star->wake, 1);
}

void star_send_abort(struct star *star, const struct epa_error *failure)
{
    /* star_gather() releases the lock soon, since `aborted` is set. A signal handler may have
     * interrupted its thread; star_gather() then fails, and its caller sends the failure. */
    if (!lock_within(star, abort_lock_ns))
        return;
    tell_failure(star, failure);
    unlock(star);
}
