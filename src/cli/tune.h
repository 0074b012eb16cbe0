/* State of the search of `epa2a tune`, its journal and its reports. A turn is one measurement of one
 * setting. */
#ifndef TUNE_H
#define TUNE_H

#include "base/stats.h"
#include "cli/cli.h"
#include "cli/runs.h"
#include "config/experiment.h"

enum {
    TUNE_SETTINGS = 4096,
    TUNE_ROUNDS = 1024, /* maximum number of rounds of a setting */
    TUNE_VERIFIED = 4,  /* iterations of a verify turn */
    TUNE_SHOWN = 3      /* least turns of a combined setting in the table */
};
#define TUNE_LAST_MOST 0.45 /* largest part of the budget for the last comparison */

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
};

struct tune {
    const struct cli *cli;
    struct arena *arena;
    struct tune_setting **setting; /* [n]; 0: the file's settings */
    uint32_t n;
    json_t *not_tried; /* [{"setting", "why"}] */
    const struct tune_setting *best;
    bool is_better;         /* `best` is faster than the file's settings in the last comparison */
    struct comparison last; /* last comparison of both, over `rounds` rounds */
    uint32_t rounds;
    uint64_t budget_ns, spent_ns, samples; /* samples: of one turn */
    uint32_t turns;
    bool threads;      /* ranks are threads of one process that serves all turns */
    uint32_t permille; /* quantile of a turn's samples that represents the turn */
    int stopped;       /* exit code of an early end of the search; 0: none */
};

/* Returns the median of a setting's turns in ns; NaN: no turn. */
double tune_median(const struct tune_setting *);
/* Adds "best: ...", a sentence without a full stop. */
void tune_verdict(const struct tune *, struct text *out);
/* Adds YAML comments with program, date, machine and the file of the search. */
void tune_origin(const char *what, const char *from, const char *how, struct text *out);
void tune_print(FILE *, const struct tune *);
json_t *tune_json(const struct tune *);
/* Adds comments about the search and then `yaml`, the text of experiment_show(). */
void tune_yaml(const struct tune *, const struct text *yaml, struct text *out);

/* ---- several tasks (tune_tasks.c) ---- */

struct tune_tasks {
    json_t *rows, *documents; /* rows of the table; tune_json() of each task */
    struct text runs;         /* YAML of the runs of the output file */
    uint64_t budget_ns, spent_ns;
    uint32_t turns, settings;
};

/* Returns the label of a run without the plugins, which the search may change. */
const char *tune_task_name(struct arena *, const char *label, size_t bytes);
/* Adds a searched task. yaml: its fastest experiment, or empty. failed: reason of a failure, or
 * NULL. */
void tune_tasks_add(struct tune_tasks *, const struct tune *, const char *task,
                    const struct text *yaml, const char *failed);
void tune_tasks_print(FILE *, const struct tune_tasks *, const char *from);
json_t *tune_tasks_json(const struct tune_tasks *, const char *from, bool interrupted);
void tune_tasks_yaml(const struct tune_tasks *, const char *from, struct text *out);

/* ---- the journal: a line for each turn, in order ---- */

struct tune_journal {
    char *path;  /* NULL: no journal */
    json_t *old; /* lines of the search that --resume continues */
    size_t at;   /* index of the next line of `old` */
    int fd, lock_fd;
};

/* Fails if the journals of tasks 1 to `tasks` cannot be written into --out-dir. */
enum epa_status tune_journals_check(const struct cli *, uint32_t tasks, struct epa_error *);
/* Opens the journal in --out-dir, if the option is given. With --resume `head` must equal the head
 * of the old journal. `task`: number of the task from 1; 0: the only task. */
enum epa_status tune_journal_open(struct tune_journal *, const struct cli *, uint32_t task,
                                  const json_t *head, struct epa_error *);
/* Returns the next turn of the old journal, which must describe `what`; NULL: the caller takes the
 * turn. */
enum epa_status tune_journal_next(struct tune_journal *, const json_t *what, const json_t **out,
                                  struct epa_error *);
/* Appends a turn. */
enum epa_status tune_journal_add(struct tune_journal *, const json_t *turn, struct epa_error *);
void tune_journal_close(struct tune_journal *);

/* ---- the search ---- */

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

/* A process that runs the ranks of all turns as its threads (cmd_tune.c). */
struct tune_process {
    pid_t pid;       /* 0: not started */
    int fd, signals; /* socket; signalfd of stop signals, also for turns without this process */
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
    struct tune_process process;
    struct registry *registry;
    struct tune_base *base;
    uint32_t n_bases;
    struct tune_kept *kept;      /* own all experiments */
    json_t *shape;               /* shape of this task; NULL: take the task of the first run */
    json_t *tasks;               /* {"name", "shape"} of each task of the file */
    uint32_t task;               /* number of this task from 1; 0: the only task */
    json_t *delivers;            /* output properties of the file's settings, without --across */
    uint32_t iterations, warmup; /* of one turn */
    uint64_t longest_ns;         /* time limit for the samples of one turn */
    uint64_t took_ns;            /* duration of the last turn */
    uint64_t bench_ns, benches;  /* total duration and number of bench turns of this length */
    struct tune_journal journal;
    struct turns turns; /* last comparison */
    struct epa_error err;
};

/* ---- candidates ---- */

/* Reads the only run of a text with `set`, or all runs of the file (text NULL). Returns NULL on an
 * error: `why` receives the error of a text; an error of the file is printed. */
const struct runs *tune_read_runs(struct tune_search *, const char *text, const char **set,
                                  uint32_t n, char why[CLI_FAILURE]);
/* Reads the runs of the file that belong to this task, adds --algorithms, and collects all tasks. */
enum epa_status tune_read_bases(struct tune_search *);
/* Returns the output properties of an experiment that must not differ between settings. */
json_t *tune_delivered(const struct tune_search *, const struct experiment *);

/* Adds a change to `set` and sorts it; leaves out a value that the base already has. Returns the new
 * length. */
uint32_t tune_merge(struct tune_search *, uint32_t base, const char **set, uint32_t n,
                    const char *change);
/* Adds a setting, or returns the existing one of the same name. NULL: the setting is not valid. */
struct tune_setting *tune_add_setting(struct tune_search *, uint32_t base, const char **set,
                                      uint32_t n, const char *change, uint32_t pass);
/* Adds to a list all settings that differ from `from` in one value. */
void tune_add_changes(struct tune_search *, const struct tune_setting *from, uint32_t pass,
                      struct tune_setting **list, uint32_t *n);

/* ---- the search (tune_search.c) ---- */

/* Returns true for the exit code of a command that a signal stopped. */
bool tune_is_interrupted(int code);
/* Searches from setting 0, the file's settings; sets t.best and t.is_better. Returns an exit
 * code. */
int tune_search(struct tune_search *);

#endif
