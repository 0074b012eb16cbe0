/* The resolved experiment, value by value: as YAML that reads back as the same experiment, for the
 * reports, and as a hash. What is not set, or says nothing with the kind chosen, is left out. */
#include "config/experiment.h"

#include <string.h>

#include "base/text.h"
#include "config/tree.h"
#include "config/tree.h"
#include "config/options.h"

enum { COMMENT_COLUMN = 40 };

struct shown {
    const char *section, *key; /* section NULL: at the top */
    const char *path, *value;  /* path: "moe.hidden" */
    bool string;               /* free text: in quotes in YAML */
    bool quoted;               /* in quotes in JSON */
    const struct node *origin; /* NULL: default */
};

struct visitor {
    const struct experiment *x;
    void (*show)(struct visitor *, const struct shown *);
    /* of experiment_show() */
    struct text *out;
    const char *section;
    bool with_origin;
    /* of experiment_visit() */
    void (*fn)(void *arg, const char *key, const char *value, bool quoted);
    void *arg;
};

/* `option` NULL: the name of a plugin. */
static void visit_value(struct visitor *v, const char *section, const char *key,
                        const struct epa_option *option, const void *values)
{
    struct shown shown = {.section = section, .key = key, .quoted = true};
    struct text value = {0}, path = {0};

    if (option == NULL) {
        text_add(&value, "%s", (const char *)values);
    } else {
        option_text(option, values, &value);
        shown.string = option->type == EPA_OPTION_STRING;
        shown.quoted = option_is_text(option);
    }
    text_add(&path, "%s%s%s", section == NULL ? "" : section, section == NULL ? "" : ".", key);
    shown.path = path.data;
    shown.value = value.data;
    shown.origin = origin_find(v->x, path.data);
    v->show(v, &shown);
    text_free(&value);
    text_free(&path);
}

/* A closed loop is not told, as if there were no such option: results and ids are then those of
 * before there was one. */
static bool is_silent(const struct experiment *x, const struct epa_option *option)
{
    return strcmp(option->name, "arrivals") == 0 && x->bench.arrivals == ARRIVALS_CLOSED;
}

static void visit_section(struct visitor *v, const struct section *section)
{
    const void *values = (const char *)v->x + section->offset;
    const struct epa_options *options = &section->options;

    if (!section_is_for(section, (const void *)v->x->algorithm.plugin) ||
        (strcmp(section->name, "fault") == 0 && !fault_is_planted(v->x)))
        return;
    if (section->plugin) {
        const struct chosen *chosen = values;

        options = &chosen->plugin->options;
        values = chosen->config;
        visit_value(v, section->name, "name", NULL, chosen->plugin->name);
    }
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (option_is_set(o, values) && option_applies(v->x, section, o->name) &&
            (section->plugin || !is_silent(v->x, o)))
            visit_value(v, section->name, o->name, o, values);
}

static void visit(struct visitor *v)
{
    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        if (option_is_set(o, v->x))
            visit_value(v, NULL, o->name, o, v->x);
    for (const struct section *s = experiment_sections; s->name != NULL; s++)
        visit_section(v, s);
}

/* In double quotes; all that YAML might take for something else is escaped. */
static void add_quoted(struct text *out, const char *text)
{
    struct text escaped = {0};
    const char *s;

    expand_escape(text, &escaped);
    s = escaped.data;
    text_add(out, "\"");
    while (*s != 0) {
        uint32_t point = '?';
        size_t n = text_decode(s, &point);
        bool plain = (point >= 0x20 && point < 0x7f) || (point >= 0xa0 && point < 0x2028) ||
                     (point > 0x2029 && point < 0xd800) || point >= 0x10000;

        if (n == 0)
            text_add(out, "?");
        else if (point == '"' || point == '\\')
            text_add(out, "\\%c", (int)point);
        else if (plain)
            text_add_bytes(out, s, n);
        else
            text_add(out, "\\u%04x", (unsigned)point);
        s += n == 0 ? 1 : n;
    }
    text_add(out, "\"");
    text_free(&escaped);
}

/* Variables of a list stand in its items. */
static void add_variables(struct text *out, const struct node *origin)
{
    if (origin->variables != NULL)
        text_add(out, ", environment: %s", origin->variables);
    for (uint32_t i = 0; i < origin->n; i++)
        add_variables(out, origin->item[i]);
}

static void add_origin(struct text *out, const struct node *origin)
{
    size_t from = out->bytes;

    if (origin == NULL)
        text_add(out, "# default");
    else if (origin->location.line == 0 || strcmp(origin->location.file, "--set") == 0)
        text_add(out, "# %s", origin->location.file);
    else
        text_add(out, "# %s:%u:%u", origin->location.file, origin->location.line,
                 origin->location.column);
    if (origin != NULL)
        add_variables(out, origin);
    for (; from < out->bytes; from++) /* a file may have any name; a comment is one line */
        if ((unsigned char)out->data[from] < 0x20)
            out->data[from] = '?';
}

static void print_value(struct visitor *v, const struct shown *shown)
{
    size_t start;

    if (shown->section != NULL && (v->section == NULL || strcmp(v->section, shown->section) != 0))
        text_add(v->out, "%s:\n", shown->section);
    v->section = shown->section;
    start = v->out->bytes;
    text_add(v->out, "%s%s: ", shown->section == NULL ? "" : "  ", shown->key);
    if (shown->string)
        add_quoted(v->out, shown->value);
    else
        text_add(v->out, "%s", shown->value);
    if (v->with_origin) {
        size_t used = v->out->bytes - start;

        text_add(v->out, "%*s", used < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - used) : 1, "");
        add_origin(v->out, shown->origin);
    }
    text_add(v->out, "\n");
}

void experiment_show(const struct experiment *x, bool with_origin, struct text *out)
{
    visit(&(struct visitor){.x = x, .show = print_value, .out = out, .with_origin = with_origin});
}

static void forward(struct visitor *v, const struct shown *shown)
{
    v->fn(v->arg, shown->path, shown->value, shown->quoted);
}

void experiment_visit(const struct experiment *x,
                      void (*fn)(void *arg, const char *key, const char *value, bool quoted),
                      void *arg)
{
    visit(&(struct visitor){.x = x, .show = forward, .fn = fn, .arg = arg});
}

/* FNV-1a. */
static void hash_text(uint64_t *hash, const char *text)
{
    do
        *hash = (*hash ^ (unsigned char)*text) * UINT64_C(1099511628211);
    while (*text++ != 0);
}

/* Not of what it is called, who watches, and what they hope for. A path counts as it was written:
 * what it leads to is elsewhere on each machine. */
static void hash_value(struct visitor *v, const struct shown *shown)
{
    bool path = strcmp(shown->path, "routing.path") == 0 ||
                strcmp(shown->path, "routing.hidden_states") == 0;

    if (strcmp(shown->path, "name") == 0 || strncmp(shown->path, "profile.", 8) == 0 ||
        strncmp(shown->path, "expect.", 7) == 0)
        return;
    hash_text(v->arg, shown->path);
    hash_text(v->arg, path && shown->origin != NULL ? shown->origin->text : shown->value);
}

uint64_t experiment_hash(const struct experiment *x)
{
    uint64_t hash = UINT64_C(14695981039346656037);

    visit(&(struct visitor){.x = x, .show = hash_value, .arg = &hash});
    return (hash ^ hash >> 48) & UINT64_C(0xffffffffffff);
}
