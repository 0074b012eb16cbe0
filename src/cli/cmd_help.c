/* `epa2a help [TOPIC]`. A topic is a page of prose, a command, a key of the experiment
 * (ranks, bench.warmup) or a map of keys (bench), a plugin (shm, transport.shm) or an option of
 * one (shm.wait, transport.shm.wait, transport.wait), a variable of the environment. All
 * come as one list from topics.c; help finds the one asked for, or the nearest. */
#include "cli/cli.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "cli/topics.h"
#include "config/options.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "base/text.h"

static void default_text(const struct epa_option *option, const void *defaults, struct text *out)
{
    if (option_is_set(option, defaults))
        option_text(option, defaults, out);
    else
        text_add(out, "not set");
}

static void print_example(const struct topic *topic, const char *key)
{
    bool list = topic->option->type == EPA_OPTION_U32_LIST;
    struct text value = {0}, needs = {0};

    if (topic->entry != NULL)
        text_add(&needs, "--set %s=%s ", topic->section->name, topic->entry->name);
    else
        topics_needs(topic->section, topic->option, &needs);
    topics_example(topic->option, topic->defaults, &value);
    printf("  example   epa2a run FILE %s--set %s%s=%s%s\n", needs.bytes == 0 ? "" : needs.data,
           list ? "'" : "", key, value.data, list ? "'" : "");
    text_free(&value);
    text_free(&needs);
}

static void print_option(const struct topic *topic)
{
    const struct epa_option *option = topic->option;
    const char *section = topic->section == NULL ? "" : topic->section->name;
    const char *unit = option_unit(option);
    struct text value = {0}, range = {0};
    char key[TOPIC_MAX];

    default_text(option, topic->defaults, &value);
    option_range(option, "", &range);
    snprintf(key, sizeof(key), "%s%s%s", section, *section == 0 ? "" : ".", option->name);
    printf("%s: %s\n", key, option->help);
    if (topic->entry != NULL)
        printf("  of        the %s '%s'\n", section, topic->entry->name);
    printf("  type      %s\n", option_type(option));
    if (unit != NULL)
        printf("  unit      %s\n", unit);
    if (range.bytes != 0)
        printf("  range     %s\n", range.data);
    if (option->type == EPA_OPTION_CHOICE)
        for (const struct epa_choice *c = option->choices; c->name != NULL; c++)
            printf("  %-9s %-12s %s\n", c == option->choices ? "choices" : "", c->name,
                   c->help == NULL ? "" : c->help);
    if (option->name != experiment_options.table->name)
        printf("  default   %s\n", value.data);
    print_example(topic, key);
    text_free(&value);
    text_free(&range);
}

/* One line an option. */
static void print_options(const char *section, const struct epa_options *of)
{
    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++) {
        struct text value = {0};
        char key[TOPIC_MAX];

        default_text(o, of->defaults, &value);
        snprintf(key, sizeof(key), "%s%s%s", section, *section == 0 ? "" : ".", o->name);
        printf("  %-22s %-12s %s\n", key, value.data, o->help);
        text_free(&value);
    }
}

static void print_plugin(const struct registry_entry *entry)
{
    const char *section = topics_section(entry->kind)->name;

    if (entry->plugin == NULL) {
        printf("%s %s cannot be loaded: %s\n", section, entry->name, entry->why);
        return;
    }
    printf("%s %s: %s\n", section, entry->name, entry->plugin->summary);
    if (entry->plugin->options.table == NULL || entry->plugin->options.table->name == NULL)
        printf("  It has no options.\n");
    else
        print_options(section, &entry->plugin->options);
}

static void print_section(const struct section *section, const struct registry_entry *entry,
                          uint32_t n)
{
    struct text operations = {0};

    printf("%s: %s\n", section->name, section->help);
    operation_names(section->ops, &operations);
    if (operations.bytes != 0)
        printf("  for algorithms of %s\n", operations.data);
    text_free(&operations);
    if (section->plugin) {
        printf("  `%s: %s` is short for `%s: {name: %s}`; options are given beside the "
               "name.\n",
               section->name, section->chosen, section->name, section->chosen);
        for (uint32_t i = 0; i < n; i++)
            if (entry[i].kind == section->kind)
                printf("  %-12s %s%s\n", entry[i].name,
                       entry[i].plugin == NULL ? entry[i].why : entry[i].plugin->summary,
                       strcmp(entry[i].name, section->chosen) == 0 ? " (the default)" : "");
        printf("  `epa2a help NAME` lists the options of one.\n");
        return;
    }
    print_options(section->name, &section->options);
    if (section->main != NULL)
        printf("  `%s: VALUE` is short for `%s: {%s: VALUE}`.\n", section->name, section->name,
               section->main);
}

static void print_topic(const struct topic *topic, const struct registry_entry *entry, uint32_t n)
{
    struct text page = {0};

    if (topic->page != NULL) {
        help_page_add(topic->page, &page);
        fputs(page.data, stdout);
        text_free(&page);
    } else if (topic->variable != NULL)
        printf("%s, a variable of the environment: %s\n", topic->name, topic->variable->help);
    else if (topic->batch != NULL)
        printf("%s: %s\n  `epa2a help batches` says how files ask for several runs.\n", topic->name,
               topic->batch->help);
    else if (topic->command != NULL)
        commands_print_help(topic->command);
    else if (topic->option != NULL)
        print_option(topic);
    else if (topic->entry != NULL)
        print_plugin(topic->entry);
    else
        print_section(topic->section, entry, n);
}

static void print_overview(void)
{
    printf("Keys of an experiment. `epa2a help KEY` tells type, range and choices.\n\n");
    print_options("", &experiment_options);
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        printf("  %-22s %-12s %s\n", key->name, "not set", key->help);
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        printf("\n%s: %s\n", s->name, s->help);
        if (s->plugin)
            printf("  %-22s %-12s a plugin; `epa2a help %s` lists them\n", "name", s->chosen,
                   s->name);
        else
            print_options(s->name, &s->options);
    }
    printf("\nOther topics: a plugin's name, a plugin's option (shm.wait)");
    for (const struct help_page *page = help_pages; page->topic != NULL; page++)
        printf(", %s", page->topic);
    printf(".\n`epa2a --help` lists commands and their options.\n");
}

static int help(const struct topics *topics, const char *want, const struct registry_entry *entry,
                uint32_t n)
{
    struct nearest nearest = {.want = want};
    char hint[NEAREST_ROOM];
    uint32_t found = 0;

    for (uint32_t i = 0; i < topics->n; i++) {
        nearest_try(&nearest, topics->item[i].name);
        if (strcmp(topics->item[i].name, want) != 0)
            continue;
        if (found++ != 0)
            printf("\n");
        print_topic(&topics->item[i], entry, n);
    }
    if (found != 0)
        return EXIT_OK;
    fprintf(stderr, "epa2a: no help on '%.100s'; %s\n", want,
            nearest_hint(&nearest, hint, "`epa2a help` lists what there is"));
    return EXIT_USAGE;
}

int cmd_help(const struct cli *cli)
{
    struct topics topics = {0};
    struct epa_error err = {EPA_OK, ""};
    const struct registry_entry *entry = NULL;
    struct registry *registry = NULL;
    uint32_t n = 0;
    int code;

    if (cli->n_args == 0) {
        print_overview();
        return EXIT_OK;
    }
    if (registry_create(cli->plugin_path, &registry, &err) == EPA_OK)
        n = registry_list(registry, &entry);
    else
        fprintf(stderr, "epa2a: %swarning:%s help without plugins: %s\n",
                colour_on(stderr, COLOUR_WARNING), colour_off(stderr), err.text);
    topics_make(entry, n, &topics);
    code = help(&topics, cli->arg[0], entry, n);
    topics_free(&topics);
    registry_destroy(registry);
    return code;
}
