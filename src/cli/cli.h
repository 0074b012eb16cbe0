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
#include "session/session.h"
#include "base/stats.h"

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

/* Which run is next; RUNS_USUAL: as the command would have it. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

enum { CLI_FAILURE = 300 };
#define CLI_BUDGET_NS UINT64_C(60000000000)

struct cli {
    const char **arg; /* what is after the subcommand: files, or help's KEY */
    uint32_t n_args;
    /* Options, by the table of commands.c. */
    const char **set; /* --set key=value, in order */
    uint32_t n_sets;
    const char **context; /* --context NAME=TEXT, in order; good ones */
    uint32_t n_context;
    const char **plugin_path; /* --plugin-path, in order, absolute; ends with NULL */
    uint32_t n_plugin_paths;
    const char **only; /* --only, any of them; none: all runs */
    uint32_t n_only;
    const char **model; /* --model, in order, each "NAME" or "NAME,NAME" */
    uint32_t n_models;
    const char **across; /* --across, of best and tune */
    uint32_t n_across;
    const char **keys; /* --keys, any of them; none: all */
    uint32_t n_keys;
    const char *algorithms;                        /* --algorithms, "ll_v2,ll_v1"; NULL: none */
    const char *json;                              /* FILE, "-" for standard output; NULL: none */
    const char *markdown, *csv, *json_lines, *out; /* the same */
    const char *html, *junit, *openmetrics;        /* the same */
    const char *out_dir;                           /* NULL: none */
    const char *stage;                             /* NULL: none */
    int kind;                                      /* enum plot_kind */
    uint64_t timeout_ns;                           /* 0: the experiment's own */
    uint64_t budget_ns;                            /* 0: not given, which is CLI_BUDGET_NS */
    const char *link, *sweep, *measured;           /* of predict; NULL: none */
    uint32_t cores;                                /* of a node; 0: those of this machine */
    uint32_t layer, experts; /* of a file of routing; UINT32_MAX, 0: not given */
    bool check;              /* predict */
    bool thorough;           /* verify: each run in all of thorough_variants */
    bool force, quiet, turns, origin, quick, dry_run, fail_fast, resume, results, help, version;
    int order; /* enum runs_order */
    bool shuffle;
    uint64_t shuffle_seed; /* if `shuffle` */
    uint32_t max_runs;     /* of one file */
    int progress;          /* enum progress_mode */
    int color;             /* enum colour_mode */
    double threshold;      /* as a fraction */
    double alpha;
    bool judges;           /* one of these was given */
    const char *last_text; /* of options that may be repeated, as it was parsed */
    int last_choice;
    /* --tokens-min and so on; 0: not given. warmup: UINT64_MAX */
    uint64_t tokens_min, tokens_max, tokens_factor, iterations, warmup;

    char *const *line;         /* all of the command line; ends with NULL */
    const char *text;          /* what the file of the only argument holds; NULL: it is read */
    struct registry *registry; /* of who runs several commands, as is `machine`; NULL: their own */
    json_t *machine;           /* facts_collect() */
    json_t *results_out;       /* a list that gets all results, too; NULL: nothing */
    struct alternation *alternation; /* of a bench with another; NULL: it runs alone */
    uint32_t side;
    char *failure; /* [CLI_FAILURE] gets why a run failed, which is not printed; NULL */
};

/* The commands; each returns an exit code. A failure to write standard output is reported by
 * cli.c, which has seen to it that there are as many arguments as the table of commands says. */
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

/* "epa2a: " and why, on standard error; returns the exit code. */
int cli_fail(const struct epa_error *);
/* Writes a document, which is taken, to --json, if that is asked for. */
enum epa_status cli_write_json(const struct cli *, json_t *document, struct epa_error *);
/* Before the command runs, whether its files may be written; and whether one of them is standard
 * output, where nothing else may be then. */
enum epa_status cli_check_documents(const struct cli *, struct epa_error *);
bool cli_has_stdout(const struct cli *);
/* Writes a document, which is taken, to --json and text to --markdown, each where it is asked
 * for. */
enum epa_status cli_write_documents(const struct cli *, json_t *document,
                                    const struct text *markdown, struct epa_error *);

/* Runs gnuplot (of PATH, without the user's settings) on a script; `out` gets what it writes. */
enum epa_status cli_draw(const struct text *script, struct text *out, struct epa_error *);
/* By what a path ends in. */
enum plot_form cli_plot_form(const char *path);
uint32_t cli_plot_columns(const char *path);

/* `epa2a __complete WORD...`: the arguments of epa2a up to the cursor, the last of which is
 * completed. */
int complete_main(int argc, char **argv);

/* Checks of a command beyond the number of its arguments. */
enum epa_status cmd_config_check(const struct cli *, struct epa_error *);
enum epa_status cmd_trace_check(const struct cli *, struct epa_error *);
enum epa_status cmd_compare_check(const struct cli *, struct epa_error *);
enum epa_status cmd_plot_check(const struct cli *, struct epa_error *);
enum epa_status cmd_predict_check(const struct cli *, struct epa_error *);

/* ---- the tables of the command line ---- */

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
    FILES = RUN | BENCH | VERIFY, /* those that run experiments */
    ANY = (1u << 18) - 1,
};

struct command {
    const char *name, *args, *help; /* NULL ends the table */
    enum command_bit bit;
    int (*run)(const struct cli *);
    uint32_t least, most;                                             /* arguments */
    const char *takes;                                                /* in words */
    enum epa_status (*check)(const struct cli *, struct epa_error *); /* or NULL */
};
extern const struct command commands[];

struct option {
    struct epa_option is; /* its name with --, and where in struct cli it goes, within bounds */
    const char *value;    /* what help calls its value; NULL: a flag */
    unsigned commands;    /* enum command_bit */
    char letter;          /* of its short form; 0: it has none */
    size_t list, count;   /* may be repeated: where in struct cli they and their number are; or 0 */
};
enum { OPTIONS_MOST = 64 };
extern const struct option options[]; /* {0} ends the table */

/* A command line being read: options may be anywhere, are never abbreviated, and end at "--". */
struct line {
    const struct command *command; /* NULL: none was named */
    struct cli cli;
    bool given[OPTIONS_MOST];
    bool options_ended;
    struct arena *arena; /* of all that cli points to */
};

/* Nothing is given yet; there is room for `argc` words. Its arena is the caller's to destroy. */
void line_init(struct line *, int argc, char **argv);
/* A word of it; `next` is the one behind it, or NULL; *used: it was this option's value. */
enum epa_status line_take(struct line *, const char *word, const char *next, bool *used,
                          struct epa_error *);

/* The option that a word is, "--json=x" or "-o"; NULL: there is none. */
const struct option *commands_option(const char *word);

/* --help; command NULL: of the program. */
void commands_add_help(const struct command *, struct text *out);
void commands_add(struct text *out);

/* Topics of `epa2a help`: pages of prose, commands, keys of an experiment, plugins and their
 * options, environment variables. Help, completions and man pages use this list, which is made
 * from the option tables. */

enum { TOPIC_MAX = 128 };

/* A variable of the environment that this program reads. */
struct variable {
    const char *name, *help; /* NULL ends the list */
};
extern const struct variable environment[];

/* A page of prose: help/TOPIC.txt, embedded in the program, or made by a table. */
struct help_page {
    const char *topic;          /* NULL ends the list */
    const char *text;           /* its first line is what the page is about */
    void (*add)(struct text *); /* or NULL: what comes behind, by a table */
};
extern const struct help_page help_pages[];

struct command;

struct topic {
    char name[TOPIC_MAX];
    const char *help; /* one line on it, without a full stop; of a page its first */
    /* One of these: */
    const struct help_page *page;
    const struct variable *variable;
    const struct command *command;
    const struct batch_key *batch;
    /* Or these: */
    const struct section *section;      /* NULL: a key at the top */
    const struct registry_entry *entry; /* a plugin; NULL: not of one */
    const struct epa_option *option;    /* NULL: the section or plugin as a whole */
    const void *defaults;               /* the struct that the option is in */
};

struct topics {
    struct topic *item;
    uint32_t n;
};

/* `entry` as registry_list() gives it; none: all that needs no plugin. */
void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out);
void topics_free(struct topics *);

/* The section whose plugins are of that kind. */
const struct section *topics_section(enum epa_plugin_kind);

/* Warns of variables EPA2A_... that are set and unknown. */
void environment_warn(void);

/* Shared by `compare`, `compare --run`, `rerun` and `tune`. */

/* Starts the document of a comparison of sides `a` and `b`; rounds 0: they did not take turns. */
json_t *compared_create(const char *a, const char *b, double threshold, double alpha);
/* Adds a row; `judged` false: it explains another one and has no verdict. */
void compared_add(json_t *compared, const struct results_run *, const char *stage,
                  const struct comparison *, enum compare_verdict, bool judged);
bool compared_is_slower(const json_t *);

enum { TURNS_FASTEST = 10 /* per mille of the samples of a turn, where a machine is busy */ };
/* Whether other programs have the cores, by a turn's samples. */
bool turns_are_busy(double median, double fastest);

/* Two sides that take turns, in rounds of A B or B A. */
enum { TURNS_STAGES = 32, TURNS_ROUNDS = 4096 };
struct turns {
    /* A turn of each side, that one first: of each stage the medians in ns and the logarithm of
     * B / A; adds what it took to spent_ns. Returns an exit code. */
    int (*take)(void *arg, uint32_t first, double median[][2], double *figure);
    void *arg;
    uint32_t n_stages, total;        /* which stage is judged */
    double threshold, alpha;         /* by these */
    double *figure[TURNS_STAGES];    /* [rounds] logarithms of B / A */
    double *median[TURNS_STAGES][2]; /* [rounds] ns */
    uint32_t rounds, look;           /* look: as in turns_judge() */
    bool is_last;                    /* the budget is spent, and it is not decided */
    uint64_t spent_ns;
    bool progress; /* is shown */
};
/* Room for all rounds of n_stages. */
void turns_init(struct turns *, struct arena *, uint32_t n_stages);
/* Rounds until it is decided or the budget has no room for another; the exit code of the turn that
 * failed. */
int turns_take(struct turns *, uint64_t budget_ns, enum compare_verdict *verdict);
/* What the rounds, one at least, say of a stage, with the medians of all turns. Sorts `median`. */
enum compare_verdict turns_result(struct turns *, uint32_t stage, struct comparison *);

/* Runs a command and reads its results, which are called `path`; returns its exit code. *out has no
 * root where it left none. */
int run_for_results(struct cli *, int (*command)(const struct cli *), const char *path,
                    struct results *out);

/* It writes and prints nothing. */
void turns_make_quiet(struct cli *);
/* Refuses to start ranks where this is one of several processes already. */
enum epa_status turns_check_alone(const char *command, struct epa_error *);

/* Compares by --threshold, --alpha and --force. `documents`: --json and --markdown are for what
 * comes out. */
int compare_results(const struct cli *, const struct results *a, const struct results *b,
                    bool documents);

/* Whether a run of `a` and the one of `b` may be compared; says in what they differ. */
enum epa_status compare_check(const struct cli *, FILE *notes, const struct results *a,
                              const struct results *b, struct epa_error *);

/* Prints a comparison, which is taken, and writes documents. */
enum epa_status compare_print(const struct cli *, json_t *compared, const char *taken,
                              bool documents, struct epa_error *);

#endif
