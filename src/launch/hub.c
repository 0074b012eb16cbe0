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
#include "launch/hub_state.h"

static const uint64_t second = 1000000000;

static void forget(struct hub *hub, uint32_t slot)
{
    struct hub_peer *peer = hub->slot[slot];

    conn_finish(&peer->conn);
    free(peer);
    hub->slot[slot] = NULL;
}

/* ---- arrivals ---- */

/* A free place; where strangers have all of them, that of the first who came. */
static struct hub_peer *place_for(struct hub *hub)
{
    uint32_t oldest = UINT32_MAX;

    for (uint32_t i = 0; i < hub->slots; i++) {
        const struct hub_peer *peer = hub->slot[i];

        if (peer == NULL) {
            hub->slot[i] = calloc(1, sizeof(**hub->slot));
            return hub->slot[i];
        }
        if (peer->state != JOINED &&
            (oldest == UINT32_MAX || peer->since < hub->slot[oldest]->since))
            oldest = i;
    }
    if (oldest == UINT32_MAX)
        return NULL;
    forget(hub, oldest);
    hub->slot[oldest] = calloc(1, sizeof(**hub->slot));
    return hub->slot[oldest];
}

static void add(struct hub *hub, int fd, const struct sockaddr *from, socklen_t bytes)
{
    struct hub_peer *peer = place_for(hub);

    if (peer == NULL) {
        close(fd);
        return;
    }
    conn_init(&peer->conn, fd, WIRE_GREET_MAX);
    peer->state = STRANGER;
    peer->since = clock_ns();
    if (from != NULL && getnameinfo(from, bytes, peer->address, sizeof(peer->address), NULL,
                                    0, NI_NUMERICHOST) != 0)
        snprintf(peer->address, sizeof(peer->address), "unknown");
}

void hub_adopt(struct hub *hub, int fd)
{
    add(hub, fd, NULL, 0);
}

static void accept_one(struct hub *hub, int listener)
{
    struct sockaddr_storage from;
    socklen_t bytes = sizeof(from);
    int one = 1;
    int fd =
        accept4(listener, (struct sockaddr *)&from, &bytes, SOCK_CLOEXEC | SOCK_NONBLOCK);

    if (fd < 0)
        return;
    setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof(one));
    add(hub, fd, (struct sockaddr *)&from, bytes);
}

static bool listens(const struct hub *hub)
{
    return hub->joined < hub->size && !hub->told;
}

/* ---- time ---- */

/* "2, 5 and 7" of those who have not come, or not returned */
static void list_missing(const struct hub *hub, char *out, size_t room)
{
    uint32_t missing = hub->size - hub->joined, n = 0;
    size_t used = 0;

    *out = 0;
    for (uint32_t r = 0; r < hub->size && n < 8; r++) {
        if (hub->of_rank[r] != NULL)
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

static void check_start(struct hub *hub, uint64_t now)
{
    char missing[120];

    if (hub->started || hub->failed_ns != 0 || now - hub->created_ns < hub->params.start_ns)
        return;
    list_missing(hub, missing, sizeof(missing));
    hub_fail(hub, EPA_ERR_TIMEOUT, UINT32_MAX,
             "rank%s %s of %u did not come within %.3g s%s",
             hub->size - hub->joined > 1 ? "s" : "", missing, hub->size,
             (double)hub->params.start_ns * 1e-9, hub->refused);
}

/* Ranks that wait for a piece longer than they may are told whose it is. */
static void check_gather(struct hub *hub, uint64_t now)
{
    struct hub_gather *g = &hub->gather;
    struct wire_word late = {.rank = 0};
    uint64_t limit = hub->params.asked->timeout_ns;

    if (g->n == 0 || g->told_late || limit == 0 || hub->failed_ns != 0 ||
        now - g->first_ns < limit)
        return;
    while (late.rank + 1 < hub->size && hub->of_rank[late.rank]->gathered > g->number)
        late.rank++;
    for (uint32_t r = 0; r < hub->size; r++)
        if (hub->of_rank[r]->gathered > g->number)
            conn_put_word(&hub->of_rank[r]->conn, WIRE_LATE, &late);
    g->told_late = true;
}

static void check_last(struct hub *hub, uint64_t now)
{
    if (hub->last_end_ns == 0 || now < hub->last_end_ns || hub->failed_ns != 0)
        return;
    for (uint32_t r = 0; r < hub->size; r++) {
        if (hub->of_rank[r]->returned)
            continue;
        hub_fail(hub, EPA_ERR_TIMEOUT, UINT32_MAX,
                 "rank %u did not return within %.3g s of the first that did", r,
                 (double)hub->params.asked->timeout_ns * 1e-9);
        return;
    }
    hub->last_end_ns = 0;
}

static void check_silence(struct hub *hub, struct hub_peer *peer, uint64_t now)
{
    uint64_t limit = hub->params.heartbeat_ns;
    char how[80];

    if (peer->conn.fd < 0) {
        hub_lose(hub, peer, "");
    } else if (conn_is_silent(&peer->conn, now, hub->looked_ns, limit)) {
        snprintf(how, sizeof(how), "nothing was heard from it for %.3g s",
                 (double)limit * 1e-9);
        hub_lose(hub, peer, how);
    } else {
        conn_keep_alive(&peer->conn, now, limit / 5);
    }
}

static void check_peers(struct hub *hub, uint64_t now)
{
    for (uint32_t i = 0; i < hub->slots; i++) {
        struct hub_peer *peer = hub->slot[i];

        if (peer == NULL)
            continue;
        if (peer->state != JOINED &&
            (peer->conn.fd < 0 || now - peer->since > STRANGER_S * second))
            forget(hub, i);
        else if (peer->state == JOINED && !hub->told && !peer->lost)
            check_silence(hub, peer, now);
    }
}

/* Once nothing is to be waited for, all hear how it ended. */
static void check_end(struct hub *hub, uint64_t now)
{
    bool early = !hub->started && hub->joined + hub->turned_away < hub->size &&
                 hub->verdict.status != EPA_ERR_TIMEOUT;

    if (hub->told || (hub->failed_ns == 0 && !hub->started) ||
        (early && now - hub->failed_ns < LINGER_S * second))
        return;
    for (uint32_t r = 0; r < hub->size; r++)
        if (hub->of_rank[r] != NULL && !hub->of_rank[r]->done)
            return;
    for (uint32_t r = 0; r < hub->size; r++)
        if (hub->of_rank[r] != NULL)
            conn_put_word(&hub->of_rank[r]->conn, WIRE_VERDICT, &hub->verdict);
    hub->told = true;
    hub->told_ns = now;
}

bool hub_over(const struct hub *hub)
{
    if (!hub->told)
        return false;
    if (clock_ns() - hub->told_ns > hub->params.heartbeat_ns)
        return true;
    for (uint32_t i = 0; i < hub->slots; i++)
        if (hub->slot[i] != NULL && !conn_all_heard(&hub->slot[i]->conn))
            return false;
    return true;
}

uint64_t hub_due_ns(const struct hub *hub)
{
    uint64_t now = clock_ns(), often = hub->params.heartbeat_ns / 20;

    return now + (hub->told ? 1000000 : often < 100000000 ? often : 100000000);
}

/* ---- the loop ---- */

uint32_t hub_poll_room(const struct hub *hub)
{
    return hub->params.listeners + hub->slots;
}

uint32_t hub_polls(const struct hub *hub, struct pollfd *out)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < hub->params.listeners; i++)
        out[n++] = (struct pollfd){.fd = listens(hub) ? hub->params.listener[i] : -1,
                                   .events = POLLIN};
    for (uint32_t i = 0; i < hub->slots; i++)
        if (hub->slot[i] != NULL)
            out[n++] = (struct pollfd){.fd = hub->slot[i]->conn.fd,
                                       .events = conn_events(&hub->slot[i]->conn)};
    return n;
}

void hub_turn(struct hub *hub, const struct pollfd *fds, uint32_t n)
{
    uint32_t at = hub->params.listeners;
    uint64_t now;

    for (uint32_t i = 0; i < hub->slots && at < n; i++) {
        struct hub_peer *peer = hub->slot[i];
        struct conn_message m;

        if (peer == NULL)
            continue;
        conn_turn(&peer->conn, fds[at++].revents);
        while (peer->state != REFUSED && conn_take(&peer->conn, &m))
            hub_hear(hub, peer, &m);
        if (peer->state == REFUSED) /* read, or closing would take back what it was told */
            conn_discard(&peer->conn);
    }
    for (uint32_t i = 0; i < hub->params.listeners && i < n; i++)
        if (fds[i].revents != 0)
            accept_one(hub, hub->params.listener[i]);
    now = clock_ns();
    check_peers(hub, now);
    check_start(hub, now);
    check_gather(hub, now);
    check_last(hub, now);
    check_end(hub, now);
    hub->looked_ns = now;
    for (uint32_t i = 0; i < hub->slots; i++) /* what has been queued since */
        if (hub->slot[i] != NULL)
            conn_turn(&hub->slot[i]->conn, 0);
}

/* ---- life ---- */

void hub_destroy(struct hub *hub)
{
    if (hub == NULL)
        return;
    for (uint32_t i = 0; i < hub->slots && hub->slot != NULL; i++)
        if (hub->slot[i] != NULL)
            forget(hub, i);
    free(hub->slot);
    free(hub->of_rank);
    free(hub->gather.data[0]);
    free(hub->gather.data[1]);
    free(hub);
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

enum epa_status hub_create(const struct hub_params *params, struct hub **out,
                           struct epa_error *err)
{
    struct hub *hub = calloc(1, sizeof(*hub));
    enum epa_status status;

    if (hub == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the hub");
    hub->params = *params;
    hub->size = params->asked->ranks;
    hub->slots = hub->size + STRANGERS;
    hub->created_ns = hub->looked_ns = clock_ns();
    hub->verdict.rank = UINT32_MAX;
    hub->slot = calloc(hub->slots, sizeof(*hub->slot));
    hub->of_rank = calloc(hub->size, sizeof(*hub->of_rank));
    status = allow_files(hub->slots, err);
    if (hub->slot == NULL || hub->of_rank == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for the connections of %u ranks",
                          hub->size);
    if (status != EPA_OK) {
        hub_destroy(hub);
        return status;
    }
    *out = hub;
    return EPA_OK;
}
