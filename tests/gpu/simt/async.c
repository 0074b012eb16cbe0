/* Mbarriers and bulk copies. A bulk copy is asynchronous: it happens at its issue or some rounds of
 * turns later, by chance that is the same in each run, at the latest when no thread can go on. A
 * store reads shared memory at one such time and writes global memory at another. So a kernel that
 * does not wait for the right thing finds old bytes, or overwrites what is still to be read.
 *
 * `view` is shared memory as the async proxy sees it. Bulk loads write both. What threads store
 * gets there when they fence: then a granule in which the proxy has found stores of theirs
 * before is copied. (In one where it has not, it must have seen no fence at all to complain.)
 * Bytes that differ when the proxy is to read them were stored without a fence. */
#include "async.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fake/fake_tensor_map.h"
#include "block.h"
#include "cluster.h"

enum {
    COPIES = 256,   /* in flight */
    BARRIERS = 128, /* that loads of a block complete on */
    GRANULE = 1024,
    GRANULES = SIMT_SHARED_BYTES / GRANULE,
    GARBAGE = 0xa5,
    UNIT = 16, /* of addresses and bytes */
    LATE = 4,  /* rounds that a copy may take */
    ROW_BYTES = 2048,
};

enum kind { COPY_LOAD, COPY_STORE, COPY_ADD };

struct copy {
    enum kind kind;
    uint64_t due;       /* round; of a store, when it is read, and then when it is written */
    uint32_t at, bytes; /* in shared memory */
    char *global;       /* NULL: `map` */
    uint64_t *bar;
    uint32_t blocks; /* of the cluster; 0: this one */
    struct lane *lane;
    uint32_t group;
    char *read; /* of a store: what was in shared memory */
    int32_t coordinate[FAKE_MAP_RANK];
    struct fake_tensor_map map;
};

/* Loads that were issued on a barrier since a thread last found a phase of it ended. */
struct unseen {
    const uint64_t *bar;
    uint32_t loads;
};

struct async {
    struct copy copy[COPIES];
    uint32_t copies;
    struct unseen unseen[BARRIERS];
    uint32_t barriers;
    bool inits; /* that simt_mbar_init_done() has not ended */
    uint32_t fences;
    bool watched[GRANULES];
    char *view;
};

/* Of the worker that calls; made when it is first needed. */
static struct async *async_of(struct worker *w)
{
    struct async *a = w->async;

    if (a != NULL)
        return a;
    a = calloc(1, sizeof(*a));
    if (a != NULL)
        a->view = malloc(SIMT_SHARED_BYTES);
    if (a == NULL || a->view == NULL)
        simt_die(w, "no memory for bulk copies");
    memcpy(a->view, w->shared, w->shared_bytes);
    w->async = a;
    return a;
}

/* ---- shared memory ---- */

static bool is_dynamic(const struct worker *w, const void *at)
{
    return (const char *)at >= w->shared && (const char *)at < w->shared + w->shared_bytes;
}

static uint32_t offset_of(const struct worker *w, const void *at, uint32_t bytes, const char *what)
{
    size_t offset = (size_t)((const char *)at - w->shared);

    if (!is_dynamic(w, at) || offset + bytes > w->shared_bytes)
        simt_die(w,
                 "thread %u: %s of %u bytes is not in the %zu bytes of dynamic shared memory "
                 "(the emulator has addresses for nothing else)",
                 w->now->number, what, bytes, w->shared_bytes);
    return (uint32_t)offset;
}

uint32_t simt_shared_address(const void *at)
{
    return SIMT_SHARED_BASE + offset_of(simt_place()->worker, at, 1, "an address");
}

/* ---- the proxy ---- */

void simt_async_publish(struct worker *w)
{
    struct async *a = w->async;

    w->fenced = false;
    for (uint32_t i = 0; i * GRANULE < w->shared_bytes; i++) {
        size_t left = w->shared_bytes - i * GRANULE;

        if (a->watched[i])
            memcpy(a->view + i * GRANULE, w->shared + i * GRANULE, left < GRANULE ? left : GRANULE);
    }
}

/* A warp's threads fence one after the other; what the last one, and with it all of them, has
 * stored by then counts, and not what they store after it. */
void simt_fence_async(void)
{
    struct worker *w = simt_place()->worker;
    uint32_t number = w->now->number;

    async_of(w)->fences++;
    w->fenced = true;
    if (number % SIMT_WARP == SIMT_WARP - 1 ||
        w->ready[number / SIMT_WARP] >> number % SIMT_WARP == 1)
        simt_async_publish(w);
}

static void check_granule(struct worker *w, uint32_t at, uint32_t bytes, const char *what)
{
    struct async *a = w->async;
    uint32_t i = at / GRANULE;
    size_t left = w->shared_bytes - i * GRANULE;

    if (memcmp(w->shared + at, a->view + at, bytes) == 0)
        return;
    if (a->watched[i] || a->fences == 0)
        simt_die(w,
                 "thread %u: %s reads shared memory at %#x to %#x, where threads have stored "
                 "without a fence to the async proxy after it",
                 w->now->number, what, at, at + bytes);
    a->watched[i] = true;
    memcpy(a->view + i * GRANULE, w->shared + i * GRANULE, left < GRANULE ? left : GRANULE);
}

void simt_async_check(struct worker *w, uint32_t at, uint32_t bytes, const char *what)
{
    struct async *a = async_of(w);

    if (w->fenced)
        simt_async_publish(w);
    if (memcmp(w->shared + at, a->view + at, bytes) == 0)
        return;
    while (bytes > 0) {
        uint32_t n = GRANULE - at % GRANULE < bytes ? GRANULE - at % GRANULE : bytes;

        check_granule(w, at, n, what);
        at += n;
        bytes -= n;
    }
}

/* ---- mbarriers ---- */

/* A word of 64 bits: arrivals that are missing in this phase, arrivals of each phase, bytes that
 * are missing + 2^20, parity, and a mark. */
enum { COUNT_BITS = 20, BYTES_BITS = 21, PARITY_AT = 2 * COUNT_BITS + BYTES_BITS };
#define COUNT_MASK ((1u << COUNT_BITS) - 1)
#define BYTES_ZERO (1 << COUNT_BITS)
#define MARK ((uint64_t)1 << 62)

struct mbar {
    uint32_t missing, arrivals;
    int64_t bytes;
    uint32_t parity;
};

static struct mbar unpack(uint64_t word)
{
    return (struct mbar){
        .missing = word & COUNT_MASK,
        .arrivals = word >> COUNT_BITS & COUNT_MASK,
        .bytes = (int64_t)(word >> 2 * COUNT_BITS & ((1u << BYTES_BITS) - 1)) - BYTES_ZERO,
        .parity = word >> PARITY_AT & 1,
    };
}

static uint64_t pack(const struct mbar *b)
{
    return MARK | (uint64_t)b->parity << PARITY_AT |
           (uint64_t)(b->bytes + BYTES_ZERO) << 2 * COUNT_BITS |
           (uint64_t)b->arrivals << COUNT_BITS | b->missing;
}

static uint64_t load_mbar(const struct worker *w, const uint64_t *bar)
{
    /* Acquire: pairs with change_mbar(), as far as others of the cluster call it. */
    uint64_t word = (uintptr_t)bar % 8 != 0 ? 0 : __atomic_load_n(bar, __ATOMIC_ACQUIRE);

    if (word >> 62 != 1)
        simt_die(w, "thread %u uses an mbarrier at %p that was not initialised", w->now->number,
                 (const void *)bar);
    return word;
}

static bool waits_for(const struct lane *lane, const void *bar)
{
    return lane->bar == bar;
}

/* Of this block, or of `owner`'s, who finds out himself. Returns how many threads go on. */
static uint32_t change_mbar(struct worker *w, struct worker *owner, uint64_t *bar,
                            uint32_t arrivals, int64_t bytes)
{
    uint64_t was = load_mbar(w, bar), then;
    bool ends;

    do {
        struct mbar b = unpack(was);

        b.bytes += bytes;
        if (arrivals > b.missing || b.bytes >= BYTES_ZERO || b.bytes <= -BYTES_ZERO)
            simt_die(w,
                     "thread %u: an mbarrier that misses %u of %u arrivals gets %u, and %lld bytes",
                     w->now->number, b.missing, b.arrivals, arrivals, (long long)b.bytes);
        b.missing -= arrivals;
        ends = b.missing == 0 && b.bytes == 0;
        if (ends) {
            b.missing = b.arrivals;
            b.parity ^= 1;
        }
        then = pack(&b);
    } while (
        !__atomic_compare_exchange_n(bar, &was, then, false, __ATOMIC_ACQ_REL, __ATOMIC_ACQUIRE));
    w->idle = 0;
    return ends && owner == w ? simt_wake(w, LANE_IN_MBAR, waits_for, bar) : 0;
}

void simt_mbar_init(uint64_t *bar, uint32_t arrivals)
{
    struct worker *w = simt_place()->worker;
    struct mbar b = {.missing = arrivals, .arrivals = arrivals};

    if ((uintptr_t)bar % 8 != 0 || arrivals == 0 || arrivals > COUNT_MASK)
        simt_die(w, "thread %u makes an mbarrier of %u arrivals at %p", w->now->number, arrivals,
                 (void *)bar);
    async_of(w)->inits = true;
    __atomic_store_n(bar, pack(&b), __ATOMIC_RELEASE);
}

void simt_mbar_init_done(void)
{
    async_of(simt_place()->worker)->inits = false;
}

void simt_mbar_arrive(uint64_t *bar, uint32_t bytes)
{
    struct worker *w = simt_place()->worker;

    if (simt_random(w, change_mbar(w, w, bar, 1, bytes) > 0 ? 2 : 8) == 0)
        simt_hold(w);
}

/* The same place in another block. */
static uint64_t *bar_of(struct worker *w, struct worker *peer, uint64_t *bar)
{
    return peer == w ? bar
                     : (void *)(peer->shared + offset_of(w, bar, sizeof(*bar), "an mbarrier"));
}

static bool has_inits(const struct worker *w)
{
    return w->async != NULL && __atomic_load_n(&w->async->inits, __ATOMIC_RELAXED);
}

void simt_mbar_arrive_at(uint64_t *bar, uint32_t rank)
{
    struct worker *w = simt_place()->worker, *peer = simt_cluster_peer(w, rank);

    if (has_inits(peer))
        simt_die(w, "thread %u: mbarriers of block %u were made without fence.mbarrier_init",
                 w->now->number, rank);
    (void)change_mbar(w, peer, bar_of(w, peer, bar), 1, 0);
}

static struct unseen *unseen_of(struct worker *w, const uint64_t *bar)
{
    struct async *a = async_of(w);

    for (uint32_t i = 0; i < a->barriers; i++)
        if (a->unseen[i].bar == bar)
            return &a->unseen[i];
    if (a->barriers == BARRIERS)
        simt_die(w, "loads on more than %d mbarriers are not emulated", BARRIERS);
    a->unseen[a->barriers] = (struct unseen){bar, 0};
    return &a->unseen[a->barriers++];
}

/* A phase has ended, and with it all loads but those in flight. */
static bool see(struct worker *w, const uint64_t *bar)
{
    struct async *a = async_of(w);
    uint32_t loads = 0;

    for (uint32_t i = 0; i < a->copies; i++)
        loads += a->copy[i].kind == COPY_LOAD && a->copy[i].bar == bar;
    unseen_of(w, bar)->loads = loads;
    return true;
}

bool simt_mbar_try(uint64_t *bar, uint32_t parity)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;

    if (parity > 1)
        simt_die(w, "thread %u waits for parity %u", self->number, parity);
    if (unpack(load_mbar(w, bar)).parity != parity)
        return see(w, bar);
    self->bar = bar;
    self->parity = parity;
    simt_wait(w, LANE_IN_MBAR, 0, __builtin_return_address(0));
    return unpack(load_mbar(w, bar)).parity != parity && see(w, bar);
}

/* Without waiting. */
bool simt_mbar_test(uint64_t *bar, uint32_t parity)
{
    struct worker *w = simt_place()->worker;

    if (parity > 1)
        simt_die(w, "thread %u waits for parity %u", w->now->number, parity);
    return unpack(load_mbar(w, bar)).parity != parity && see(w, bar);
}

static bool has_ended(const struct lane *lane, const void *with)
{
    return unpack(load_mbar(with, lane->bar)).parity != lane->parity;
}

uint32_t simt_mbar_news(struct worker *w)
{
    return simt_wake(w, LANE_IN_MBAR, has_ended, w);
}

void simt_mbar_tell(const struct worker *w, const uint64_t *bar, uint32_t parity)
{
    struct mbar b = unpack(load_mbar(w, bar));

    if (is_dynamic(w, bar))
        fprintf(stderr, " at %#zx", (size_t)((const char *)bar - w->shared));
    fprintf(stderr, " of %u arrivals, phase of parity %u, which misses %u arrivals and %lld bytes",
            b.arrivals, parity, b.missing, (long long)b.bytes);
}

/* ---- boxes of tensors ---- */

/* Where a 16-byte piece is that would be at `address` in rows without swizzle. */
static uint32_t swizzle(const struct fake_tensor_map *m, uint32_t address)
{
    uint32_t pieces = m->swizzle_bytes / UNIT;

    return pieces == 0 ? address : address ^ (address >> 7 & (pieces - 1)) * UNIT;
}

/* `count` elements of a row in global memory from its element `x` on, those beyond `size` of them
 * left alone or 0. */
static void copy_elements(char *row, int64_t x, int64_t size, int64_t count, uint32_t bytes,
                          char *here, bool store)
{
    int64_t from = x < 0 ? -x : 0, to = size - x < count ? size - x : count;

    if (from >= to)
        return;
    row += (x + from) * bytes;
    here += from * bytes;
    memcpy(store ? row : here, store ? here : row, (size_t)(to - from) * bytes);
}

/* A box from or to `image`, which has what is in shared memory from c->at on. */
static void copy_box(const struct copy *c, char *image, bool store)
{
    const struct fake_tensor_map *m = &c->map;
    uint32_t bytes = (uint32_t)m->box[0] * m->element_bytes;

    for (uint32_t i = 0; i < c->bytes / bytes; i++) {
        uint32_t left = i, base = c->at + SIMT_SHARED_BASE, address = base + i * bytes;
        char *global = m->at, row[ROW_BYTES] = {0};
        bool outside = false;

        for (uint32_t d = 1; d < m->rank; d++) {
            int64_t y = (int64_t)c->coordinate[d] + left % m->box[d];

            left /= m->box[d];
            outside |= y < 0 || y > m->last[d];
            global += y * (int64_t)m->stride[d];
        }
        for (uint32_t j = 0; store && j < bytes; j += UNIT)
            memcpy(row + j, image + swizzle(m, address + j) - base, UNIT);
        if (!outside)
            copy_elements(global, c->coordinate[0], (int64_t)m->last[0] + 1, m->box[0],
                          m->element_bytes, row, store);
        for (uint32_t j = 0; !store && j < bytes; j += UNIT)
            memcpy(image + swizzle(m, address + j) - base, row + j, UNIT);
    }
}

/* ---- copies ---- */

/* One after the other of the blocks that a load is for; NULL: no more. */
static struct worker *next_target(struct worker *w, const struct copy *c, uint32_t *left)
{
    uint32_t rank = *left == 0 ? 0 : (uint32_t)__builtin_ctz(*left);

    if (*left == 0)
        return NULL;
    *left &= *left - 1;
    return c->blocks == 0 ? w : simt_cluster_peer(w, rank);
}

static void run_load(struct worker *w, const struct copy *c)
{
    uint32_t all = c->blocks == 0 ? 1 : c->blocks, left = all;
    const char *from = NULL;
    struct worker *peer;

    while ((peer = next_target(w, c, &left)) != NULL) {
        char *to = peer->shared + c->at;

        if (from != NULL || c->global != NULL)
            memcpy(to, from != NULL ? from : c->global, c->bytes);
        else
            copy_box(c, to, false);
        memcpy(peer->async->view + c->at, to, c->bytes);
        from = to;
    }
    while ((peer = next_target(w, c, &all)) != NULL)
        (void)change_mbar(w, peer, bar_of(w, peer, c->bar), 0, -(int64_t)c->bytes);
}

static void run_read(struct worker *w, struct copy *c)
{
    if (c->read != NULL)
        return;
    c->read = malloc(c->bytes);
    if (c->read == NULL)
        simt_die(w, "no memory for bulk copies");
    memcpy(c->read, w->shared + c->at, c->bytes);
}

static void add_floats(char *to, const char *from, uint32_t bytes)
{
    for (uint32_t i = 0; i < bytes; i += 4) {
        uint32_t *at = (void *)(to + i), was = __atomic_load_n(at, __ATOMIC_RELAXED), then;
        float sum, by;

        do {
            memcpy(&sum, &was, sizeof(sum));
            memcpy(&by, from + i, sizeof(by));
            sum += by;
            memcpy(&then, &sum, sizeof(then));
        } while (!__atomic_compare_exchange_n(at, &was, then, false, __ATOMIC_RELAXED,
                                              __ATOMIC_RELAXED));
    }
}

static void run_write(struct worker *w, struct copy *c)
{
    run_read(w, c);
    if (c->global == NULL)
        copy_box(c, c->read, true);
    else if (c->kind == COPY_ADD)
        add_floats(c->global, c->read, c->bytes);
    else
        memcpy(c->global, c->read, c->bytes);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    free(c->read);
}

static uint64_t some_rounds(struct worker *w)
{
    return simt_random(w, 4) == 0 ? 0 : 1 + simt_random(w, LATE);
}

/* What is due now: a store that is read comes up again. */
static void run_copy(struct worker *w, uint32_t i)
{
    struct async *a = w->async;
    struct copy *c = &a->copy[i];

    if (c->kind != COPY_LOAD && c->read == NULL) {
        run_read(w, c);
        c->due = w->round + some_rounds(w);
        return;
    }
    if (c->kind == COPY_LOAD) {
        struct copy copy = *c;

        *c = a->copy[--a->copies];
        run_load(w, &copy);
        return;
    }
    run_write(w, c);
    *c = a->copy[--a->copies];
}

void simt_async_round(struct worker *w)
{
    for (uint32_t i = 0; w->async != NULL && i < w->async->copies;) {
        uint32_t copies = w->async->copies;

        if (w->async->copy[i].due <= w->round)
            run_copy(w, i);
        i += w->async->copies == copies;
    }
}

bool simt_async_next(struct worker *w)
{
    struct async *a = w->async;
    uint32_t next = 0;

    if (a == NULL || a->copies == 0)
        return false;
    for (uint32_t i = 1; i < a->copies; i++)
        if (a->copy[i].due < a->copy[next].due)
            next = i;
    run_copy(w, next);
    w->idle = 0;
    return true;
}

/* `c` has all but `due` and, of a store, its thread and group. */
static void issue(struct worker *w, struct copy *c)
{
    struct async *a = async_of(w);

    while (a->copies == COPIES)
        (void)simt_async_next(w);
    if (a->inits && c->kind == COPY_LOAD)
        simt_die(w, "thread %u loads on mbarriers that were made without fence.mbarrier_init",
                 w->now->number);
    if (c->kind == COPY_LOAD) {
        (void)load_mbar(w, c->bar);
        unseen_of(w, c->bar)->loads += c->blocks == 0;
    } else {
        simt_async_check(w, c->at, c->bytes, "a bulk store");
        c->lane = w->now;
        c->group = w->now->bulk_groups;
        w->now->bulk_open = true;
    }
    c->due = w->round + some_rounds(w);
    a->copy[a->copies++] = *c;
    if (c->due == w->round)
        run_copy(w, a->copies - 1);
    w->idle = 0;
}

static void check_bulk(struct worker *w, const void *global, const void *shared, uint32_t bytes)
{
    if ((uintptr_t)global % UNIT != 0 || (uintptr_t)shared % UNIT != 0 || bytes % UNIT != 0 ||
        bytes == 0)
        simt_die(w, "thread %u copies %u bytes between %p and %p: not multiples of %d",
                 w->now->number, bytes, global, shared, UNIT);
}

void simt_bulk_load(void *to, const void *from, uint32_t bytes, uint64_t *bar)
{
    struct worker *w = simt_place()->worker;
    struct copy c = {.kind = COPY_LOAD, .bytes = bytes, .global = (char *)from, .bar = bar};

    check_bulk(w, from, to, bytes);
    c.at = offset_of(w, to, bytes, "a bulk load");
    issue(w, &c);
}

void simt_bulk_store(void *to, const void *from, uint32_t bytes, bool adds_floats)
{
    struct worker *w = simt_place()->worker;
    struct copy c = {
        .kind = adds_floats ? COPY_ADD : COPY_STORE, .bytes = bytes, .global = (char *)to};

    check_bulk(w, to, from, bytes);
    c.at = offset_of(w, from, bytes, "a bulk store");
    issue(w, &c);
}

/* Fills in what a copy of a box needs. */
static void take_map(struct worker *w, struct copy *c, const CUtensorMap *map, const int32_t *at,
                     uint32_t rank, const void *shared)
{
    struct fake_tensor_map *m = &c->map;

    memcpy(m, map, sizeof(*m));
    if ((uintptr_t)map % 64 != 0 || m->magic != FAKE_MAP_MAGIC || m->rank != rank)
        simt_die(w, "thread %u: there is no tensor map of %u dimensions at %p", w->now->number,
                 rank, (const void *)map);
    c->bytes = m->element_bytes;
    for (uint32_t i = 0; i < rank; i++) {
        c->coordinate[i] = at[i];
        c->bytes *= m->box[i];
    }
    if (m->swizzle_bytes != 0 && m->box[0] * m->element_bytes != m->swizzle_bytes)
        simt_die(w, "boxes with rows shorter than the swizzle are not emulated");
    c->at = offset_of(w, shared, c->bytes, "a box");
    if (c->at % 128 != 0)
        simt_die(w, "thread %u: a box at %#x of shared memory, not a multiple of 128",
                 w->now->number, c->at);
}

void simt_tile_load(void *to, const CUtensorMap *map, const int32_t *at, uint32_t rank,
                    uint64_t *bar, uint32_t blocks)
{
    struct worker *w = simt_place()->worker;
    struct copy c = {.kind = COPY_LOAD, .bar = bar, .blocks = blocks};

    take_map(w, &c, map, at, rank, to);
    issue(w, &c);
}

void simt_tile_store(const CUtensorMap *map, const int32_t *at, uint32_t rank, const void *from)
{
    struct worker *w = simt_place()->worker;
    struct copy c = {.kind = COPY_STORE};

    take_map(w, &c, map, at, rank, from);
    issue(w, &c);
}

void simt_bulk_commit(void)
{
    struct lane *self = simt_self();

    self->bulk_groups++;
    self->bulk_open = false;
}

void simt_bulk_wait(uint32_t pending, bool read)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;
    struct async *a = async_of(w);

    if (self->bulk_groups < pending)
        return;
    if (self->bulk_read < self->bulk_groups - pending)
        self->bulk_read = self->bulk_groups - pending;
    for (uint32_t i = 0; i < a->copies;) {
        struct copy *c = &a->copy[i];

        if (c->kind == COPY_LOAD || c->lane != self || c->group >= self->bulk_groups - pending) {
            i++;
            continue;
        }
        run_read(w, c);
        if (read) {
            i++;
            continue;
        }
        run_write(w, c);
        *c = a->copy[--a->copies];
    }
}

/* ---- blocks ---- */

void simt_async_begin(struct worker *w)
{
    struct async *a = w->async;

    w->fenced = false;
    if (a == NULL && w->cluster->blocks > 1)
        a = async_of(w); /* others may load into it */
    if (a == NULL)
        return;
    memset(a->view, GARBAGE, w->shared_bytes);
    a->copies = a->barriers = a->fences = 0;
    a->inits = false;
}

void simt_async_end(struct worker *w)
{
    struct async *a = w->async;

    if (a == NULL)
        return;
    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].bulk_open || w->lane[i].bulk_read < w->lane[i].bulk_groups)
            simt_die(w, "thread %u has ended, and its bulk stores may still read shared memory", i);
    for (uint32_t i = 0; i < a->barriers; i++)
        if (a->unseen[i].loads > 0) {
            fprintf(stderr, "simt: an mbarrier");
            simt_mbar_tell(w, a->unseen[i].bar, 0);
            fprintf(stderr, "\n");
            simt_die(w,
                     "it has ended, and %u bulk loads, on the mbarrier above, that none of its "
                     "threads has waited for, may still write to shared memory",
                     a->unseen[i].loads);
        }
    while (simt_async_next(w))
        ;
}
