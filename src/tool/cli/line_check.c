/* Checks the arguments and options of a command line against the tables of commands.c. */
#include "cli/line_check.h"

#include <ctype.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"

enum epa_status line_check_options(const struct line *line, struct epa_error *err)
{
    for (const struct option *o = options; o->is.name != NULL; o++) {
        text_auto takers = {0};

        if (!line->given[o - options] || (o->commands & line->command->bit) != 0)
            continue;
        for (const struct command *c = commands; c->name != NULL; c++)
            if ((o->commands & c->bit) != 0)
                text_add(&takers, "%s%s", takers.bytes == 0 ? "" : ", ", c->name);
        epa_fail(err, EPA_ERR_CONFIG, "%s does not take %s, only %s", line->command->name,
                 o->is.name, takers.data);
        return EPA_ERR_CONFIG;
    }
    return EPA_OK;
}

/* Checks the first argument of a command such as config, "show|check|schema FILE...". */
static enum epa_status check_subcommand(const struct line *line, struct epa_error *err)
{
    const char *at = line->command->args, *want = line->cli.arg[0];
    struct nearest nearest = {.want = want};
    text_auto all = {0};
    char hint[NEAREST_ROOM];

    for (size_t n = 1; islower((unsigned char)*at) && n > 0; at += n) {
        const char *word = arena_strndup(line->arena, at, strcspn(at, "| "));

        if (strcmp(word, want) == 0)
            return EPA_OK;
        nearest_try(&nearest, word);
        text_add(&all, "%s%s", all.bytes == 0 ? "known: " : ", ", word);
        n = at[strlen(word)] == '|' ? strlen(word) + 1 : 0;
    }
    return epa_fail(err, EPA_ERR_CONFIG, "%s does not know '%.64s'; %s", line->command->name, want,
                    nearest_hint(&nearest, hint, all.data));
}

enum epa_status line_check_arguments(const struct line *line, struct epa_error *err)
{
    const struct command *c = line->command;
    const char *more = line->cli.n_args > c->most ? line->cli.arg[c->most] : NULL;

    if (islower((unsigned char)c->args[0]) && line->cli.n_args > 0 &&
        check_subcommand(line, err) != EPA_OK)
        return EPA_ERR_CONFIG;
    if (line->cli.n_args < c->least || more != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes %s%s%s%s: 'epa2a %s%s%s'", c->name, c->takes,
                        more != NULL ? ", and not '" : "", more != NULL ? more : "",
                        more != NULL ? "'" : "", c->name, c->args[0] != '\0' ? " " : "", c->args);
    return c->check != NULL ? c->check(&line->cli, err) : EPA_OK;
}
