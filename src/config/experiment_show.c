/* The resolved experiment, value by value: as YAML that reads back as the same experiment,
 * and for the reports. What is not set, or says nothing with the kind chosen, is left out.
 * */
#include "config/experiment.h"

#include <string.h>

#include "config/experiment_table.h"
#include "config/node.h"
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
    text_add(&path, "%s%s%s", section == NULL ? "" : section, section == NULL ? "" : ".",
             key);
    shown.value = value.data;
    shown.origin = origin_find(v->x, path.data);
    v->fn(v->arg, &shown);
    text_free(&value);
    text_free(&path);
}

static void visit_section(const struct visitor *v, const struct section *section)
{
    const struct epa_options *options = section_options(section, v->x);
    const void *values = section_values(section, v->x);
    const char *needs;

    if (section->plugin) {
        const struct chosen *c = (const void *)((const char *)v->x + section->offset);

        visit_value(v, section->name, "name", NULL, c->plugin->name);
    }
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (option_is_set(o, values) && option_applies(v->x, section, o->name, &needs))
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

/* Bytes and code point of the character at s; 0: not UTF-8. */
static size_t decode(const char *s, uint32_t *out)
{
    unsigned char c = (unsigned char)*s;
    size_t n = c < 0x80 ? 1 : c >= 0xf0 ? 4 : c >= 0xe0 ? 3 : 2;
    uint32_t point = n == 1 ? c : c & (0x7fu >> n);

    if ((c >= 0x80 && c < 0xc2) || c > 0xf4)
        return 0;
    for (size_t i = 1; i < n; i++) {
        if (((unsigned char)s[i] & 0xc0) != 0x80)
            return 0;
        point = point << 6 | ((unsigned char)s[i] & 0x3fu);
    }
    *out = point;
    return n;
}

/* In double quotes; all that YAML might take for something else is escaped. */
static void add_quoted(struct text *out, const char *s)
{
    text_add(out, "\"");
    while (*s != 0) {
        uint32_t point = '?';
        size_t n = decode(s, &point);
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
}

struct printing {
    struct text *out;
    const char *section;
    bool with_origin;
};

static void add_origin(struct text *out, const struct node *origin)
{
    size_t from = out->bytes;

    if (origin == NULL)
        text_add(out, "# default");
    else if (origin->place.line == 0) /* --set has one */
        text_add(out, "# %s", origin->place.file);
    else if (strcmp(origin->place.file, "--set") == 0)
        text_add(out, "# --set");
    else
        text_add(out, "# %s:%u:%u", origin->place.file, origin->place.line,
                 origin->place.column);
    for (; from < out->bytes; from++) /* a file may have any name; a comment is one line */
        if ((unsigned char)out->data[from] < 0x20)
            out->data[from] = '?';
}

static void print_value(void *arg, const struct shown *shown)
{
    struct printing *p = arg;
    size_t start;

    if (shown->section != NULL &&
        (p->section == NULL || strcmp(p->section, shown->section) != 0))
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

        text_add(p->out, "%*s", used < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - used) : 1,
                 "");
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
                      void (*fn)(void *arg, const char *key, const char *value,
                                 bool quoted),
                      void *arg)
{
    struct forwarding f = {fn, arg};
    const struct visitor v = {x, forward, &f};

    visit(&v);
}
