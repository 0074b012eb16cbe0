/* The hub's life: who comes, who is silent, when it is over. It never waits: its sockets
 * are polled by the agent that it is in. */
#include <arpa/inet.h>
#include <errno.h>
#include <netdb.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include "base/clock.h"
#include "launch/rendezvous_state.h"

static const uint64_t second = 1000000000;

static void forget(struct rendezvous *rendezvous, uint32_t slot)
{
    struct rendezvous_peer *peer = rendezvous->slot[slot];

    conn_finish(&peer->conn);
    free(peer);
    rendezvous->slot[slot] = NULL;
}

/* ---- arrivals ---- */

/* A free place; where strangers have all of them, that of the first who came. */
static struct rendezvous_peer *place_for(struct rendezvous *rendezvous)
{
    uint32_t oldest = UINT32_MAX;

    for (uint32_t i = 0; i < rendezvous->slots; i++) {
        const struct rendezvous_peer *peer = rendezvous->slot[i];

        if (peer == NULL) {
            rendezvous->slot[i] = calloc(1, sizeof(**rendezvous->slot));
            return rendezvous->slot[i];
        }
        if (peer->state != JOINED &&
            (oldest == UINT32_MAX || peer->since < rendezvous->slot[oldest]->since))
            oldest = i;
    }
    if (oldest == UINT32_MAX)
        return NULL;
    forget(rendezvous, oldest);
    rendezvous->slot[oldest] = calloc(1, sizeof(**rendezvous->slot));
    return rendezvous->slot[oldest];
}

static void add(struct rendezvous *rendezvous, int fd, const struct sockaddr *from, socklen_t bytes)
{
    struct rendezvous_peer *peer = place_for(rendezvous);

    if (peer == NULL) {
        close(fd);
        return;
    }
    conn_init(&peer->conn, fd, WIRE_GREET_MAX);
    peer->state = STRANGER;
    peer->since = clock_ns();
    if (from != NULL && getnameinfo(from, bytes, peer->address, sizeof(peer->address), NULL, 0,
                                    NI_NUMERICHOST) != 0)
        snprintf(peer->address, sizeof(peer->address), "unknown");
}

void rendezvous_adopt(struct rendezvous *rendezvous, int fd)
{
    add(rendezvous, fd, NULL, 0);
}

static void accept_one(struct rendezvous *rendezvous, int listener)
{
    struct sockaddr_storage from;
    socklen_t bytes = sizeof(from);
    int one = 1;
    int fd = accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    add(rendezvous, fd, (struct sockaddr *)&from, bytes);
}

static bool listens(const struct rendezvous *rendezvous)
{
    return rendezvous->joined < rendezvous->size && !rendezvous->reported;
}

/* ---- time ---- */

/* "2, 5 and 7" of those who have not come, or not returned */
static void list_missing(const struct rendezvous *rendezvous, char *out, size_t room)
{
    uint32_t missing = rendezvous->size - rendezvous->joined, n = 0;
    size_t used = 0;

    *out = 0;
    for (uint32_t r = 0; r < rendezvous->size && n < 8; r++) {
        if (rendezvous->of_rank[r] != NULL)
            continue;
        n++;
        used += (size_t)snprintf(out + used, room - used, "%s%u",
                                 n == 1         ? ""
                                 : n == missing ? " and "
                                                : ", ",
                                 r);
    }
    if (missing > n)
        snprintf(out + used, room - used, " and %u more", missing - n);
}

static void check_start(struct rendezvous *rendezvous, uint64_t now)
{
    char missing[120];

    if (rendezvous->started || rendezvous->failed_ns != 0 ||
        now - rendezvous->created_ns < rendezvous->params.start_ns)
        return;
    list_missing(rendezvous, missing, sizeof(missing));
    rendezvous_fail(rendezvous, EPA_ERR_TIMEOUT, UINT32_MAX,
                    "rank%s %s of %u did not connect within %.3g s (launcher.start)%s",
                    rendezvous->size - rendezvous->joined > 1 ? "s" : "", missing, rendezvous->size,
                    (double)rendezvous->params.start_ns * 1e-9, rendezvous->refused);
}

/* Ranks that wait for a piece longer than they may are told whose it is. */
static void check_gather(struct rendezvous *rendezvous, uint64_t now)
{
    struct rendezvous_gather *g = &rendezvous->gather;
    struct wire_word late = {.rank = 0};
    uint64_t limit = rendezvous->params.asked->timeout_ns;

    if (g->n == 0 || g->reported_late || limit == 0 || rendezvous->failed_ns != 0 ||
        now - g->first_ns < limit)
        return;
    while (late.rank + 1 < rendezvous->size && rendezvous->of_rank[late.rank]->gathered > g->number)
        late.rank++;
    for (uint32_t r = 0; r < rendezvous->size; r++)
        if (rendezvous->of_rank[r]->gathered > g->number)
            conn_put_word(&rendezvous->of_rank[r]->conn, WIRE_LATE, &late);
    g->reported_late = true;
}

static void check_last(struct rendezvous *rendezvous, uint64_t now)
{
    if (rendezvous->last_end_ns == 0 || now < rendezvous->last_end_ns || rendezvous->failed_ns != 0)
        return;
    for (uint32_t r = 0; r < rendezvous->size; r++) {
        if (rendezvous->of_rank[r]->returned)
            continue;
        rendezvous_fail(rendezvous, EPA_ERR_TIMEOUT, UINT32_MAX,
                        "rank %u did not return within %.3g s of the first that did", r,
                        (double)rendezvous->params.asked->timeout_ns * 1e-9);
        return;
    }
    rendezvous->last_end_ns = 0;
}

static void check_silence(struct rendezvous *rendezvous, struct rendezvous_peer *peer, uint64_t now)
{
    uint64_t limit = rendezvous->params.heartbeat_ns;
    char how[80];

    if (peer->conn.fd < 0) {
        rendezvous_lose(rendezvous, peer, "");
    } else if (conn_is_silent(&peer->conn, now, rendezvous->looked_ns, limit)) {
        snprintf(how, sizeof(how), "nothing was heard from it for %.3g s (launcher.heartbeat)",
                 (double)limit * 1e-9);
        rendezvous_lose(rendezvous, peer, how);
    } else {
        conn_keep_alive(&peer->conn, now, limit / 5);
    }
}

static void check_peers(struct rendezvous *rendezvous, uint64_t now)
{
    for (uint32_t i = 0; i < rendezvous->slots; i++) {
        struct rendezvous_peer *peer = rendezvous->slot[i];

        if (peer == NULL)
            continue;
        if (peer->state != JOINED && (peer->conn.fd < 0 || now - peer->since > STRANGER_S * second))
            forget(rendezvous, i);
        else if (peer->state == JOINED && !rendezvous->reported && !peer->failed_rank)
            check_silence(rendezvous, peer, now);
    }
}

/* Once nothing is to be waited for, all hear how it ended. */
static void check_end(struct rendezvous *rendezvous, uint64_t now)
{
    bool early = !rendezvous->started &&
                 rendezvous->joined + rendezvous->turned_away < rendezvous->size &&
                 rendezvous->verdict.status != EPA_ERR_TIMEOUT;

    if (rendezvous->reported || (rendezvous->failed_ns == 0 && !rendezvous->started) ||
        (early && now - rendezvous->failed_ns < LINGER_S * second))
        return;
    for (uint32_t r = 0; r < rendezvous->size; r++)
        if (rendezvous->of_rank[r] != NULL && !rendezvous->of_rank[r]->done)
            return;
    for (uint32_t r = 0; r < rendezvous->size; r++)
        if (rendezvous->of_rank[r] != NULL)
            conn_put_word(&rendezvous->of_rank[r]->conn, WIRE_VERDICT, &rendezvous->verdict);
    rendezvous->reported = true;
    rendezvous->reported_ns = now;
}

bool rendezvous_over(const struct rendezvous *rendezvous)
{
    if (!rendezvous->reported)
        return false;
    if (clock_ns() - rendezvous->reported_ns > rendezvous->params.heartbeat_ns)
        return true;
    for (uint32_t i = 0; i < rendezvous->slots; i++)
        if (rendezvous->slot[i] != NULL && !conn_all_heard(&rendezvous->slot[i]->conn))
            return false;
    return true;
}

uint64_t rendezvous_due_ns(const struct rendezvous *rendezvous)
{
    uint64_t now = clock_ns(), often = rendezvous->params.heartbeat_ns / 20;

    return now + (rendezvous->reported ? 1000000 : often < 100000000 ? often : 100000000);
}

/* ---- the loop ---- */

uint32_t rendezvous_poll_room(const struct rendezvous *rendezvous)
{
    return rendezvous->params.listeners + rendezvous->slots;
}

uint32_t rendezvous_polls(const struct rendezvous *rendezvous, struct pollfd *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < rendezvous->params.listeners; i++)
        out[n++] = (struct pollfd){.fd = listens(rendezvous) ? rendezvous->params.listener[i] : -1,
                                   .events = POLLIN};
    for (uint32_t i = 0; i < rendezvous->slots; i++)
        if (rendezvous->slot[i] != NULL)
            out[n++] = (struct pollfd){.fd = rendezvous->slot[i]->conn.fd,
                                       .events = conn_events(&rendezvous->slot[i]->conn)};
    return n;
}

void rendezvous_turn(struct rendezvous *rendezvous, const struct pollfd *fds, uint32_t n)
{
    uint32_t at = rendezvous->params.listeners;
    uint64_t now;

    for (uint32_t i = 0; i < rendezvous->slots && at < n; i++) {
        struct rendezvous_peer *peer = rendezvous->slot[i];
        struct conn_message m;

        if (peer == NULL)
            continue;
        conn_turn(&peer->conn, fds[at++].revents);
        while (peer->state != REFUSED && conn_take(&peer->conn, &m))
            rendezvous_hear(rendezvous, peer, &m);
        if (peer->state == REFUSED) /* read, or closing would take back what it was told */
            conn_discard(&peer->conn);
    }
    for (uint32_t i = 0; i < rendezvous->params.listeners && i < n; i++)
        if (fds[i].revents != 0)
            accept_one(rendezvous, rendezvous->params.listener[i]);
    now = clock_ns();
    check_peers(rendezvous, now);
    check_start(rendezvous, now);
    check_gather(rendezvous, now);
    check_last(rendezvous, now);
    check_end(rendezvous, now);
    rendezvous->looked_ns = now;
    for (uint32_t i = 0; i < rendezvous->slots; i++) /* what has been queued since */
        if (rendezvous->slot[i] != NULL)
            conn_turn(&rendezvous->slot[i]->conn, 0);
}

/* ---- life ---- */

void rendezvous_destroy(struct rendezvous *rendezvous)
{
    if (rendezvous == NULL)
        return;
    for (uint32_t i = 0; i < rendezvous->slots && rendezvous->slot != NULL; i++)
        if (rendezvous->slot[i] != NULL)
            forget(rendezvous, i);
    free(rendezvous->slot);
    free(rendezvous->of_rank);
    free(rendezvous->gather.data[0]);
    free(rendezvous->gather.data[1]);
    free(rendezvous);
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
    struct rendezvous *rendezvous = calloc(1, sizeof(*rendezvous));
    enum epa_status status;

    if (rendezvous == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the hub");
    rendezvous->params = *params;
    rendezvous->size = params->asked->ranks;
    rendezvous->slots = rendezvous->size + STRANGERS;
    rendezvous->created_ns = rendezvous->looked_ns = clock_ns();
    rendezvous->verdict.rank = UINT32_MAX;
    rendezvous->slot = calloc(rendezvous->slots, sizeof(*rendezvous->slot));
    rendezvous->of_rank = calloc(rendezvous->size, sizeof(*rendezvous->of_rank));
    status = allow_files(rendezvous->slots, err);
    if (rendezvous->slot == NULL || rendezvous->of_rank == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for the connections of %u ranks",
                          rendezvous->size);
    if (status != EPA_OK) {
        rendezvous_destroy(rendezvous);
        return status;
    }
    *out = rendezvous;
    return EPA_OK;
}
