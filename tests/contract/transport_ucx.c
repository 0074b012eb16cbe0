/* Promises of the ucx transport beyond transport.h. Over tcp the CPU of the peer must run for each
 * put; a put must not wait for a peer that is outside the transport. A rank that leaves is named,
 * and the operations in flight are limited. */
#include <dlfcn.h>
#include <pthread.h>
#include <signal.h>
#include <sys/socket.h>
#include <unistd.h>
#include <ucp/api/ucp.h>

#include "../../plugins/transport/ucx/lanes.h"
#include "ranks.h"

#define OURS __attribute__((visibility("default")))

enum { MIB = 1 << 20, HEAP = 2 * MIB, SIGNALS = 4, MANY = 20000 };

static bool over_tcp(void)
{
    const char *tls = getenv("UCX_TLS");

    return tls != NULL && strcmp(tls, "tcp,self") == 0;
}

/* All ranks but rank 0 wait in the bootstrap, which does not progress transports. */
static void put_to_who_is_elsewhere(struct rank *r)
{
    for (uint64_t round = 1; round <= 20; round++) {
        if (r->me == 0) {
            for (uint32_t peer = 1; peer < r->size; peer++) {
                fill(r, 0, MIB, round);
                if (!put(r, MIB, r->t->heap, MIB, peer) ||
                    !raise_signal(r, 0, 1, EPA_SIGNAL_ADD, peer) ||
                    !works(r, r->t->ops->quiet(r->t)))
                    return;
            }
        }
        if (!claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap"))
            return;
        if (r->me != 0) {
            claim(r, r->t->ops->read(r->t, 0) == round, "the sum is not in place");
            is_filled(r, MIB, MIB, round, 0);
        }
        if (!claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap"))
            return;
    }
}

static struct epa_transport *open_another(struct rank *r)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa_transport *out = NULL;

    claim(r, open_transport(r, r->boot, HEAP, SIGNALS, &out, &err) == EPA_OK, "open: %s", err.text);
    return out;
}

/* Rank 1 closes the transport while others wait in it; no launcher reports this. */
static void leave_without_a_word(struct rank *r)
{
    struct epa_transport *t = open_another(r);
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    if (t == NULL)
        return;
    if (r->me != 1 && over_tcp()) { /* shared memory outlives its creator */
        status = r->me == 0 ? t->ops->wait(t, 2, EPA_GE, 1, DEFAULT_TIMEOUT_NS)
                            : t->ops->barrier(t, DEFAULT_TIMEOUT_NS);
        t->ops->explain(t, &err);
        claim(r, status == EPA_ERR_DIED, "status %d: %s", status, err.text);
        claim(r, strstr(err.text, "has lost rank 1, over ") != NULL, "the message is \"%s\"",
              err.text);
    }
    t->ops->close(t);
}

/* A rank that never calls progress() gets EPA_AGAIN in the end, unless all puts complete at
 * once. */
static void put_without_progress(struct rank *r)
{
    uint64_t taken = 0, again = 0;

    if (r->me == 0) {
        for (uint64_t i = 0; i < MANY && again == 0; i++) {
            enum epa_status status = epa_put(r->t, MIB, r->t->heap, 65536, 1);

            taken += status == EPA_OK;
            again += status == EPA_AGAIN;
            claim(r, status == EPA_OK || status == EPA_AGAIN, "status %d", status);
        }
        claim(r, again > 0 || taken == MANY, "%llu taken", (unsigned long long)taken);
        for (uint64_t i = 0; i < MANY; i++) {
            if (!raise_signal(r, 1, 1, EPA_SIGNAL_ADD, 1))
                return;
        }
    }
    if (r->me == 1)
        await(r, 1, MANY);
}

static void keep(void *arg, const char *key, const char *value)
{
    char *text = arg;
    size_t n = strlen(text);

    snprintf(text + n, 1024 - n, "%s=%s\n", key, value);
}

static void describe_links(struct rank *r)
{
    bool direct = (r->t->flags & EPA_TRANSPORT_LOAD_STORE) != 0;
    char text[1024] = "";

    r->t->ops->describe(r->t, keep, text);
    claim(r, strncmp(text, "ucx=1.", 6) == 0, "the message is \"%s\"", text);
    claim(r, !direct || strstr(text, "loads and stores=1 of 1 peers\n") != NULL,
          "the message is \"%s\"", text);
    claim(r, direct || strstr(text, "puts=1 of 1 peers by ") != NULL, "the message is \"%s\"",
          text);
    claim(r, !over_tcp() || strstr(text, " by tcp/") != NULL, "the message is \"%s\"", text);
}

/* ---- interposed in front of UCX: the fence of UCX 1.16 ----
 *
 * The machine may have UCX 1.13. The plugin calls these functions, since this program exports them.
 * The fence is a flush that waits without a limit, unless FENCE_MODE is weak. */

static struct {
    bool on, weak;
} later;

enum { STOPPED_MS = 300, A_LATER_UCX = 1 };

static void *below(const char *name)
{
    return dlsym(RTLD_NEXT, name);
}

OURS ucs_status_t ucp_config_modify(ucp_config_t *config, const char *name, const char *value)
{
    ucs_status_t (*call)(ucp_config_t *, const char *, const char *);

    *(void **)&call = below("ucp_config_modify");
    if (strcmp(name, "FENCE_MODE") == 0)
        later.weak = strcmp(value, "weak") == 0;
    return call(config, name, value);
}

OURS ucs_status_t ucp_worker_fence(ucp_worker_h worker)
{
    const ucp_request_param_t param = {.op_attr_mask = 0};
    uint64_t begun = epa_now_ns();
    ucs_status_t (*call)(ucp_worker_h), status = UCS_OK;
    ucs_status_ptr_t request;

    *(void **)&call = below("ucp_worker_fence");
    if (!later.on || later.weak)
        return call(worker);
    request = ucp_worker_flush_nbx(worker, &param);
    while (UCS_PTR_IS_PTR(request) && status == UCS_OK &&
           ucp_request_check_status(request) == UCS_INPROGRESS) {
        (void)ucp_worker_progress(worker);
        if (epa_now_ns() - begun > (uint64_t)STOPPED_MS * 20000000) /* lets the test end */
            status = UCS_ERR_TIMED_OUT;
    }
    if (UCS_PTR_IS_PTR(request))
        ucp_request_free(request);
    return status;
}

static enum epa_status put_and_quiet(struct epa_transport *t)
{
    enum epa_status status = epa_put(t, MIB / 2, t->heap, MIB / 4, 1);

    return status == EPA_OK ? t->ops->quiet(t) : status;
}

/* Only quiet() may wait. */
static enum epa_status put_signal_and_quiet(struct rank *r, struct epa_transport *t)
{
    enum epa_status status = t->ops->put_signal(t, MIB, t->heap, 64, 1, 1, EPA_SIGNAL_SET, 1);

    if (status == EPA_OK)
        status = t->ops->put_signal(t, MIB, t->heap, 64, 2, 1, EPA_SIGNAL_ADD, 1);
    if (status == EPA_OK)
        status = t->ops->fence(t, 1);
    return claim(r, status == EPA_OK, "status %d of put_signal or fence", status) ? t->ops->quiet(t)
                                                                                  : status;
}

/* Over tcp a peer must run to receive puts. A put to a stopped peer times out after the limit of
 * the experiment and names the peer. */
static void stop_while_others_put(struct rank *r)
{
    const uint64_t limit_ns = (uint64_t)STOPPED_MS * 1000000;
    uint64_t honest_ns = r->boot->timeout_ns, begun;
    struct epa_transport *t;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = EPA_OK;

    later.on = r->promise->value == A_LATER_UCX;
    if (!over_tcp() || strcmp(r->subject->launcher->plugin.name, "fork") != 0)
        return;
    r->boot->timeout_ns = limit_ns; /* as rank_main() does */
    t = open_another(r);
    r->boot->timeout_ns = honest_ns;
    if (t == NULL)
        return;
    if (r->me == 1) {
        __atomic_store_n(&r->shared->word[1], (uint64_t)getpid(), __ATOMIC_RELEASE);
        raise(SIGSTOP);
    } else {
        while (__atomic_load_n(&r->shared->word[1], __ATOMIC_ACQUIRE) == 0)
            usleep(1000);
        usleep(20000); /* until it has stopped: before, it may still answer */
        begun = epa_now_ns();
        for (int i = 0; i < 1000 && status == EPA_OK; i++)
            status = later.on ? put_signal_and_quiet(r, t) : put_and_quiet(t);
        t->ops->explain(t, &err);
        claim(r, status == EPA_ERR_TIMEOUT, "status %d: %s", status, err.text);
        claim(r, strstr(err.text, "for rank 1") != NULL, "the message is \"%s\"", err.text);
        claim(r, epa_now_ns() - begun < 10 * limit_ns, "it took %.3f s",
              (double)(epa_now_ns() - begun) * 1e-9);
        kill((pid_t)r->shared->word[1], SIGCONT);
    }
    t->ops->close(t);
}

static void *go_on_soon(void *arg)
{
    const uint64_t *pid = arg;

    usleep(50000);
    kill((pid_t)*pid, SIGCONT);
    return NULL;
}

/* Rank 1 leaves after an abort while rank 0 has not read its data. UCX would end rank 0 with
 * SIGABRT, since rank 0 cannot acknowledge them. */
static void leave_while_others_are_behind(struct rank *r)
{
    static const uint32_t aborted = 1;
    const uint32_t *honest = r->boot->aborted;
    uint64_t *pid = &r->shared->word[0];
    struct epa_transport *t;
    pthread_t thread;

    if (!over_tcp() || strcmp(r->subject->launcher->plugin.name, "fork") != 0)
        return;
    t = open_another(r);
    if (t == NULL)
        return;
    if (r->me == 0) {
        __atomic_store_n(pid, (uint64_t)getpid(), __ATOMIC_RELEASE);
        raise(SIGSTOP);
        usleep(100000); /* the progress thread of rank 0 reads the pending data */
    } else {
        while (__atomic_load_n(pid, __ATOMIC_ACQUIRE) == 0)
            usleep(1000);
        usleep(20000); /* until it has stopped: before, it may still acknowledge */
        for (int i = 0; i < 100; i++)
            if (t->ops->signal(t, 0, 1, EPA_SIGNAL_ADD, 0) == EPA_AGAIN)
                (void)t->ops->progress(t);
        r->boot->aborted = &aborted;
        claim(r, pthread_create(&thread, NULL, go_on_soon, pid) == 0, "no thread");
    }
    t->ops->close(t);
    if (r->me == 1)
        pthread_join(thread, NULL);
    r->boot->aborted = honest;
}

/* The peer claims another address than the one that UCX has mapped. */
static void move_away(struct rank *r, void *at)
{
    struct card *card = at;

    card->base += (uint64_t)1 << 40;
}

static void open_with_a_wrong_base(struct rank *r)
{
    bool direct = (r->t->flags & EPA_TRANSPORT_LOAD_STORE) != 0;
    struct epa_error err = {EPA_OK, ""};

    if (direct) { /* otherwise the peer checks the address */
        claim(r, open_with_lies(r, HEAP, sizeof(struct card), move_away, &err) != EPA_OK,
              "an address that is not mapped was used");
        claim(r, strstr(err.text, "is not shared with rank") != NULL, "%s", err.text);
    }
}

/* ---- interposed in front of the C library: messages of UCX to sockets ---- */

static struct {
    size_t n, longest;
} sent;

static ssize_t note_sent(ssize_t bytes)
{
    size_t seen = __atomic_load_n(&sent.longest, __ATOMIC_RELAXED);

    if (bytes <= 0)
        return bytes;
    __atomic_fetch_add(&sent.n, 1, __ATOMIC_RELAXED);
    while (seen < (size_t)bytes &&
           !__atomic_compare_exchange_n(&sent.longest, &seen, (size_t)bytes, true, __ATOMIC_RELAXED,
                                        __ATOMIC_RELAXED))
        ;
    return bytes;
}

OURS ssize_t send(int fd, const void *data, size_t bytes, int flags)
{
    ssize_t (*call)(int, const void *, size_t, int);

    *(void **)&call = below("send");
    return note_sent(call(fd, data, bytes, flags));
}

OURS ssize_t sendmsg(int fd, const struct msghdr *message, int flags)
{
    ssize_t (*call)(int, const struct msghdr *, int);

    *(void **)&call = below("sendmsg");
    return note_sent(call(fd, message, flags));
}

/* Counts the messages of this process for `puts` puts of rank 0. Returns false if puts do not use
 * TCP. */
static bool count_sent(struct rank *r, uint32_t puts, size_t bytes)
{
    struct epa_transport *t = over_tcp() ? open_another(r) : NULL;

    if (t == NULL)
        return false;
    claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap");
    memset(&sent, 0, sizeof(sent));
    claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap");
    for (uint32_t i = 1; i <= puts && r->me == 0; i++)
        claim(r, epa_put_signal(t, MIB, t->heap, bytes, 0, i, 1) == EPA_OK, "put_signal");
    claim(r, r->me == 0 || t->ops->wait(t, 0, EPA_GE, puts, DEFAULT_TIMEOUT_NS) == EPA_OK, "wait");
    claim(r, t->ops->quiet(t) == EPA_OK, "quiet");
    claim(r, r->boot->barrier(r->boot) == EPA_OK, "barrier of the bootstrap");
    t->ops->close(t);
    return true;
}

/* Each segment costs system calls. */
static void put_in_long_segments(struct rank *r)
{
    if (count_sent(r, 1, MIB) && r->me == 0)
        claim(r, sent.longest >= 64 << 10, "a put of 1 MiB used segments of %zu bytes",
              sent.longest);
}

/* There must not be an acknowledgement per message. */
static void put_and_signal_in_one(struct rank *r)
{
    const bool threads = strcmp(r->subject->launcher->plugin.name, "thread") == 0;
    const uint32_t puts = 32, most = puts + puts / 2;

    if (count_sent(r, puts, 4096))
        claim(r, sent.n <= (r->me == 0 || threads ? most : puts / 2), "rank %u sent %zu messages",
              r->me, sent.n);
}

static void put_in_segments_of_the_user(struct rank *r)
{
    if (strcmp(r->subject->launcher->plugin.name, "fork") != 0)
        return;
    setenv("UCX_TCP_TX_SEG_SIZE", "16k", 1);
    if (count_sent(r, 1, MIB) && r->me == 0)
        claim(r, sent.longest >= 16 << 10 && sent.longest < 32 << 10,
              "UCX_TCP_TX_SEG_SIZE is 16k, and a put of 1 MiB used segments of %zu", sent.longest);
    unsetenv("UCX_TCP_TX_SEG_SIZE");
}

/* ---- interposed in front of UCX: a message with an address outside the memory of the receiver
 * ---- */

/* offset to add; per thread, since threads are ranks or progress threads */
static _Thread_local uint64_t beyond;

OURS ucs_status_ptr_t ucp_am_send_nbx(ucp_ep_h ep, unsigned id, const void *header,
                                      size_t header_bytes, const void *data, size_t bytes,
                                      const ucp_request_param_t *param)
{
    ucs_status_ptr_t (*call)(ucp_ep_h, unsigned, const void *, size_t, const void *, size_t,
                             const ucp_request_param_t *);

    *(void **)&call = below("ucp_am_send_nbx");
    /* changes the header in place, since UCX may send it later; `at` is its first member */
    if (beyond != 0)
        *(uint64_t *)(uintptr_t)header += beyond;
    return call(ep, id, header, header_bytes, data, bytes, param);
}

static void put_beyond_memory(struct rank *r)
{
    static const uint64_t far[] = {1ull << 40, -(1ull << 40), HEAP};

    for (uint64_t i = 0; i < sizeof(far) / sizeof(*far) && over_tcp(); i++) {
        if (r->me == 0) {
            beyond = far[i];
            claim(r, epa_put_signal(r->t, 0, r->t->heap, 64, 0, 1, 1) == EPA_OK, "put_signal");
            beyond = 0;
            claim(r, epa_put_signal(r->t, 0, r->t->heap, 64, 1, i + 1, 1) == EPA_OK, "put_signal");
            claim(r, r->t->ops->quiet(r->t) == EPA_OK, "quiet");
        } else if (await(r, 1, i + 1)) {
            claim(r, r->t->ops->read(r->t, 0) == 0, "a put outside the memory was executed");
        }
    }
}

static const struct promise promises[] = {
    {"puts do not wait for a rank outside the transport", put_to_who_is_elsewhere, {3}},
    {"a rank that leaves is reported by name", leave_without_a_word, {3}},
    {"a stopped rank causes a timeout in time", stop_while_others_put, {2}},
    {"a later UCX does not wait in its fence", stop_while_others_put, {2}, .value = A_LATER_UCX},
    {"a rank that leaves early does not end slower ranks", leave_while_others_are_behind, {2}},
    {"thousands of puts in flight all arrive", put_without_progress, {2}},
    {"an address that is not mapped is refused", open_with_a_wrong_base, {2}},
    {"describe() names the links", describe_links, {2}},
    {"a long put takes few messages over TCP", put_in_long_segments, {2}},
    {"a put and its signal are one message over TCP", put_and_signal_in_one, {2}},
    {"a message to an address out of range has no effect", put_beyond_memory, {2}},
    {"the user's segment size is kept", put_in_segments_of_the_user, {2}},
};

PROMISES_MAIN(SIGNALS, HEAP)
