/* What threads of a block do together, and words that ranks share. */
#include <string.h>

#include "asan.h"
#include "base/clock.h"
#include "block.h"

enum { POLLS = 16 }; /* looks at one thing or another before others get their turn */

static uint32_t number_of(const struct lane *lane)
{
    const uint3 t = lane->place.thread;
    const dim3 n = lane->place.threads;

    return t.x + n.x * (t.y + n.y * t.z);
}

static void forget(struct lane *lane)
{
    lane->polls = 0;
    lane->looked_at = NULL;
}

static void comes_to(struct lane *lane, enum lane_state state, int op, uint32_t mask,
                     const void *caller)
{
    lane->state = state;
    lane->op = op;
    lane->mask = mask;
    lane->caller = caller;
}

/* ---- a warp ---- */

static uint64_t reduce(const struct meeting *m)
{
    uint64_t all = m->value[__builtin_ctz(m->mask)];

    for (uint32_t i = 0; i < SIMT_WARP; i++) {
        uint64_t v = m->value[i];

        if ((m->mask >> i & 1) == 0 || i == (uint32_t)__builtin_ctz(m->mask))
            continue;
        all = m->op == SIMT_ADD          ? (uint32_t)(all + v)
              : m->op == SIMT_MIN        ? (v < all ? v : all)
              : m->op == SIMT_MAX        ? (v > all ? v : all)
              : m->op == SIMT_MIN_SIGNED ? ((int32_t)v < (int32_t)all ? v : all)
              : m->op == SIMT_MAX_SIGNED ? ((int32_t)v > (int32_t)all ? v : all)
              : m->op == SIMT_AND        ? (all & v)
              : m->op == SIMT_OR         ? (all | v)
                                         : (all ^ v);
    }
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
            simt_die(w, "lane %u shuffles from lane %u, which is not in its mask %08x",
                     lane, m->arg[lane], m->mask);
        return m->value[m->arg[lane]];
    case SIMT_BALLOT:
        return lanes_with(m, 1);
    case SIMT_MATCH:
        return lanes_with(m, m->value[lane]);
    default:
        return reduce(m);
    }
}

static void go_on(struct worker *w, struct warp *warp, struct meeting *m, uint32_t first)
{
    for (uint32_t i = 0; i < SIMT_WARP; i++) {
        struct lane *lane = w->lane[first + i];

        if ((m->mask >> i & 1) == 0)
            continue;
        lane->result = outcome(w, m, i);
        lane->state = LANE_READY;
        forget(lane);
    }
    m->here = 0;
    warp->snapshots = 0;
}

uint64_t simt_warp(enum simt_warp_op op, uint32_t mask, uint64_t value, uint32_t arg)
{
    struct worker *w = simt_worker;
    struct lane *self = w->now;
    uint32_t number = number_of(self), lane = number % SIMT_WARP;
    struct warp *warp = &w->warp[number / SIMT_WARP];
    struct meeting *m = &warp->meeting[mask == 0 ? 0 : __builtin_ctz(mask)];

    comes_to(self, LANE_IN_WARP, op, mask, __builtin_return_address(0));
    if ((mask >> lane & 1) == 0 || (w->lanes - (number - lane) < SIMT_WARP &&
                                    mask >> (w->lanes - (number - lane)) != 0))
        simt_die(w, "thread %u calls a warp's operation with mask %08x, which %s", number,
                 mask,
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
    if (m->here == mask)
        go_on(w, warp, m, number - lane);
    simt_pass(w); /* also the last: lanes go on in order */
    return simt_worker->now->result;
}

/* ---- a block ---- */

int simt_block(enum simt_block_op op, int value)
{
    struct worker *w = simt_worker;

    comes_to(w->now, LANE_IN_BLOCK, op, 0, __builtin_return_address(0));
    if (w->here == 0) {
        w->block_op = op;
        w->counted = 0;
    } else if (w->block_op != (int)op) {
        simt_die(w, "its threads are at different kinds of __syncthreads");
    }
    w->counted += value != 0;
    if (++w->here == w->lanes) {
        uint32_t n = w->counted;

        w->here = 0;
        for (uint32_t i = 0; i < w->lanes; i++) {
            w->lane[i]->state = LANE_READY;
            w->lane[i]->result = op == SIMT_SYNC_AND  ? n == w->lanes
                                 : op == SIMT_SYNC_OR ? n > 0
                                                      : n;
            forget(w->lane[i]);
        }
        for (uint32_t i = 0; i < (w->lanes + SIMT_WARP - 1) / SIMT_WARP; i++)
            w->warp[i].snapshots = 0;
    }
    simt_pass(w);
    return (int)simt_worker->now->result;
}

/* ---- words that ranks share ---- */

static void let_others(struct worker *w)
{
    w->polled = true;
    w->now->polls = 0;
    simt_pass(w);
}

void simt_polled(void)
{
    if (++simt_worker->now->polls > POLLS)
        let_others(simt_worker);
}

uint64_t simt_time(void)
{
    simt_polled();
    return clock_ns();
}

static void look_at(const void *what)
{
    struct lane *lane = simt_worker->now;

    if (lane->looked_at == what)
        let_others(simt_worker);
    else
        simt_polled();
    simt_worker->now->looked_at = what;
}

uint64_t simt_load(const uint64_t *word)
{
    look_at(word);
    simt_worker->warp[number_of(simt_worker->now) / SIMT_WARP].snapshots = 0;
    /* Acquire, also where the kernel asks for less: who waits for what is told is elsewhere. */
    return __atomic_load_n(word, __ATOMIC_ACQUIRE);
}

/* From its end to its beginning, as it is written the other way round: what has come is there
 * together with all before it. A line may reach beyond the memory that it ends. */
__attribute__((no_sanitize("address"))) static void take_line(struct snapshot *s,
                                                              const char *line)
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

void simt_load_pair(const char *from, uint64_t *first, uint64_t *second)
{
    struct worker *w = simt_worker;
    const struct lane *self = w->now;
    uint32_t number = number_of(self), at = (uintptr_t)from % SIMT_LINE / 8;
    uint32_t bit = 1u << number % SIMT_WARP;
    const char *line = from - (uintptr_t)from % SIMT_LINE;
    const volatile uint64_t *pair = (const volatile uint64_t *)(const void *)from;
    struct snapshot *s;

    if ((uintptr_t)from % 16 != 0)
        simt_die(w, "thread %u loads 16 bytes at %p", number, (const void *)from);
    (void)pair[0]; /* may it be read at all? */
    (void)pair[1];
    s = find_line(&w->warp[number / SIMT_WARP], line);
    if ((s->seen[at / 2] & bit) != 0) {
        let_others(w); /* it waits, and the line may move meanwhile */
        s = find_line(&w->warp[number / SIMT_WARP], line);
        if ((s->seen[at / 2] & bit) != 0)
            take_line(s, line);
    }
    s->seen[at / 2] |= bit;
    *first = s->word[at];
    *second = s->word[at + 1];
}

void simt_store_pair(char *to, uint64_t first, uint64_t second)
{
    uint64_t *word = (uint64_t *)(void *)to;

    if ((uintptr_t)to % 16 != 0)
        simt_die(simt_worker, "thread %u stores 16 bytes at %p",
                 number_of(simt_worker->now), (void *)to);
    __atomic_store_n(word, first, __ATOMIC_RELEASE);
    __atomic_store_n(word + 1, second, __ATOMIC_RELEASE);
}
