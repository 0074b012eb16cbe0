/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

/* Order of the runs of a batch. RUNS_USUAL: the default of the command. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

#define CLI_BUDGET_NS UINT64_C(60000000000)

/* Options of run, bench and verify. */
struct cli_batch {
    const char **context; /* --context NAME=TEXT, in order, checked */
    uint32_t n_context;
    const char *json_lines, *html, *junit, *openmetrics; /* FILE, "-" for standard output */
    bool dry_run, fail_fast;
    bool thorough; /* of verify: adds the variants of each run */
    int order;     /* enum runs_order */
    bool shuffle;
    uint64_t shuffle_seed; /* valid if `shuffle` */
};

/* Options that line_add_settings() turns into settings of the experiment. */
struct cli_settings {
    const char **model; /* --model, in order; each "NAME" or "NAME,NAME" */
    uint32_t n_models;
    bool api;
    uint64_t timeout_ns; /* 0: the timeout of the experiment */
    /* --tokens-min, --tokens-max and so on. Not given: 0; warmup: UINT64_MAX */
    uint64_t tokens_min, tokens_max, tokens_factor, iterations, warmup;
};

struct cli_compare {
    bool turns;     /* --run */
    bool different; /* --allow-different, also of run, bench and verify with a result */
};

struct cli_config {
    bool origin, results;
};

struct cli_doctor {
    bool quick;
};

struct cli_import {
    const char *routing;   /* NULL: none */
    uint32_t layers, topk; /* of a routing without a shape; 0: not given */
};

enum chart_kind {
    CHART_AUTO, /* by the results */
    CHART_TOKENS,
    CHART_DISTRIBUTION,
    CHART_SKEW,
    CHART_STAGES,
    CHART_RATIO,
    CHART_TREND,
    CHART_NIGHTS,
};

struct cli_plot {
    int kind;             /* enum chart_kind */
    const char *baseline; /* of CHART_RATIO; NULL: the first run */
    uint32_t columns;     /* of text; 0: of the terminal */
};

struct cli_predict {
    const char *link, *sweep, *measured; /* NULL: none */
    uint32_t cores;                      /* of a node; 0: cores of this machine */
    bool check;
};

struct cli_routing {
    uint32_t layer, experts; /* UINT32_MAX and 0: not given */
};

struct cli_tune {
    const char **keys; /* patterns of selected options; none: all options */
    uint32_t n_keys;
    const char *algorithms; /* "ll_v2,ll_v1"; NULL: none */
};

/* Last parsed value of a repeatable option, for the parser alone. */
struct cli_last {
    const char *text;
    int choice;
};

/* The table of commands.c maps each option to its member. An option of several commands is a
 * member of this struct, and an option of one command belongs to the struct of the command. */
struct cli {
    const char **arg; /* [n_args]: the arguments after the command, such as files or a topic */
    uint32_t n_args;
    const char **set; /* --set key=value, in order */
    uint32_t n_sets;
    const char **plugin_path; /* --plugin-path: absolute paths in order; NULL ends the list */
    uint32_t n_plugin_paths;
    const char **only; /* --only: patterns of selected runs; none: all runs */
    uint32_t n_only;
    const char **across; /* --across of best and tune */
    uint32_t n_across;
    const char *json, *markdown, *csv, *out; /* FILE, "-" for standard output; NULL: none */
    const char *out_dir;                     /* NULL: none */
    const char *stage;                       /* NULL: none */
    const char *figure;                      /* --figure of best and compare; NULL: the median */
    uint64_t budget_ns;                      /* 0: not given; CLI_BUDGET_NS applies */
    uint32_t max_runs;                       /* maximum number of runs of one file */
    bool force, quiet, resume, help, version;
    int progress;     /* enum progress_mode */
    int color;        /* enum colour_mode */
    double threshold; /* as a fraction */
    double alpha;
    bool judges; /* --threshold or --alpha was given */
    struct cli_batch batch;
    struct cli_settings settings;
    struct cli_compare compare;
    struct cli_config config;
    struct cli_doctor doctor;
    struct cli_import import;
    struct cli_plot plot;
    struct cli_predict predict;
    struct cli_routing routing;
    struct cli_tune tune;
    struct cli_last last;
};

#endif
