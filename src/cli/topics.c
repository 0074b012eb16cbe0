/* Topics of `epa2a help`, collected from the tables. A key has one topic. An option of a plugin has
 * three names, since users leave out the section or the plugin. */
#include "cli/cli.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/fold.h"
#include "base/text.h"
#include "config/options.h"
#include "config/option_text.h"
#include "help_texts.h"
#include "op/op.h"
#include "plugin/registry.h"
#include "experiment/batch_keys.h"

const struct variable environment[] = {
    {"EPA2A_PLUGIN_PATH", "absolute folders of plugins, separated by colons, instead of the "
                          "installed folder"},
    {"EPA2A_ISA", "instruction set of the kernels on hosts: scalar, avx2, avx512, avx512_bf16 or "
                  "amx; the last two apply to matrix products, and quantise with avx512"},
    {"EPA2A_JOB_TOKEN",
     "launcher env: a secret of 16 to 64 characters that all ranks of a job share; required for "
     "several hosts: EPA2A_JOB_TOKEN=$(openssl rand -hex 16)"},
    {"NO_COLOR", "set and not empty: no colour, unless --color always is given"},
    {"TERM", "dumb or not set: no colour and no progress line"},
    {0},
};

static void add_exit_codes(struct text *out)
{
    for (const struct exit_meaning *m = exit_meanings; m->help != NULL; m++)
        text_add(out, "  %3d  %s\n", (int)m->code, m->help);
    text_add(out, "A batch returns the first exit code that is not 0.\n");
}

static void add_environment(struct text *out)
{
    for (const struct variable *v = environment; v->name != NULL; v++)
        text_add(out, "  %-18s  %s\n", v->name, v->help);
    text_add(out, "%s", environment_txt);
}

const struct help_page help_pages[] = {
    {"arrivals", arrivals_txt},
    {"bandwidth", bandwidth_txt},
    {"batches", batches_txt},
    {"charts", charts_txt},
    {"clocks", clocks_txt},
    {"comparing", comparing_txt},
    {"environment", "Environment variables.\n", add_environment},
    {"exit-codes", "Exit codes.\n", add_exit_codes},
    {"expectations", expectations_txt},
    {"experts", experts_txt},
    {"faults", faults_txt},
    {"glossary", glossary_txt},
    {"hosts", hosts_txt},
    {"models", models_txt},
    {"predicting", predicting_txt},
    {"results", results_txt},
    {"stopping", stopping_txt},
    {"traces", traces_txt},
    {"trust", trust_txt},
    {"tuning", tuning_txt},
    {"verifying", verifying_txt},
    {0},
};

/* Adds the text and the table of a page. */
static void help_page_add(const struct help_page *page, struct text *out)
{
    text_add(out, "%s", page->text);
    if (page->add != NULL)
        page->add(out);
}

__attribute__((format(printf, 3, 4))) static void
add_topic(struct topics *topics, const struct topic *topic, const char *fmt, ...)
{
    va_list args;

    topics->item = memory_grow(topics->item, (topics->n + 1) * sizeof(*topics->item));
    topics->item[topics->n] = *topic;
    va_start(args, fmt);
    vsnprintf(topics->item[topics->n++].name, TOPIC_MAX, fmt, args);
    va_end(args);
}

static void add_keys(struct topics *topics)
{
    struct topic topic = {.defaults = experiment_options.defaults};

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++) {
        topic.option = o;
        topic.help = o->help;
        add_topic(topics, &topic, "%s", o->name);
    }
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        add_topic(topics, &(struct topic){.batch = key, .help = key->help}, "%s", key->name);
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        topic = (struct topic){.section = s, .help = s->help, .defaults = s->options.defaults};
        add_topic(topics, &topic, "%s", s->name);
        if (s->plugin)
            add_topic(topics, &topic, "%s.%s", s->name, s->main);
        for (const struct epa_option *o = s->options.table; o != NULL && o->name != NULL; o++) {
            topic.option = o;
            topic.help = o->help;
            add_topic(topics, &topic, "%s.%s", s->name, o->name);
        }
    }
}

const struct section *topics_section(enum epa_plugin_kind kind)
{
    const struct section *s = experiment_sections;

    while (!s->plugin || s->kind != kind)
        s++;
    return s;
}

static void add_plugins(struct topics *topics, const struct registry_entry *entry, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++) {
        struct topic topic = {
            .section = topics_section(entry[i].kind), .entry = &entry[i], .help = entry[i].why};
        const char *section = topic.section->name, *plugin = entry[i].name;
        const struct epa_option *o = NULL;

        if (entry[i].plugin != NULL) {
            o = entry[i].plugin->options.table;
            topic.defaults = entry[i].plugin->options.defaults;
            topic.help = entry[i].plugin->summary;
        }
        add_topic(topics, &topic, "%s", plugin);
        add_topic(topics, &topic, "%s.%s", section, plugin);
        for (; o != NULL && o->name != NULL; o++) {
            topic.option = o;
            topic.help = o->help;
            add_topic(topics, &topic, "%s.%s", plugin, o->name);
            add_topic(topics, &topic, "%s.%s", section, o->name);
            add_topic(topics, &topic, "%s.%s.%s", section, plugin, o->name);
        }
    }
}

void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out)
{
    *out = (struct topics){0};
    for (const struct help_page *page = help_pages; page->topic != NULL; page++)
        add_topic(out, &(struct topic){.page = page, .help = page->text}, "%s", page->topic);
    for (const struct variable *v = environment; v->name != NULL; v++)
        add_topic(out, &(struct topic){.variable = v, .help = v->help}, "%s", v->name);
    add_keys(out);
    for (const struct command *c = commands; c->name != NULL; c++)
        add_topic(out, &(struct topic){.command = c, .help = c->help}, "%s", c->name);
    add_plugins(out, entry, n);
}

void topics_free(struct topics *topics)
{
    free(topics->item);
    *topics = (struct topics){0};
}

static bool in_range(const struct epa_option *option, double value)
{
    if (option->type == EPA_OPTION_REAL)
        return (option->least == 0 && option->most == 0) ||
               (value >= option->least && value <= option->most);
    return value >= (double)option->min && (option->max == 0 || value <= (double)option->max);
}

/* Adds a valid number that is not the default: twice or half the default; for a default of 0 half
 * the maximum, 1 s or 1. */
static void add_other_number(const struct epa_option *option, const void *defaults,
                             struct text *out)
{
    const void *at = (const char *)defaults + option->offset;
    double value = option->type == EPA_OPTION_REAL  ? *(const double *)at
                   : option->type == EPA_OPTION_U32 ? *(const uint32_t *)at
                                                    : (double)*(const uint64_t *)at;

    if (value == 0)
        value = option->type == EPA_OPTION_REAL && option->most > 0 ? option->most / 2
                : option->type == EPA_OPTION_DURATION               ? 1e9
                                                                    : 1;
    else
        value = in_range(option, 2 * value) ? 2 * value : value / 2;
    if (option->type == EPA_OPTION_REAL)
        text_add(out, "%g", value);
    else
        option_number_text(option, (uint64_t)value, out);
}

/* Adds the value of an option in an example: a valid value that is not the default. */
static void add_example(const struct epa_option *option, const void *defaults, struct text *out)
{
    text_auto usual = {0}, other = {0};

    if (option_is_set(option, defaults))
        option_text(option, defaults, &usual);
    for (uint32_t i = 0; option_candidate(option, true, i, &other); i++) {
        if (usual.data == NULL || strcmp(other.data, usual.data) != 0) {
            text_add(out, "%s", other.data);
            return;
        }
        text_free(&other);
    }
    if (option->type == EPA_OPTION_STRING)
        text_add(out, "TEXT");
    else if (option->type == EPA_OPTION_BOOL)
        text_add(out, "%s", strcmp(usual.data, "true") == 0 ? "false" : "true");
    else if (option->type == EPA_OPTION_CHOICE)
        text_add(
            out, "%s",
            option->choices[usual.data != NULL && strcmp(option->choices[0].name, usual.data) == 0]
                .name);
    else if (option->type == EPA_OPTION_U32_LIST)
        text_add(out, "[%llu, %llu]", (unsigned long long)option->min,
                 (unsigned long long)option->min + 1);
    else if (usual.data != NULL)
        add_other_number(option, defaults, out);
    else if (option->type == EPA_OPTION_REAL)
        text_add(out, "%g", option->least);
    else /* a number without a default: the minimum */
        option_number_text(option, option->min, out);
}

/* Adds the settings that an option depends on, such as "--set routing.kind=zipf " with a space at
 * the end. Most options depend on none. */
static void add_needs(const struct section *section, const struct epa_option *option,
                      struct text *out)
{
    for (const struct option_rule *r = option_rules; r->section != NULL && section != NULL; r++) {
        const struct epa_option *other;

        if (strcmp(r->section, section->name) != 0 || strcmp(r->option, option->name) != 0 ||
            option_rule_holds(r, experiment_options.defaults))
            continue;
        other = option_find(&section->options, r->other);
        text_add(out, "--set %s.%s=", r->section, r->other);
        if (r->values == 0) {
            add_example(other, section->options.defaults, out);
        } else {
            const struct epa_choice *c = other->choices;

            while ((r->values >> c->value & 1u) == 0)
                c++;
            text_add(out, "%s", c->name);
        }
        text_add(out, " ");
    }
}

void environment_warn(void)
{
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        char name[65], hint[NEAREST_ROOM];
        struct nearest nearest = {.want = name};
        const struct variable *v = environment;

        if (strncmp(*at, "EPA2A_", 6) != 0)
            continue;
        snprintf(name, sizeof(name), "%.*s", (int)strcspn(*at, "="), *at);
        while (v->name != NULL && strcmp(v->name, name) != 0)
            v++;
        if (v->name != NULL)
            continue;
        nearest_try_table(&nearest, environment, sizeof(*environment));
        text_warn("unknown environment variable %s; %s", name,
                  nearest_hint(&nearest, hint, "`epa2a help environment` lists the variables"));
    }
}

/* ---- epa2a help ---- */

/* `epa2a help [TOPIC]`. A topic is a page of prose, a command, a key of the experiment (ranks,
 * bench.warmup), a map of keys (bench), a plugin (shm, transport.shm), an option of a plugin
 * (shm.wait, transport.shm.wait, transport.wait), or a variable of the environment. help prints the
 * requested topic or suggests the nearest one. */

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
        add_needs(topic->section, topic->option, &needs);
    if (topic->section != NULL && strcmp(topic->section->name, "model") == 0 &&
        strcmp(topic->option->name, topic->section->main) == 0)
        text_add(&value, "deepseek-v3");
    else
        add_example(topic->option, topic->defaults, &value);
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
    text_auto value = {0}, range = {0};
    char key[TOPIC_MAX];

    default_text(option, topic->defaults, &value);
    option_range(option, "", &range);
    snprintf(key, sizeof(key), "%s%s%s", section, *section == 0 ? "" : ".", option->name);
    text_add(out, "%s: %s\n", key, option->help);
    if (topic->entry != NULL)
        text_add(out, "  plugin    %s '%s'\n", section, topic->entry->name);
    text_add(out, "  type      %s\n", option_type(option));
    if (unit != NULL)
        text_add(out, "  unit      %s\n", unit);
    if (range.bytes != 0)
        text_add(out, "  range     %s\n", range.data);
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
    if (registry_create(cli->plugin_path, &registry, &err) == EPA_OK)
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
