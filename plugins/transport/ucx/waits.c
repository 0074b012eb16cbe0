/* Waits and the helper thread. Each poll of a wait calls UCX's progress, which sends
 * started operations and receives messages. After a burst of polls the wait checks the clock,
 * `aborted` and lost peers. The helper thread at the end of the file makes progress while its rank
 * does not. */
#include "waits.h"

#include "messages.h"
#include "state.h"

#include <errno.h>
#include <signal.h>
#include <stdlib.h>
#include <string.h>

/* UCX may detect the loss of a rank before the launcher, whose message is more precise. */
static const uint64_t grace_ns = 1000000000u;

static const uint64_t find_ns = 50000000;

static const uint64_t idle_max_ns = 2000000; /* upper limit of the idle time that sets the sleep */

enum { AWAY_NS = 10000 }; /* a caller that only polls calls progress() more often than this */

/* Returns the failure that ends every wait: a rank has aborted, or a peer is lost. */
static enum epa_status check_ranks(struct ucx *u, uint64_t now)
{
    if (epa_aborted(u->boot))
        return EPA_ERR_ABORTED;
    /* Acquire: pairs with the release in links_lose(), which may run in the helper. */
    if (__atomic_load_n(&u->lost, __ATOMIC_ACQUIRE) != NULL && now >= u->lost_ns + grace_ns)
        return EPA_ERR_DIED;
    return EPA_OK;
}

enum epa_status wait_give_up(struct ucx *u, struct failure failure, enum epa_status status)
{
    failure.status = status;
    if (status == EPA_ERR_DIED) {
        failure.at = FAILED_LINK;
        failure.peer = ucx_number_of(u, u->lost);
        failure.code = u->lost->lost;
    }
    u->failure = failure;
    return status;
}

enum epa_status wait_step(struct ucx *u, struct epa_wait *wait, struct failure *failure)
{
    enum epa_status status = wait_turn(&u->wait, wait, failure);
    enum epa_status lost = check_ranks(u, wait->begun_ns + wait->waited_ns);

    return lost != EPA_OK ? lost : status;
}

/* Returns true if no operation of this rank is in flight: no peer depends on its progress. */
static bool is_at_rest(struct ucx *u)
{
    bool rests;

    ucx_lock(u);
    rests = u->started == 0 && u->outstanding == 0;
    ucx_unlock(u);
    return rests;
}

/* Reads under the lock if there is a helper thread: the helper releases the lock after it has
 * stored the data that it received. */
static uint64_t poll_word(struct ucx *u, const uint64_t *word)
{
    uint64_t seen;

    if (u->all_mapped) {
        /* Acquire: pairs with the release in ucx_raise() of a peer. */
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
    } else {
        ucx_lock(u);
        (void)ucx_progress(u);
        /* Acquire: as above, and with the fence of UCX between a payload and its signal. */
        seen = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        ucx_unlock(u);
    }
    return seen;
}

enum epa_status wait_word(struct ucx *u, const uint64_t *word, uint64_t timeout_ns,
                          struct failure failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};

    /* Checks the value first: over TCP, progress is a system call. Acquire: as in poll_word(). */
    if (wait_reached(__atomic_load_n(word, __ATOMIC_ACQUIRE), failure.compare, failure.want) &&
        is_at_rest(u))
        return EPA_OK;
    for (;;) {
        enum epa_status status;

        for (uint32_t i = 0; i < u->wait.burst; i++) {
            failure.seen = poll_word(u, word);
            if (wait_reached(failure.seen, failure.compare, failure.want))
                return epa_wait_done(&u->wait, &wait);
            epa_relax();
        }
        status = wait_step(u, &wait, &failure);
        if (status != EPA_OK)
            return wait_give_up(u, failure, status);
    }
}

/* Returns true if the request (NULL: none) has completed; with `all`, all counted requests, too. */
static bool is_done(struct ucx *u, ucs_status_ptr_t request, bool all)
{
    bool done;

    ucx_lock(u);
    (void)ucx_progress(u);
    done = !UCS_PTR_IS_PTR(request) || ucp_request_check_status(request) != UCS_INPROGRESS;
    done = done && (!all || u->outstanding == 0);
    ucx_unlock(u);
    return done;
}

static void free_request(struct ucx *u, ucs_status_ptr_t request)
{
    if (!UCS_PTR_IS_PTR(request))
        return;
    ucx_lock(u);
    ucp_request_free(request);
    ucx_unlock(u);
}

bool wait_request(struct ucx *u, ucs_status_ptr_t request, uint64_t timeout_ns)
{
    uint64_t begun = 0, waited = 0;
    bool done;

    while (!(done = is_done(u, request, false)) &&
           (waited = epa_waited_ns(&begun, waited, timeout_ns)) < timeout_ns &&
           !epa_aborted(u->boot))
        epa_backoff(waited, 0);
    free_request(u, request);
    return done;
}

enum epa_status wait_flush(struct ucx *u, ucs_status_ptr_t request, uint64_t timeout_ns,
                           struct failure failure)
{
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    enum epa_status status;

    for (;;) {
        for (uint32_t i = 0; i < u->wait.burst; i++) {
            if (is_done(u, request, true))
                return epa_wait_done(&u->wait, &wait);
        }
        status = wait_step(u, &wait, &failure);
        if (status != EPA_OK)
            return wait_give_up(u, failure, status);
    }
}

/* Finds the peer that does not respond after a flush of all peers has timed out: flushes each peer
 * separately, with a short time limit. */
static uint32_t find_silent(struct ucx *u)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    uint64_t begun = epa_now_ns();
    uint32_t silent = EPA_WAIT_NOBODY;

    for (uint32_t r = 0; r < u->base.size && silent == EPA_WAIT_NOBODY; r++) {
        ucs_status_ptr_t request = NULL;

        if (u->peer[r].map != NULL)
            continue;
        ucx_lock(u);
        request = ucp_ep_flush_nbx(u->peer[r].ep, &param);
        ucx_unlock(u);
        while (silent == EPA_WAIT_NOBODY && !is_done(u, request, false)) {
            if (epa_now_ns() - begun > find_ns)
                silent = r;
        }
        free_request(u, request);
    }
    return silent;
}

/* Waits for acknowledgements before a connection closes, after success and after failure: UCX
 * (1.13 to 1.22) aborts the process of a peer that cannot acknowledge a message of a closed
 * connection. The wait skips lost peers and ends for silent peers at the time limit. */
void wait_acknowledged(struct ucx *u, uint64_t timeout_ns)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    ucs_status_ptr_t *request = calloc(u->base.size, sizeof(*request));
    uint64_t begun = 0, waited = 0;
    bool done = request == NULL;

    for (uint32_t r = 0; r < u->base.size && request != NULL; r++) {
        if (u->peer[r].ep != NULL && u->peer[r].map == NULL && u->peer[r].lost == UCS_OK)
            request[r] = ucp_ep_flush_nbx(u->peer[r].ep, &param);
    }
    while (!done && waited < timeout_ns) {
        done = true;
        for (uint32_t r = 0; r < u->base.size; r++)
            done &= is_done(u, request[r], false);
        epa_backoff(waited, 0);
        waited = epa_waited_ns(&begun, waited, timeout_ns);
    }
    for (uint32_t r = 0; r < u->base.size && request != NULL; r++)
        free_request(u, request[r]);
    free(request);
}

static void note_flushed(struct ucx *u)
{
    u->unflushed = false;
    for (uint32_t r = 0; r < u->base.size; r++) {
        u->peer[r].put_since_flush = false;
        u->peer[r].added_since_flush = false;
        u->peer[r].message_since_flush = false;
    }
}

enum epa_status wait_flushed(struct ucx *u, uint64_t timeout_ns)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    struct failure failure = {.at = FAILED_QUIET, .peer = EPA_WAIT_NOBODY};
    ucs_status_ptr_t request;
    enum epa_status status;

    if (!u->unflushed)
        return EPA_OK;
    ucx_lock(u);
    ucx_flush_messages(u);
    request = ucp_worker_flush_nbx(u->worker, &param);
    ucx_unlock(u);
    if (UCS_PTR_IS_ERR(request)) {
        failure.code = UCS_PTR_STATUS(request);
        failure.what = "ucp_worker_flush_nbx";
        return wait_give_up(u, failure, EPA_ERR_SYSTEM);
    }
    status = wait_flush(u, request, timeout_ns, failure);
    free_request(u, request); /* UCX completes an unfinished request by itself */
    if (status == EPA_OK)
        note_flushed(u);
    else if (status == EPA_ERR_TIMEOUT)
        u->failure.peer = find_silent(u);
    return status;
}

enum epa_status wait_progress(struct epa_transport *t)
{
    struct ucx *u = ucx_of(t);
    enum epa_status status;

    /* If a caller polls repeatedly without success, its peers need the core. A caller that computes
     * or sleeps between two calls does not take the core from peers. */
    if (u->all_mapped || ucx_pump(u) || u->wait.spin_ns != 0) {
        u->idle_since_ns = 0;
    } else {
        uint64_t now = epa_now_ns(), idle;

        if (u->idle_since_ns == 0 || now - u->idle_until_ns > AWAY_NS)
            u->idle_since_ns = now;
        idle = now - u->idle_since_ns;
        if (idle > 0)
            epa_backoff(idle < idle_max_ns ? idle : idle_max_ns, 0);
        u->idle_until_ns = epa_now_ns();
    }
    status = check_ranks(u, __atomic_load_n(&u->lost, __ATOMIC_RELAXED) != NULL ? epa_now_ns() : 0);
    if (status != EPA_OK)
        (void)wait_give_up(u, (struct failure){.at = FAILED_PROGRESS}, status);
    return status;
}

/* ---- the helper ----
 *
 * A thread that makes progress while its rank does not.
 *
 * If UCX has no transport that writes into a peer's memory without its CPU (puts over tcp, and
 * additions over most transports), the peer executes each put as a message. A rank that computes
 * its experts, or waits in the bootstrap, would block the quiet() of all others, and two such ranks
 * would deadlock. After a rank has made no call for a tick, its helper thread executes messages, in
 * short turns under the lock. The helper costs one wake-up per tick. */

enum {
    TICK_NS = 500000,
    IDLE_TURNS = 3, /* turns without a message before the helper sleeps again */
};

/* Makes progress until the rank calls again or no messages arrive. */
static void stand_in(struct ucx *u, uint64_t calls)
{
    for (uint32_t idle = 0; idle < IDLE_TURNS;) {
        bool back;

        if (pthread_mutex_trylock(&u->lock) != 0)
            return;
        back = u->helper.calls != calls;
        idle = back || ucp_worker_progress(u->worker) == 0 ? idle + 1 : 0;
        pthread_mutex_unlock(&u->lock);
        if (back || __atomic_load_n(&u->helper.stop, __ATOMIC_RELAXED) != 0)
            return;
    }
}

static void *run(void *arg)
{
    struct ucx *u = arg;
    uint64_t calls = 0;

    while (__atomic_load_n(&u->helper.stop, __ATOMIC_RELAXED) == 0) {
        uint64_t seen;

        nanosleep(&(struct timespec){.tv_nsec = TICK_NS}, NULL);
        if (pthread_mutex_trylock(&u->lock) != 0)
            continue;
        seen = u->helper.calls;
        pthread_mutex_unlock(&u->lock);
        if (seen == calls)
            stand_in(u, calls);
        calls = seen;
    }
    return NULL;
}

enum epa_status helper_start(struct ucx *u, struct epa_error *err)
{
    sigset_t all, before;
    int error;

    u->helper.on = true;
    sigfillset(&all); /* the launcher handles signals */
    pthread_sigmask(SIG_BLOCK, &all, &before);
    error = pthread_create(&u->helper.thread, NULL, run, u);
    pthread_sigmask(SIG_SETMASK, &before, NULL);
    if (error == 0)
        return EPA_OK;
    u->helper.on = false;
    return epa_fail_errno(err, EPA_ERR_SYSTEM, error,
                          "ucx: cannot create the progress thread: %s; progress: calls needs none",
                          strerror(error));
}

void helper_stop(struct ucx *u)
{
    if (!u->helper.on)
        return;
    __atomic_store_n(&u->helper.stop, 1, __ATOMIC_RELAXED);
    pthread_join(u->helper.thread, NULL);
    u->helper.on = false;
}
