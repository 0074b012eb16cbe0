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
    bool force, quiet, origin;
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

#endif
