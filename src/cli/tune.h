/* What `epa2a tune` keeps of its turns, and what it writes at its end. */
#ifndef TUNE_H
#define TUNE_H

#include "base/stats.h"
#include "cli/cli.h"
#include "cli/runs.h"
#include "config/experiment.h"

enum {
    TUNE_SETTINGS = 4096,
    TUNE_ROUNDS = 1024, /* that a setting takes part in */
    TUNE_VERIFIED = 4,  /* iterations that are verified */
    TUNE_SHOWN = 3      /* turns of what is tried together, to be in the table */
};
#define TUNE_LAST_MOST 0.45 /* of the budget, for the last comparison */

/* What is tried: options over those of the file. */
struct tune_setting {
    uint32_t base;    /* which run of the file, or which algorithm */
    const char **set; /* [n] "algorithm.dedup=true", in order */
    uint32_t n;
    const char *name;   /* of all of it; "the file's settings" */
    const char *change; /* the one of `set` that is tried; NULL: several, or none */
    const struct experiment *x;
    double *log_ratio, *ns; /* [rounds] over the file's settings in the same round; medians */
    double log;             /* of what it takes over the file's settings, as far as it is known */
    uint32_t rounds;
    bool dropped;
    bool hopeless;   /* it lost much alone, and no other setting has its change */
    const char *why; /* it was dropped; NULL: it was not */
    uint32_t pass;   /* 0: the file's; 1: a value alone; 2: several together */
};

struct tune {
    const struct cli *cli;
    struct arena *arena;
    struct tune_setting **setting; /* [n]; 0: the file's */
    uint32_t n;
    json_t *not_tried; /* [{"setting", "why"}] */
    const struct tune_setting *best;
    bool is_better;         /* than the file's settings, by turns */
    struct comparison last; /* of both; `rounds` of them */
    uint32_t rounds;
    uint64_t budget_ns, spent_ns, samples; /* samples of a turn */
    uint32_t turns;
    bool threads;      /* ranks were threads of one process, which was kept */
    uint32_t permille; /* of the samples of a turn: what it counts as */
    int stopped;       /* exit code of what ended the search early; 0: nothing */
};

/* The median of a setting's turns in ns; NaN: it had none. */
double tune_median(const struct tune_setting *);
/* "best: ...", a sentence without its end. */
void tune_verdict(const struct tune *, struct text *out);
/* Comments with program, date, machine and the file of the search. */
void tune_origin(const char *what, const char *from, const char *how, struct text *out);
void tune_print(FILE *, const struct tune *);
json_t *tune_json(const struct tune *);
/* An experiment with comments that say where it comes from; `yaml`: as experiment_show() has it. */
void tune_yaml(const struct tune *, const struct text *yaml, struct text *out);

/* ---- several tasks (tune_tasks.c) ---- */

struct tune_tasks {
    json_t *rows, *documents; /* of the table; tune_json() of each task */
    struct text runs;         /* of the file, YAML */
    uint64_t budget_ns, spent_ns;
    uint32_t turns, settings;
};

const char *tune_task_name(struct arena *, const char *label, size_t bytes);
/* Adds a task that was searched. yaml: its winner; empty: none. failed: the reason; NULL. */
void tune_tasks_add(struct tune_tasks *, const struct tune *, const char *task,
                    const struct text *yaml, const char *failed);
void tune_tasks_print(FILE *, const struct tune_tasks *, const char *from);
json_t *tune_tasks_json(const struct tune_tasks *, const char *from, bool interrupted);
void tune_tasks_yaml(const struct tune_tasks *, const char *from, struct text *out);

/* ---- the journal: a line for each turn, in order ---- */

struct tune_journal {
    char *path;  /* NULL: none is kept */
    json_t *old; /* lines of a search that goes on */
    size_t at;   /* of `old`, the next */
    int fd, lock_fd;
};

/* Refuses an --out-dir in which the journals of tasks 1 to `tasks` could not be written. */
enum epa_status tune_journals_check(const struct cli *, uint32_t tasks, struct epa_error *);
/* Opens the journal in --out-dir, if there is one. A search that goes on needs an equal `head`.
 * `task`: its number, from 1, of several; 0: the only one. */
enum epa_status tune_journal_open(struct tune_journal *, const struct cli *, uint32_t task,
                                  const json_t *head, struct epa_error *);
/* The next turn of the search that goes on, which was `what`; NULL: it has to be taken. */
enum epa_status tune_journal_next(struct tune_journal *, const json_t *what, const json_t **out,
                                  struct epa_error *);
enum epa_status tune_journal_add(struct tune_journal *, const json_t *turn, struct epa_error *);
void tune_journal_close(struct tune_journal *);

/* ---- the search ---- */

/* A run of the file, or its first one by another algorithm. */
struct tune_base {
    const char *name;
    const char *whole, *text; /* YAML; text: without what is expected and traced */
    const struct experiment *x;
};

struct tune_kept {
    struct tune_kept *next;
    struct runs runs;
};

/* One that runs the ranks of all turns as its threads (cmd_tune.c). */
struct tune_process {
    pid_t pid;       /* 0: it has to be started */
    int fd, signals; /* a socket; a signalfd, for turns without this process, too */
};

enum tune_verb { TUNE_BENCH, TUNE_CHECKED /* one iteration of a bench */, TUNE_VERIFY };

/* What a turn came to. */
struct tune_turn {
    double median_ns, fastest_ns; /* fastest: TURNS_FASTEST */
    uint64_t took_ns, samples;    /* took_ns 0: it was interrupted */
    const char *why;              /* it failed */
};

struct tune_search {
    struct tune t; /* for the report */
    /* Takes a turn. Exit codes are those of the setting; with `err` they end the search. */
    int (*take)(struct tune_search *, const struct tune_setting *, enum tune_verb,
                struct tune_turn *);
    struct tune_process process;
    struct registry *registry;
    struct tune_base *base;
    uint32_t n_bases;
    struct tune_kept *kept;              /* own all experiments */
    json_t *shape;                       /* of its task; NULL: the task of the first run */
    json_t *tasks;                       /* {"name", "shape"} of each task of the file */
    uint32_t task;                       /* its number, from 1, of several; 0: the only one */
    json_t *delivers;                    /* of the file's settings, without --across */
    uint32_t iterations, warmup;         /* of a turn */
    uint64_t longest_ns;                 /* all samples of a turn */
    uint64_t took_ns, bench_ns, benches; /* the last turn; benches of that size */
    struct tune_journal journal;
    struct turns turns; /* at the end */
    struct epa_error err;
};

/* ---- what can be tried ---- */

/* The only run of a text with `set`, or all of the file (text NULL); NULL: `why` says why not, or
 * for the file it was printed. */
const struct runs *tune_read_runs(struct tune_search *, const char *text, const char **set,
                                  uint32_t n, char why[CLI_FAILURE]);
/* The runs of the file that have its task, and --algorithms; finds all tasks. */
enum epa_status tune_read_bases(struct tune_search *);
/* What it delivers, as far as that must not differ. */
json_t *tune_delivered(const struct tune_search *, const struct experiment *);

/* `set` with a change, in order; without a value that the base has. Returns how many. */
uint32_t tune_merge(struct tune_search *, uint32_t base, const char **set, uint32_t n,
                    const char *change);
/* A setting that was not there before; NULL: it was, or cannot be tried. */
struct tune_setting *tune_add_setting(struct tune_search *, uint32_t base, const char **set,
                                      uint32_t n, const char *change, uint32_t pass);
/* Adds to a list all that differ from `from` in a value. */
void tune_add_changes(struct tune_search *, const struct tune_setting *from, uint32_t pass,
                      struct tune_setting **list, uint32_t *n);

/* ---- the search (tune_search.c) ---- */

bool tune_is_interrupted(int code);
/* From setting 0, the file's, to t.best and whether it is better. */
int tune_search(struct tune_search *);

#endif
