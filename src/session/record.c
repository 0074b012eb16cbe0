/* Where a rank notes what it does. A turn is the room of one iteration: how many events each
 * lane has, and the events. What a turn is of is said last and taken back first, so that who
 * looks after a rank was killed finds each turn whole or not at all. */
#include "session/session.h"

#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

#include <epa2a/wait.h>
#include "base/file.h"
#include "base/text.h"

enum { SAMPLES = 1000, LINE = 64, ROUNDS = 32, LATE_NS = 300000 };

/* Where what is in a record: turns that are kept, one more, and one for what belongs
 * to no iteration; and what is beside them. */
struct places {
    uint32_t turns;
    uint64_t *iteration;           /* [turns] 1 + the iteration that a turn is of; 0: none */
    struct epa_trace_lane *lane;   /* [turns][lanes] */
    struct epa_trace_event *event; /* [turns][lanes][room] */
    struct epa_trace_event *beside[EPA_TRACE_BESIDES];
    size_t bytes; /* of all of it */
};

static size_t round_up(size_t at)
{
    return (at + LINE - 1) / LINE * LINE;
}

static struct places places_in(const struct record *record, const struct record_shape *shape)
{
    struct places p = {.turns = shape->turns + 2};
    size_t lanes = (size_t)p.turns * shape->lanes;
    uintptr_t base = (uintptr_t)record; /* 0: only bytes are asked for */
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
    /* Acquire: epa_trace_add_beside(). Its writer may be at the oldest, as it was killed. */
    uint64_t noted = __atomic_load_n(&record->noted[which], __ATOMIC_ACQUIRE);
    uint64_t room = shape->beside[which], first = noted < room ? 0 : noted - room + 1;

    for (uint64_t i = first; i < noted && room > 0; i++)
        fn(arg, &event[i % room]);
}

static void take_turn(struct recorder *r, uint32_t turn)
{
    struct places p = places_in(r->record, &r->shape);
    size_t at = (size_t)turn * r->shape.lanes;

    r->trace.lane = p.lane + at;
    r->trace.event = p.event + at * r->shape.room;
}

static void empty(struct recorder *r)
{
    for (uint32_t i = 0; i < r->shape.lanes; i++) {
        __atomic_store_n(&r->trace.lane[i].used, 0, __ATOMIC_RELAXED);
        r->trace.lane[i].dropped = 0;
    }
}

void recorder_init(struct recorder *r, struct record *record, const struct record_shape *shape)
{
    memset(record, 0, record_bytes(shape)); /* touched now, not while something runs */
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

    take_turn(r, turn);
    if (*of == iteration + 1)
        return;
    /* Release, twice: pairs with record_part(), which finds the events of one iteration. */
    __atomic_store_n(of, 0, __ATOMIC_RELEASE);
    empty(r);
    __atomic_store_n(of, iteration + 1, __ATOMIC_RELEASE);
}

void recorder_turn_none(struct recorder *r)
{
    take_turn(r, r->shape.turns + 1);
    empty(r);
}

/* Turn i, round about, unless it is of an iteration: then that of none. */
static void take_idle(struct recorder *r, uint32_t i)
{
    struct places p = places_in(r->record, &r->shape);
    uint32_t turn = i % p.turns;

    take_turn(r, p.iteration[turn] != 0 ? p.turns - 1 : turn);
}

/* As ranks note: the clock is read at both ends, and memory was last written many iterations
 * ago. Turns are taken round about for that. */
void recorder_ready(struct recorder *r)
{
    uint64_t start = epa_now_ns();

    for (uint32_t i = 0; i < SAMPLES; i++) {
        take_idle(r, i);
        if (r->trace.lane[0].used == r->shape.room)
            empty(r);
        (void)epa_trace_slice(&r->trace, 0, 0, epa_trace_now(&r->trace), EPA_TRACE_NOBODY, 0, 0);
    }
    r->record->event_ns = (double)(epa_now_ns() - start) / SAMPLES;
    for (uint32_t i = 0; i < r->shape.turns + 2; i++) {
        take_idle(r, i);
        empty(r);
    }
    recorder_turn_none(r);
    /* Release: pairs with who writes the trace. */
    __atomic_store_n(&r->record->ready, 1, __ATOMIC_RELEASE);
}

/* ---- clocks ---- */

/* Clocks of hosts against that of rank 0, over the bootstrap. Nobody leaves an allgather
 * before all have entered it. So, with d what clock r shows more than clock 0,
 *     enter(r) - leave(0) <= d <= leave(r) - enter(0),
 * whatever way the messages go. The bound below is tight when r enters last, and that above
 * when rank 0 does: the two take turns in being late. */

/* What a rank says in a round: when it entered this, and when it left the one before. */
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

/* Whether each rank, and this one, is on the node of rank 0 and reads its clock. */
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

/* Round i brought when rank 0 left round i - 1. */
static void narrow(struct record_clock *out, const struct stamp *mine, uint64_t left,
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

        if (first == (i % 2 == 0)) /* asleep, as the others may be here and need the core */
            nanosleep(&(struct timespec){.tv_nsec = LATE_NS}, NULL);
        now = (struct stamp){epa_now_ns(), mine.left};
        status = boot->allgather(boot, &now, sizeof(now), all);
        if (status != EPA_OK)
            return status;
        now.left = epa_now_ns();
        if (i > 0)
            narrow(out, &mine, mine.left, &zero, all[0].left);
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
