/* Where a rank notes what it does. A turn is the room of one iteration: how many events each
 * lane has, and the events. What a turn is of is said last and taken back first, so that who
 * looks after a rank was killed finds each turn whole or not at all. */
#include "trace/record.h"

#include <string.h>

#include "base/clock.h"

enum { SAMPLES = 1000, LINE = 64 };

/* Turns that are kept, one more, and one for what belongs to no iteration. */
static uint32_t turns_of(const struct record_shape *shape)
{
    return shape->turns + 2;
}

static size_t round_up(size_t bytes)
{
    return (bytes + LINE - 1) / LINE * LINE;
}

static size_t iterations_at(void)
{
    return round_up(sizeof(struct record));
}

static size_t lanes_at(const struct record_shape *shape)
{
    return iterations_at() + round_up(turns_of(shape) * sizeof(uint64_t));
}

static size_t events_at(const struct record_shape *shape)
{
    return lanes_at(shape) + (size_t)turns_of(shape) * shape->lanes * sizeof(struct epa_trace_lane);
}

size_t record_bytes(const struct record_shape *shape)
{
    return round_up(events_at(shape) + (size_t)turns_of(shape) * shape->lanes * shape->room *
                                           sizeof(struct epa_trace_event));
}

/* [turns] 1 + the iteration that a turn is of; 0: none. */
static uint64_t *iterations_of(const struct record *record)
{
    return (uint64_t *)(void *)((char *)record + iterations_at());
}

static struct epa_trace_lane *lanes_of(const struct record *record,
                                       const struct record_shape *shape, uint32_t turn)
{
    return (struct epa_trace_lane *)(void *)((char *)record + lanes_at(shape)) +
           (size_t)turn * shape->lanes;
}

static struct epa_trace_event *events_of(const struct record *record,
                                         const struct record_shape *shape, uint32_t turn)
{
    return (struct epa_trace_event *)(void *)((char *)record + events_at(shape)) +
           (size_t)turn * shape->lanes * shape->room;
}

bool record_part(const struct record *record, const struct record_shape *shape, uint32_t turn,
                 uint32_t lane, struct record_part *out)
{
    /* Acquire: pairs with the release in recorder_turn(). */
    uint64_t iteration = __atomic_load_n(&iterations_of(record)[turn], __ATOMIC_ACQUIRE);
    const struct epa_trace_lane *from = &lanes_of(record, shape, turn)[lane];
    uint32_t used = __atomic_load_n(&from->used, __ATOMIC_ACQUIRE); /* epa_trace_add() */

    if (iteration == 0)
        return false;
    *out = (struct record_part){
        .iteration = iteration - 1,
        .event = events_of(record, shape, turn) + (size_t)lane * shape->room,
        .n = used < shape->room ? used : shape->room,
        .dropped = from->dropped,
    };
    return true;
}

static void take_turn(struct recorder *r, uint32_t turn)
{
    r->trace.lane = lanes_of(r->record, &r->shape, turn);
    r->trace.event = events_of(r->record, &r->shape, turn);
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
    recorder_turn_none(r);
}

void recorder_turn(struct recorder *r, uint64_t iteration)
{
    uint32_t turn = (uint32_t)(iteration % (r->shape.turns + 1));
    uint64_t *of = &iterations_of(r->record)[turn];

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
    uint32_t turn = i % turns_of(&r->shape), none = r->shape.turns + 1;

    take_turn(r, turn < none && iterations_of(r->record)[turn] != 0 ? none : turn);
}

/* As ranks note: the clock is read at both ends, and memory was last written many iterations
 * ago. Turns are taken round about for that. */
void recorder_ready(struct recorder *r)
{
    uint64_t start = clock_ns();

    for (uint32_t i = 0; i < SAMPLES; i++) {
        take_idle(r, i);
        if (r->trace.lane[0].used == r->shape.room)
            empty(r);
        (void)epa_trace_slice(&r->trace, 0, 0, epa_trace_now(&r->trace), EPA_TRACE_NOBODY, 0, 0);
    }
    r->record->event_ns = (double)(clock_ns() - start) / SAMPLES;
    for (uint32_t i = 0; i < turns_of(&r->shape); i++) {
        take_idle(r, i);
        empty(r);
    }
    recorder_turn_none(r);
    /* Release: pairs with who writes the trace. */
    __atomic_store_n(&r->record->ready, 1, __ATOMIC_RELEASE);
}
