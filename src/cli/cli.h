/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/colour.h"
#include "base/exit_code.h"
#include "cli/progress.h"

/* Which run is next; RUNS_USUAL: as the command would have it. */
enum runs_order { RUNS_USUAL, RUNS_DECLARED, RUNS_INTERLEAVED, RUNS_SHUFFLED };

struct text;

struct cli {
    const char *const *arg; /* what stands after the subcommand: files, or help's KEY */
    uint32_t n_args;
    const char *const *set; /* --set key=value, in order */
    uint32_t n_sets;
    const char *const *context; /* --context NAME=TEXT, in order; good ones */
    uint32_t n_context;
    const char *json;               /* --json FILE, "-" for standard output; NULL: none */
    uint64_t timeout_ns;            /* --timeout; 0: the experiment's own */
    const char *const *plugin_path; /* --plugin-path, in order, absolute; ends with NULL */
    bool force, quiet, origin, quick;
    const char *const *only; /* --only, any of them; none: all runs */
    uint32_t n_only;
    bool dry_run, fail_fast, shuffle, resume;
    enum runs_order order;       /* --order */
    uint64_t shuffle_seed;       /* --shuffle, if `shuffle` */
    uint32_t max_runs;           /* of one file */
    const char *markdown, *csv;  /* as json */
    const char *json_lines;      /* as json */
    const char *out_dir;         /* --out-dir; NULL: none */
    char *const *line;           /* all of the command line; ends with NULL */
    const char *run;             /* --run; NULL: the base */
    const char *out;             /* --out; NULL: none */
    const char *kind, *stage;    /* --kind, --stage; NULL: none */
    enum progress_mode progress; /* --progress */
    enum colour_mode color;      /* --color */
    double threshold, alpha;     /* --threshold as a fraction, --alpha */
    bool judges;                 /* one of these was given */
    bool results;                /* --results */
    /* --tokens-min and so on; 0: not given */
    uint64_t tokens_min, tokens_max, tokens_factor, iterations;
    uint64_t warmup; /* if has_warmup */
    bool has_warmup;
    const char *text; /* what the file of the only argument holds; NULL: it is read */
    struct text *results_out; /* gets the document of --json, too; NULL: nothing */
};

/* Parses and runs one command; the exit codes of `epa2a help exit-codes`. */
int cli_main(int argc, char **argv);

/* The commands; each returns an exit code. A failure to write standard output is
 * cli_main()'s to tell. cli_main() has seen to it that run, bench and verify have a
 * file, list and help at most one argument, config "show" or "check" and a file. */
int cmd_run(const struct cli *);
int cmd_bench(const struct cli *);
int cmd_verify(const struct cli *);
int cmd_list(const struct cli *);
int cmd_help(const struct cli *);
int cmd_config(const struct cli *); /* show | check */
int cmd_compare(const struct cli *);
struct results; /* compared by the --threshold, --alpha and --force of the line; frees both */
int compare_results(const struct cli *, struct results *a, struct results *b);
int cmd_status(const struct cli *);
int cmd_doctor(const struct cli *);
struct epa_error;
enum epa_status cmd_trace_check(const struct cli *, struct epa_error *); /* arguments */
int cmd_trace(const struct cli *);
int cmd_doctor(const struct cli *);

int cmd_completion(const struct cli *);
enum epa_status cmd_plot_check(const struct cli *, struct epa_error *); /* arguments */
int cmd_plot(const struct cli *);
int cmd_rerun(const struct cli *);
int cmd_version(const struct cli *); /* --version */

#endif
