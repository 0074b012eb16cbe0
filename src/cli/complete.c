/* Reads a command line as cli.c does, but forgives everything, and then goes by the tables:
 * the word at the cursor is a command, an option, an option's value or an argument, whose
 * kind is what the help calls it (FILE..., A.json, [KIND], show|check). */
#include "cli/complete.h"

#include <ctype.h>
#include <limits.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "session/status.h"
#include "cli/topics.h"
#include "plugin/registry.h"

void complete_offer(struct completing *c, const char *help, const char *fmt, ...)
{
    size_t start = c->out.bytes, skip = (size_t)(c->word - c->whole), from;
    va_list args;
    char text[512];

    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    if (strncmp(text, c->word, strlen(c->word)) != 0)
        return;
    text_add_bytes(&c->out, c->whole, skip);
    text_add(&c->out, "%s", text);
    from = c->out.bytes;
    text_add(&c->out, "\t%s", help == NULL ? "" : help);
    for (size_t i = start; i < c->out.bytes; i++)
        if ((unsigned char)c->out.data[i] < ' ' && i != from)
            c->out.data[i] = ' ';
    text_add(&c->out, "\n");
}

void complete_words(struct completing *c, const char *words, size_t bytes)
{
    while (bytes != 0) {
        const char *bar = memchr(words, '|', bytes);
        size_t n = bar == NULL ? bytes : (size_t)(bar - words);

        complete_offer(c, NULL, "%.*s", (int)n, words);
        n += bar != NULL;
        words += n;
        bytes -= n;
    }
}

void complete_files(struct completing *c, const char *ends)
{
    text_add(&c->out, ":files %zu%s%s\n", (size_t)(c->word - c->whole), *ends == '\0' ? "" : " ",
             ends);
}

struct registry *complete_registry(struct completing *c)
{
    struct epa_error ignored = {EPA_OK, ""};

    if (c->registry == NULL &&
        registry_create((const char *const *)c->plugin_path, &c->registry, &ignored) != EPA_OK)
        c->registry = NULL;
    return c->registry;
}

uint32_t complete_plugins(struct completing *c, const struct registry_entry **out)
{
    struct registry *registry = complete_registry(c);

    *out = NULL;
    return registry == NULL ? 0 : registry_list(registry, out);
}

/* ---- the line up to the cursor ---- */

static void take_option(struct completing *c, const struct option *option, const char *value)
{
    char *path;

    if (option == &options[SET])
        c->set[c->n_sets++] = value;
    else if (option == &options[PLUGIN_PATH] && (path = realpath(value, NULL)) != NULL)
        c->plugin_path[c->n_plugin_paths++] = path;
}

static void take_word(struct completing *c, const char *word)
{
    if (c->command != NULL) {
        c->file[c->n_files++] = word;
        return;
    }
    for (const struct command *command = commands; command->name != NULL; command++)
        if (strcmp(command->name, word) == 0)
            c->command = command;
}

/* Returns the option whose value the last word is, or NULL; *ended: "--" was there. */
static const struct option *read_words(struct completing *c, const char *const *word, uint32_t n,
                                       bool *ended)
{
    *ended = false;
    for (uint32_t i = 0; i + 1 < n; i++) {
        const struct option *option = *ended ? NULL : commands_option(word[i]);
        const char *equals = strchr(word[i], '=');

        if (!*ended && strcmp(word[i], "--") == 0) {
            *ended = true;
        } else if (*ended || word[i][0] != '-' || word[i][1] == '\0') {
            take_word(c, word[i]);
        } else if (option != NULL && option->value != NULL) {
            if (equals == NULL && i + 2 == n)
                return option;
            take_option(c, option, equals == NULL ? word[++i] : equals + 1);
        }
    }
    return NULL;
}

/* ---- what may stand there ---- */

static void offer_commands(struct completing *c)
{
    for (const struct command *command = commands; command->name != NULL; command++)
        complete_offer(c, command->help, "%s", command->name);
}

static void offer_options(struct completing *c)
{
    for (const struct option *option = options; option < options + OPTIONS; option++)
        if (c->command == NULL ? option->commands == ANY
                               : (option->commands & c->command->bit) != 0)
            complete_offer(c, option->help, "%s", option->name);
}

static void offer_kinds(struct completing *c)
{
    for (uint32_t kind = 0; kind < PLUGIN_KINDS; kind++)
        complete_offer(c, topics_section((enum epa_plugin_kind)kind)->help, "%s",
                       plugin_kind_name((enum epa_plugin_kind)kind));
}

static void offer_command_that_runs(void *arg, const struct status *s)
{
    struct text help = {0};

    status_print_head(s, &help);
    complete_offer(arg, help.data, "%d", (int)s->head.pid);
    text_free(&help);
}

/* With a point only where one was typed: there are hundreds. */
static void offer_topics(struct completing *c)
{
    const struct registry_entry *entry;
    uint32_t n = complete_plugins(c, &entry);
    struct topics topics;

    topics_make(entry, n, &topics);
    for (uint32_t i = 0; i < topics.n; i++) {
        const struct topic *topic = &topics.item[i];
        struct text help = {0};

        if (strchr(topic->name, '.') != NULL && strchr(c->word, '.') == NULL)
            continue;
        topic_help(topic, &help);
        complete_offer(c, help.data, "%s", topic->name);
        text_free(&help);
    }
    topics_free(&topics);
}

static bool is_lower(const char *text, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (!islower((unsigned char)text[i]))
            return false;
    return bytes != 0;
}

/* `kind` is what help calls it. */
static void offer_kind(struct completing *c, const char *kind, size_t bytes)
{
    const char *dot;

    for (; bytes != 0 && *kind == '['; kind++)
        bytes--;
    while (bytes != 0 && (kind[bytes - 1] == ']' || kind[bytes - 1] == '.'))
        bytes--;
    dot = memchr(kind, '.', bytes);
    if (bytes == 9 && memcmp(kind, "KEY=VALUE", bytes) == 0)
        complete_keys(c);
    else if (memchr(kind, '|', bytes) != NULL || is_lower(kind, bytes))
        complete_words(c, kind, bytes);
    else if (bytes == 4 && memcmp(kind, "KIND", bytes) == 0)
        offer_kinds(c);
    else if (bytes == 5 && memcmp(kind, "TOPIC", bytes) == 0)
        offer_topics(c);
    else if (bytes == 3 && memcmp(kind, "PID", bytes) == 0)
        status_each(offer_command_that_runs, c);
    else if (bytes == 7 && memcmp(kind, "RESULTS", bytes) == 0)
        complete_files(c, "json");
    else if ((bytes == 4 && memcmp(kind, "GLOB", bytes) == 0) ||
             (bytes == 5 && memcmp(kind, "LABEL", bytes) == 0))
        complete_runs(c);
    else if (bytes == 3 && memcmp(kind, "DIR", bytes) == 0)
        text_add(&c->out, ":folders %zu\n", (size_t)(c->word - c->whole));
    else if (dot != NULL) {
        char end[32];

        snprintf(end, sizeof(end), "%.*s", (int)(bytes - (size_t)(dot + 1 - kind)), dot + 1);
        complete_files(c, end);
    } else if (bytes == 4 && memcmp(kind, "FILE", bytes) == 0) {
        complete_files(c, "");
    }
}

static void offer_argument(struct completing *c)
{
    const char *kind = c->command->args, *last = kind;
    uint32_t at = 0;

    while (*kind != '\0') {
        size_t bytes = strcspn(kind, " ");

        last = kind;
        if (at++ == c->n_files)
            break;
        kind += bytes + strspn(kind + bytes, " ");
    }
    if (*kind == '\0' && (at == 0 || strstr(last, "...") == NULL))
        return;
    if (strncmp(last, "FILE", 4) == 0 && (c->command->bit & (FILES | CONFIG)) != 0)
        complete_files(c, "yaml yml");
    else
        offer_kind(c, last, strcspn(last, " "));
}

static void offer(struct completing *c, const struct option *pending, bool ended)
{
    const char *equals = strchr(c->word, '=');

    if (pending != NULL) {
        offer_kind(c, pending->value, strlen(pending->value));
    } else if (!ended && c->word[0] == '-' && equals != NULL) {
        const struct option *option = commands_option(c->word);

        c->word = equals + 1;
        if (option != NULL && option->value != NULL)
            offer_kind(c, option->value, strlen(option->value));
    } else if (!ended && c->word[0] == '-') {
        offer_options(c);
    } else if (c->command == NULL) {
        offer_commands(c);
    } else {
        offer_argument(c);
    }
}

void complete(const char *const *word, uint32_t n, struct text *out)
{
    struct completing c = {.file = calloc(n + 1, sizeof(char *)),
                           .set = calloc(n + 1, sizeof(char *)),
                           .plugin_path = calloc(n + 1, sizeof(char *))};
    const struct option *pending;
    bool ended;

    if (n != 0 && c.file != NULL && c.set != NULL && c.plugin_path != NULL) {
        c.whole = c.word = word[n - 1];
        pending = read_words(&c, word, n, &ended);
        offer(&c, pending, ended);
    }
    registry_destroy(c.registry);
    for (uint32_t i = 0; i < c.n_plugin_paths; i++)
        free(c.plugin_path[i]);
    free(c.plugin_path);
    free(c.file);
    free(c.set);
    *out = c.out;
}
