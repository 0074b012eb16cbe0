/* One run of one experiment: the memory that the parent and all ranks share, and the writer of each
 * part. The parent maps the memory before it starts ranks, so that the measurements of a rank
 * survive the rank. */
#ifndef SESSION_H
#define SESSION_H

#include <stdbool.h>

#include <epa2a/transport.h>
#include <epa2a/trace.h>
#include <epa2a/world.h>

#include "base/text.h"
#include "config/experiment.h"
#include "op/op.h"

/* Trace record of a rank: its events during iterations (epa2a/trace.h), in memory that the parent
 * reads even after a crash of the rank. The record has a ring of slots for the last iterations with
 * one spare slot, since two iterations can be open at a time, and one slot for events outside
 * iterations. */

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

/* ---- stop rules (rank_bench.c) ---- */

enum stop_reason {
    STOP_NOT, /* continue; in a result: the run ended early, or took no samples */
    STOP_ITERATIONS,
    STOP_CI95,
    STOP_TIME,
};

struct stop {
    const struct bench_options *options;
    double *ns;    /* [bench.iterations]: samples in any order; owned */
    uint64_t n;    /* number of samples in ns */
    uint64_t next; /* the next evaluation takes place at this number of samples */
};

/* Returns true if a rule besides the number of samples is set. */
bool stop_is_on(const struct bench_options *);

enum epa_status stop_init(struct stop *, const struct bench_options *, struct epa_error *);
void stop_finish(struct stop *);

/* Evaluates ns[0..n), measured in elapsed_ns, and sets the number of samples of the next evaluation:
 * early enough for max_time, and at a quarter more samples for ci95, so that evaluations are rare. */
enum stop_reason stop_poll(struct stop *, uint64_t elapsed_ns);

/* "iterations", "ci95", "time"; NULL: STOP_NOT. */
const char *stop_name(enum stop_reason);

/* ---- the link peak (peak.c) ---- */

struct peak {
    double bytes_per_ns; /* sent by each rank while all ranks send to all others; 0: unknown */
    double latency_ns;   /* of a signal, from its sender to the rank that polls; 0: unknown, since
                          * other processes occupied the cores */
};

enum { PEAK_SIGNALS = 1 };

/* Measures the link peak. Collective; no other call may be in progress. *out is identical on all
 * ranks. Overwrites the heap and the signals `signal` to signal + PEAK_SIGNALS - 1, which must be 0
 * before. A single rank has no links. A heap without room leaves the rate unknown. */
enum epa_status peak_measure(struct epa_bootstrap *, struct epa_backend *, struct epa_transport *,
                             uint32_t signal, struct peak *out, struct epa_error *);

/* ---- alternation of two benches: processes of one host share a struct alternation; each side runs a
 * block of iterations while all ranks of the other side sleep ---- */

struct alternation {
    uint32_t turn;               /* a futex: number of the present turn, from 1; 0: not started */
    uint32_t here, left;         /* bit mask of sides: set-up is complete; the side has left */
    uint32_t block, first;       /* iterations per turn; side of the first turn */
    uint64_t start_ns, limit_ns; /* no pair of turns begins later than this; 0: no limit */
    uint64_t spent_ns;           /* time from the first turn to the end */
    bool over;
};

/* Returns NULL without memory. */
struct alternation *alternation_create(void);
void alternation_destroy(struct alternation *);
/* Resets the alternation before the processes of both sides start. */
void alternation_begin(struct alternation *, uint32_t block, uint32_t first, uint64_t limit_ns);

bool alternation_is_here(struct alternation *, uint32_t side);

/* Ends the turn of a side. One rank of the side calls it after all its ranks have ended a block, and
 * once before the first block. */
void alternation_pass(struct alternation *, uint32_t side);
/* Sleeps until the side's next turn, for 100 ms at most. All ranks of a side call it after
 * alternation_pass(). *turn is 0 before the first turn, then the number of the last turn. Returns true
 * if the turn belongs to this side or the alternation is over. */
bool alternation_wait(struct alternation *, uint32_t side, uint32_t *turn);
bool alternation_is_over(const struct alternation *);
/* Ends the alternation for both sides. Any process may call it, also on behalf of a dead side. */
void alternation_leave(struct alternation *, uint32_t side);

/* ---- a session ---- */

struct status_page; /* session/status.h */
struct status_page_run;

enum verb { VERB_RUN, VERB_BENCH, VERB_VERIFY };

/* Measurements of bench: times and the peaks of links and of computing; times only; or, with graphs,
 * times of whole iterations only. */
enum bench_scope { BENCH_ALL, BENCH_TIMES, BENCH_TOTAL };

enum {
    SESSION_STAGES = 8,
    SESSION_ELSEWHERE = SESSION_STAGES, /* the rank is outside stages */
    SESSION_PAIR,                       /* the rank runs a graph of dispatches and combines */
    SESSION_FACTS = 24,
};

/* Rows of times of a bench with graphs; without graphs each stage has a row. An algorithm with one
 * stage of kind WHOLE has one row. */
enum session_figure {
    FIGURE_DISPATCH,
    FIGURE_COMBINE,
    FIGURE_PAIR,    /* dispatch and combine, with the experts between if they are a stage */
    FIGURE_EXPERTS, /* experts alone, if they are a stage */
    FIGURES,
    FIGURE_WHOLE = 0,
};

/* The only row of bench.clock: end_to_end; only the times of rank 0 count. */
enum { FIGURE_END_TO_END };

/* Rows of an open loop; they follow the rows of the stages. */
enum { OPEN_SERVICE, OPEN_LATENCY, OPEN_ROWS };

/* Offered rate, and the rate that a closed loop reached, in iterations/s. NaN: not measured. */
struct session_arrivals {
    double rate, closed_rate;
};

/* Facts of a backend about its device, or of a transport about its links. */
struct session_facts {
    uint32_t n;
    struct session_fact {
        char key[32], value[160];
    } fact[SESSION_FACTS];
};

/* Appends to a struct session_facts; drops the fact if the array is full. */
void session_keep_fact(void *facts, const char *key, const char *value);

/* A wait of a rank that lasts long enough to be reported. A thread of the rank writes it word by
 * word. */
struct session_wait {
    uint64_t turn; /* sequence number: odd while a thread writes the rest */
    uint32_t kind; /* enum epa_wait_kind */
    uint32_t peer, number;
    uint32_t stage; /* stage and iteration of the rank; if they have changed, the wait is over */
    uint64_t iteration, seen, wanted;
    uint64_t since_ns; /* CLOCK_MONOTONIC */
    char what[32];
};

/* State and results of a rank. Only the rank writes: progress with relaxed stores, `status` with a
 * release store. The array of times follows. */
struct session_rank {
    _Alignas(64) uint64_t iteration; /* includes warm-up: 0 is the first iteration of the run */
    uint32_t stage;                  /* index into stage names, SESSION_ELSEWHERE or SESSION_PAIR */
    int32_t pid, core;               /* core -1: not pinned */
    char host[64];
    uint32_t node, local_size, local_cores; /* as in epa_world; local_size 0: unknown */
    uint64_t samples;                       /* number of complete samples in session_times() */
    double first_ns;                        /* time of the very first iteration; 0: not complete */
    double part_ns[EPA_PARTS];              /* medians of parts that ran alone; 0: not measured */
    uint64_t compared, wrong;               /* numbers of elements */
    struct op_share share;                  /* share of the outputs that verify compared */
    uint64_t late;      /* open loop: number of samples that began later than they were due */
    uint64_t faults;    /* number of planted faults that this rank has executed */
    uint64_t checked;   /* number of iterations with every element compared */
    uint64_t put_bytes; /* verify: counted bytes of puts to other ranks; 0: not counted */
    uint64_t failed_ns; /* CLOCK_REALTIME of the failure; 0: no failure */
    uint32_t finished;  /* rank_main() has ended, with success or failure */
    uint32_t halt;      /* verify.stop: the end of the rank's last stage (rank_halt.c) */
    enum epa_status status;
    char text[640];            /* text of an epa_error, with stage and iteration */
    struct op_traffic traffic; /* sums over traffic_n iterations */
    uint64_t traffic_n;
    struct peak peak;               /* of the links */
    struct op_peaks peaks;          /* of computing, if the operation computes */
    struct session_facts transport; /* facts after open() */
    struct session_facts device;    /* facts after the last sample */
    struct session_wait waiting;
};

struct session {
    const struct experiment *experiment; /* points to `own` */
    struct experiment own; /* the experiment of the user with expert.values resolved */
    enum verb verb;
    struct epa_footprint footprint;
    /* verify: the footprint for put-only access to peers; the puts are counted over it. */
    struct epa_footprint puts;
    char uncounted[200];              /* reason why puts are not counted; "": they are counted */
    uint32_t leaked_ranks;            /* as in epa_launch; set at the end of the launch */
    uint32_t warmup, iterations;      /* requested numbers of warm-up iterations and of samples */
    struct op_source *source;         /* file contents, read once by the parent; or NULL */
    struct epa_process_id process_id; /* rank 0 of 0: this process starts all ranks itself */
    struct text fingerprint;          /* as in epa_launch */
    struct record_shape trace;        /* lanes 0: no profile */
    bool (*poll_launch)(void *poll_arg, enum epa_poll_reason); /* as in epa_launch; or NULL */
    void *poll_arg;
    struct alternation *alternation; /* of this bench with another bench; NULL: runs alone */
    uint32_t side;                   /* side of this bench in the alternation, 0 or 1 */
    enum bench_scope scope;          /* measurements of bench */

    /* Shared between processes. */
    char *block; /* [ranks][block_bytes]: the block of each rank; NULL: not mapped yet */
    size_t block_bytes;
    void *stats; /* statistics of the inputs, written by rank 0: sums over iterations */
    struct session_notes *notes;
    struct status_page *status_page; /* contains blocks and notes; NULL: anonymous memory */
    uint64_t block_at, shared_at;    /* offsets on the status page; 0: not on the page */
    uint64_t *memory_passed; /* largest demand for memory that passed before; NULL: not known */
};

/* Facts that are known only after the set-up of ranks; rank 0 writes them for all ranks. */
struct session_notes {
    char isa[32];
    char between_by[64];            /* implementation of the timed experts; "": experts not timed */
    char products_by[160];          /* GEMM implementation of the algorithm; "": unknown */
    uint32_t n_stages;              /* 0 until ranks have created the algorithm */
    char stage[SESSION_STAGES][32]; /* names of the stages in order */
    enum epa_stage_kind stage_kind[SESSION_STAGES];
    enum bench_clock clock;  /* clock in use; CLOCK_AUTO: nothing was timed yet */
    bool not_alone[FIGURES]; /* graphs: this row cannot be measured */
    enum stop_reason stop;   /* decision of bench's stop rule, if one is set */
    struct session_arrivals arrivals;
    uint32_t n_parts;
    char part[EPA_PARTS][32]; /* names of epa_algorithm.parts */
    char unchecked[160];      /* reason why bench checked no iteration; "": checked, or not yet */
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

/* Returns the times of a row (a stage or a figure): [iterations], without warm-up. verify records no
 * times. */
static inline double *session_times(const struct session *s, uint32_t rank, uint32_t row)
{
    return (double *)(void *)(session_rank(s, rank) + 1) + (size_t)row * s->iterations;
}

/* Returns the trace record at the end of the rank's block; NULL: no profile. */
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

/* Returns true for a bench with an open loop. */
bool session_is_open(const struct session *);

/* A row of a report: the sum of `n` rows of session_times(), from `first` on. */
struct session_row {
    const char *name;
    enum epa_stage_kind kind; /* SEND: the row moves no bytes of its own */
    uint32_t first, n;
    bool is_stage; /* the row is the stage `first` */
};
enum { SESSION_ROWS = SESSION_STAGES + OPEN_ROWS };

/* Lists the rows of a report: the first n_stages stages, or the figures of graphs, and last the whole
 * iteration. Returns the number of rows. */
uint32_t session_rows(const struct session *, uint32_t n_stages,
                      struct session_row out[SESSION_ROWS]);
struct session_row session_total(const struct session *); /* the last row */
/* Returns the time of a rank in a sample. */
double session_row_ns(const struct session *, const struct session_row *, uint32_t rank,
                      uint64_t sample);

/* Returns the number of calls of each stage in one launch of a graph. */
uint32_t session_calls(const struct session *);

/* The number of problems that a rank holds at a time, and true if their outputs are checked. */
uint32_t session_slots(const struct session *);
bool session_checks(const struct session *);

/* Plans `x` for `verb` with the checks of session_create_on(), except those for missing devices and
 * for the process launcher. Memory is checked. The session cannot run. */
enum epa_status session_plan(const struct experiment *x, enum verb verb, struct session **out,
                             struct epa_error *);

/* Plans `x` for `verb`, checks configuration, memory and plugins, and maps the memory that ranks
 * share, on the status page unless it is NULL. Page and experiment must outlive the session. */
enum epa_status session_create_on(struct status_page *, const struct experiment *x, enum verb verb,
                                  struct session **out, struct epa_error *);

/* The same without a status page, for a list of many runs. *memory_passed is the largest demand for
 * memory that passed before, first 0: the memory of the machine is read for larger demands only. */
enum epa_status session_check(const struct experiment *x, enum verb verb, uint64_t *memory_passed,
                              struct session **out, struct epa_error *);
void session_destroy(struct session *);

/* Returns the status page and the offsets of this session on it in `out`; NULL without a page. */
struct status_page *session_status_page(const struct session *, struct status_page_run *out);

/* Returns true if ranks that did not end still use the session and its experiment. */
bool session_in_use(const struct session *);

/* Launches the ranks and waits for their end. stop_fd as in epa_launch. Returns the status of the run;
 * err contains the message of the rank that failed first. */
enum epa_status session_run(struct session *, int stop_fd, struct epa_error *);

/* view.c: fills session.puts, or session.uncounted if puts cannot be counted. */
void session_plan_puts(struct session *);

/* preflight.c: compares the memory of an experiment with the memory of this machine before a rank
 * starts. */

/* Fails with EPA_ERR_NOMEM and the sum: ranks x (heap + inputs + reference), the available memory and
 * the limit. Tests pass a folder as `root`, the prefix of /proc and /sys; others pass "". */
enum epa_status preflight_memory(const char *root, const struct session *, struct epa_error *);

/* Corrects the footprint's scratch memory on the device for ranks of other hosts. The process launcher
 * knows the number of ranks on this host. Called before the checks. */
void preflight_scratch(struct session *);
/* Checks the memory that the algorithm needs on a rank's device. free_bytes 0: unknown, no check. */
enum epa_status preflight_device(const struct session *, uint64_t free_bytes, struct epa_error *);

/* Runs one rank of the session from set-up to teardown: the rank_main of launchers. */
struct epa_bootstrap;
enum epa_status rank_main(struct epa_bootstrap *, void *session);

#endif
