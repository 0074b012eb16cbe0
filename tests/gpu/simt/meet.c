/* Common operations of the threads of a block, and words shared by ranks. */
#include <string.h>

#include "asan.h"
#include <epa2a/wait.h>
#include "block.h"

enum { POLLS = 16 }; /* polls of any kind before other lanes get a turn */

static struct warp *warp_of(struct worker *w, const struct lane *lane)
{
    return &w->warp[lane->number / SIMT_WARP];
}

static void comes_to(struct worker *w, enum lane_state state, int op, uint32_t mask,
                     const void *caller)
{
    struct lane *lane = w->now;

    simt_is_not_ready(w, lane, state);
    lane->op = op;
    lane->mask = mask;
    lane->caller = caller;
}

/* ---- a warp ---- */

static uint64_t any_bits(const struct meeting *m)
{
    uint64_t all = 0;

    for (uint32_t left = m->mask; left != 0; left &= left - 1)
        all |= m->value[__builtin_ctz(left)];
    return all;
}

static uint64_t lanes_with(const struct meeting *m, uint64_t value)
{
    uint32_t lanes = 0;

    for (uint32_t i = 0; i < SIMT_WARP; i++)
        if ((m->mask >> i & 1) != 0 && m->value[i] == value)
            lanes |= 1u << i;
    return lanes;
}

static uint64_t outcome(const struct worker *w, const struct meeting *m, uint32_t lane)
{
    switch (m->op) {
    case SIMT_NOTHING:
    case SIMT_SYNCWARP:
        return 0;
    case SIMT_SHFL:
        if ((m->mask >> m->arg[lane] & 1) == 0)
            simt_die(w, "lane %u shuffles from lane %u, which is not in its mask %08x", lane,
                     m->arg[lane], m->mask);
        return m->value[m->arg[lane]];
    case SIMT_BALLOT:
        return lanes_with(m, 1);
    default:
        return any_bits(m);
    }
}

/* Releases the lanes that have met, and drops their snapshots, so that later loads read memory
 * again. */
static void has_met(struct warp *warp)
{
    warp->snapshots = 0;
    if (warp->meetings < SIMT_MEETINGS)
        warp->meetings++;
}

static void go_on(struct worker *w, struct warp *warp, struct meeting *m, uint32_t first)
{
    bool own = m->op == SIMT_SHFL; /* SIMT_SHFL: a result per lane */
    uint64_t all = own ? 0 : outcome(w, m, 0);

    for (uint32_t left = m->mask; left != 0; left &= left - 1) {
        uint32_t i = (uint32_t)__builtin_ctz(left);
        struct lane *lane = &w->lane[first + i];

        lane->result = own ? outcome(w, m, i) : all;
        lane->polls = 0;
        simt_is_ready(w, lane);
    }
    m->here = 0;
    has_met(warp);
}

uint64_t simt_warp(enum simt_warp_op op, uint32_t mask, uint64_t value, uint32_t arg)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;
    uint32_t number = self->number, lane = number % SIMT_WARP;
    struct warp *warp = warp_of(w, self);
    struct meeting *m = &warp->meeting[mask == 0 ? 0 : __builtin_ctz(mask)];

    comes_to(w, LANE_IN_WARP, op, mask, __builtin_return_address(0));
    if ((mask >> lane & 1) == 0 ||
        (w->lanes - (number - lane) < SIMT_WARP && mask >> (w->lanes - (number - lane)) != 0))
        simt_die(w, "thread %u calls a warp's operation with mask %08x, which %s", number, mask,
                 (mask >> lane & 1) == 0 ? "does not have its lane"
                                         : "has lanes that the block has not");
    if (m->here == 0) {
        m->op = op;
        m->mask = mask;
    } else if (m->op != op || m->mask != mask) {
        simt_die(w,
                 "warp %u has diverged: thread %u is at another operation, or has "
                 "another mask (%08x), than lanes %08x",
                 number / SIMT_WARP, number, mask, m->here);
    }
    m->value[lane] = value;
    m->arg[lane] = arg;
    m->here |= 1u << lane;
    if (m->here == mask) {
        go_on(w, warp, m, number - lane);
        simt_pass_warp(w); /* the last lane passes as well: lanes continue in order */
    } else {
        simt_pass(w);
    }
    return self->result;
}

/* ---- a block ---- */

int simt_block(enum simt_block_op op, int value)
{
    struct worker *w = simt_place()->worker;

    comes_to(w, LANE_IN_BLOCK, op, 0, __builtin_return_address(0));
    if (w->here == 0) {
        w->block_op = op;
        w->counted = 0;
    } else if (w->block_op != (int)op) {
        simt_die(w, "its threads are at different kinds of __syncthreads");
    }
    w->counted += value != 0;
    if (++w->here == w->lanes) {
        uint32_t n = w->counted;

        w->here = w->idle = 0;
        w->block_result = op == SIMT_SYNC_AND ? n == w->lanes : n > 0;
        for (uint32_t i = 0; i * SIMT_WARP < w->lanes; i++) {
            uint32_t lanes = w->lanes - i * SIMT_WARP;

            w->ready[i] = lanes < SIMT_WARP ? (1u << lanes) - 1 : ~0u;
            has_met(&w->warp[i]);
        }
        simt_pass_warp(w);
    } else {
        simt_pass(w);
    }
    return w->block_result;
}

static bool is_at(const struct lane *lane, const void *named)
{
    return lane->op == *(const int *)named;
}

/* Releases the threads that wait at the barrier. */
static void named_ends(struct worker *w, int id)
{
    w->named[id].here = w->idle = 0;
    for (uint32_t i = 0; i < w->lanes; i += SIMT_WARP) {
        const struct lane *lane = &w->lane[i];

        if (!simt_can_go_on(w, lane) && lane->state == LANE_IN_NAMED && is_at(lane, &id))
            has_met(warp_of(w, lane));
    }
    (void)simt_wake(w, LANE_IN_NAMED, is_at, &id);
}

void simt_named(uint32_t id, uint32_t threads)
{
    struct worker *w = simt_place()->worker;
    struct named *named;

    if (id == 0 || id >= SIMT_NAMED || threads == 0 || threads % SIMT_WARP != 0 ||
        threads > (w->lanes + SIMT_WARP - 1) / SIMT_WARP * SIMT_WARP)
        simt_die(w, "thread %u is at named barrier %u of %u threads", w->now->number, id, threads);
    named = &w->named[id];
    if (named->here != 0 && named->threads != threads)
        simt_die(w, "named barrier %u is of %u threads for thread %u, and of %u for others", id,
                 threads, w->now->number, named->threads);
    named->threads = threads;
    if (++named->here < threads) {
        simt_wait(w, LANE_IN_NAMED, (int)id, __builtin_return_address(0));
        return;
    }
    named_ends(w, (int)id);
    has_met(warp_of(w, w->now));
    simt_pass_warp(w); /* lanes continue in order */
}

/* ---- registers ---- */

enum { REGISTERS = 65536, MOST_REGISTERS = 256, LEAST_REGISTERS = 24 };

/* Returns the initial registers per thread for __launch_bounds__(threads, 1). */
static uint32_t first_registers(const struct worker *w)
{
    uint32_t n = REGISTERS / w->lanes / 8 * 8;

    return n < MOST_REGISTERS - 1 ? n : MOST_REGISTERS - 1;
}

void simt_registers(uint32_t registers, bool more)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;
    uint32_t were = self->registers == 0 ? first_registers(w) : self->registers;

    if (registers % 8 != 0 || registers < LEAST_REGISTERS || registers > MOST_REGISTERS ||
        (self->registers != 0 && (more ? registers < were : registers > were)))
        simt_die(w, "thread %u has %u registers and is to have %s: %u", self->number, were,
                 more ? "more" : "less", registers);
    self->registers = registers;
}

void simt_registers_end(const struct worker *w)
{
    uint32_t all = 0, first = first_registers(w);

    for (uint32_t i = 0; i < w->lanes; i++) {
        const struct lane *lane = &w->lane[i], *leader = lane - i % SIMT_WARPGROUP;

        if (lane->registers != leader->registers)
            simt_die(w, "thread %u has not the registers of all of its warpgroup", i);
        all += lane->registers == 0 ? first : lane->registers;
    }
    if (all > first * w->lanes)
        simt_die(w, "its threads have %u registers, and were launched with %u", all,
                 first * w->lanes);
}

/* ---- words that ranks share ---- */

/* Passes the turn after an unsuccessful poll. */
static void let_others(struct worker *w)
{
    w->polled = true;
    w->looked = true;
    w->now->polls = 0;
    warp_of(w, w->now)->meetings = 0;
    simt_pass(w);
}

void simt_polled(void)
{
    simt_place()->worker->looked = true;
    if (++simt_self()->polls > POLLS)
        let_others(simt_place()->worker);
}

uint64_t simt_time(void)
{
    simt_polled();
    return epa_now_ns();
}

/* Returns true if the lane has read the same value three times and therefore waits. An arrived
 * value is read twice: once to detect it and once to take it. */
static bool is_in_vain(struct worker *w, struct look *last, const void *at, uint64_t first,
                       uint64_t second)
{
    bool same = last->at == at && last->first == first && last->second == second;

    if (!same && last->at == at) /* the value has changed */
        warp_of(w, w->now)->meetings = SIMT_MEETINGS;
    *last = (struct look){at, first, second, same ? last->again + 1 : 0};
    return last->again > 1;
}

/* Loads with acquire, even if the kernel requests less: the data that the word announces is read by
 * other functions. */
uint64_t simt_load(const uint64_t *word)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;
    uint64_t value = __atomic_load_n(word, __ATOMIC_ACQUIRE);

    w->looked = true;
    if (is_in_vain(w, &self->word, word, value, 0)) {
        let_others(w);
        value = __atomic_load_n(word, __ATOMIC_ACQUIRE);
        (void)is_in_vain(w, &self->word, word, value, 0); /* the value may have changed meanwhile */
    }
    warp_of(w, self)->snapshots = 0;
    return value;
}

/* Reads the line from its end to its beginning, opposite to the order of writes: a word that has
 * arrived implies all words before it. The line may extend beyond the memory block. */
__attribute__((no_sanitize("address"))) static void take_line(struct snapshot *s, const char *line)
{
    const uint64_t *word = (const uint64_t *)(const void *)line;

    s->line = line;
    memset(s->seen, 0, sizeof(s->seen));
    for (int i = SIMT_LINE_WORDS - 1; i >= 0; i--)
        s->word[i] = __atomic_load_n(word + i, __ATOMIC_ACQUIRE);
}

static struct snapshot *find_line(struct warp *warp, const char *line)
{
    for (uint32_t i = 0; i < warp->snapshots; i++)
        if (warp->snapshot[i].line == line)
            return &warp->snapshot[i];
    if (warp->snapshots == SIMT_SNAPSHOTS)
        warp->snapshots = 0;
    take_line(&warp->snapshot[warp->snapshots], line);
    return &warp->snapshot[warp->snapshots++];
}

/* Returns the 16 bytes of this lane from the line as its first lane read it. */
static void look_at_line(struct worker *w, const char *from, uint64_t *first, uint64_t *second)
{
    uint32_t bit = 1u << w->now->number % SIMT_WARP, at = (uintptr_t)from % SIMT_LINE / 8;
    const char *line = from - (uintptr_t)from % SIMT_LINE;
    struct snapshot *s = find_line(warp_of(w, w->now), line);

    if ((s->seen[at / 2] & bit) != 0) { /* second read: first give the other lanes their part */
        simt_pass(w);
        s = find_line(warp_of(w, w->now), line); /* another slot may hold the line now */
    }
    if ((s->seen[at / 2] & bit) != 0)
        take_line(s, line);
    s->seen[at / 2] |= bit;
    *first = s->word[at];
    *second = s->word[at + 1];
}

void simt_load_pair(const char *from, uint64_t *first, uint64_t *second)
{
    struct worker *w = simt_place()->worker;
    struct lane *self = w->now;
    const volatile uint64_t *pair = (const volatile uint64_t *)(const void *)from;

    if ((uintptr_t)from % 16 != 0)
        simt_die(w, "thread %u loads 16 bytes at %p", self->number, (const void *)from);
    simt_accessed(from, 16, FAKE_LOAD);
    (void)pair[0]; /* detects invalid addresses */
    (void)pair[1];
    look_at_line(w, from, first, second);
    /* The lane continues without a wait: other lanes have the same state of the line, and must not
     * get a part from a later read. */
    if (is_in_vain(w, &self->pair, from, *first, *second)) {
        w->polled = true;
        warp_of(w, self)->meetings = 0;
    }
}

void simt_store_pair(char *to, uint64_t first, uint64_t second)
{
    uint64_t *word = (uint64_t *)(void *)to;

    if ((uintptr_t)to % 16 != 0)
        simt_die(simt_place()->worker, "thread %u stores 16 bytes at %p", simt_self()->number,
                 (void *)to);
    simt_accessed(to, 16, FAKE_STORE);
    __atomic_store_n(word, first, __ATOMIC_RELEASE);
    __atomic_store_n(word + 1, second, __ATOMIC_RELEASE);
}
