/* The command line, parsed. */
#ifndef CLI_H
#define CLI_H

#include <stdbool.h>
#include <stdint.h>

#include "base/exit_code.h"

struct cli {
    const char *const *arg; /* what stands after the subcommand: files, or help's KEY */
    uint32_t n_args;
    const char *const *set; /* --set key=value, in order */
    uint32_t n_sets;
    const char *json;        /* --json FILE, "-" for standard output; NULL: none */
    uint64_t timeout_ns;     /* --timeout; 0: the experiment's own */
    const char *plugin_path; /* --plugin-path, absolute; NULL: the usual places */
    bool force, quiet, origin, quick;
    const char *const *only; /* --only, any of them; none: all runs */
    uint32_t n_only;
    bool dry_run, fail_fast, shuffle;
    uint64_t shuffle_seed;
    uint32_t max_runs;          /* of one file */
    const char *markdown, *csv; /* as json */
    const char *run;            /* --run; NULL: the base */
    const char *out;            /* --out; NULL: none */
    double threshold, alpha;    /* --threshold as a fraction, --alpha */
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
int cmd_doctor(const struct cli *);
struct epa_error;
enum epa_status cmd_trace_check(const struct cli *, struct epa_error *); /* arguments */
int cmd_trace(const struct cli *);
int cmd_doctor(const struct cli *);

int cmd_completion(const struct cli *);

#endif
