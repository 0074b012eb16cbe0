/* Parses the words of a command line by the tables of commands.c. */
#include "cli/line.h"

#include <ctype.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/cli.h"
#include "options/option.h"
#include "experiment/batch.h"

enum { CONTEXT_NAME = 64, CONTEXT_MOST = 64, SWEEP_SETS = 6 };

/* Checks the last --context: NAME=TEXT of one line, with a new name. */
static enum epa_status check_context(const struct cli *cli, struct epa_error *err)
{
    const char *word = cli->batch.context[cli->batch.n_context - 1], *at = strchr(word, '=');
    int bytes = at == NULL ? 0 : (int)(at - word);
    uint32_t point = 0;

    if (bytes == 0 || bytes > CONTEXT_NAME || (!isalpha((unsigned char)*word) && *word != '_'))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--context %.80s: expected NAME=TEXT with a name of 1 to %d letters, "
                        "digits, '_', '.' and '-': --context switch=b",
                        word, CONTEXT_NAME);
    for (const char *c = word; c < at; c++)
        if (!isalnum((unsigned char)*c) && strchr("_.-", *c) == NULL)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "--context %.*s: a name consists of letters, digits, '_', '.' and '-', "
                            "not '%c'",
                            bytes, word, *c);
    at = text_not_a_line(at + 1, &point);
    if (at != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--context %.*s: the text contains byte 0x%02x; it must be one line of "
                        "UTF-8",
                        bytes, word, (unsigned char)*at);
    for (uint32_t i = 0; i + 1 < cli->batch.n_context; i++)
        if (strncmp(cli->batch.context[i], word, (size_t)bytes + 1) == 0)
            return epa_fail(err, EPA_ERR_CONFIG, "--context %.*s is given more than once", bytes,
                            word);
    if (cli->batch.n_context > CONTEXT_MOST)
        return epa_fail(err, EPA_ERR_CONFIG, "--context is given more than %d times", CONTEXT_MOST);
    return EPA_OK;
}

static enum epa_status unknown_option(const char *text, struct epa_error *err)
{
    struct nearest nearest = {.want = text};
    char name[64], hint[NEAREST_ROOM];

    snprintf(name, sizeof(name), "%.*s", (int)strcspn(text, "="), text);
    nearest.want = name;
    for (const struct option *o = options; o->is.name != NULL && nearest.name == NULL; o++)
        if (name[1] != '-' && name[2] == '\0' && name[1] == o->is.name[2])
            nearest.name = o->is.name;
    if (nearest.name == NULL)
        nearest_try_table(&nearest, options, sizeof(*options));
    return epa_fail(err, EPA_ERR_CONFIG, "unknown option %s; %s", name,
                    nearest_hint(&nearest, hint, "'epa2a --help' lists them"));
}

static void *field_of(struct line *line, size_t offset)
{
    return (char *)&line->cli + offset;
}

/* Stores the value of an option in `line`. `value` is NULL only for flags. */
static enum epa_status store_value(struct line *line, const struct option *o, const char *value,
                                   struct epa_error *err)
{
    bool *given = &line->given[o - options];
    struct value_error why = {"", ""};

    if (*given && value != NULL && o->count == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s is given more than once", o->is.name);
    *given = true;
    if (value == NULL) {
        *(bool *)field_of(line, o->is.offset) = true;
    } else if (!option_parse(&o->is, value, &line->cli, &why)) {
        return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' %s; %s", o->is.name, value, why.what,
                        why.hint);
    } else if (o->count != 0) {
        const char ***list = field_of(line, o->list);
        uint32_t *n = field_of(line, o->count);

        (*list)[(*n)++] = value;
        if (list == &line->cli.batch.context)
            return check_context(&line->cli, err);
    } else if (o->is.offset == offsetof(struct cli, threshold)) {
        line->cli.threshold /= strchr(value, '%') == NULL ? 100 : 1;
        if (line->cli.threshold > 1)
            return epa_fail(err, EPA_ERR_CONFIG, "%s: %s is out of range: above 0 to 100 %%",
                            o->is.name, value);
    }
    return EPA_OK;
}

/* Parses an option. `next` is the following argument or NULL; sets *used if `next` is the value. */
static enum epa_status read_option(struct line *line, const char *text, const char *next,
                                   bool *used, struct epa_error *err)
{
    const char *value = strchr(text, '=') != NULL ? strchr(text, '=') + 1 : NULL;
    const struct option *o = commands_option(text);

    *used = false;
    if (o == NULL)
        return unknown_option(text, err);
    if (o->value == NULL && value != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s takes no value", o->is.name);
    if (o->value != NULL && value == NULL && next != NULL && strncmp(next, "--", 2) != 0) {
        value = next;
        *used = true;
    }
    if (o->is.offset == offsetof(struct cli, json) && value == NULL &&
        (line->cli.version ||
         (line->command != NULL && (line->command->bit & (STATUS | LIST)) != 0)))
        value = "-"; /* --version --json, status PID --json, list models --json */
    if (o->value != NULL && (value == NULL || *value == '\0'))
        return epa_fail(err, EPA_ERR_CONFIG, "%s needs a value: %s %s", o->is.name, o->is.name,
                        o->value);
    return store_value(line, o, value, err);
}

static enum epa_status find_command(const char *name, const struct command **out,
                                    struct epa_error *err)
{
    struct nearest nearest = {.want = name};
    const char *dot = strrchr(name, '.');
    char hint[NEAREST_ROOM];

    for (const struct command *c = commands; c->name != NULL; c++) {
        if (strcmp(name, c->name) == 0) {
            *out = c;
            return EPA_OK;
        }
        nearest_try(&nearest, c->name);
    }
    if (nearest.name == NULL && dot != NULL &&
        (strcmp(dot, ".yaml") == 0 || strcmp(dot, ".yml") == 0))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "put a command before the file: 'epa2a run %s' or 'epa2a bench %s'", name,
                        name);
    return epa_fail(err, EPA_ERR_CONFIG, "unknown command '%s'; %s", name,
                    nearest_hint(&nearest, hint, "'epa2a --help' lists them"));
}

void line_init(struct line *line, int argc)
{
    *line = (struct line){.cli = {.threshold = -1,
                                  .alpha = -1,
                                  .max_runs = BATCH_RUNS_MOST,
                                  .batch.shuffle_seed = UINT64_MAX,
                                  .settings.warmup = UINT64_MAX,
                                  .routing.layer = UINT32_MAX},
                          .arena = arena_create()};
    /* Each list has room for all words of argv, the settings of a sweep and NULL. */
    line->cli.arg = arena_alloc(line->arena, (size_t)(argc > 0 ? argc : 1) * sizeof(char *));
    for (const struct option *o = options; o->is.name != NULL; o++)
        if (o->count != 0)
            *(const char ***)field_of(line, o->list) = arena_alloc(
                line->arena, ((size_t)(argc > 0 ? argc : 1) + SWEEP_SETS) * sizeof(char *));
}

enum epa_status line_take(struct line *line, const char *word, const char *next, bool *used,
                          struct epa_error *err)
{
    *used = false;
    if (!line->options_ended && strcmp(word, "--") == 0)
        line->options_ended = true;
    else if (!line->options_ended && word[0] == '-' && word[1] != '\0')
        return read_option(line, word, next, used, err);
    else if (line->command == NULL)
        return find_command(word, &line->command, err);
    else
        line->cli.arg[line->cli.n_args++] = word;
    return EPA_OK;
}
