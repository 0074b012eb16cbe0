/* The two tables that say everything about the command line: commands, and the options that
 * each takes. Parsing, refusals, --help, completions and man pages read them. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <epa2a/option.h>
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
    TRACE = 1u << 8,
    COMPLETION = 1u << 9,
    PLOT = 1u << 10,
    RERUN = 1u << 11,
    STATUS = 1u << 12,
    BEST = 1u << 13,
    FILES = RUN | BENCH | VERIFY, /* those that run experiments */
    ANY = (1u << 14) - 1,
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
    size_t count;         /* may be repeated: where in struct cli the number of values is; or 0 */
};
enum { OPTIONS_MOST = 64 };
extern const struct option options[]; /* {0} ends the table */

/* The option that a word is, "--json=x" or "-o"; NULL: there is none. */
const struct option *commands_option(const char *word);

/* --help; command NULL: of the program. */
void commands_print_help(const struct command *);
void commands_print(FILE *);

#endif
