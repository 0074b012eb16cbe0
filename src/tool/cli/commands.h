/* The tables of commands and options. */
#ifndef COMMANDS_H
#define COMMANDS_H

#include <stddef.h>
#include <stdint.h>

#include "cli/cli.h"
#include <epa2a/plugin.h>

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
    STATUS = 1u << 12,
    BEST = 1u << 13,
    ROUTING = 1u << 14,
    TUNE = 1u << 15,
    PREDICT = 1u << 16,
    IMPORT = 1u << 17,
    FILES = RUN | BENCH | VERIFY, /* commands that run experiments */
    ANY = (1u << 18) - 1,
};

/* A command. Its functions are called after line_check_arguments() has checked the number of
 * arguments. main.c reports a failure to write standard output. */
struct command {
    const char *name, *args, *help; /* NULL ends the table */
    enum command_bit bit;
    int (*run)(const struct cli *); /* returns an exit code */
    uint32_t least, most;           /* number of arguments */
    const char *takes;              /* description of the arguments for error messages */
    enum epa_status (*check)(const struct cli *, struct epa_error *); /* own checks; or NULL */
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

/* Returns the option of a word such as "--json=x" or "-o"; NULL: unknown. */
const struct option *commands_option(const char *word);

#endif
