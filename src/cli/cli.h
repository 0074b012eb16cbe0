/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <epa2a/plugin.h>

#include "base/text.h"
#include "base/json.h"
#include "report/result.h"
#include "report/results.h"
#include "experiment/batch.h"
#include "experiment/batch_keys.h"
#include "session/session.h"
#include "base/stats.h"

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

/* Order of the runs of a batch. RUNS_USUAL: the default of the command. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

enum { CLI_FAILURE = 300 };
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

    char *const *line;         /* the whole command line; NULL ends the list */
    const char *text;          /* content of the only file; NULL: the command reads the file */
    struct registry *registry; /* shared by several runs of bench; NULL: the command creates one */
    json_t *machine;           /* facts_collect(), shared in the same way; NULL: none */
    json_t *results_out;       /* list that also receives all results; NULL: none */
    struct alternation *alternation; /* turns with another bench; NULL: bench runs alone */
    uint32_t side;                   /* side of this bench in `alternation`: 0 or 1 */
    bool parent_reports_stop;        /* the parent prints the signal that ends this bench */
    char *failure; /* [CLI_FAILURE] receives the error of a run instead of stderr; or NULL */
};

/* The commands. Each returns an exit code. cli.c has checked the number of arguments against the
 * table of commands, and reports a failure to write standard output. */
int cmd_run(const struct cli *);
int cmd_bench(const struct cli *);
int cmd_verify(const struct cli *);
int cmd_list(const struct cli *);
int list_models(const struct cli *);  /* list models */
int list_configs(const struct cli *); /* list configs */
int cmd_help(const struct cli *);
int cmd_config(const struct cli *); /* show | check | schema */
int cmd_compare(const struct cli *);
int compare_turns(const struct cli *); /* compare --run */
int cmd_status(const struct cli *);
int cmd_doctor(const struct cli *);
int cmd_trace(const struct cli *);
int cmd_completion(const struct cli *);
int cmd_plot(const struct cli *);
int cmd_best(const struct cli *);
int cmd_import(const struct cli *);
int cmd_rerun(const struct cli *);
int cmd_routing(const struct cli *); /* stats */
int cmd_tune(const struct cli *);
int cmd_predict(const struct cli *);
int cmd_version(const struct cli *); /* --version */

/* Prints "epa2a: " and the error to standard error; returns the exit code. */
int cli_fail(const struct epa_error *);
/* Writes `document` to the file of --json, if given. Takes the reference to `document`. */
enum epa_status cli_write_json(const struct cli *, json_t *document, struct epa_error *);
/* Checks before the command runs that the files of its options can be written. */
enum epa_status cli_check_documents(const struct cli *, struct epa_error *);
/* Returns true if an option writes a document to standard output. The command then prints nothing
 * else there. */
bool cli_has_stdout(const struct cli *);
/* Writes `document` to --json and `markdown` to --markdown, if given. Takes the reference to
 * `document`. */
enum epa_status cli_write_documents(const struct cli *, json_t *document,
                                    const struct text *markdown, struct epa_error *);

/* Runs the gnuplot of PATH on a script, without the settings of the user; stores its output in
 * `out`. */
enum epa_status cli_draw(const struct text *script, struct text *out, struct epa_error *);
/* Returns the form of a chart by the ending of its path. */
enum plot_form cli_plot_form(const char *path);
/* Returns the width of a text chart in columns. */
uint32_t cli_plot_columns(const char *path);

/* Runs `epa2a __complete WORD...`. The words are the arguments of epa2a up to the cursor; prints
 * candidates for the last word. */
int complete_main(int argc, char **argv);

/* Command-specific checks of arguments and options, before the command runs. */
enum epa_status cmd_config_check(const struct cli *, struct epa_error *);
enum epa_status cmd_trace_check(const struct cli *, struct epa_error *);
enum epa_status cmd_compare_check(const struct cli *, struct epa_error *);
enum epa_status cmd_plot_check(const struct cli *, struct epa_error *);
enum epa_status cmd_predict_check(const struct cli *, struct epa_error *);

/* ---- tables of the command line ---- */

enum command_bit {
    RUN = 1u << 0,
    BENCH = 1u << 1,
    VERIFY = 1u << 2,
    LIST = 1u << 3,
    HELP = 1u << 4,
    CONFIG = 1u << 5,
    COMPARE = 1u << 6,
    DOCTOR = 1u << 7,
    TRACE = 1u << 8,
    COMPLETION = 1u << 9,
    PLOT = 1u << 10,
    RERUN = 1u << 11,
    STATUS = 1u << 12,
    BEST = 1u << 13,
    ROUTING = 1u << 14,
    TUNE = 1u << 15,
    PREDICT = 1u << 16,
    IMPORT = 1u << 17,
    FILES = RUN | BENCH | VERIFY, /* commands that run experiments */
    ANY = (1u << 18) - 1,
};

struct command {
    const char *name, *args, *help; /* NULL ends the table */
    enum command_bit bit;
    int (*run)(const struct cli *);
    uint32_t least, most; /* number of arguments */
    const char *takes;    /* description of the arguments for error messages */
    enum epa_status (*check)(const struct cli *, struct epa_error *); /* or NULL */
};
extern const struct command commands[];

struct option {
    struct epa_option is; /* name with --, member of struct cli, and bounds */
    const char *value;    /* name of the value in help; NULL: a flag */
    unsigned commands;    /* enum command_bit */
    char letter;          /* letter of the short form; 0: none */
    size_t list, count;   /* repeatable option: offsets of list and count in struct cli; or 0 */
};
enum { OPTIONS_MOST = 64 };
extern const struct option options[]; /* {0} ends the table */

/* Parser state of a command line. Options may be anywhere, are never abbreviated, and end at
 * "--". */
struct line {
    const struct command *command; /* NULL: the line has no command yet */
    struct cli cli;
    bool given[OPTIONS_MOST];
    bool options_ended;
    struct arena *arena; /* owns all memory of `cli` */
};

/* Initialises an empty line with room for `argc` words. The caller destroys the arena. */
void line_init(struct line *, int argc, char **argv);
/* Parses a word. `next` is the following word or NULL; sets *used if `next` is the value of this
 * option. */
enum epa_status line_take(struct line *, const char *word, const char *next, bool *used,
                          struct epa_error *);

/* Returns the option of a word such as "--json=x" or "-o"; NULL: unknown. */
const struct option *commands_option(const char *word);

/* Adds the text of --help for a command; NULL: for the program. */
void commands_add_help(const struct command *, struct text *out);
/* Adds the list of commands. */
void commands_add(struct text *out);

/* Topics of `epa2a help`: pages of prose, commands, keys of an experiment, plugins and their
 * options, environment variables. topics_make() collects them from the option tables for help,
 * completions and man pages. */

enum { TOPIC_MAX = 128 };

/* A variable of the environment that this program reads. */
struct variable {
    const char *name, *help; /* NULL ends the list */
};
extern const struct variable environment[];

/* A page of prose. topics.txt holds the pages; the build embeds them in the program. */
struct help_page {
    const char *topic;          /* NULL ends the list */
    const char *text;           /* the first line states the subject of the page */
    void (*add)(struct text *); /* adds a table after the text; or NULL */
};
extern const struct help_page help_pages[];

struct command;

struct topic {
    char name[TOPIC_MAX];
    const char *help; /* one line without a full stop; for a page its first line */
    /* Subject of the topic: one of the next four members, or the last four together. */
    const struct help_page *page;
    const struct variable *variable;
    const struct command *command;
    const struct batch_key *batch;
    const struct section *section;      /* NULL: a key at the top level */
    const struct registry_entry *entry; /* plugin; NULL: the topic belongs to no plugin */
    const struct epa_option *option;    /* NULL: the whole section or plugin */
    const void *defaults;               /* struct with the default of `option` */
};

struct topics {
    struct topic *item;
    uint32_t n;
};

/* Collects all topics. `entry` is the list of registry_list(); n == 0 leaves out the topics of
 * plugins. */
void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out);
void topics_free(struct topics *);

/* Returns the section that selects plugins of a kind. */
const struct section *topics_section(enum epa_plugin_kind);

/* Warns about unknown variables whose names begin with EPA2A_. */
void environment_warn(void);

/* Shared by `compare`, `compare --run`, `rerun` and `tune`. */

/* Creates the document of a comparison of sides `a` and `b`, without rows and with null as the
 * number of rounds. */
json_t *compared_create(const char *a, const char *b, double threshold, double alpha);
/* Adds a row. Without `judged` the row has no verdict: it only explains another row. */
void compared_add(json_t *compared, const struct results_run *, const char *stage,
                  const struct comparison *, enum compare_verdict, bool judged);
bool compared_is_slower(const json_t *);

/* Quantile, in per mille, that represents a turn on a busy machine. */
enum { TURNS_FASTEST = 10 };
/* Returns true if the samples of a turn show that other programs use the cores. */
bool turns_are_busy(double median, double fastest);

/* Two sides that take turns, in rounds of A B or B A. A turn is one measurement of one side. */
enum { TURNS_STAGES = 32, TURNS_ROUNDS = 4096 };
struct turns {
    /* Takes a turn of each side, side `first` first. Stores for each stage the medians in ns and
     * the logarithm of B / A; adds the elapsed time to spent_ns. Returns an exit code. */
    int (*take)(void *arg, uint32_t first, double median[][2], double *figure);
    void *arg;
    uint32_t n_stages, total;        /* total: index of the stage that decides */
    double threshold, alpha;         /* criteria of the decision */
    double *figure[TURNS_STAGES];    /* [rounds] logarithms of B / A */
    double *median[TURNS_STAGES][2]; /* [rounds] ns */
    uint32_t rounds, look;           /* look: as in turns_judge() */
    bool is_last;                    /* the budget is spent without a decision */
    uint64_t spent_ns;
    bool progress; /* show the progress line */
};
/* Allocates arrays for all rounds of n_stages stages. */
void turns_init(struct turns *, struct arena *, uint32_t n_stages);
/* Takes rounds until the verdict is clear or the budget has no time for another round. Returns the
 * exit code of the turn that failed. */
int turns_take(struct turns *, uint64_t budget_ns, enum compare_verdict *verdict);
/* Returns the verdict on a stage after at least one round, with the medians of all turns. Sorts
 * `median`. */
enum compare_verdict turns_result(struct turns *, uint32_t stage, struct comparison *);

/* Runs a command and collects its results under the name `path`; returns its exit code. Without
 * results the root of *out is NULL. */
int run_for_results(struct cli *, int (*command)(const struct cli *), const char *path,
                    struct results *out);

/* Turns off all output of a command line: tables, documents and progress. */
void turns_make_quiet(struct cli *);
/* Fails if a launcher such as mpirun started this process as one of several. */
enum epa_status turns_check_alone(const char *command, struct epa_error *);

/* Compares results by --threshold, --alpha and --force; returns the exit code. `documents`: write
 * the comparison to --json and --markdown. */
int compare_results(const struct cli *, const struct results *a, const struct results *b,
                    bool documents);

/* Checks that the only runs of `a` and `b` can be compared; prints their differences to `notes`. */
enum epa_status compare_check(const struct cli *, FILE *notes, const struct results *a,
                              const struct results *b, struct epa_error *);

/* Prints a comparison and writes it to the documents. Takes the reference to `compared`. */
enum epa_status compare_print(const struct cli *, json_t *compared, const char *taken,
                              bool documents, struct epa_error *);

#endif
