/* Trace record of a rank. A turn is the slot of one iteration: the number of events of each lane, and
 * the events. The rank writes the iteration number of a slot last and clears it first, so that a reader
 * finds each slot complete or empty even after the rank was killed. */
#include "session/record.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "base/sysfile.h"

enum { SAMPLES = 1000, CACHE_LINE = 64, ROUNDS = 32, LATE_NS = 300000 };

/* Layout of a record: a slot per kept iteration, a spare slot, one slot for events outside iterations,
 * and the side lanes. */
struct places {
    uint32_t turns;
    uint64_t *iteration;           /* [turns] 1 + number of the slot's iteration; 0: empty */
    struct epa_trace_lane *lane;   /* [turns][lanes] */
    struct epa_trace_event *event; /* [turns][lanes][room] */
    struct epa_trace_event *beside[EPA_TRACE_BESIDES];
    size_t bytes; /* of the whole record */
};

static size_t round_up(size_t at)
{
    return (at + CACHE_LINE - 1) / CACHE_LINE * CACHE_LINE;
}

static struct places places_in(const struct record *record, const struct record_shape *shape)
{
    struct places p = {.turns = shape->turns + 2};
    size_t lanes = (size_t)p.turns * shape->lanes;
    uintptr_t base = (uintptr_t)record; /* 0: the caller uses `bytes` only */
    size_t at = round_up(sizeof(*record));

    p.iteration = (uint64_t *)(base + at);
    at += round_up(p.turns * sizeof(*p.iteration));
    p.lane = (struct epa_trace_lane *)(base + at);
    at += lanes * sizeof(*p.lane);
    p.event = (struct epa_trace_event *)(base + at);
    at += lanes * shape->room * sizeof(*p.event);
    for (uint32_t i = 0; i < EPA_TRACE_BESIDES; i++) {
        p.beside[i] = (struct epa_trace_event *)(base + at);
        at += shape->beside[i] * sizeof(*p.event);
    }
    p.bytes = round_up(at);
    return p;
}

size_t record_bytes(const struct record_shape *shape)
{
    return places_in(NULL, shape).bytes;
}

bool record_part(const struct record *record, const struct record_shape *shape, uint32_t turn,
                 uint32_t lane, struct record_part *out)
{
    struct places p = places_in(record, shape);
    size_t at = (size_t)turn * shape->lanes + lane;
    /* Acquire: pairs with the release in recorder_turn(). */
    uint64_t iteration = __atomic_load_n(&p.iteration[turn], __ATOMIC_ACQUIRE);
    const struct epa_trace_lane *from = &p.lane[at];
    uint32_t used = __atomic_load_n(&from->used, __ATOMIC_ACQUIRE); /* epa_trace_add() */

    if (iteration == 0)
        return false;
    *out = (struct record_part){
        .iteration = iteration - 1,
        .event = p.event + at * shape->room,
        .n = used < shape->room ? used : shape->room,
        .dropped = from->dropped,
    };
    return true;
}

void record_each_beside(const struct record *record, const struct record_shape *shape,
                        uint32_t which, void (*fn)(void *arg, const struct epa_trace_event *),
                        void *arg)
{
    const struct epa_trace_event *event = places_in(record, shape).beside[which];
    /* Acquire: pairs with epa_trace_add_beside(). A killed writer may have left the oldest event
     * incomplete, so a full lane begins with the second one. */
    uint64_t noted = __atomic_load_n(&record->noted[which], __ATOMIC_ACQUIRE);
    uint64_t room = shape->beside[which], first = noted < room ? 0 : noted - room + 1;

    for (uint64_t i = first; i < noted && room > 0; i++)
        fn(arg, &event[i % room]);
}

static void select_slot(struct recorder *r, uint32_t turn)
{
    struct places p = places_in(r->record, &r->shape);
    size_t at = (size_t)turn * r->shape.lanes;

    r->trace.lane = p.lane + at;
    r->trace.event = p.event + at * r->shape.room;
}

static void clear_lanes(struct recorder *r)
{
    for (uint32_t i = 0; i < r->shape.lanes; i++) {
        __atomic_store_n(&r->trace.lane[i].used, 0, __ATOMIC_RELAXED);
        r->trace.lane[i].dropped = 0;
    }
}

void recorder_init(struct recorder *r, struct record *record, const struct record_shape *shape)
{
    memset(record, 0, record_bytes(shape)); /* maps all pages before the first iteration */
    *r = (struct recorder){
        .trace = {.lanes = shape->lanes, .room = shape->room, .names = &record->names},
        .record = record,
        .shape = *shape,
    };
    for (uint32_t i = 0; i < EPA_TRACE_BESIDES; i++)
        r->trace.beside[i] = (struct epa_trace_beside){
            &record->noted[i], places_in(record, shape).beside[i], shape->beside[i]};
    recorder_turn_none(r);
}

void recorder_turn(struct recorder *r, uint64_t iteration)
{
    uint32_t turn = (uint32_t)(iteration % (r->shape.turns + 1));
    uint64_t *of = &places_in(r->record, &r->shape).iteration[turn];

    select_slot(r, turn);
    if (*of == iteration + 1)
        return;
    /* Release, twice: pairs with the acquire in record_part(), which then reads events of one
     * iteration only. */
    __atomic_store_n(of, 0, __ATOMIC_RELEASE);
    clear_lanes(r);
    __atomic_store_n(of, iteration + 1, __ATOMIC_RELEASE);
}

void recorder_turn_none(struct recorder *r)
{
    select_slot(r, r->shape.turns + 1);
    clear_lanes(r);
}

/* Selects slot i modulo the number of slots, or the slot for events outside iterations if slot i
 * contains an iteration. */
static void select_idle_slot(struct recorder *r, uint32_t i)
{
    struct places p = places_in(r->record, &r->shape);
    uint32_t turn = i % p.turns;

    select_slot(r, p.iteration[turn] != 0 ? p.turns - 1 : turn);
}

/* Measures under the conditions of a run: the clock is read at both ends of a slice, and the memory
 * was last written many iterations ago. Therefore the samples cycle through the slots. */
void recorder_ready(struct recorder *r)
{
    uint64_t start = epa_now_ns();

    for (uint32_t i = 0; i < SAMPLES; i++) {
        select_idle_slot(r, i);
        if (r->trace.lane[0].used == r->shape.room)
            clear_lanes(r);
        (void)epa_trace_slice(&r->trace, 0, 0, epa_trace_now(&r->trace), EPA_TRACE_NOBODY, 0, 0);
    }
    r->record->event_ns = (double)(epa_now_ns() - start) / SAMPLES;
    for (uint32_t i = 0; i < r->shape.turns + 2; i++) {
        select_idle_slot(r, i);
        clear_lanes(r);
    }
    recorder_turn_none(r);
    /* Release: pairs with the acquire of the trace writer. */
    __atomic_store_n(&r->record->ready, 1, __ATOMIC_RELEASE);
}

/* ---- clocks ---- */

/* Offset of each host's clock to the clock of rank 0, measured over the bootstrap. No rank leaves an
 * allgather before all ranks have entered it. So the offset d of clock r to clock 0 satisfies
 *     enter(r) - leave(0) <= d <= leave(r) - enter(0),
 * for any route of the messages. The lower bound is tight if r enters last, the upper bound if rank 0
 * enters last: the two are late in alternate rounds. */

/* Message of a rank in a round: time of entry to this round and of leaving the previous one. */
struct stamp {
    uint64_t enter, left;
};

void record_name_clock(char out[RECORD_CLOCK_NAME])
{
    char boot[48] = "", space[40];
    ssize_t n = readlink("/proc/self/ns/time", space, sizeof(space) - 1);

    space[n > 0 ? n : 0] = '\0';
    (void)sysfile_line("", "/proc/sys/kernel/random/boot_id", boot, sizeof(boot));
    memset(out, 0, RECORD_CLOCK_NAME); /* ranks compare all bytes */
    snprintf(out, RECORD_CLOCK_NAME, "%s %s", boot, space);
}

/* Finds out if all ranks, and if this rank, are on the node of rank 0 and read its clock. */
static enum epa_status find_near(struct epa_bootstrap *boot, bool *all_are_near, bool *near)
{
    const struct epa_world *w = &boot->world;
    char mine[RECORD_CLOCK_NAME], (*all)[RECORD_CLOCK_NAME] = memory_alloc(w->size, sizeof(*all));
    enum epa_status status;

    record_name_clock(mine);
    status = boot->allgather(boot, mine, sizeof(mine), all);
    *all_are_near = true;
    for (uint32_t r = 0; status == EPA_OK && r < w->size; r++) {
        bool is_near = (w->node == NULL || w->node[r] == w->node[0]) &&
                       memcmp(all[r], all[0], sizeof(mine)) == 0;

        *all_are_near = *all_are_near && is_near;
        if (r == w->rank)
            *near = is_near;
    }
    free(all);
    return status;
}

/* Narrows the bounds with the times of round i - 1. zero_left: the time at which rank 0 left round
 * i - 1, received in round i. */
static void narrow_bounds(struct record_clock *out, const struct stamp *mine, uint64_t left,
                          const struct stamp *zero, uint64_t zero_left)
{
    int64_t low = (int64_t)(mine->enter - zero_left), high = (int64_t)(left - zero->enter);

    if (!out->known || low > out->low_ns)
        out->low_ns = low;
    if (!out->known || high < out->high_ns)
        out->high_ns = high;
    out->known = true;
}

static enum epa_status exchange_stamps(struct epa_bootstrap *boot, struct stamp *all,
                                       struct record_clock *out)
{
    struct stamp mine = {0, 0}, zero = {0, 0}, now;
    bool first = boot->world.rank == 0;

    for (uint32_t i = 0; i <= ROUNDS; i++) {
        enum epa_status status;

        if (first == (i % 2 == 0)) /* sleeps, since other ranks may need this core */
            nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
        now = (struct stamp){epa_now_ns(), mine.left};
        status = boot->allgather(boot, &now, sizeof(now), all);
        if (status != EPA_OK)
            return status;
        now.left = epa_now_ns();
        if (i > 0)
            narrow_bounds(out, &mine, mine.left, &zero, all[0].left);
        mine = now;
        zero = all[0];
    }
    out->at_ns = mine.left;
    return EPA_OK;
}

enum epa_status record_compare_clocks(struct epa_bootstrap *boot, bool *near,
                                      struct record_clock *out)
{
    struct record_clock clock = {.known = false};
    bool all_are_near;
    enum epa_status status = find_near(boot, &all_are_near, near);
    struct stamp *all;

    if (status != EPA_OK || all_are_near)
        return status;
    all = memory_alloc(boot->world.size, sizeof(*all));
    status = exchange_stamps(boot, all, &clock);
    free(all);
    if (status == EPA_OK)
        *out = clock;
    return status;
}

static double middle(const struct record_clock *c)
{
    return ((double)c->low_ns + (double)c->high_ns) / 2;
}

static double half(const struct record_clock *c)
{
    return fabs((double)c->high_ns - (double)c->low_ns) / 2;
}

struct record_offset record_offset(const struct record *record)
{
    const struct record_clock *before = &record->clock[RECORD_BEFORE];
    const struct record_clock *after = &record->clock[RECORD_AFTER];
    struct record_offset out = {0};

    if (record->near)
        return out;
    out.error_ns = out.drift = NAN;
    if (!before->known)
        return out;
    out.offset_ns = llround(middle(before));
    out.error_ns = half(before);
    if (!after->known || after->at_ns <= before->at_ns)
        return out;
    out.offset_ns = llround(middle(after));
    out.error_ns = fmax(half(before), half(after));
    out.drift = (middle(after) - middle(before)) / ((double)(after->at_ns - before->at_ns) * 1e-9);
    return out;
}

uint64_t record_on_common_clock(const struct record *record, const struct record_offset *is,
                                uint64_t ns)
{
    int64_t offset = is->offset_ns;

    if (!record->near && isfinite(is->drift))
        offset -=
            llround((double)(int64_t)(record->clock[RECORD_AFTER].at_ns - ns) * 1e-9 * is->drift);
    return ns - (uint64_t)offset;
}
