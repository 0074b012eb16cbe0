/* One experiment, run once: the memory that the parent and all ranks share, and who fills
 * it. It is mapped before ranks exist, so that nothing measured is lost with a rank. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>

#include <epa2a/transport.h>
#include <epa2a/trace.h>
#include <epa2a/world.h>

#include "base/text.h"
#include "config/experiment.h"
#include "op/op.h"

/* Where a rank notes what it does while an iteration runs (epa2a/trace.h), in memory that the
 * parent reads however the rank ends: room for the last iterations and one more, as one may
 * be open beside the one before, taken in turn; and a place for what belongs to none. */

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
    bool near;       /* same node and same clock as rank 0 */
    double event_ns; /* what noting a slice takes, measured */
    struct epa_trace_names names;
    struct record_clock clock[RECORD_CLOCKS];
    uint64_t noted[EPA_TRACE_BESIDES]; /* release: the events before */
};

size_t record_bytes(const struct record_shape *);

/* One iteration of a lane, as it was left; nothing in a record of another host is to
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

/* Names the CLOCK_MONOTONIC of this process: the boot of the kernel and the time namespace. Two
 * processes with the same name read one clock. */
enum { RECORD_CLOCK_NAME = 96 };
void record_name_clock(char out[RECORD_CLOCK_NAME]);

/* Compares the clock of each rank with the clock of rank 0. *near: this rank is on the node of rank 0
 * and reads the same clock. Collective; takes some milliseconds if any rank is not near. */
enum epa_status record_compare_clocks(struct epa_bootstrap *, bool *near, struct record_clock *out);

struct record_offset {
    int64_t offset_ns; /* its clock less that of rank 0, at the end */
    double error_ns;   /* of that; NAN: not known */
    double drift;      /* how much the offset grew a second; NAN: not known */
};
struct record_offset record_offset(const struct record *);
/* Between the two comparisons the offset is taken to grow evenly. */
uint64_t record_on_common_clock(const struct record *, const struct record_offset *, uint64_t ns);

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

/* ---- stop rules (rank_bench.c) ---- */

enum stop_reason {
    STOP_NOT, /* go on; of a result: it ended early, or takes no samples */
    STOP_ITERATIONS,
    STOP_CI95,
    STOP_TIME,
};

struct stop {
    const struct bench_options *options;
    double *ns;    /* [bench.iterations], in any order; owned */
    uint64_t n;    /* of them */
    uint64_t next; /* the rule looks again once there are so many */
};

/* Whether there is a rule but the number of samples. */
bool stop_is_on(const struct bench_options *);

enum epa_status stop_init(struct stop *, const struct bench_options *, struct epa_error *);
void stop_finish(struct stop *);

/* Looks at ns[0..n), which took elapsed_ns, and says when to look again: soon enough for
 * max_time and at a quarter more samples for ci95, so that looking stays rare. */
enum stop_reason stop_poll(struct stop *, uint64_t elapsed_ns);

/* "iterations", "ci95", "time"; NULL: STOP_NOT. */
const char *stop_name(enum stop_reason);

/* ---- the link peak (peak.c) ---- */

struct peak {
    double bytes_per_ns; /* out of each rank while all send to all others; 0: not known */
    double latency_ns;   /* of a signal, from its sender to the rank that polls; 0: not known, as
                          * others had the cores all the time */
};

enum { PEAK_SIGNALS = 1 };

/* Collective, between other calls; *out is the same on all ranks. Overwrites the heap and
 * counts in signals `signal` to signal + PEAK_SIGNALS - 1, which are 0 before. One rank has no
 * links; a heap with no room leaves the rate unknown. */
enum epa_status peak_measure(struct epa_bootstrap *, struct epa_backend *, struct epa_transport *,
                             uint32_t signal, struct peak *out, struct epa_error *);

/* ---- two benches in turns: processes of one host share a struct alternation; each
 * side takes a block of iterations while all ranks of the other sleep ---- */

struct alternation {
    uint32_t turn;               /* a futex; from 1, once both are here */
    uint32_t here, left;         /* a bit for each side: it is set up; it takes no more part */
    uint32_t block, first;       /* iterations of a turn; the side that has the first one */
    uint64_t start_ns, limit_ns; /* after so long no pair of turns begins; 0: no limit */
    uint64_t spent_ns;           /* from the first turn to the end */
    bool over;
};

/* NULL: no memory. */
struct alternation *alternation_create(void);
void alternation_destroy(struct alternation *);
/* Before the processes of both are started. */
void alternation_begin(struct alternation *, uint32_t block, uint32_t first, uint64_t limit_ns);

bool alternation_is_here(struct alternation *, uint32_t side);

/* By one rank of a side, once all of them have ended a block, and before the first. */
void alternation_pass(struct alternation *, uint32_t side);
/* By all ranks of a side, after that: sleeps until it is their turn, 100 ms at most. *turn is 0
 * before the first turn, then its number. True: it is their turn, or the alternation is over. */
bool alternation_wait(struct alternation *, uint32_t side, uint32_t *turn);
bool alternation_is_over(const struct alternation *);
/* It ends for both. By anyone, also for a side that has died. */
void alternation_leave(struct alternation *, uint32_t side);

/* ---- a session ---- */

struct status_page; /* session/status.h */
struct status_page_run;

enum verb { VERB_RUN, VERB_BENCH, VERB_VERIFY };

/* What a bench measures: peaks of links and of computing as well; times; or, where it launches
 * graphs, times of whole iterations alone. */
enum bench_scope { BENCH_ALL, BENCH_TIMES, BENCH_TOTAL };

enum {
    SESSION_STAGES = 8,
    SESSION_ELSEWHERE = SESSION_STAGES, /* in no stage */
    SESSION_PAIR,                       /* in a graph of dispatches and combines */
    SESSION_FACTS = 24,
};

/* Rows of times where bench launches graphs; else there is a row for each stage. An
 * algorithm with one stage of kind WHOLE has one row. */
enum session_figure {
    FIGURE_DISPATCH,
    FIGURE_COMBINE,
    FIGURE_PAIR,    /* with the experts between, where those are a stage */
    FIGURE_EXPERTS, /* alone; only there */
    FIGURES,
    FIGURE_WHOLE = 0,
};

/* The one row of bench.clock: end_to_end, cache: cold; only rank 0's times are looked at. */
enum { FIGURE_END_TO_END };

/* Rows of an open loop, behind those of the stages. */
enum { OPEN_SERVICE, OPEN_LATENCY, OPEN_ROWS };

/* Iterations a second: those that are due, and what a closed loop did. NaN: not measured. */
struct session_arrivals {
    double rate, closed_rate;
};

/* What a backend says of its device, or a transport of its links. */
struct session_facts {
    uint32_t n;
    struct session_fact {
        char key[32], value[160];
    } fact[SESSION_FACTS];
};

/* Adds one to a struct session_facts; what there is no room for is left out. */
void session_keep_fact(void *facts, const char *key, const char *value);

/* What a rank has waited for since `since_ns`, for so long that it is reported. Written by a thread
 * of the rank, word by word. */
struct session_wait {
    uint64_t turn; /* odd while the rest is written */
    uint32_t kind; /* enum epa_wait_kind */
    uint32_t peer, number;
    uint32_t stage; /* with `iteration`, as the rank's were: one that has gone on waits no more */
    uint64_t iteration, seen, wanted;
    uint64_t since_ns; /* CLOCK_MONOTONIC */
    char what[32];
};

/* What a rank says of itself; it alone writes (relaxed: progress, release: `status`). Its
 * times follow it. */
struct session_rank {
    _Alignas(64) uint64_t iteration; /* counts warm-up: 0 is the first of all */
    uint32_t stage;                  /* index into stage names, or one of the above */
    int32_t pid, core;               /* core -1: not pinned */
    char host[64];
    uint32_t node, local_size, local_cores; /* as in epa_world; local_size 0: not known */
    uint64_t samples;                       /* complete ones, in session_times() */
    double first_ns;                        /* total of the very first iteration; 0: not done */
    double part_ns[EPA_PARTS];              /* medians of parts that ran alone; 0: not measured */
    uint64_t compared, wrong;               /* elements */
    struct op_share share;                  /* of outputs that verify compared */
    uint64_t late;      /* open loop: samples that were due before it could begin */
    uint64_t faults;    /* how often a planted fault struck it */
    uint64_t checked;   /* iterations of which every element was compared */
    uint64_t put_bytes; /* verify: counted, to other ranks; 0: nothing was */
    uint64_t failed_ns; /* CLOCK_REALTIME when it failed; 0: it did not */
    uint32_t finished;  /* it returned, well or not */
    uint32_t halt;      /* verify.stop: how its last stage ended (rank_halt.c) */
    enum epa_status status;
    char text[640];            /* an epa_error's, and where that was */
    struct op_traffic traffic; /* sums over traffic_n iterations */
    uint64_t traffic_n;
    struct peak peak;               /* of the links */
    struct op_peaks peaks;          /* of computing, where the operation does */
    struct session_facts transport; /* once open */
    struct session_facts device;    /* after the last sample */
    struct session_wait waiting;
};

struct session {
    const struct experiment *experiment; /* `own` */
    struct experiment own;               /* as the user wrote it, with expert.values resolved */
    enum verb verb;
    struct epa_footprint footprint;
    /* verify: the same where peers are reached by puts alone, over which they are counted. */
    struct epa_footprint puts;
    char uncounted[200];              /* why they are not; "": they are */
    uint32_t leaked_ranks;            /* as in epa_launch, once it has run */
    uint32_t warmup, iterations;      /* samples asked for after warm-up */
    struct op_source *source;         /* file contents, read once by the parent; or NULL */
    struct epa_process_id process_id; /* rank 0 of 0: this process starts all ranks itself */
    struct text fingerprint;          /* as in epa_launch */
    struct record_shape trace;        /* lanes 0: nobody profiles */
    bool (*poll_launch)(void *poll_arg,
                        enum epa_poll_reason); /* as in epa_launch; NULL: nobody looks */
    void *poll_arg;
    struct alternation *alternation; /* of this bench with another; NULL: it runs alone */
    uint32_t side;                   /* which of the two it is */
    enum bench_scope scope;          /* bench: what is measured */

    /* Shared between processes. */
    char *block; /* [ranks][block_bytes], what each rank writes; NULL: not mapped yet */
    size_t block_bytes;
    void *stats; /* of the operation's inputs, filled by rank 0: sums over iterations */
    struct session_notes *notes;
    struct status_page *status_page; /* which has both; NULL: memory without a name */
    uint64_t block_at, shared_at;    /* on the status page; 0: not there */
};

/* What is known only once ranks have set up; rank 0 says it for all. */
struct session_notes {
    char isa[32];
    char between_by[64];            /* what computes the experts that are timed; "": none are */
    char products_by[160];          /* what the algorithm multiplies with; "": it does not say */
    uint32_t n_stages;              /* 0 until ranks have created the algorithm */
    char stage[SESSION_STAGES][32]; /* names, in order */
    enum epa_stage_kind stage_kind[SESSION_STAGES];
    enum bench_clock clock;  /* that was used; CLOCK_AUTO: nothing was timed yet */
    bool not_alone[FIGURES]; /* graphs: this row cannot be measured */
    enum stop_reason stop;   /* by the rule of bench, where there is one */
    struct session_arrivals arrivals;
    uint32_t n_parts;
    char part[EPA_PARTS][32]; /* of epa_algorithm.parts */
    char unchecked[160];      /* why no iteration of bench was checked; "": it was, or not yet */
};

static inline const struct operation *session_operation(const struct session *s)
{
    return operation_of_experiment(s->experiment);
}

static inline struct session_rank *session_rank(const struct session *s, uint32_t rank)
{
    return (struct session_rank *)(void *)(s->block + rank * s->block_bytes);
}

/* "dispatch", "set-up", "between stages" */
const char *session_stage(const struct session_notes *, uint32_t stage);

/* [iterations], without warm-up, of a stage or one of the figures. verify has none. */
static inline double *session_times(const struct session *s, uint32_t rank, uint32_t row)
{
    return (double *)(void *)(session_rank(s, rank) + 1) + (size_t)row * s->iterations;
}

/* What a rank noted, at the end of its block; NULL: nobody profiles. */
static inline struct record *session_trace(const struct session *s, uint32_t rank)
{
    char *end = (char *)session_rank(s, rank) + s->block_bytes;

    return s->trace.lanes == 0 ? NULL : (struct record *)(void *)(end - record_bytes(&s->trace));
}

/* Bytes of one rank's block. */
size_t session_block_bytes(const struct session *);

/* "run", "bench" or "verify". */
const char *session_verb(const struct session *);
const char *session_verb_name(enum verb);

/* bench in an open loop. */
bool session_is_open(const struct session *);

/* A row of a report (rank_stages.c): so many rows of session_times() from `first` on, added up. */
struct session_row {
    const char *name;
    enum epa_stage_kind kind; /* SEND: of none, as nothing moves in it */
    uint32_t first, n;
    bool is_stage; /* which is `first` */
};
enum { SESSION_ROWS = SESSION_STAGES + OPEN_ROWS };

/* Stages, of which so many are known, or figures of graphs, and last whole iterations. Returns how
 * many rows that is. */
uint32_t session_rows(const struct session *, uint32_t n_stages,
                      struct session_row out[SESSION_ROWS]);
struct session_row session_total(const struct session *); /* the last of them */
/* What a rank took for a sample. */
double session_row_ns(const struct session *, const struct session_row *, uint32_t rank,
                      uint64_t sample);

/* Calls of each stage in one launch of a graph. */
uint32_t session_calls(const struct session *);

/* How many problems a rank holds at once, and whether their expert outputs are checked. */
uint32_t session_slots(const struct session *);
bool session_checks(const struct session *);

/* Plans `x` for `verb` and refuses what session_create_on() would, but for what this machine
 * lacks, memory aside, and what only who started this process knows. The session cannot be run. */
enum epa_status session_plan(const struct experiment *x, enum verb verb, struct session **out,
                             struct epa_error *);

/* Plans `x` for `verb`, refuses what cannot be (config, memory, plugins that do not fit),
 * and maps what the ranks will share, on a status page if there is one. Both must outlive it. */
enum epa_status session_create_on(struct status_page *, const struct experiment *x, enum verb verb,
                                  struct session **out, struct epa_error *);
void session_destroy(struct session *);

/* The status page, and in `out` where on it a run is; NULL: there is none. */
struct status_page *session_status_page(const struct session *, struct status_page_run *out);

/* Ranks that could not be ended still use the session and its experiment. */
bool session_in_use(const struct session *);

/* Launches the ranks and waits. stop_fd as in epa_launch. Returns how it ended, why in
 * err: the rank that failed first, in its own words. */
enum epa_status session_run(struct session *, int stop_fd, struct epa_error *);

/* view.c: plans what session.puts says, and whether that can be run at all. */
void session_plan_puts(struct session *);

/* preflight.c: refuses, by arithmetic and before a rank exists, what this machine cannot hold. */

/* EPA_ERR_NOMEM with the sum in words: ranks x (heap + inputs + reference) against what is
 * available and why that is the limit. `root` is put before /proc and /sys: "" but in tests. */
enum epa_status preflight_memory(const char *root, const struct session *, struct epa_error *);

/* The same for what the algorithm takes of a rank's device, of which so much is free; 0: not
 * known, nothing is refused. */
/* Before them: scratch memory of the device for ranks of other hosts, as the variables of who
 * started the ranks say how many are on this one. */
void preflight_scratch(struct session *);
enum epa_status preflight_device(const struct session *, uint64_t free_bytes, struct epa_error *);

/* Runs one rank of the session from set-up to teardown: the rank_main of launchers. */
struct epa_bootstrap;
enum epa_status rank_main(struct epa_bootstrap *, void *session);

#endif
