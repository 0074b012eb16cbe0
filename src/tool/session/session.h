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
#include "experiment/operation.h"
#include "host/pin.h"
#include "session/peak.h"
#include "session/record.h"
#include "session/stop.h"

struct alternation; /* session/alternation.h */
struct status_page; /* session/status_page.h */

enum verb { VERB_RUN, VERB_BENCH, VERB_VERIFY };

/* Measurements of bench: times and the peaks of links and of computing; times only; or, with graphs,
 * times of whole iterations only. */
enum bench_scope { BENCH_ALL, BENCH_TIMES, BENCH_TOTAL };

enum {
    SESSION_STAGES = 8,
    SESSION_ELSEWHERE = SESSION_STAGES, /* the rank is outside stages */
    SESSION_PAIR,                       /* the rank runs a graph of dispatches and combines */
    SESSION_INPUTS,                     /* the rank makes inputs, and none of its kernels runs */
    SESSION_CHECK,                      /* the rank checks outputs, and none of its kernels runs */
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

/* Times of iterations through the public interface and without it: medians of a rank, and the median of
 * the differences of turns. turns 0: not measured. */
struct session_overhead {
    double public_ns, direct_ns, overhead_ns;
    uint64_t turns;
};

/* State and results of a rank. Only the rank writes: progress with relaxed stores, `status` with a
 * release store. The array of times follows. */
struct session_rank {
    _Alignas(64) uint64_t iteration; /* includes warm-up: 0 is the first iteration of the run */
    uint32_t stage;    /* index into stage names, or SESSION_ELSEWHERE to SESSION_CHECK */
    int32_t pid, core; /* core -1: not pinned */
    char host[64];
    uint32_t node, local_size, local_cores; /* as in epa_world; local_size 0: unknown */
    uint64_t samples;                       /* number of complete samples in session_times() */
    double first_ns;                        /* time of the very first iteration; 0: not complete */
    double part_ns[EPA_PARTS];              /* medians of parts that ran alone; 0: not measured */
    double in_pair_ns[2]; /* medians of dispatch and combine inside a pair; 0: not measured */
    double launches_ns;   /* median of kernels without work for an iteration; 0: not measured */
    struct session_overhead overhead;       /* of the public interface, in single calls */
    struct session_overhead graph_overhead; /* in graphs */
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
    char key[128];             /* key of an epa_error */
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
    bool rank_0_lost;                 /* this process is another rank, and rank 0 has been lost */
    uint32_t warmup, iterations;      /* requested numbers of warm-up iterations and of samples */
    struct pin_plan cores;            /* cores of this process, read before ranks are pinned */
    struct op_source *source;         /* file contents, read once by the parent; or NULL */
    struct epa_process_id process_id; /* rank 0 of 0: this process starts all ranks itself */
    struct text fingerprint;          /* as in epa_launch */
    struct record_shape trace;        /* lanes 0: no profile */
    bool (*poll_launch)(void *poll_arg, enum epa_poll_reason); /* as in epa_launch; or NULL */
    void *poll_arg;
    uint64_t stopping_ns;            /* epa_now_ns() of the first poll after a request to stop */
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
    uint32_t api_calls;       /* calls of the public interface in an iteration; 0: not measured */
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

/* "dispatch", "set-up", "between stages", "inputs", "check" */
const char *session_stage(const struct session_notes *, uint32_t stage);

/* Returns true if no rank has a kernel that runs: each makes inputs, checks outputs or has ended. */
bool session_runs_no_kernel(const struct session *);

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

/* Returns true for a bench that measures the peaks of links and of computing. */
bool session_has_peaks(const struct session *);

/* Returns the number of calls of each stage in one launch of a graph. */
uint32_t session_calls(const struct session *);

/* The number of problems that a rank holds at a time, and true if their outputs are checked. */
uint32_t session_slots(const struct session *);
bool session_checks(const struct session *);

/* Returns true if ranks that did not end still use the session and its experiment. */
bool session_in_use(const struct session *);

#endif
