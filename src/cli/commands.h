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
    FILES = RUN | BENCH | VERIFY, /* those that run experiments */
    ANY = FILES | LIST | HELP | CONFIG | COMPARE | DOCTOR | TRACE | COMPLETION,
};

struct command {
    const char *name, *args, *help;
    enum command_bit bit;
    int (*run)(const struct cli *);
};

enum option_id {
    SET,
    JSON,
    TIMEOUT,
    PLUGIN_PATH,
    FORCE,
    QUIET,
    DRY_RUN,
    ONLY,
    SHUFFLE,
    FAIL_FAST,
    MAX_RUNS,
    MARKDOWN,
    CSV,
    RUN_LABEL,
    ORIGIN,
    THRESHOLD,
    ALPHA,
    QUICK,
    OUT,
    HELP_OPTION,
    VERSION_OPTION,
    OPTIONS,
};

struct option {
    const char *name, *value; /* value NULL: a flag */
    const char *help;
    unsigned commands; /* enum command_bit */
};

enum { COMMANDS_MOST = 32 };

extern const struct command commands[]; /* ends with {0} */
extern const struct option options[OPTIONS];

/* How many there are. */
uint32_t commands_count(void);

/* --help; command NULL: of the program. */
void commands_print_help(const struct command *);
void commands_print(FILE *);

#endif
