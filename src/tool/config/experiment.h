/* An experiment: all keys of a YAML file and --set as typed values, with plugins resolved, and the
 * option tables. batch_read() builds it once; then it is const, and ranks inherit it. */
#ifndef EXPERIMENT_H
#define EXPERIMENT_H

#include <epa2a/algorithm.h>

#include "ep/ep.h"
#include "op/problem_params.h"
#include "options/requirements.h"
#include "registry/registry.h"

struct arena;
struct diag;
struct node;
struct text;

/* Bounds of the figures of a row. An unset bound lies outside the range of its option. */
struct expect_bounds {
    uint64_t min, median, p95, p99, p999, max, mean; /* ns, maximum */
    double goodput, wire, bottleneck;                /* GB/s, minimum */
    double of_peak;                                  /* fraction of the peak, minimum */
};
#define EXPECT_ANY \
    { \
        UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, UINT64_MAX, -1, \
            -1, -1, -1 \
    }

/* `expect:` */
struct expect_options {
    struct expect_bounds last; /* of the last row, total or wall */
    uint32_t wrong;            /* maximum number of wrong elements, if elements were compared */
    uint32_t n_rows;
    const struct expect_row {
        const char *name;
        struct expect_bounds bounds;
    } * row;
};

extern const struct epa_option expect_table[];        /* of struct expect_options */
extern const struct epa_option *const expect_figures; /* options of struct expect_bounds */

/* `model:` name and size of the model that the shape comes from. */
struct model_options {
    const char *name; /* NULL: no model */
    const char *source, *checkpoint;
    uint32_t layers, moe_layers, shared_experts, shared_ffn; /* shared_ffn 0: unknown */
};

/* `run:` */
struct run_options {
    uint32_t iterations;
};

enum verify_order { ORDER_LOCKSTEP, ORDER_PIPELINED, ORDER_DISCARD, ORDER_AGAIN };
enum verify_stop { STOP_NONE, STOP_FIRST, STOP_LAST };
enum verify_tolerance { TOLERANCE_EXACT, TOLERANCE_ALLCLOSE };

/* `verify:` */
struct verify_options {
    uint32_t iterations;
    int order; /* pipelined: dispatch i + 1 runs before combine i, as in_flight 2 allows */
    uint32_t check_every; /* in iterations; 1: check each iteration */
    uint64_t straggle_ns; /* a rank sleeps up to this long before some stages; 0: never */
    int tolerance;        /* enum verify_tolerance: the comparison of combine's output */
    double rtol, atol;    /* allclose: |out - ref| <= atol + rtol * |ref| */
    bool guard;           /* check memory around the heap and buffers */
    uint64_t epoch;       /* see epa_algorithm_params */
    bool nonfinite;       /* some tokens have a NaN and an infinite channel */
    int stop;             /* enum verify_stop: the last rank does not begin that stage */
};

enum bench_clock { CLOCK_AUTO, CLOCK_HOST, CLOCK_EVENTS, CLOCK_GRAPH, CLOCK_END_TO_END };
enum bench_arrivals { ARRIVALS_CLOSED, ARRIVALS_CONSTANT, ARRIVALS_POISSON };
enum bench_cache { CACHE_WARM, CACHE_COLD };

/* `bench:` */
struct bench_options {
    uint32_t warmup, iterations; /* iterations: maximum, if a stop rule is set */
    uint32_t input_sets;         /* sets generated in advance and used in turn */
    bool barrier;                /* before each stage, or each launch of a graph */
    int clock;                   /* enum bench_clock */
    /* Enum bench_arrivals; closed: an iteration begins when the previous one has ended. */
    int arrivals;
    double load;              /* fraction of the closed loop's rate; 0: not set */
    double rate;              /* iterations per second; 0: not set */
    uint32_t calls_per_graph; /* graph: calls of each stage in one launch; even; 1 with cold */
    int cache;                /* enum bench_cache */
    bool check;               /* compare every element of one iteration after the last sample */
    /* Stop rules; see session/stop.c. 0: not set, except for min_iterations. */
    double ci95;
    uint32_t min_iterations;
    uint64_t min_time_ns, max_time_ns;
};

enum fault_kind { FAULT_NONE, FAULT_KILL, FAULT_STOP, FAULT_STRAGGLE };

/* `fault:` fault injection into a rank. */
struct fault_options {
    int kind; /* enum fault_kind */
    uint32_t rank, iteration;
    const char *stage; /* stage of the algorithm; NULL: the first */
    uint64_t for_ns;   /* stop, straggle */
    uint32_t every;    /* in iterations; 0: once */
};

/* `profile:` */
struct profile_options {
    const char *file;    /* traces are FILE.json and FILE.RANK.json; NULL: none */
    uint32_t iterations; /* number of last iterations in the traces */
};

/* Path from the program to the algorithm: its stages, or the public interface epa2a.h. */
enum experiment_api { API_NONE, API_CALLS, API_LAYER };

struct experiment {
    const char *file; /* name given by the user; messages begin with it */
    uint32_t version;
    const char *name;     /* never NULL; default: the name of the file */
    const char *run_name; /* name in runs:; NULL: none */
    /* Distinguishes this run from others of its file; NULL: the file has one run. */
    const char *label;
    const char *id; /* see batch.h; NULL: the base of runs */
    struct problem_params problem;
    uint64_t timeout_ns;
    int api; /* enum experiment_api */
    struct ep_choice launcher, backend, transport, algorithm;
    struct ep_choice between; /* the transport that carries data to other nodes; or NULL */
    struct model_options model;
    struct run_options run;
    struct verify_options verify;
    struct bench_options bench;
    struct expect_options expect;
    struct fault_options fault;
    struct profile_options profile;
    /* Result of the algorithm's plan(); set in checked experiments. */
    struct epa_footprint footprint;
    struct arena *arena; /* owns all strings, lists and configs above */
    /* The tree of the file with all --set in it, bare values converted to maps. NULL: not read. */
    const struct node *origin;
};

/* ---- option tables of all sections except plugins ---- */

enum { EXPERIMENT_VERSION = 1 };

/* A map at the top of the file. */
struct section {
    const char *name; /* NULL ends the list */
    const char *help;
    const char *main; /* the key of a bare value: `transport: shm`; or NULL */
    size_t offset;    /* in struct experiment, of its options or its struct ep_choice */
    /* A plugin: the options are the options of the named plugin. */
    bool plugin;
    enum epa_plugin_kind kind;
    const char *chosen; /* default plugin; for launchers also "auto", which is not a plugin */
    uint32_t ops;       /* operations that use the section, bits 1 << enum epa_op; 0: all */
    bool measures;      /* true for all of its options (epa2a/plugin.h) */
    struct epa_options options;
    /* Section of one option of the plugin: the option names a further plugin and takes its options,
     * as `between_nodes: {name: ucx, tls: tcp}`. The name is a path, "transport.between_nodes", and
     * has no default. NULL: none. */
    const struct section *nested;
};

extern const struct epa_options experiment_options; /* of struct experiment itself */
extern const struct section experiment_sections[];

const struct section *section_find(const char *name);
/* Returns the section with this path, which may be a nested one; or NULL. */
const struct section *section_find_path(const char *path);
/* Returns true if a nested section can name the plugin. */
bool section_takes(const struct section *nested, const struct epa_plugin *);
/* Returns the last part of the name: the option of a nested section. */
const char *section_key(const struct section *);

/* The role of a key such as "moe.hidden", from the tables. An unknown key belongs to the task. */
enum key_role {
    KEY_TASK,     /* the problem, the ranks, and the clock of an iteration */
    KEY_MEANS,    /* algorithm, transport, backend, launcher and their options */
    KEY_MEASURES, /* names, seeds, lengths of runs, checks, expectations, traces */
};
enum key_role key_role_of(const char *path);

/* Returns true if the operation of this algorithm uses the section, or if the algorithm is unknown
 * (NULL). */
bool section_is_for(const struct section *, const struct epa_algorithm_plugin *);

/* The option has an effect only if `other` of its section has one of `values` (bits of a choice; 0:
 * any value). `needs` is the message. An option may have several rules. */
struct option_rule {
    const char *section, *option, *other; /* NULL ends the list */
    uint32_t values;
    const char *needs;
};
extern const struct option_rule option_rules[];
bool option_rule_holds(const struct option_rule *, const struct experiment *);

/* Returns false if the option has no effect in that experiment; it is not shown then. */
bool option_applies(const struct experiment *, const struct section *, const char *option);

/* ---- faults ---- */

bool fault_is_planted(const struct experiment *);
/* Writes "rank 1 is killed before combine of iteration 10". */
void fault_describe(const struct fault_options *, struct text *out);
/* Returns "kill", "stop", "straggle" or "none". */
const char *fault_name(const struct fault_options *);

/* ---- plugins of an experiment by kind ---- */

static inline const struct epa_launcher_plugin *launcher_of(const struct experiment *x)
{
    return (const struct epa_launcher_plugin *)(const void *)x->launcher.plugin;
}

static inline const struct epa_backend_plugin *backend_of(const struct experiment *x)
{
    return (const struct epa_backend_plugin *)(const void *)x->backend.plugin;
}

static inline const struct epa_transport_plugin *transport_of(const struct experiment *x)
{
    return (const struct epa_transport_plugin *)(const void *)x->transport.plugin;
}

static inline const struct epa_algorithm_plugin *algorithm_of(const struct experiment *x)
{
    return (const struct epa_algorithm_plugin *)(const void *)x->algorithm.plugin;
}

static inline bool is_on_hosts(const struct experiment *x)
{
    return backend_of(x)->memory == EPA_MEMORY_HOST;
}

/* Returns the number of workers of a rank. */
static inline uint32_t threads_of(const struct experiment *x)
{
    return backend_of(x)->threads(x->backend.config);
}

static inline struct selection experiment_selection(const struct experiment *x)
{
    return (struct selection){
        .algorithm = algorithm_of(x),
        .backend = backend_of(x),
        .transport = transport_of(x),
        .between = (const struct epa_transport_plugin *)(const void *)x->between.plugin,
    };
}

/* Returns the flags of the transport in this set-up. */
static inline uint32_t experiment_transport_flags(const struct experiment *x)
{
    const struct selection selected = experiment_selection(x);

    return selection_flags(&selected);
}

#endif
