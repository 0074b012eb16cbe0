/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <jansson.h>
#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

/* Order of the runs of a batch. RUNS_USUAL: the default of the command. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

#define CLI_BUDGET_NS UINT64_C(60000000000)

struct cli {
    const char **arg; /* [n_args]: the arguments after the command, such as files or a topic */
    uint32_t n_args;
    /* Options. The table of commands.c maps each option to its member. */
    const char **set; /* --set key=value, in order */
    uint32_t n_sets;
    const char **context; /* --context NAME=TEXT, in order, checked */
    uint32_t n_context;
    const char **plugin_path; /* --plugin-path: absolute paths in order; NULL ends the list */
    uint32_t n_plugin_paths;
    const char **only; /* --only: patterns of selected runs; none: all runs */
    uint32_t n_only;
    const char **model; /* --model, in order; each "NAME" or "NAME,NAME" */
    uint32_t n_models;
    const char **across; /* --across of best and tune */
    uint32_t n_across;
    const char **keys; /* --keys: patterns of selected options; none: all options */
    uint32_t n_keys;
    const char *algorithms;                        /* --algorithms, "ll_v2,ll_v1"; NULL: none */
    const char *json;                              /* FILE, "-" for standard output; NULL: none */
    const char *markdown, *csv, *json_lines, *out; /* FILE, as for --json */
    const char *html, *junit, *openmetrics;        /* FILE, as for --json */
    const char *out_dir;                           /* NULL: none */
    const char *stage;                             /* NULL: none */
    int kind;                                      /* enum plot_kind */
    uint64_t timeout_ns;                           /* 0: the timeout of the experiment */
    uint64_t budget_ns;                            /* 0: not given; CLI_BUDGET_NS applies */
    const char *link, *sweep, *measured;           /* options of predict; NULL: none */
    uint32_t cores;                                /* --cores of a node; 0: cores of this machine */
    uint32_t layer, experts; /* options of routing; UINT32_MAX and 0: not given */
    bool check;              /* predict --check */
    bool thorough;           /* verify --thorough: adds the variants of each run */
    bool force, quiet, turns, origin, quick, dry_run, fail_fast, resume, results, help, version;
    int order; /* enum runs_order */
    bool shuffle;
    uint64_t shuffle_seed; /* valid if `shuffle` */
    uint32_t max_runs;     /* maximum number of runs of one file */
    int progress;          /* enum progress_mode */
    int color;             /* enum colour_mode */
    double threshold;      /* as a fraction */
    double alpha;
    bool judges;           /* --threshold or --alpha was given */
    const char *last_text; /* last parsed value of a repeatable option */
    int last_choice;       /* last parsed choice of a repeatable option */
    /* --tokens-min, --tokens-max and so on. Not given: 0; warmup: UINT64_MAX */
    uint64_t tokens_min, tokens_max, tokens_factor, iterations, warmup;
};

#endif
