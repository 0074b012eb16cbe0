/* The resolved experiment, value by value: as YAML that reads back as the same experiment,
 * and for the reports. What is not set, or says nothing with the kind chosen, is left out.
 * */
#include "config/experiment.h"

#include <string.h>

#include "config/expand.h"
#include "config/experiment_table.h"
#include "config/fault.h"
#include "config/options.h"
#include "base/text.h"

enum { COMMENT_COLUMN = 40 };

struct shown {
    const char *section, *key; /* section NULL: at the top */
    const char *value;
    bool string;               /* free text: in quotes in YAML */
    bool quoted;               /* in quotes in JSON */
    const struct node *origin; /* NULL: default */
};

struct visitor {
    const struct experiment *x;
    void (*fn)(void *arg, const struct shown *);
    void *arg;
};

static void visit_value(const struct visitor *v, const char *section, const char *key,
                        const struct epa_option *option, const void *values)
{
    struct shown shown = {.section = section, .key = key, .quoted = true};
    struct text value = {0}, path = {0};

    if (option == NULL) { /* the name of a plugin */
        text_add(&value, "%s", (const char *)values);
    } else {
        option_text(option, values, &value);
        shown.string = option->type == EPA_OPTION_STRING;
        shown.quoted = option_is_text(option);
    }
    text_add(&path, "%s%s%s", section == NULL ? "" : section, section == NULL ? "" : ".", key);
    shown.value = value.data;
    shown.origin = origin_find(v->x, path.data);
    v->fn(v->arg, &shown);
    text_free(&value);
    text_free(&path);
}

/* The usual value is not told, as if there were no such option: results and ids are then
 * those of before there was one. */
static bool is_silent(const struct experiment *x, const struct section *section, const char *option)
{
    return strcmp(section->name, "bench") == 0 && strcmp(option, "arrivals") == 0 &&
           x->bench.arrivals == ARRIVALS_CLOSED;
}

static void visit_section(const struct visitor *v, const struct section *section)
{
    const struct epa_options *options = section_options(section, v->x);
    const void *values = section_values(section, v->x);
    const char *needs;

    if (!section_applies(section, v->x))
        return;
    if (strcmp(section->name, "fault") == 0 && !fault_is_planted(v->x))
        return; /* as if there were no such section: so it is in no id either */
    if (section->plugin) {
        const struct chosen *c = (const void *)((const char *)v->x + section->offset);

        visit_value(v, section->name, "name", NULL, c->plugin->name);
    }
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (option_is_set(o, values) && option_applies(v->x, section, o->name, &needs) &&
            !is_silent(v->x, section, o->name))
            visit_value(v, section->name, o->name, o, values);
}

static void visit(const struct visitor *v)
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

struct printing {
    struct text *out;
    const char *section;
    bool with_origin;
};

/* Those of a list stand in its items. */
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
    else if (origin->location.line == 0) /* --set has one */
        text_add(out, "# %s", origin->location.file);
    else if (strcmp(origin->location.file, "--set") == 0)
        text_add(out, "# --set");
    else
        text_add(out, "# %s:%u:%u", origin->location.file, origin->location.line,
                 origin->location.column);
    if (origin != NULL)
        add_variables(out, origin);
    for (; from < out->bytes; from++) /* a file may have any name; a comment is one line */
        if ((unsigned char)out->data[from] < 0x20)
            out->data[from] = '?';
}

static void print_value(void *arg, const struct shown *shown)
{
    struct printing *p = arg;
    size_t start;

    if (shown->section != NULL && (p->section == NULL || strcmp(p->section, shown->section) != 0))
        text_add(p->out, "%s:\n", shown->section);
    p->section = shown->section;
    start = p->out->bytes;
    text_add(p->out, "%s%s: ", shown->section == NULL ? "" : "  ", shown->key);
    if (shown->string)
        add_quoted(p->out, shown->value);
    else
        text_add(p->out, "%s", shown->value);
    if (p->with_origin) {
        size_t used = p->out->bytes - start;

        text_add(p->out, "%*s", used < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - used) : 1, "");
        add_origin(p->out, shown->origin);
    }
    text_add(p->out, "\n");
}

void experiment_show(const struct experiment *x, bool with_origin, struct text *out)
{
    struct printing p = {.out = out, .with_origin = with_origin};
    const struct visitor v = {x, print_value, &p};

    visit(&v);
}

struct forwarding {
    void (*fn)(void *arg, const char *key, const char *value, bool quoted);
    void *arg;
};

static void forward(void *arg, const struct shown *shown)
{
    struct forwarding *f = arg;
    struct text key = {0};

    text_add(&key, "%s%s%s", shown->section == NULL ? "" : shown->section,
             shown->section == NULL ? "" : ".", shown->key);
    f->fn(f->arg, key.data, shown->value, shown->quoted);
    text_free(&key);
}

void experiment_visit(const struct experiment *x,
                      void (*fn)(void *arg, const char *key, const char *value, bool quoted),
                      void *arg)
{
    struct forwarding f = {fn, arg};
    const struct visitor v = {x, forward, &f};

    visit(&v);
}
