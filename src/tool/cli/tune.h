/* State of the search of `epa2a tune`. A turn is one measurement of one setting. */
#ifndef TUNE_H
#define TUNE_H

#include "base/stats.h"
#include "cli/cli.h"
#include "cli/turns.h"
#include "cli/runs.h"
#include "config/experiment.h"

enum {
    TUNE_SETTINGS = 4096,
    TUNE_ROUNDS = 1024, /* maximum number of rounds of a setting */
    TUNE_VERIFIED = 4,  /* iterations of a verify turn */
    TUNE_SHOWN = 3      /* least turns of a combined setting in the table */
};
#define TUNE_LAST_MOST 0.45 /* largest part of the budget for the last comparison */

/* A task of the file: runs of one shape. shape: experiment_part() with the role KEY_TASK. */
struct tune_task {
    const char *name, *shape;
};

/* A setting to try: options that replace options of the file. */
struct tune_setting {
    uint32_t base;    /* index of the run of the file, or of the algorithm */
    const char **set; /* [n] "algorithm.dedup=true", sorted */
    uint32_t n;
    const char *name;   /* all words of `set`, or "the file's settings" */
    const char *change; /* the word of `set` under test; NULL: several, or none */
    const struct experiment *x;
    double *log_ratio; /* [rounds] logarithm of the ratio to the file's settings in the round */
    double *ns;        /* [rounds] medians */
    double log;        /* estimated logarithm of that ratio */
    uint32_t rounds;
    bool dropped;
    bool hopeless;   /* slow alone; no other setting contains its change */
    const char *why; /* reason of the end of this setting's turns; NULL: none */
    uint32_t pass;   /* 0: the file's settings; 1: one value alone; 2: several values */
    const struct tune_setting *parent; /* this setting without one value; NULL: none */
    uint32_t added;                    /* index of that value in the search */
};

/* A setting that the search cannot try; in the arena. */
struct tune_skipped {
    const char *setting, *why;
    struct tune_skipped *next;
};

struct tune {
    const struct cli *cli;
    const struct machine_facts *machine;
    struct arena *arena;
    struct tune_setting **setting; /* [n]; 0: the file's settings */
    uint32_t n;
    struct tune_skipped *not_tried; /* list, the first one first */
    const struct tune_setting *best;
    bool is_better;         /* `best` is faster than the file's settings in the last comparison */
    struct comparison last; /* last comparison of both, over `rounds` rounds */
    uint32_t rounds;
    uint64_t budget_ns, spent_ns, samples; /* samples: of one turn */
    uint32_t turns;
    uint32_t permille; /* quantile of a turn's samples that represents the turn */
    int stopped;       /* exit code of an early end of the search; 0: none */
};

/* A run of the file, or its first run with another algorithm. */
struct tune_base {
    const char *name;
    const char *whole, *text; /* YAML; text: without expectations and profile */
    const struct experiment *x;
};

struct tune_kept {
    struct tune_kept *next;
    struct runs runs;
};

/* TUNE_CHECKED: bench that checks one iteration. */
enum tune_verb { TUNE_BENCH, TUNE_CHECKED, TUNE_VERIFY };

/* Result of a turn. */
struct tune_turn {
    double median_ns, fastest_ns; /* fastest: quantile TURNS_FASTEST */
    uint64_t took_ns, samples;    /* took_ns 0: interrupted */
    const char *why;              /* error message, if the turn failed */
};

struct tune_search {
    struct tune t; /* for the report */
    /* Takes a turn and returns its exit code. A failure ends the search only if `err` is set. */
    int (*take)(struct tune_search *, const struct tune_setting *, enum tune_verb,
                struct tune_turn *);
    int stop_fd; /* signalfd of stop signals */
    struct registry *registry;
    struct tune_base *base;
    uint32_t n_bases;
    struct tune_kept *kept; /* own all experiments */
    const char *shape;      /* shape of this task; NULL: take the task of the first run */
    struct tune_task *task; /* [n_tasks] of the file */
    uint32_t n_tasks;
    struct op_property delivers[OP_PROPERTIES]; /* of the file's settings, without --across */
    uint32_t n_delivers;
    uint32_t iterations, warmup; /* of one turn */
    uint64_t longest_ns;         /* time limit for the samples of one turn */
    uint64_t took_ns;            /* duration of the last turn */
    uint64_t bench_ns, benches;  /* total duration and number of bench turns of this length */
    struct turns turns;          /* last comparison */
    struct epa_error err;
};

#endif
