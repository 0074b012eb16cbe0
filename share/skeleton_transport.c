/* Skeleton of a transport: shared memory between the ranks of one host. transport.h defines the
 * contract of each function; the folder `contract` beside this file describes its tests.
 *
 * All ranks map the same memory: the words of each rank, then the heap of each rank. Word 0 of a
 * rank counts the barriers that it has entered, word 1 + i is its signal i. A put is a copy. A
 * signal is a release store, which a wait reads with acquire. */
#define _GNU_SOURCE /* for memfd_create() */
#include <epa2a/transport.h>

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

enum {
    LINE = 8, /* 64-bit words per cache line: ranks poll different lines */
    PATH = 48,
    FLAGS = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE | EPA_TRANSPORT_SIGNAL_ADD |
            EPA_TRANSPORT_ANY_SOURCE
};

/* ---- 1. the state of a rank ---- */

struct mine {
    struct epa_transport base; /* first member: a pointer to it also points to the whole struct */
    struct epa_bootstrap *boot;
    struct epa_wait_config wait;
    uint64_t *words, bytes, signals; /* words: address of the mapping */
    struct epa_error failure;        /* last failure */
    char *peer_heap[];               /* [size] */
};

static uint64_t *word_of(const struct epa_transport *t, uint32_t rank, uint32_t i)
{
    const struct mine *m = (const struct mine *)t;

    return &m->words[(rank * (1 + m->signals) + i) * LINE];
}

/* ---- 2. the data path ---- */

static enum epa_status put(struct epa_transport *t, uint64_t dst, const void *src, size_t bytes,
                           uint32_t peer)
{
    if (bytes != 0) /* src may be NULL otherwise */
        memcpy(t->peer_heap[peer] + dst, src, bytes);
    return EPA_OK;
}

/* Release: a rank that reads the signal sees all earlier stores of this rank. */
static enum epa_status raise_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    uint64_t *word = word_of(t, peer, 1 + signal);

    if (op == EPA_SIGNAL_ADD)
        __atomic_fetch_add(word, value, __ATOMIC_RELEASE);
    else
        __atomic_store_n(word, value, __ATOMIC_RELEASE);
    return EPA_OK;
}

static enum epa_status put_signal(struct epa_transport *t, uint64_t dst, const void *src,
                                  size_t bytes, uint32_t signal, uint64_t value,
                                  enum epa_signal_op op, uint32_t peer)
{
    (void)put(t, dst, src, bytes, peer);
    return raise_signal(t, signal, value, op, peer);
}

static enum epa_status fence(struct epa_transport *t, uint32_t peer)
{
    (void)t, (void)peer;
    return EPA_OK; /* each signal is a release already */
}

static enum epa_status quiet(struct epa_transport *t)
{
    (void)t;
    __atomic_thread_fence(__ATOMIC_SEQ_CST); /* makes earlier stores visible to other ranks */
    return EPA_OK;
}

static uint64_t read_signal(struct epa_transport *t, uint32_t signal)
{
    return __atomic_load_n(word_of(t, t->rank, 1 + signal), __ATOMIC_ACQUIRE);
}

/* The wait loop of epa2a/wait.h polls in bursts. Between bursts, epa_wait_turn() reads the clock
 * and `aborted`, reports a long wait (shown by `epa2a status`), and yields the core. */
static enum epa_status wait_for(struct epa_transport *t, struct epa_wait_state w,
                                enum epa_compare compare, uint64_t timeout_ns)
{
    struct mine *m = (struct mine *)t;
    bool barrier = w.kind == EPA_WAIT_BARRIER;
    const uint64_t *at = barrier ? word_of(t, w.peer, 0) : word_of(t, t->rank, 1 + w.number);
    struct epa_wait wait = {.timeout_ns = timeout_ns};
    enum epa_status status = EPA_OK;
    char what[96];

    while (status == EPA_OK) {
        for (uint32_t i = 0; i < m->wait.burst; i++) {
            w.seen = __atomic_load_n(at, __ATOMIC_ACQUIRE);
            if (compare == EPA_EQ ? w.seen == w.wanted : w.seen >= w.wanted)
                return epa_wait_done(&m->wait, &wait);
            epa_relax();
        }
        status = epa_wait_turn(&m->wait, &wait, &w);
    }
    m->failure = (struct epa_error){.status = EPA_OK}; /* clears the failure of an earlier wait */
    snprintf(what, sizeof(what), "at barrier %u for rank %u", (unsigned)w.wanted, w.peer);
    if (!barrier)
        snprintf(what, sizeof(what), "(signal %u is %llu, wants %s%llu)", w.number,
                 (unsigned long long)w.seen, compare == EPA_EQ ? "just " : "",
                 (unsigned long long)w.wanted);
    return epa_fail(epa_awaits(&m->failure, w.peer), status, "%s after %.3f s %s%s",
                    status == EPA_ERR_TIMEOUT ? "timeout" : "end of the wait",
                    (double)w.waited_ns * 1e-9, what,
                    status == EPA_ERR_ABORTED ? ", when another rank had failed" : "");
}

static enum epa_status wait_signal(struct epa_transport *t, uint32_t signal,
                                   enum epa_compare compare, uint64_t value, uint64_t timeout_ns)
{
    return wait_for(
        t, (struct epa_wait_state){EPA_WAIT_SIGNAL, EPA_WAIT_NOBODY, signal, 0, value, 0, NULL},
        compare, timeout_ns);
}

static enum epa_status progress(struct epa_transport *t) /* operations are never delayed */
{
    return epa_aborted(((struct mine *)t)->boot) ? EPA_ERR_ABORTED : EPA_OK;
}

/* Each rank counts the barriers that it enters, and waits for the counts of the others. */
static enum epa_status pass_barrier(struct epa_transport *t, uint64_t timeout_ns)
{
    uint64_t count = __atomic_add_fetch(word_of(t, t->rank, 0), 1, __ATOMIC_RELEASE);
    enum epa_status status = EPA_OK;

    for (uint32_t i = 1; i < t->size && status == EPA_OK; i++) {
        uint32_t peer = (t->rank + i) % t->size;
        struct epa_wait_state w = {EPA_WAIT_BARRIER, peer, EPA_WAIT_NOBODY, 0, count, 0, 0};

        status = wait_for(t, w, EPA_GE, timeout_ns);
    }
    return status;
}

static enum epa_status reset_signals(struct epa_transport *t)
{
    struct mine *m = (struct mine *)t;
    enum epa_status status = m->boot->barrier(m->boot); /* no rank signals any more */

    for (uint32_t i = 0; i < m->signals && status == EPA_OK; i++)
        __atomic_store_n(word_of(t, t->rank, 1 + i), 0, __ATOMIC_RELAXED);
    return status == EPA_OK ? m->boot->barrier(m->boot) : status; /* no rank signals yet */
}

/* Explains the last failure, since the functions above return only a status. */
static void explain(struct epa_transport *t, struct epa_error *err)
{
    struct mine *m = (struct mine *)t;

    if (m->failure.status != EPA_OK)
        (void)epa_fail_copy(err, m->failure.status, &m->failure);
    m->boot->explain(m->boot, err);
    (void)epa_fail(err, EPA_ERR_ABORTED, "mine: rank %u: another rank had failed", t->rank);
}

static void close_all(struct epa_transport *t)
{
    struct mine *m = (struct mine *)t;

    if (m->words != MAP_FAILED)
        munmap(m->words, m->bytes);
    free(m);
}

/* In the order of the struct; device_peak and describe are for other kinds of transports. */
static const struct epa_transport_ops ops = {
    put,      put_signal,   raise_signal,  fence, quiet, read_signal, wait_signal,
    progress, pass_barrier, reset_signals, NULL,  NULL,  explain,     close_all};

/* ---- 3. set-up: rank 0 creates memory without a name, which the others open through /proc ---- */

static enum epa_status share_memory(struct mine *m, char *paths, struct epa_error *err)
{
    int made = m->base.rank == 0 ? memfd_create("epa2a-mine", MFD_CLOEXEC) : -1, fd;
    char own[PATH] = "";
    enum epa_status status;

    /* Allocates all pages now: missing memory is an error here instead of SIGBUS later. */
    if (made >= 0 && posix_fallocate(made, 0, (off_t)m->bytes) == 0)
        snprintf(own, PATH, "/proc/%d/fd/%d", (int)getpid(), made);
    status = m->boot->allgather(m->boot, own, PATH, paths);
    fd = open(paths, O_RDWR | O_CLOEXEC); /* the file of rank 0 */
    m->words = mmap(NULL, m->bytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (status == EPA_OK && m->words == MAP_FAILED)
        status = epa_fail(err, EPA_ERR_SYSTEM, "mine: no shared memory of %llu bytes",
                          (unsigned long long)m->bytes);
    if (status == EPA_OK)
        status = m->boot->barrier(m->boot); /* all ranks have mapped it */
    (void)close(fd), (void)close(made);
    return status;
}

static enum epa_status open_all(const struct epa_transport_params *p, struct epa_transport **out,
                                struct epa_error *err)
{
    const struct epa_world *world = &p->boot->world;
    uint64_t words = world->size * (1 + (uint64_t)p->signals) * LINE * sizeof(uint64_t);
    uint64_t first = (words | 4095) + 1, heap = (p->heap_bytes | 4095) + 1;
    struct mine *m = calloc(1, sizeof(*m) + world->size * (sizeof(char *) + PATH));
    enum epa_status status;

    if (m == NULL || world->local_size != world->size) {
        free(m);
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "mine: needs all ranks on one host");
    }
    m->base = (struct epa_transport){&ops,          FLAGS,        world->rank, world->size, NULL,
                                     p->heap_bytes, m->peer_heap, NULL,        NULL};
    m->boot = p->boot;
    m->signals = p->signals;
    m->wait = (struct epa_wait_config){64, 20000, p->boot->aborted, p->boot->observer};
    m->bytes = first + world->size * heap;
    status = share_memory(m, (char *)(m->peer_heap + world->size), err);
    if (status != EPA_OK) {
        explain(&m->base, err);
        close_all(&m->base);
        return status;
    }
    for (uint32_t r = 0; r < world->size; r++)
        m->peer_heap[r] = (char *)m->words + first + r * heap;
    m->base.heap = m->peer_heap[world->rank];
    *out = &m->base;
    return EPA_OK;
}

/* ---- 4. the descriptor ---- */

EPA_PLUGIN_EXPORT
const struct epa_transport_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_TRANSPORT, struct epa_transport_plugin), .name = "mine",
               .summary = "shared memory, in as few lines as it takes"},
    .flags = FLAGS,
    .memory = EPA_MEMORY_HOST,
    .open = open_all,
};
