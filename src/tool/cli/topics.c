/* Topics of `epa2a help`, collected from the tables. A key has one topic. An option of a plugin has
 * three names, since users leave out the section or the plugin. */
#include "cli/topics.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>

#include "base/memory.h"
#include "cli/commands.h"
#include "cli/environment.h"
#include "cli/help_pages.h"
#include "experiment/batch_keys.h"
#include "registry/registry.h"

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

static void add_key_topics(struct topics *topics)
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

static void add_nested_options(struct topics *topics, const struct section *section,
                               const struct registry_entry *entry)
{
    const struct epa_options *of = &entry->plugin->options;
    struct topic topic = {.section = section, .entry = entry, .defaults = of->defaults};

    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++) {
        topic.option = o;
        topic.help = o->help;
        add_topic(topics, &topic, "%s.%s", section->name, o->name);
        add_topic(topics, &topic, "%s.%s.%s", section->name, entry->name, o->name);
    }
}

static void add_plugin_topics(struct topics *topics, const struct registry_entry *entry, uint32_t n)
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
        if (topic.section->nested != NULL && entry[i].plugin != NULL &&
            section_takes(topic.section->nested, entry[i].plugin))
            add_nested_options(topics, topic.section->nested, &entry[i]);
    }
}

void topics_make(const struct registry_entry *entry, uint32_t n, struct topics *out)
{
    *out = (struct topics){0};
    for (const struct help_page *page = help_pages; page->topic != NULL; page++)
        add_topic(out, &(struct topic){.page = page, .help = page->text}, "%s", page->topic);
    for (const struct variable *v = environment; v->name != NULL; v++)
        add_topic(out, &(struct topic){.variable = v, .help = v->help}, "%s", v->name);
    add_key_topics(out);
    for (const struct command *c = commands; c->name != NULL; c++)
        add_topic(out, &(struct topic){.command = c, .help = c->help}, "%s", c->name);
    add_plugin_topics(out, entry, n);
}

void topics_free(struct topics *topics)
{
    free(topics->item);
    *topics = (struct topics){0};
}
