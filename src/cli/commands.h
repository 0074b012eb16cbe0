/* The two tables that say everything about the command line: commands, and the options that
 * each takes. Parsing, refusals, --help, completions and man pages read them. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <stdio.h>

#include "cli/cli.h"

enum command_bit {
    RUN = 1u << 0,
    BENCH = 1u << 1,
    VERIFY = 1u << 2,
    LIST = 1u << 3,
    HELP = 1u << 4,
    CONFIG = 1u << 5,
    COMPARE = 1u << 6,
    DOCTOR = 1u << 7,
    TRACE = 1u << 14,
    COMPLETION = 1u << 15,
    PLOT = 1u << 16,
    RERUN = 1u << 17,
    STATUS = 1u << 18,
    FILES = RUN | BENCH | VERIFY, /* those that run experiments */
    ANY = FILES | LIST | HELP | CONFIG | COMPARE | DOCTOR | TRACE | COMPLETION | PLOT | RERUN |
          STATUS,
};

struct command {
    const char *name, *args, *help;
    enum command_bit bit;
    int (*run)(const struct cli *);
};

enum option_id {
    SET,
    CONTEXT,
    JSON,
    TIMEOUT,
    PLUGIN_PATH,
    FORCE,
    QUIET,
    DRY_RUN,
    ONLY,
    ORDER,
    SHUFFLE,
    FAIL_FAST,
    MAX_RUNS,
    MARKDOWN,
    CSV,
    JSON_LINES,
    OUT_DIR,
    RESUME,
    RUN_LABEL,
    ORIGIN,
    THRESHOLD,
    ALPHA,
    QUICK,
    OUT,
    KIND,
    STAGE,
    RESULTS,
    TOKENS_MIN,
    TOKENS_MAX,
    TOKENS_FACTOR,
    ITERATIONS,
    WARMUP,
    PROGRESS,
    COLOR,
    HELP_OPTION,
    VERSION_OPTION,
    OPTIONS,
};

struct option {
    const char *name, *value; /* value NULL: a flag */
    const char *help;
    unsigned commands; /* enum command_bit */
    char letter;       /* of its short form, which takes a value too; 0: it has none */
};

enum { COMMANDS_MOST = 32 };

extern const struct command commands[]; /* ends with {0} */
extern const struct option options[OPTIONS];

/* cli_check.c: whether a command has the arguments that it needs. */
enum epa_status cli_check_args(const struct command *, const struct cli *, struct epa_error *);

/* The command takes all options that were given, [OPTIONS]. */
enum epa_status cli_check_options(const struct command *, const bool *given, struct epa_error *);

/* The last of n words of --context: NAME=TEXT, of one line, whose name none before has. */
enum epa_status cli_check_context(const char *const *context, uint32_t n, struct epa_error *);

/* The option that a word is, "--json=x" or "-o"; NULL: there is none. */
const struct option *commands_option(const char *word);

/* cli_sweep.c: -b, -e, -f, -n and -w become settings, which stand in `sweep` and are added to
 * those of the line, in `set`, which has room for them. */
struct sweep {
    char tokens[512], iterations[64], warmup[64];
};
enum epa_status cli_sweep(const struct command *, struct cli *, const char **set, struct sweep *,
                          struct epa_error *);

/* How many there are. */
uint32_t commands_count(void);

/* --help; command NULL: of the program. */
void commands_print_help(const struct command *);
void commands_print(FILE *);

#endif
