/* Tests of the nvlink proxy without a GPU. Threads replace kernels. Copies to and from simulated
 * GPU memory are delayed and reordered as far as proxy.h allows. Each rank is a node of its own;
 * every second rank writes directly to the staging of its peers if the transport has mapped it.
 * Promises with value DIRECT run without staging if the transport accepts memory that it did not
 * allocate. */
#include <pthread.h>

#include "../../plugins/transport/nvlink/proxy.h"
#include "ranks.h"

enum {
    SLOTS = 8, /* slots of each ring; few, so that rings are always full */
    WRITERS = 2,
    PART = 600 << 10, /* bytes of the heap for one writer of one rank */
    HEAP = RANKS_MOST * WRITERS * PART,
    SIGNALS = 64,
    HELD = 24, /* capacity of a lane: operations and marks */
    PAGE = 4096,
    REGION = PAGE + HEAP + WRITERS * PART, /* signals, heap, source buffers */
    DIRECT = 100,
};

enum kind { COPY, SET, ADD, MARK };

struct operation {
    enum kind kind;
    bool done;
    char *to;
    const char *from;
    size_t bytes, to_stride, from_stride;
    uint32_t rows;
    uint64_t value;
};

struct held_copies {
    struct proxy_copies base; /* first member */
    struct operation held[PROXY_LANES][HELD];
    uint64_t first[PROXY_LANES], next[PROXY_LANES]; /* range of the held operations */
    uint64_t marked[PROXY_LANES];
    struct rank dice; /* random numbers of the proxy thread */
    bool reaches;
    uint64_t fail_at; /* fails this operation of lane IN; 0: none */
    uint32_t stopped; /* 1 after stop_kernels() */
};

/* The simulated GPU of a rank, and its proxy. */
struct gpu {
    struct rank *r;
    struct held_copies copies;
    struct epa_descriptor slot[2][SLOTS];
    _Alignas(64) uint64_t taken[2], ticket[2];
    struct epa_host_ring ring; /* ring of kernels; the ring of the host stays empty */
    char payload[SLOTS][EPA_RING_PAYLOAD];
    bool far[RANKS_MOST];
    uint64_t *signal;
    char *region, *heap, *own;
    struct proxy *proxy;
    uint64_t hold_acks_ns; /* 0: a short time that depends on the rank */
};

static struct held_copies *held_of(struct proxy_copies *copies)
{
    return (struct held_copies *)copies;
}

static enum epa_status enter(struct proxy_copies *copies, void *staging, size_t bytes)
{
    return EPA_OK;
}

static bool leave(struct proxy_copies *copies)
{
    return true;
}

static bool reach(struct proxy_copies *copies, void *memory, size_t bytes)
{
    return held_of(copies)->reaches;
}

static void run_operation(struct held_copies *h, enum proxy_lane lane, struct operation *o)
{
    uint64_t *word = (uint64_t *)(void *)o->to;

    /* Release: pairs with the acquire load in await_at(). */
    if (o->kind == ADD)
        (void)__atomic_fetch_add(word, o->value, __ATOMIC_RELEASE);
    else if (o->kind == SET)
        __atomic_store_n(word, o->value, __ATOMIC_RELEASE);
    else if (o->kind == MARK)
        h->marked[lane] = o->value;
    else if (o->rows == 1 && o->bytes == sizeof(*word) && (uintptr_t)o->to % sizeof(*word) == 0)
        __atomic_store_n(word, *(const uint64_t *)(const void *)o->from, __ATOMIC_RELEASE);
    else
        for (uint32_t row = 0; row < o->rows; row++)
            memcpy(o->to + row * o->to_stride, o->from + row * o->from_stride, o->bytes);
    o->done = true;
}

static enum epa_status hold(struct held_copies *h, enum proxy_lane lane, struct operation o)
{
    if (h->next[lane] - h->first[lane] == HELD || draw(&h->dice, 8) == 0)
        return EPA_AGAIN;
    if (lane == PROXY_IN && h->base.queued[lane] + 1 == h->fail_at)
        return EPA_ERR_SYSTEM;
    h->held[lane][h->next[lane]++ % HELD] = o;
    h->base.queued[lane] += o.kind != MARK;
    return EPA_OK;
}

static enum epa_status copy(struct proxy_copies *copies, enum proxy_lane lane, void *to,
                            const void *from, size_t bytes, uint32_t rows, uint64_t stride)
{
    return hold(held_of(copies), lane,
                (struct operation){.kind = COPY,
                                   .to = to,
                                   .from = from,
                                   .bytes = bytes,
                                   .to_stride = lane == PROXY_OUT ? bytes : stride,
                                   .from_stride = lane == PROXY_OUT ? stride : bytes,
                                   .rows = rows});
}

static enum epa_status set(struct proxy_copies *copies, uint64_t *word, uint64_t value)
{
    return hold(held_of(copies), PROXY_IN,
                (struct operation){.kind = SET, .to = (char *)word, .value = value});
}

static enum epa_status add(struct proxy_copies *copies, uint64_t *word, uint64_t by)
{
    return hold(held_of(copies), PROXY_IN,
                (struct operation){.kind = ADD, .to = (char *)word, .value = by});
}

static enum epa_status mark(struct proxy_copies *copies, enum proxy_lane lane)
{
    return hold(held_of(copies), lane,
                (struct operation){.kind = MARK, .value = copies->queued[lane]});
}

/* Runs one operation that may be next: the first one, or any copy with only copies before it. */
static void run_some(struct held_copies *h, enum proxy_lane lane)
{
    uint64_t n = 0, pick;

    while (h->first[lane] + n < h->next[lane] &&
           h->held[lane][(h->first[lane] + n) % HELD].kind == COPY)
        n++;
    pick = h->first[lane] + (n > 1 ? draw(&h->dice, n) : 0);
    if (!h->held[lane][pick % HELD].done)
        run_operation(h, lane, &h->held[lane][pick % HELD]);
    while (h->first[lane] < h->next[lane] && h->held[lane][h->first[lane] % HELD].done)
        h->first[lane]++;
}

/* Completes a random number of held operations. */
static enum epa_status count_done(struct proxy_copies *copies, enum proxy_lane lane, uint64_t *out)
{
    struct held_copies *h = held_of(copies);

    while (h->first[lane] < h->next[lane] && draw(&h->dice, 4) != 0)
        run_some(h, lane);
    *out = h->marked[lane];
    return EPA_OK;
}

static void explain(struct proxy_copies *copies, struct epa_error *err)
{
    (void)epa_fail(err, EPA_ERR_SYSTEM, "a copy that fails");
}

static void stop_kernels(struct proxy_copies *copies, enum epa_status status)
{
    __atomic_store_n(&held_of(copies)->stopped, 1, __ATOMIC_RELEASE);
}

/* Returns true if the promise needs direct transfers. They need a transport that accepts memory of
 * others. */
static bool is_direct(const struct rank *r)
{
    return r->promise->value >= DIRECT;
}

static bool open_gpu(struct gpu *g, struct rank *r)
{
    const struct epa_transport_plugin *net = r->subject->plugin;
    struct epa_error err = {EPA_OK, ""};
    const struct proxy_copies calls = {.enter = enter,
                                       .leave = leave,
                                       .reach = reach,
                                       .copy = copy,
                                       .set = set,
                                       .add = add,
                                       .mark = mark,
                                       .done = count_done,
                                       .explain = explain,
                                       .stop_kernels = stop_kernels};
    struct proxy_params params = {.boot = r->boot,
                                  .net = net,
                                  .net_config = r->subject->config,
                                  .far = g->far,
                                  .copies = &g->copies.base,
                                  .heap_bytes = HEAP,
                                  .signals = SIGNALS,
                                  /* ranks may use different times */
                                  .hold_acks_ns =
                                      g->hold_acks_ns != 0 ? g->hold_acks_ns : r->me % 3 * 100000};

    if (is_direct(r) && (net->takes == NULL ||
                         net->takes(r->boot, r->subject->config, EPA_MEMORY_HOST, &err) != EPA_OK))
        return false;
    g->r = r;
    g->region = aligned_alloc(PAGE, REGION);
    if (!claim(r, g->region != NULL, "no memory"))
        return false;
    memset(g->region, 0, REGION);
    params.signal = g->signal = (uint64_t *)(void *)g->region;
    params.heap = g->heap = g->region + PAGE;
    g->own = g->heap + HEAP;
    if (is_direct(r))
        params.region = (struct proxy_region){g->region, REGION, EPA_MEMORY_HOST};
    g->copies.base = calls;
    g->copies.dice.random = r->me;
    g->copies.reaches = r->me % 2 == 0 && g->hold_acks_ns == 0;
    for (uint32_t i = 0; i < r->size; i++)
        g->far[i] = i != r->me;
    for (uint32_t i = 0; i < 2; i++)
        params.ring[i] = (struct epa_host_ring){g->slot[i], &g->taken[i], &g->ticket[i],
                                                i == 0 ? g->payload[0] : NULL, SLOTS};
    g->ring = params.ring[0];
    return claim(r, proxy_start(&params, &g->proxy, &err) == EPA_OK, "%s", err.text);
}

static void close_gpu(struct gpu *g)
{
    proxy_stop(g->proxy);
    free(g->region);
}

/* Sleeps: a loop of yields would keep other tests from running (see epa_backoff()). */
static void nap(void)
{
    nanosleep(&(struct timespec){.tv_nsec = 20000}, NULL);
}

/* Queues a descriptor as kernels do: waits while the ring is full. */
static void ask(struct gpu *g, struct epa_descriptor what)
{
    while (!epa_ring_write(&g->ring, &what) && proxy_status(g->proxy) == EPA_OK)
        nap();
}

static void ask_signal(struct gpu *g, uint32_t op, uint32_t peer, uint32_t signal, uint64_t value)
{
    ask(g, (struct epa_descriptor){.op = op, .peer = peer, .value = value, .signal = signal});
}

/* Queues a put, with a signal unless `value` is 0. */
static void ask_put(struct gpu *g, uint32_t peer, uint64_t dst, const void *src, uint64_t bytes,
                    uint32_t signal, uint64_t value)
{
    ask(g, (struct epa_descriptor){
               .op = EPA_RING_PUT | (value != 0 ? EPA_RING_SET : 0u) |
                     (bytes <= EPA_RING_PAYLOAD && value != 0 ? EPA_RING_INLINE : 0u),
               .peer = peer,
               .dst = dst,
               .src = src,
               .bytes = bytes,
               .value = value,
               .signal = signal});
}

/* Waits until a word is at least `least` or the proxy has failed. Returns the word. */
static uint64_t await_at(struct gpu *g, const uint64_t *word, uint64_t least)
{
    uint64_t begun = epa_now_ns(), value;

    while ((value = __atomic_load_n(word, __ATOMIC_ACQUIRE)) < least &&
           proxy_status(g->proxy) == EPA_OK) {
        if (!claim(g->r, epa_now_ns() - begun < DEFAULT_TIMEOUT_NS, "a word is %llu, wants %llu",
                   (unsigned long long)value, (unsigned long long)least))
            break;
        nap();
    }
    return value;
}

/* Checks that the put has arrived: all bytes equal `byte`. */
static void assert_arrived(struct gpu *g, const char *here, uint64_t bytes, char byte,
                           uint64_t round)
{
    uint64_t wrong = 0;

    for (uint64_t i = 0; i < bytes; i++)
        wrong += here[i] != byte;
    claim(g->r, wrong == 0, "round %llu: %llu bytes of %llu are wrong", (unsigned long long)round,
          (unsigned long long)wrong, (unsigned long long)bytes);
}

/* ---- puts with signals, of any size, from several threads ---- */

struct writer {
    struct gpu *g;
    uint32_t number;
};

static char byte_of(uint32_t from, uint32_t writer, uint64_t round, uint64_t at)
{
    return (char)(from * 101 + writer * 53 + round * 31 + at * 7);
}

static uint64_t bytes_of(uint32_t from, uint32_t writer, uint64_t round)
{
    static const uint64_t some[] = {0, 1, 24, 4096, 262144, 262145, 600 << 10, 8, 100000};

    return some[(from + writer * 4 + round) % (sizeof(some) / sizeof(some[0]))];
}

static uint64_t part_of(uint32_t rank, uint32_t writer)
{
    return ((uint64_t)rank * WRITERS + writer) * PART;
}

/* Each writer puts to the next rank, into the part of this rank and writer. The receiver answers
 * each round by a signal, which permits the next put. */
static void *write_rounds(void *arg)
{
    struct writer *w = arg;
    struct gpu *g = w->g;
    struct rank *r = g->r;
    uint32_t to = next_of(r), from = previous_of(r);
    uint32_t signal = w->number, answered = WRITERS + w->number;
    char *own = g->own + w->number * PART, *here = g->heap + part_of(from, w->number);
    uint64_t n = 18;

    for (uint64_t round = 1; round <= n && proxy_status(g->proxy) == EPA_OK; round++) {
        uint64_t bytes = bytes_of(r->me, w->number, round), wrong = 0;

        for (uint64_t i = 0; i < bytes; i++)
            own[i] = byte_of(r->me, w->number, round, i);
        ask_put(g, to, part_of(r->me, w->number), own, bytes, signal, round);
        await_at(g, &g->signal[signal], round);
        bytes = bytes_of(from, w->number, round);
        for (uint64_t i = 0; i < bytes; i++)
            wrong += here[i] != byte_of(from, w->number, round, i);
        claim(r, wrong == 0, "round %llu, writer %u: %llu bytes of %llu are wrong",
              (unsigned long long)round, w->number, (unsigned long long)wrong,
              (unsigned long long)bytes);
        ask_signal(g, EPA_RING_SET, from, answered, round);
        await_at(g, &g->signal[answered], round);
    }
    return NULL;
}

static void let_kernels_put(struct gpu *g)
{
    struct rank *r = g->r;
    struct writer writer[WRITERS];
    pthread_t thread[WRITERS];

    for (uint32_t i = 0; i < WRITERS; i++) {
        writer[i] = (struct writer){g, i};
        claim(r, pthread_create(&thread[i], NULL, write_rounds, &writer[i]) == 0, "no thread");
    }
    for (uint32_t i = 0; i < WRITERS; i++)
        pthread_join(thread[i], NULL);
}

/* ---- order ---- */

/* Word 0 increases through a full ring without answers. Then word 1 has the sum, or, with direct
 * transfers, the word of each peer has its last value. */
static void count_without_answers(struct gpu *g)
{
    struct rank *r = g->r;
    uint64_t n = 120, seen = 0, sum = (r->size - 1) * n * (n + 1) / 2;
    bool adds = !is_direct(r);

    for (uint64_t i = 1; i <= n; i++) {
        uint64_t now = __atomic_load_n(&g->signal[0], __ATOMIC_ACQUIRE);

        claim(r, now >= seen, "signal 0 fell from %llu to %llu", (unsigned long long)seen,
              (unsigned long long)now);
        seen = now;
        ask_signal(g, EPA_RING_SET, next_of(r), 0, i);
        for (uint32_t peer = 0; peer < r->size; peer++)
            if (peer != r->me)
                ask_signal(g, adds ? EPA_RING_ADD : EPA_RING_SET, peer, 1 + (adds ? 0 : r->me), i);
    }
    await_at(g, &g->signal[0], n);
    for (uint32_t peer = 0; peer < r->size; peer++)
        if (adds || peer != r->me)
            await_at(g, &g->signal[1 + (adds ? 0 : peer)], adds ? sum : n);
    claim(r, g->signal[0] == n && (!adds || g->signal[1] == sum), "signals %llu and %llu",
          (unsigned long long)g->signal[0], (unsigned long long)g->signal[1]);
}

/* Order under test: a put, a fence and a signal for it, a fence, and a put that the receiver polls.
 * If the last put is visible, the signal must be visible. Messages are long, so that copies of both
 * puts are in flight at the same time. */
static void put_fence_put(struct gpu *g)
{
    struct rank *r = g->r;
    uint32_t to = next_of(r), from = previous_of(r);
    uint64_t *mark;
    char *own;

    own = g->own;
    mark = (uint64_t *)(void *)own;
    for (uint64_t round = 1; round <= 20; round++) {
        char *here = g->heap + part_of(from, 0);

        *mark = round;
        memset(own + PART, (int)round, PART);
        ask_put(g, to, part_of(r->me, 0) + 8, own + PART, PART - 8, 0, 0);
        ask_signal(g, EPA_RING_FENCE, to, 0, 0);
        ask_signal(g, EPA_RING_SET, to, 2, round);
        ask_signal(g, EPA_RING_FENCE, to, 0, 0);
        ask_put(g, to, part_of(r->me, 0), mark, 8, 0, 0);
        await_at(g, (uint64_t *)(void *)here, round);
        claim(r, __atomic_load_n(&g->signal[2], __ATOMIC_ACQUIRE) >= round,
              "round %llu: the put after the fence arrived before the signal",
              (unsigned long long)round);
        assert_arrived(g, here + 8, PART - 8, (char)round, round);
        ask_signal(g, EPA_RING_SET, from, 3, round);
        await_at(g, &g->signal[3], round);
    }
}

/* Puts inline data from the ring, many times as many as the ring has slots; each put has its own
 * destination. */
static void put_from_places(struct gpu *g)
{
    struct rank *r = g->r;
    uint64_t n = 200, bytes = 512;
    uint32_t to = next_of(r), from = previous_of(r);
    char data[512];

    for (uint64_t i = 0; i < n; i++) {
        memset(data, (int)(i + r->me), bytes);
        ask(g, (struct epa_descriptor){.op = EPA_RING_PUT | EPA_RING_INLINE,
                                       .peer = to,
                                       .dst = part_of(r->me, 0) + i * bytes,
                                       .src = data,
                                       .bytes = bytes});
    }
    ask_signal(g, EPA_RING_SET, to, 5, 1);
    await_at(g, &g->signal[5], 1);
    for (uint64_t i = 0; i < n; i++)
        assert_arrived(g, g->heap + part_of(from, 0) + i * bytes, bytes, (char)(i + from), i);
}

/* ---- acknowledgements ---- */

static struct {
    const struct epa_transport_plugin *plugin;
    struct epa_transport_ops ops;
    enum epa_status (*signal)(struct epa_transport *, uint32_t, uint64_t, enum epa_signal_op,
                              uint32_t);
    uint64_t acks;
} counted[RANKS_MOST];

static enum epa_status count_signal(struct epa_transport *t, uint32_t signal, uint64_t value,
                                    enum epa_signal_op op, uint32_t peer)
{
    if (signal >= t->size * MESSAGES_SLOTS)
        __atomic_fetch_add(&counted[t->rank].acks, 1, __ATOMIC_RELAXED);
    return counted[t->rank].signal(t, signal, value, op, peer);
}

static enum epa_status open_counted(const struct epa_transport_params *params,
                                    struct epa_transport **out, struct epa_error *err)
{
    uint32_t rank = params->boot->world.rank;
    enum epa_status status = counted[rank].plugin->open(params, out, err);

    if (status == EPA_OK) {
        counted[rank].ops = *(*out)->ops;
        counted[rank].signal = (*out)->ops->signal;
        counted[rank].ops.signal = count_signal;
        (*out)->ops = &counted[rank].ops;
    }
    return status;
}

/* Ranks signal in turn, so that each message can carry the acknowledgement of the previous one. */
static void answers_acknowledge(struct rank *r)
{
    struct subject subject = *r->subject;
    struct epa_transport_plugin plugin = *subject.plugin;
    struct rank own = *r;
    struct gpu g = {.hold_acks_ns = 2000000000};
    uint64_t n = 100, acks;

    counted[r->me].plugin = subject.plugin;
    plugin.open = open_counted;
    subject.plugin = &plugin;
    own.subject = &subject;
    if (!open_gpu(&g, &own))
        return;
    for (uint64_t i = 1; i <= n; i++) {
        if (r->me == 0)
            ask_signal(&g, EPA_RING_SET, 1, 0, i);
        await_at(&g, &g.signal[0], i);
        if (r->me == 1)
            ask_signal(&g, EPA_RING_SET, 0, 0, i);
    }
    acks = __atomic_load_n(&counted[r->me].acks, __ATOMIC_RELAXED);
    claim(r, acks < n / 4, "%llu of %llu messages were acknowledged by a signal",
          (unsigned long long)acks, (unsigned long long)n);
    close_gpu(&g);
}

/* ---- failures ---- */

static void fails_with(struct gpu *g, const char *words)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t begun = epa_now_ns();

    while (proxy_status(g->proxy) == EPA_OK && epa_now_ns() - begun < DEFAULT_TIMEOUT_NS)
        nap();
    proxy_explain(g->proxy, &err);
    claim(g->r, err.status != EPA_OK && strstr(err.text, words) != NULL, "'%s' is not in '%s'",
          words, err.text);
    while (__atomic_load_n(&g->copies.stopped, __ATOMIC_ACQUIRE) == 0)
        nap(); /* the failure also stops kernels */
}

static void ask_for_too_much(struct gpu *g)
{
    struct rank *r = g->r;

    if (r->me == 0) {
        ask_put(g, 1, HEAP - 8, g->heap, 16, 0, 0);
        fails_with(g, "rank 0 was asked to put 1 x 16 bytes");
        r->boot->abort(r->boot);
    }
}

static void copy_in_vain(struct rank *r)
{
    struct gpu g = {.r = r, .copies.fail_at = r->me == 1 ? 3 : 0};

    if (!open_gpu(&g, r))
        return;
    for (uint64_t i = 1; i < 100 && proxy_status(g.proxy) == EPA_OK && r->me == 0; i++)
        ask_signal(&g, EPA_RING_SET, 1, 0, i);
    if (r->me == 1) {
        fails_with(&g, "a copy that fails");
        r->boot->abort(r->boot);
    }
    /* never satisfied: all proxies end */
    await_at(&g, &g.signal[1], 1);
    claim(r, r->me == 1 || proxy_status(g.proxy) == EPA_ERR_ABORTED, "status %d",
          proxy_status(g.proxy));
    close_gpu(&g);
}

static void (*const bodies[])(struct gpu *) = {let_kernels_put, count_without_answers,
                                               put_fence_put, put_from_places, ask_for_too_much};

enum { PUTS, COUNTS, FENCES, PLACES, TOO_MUCH };

static void on_gpu(struct rank *r)
{
    struct gpu g = {.r = r};

    if (!open_gpu(&g, r))
        return;
    bodies[r->promise->value % DIRECT](&g);
    close_gpu(&g);
}

static const struct promise promises[] = {
    {"data are in place before their signal", on_gpu, {2, 3}, .value = PUTS},
    {"signals of a ring arrive in ring order", on_gpu, {3}, .value = COUNTS},
    {"operations after a fence do not overtake", on_gpu, {2}, .value = FENCES},
    {"an answer carries the acknowledgement", answers_acknowledge, {2}},
    {"inline data stay in the ring until they are put", on_gpu, {2}, .value = PLACES},
    {"direct: data are in place before their signal", on_gpu, {2, 3}, .value = PUTS + DIRECT},
    {"direct: signals of a ring arrive in ring order", on_gpu, {3}, .value = COUNTS + DIRECT},
    {"direct: operations after a fence do not overtake", on_gpu, {2}, .value = FENCES + DIRECT},
    {"direct: inline data stay in the ring until put", on_gpu, {2}, .value = PLACES + DIRECT},
    {"a failure is reported and ends all proxies", on_gpu, {2}, .value = TOO_MUCH, .fails = true},
    {"a failed copy is reported and ends all proxies", copy_in_vain, {2}, .fails = true},
};

PROMISES_MAIN(1, 4096)
