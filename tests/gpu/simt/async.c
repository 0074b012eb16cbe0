/* Mbarriers and bulk copies. A bulk copy is asynchronous: it runs at its issue or some rounds of
 * turns later, by a random choice that repeats in each run, and at the latest when no thread can
 * continue. A store reads shared memory at one such time and writes global memory at another. A
 * kernel without the right wait therefore finds old bytes, or overwrites bytes that are still to be
 * read.
 *
 * `view` is shared memory as the async proxy sees it. Bulk loads write both copies. Stores of
 * threads reach the view at their next fence, which copies each granule in which the proxy has
 * found such stores before. (In other granules the proxy reports stores only if no fence was made
 * at all.) Bytes that differ when the proxy reads them were stored without a fence. */
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../fake/fake_tensor_map.h"
#include "block.h"

enum {
    COPIES = 256,   /* in flight */
    BARRIERS = 128, /* barriers of a block with loads */
    GRANULE = 1024,
    GRANULES = SIMT_SHARED_BYTES / GRANULE,
    GARBAGE = 0xa5,
    UNIT = 16, /* unit of addresses and sizes */
    LATE = 4,  /* rounds that a copy may take */
    ROW_BYTES = 128,
};

enum kind { COPY_LOAD, COPY_STORE };

struct copy {
    enum kind kind;
    /* round of the copy; a store has one for its read and then one for its write */
    uint64_t due;
    uint32_t at, bytes; /* range in shared memory */
    char *global;       /* NULL: use `map` */
    uint64_t *bar;
    struct lane *lane;
    uint32_t group;
    char *read; /* store: contents read from shared memory */
    int32_t x, y;
    struct fake_tensor_map map;
};

/* Loads issued on a barrier since a thread last found an ended phase of it. */
struct unseen {
    const uint64_t *bar;
    uint32_t loads;
};

struct async {
    struct copy copy[COPIES];
    uint32_t copies;
    struct unseen unseen[BARRIERS];
    uint32_t barriers;
    bool inits; /* mbarriers were made without simt_mbar_init_done() so far */
    uint32_t fences;
    bool watched[GRANULES];
    char *view;
};

struct async *simt_async_create(void)
{
    struct async *a = simt_alloc(sizeof(*a));

    a->view = simt_alloc(SIMT_SHARED_BYTES);
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

/* The threads of a warp fence one after the other. The fence of the last one publishes the stores
 * made by then, and no later ones. */
void simt_fence_async(void)
{
    struct worker *w = simt_place()->worker;
    uint32_t number = w->now->number;

    w->async->fences++;
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
    if (w->fenced)
        simt_async_publish(w);
    if (memcmp(w->shared + at, w->async->view + at, bytes) == 0)
        return;
    while (bytes > 0) {
        uint32_t n = GRANULE - at % GRANULE < bytes ? GRANULE - at % GRANULE : bytes;

        check_granule(w, at, n, what);
        at += n;
        bytes -= n;
    }
}

/* ---- mbarriers ---- */

/* Fields of the 64-bit word: arrivals missing in this phase, arrivals per phase, missing bytes +
 * 2^20, parity, and a mark. */
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
    uint64_t word = (uintptr_t)bar % 8 != 0 ? 0 : *bar;

    if (word >> 62 != 1)
        simt_die(w, "thread %u uses an mbarrier at %p that was not initialised", w->now->number,
                 (const void *)bar);
    return word;
}

static bool waits_for(const struct lane *lane, const void *bar)
{
    return lane->bar == bar;
}

uint32_t simt_mbar_change(struct worker *w, uint64_t *bar, uint32_t arrivals, int64_t bytes)
{
    struct mbar b = unpack(load_mbar(w, bar));
    bool ends;

    b.bytes += bytes;
    if (arrivals > b.missing || b.bytes >= BYTES_ZERO || b.bytes <= -BYTES_ZERO)
        simt_die(w, "thread %u: an mbarrier that misses %u of %u arrivals gets %u, and %lld bytes",
                 w->now->number, b.missing, b.arrivals, arrivals, (long long)b.bytes);
    b.missing -= arrivals;
    ends = b.missing == 0 && b.bytes == 0;
    if (ends) {
        b.missing = b.arrivals;
        b.parity ^= 1;
    }
    *bar = pack(&b);
    w->idle = 0;
    return ends ? simt_wake(w, LANE_IN_MBAR, waits_for, bar) : 0;
}

void simt_mbar_init(uint64_t *bar, uint32_t arrivals)
{
    struct worker *w = simt_place()->worker;
    struct mbar b = {.missing = arrivals, .arrivals = arrivals};

    if ((uintptr_t)bar % 8 != 0 || arrivals == 0 || arrivals > COUNT_MASK)
        simt_die(w, "thread %u makes an mbarrier of %u arrivals at %p", w->now->number, arrivals,
                 (void *)bar);
    w->async->inits = true;
    *bar = pack(&b);
}

void simt_mbar_init_done(void)
{
    simt_place()->worker->async->inits = false;
}

void simt_mbar_arrive(uint64_t *bar, uint32_t bytes)
{
    struct worker *w = simt_place()->worker;

    if (simt_random(w, simt_mbar_change(w, bar, 1, bytes) > 0 ? 2 : 8) == 0)
        simt_hold(w);
}

static struct unseen *unseen_of(struct worker *w, const uint64_t *bar)
{
    struct async *a = w->async;

    for (uint32_t i = 0; i < a->barriers; i++)
        if (a->unseen[i].bar == bar)
            return &a->unseen[i];
    if (a->barriers == BARRIERS)
        simt_die(w, "loads on more than %d mbarriers are not emulated", BARRIERS);
    a->unseen[a->barriers] = (struct unseen){bar, 0};
    return &a->unseen[a->barriers++];
}

/* Records that a phase has ended, and with it all loads but those in flight. */
static bool see(struct worker *w, const uint64_t *bar)
{
    struct async *a = w->async;
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

void simt_mbar_tell(const struct worker *w, const uint64_t *bar, uint32_t parity)
{
    struct mbar b = unpack(load_mbar(w, bar));

    if (is_dynamic(w, bar))
        fprintf(stderr, " at %#zx", (size_t)((const char *)bar - w->shared));
    fprintf(stderr, " of %u arrivals, phase of parity %u, which misses %u arrivals and %lld bytes",
            b.arrivals, parity, b.missing, (long long)b.bytes);
}

/* ---- boxes of tensors ---- */

/* Loads a box of a tensor into shared memory, with zeros outside the tensor. In each row of 128
 * bytes, the pieces of 16 bytes are swizzled by the row number. */
static void load_box(const struct copy *c, char *image)
{
    const struct fake_tensor_map *m = &c->map;

    for (uint32_t i = 0; i < m->box[1]; i++) {
        uint32_t base = c->at + SIMT_SHARED_BASE, address = base + i * ROW_BYTES;
        int64_t y = (int64_t)c->y + i, from = c->x < 0 ? -(int64_t)c->x : 0;
        int64_t to =
            (int64_t)m->last[0] + 1 - c->x < m->box[0] ? (int64_t)m->last[0] + 1 - c->x : m->box[0];
        char row[ROW_BYTES] = {0};

        if (y >= 0 && y <= m->last[1] && from < to)
            memcpy(row + from * m->element_bytes,
                   m->at + y * (int64_t)m->stride + (c->x + from) * m->element_bytes,
                   (size_t)(to - from) * m->element_bytes);
        for (uint32_t j = 0; j < ROW_BYTES; j += UNIT)
            memcpy(image + ((address + j) ^ (address >> 7 & 7) * UNIT) - base, row + j, UNIT);
    }
}

/* ---- copies ---- */

static void run_load(struct worker *w, const struct copy *c)
{
    char *to = w->shared + c->at;

    if (c->global != NULL)
        memcpy(to, c->global, c->bytes);
    else
        load_box(c, to);
    memcpy(w->async->view + c->at, to, c->bytes);
    (void)simt_mbar_change(w, c->bar, 0, -(int64_t)c->bytes);
}

static void run_read(struct worker *w, struct copy *c)
{
    if (c->read != NULL)
        return;
    c->read = simt_alloc(c->bytes);
    memcpy(c->read, w->shared + c->at, c->bytes);
}

static void run_write(struct worker *w, struct copy *c)
{
    run_read(w, c);
    memcpy(c->global, c->read, c->bytes);
    __atomic_thread_fence(__ATOMIC_RELEASE);
    free(c->read);
}

static uint64_t some_rounds(struct worker *w)
{
    return simt_random(w, 4) == 0 ? 0 : 1 + simt_random(w, LATE);
}

/* Runs the part that is due: a store runs twice, first its read and then its write. */
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
    for (uint32_t i = 0; i < w->async->copies;) {
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

    if (a->copies == 0)
        return false;
    for (uint32_t i = 1; i < a->copies; i++)
        if (a->copy[i].due < a->copy[next].due)
            next = i;
    run_copy(w, next);
    w->idle = 0;
    return true;
}

/* Issues a copy. The caller has set all fields but `due`, and for a store its thread and group. */
static void issue(struct worker *w, struct copy *c)
{
    struct async *a = w->async;

    while (a->copies == COPIES)
        (void)simt_async_next(w);
    if (a->inits && c->kind == COPY_LOAD)
        simt_die(w, "thread %u loads on mbarriers that were made without fence.mbarrier_init",
                 w->now->number);
    if (c->kind == COPY_LOAD) {
        (void)load_mbar(w, c->bar);
        unseen_of(w, c->bar)->loads++;
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
    simt_accessed(from, bytes, FAKE_LOAD);
    c.at = offset_of(w, to, bytes, "a bulk load");
    issue(w, &c);
}

void simt_bulk_store(void *to, const void *from, uint32_t bytes)
{
    struct worker *w = simt_place()->worker;
    struct copy c = {.kind = COPY_STORE, .bytes = bytes, .global = (char *)to};

    check_bulk(w, to, from, bytes);
    simt_accessed(to, bytes, FAKE_STORE);
    c.at = offset_of(w, from, bytes, "a bulk store");
    issue(w, &c);
}

void simt_tile_issue(struct worker *w, void *to, const CUtensorMap *map, int32_t x, int32_t y,
                     uint64_t *bar)
{
    struct copy c = {.kind = COPY_LOAD, .bar = bar, .x = x, .y = y};
    struct fake_tensor_map *m = &c.map;

    memcpy(m, map, sizeof(*m));
    if ((uintptr_t)map % 64 != 0 || m->magic != FAKE_MAP_MAGIC)
        simt_die(w, "thread %u: there is no tensor map at %p", w->now->number, (const void *)map);
    c.bytes = ROW_BYTES * m->box[1];
    c.at = offset_of(w, to, c.bytes, "a box");
    if (c.at % 128 != 0)
        simt_die(w, "thread %u: a box at %#x of shared memory, not a multiple of 128",
                 w->now->number, c.at);
    issue(w, &c);
}

void simt_tile_load(void *to, const CUtensorMap *map, int32_t x, int32_t y, uint64_t *bar)
{
    simt_tile_issue(simt_place()->worker, to, map, x, y, bar);
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
    struct async *a = w->async;

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

/* ---- copies of 16 bytes by threads: executed as late as possible ---- */

static void run_later(struct lane *self, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        memcpy(self->later[i].to, self->later[i].from, UNIT);
    self->laters -= n;
    memmove(self->later, self->later + n, self->laters * sizeof(*self->later));
}

void simt_copy16(void *to, const void *from)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;

    check_bulk(w, from, to, UNIT);
    simt_accessed(from, UNIT, FAKE_LOAD);
    (void)offset_of(w, to, UNIT, "a copy");
    (void)*(const volatile char *)from;
    if (self->laters == SIMT_LATER)
        run_later(self, 1);
    self->later[self->laters++] = (struct copy16){to, from, self->later_groups};
}

void simt_copy_commit(void)
{
    simt_self()->later_groups++;
}

void simt_copy_wait(uint32_t pending)
{
    struct lane *self = simt_self();
    uint32_t n = 0;

    while (n < self->laters && self->later[n].group + pending < self->later_groups)
        n++;
    run_later(self, n);
}

/* ---- blocks ---- */

void simt_async_begin(struct worker *w)
{
    struct async *a = w->async;

    w->fenced = false;
    memset(a->view, GARBAGE, w->shared_bytes);
    a->copies = a->barriers = a->fences = 0;
    a->inits = false;
}

void simt_async_end(struct worker *w)
{
    struct async *a = w->async;

    for (uint32_t i = 0; i < w->lanes; i++)
        if (w->lane[i].laters > 0)
            simt_die(w, "thread %u has ended, and has not waited for its copies", i);
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
