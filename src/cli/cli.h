/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>

#include <epa2a/option.h>

#include "base/exit_code.h"
#include "base/json.h"
#include "base/text.h"
#include "report/plot.h"

enum progress_mode { PROGRESS_AUTO, PROGRESS_ALWAYS, PROGRESS_NEVER };

/* Which run is next; RUNS_USUAL: as the command would have it. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

enum { CLI_FAILURE = 300 };

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
    uint64_t budget_ns;                            /* 0: not given */
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
    char *failure;             /* [CLI_FAILURE] gets why a run failed, which is not printed; NULL */
};

/* The commands; each returns an exit code. A failure to write standard output is reported by
 * cli.c, which has seen to it that there are as many arguments as the table of commands says. */
int cmd_run(const struct cli *);
int cmd_bench(const struct cli *);
int cmd_verify(const struct cli *);
int cmd_list(const struct cli *);
int cmd_help(const struct cli *);
int cmd_config(const struct cli *); /* show | check | schema */
int cmd_schema(const struct cli *);
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
/* Before the command runs, whether --json and --markdown may be written; and whether one of them is
 * standard output, where nothing else may be then. */
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

/* The option that a word is, "--json=x" or "-o"; NULL: there is none. */
const struct option *commands_option(const char *word);

/* --help; command NULL: of the program. */
void commands_print_help(const struct command *);
void commands_print(FILE *);

#endif
