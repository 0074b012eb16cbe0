/* Topics, collected from the tables. A key has one topic; an option of a plugin has three
 * names, since people leave out what is clear to them. */
#include "cli/topics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/text.h"
#include "cli/cmd_help_pages.h"
#include "cli/commands.h"
#include "config/options.h"

const struct variable environment[] = {
    {"EPA2A_PLUGIN_PATH", "absolute folders of plugins with : between them, instead of the "
                          "installed one"},
    {"EPA2A_ISA", "instruction set of the kernels on hosts: scalar, avx2, avx512, avx512_bf16 or "
                  "amx; the last two multiply matrices, and quantise as avx512 does"},
    {"EPA2A_JOB_TOKEN",
     "launcher env: a secret that all ranks of a job share; needed where they are on "
     "several hosts: EPA2A_JOB_TOKEN=$(openssl rand -hex 16)"},
    {"NO_COLOR", "set and not empty: no colour, unless --color always asks for it"},
    {"TERM", "dumb, or not set: no colour and no progress line"},
    {0},
};

__attribute__((format(printf, 3, 4))) static void
add(struct topics *topics, const struct topic *topic, const char *fmt, ...)
{
    va_list args;

    if (topics->n == topics->room) {
        topics->room = topics->room * 2 + 64;
        topics->item = realloc(topics->item, topics->room * sizeof(*topics->item));
        if (topics->item == NULL) {
            fprintf(stderr, "epa2a: no memory for %u topics\n", topics->room);
            abort();
        }
    }
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
        add(topics, &topic, "%s", o->name);
    }
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        add(topics, &(struct topic){.batch = key}, "%s", key->name);
    for (const struct section *s = experiment_sections; s->name != NULL; s++) {
        topic = (struct topic){.section = s, .defaults = s->options.defaults};
        add(topics, &topic, "%s", s->name);
        if (s->plugin)
            add(topics, &topic, "%s.%s", s->name, s->main);
        for (const struct epa_option *o = s->options.table; o != NULL && o->name != NULL; o++) {
            topic.option = o;
            add(topics, &topic, "%s.%s", s->name, o->name);
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
        struct topic topic = {.section = topics_section(entry[i].kind), .entry = &entry[i]};
        const char *section = topic.section->name, *plugin = entry[i].name;
        const struct epa_option *o = NULL;

        add(topics, &topic, "%s", plugin);
        add(topics, &topic, "%s.%s", section, plugin);
        if (entry[i].plugin != NULL) {
            o = entry[i].plugin->options.table;
            topic.defaults = entry[i].plugin->options.defaults;
        }
        for (; o != NULL && o->name != NULL; o++) {
            topic.option = o;
            add(topics, &topic, "%s.%s", plugin, o->name);
            add(topics, &topic, "%s.%s", section, o->name);
            add(topics, &topic, "%s.%s.%s", section, plugin, o->name);
        }
    }
}

void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out)
{
    *out = (struct topics){0};
    for (const struct help_page *page = help_pages; page->topic != NULL; page++)
        add(out, &(struct topic){.page = page}, "%s", page->topic);
    for (const struct variable *v = environment; v->name != NULL; v++)
        add(out, &(struct topic){.variable = v}, "%s", v->name);
    add_keys(out);
    for (const struct command *c = commands; c->name != NULL; c++)
        add(out, &(struct topic){.command = c}, "%s", c->name);
    add_plugins(out, entry, n);
}

void topics_free(struct topics *topics)
{
    free(topics->item);
    *topics = (struct topics){0};
}

void topic_help(const struct topic *topic, struct text *out)
{
    if (topic->page != NULL)
        text_add_bytes(out, topic->page->text, strcspn(topic->page->text, "\n"));
    else if (topic->variable != NULL)
        text_add(out, "%s", topic->variable->help);
    else if (topic->command != NULL)
        text_add(out, "%s", topic->command->help);
    else if (topic->batch != NULL)
        text_add(out, "%s", topic->batch->help);
    else if (topic->option != NULL)
        text_add(out, "%s", topic->option->help);
    else if (topic->entry == NULL)
        text_add(out, "%s", topic->section->help);
    else
        text_add(out, "%s",
                 topic->entry->plugin == NULL ? topic->entry->why : topic->entry->plugin->summary);
}

/* Whether `option` says something once `other`, which is not set, has its least value. */
static bool find_number(const struct section *section, const struct epa_option *option,
                        const struct epa_option *other, struct text *out)
{
    struct experiment x;
    const char *needs;

    memcpy(&x, experiment_options.defaults, sizeof(x));
    memcpy((char *)&x + section->offset + other->offset, &other->least, sizeof(other->least));
    if (!option_applies(&x, section, option->name, &needs))
        return false;
    text_add(out, "--set %s.%s=%g ", section->name, other->name, other->least);
    return true;
}

/* Whether `option` says something once `other` has one of its values, which one then. */
static bool find_choice(const struct experiment *from, const struct section *section,
                        const struct epa_option *option, const struct epa_option *other,
                        struct text *out)
{
    struct experiment x;
    const char *needs;

    memcpy(&x, from, sizeof(x));
    for (const struct epa_choice *c = other->choices; c->name != NULL; c++) {
        memcpy((char *)&x + section->offset + other->offset, &c->value, sizeof(c->value));
        if (!option_applies(&x, section, option->name, &needs))
            continue;
        text_add(out, "--set %s.%s=%s ", section->name, other->name, c->name);
        return true;
    }
    return false;
}

/* The same where two have to: the section's kind, and one more. */
static void find_two(const struct section *section, const struct epa_option *option,
                     struct text *out)
{
    const struct epa_option *kind =
        section->main != NULL ? option_find(&section->options, section->main) : NULL;
    struct text more = {0};
    struct experiment x;

    memcpy(&x, experiment_options.defaults, sizeof(x));
    for (const struct epa_choice *c = kind != NULL ? kind->choices : NULL;
         c != NULL && c->name != NULL; c++) {
        memcpy((char *)&x + section->offset + kind->offset, &c->value, sizeof(c->value));
        for (const struct epa_option *o = section->options.table; o->name != NULL; o++)
            if (o->type == EPA_OPTION_CHOICE && find_choice(&x, section, option, o, &more)) {
                text_add(out, "--set %s.%s=%s %s", section->name, kind->name, c->name, more.data);
                text_free(&more);
                return;
            }
    }
}

void topics_needs(const struct section *section, const struct epa_option *option, struct text *out)
{
    const struct experiment *x = experiment_options.defaults;
    const char *needs;

    if (section == NULL || section->plugin || option_applies(x, section, option->name, &needs))
        return;
    for (const struct epa_option *o = section->options.table; o->name != NULL; o++)
        if ((o->type == EPA_OPTION_CHOICE && find_choice(x, section, option, o, out)) ||
            (o->type == EPA_OPTION_REAL && find_number(section, option, o, out)))
            return;
    find_two(section, option, out);
}

void topics_example(const struct epa_option *option, const void *defaults, struct text *out)
{
    size_t before = out->bytes;

    if (option_is_set(option, defaults))
        option_text(option, defaults, out);
    if (option->type == EPA_OPTION_STRING && out->bytes == before)
        text_add(out, "TEXT");
    else if (out->bytes != before)
        return;
    else if (option->type == EPA_OPTION_U32_LIST)
        text_add(out, "[%llu, %llu]", (unsigned long long)option->min,
                 (unsigned long long)option->min + 1);
    else if (option->type == EPA_OPTION_REAL)
        text_add(out, "%g", option->least);
    else /* a number: the least is as good as any */
        option_number_text(option, option->min, out);
}

void environment_warn(FILE *to)
{
    const char *names[16], *near;
    uint32_t n = 0;

    for (const struct variable *v = environment; v->name != NULL; v++)
        if (n < sizeof(names) / sizeof(names[0]))
            names[n++] = v->name;
    for (char **at = environ; at != NULL && *at != NULL; at++) {
        struct text name = {0};
        bool known = false;

        if (strncmp(*at, "EPA2A_", 6) != 0)
            continue;
        text_add_bytes(&name, *at, strcspn(*at, "="));
        for (uint32_t i = 0; i < n; i++)
            known = known || strcmp(name.data, names[i]) == 0;
        near = text_nearest(name.data, names, n);
        if (!known)
            fprintf(to, "epa2a: %swarning:%s nothing reads the variable %.64s; %s%s%s\n",
                    colour_on(to, COLOUR_WARNING), colour_off(to), name.data,
                    near == NULL ? "`epa2a help environment`" : "is it ",
                    near == NULL ? " lists those that are" : near, near == NULL ? "" : "?");
        text_free(&name);
    }
}
