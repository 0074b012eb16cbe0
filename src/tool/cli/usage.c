/* The text of --help, from the tables of commands.c. */
#include "cli/usage.h"

#include <string.h>

#include "base/memory.h"
#include "base/text.h"

enum { LEFT = 26 }; /* columns of the left part of a line of help */

/* Adds an entry of help. A left part that is too long for its column gets a line of its own. */
static void add_help_line(struct text *out, const char *left, const char *help)
{
    if (strlen(left) >= LEFT) {
        text_add(out, "  %s\n", left);
        left = "";
    }
    text_add(out, "  %-*s %s\n", LEFT, left, help);
}

static void add_option_help(struct text *out, unsigned of)
{
    for (const struct option *o = options; o->is.name != NULL; o++) {
        char left[80];

        if ((o->commands & of) == 0)
            continue;
        snprintf(left, sizeof(left), "%s%s%s%s%s",
                 o->letter == 0 ? "" : (const char[]){'-', o->letter, 0},
                 o->letter == 0 ? "" : ", ", o->is.name, o->value == NULL ? "" : " ",
                 o->value == NULL ? "" : o->value);
        add_help_line(out, left, o->is.help);
    }
}

void commands_add(struct text *out)
{
    for (const struct command *command = commands; command->name != NULL; command++) {
        char left[80];

        snprintf(left, sizeof(left), "%s %s", command->name, command->args);
        add_help_line(out, left, command->help);
    }
}

void commands_add_help(const struct command *command, struct text *out)
{
    if (command != NULL) {
        text_add(out, "usage: epa2a %s %s [OPTION...]\n\n%s\n", command->name, command->args,
                 command->help);
        if ((command->bit & (FILES | CONFIG | TUNE | PREDICT)) != 0)
            text_add(out, "\nFILE is an experiment: a file, or a name of 'epa2a list configs'%s.\n",
                     (command->bit & FILES) != 0
                         ? "; without FILE: small.\nA result in place of experiments, of --json or "
                           "--out-dir, is repeated and compared"
                         : "");
        text_add(out, "\nOptions:\n");
        add_option_help(out, command->bit);
        return;
    }
    text_add(out, "epa2a runs, verifies and measures the communication of mixture-of-experts "
                  "layers.\n\nusage: epa2a COMMAND [OPTION...]\n\nCommands:\n");
    commands_add(out);
    text_add(out,
             "\nOptions, before or after the command; 'epa2a COMMAND --help' lists the options of "
             "a command:\n");
    add_option_help(out, ANY);
    text_add(out, "\nA FILE of - is standard input; for an output option it is standard output.\n"
                  "Results go to standard output, everything else to standard error. "
                  "'epa2a help exit-codes' lists the exit codes.\n");
}
