/* `epa2a help [TOPIC]`. A topic is a page of prose, a command, a key of the experiment (ranks,
 * bench.warmup), a map of keys (bench), a plugin (shm, transport.shm), an option of a plugin
 * (shm.wait, transport.shm.wait, transport.wait), or a variable of the environment. help prints the
 * requested topic or suggests the nearest one. */
#include "cli/cmd_help.h"

#include <stdio.h>
#include <string.h>

#include "base/exit_code.h"
#include "base/fold.h"
#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "cli/cli.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/help_pages.h"
#include "cli/option_example.h"
#include "cli/topics.h"
#include "cli/usage.h"
#include "config/option_text.h"
#include "options/option.h"
#include "op/operations.h"
#include "launch/program_registry.h"

static void default_text(const struct epa_option *option, const void *defaults, struct text *out)
{
    if (option_is_set(option, defaults))
        option_text(option, defaults, out);
    else
        text_add(out, "not set");
}

static void add_help_example(struct text *out, const struct topic *topic, const char *key)
{
    bool list = topic->option->type == EPA_OPTION_U32_LIST;
    text_auto value = {0}, needs = {0}, example = {0};

    if (topic->entry != NULL)
        text_add(&needs, "--set %s=%s ", topic->section->name, topic->entry->name);
    else
        option_example_add_needs(topic->section, topic->option, &needs);
    if (topic->section != NULL && strcmp(topic->section->name, "model") == 0 &&
        strcmp(topic->option->name, topic->section->main) == 0)
        text_add(&value, "deepseek-v3");
    else
        option_example_add(topic->option, topic->defaults, &value);
    text_add(&example, "  example   epa2a run FILE %s--set %s%s=%s%s",
             needs.bytes == 0 ? "" : needs.data, list ? "'" : "", key, value.data, list ? "'" : "");
    if (example.bytes > FOLD_COLUMNS && topic->entry != NULL) { /* --set of a map is shorter */
        text_free(&example);
        text_add(&example, "  example   epa2a run FILE --set '%s={name: %s, %s: %s}'",
                 topic->section->name, topic->entry->name, topic->option->name, value.data);
    }
    text_add(out, "%s\n", example.data);
}

/* Adds the candidate values of `epa2a tune`. */
static void add_help_candidates(struct text *out, const struct epa_option *option)
{
    text_auto values = {0}, on_hosts = {0};

    text_add(&values, "  tune     ");
    for (uint32_t i = 0, before = 0; before != values.bytes; i++) {
        text_auto value = {0};

        before = (uint32_t)values.bytes;
        if (option_candidate(option, true, i, &value))
            text_add(&values, " %s", value.data);
    }
    text_add(out, "%s%s\n", values.data,
             option_candidate(option, false, 0, &on_hosts) ? "" : " (on GPUs)");
}

static void add_help_of_option(struct text *out, const struct topic *topic)
{
    const struct epa_option *option = topic->option;
    const char *section = topic->section == NULL ? "" : topic->section->name;
    const char *unit = option_unit(option);
    text_auto value = {0};
    char key[TOPIC_MAX], range[OPTION_RANGE_ROOM];

    default_text(option, topic->defaults, &value);
    option_range(option, "", range, sizeof(range));
    snprintf(key, sizeof(key), "%s%s%s", section, *section == 0 ? "" : ".", option->name);
    text_add(out, "%s: %s\n", key, option->help);
    if (topic->entry != NULL)
        text_add(out, "  plugin    %s '%s'\n", section, topic->entry->name);
    text_add(out, "  type      %s\n", option_type(option));
    if (unit != NULL)
        text_add(out, "  unit      %s\n", unit);
    if (*range != '\0')
        text_add(out, "  range     %s\n", range);
    if (option->choices != NULL)
        for (const struct epa_choice *c = option->choices; c->name != NULL; c++)
            text_add(out, "  %-9s %-12s  %s\n", c == option->choices ? "choices" : "", c->name,
                     c->help == NULL ? "" : c->help);
    if (option->name != experiment_options.table->name)
        text_add(out, "  default   %s\n", *value.data != '\0' ? value.data : "\"\"");
    if (option->tune != NULL)
        add_help_candidates(out, option);
    add_help_example(out, topic, key);
}

/* Adds a line for each option. */
static void add_help_of_options(struct text *out, const char *section, const struct epa_options *of)
{
    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++) {
        text_auto value = {0};
        char key[TOPIC_MAX];

        default_text(o, of->defaults, &value);
        snprintf(key, sizeof(key), "%s%s%s", section, *section == 0 ? "" : ".", o->name);
        text_add(out, "  %-22s %-12s  %s\n", key, value.data, o->help);
    }
}

static void add_help_of_plugin(struct text *out, const struct registry_entry *entry)
{
    const char *section = topics_section(entry->kind)->name;

    if (entry->plugin == NULL) {
        text_add(out, "%s %s cannot be loaded: %s\n", section, entry->name, entry->why);
        return;
    }
    text_add(out, "%s %s: %s\n", section, entry->name, entry->plugin->summary);
    if (entry->plugin->options.table == NULL || entry->plugin->options.table->name == NULL)
        text_add(out, "  The plugin has no options.\n");
    else
        add_help_of_options(out, section, &entry->plugin->options);
}

static void add_help_of_section(struct text *out, const struct section *section,
                                const struct registry_entry *entry, uint32_t n)
{
    text_auto operations = {0};

    text_add(out, "%s: %s\n", section->name, section->help);
    operation_names(section->ops, &operations);
    if (operations.bytes != 0)
        text_add(out, "  for algorithms of %s\n", operations.data);
    if (section->plugin) {
        text_add(out, "  `%s: %s` is short for `%s: {name: %s}`; options follow in the same map.\n",
                 section->name, section->chosen, section->name, section->chosen);
        for (uint32_t i = 0; i < n; i++)
            if (entry[i].kind == section->kind)
                text_add(out, "  %-12s  %s%s\n", entry[i].name,
                         entry[i].plugin == NULL ? entry[i].why : entry[i].plugin->summary,
                         strcmp(entry[i].name, section->chosen) == 0 ? " (the default)" : "");
        text_add(out, "  `epa2a help NAME` lists the options of a plugin.\n");
        if (section->nested != NULL)
            text_add(out,
                     "  A plugin with the option %s takes the name of another plugin, which %s, or "
                     "a map with its options: `%s: {name: ucx, tls: tcp}`, --set %s.tls=tcp.\n",
                     section_key(section->nested), section->nested->help,
                     section_key(section->nested), section->nested->name);
        return;
    }
    add_help_of_options(out, section->name, &section->options);
    if (strcmp(section->name, "model") == 0)
        text_add(out,
                 "  `model: NAME` reads a model of `epa2a list models`; a map describes one.\n");
    else if (section->main != NULL)
        text_add(out, "  `%s: VALUE` is short for `%s: {%s: VALUE}`.\n", section->name,
                 section->name, section->main);
}

static void add_help_of_topic(struct text *out, const struct topic *topic,
                              const struct registry_entry *entry, uint32_t n)
{
    text_auto page = {0};

    if (topic->page != NULL) {
        help_page_add(topic->page, &page);
        text_add(out, "%s", page.data);
    } else if (topic->variable != NULL)
        text_add(out, "%s, an environment variable: %s\n", topic->name, topic->variable->help);
    else if (topic->batch != NULL)
        text_add(out, "%s: %s\n  `epa2a help batches` explains files with several runs.\n",
                 topic->name, topic->batch->help);
    else if (topic->command != NULL)
        commands_add_help(topic->command, out);
    else if (topic->option != NULL)
        add_help_of_option(out, topic);
    else if (topic->entry != NULL)
        add_help_of_plugin(out, topic->entry);
    else
        add_help_of_section(out, topic->section, entry, n);
}

static void add_overview(struct text *out)
{
    text_add(out, "Keys of an experiment. `epa2a help KEY` prints type, range and choices.\n\n");
    add_help_of_options(out, "", &experiment_options);
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        text_add(out, "  %-22s %-12s  %s\n", key->name, "not set", key->help);
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        text_add(out, "\n%s: %s\n", s->name, s->help);
        if (s->plugin)
            text_add(out, "  %-22s %-12s  a plugin; `epa2a help %s` lists them\n", "name",
                     s->chosen, s->name);
        else
            add_help_of_options(out, s->name, &s->options);
    }
    text_add(out, "\nOther topics: the name of a plugin, an option of a plugin (shm.wait)");
    for (const struct help_page *page = help_pages; page->topic != NULL; page++)
        text_add(out, ", %s", page->topic);
    text_add(out, ".\n`epa2a --help` lists commands and their options.\n");
}

/* Returns true if the name of the topic contains `part`, ignoring case. */
static bool name_contains(const struct topic *topic, const char *part)
{
    return strcasestr(topic->name, part) != NULL;
}

/* Returns the word after the last dot of a name: "hidden" of "moe.hidden". */
static const char *last_word(const char *name)
{
    const char *dot = strrchr(name, '.');

    return dot != NULL ? dot + 1 : name;
}

/* Returns true if an earlier topic has the same text: an option of a plugin has three names. */
static bool is_alias(const struct topics *topics, uint32_t i)
{
    const struct topic *one = &topics->item[i];

    for (uint32_t k = 0; k < i; k++) {
        const struct topic *other = &topics->item[k];

        if (one->option != NULL
                ? other->option == one->option
                : one->entry != NULL && other->option == NULL && other->entry == one->entry)
            return true;
    }
    return false;
}

/* Returns the only topic whose name contains `want`. Of several, returns the only one whose last word
 * is `want`. NULL: none or several. */
static const struct topic *find_matching_topic(const struct topics *topics, const char *want)
{
    const struct topic *part = NULL, *word = NULL;
    uint32_t parts = 0, words = 0;

    for (uint32_t i = 0; i < topics->n; i++) {
        const struct topic *topic = &topics->item[i];

        if (!name_contains(topic, want) || is_alias(topics, i))
            continue;
        part = topic;
        parts++;
        if (strcasecmp(last_word(topic->name), want) != 0)
            continue;
        word = topic;
        words++;
    }
    return parts == 1 ? part : words == 1 ? word : NULL;
}

/* Adds a line for each topic whose name contains `want`; returns their number. */
static uint32_t list_matching_topics(struct text *out, const struct topics *topics,
                                     const char *want)
{
    uint32_t n = 0;

    for (uint32_t i = 0; i < topics->n; i++) {
        const struct topic *topic = &topics->item[i];

        if (!name_contains(topic, want) || is_alias(topics, i))
            continue;
        if (n++ == 0)
            text_add(out, "Topics with '%.100s' in their names:\n", want);
        text_add(out, "  %-28s  %.*s\n", topic->name, (int)strcspn(topic->help, "\n"), topic->help);
    }
    return n;
}

static int add_help(struct text *out, const struct topics *topics, const char *want,
                    const struct registry_entry *entry, uint32_t n)
{
    struct nearest nearest = {.want = want};
    char hint[NEAREST_ROOM];
    uint32_t found = 0;

    for (uint32_t i = 0; i < topics->n; i++) {
        nearest_try(&nearest, topics->item[i].name);
        if (strcmp(topics->item[i].name, want) != 0)
            continue;
        if (found++ != 0)
            text_add(out, "\n");
        add_help_of_topic(out, &topics->item[i], entry, n);
    }
    if (found != 0)
        return EXIT_OK;
    if (*want != '\0' && find_matching_topic(topics, want) != NULL) {
        add_help_of_topic(out, find_matching_topic(topics, want), entry, n);
        return EXIT_OK;
    }
    if (*want != '\0' && list_matching_topics(out, topics, want) > 0)
        return EXIT_OK;
    fprintf(stderr, "epa2a: no help on '%.100s'; %s\n", want,
            nearest_hint(&nearest, hint, "`epa2a help` lists the topics"));
    return EXIT_USAGE;
}

static bool is_page(const struct topics *topics, const char *name)
{
    for (uint32_t i = 0; i < topics->n; i++)
        if (topics->item[i].page != NULL && strcmp(topics->item[i].name, name) == 0)
            return true;
    return false;
}

int cmd_help(const struct cli *cli)
{
    struct topics topics = {0};
    struct epa_error err = {EPA_OK, ""};
    const struct registry_entry *entry = NULL;
    struct registry *registry = NULL;
    text_auto out = {0};
    uint32_t n = 0;
    int code;

    if (cli->n_args == 0) {
        add_overview(&out);
        fold_print(stdout, out.data, FOLD_LINES);
        return EXIT_OK;
    }
    if (program_registry_create(cli->plugin_path, &registry, &err) == EPA_OK)
        n = registry_list(registry, &entry);
    else
        text_warn("help without plugins: %s", err.text);
    topics_make(entry, n, &topics);
    code = add_help(&out, &topics, cli->arg[0], entry, n);
    if (out.bytes > 0)
        fold_print(stdout, out.data, is_page(&topics, cli->arg[0]) ? FOLD_PAGE : FOLD_LINES);
    topics_free(&topics);
    registry_destroy(registry);
    return code;
}
