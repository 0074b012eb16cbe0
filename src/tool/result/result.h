/* The result of one run: its end, and the figures made from its measurements for any end. The table,
 * warnings, verdicts and rows of a summary read the figures; report/result_json.h writes them as JSON.
 * Nanoseconds of samples and times are whole numbers, as in JSON. NaN: not measured. */
#ifndef RESULT_H
#define RESULT_H

#include <time.h>

#include "base/sysfile.h"
#include "result/figures.h"
#include "result/machine_facts.h"
#include "result/run_facts.h"
#include "session/session.h"
#include "trace/write.h"

struct run_figures;

/* Result of one run of one experiment, for any end of the run. */
struct result {
    struct run_figures *figures; /* owned; NULL: the run was rejected before the launch */
    enum epa_status status;
    struct epa_error error; /* text "": use the message of the rank that failed first */
    int signal;             /* signal that interrupted the run; 0: SIGINT */
    bool skips;             /* the command has several runs: EPA_ERR_UNSUPPORTED skips this one */
    bool not_started;       /* this process has not started its rank */
    bool rank_0_lost;       /* this process is another rank, and rank 0 has been lost */
    bool leaks;             /* threads that cannot be ended still use the experiment */
    time_t started;         /* by CLOCK_REALTIME; 0: unknown */
    double elapsed_s;
    struct cpu_quota quota;       /* of this process, with the stops of this run; cores 0: none */
    struct trace_written trace;   /* path "": none */
    struct epa_error trace_error; /* a file of the profile could not be written */
};

/* Kinds of stages with a time in summaries. */
enum { RUN_DISPATCH, RUN_EXPERTS, RUN_COMBINE, RUN_KINDS };

/* Bytes of one iteration. */
struct run_traffic {
    double needed, wire; /* means over ranks: payload; sent bytes */
    double bottleneck;   /* of the busiest rank: the larger of sent and received bytes */
    double least;        /* of the busiest rank: lower bound for any algorithm */
    double memory;       /* of the busiest rank: bytes of device memory; 0: unknown */
};

/* Lower bounds of the time of an iteration without its products. NaN: unknown. */
struct run_limit {
    double hops_ns;     /* latency of the links, once for each phase */
    double launches_ns; /* kernels without work, in a graph */
    double links_ns;    /* bytes of the busiest rank on the links */
    double memory_ns;   /* bytes of device memory of the busiest rank, less the cache */
    double memory, cache, memory_per_ns; /* these bytes, the bytes of the cache, bytes per ns */
};

/* Difference between the slowest and the fastest rank of a sample. */
struct run_skew {
    bool known;
    double median_ns, straggler_share;
    uint32_t straggler; /* the rank that was slowest in most samples */
};

/* Operations of a rank in an iteration, and lower bounds of their time. */
struct run_compute {
    double flops;                /* mean over ranks; 0: the algorithm computes nothing */
    double flops_per_s;          /* by the median of whole iterations */
    double expert_flops;         /* per second, of experts with a stage */
    struct op_peaks peaks;       /* of the rank with the best computation; 0: unknown */
    double weights;              /* bytes that the busiest rank reads */
    double flops_ns, weights_ns; /* lower bounds of the computation time */
    double links_ns;             /* lower bound of the time of links */
    double part_ns[EPA_PARTS];   /* [n_parts]: medians of parts that ran alone, slowest rank */
    uint32_t n_parts;
    double hidden; /* share of the shortest part that is hidden behind the others */
};

/* Time of an iteration through the public interface: means over ranks. turns 0: not measured. */
struct run_api {
    uint64_t turns;
    double public_ns, direct_ns, overhead_ns; /* overhead_ns: of one call */
};

/* End of the samples. */
struct run_stop {
    enum stop_reason reason; /* STOP_NOT: the run ended early, or took no samples */
    uint64_t samples;
    double ci95; /* width of the 95 % interval of the last row's median, relative to it */
};

/* Elements that all ranks compared. */
struct run_verify {
    uint64_t iterations; /* all ranks checked them */
    uint64_t compared, wrong, put_bytes;
    struct op_share share; /* sums over ranks; widest: the largest */
    const char *partly;    /* reason why not all outputs were compared; NULL: all were */
    const char *unchecked; /* reason why bench compared nothing; NULL or "": compared */
};

/* The planted fault. text NULL: a normal run. */
struct run_fault {
    const char *text;
    bool counted; /* false: the counter of its rank is lost */
    uint64_t struck;
};

/* The verdict on an expectation. */
struct run_verdict {
    const char *stage;           /* "": the expectation concerns no row */
    const struct figure *figure; /* NULL: the number of wrong elements */
    bool is_most, met;
    double bound, measured;
};

struct run_figures {
    struct arena *arena; /* owns this struct and its texts */
    const struct operation *operation;
    struct run_facts facts; /* unknown for results of files */
    uint32_t ranks;
    struct run_stage *stage; /* [n_stages]; the last row is of whole iterations */
    uint32_t n_stages;
    struct run_traffic phase[OP_PHASES], total;
    struct peak links; /* of the fastest rank; 0: unknown */
    double
        launches_ns; /* kernels without work for an iteration, on the fastest rank; NaN: unknown */
    struct run_limit limit; /* of whole iterations */
    struct run_skew skew;
    struct run_compute compute;
    struct run_api api, api_graph; /* single calls; in CUDA graphs */
    /* Medians over samples of the slowest rank, of all stages of a kind together; NaN: none. */
    double kind_ns[RUN_KINDS];
    double late; /* open loop: share of samples that were due before the latest rank could begin */
    struct run_stop stop;
    bool partial; /* the run ended early or lost records */
    bool *lost;   /* [ranks]: the record of the rank is lost */
    struct run_verify verify;
    struct run_fault fault;
    struct run_verdict *verdict;
    uint32_t n_verdicts;
    const char **warning;
    uint32_t n_warnings;
    const char *status; /* a fixed set of words for scripts: "ok", "missed", "timeout", ... */
    int exit_code;
    const char *error, *error_text; /* word and message; error NULL: success */
};

/* Computes the figures of a session that has ended, and copies its facts. `machine` is for warnings. The
 * caller frees the figures. */
struct run_figures *result_make(const struct result *, const struct session *,
                                const struct machine_facts *machine);
void result_free(struct run_figures *);

/* Returns the last row, of whole iterations; its `n` is 0 without samples. */
const struct run_stage *run_total(const struct run_figures *);
/* Returns the row of that name; NULL: unknown name. */
const struct run_stage *run_stage_of(const struct run_figures *, const char *name);
/* Returns the lower bound: hops, launches, and the larger of links and device memory. */
double run_limit_ns(const struct run_limit *);
/* Returns true if a limit of the links is known. */
bool run_has_links(const struct run_figures *);

#endif
