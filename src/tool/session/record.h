/* Trace record of a rank: its events during iterations (epa2a/trace.h), in memory that the parent
 * reads even after a crash of the rank. The record has a ring of slots for the last iterations with
 * one spare slot, since two iterations can be open at a time, and one slot for events outside
 * iterations. */
#ifndef RECORD_H
#define RECORD_H

#include <stdbool.h>

#include <epa2a/trace.h>
#include <epa2a/world.h>

struct record_shape {
    uint32_t lanes, turns;              /* turns: number of iterations that the record keeps */
    uint32_t room;                      /* maximum of events of a lane in an iteration */
    uint32_t beside[EPA_TRACE_BESIDES]; /* capacity of each side lane in events; 0: no such lane */
};

/* Bounds of the offset of this rank's clock to the clock of rank 0. */
struct record_clock {
    bool known;
    uint64_t at_ns; /* time of the comparison on the clock of this rank */
    int64_t low_ns, high_ns;
};

_Static_assert(EPA_TRACE_NAMES <= 64, "a bit for each name");

enum { RECORD_BEFORE, RECORD_AFTER, RECORD_CLOCKS };

/* Head of the record of a rank; the events follow. The rank writes it; initially all zeros. */
struct record {
    uint32_t ready;  /* release: covers the members below except clock[RECORD_AFTER] and events */
    uint32_t n_core; /* the first n_core names belong to slices of the core */
    uint64_t stages; /* bit mask of the names that belong to stages */
    bool near;       /* same node and same clock as rank 0 */
    double event_ns; /* measured cost of recording a slice */
    struct epa_trace_names names;
    struct record_clock clock[RECORD_CLOCKS];
    uint64_t noted[EPA_TRACE_BESIDES]; /* release: number of events in each side lane */
};

size_t record_bytes(const struct record_shape *);

/* The events of one lane in one iteration. The reader clamps all counts, since a record from another
 * host can contain any value. */
struct record_part {
    uint64_t iteration;
    const struct epa_trace_event *event;
    uint32_t n, dropped;
};
/* Reads slot `turn`, from 0 to shape->turns inclusive. Returns false for an empty slot. */
bool record_part(const struct record *, const struct record_shape *, uint32_t turn, uint32_t lane,
                 struct record_part *out);
/* Calls fn for each event of side lane `which`, in order of time. */
void record_each_beside(const struct record *, const struct record_shape *, uint32_t which,
                        void (*fn)(void *arg, const struct epa_trace_event *), void *arg);

/* Names the CLOCK_MONOTONIC of this process: the boot of the kernel and the time namespace. Two
 * processes with the same name read one clock. */
enum { RECORD_CLOCK_NAME = 96 };
void record_name_clock(char out[RECORD_CLOCK_NAME]);

/* Compares the clock of each rank with the clock of rank 0. *near: this rank is on the node of rank 0
 * and reads the same clock. Collective; takes some milliseconds if any rank is not near. */
enum epa_status record_compare_clocks(struct epa_bootstrap *, bool *near, struct record_clock *out);

struct record_offset {
    int64_t offset_ns; /* clock of this rank minus clock of rank 0, at the end of the run */
    double error_ns;   /* bound of the error of offset_ns; NAN: unknown */
    double drift;      /* growth of the offset in ns per s; NAN: unknown */
};
struct record_offset record_offset(const struct record *);
/* Converts a time of this rank to the clock of rank 0. Assumes a linear drift between the two
 * comparisons. */
uint64_t record_on_common_clock(const struct record *, const struct record_offset *, uint64_t ns);

/* The writer of a record, owned by its rank. */
struct recorder {
    struct epa_trace trace; /* for algorithms */
    struct record *record;
    struct record_shape shape;
};

void recorder_init(struct recorder *, struct record *, const struct record_shape *);
/* Assigns later events to `iteration`; recorder_turn_none() discards them. The rank's own thread
 * calls both while its workers are idle. */
void recorder_turn(struct recorder *, uint64_t iteration);
void recorder_turn_none(struct recorder *);
/* Measures the cost of a slice and marks the record as ready. All names of the core and of stages
 * must be registered. */
void recorder_ready(struct recorder *);

#endif
