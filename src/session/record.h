/* Where a rank notes what it does while an iteration runs (epa2a/trace.h), in memory that the
 * parent reads however the rank ends: room for the last iterations and one more, as one may
 * be open beside the one before, taken in turn; and a place for what belongs to none. */
#ifndef SESSION_RECORD_H
#define SESSION_RECORD_H

#include <stdbool.h>

#include <epa2a/trace.h>
#include <epa2a/world.h>

struct record_shape {
    uint32_t lanes, turns;              /* turns: iterations that are kept */
    uint32_t room;                      /* events of a lane in an iteration */
    uint32_t beside[EPA_TRACE_BESIDES]; /* events that are kept of each; 0: there is none */
};

/* What the clock of this rank shows more than that of rank 0, in [low_ns, high_ns]. */
struct record_clock {
    bool known;
    uint64_t at_ns; /* by the clock of this rank */
    int64_t low_ns, high_ns;
};

_Static_assert(EPA_TRACE_NAMES <= 64, "a bit for each name");

enum { RECORD_BEFORE, RECORD_AFTER, RECORD_CLOCKS };

/* Of a rank; its events follow it. Written by the rank, all zeros before. */
struct record {
    uint32_t ready;  /* release: what is below, clock[AFTER] and events aside */
    uint32_t n_core; /* of the names, those of the core's own slices, which are first */
    uint64_t stages; /* names that stages have, a bit each */
    bool near;       /* the clock is that of rank 0: they are of one host */
    double event_ns; /* what noting a slice takes, measured */
    struct epa_trace_names names;
    struct record_clock clock[RECORD_CLOCKS];
    uint64_t noted[EPA_TRACE_BESIDES]; /* release: the events before */
};

size_t record_bytes(const struct record_shape *);

/* One iteration of a lane, as it was left; nothing in a record that came from elsewhere is to
 * lead out of it. */
struct record_part {
    uint64_t iteration;
    const struct epa_trace_event *event;
    uint32_t n, dropped;
};
/* `turn` from 0 to shape->turns, that included; false: nothing is there. */
bool record_part(const struct record *, const struct record_shape *, uint32_t turn, uint32_t lane,
                 struct record_part *out);
/* What is kept beside the iterations, the oldest first: calls fn for each event. */
void record_each_beside(const struct record *, const struct record_shape *, uint32_t which,
                        void (*fn)(void *arg, const struct epa_trace_event *), void *arg);

/* Whether the clock of this rank is that of rank 0: they are of one host. */
bool record_is_near(const struct epa_world *);

/* Compares the clocks of hosts with that of rank 0. Collective; takes some milliseconds where any
 * rank is of another host than rank 0. out is known on return if all went well. */
enum epa_status record_compare_clocks(struct epa_bootstrap *, struct record_clock *out);

/* What a rank writes it with. */
struct recorder {
    struct epa_trace trace; /* for algorithms */
    struct record *record;
    struct record_shape shape;
};

void recorder_init(struct recorder *, struct record *, const struct record_shape *);
/* What is noted from now on belongs to `iteration`; to none: it is not kept. By the rank's
 * own thread, while its workers are idle. */
void recorder_turn(struct recorder *, uint64_t iteration);
void recorder_turn_none(struct recorder *);
/* All names of the core and of stages are there: measures what a slice takes. */
void recorder_ready(struct recorder *);

#endif
