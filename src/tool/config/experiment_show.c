/* The resolved experiment, value by value: as YAML that reads back as the same experiment, as JSON
 * for reports, and as a hash. Options that are not set or have no effect are left out. */
#include "config/experiment_show.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "config/expand.h"
#include "config/expect.h"
#include "config/option_text.h"
#include "config/tree.h"
#include "options/option.h"
#include "config/origin.h"

enum { COMMENT_COLUMN = 40 };

struct visitor {
    const struct experiment *x;
    void (*fn)(void *arg, const struct experiment_value *);
    void *arg;
};

/* Visits one value. `option` NULL: the name of a plugin. */
static void visit_value(const struct visitor *v, const char *section, const char *key,
                        const struct epa_option *option, const void *values)
{
    text_auto value = {0}, path = {0};
    bool string = option != NULL && option->type == EPA_OPTION_STRING, quoted = true;

    if (option == NULL) {
        text_add(&value, "%s", (const char *)values);
    } else {
        option_text(option, values, &value);
        quoted = option_is_text(option) ||
                 (option->type == EPA_OPTION_U32 && strspn(value.data, "0123456789") == 0);
    }
    text_add(&path, "%s%s%s", section == NULL ? "" : section, section == NULL ? "" : ".", key);
    v->fn(v->arg, &(struct experiment_value){section, key, path.data, value.data, string, quoted,
                                             origin_find(v->x, path.data)});
}

/* Visits the rows of expect: "dispatch.median". */
static void visit_rows(const struct visitor *v)
{
    const struct expect_bounds *bounds;
    const char *row;

    for (uint32_t i = 1; (bounds = expect_row_at(&v->x->expect, i, &row)) != NULL; i++)
        for (const struct epa_option *o = expect_figures; o->name != NULL; o++) {
            text_auto key = {0};

            text_add(&key, "%s.%s", row, o->name);
            if (option_is_set(o, bounds))
                visit_value(v, "expect", key.data, o, bounds);
        }
}

/* Returns true for a default of a newer option that is left out, so that results and ids stay the
 * same as before the option existed. */
static bool is_silent(const struct experiment *x, const struct epa_option *option)
{
    return (strcmp(option->name, "arrivals") == 0 && x->bench.arrivals == ARRIVALS_CLOSED) ||
           (strcmp(option->name, "guard") == 0 && !x->verify.guard) ||
           (strcmp(option->name, "epoch") == 0 && x->verify.epoch == 0) ||
           (strcmp(option->name, "api") == 0 && x->api == API_NONE);
}

/* Returns true if an option has another value than its default. */
static bool is_changed(const struct epa_option *option, const void *values, const void *defaults)
{
    text_auto value = {0}, usual = {0};

    if (!option_is_set(option, values) || !option_is_set(option, defaults))
        return option_is_set(option, values);
    option_text(option, values, &value);
    option_text(option, defaults, &usual);
    return strcmp(value.data, usual.data) != 0;
}

/* Visits a nested section by the name of its plugin and the changed options. Returns false, and
 * visits nothing, if all options have their defaults: the option that names the plugin suffices
 * then, and ids stay the same as before nested sections existed. v->fn NULL: visits nothing. */
static bool visit_nested(const struct visitor *v, const struct section *section)
{
    const struct ep_choice *chosen = (const void *)((const char *)v->x + section->offset);
    const struct epa_options *options = chosen->plugin == NULL ? NULL : &chosen->plugin->options;
    bool visited = false;

    for (const struct epa_option *o = options == NULL ? NULL : options->table;
         o != NULL && o->name != NULL; o++) {
        if (!is_changed(o, chosen->config, options->defaults))
            continue;
        if (!visited && v->fn != NULL)
            visit_value(v, section->name, section->main, NULL, chosen->plugin->name);
        if (v->fn != NULL)
            visit_value(v, section->name, o->name, o, chosen->config);
        visited = true;
    }
    return visited;
}

static void visit_section(const struct visitor *v, const struct section *section)
{
    const struct visitor none = {v->x, NULL, NULL};
    bool nested = section->nested != NULL && visit_nested(&none, section->nested);
    const void *values = (const char *)v->x + section->offset;
    const struct epa_options *options = &section->options;

    if (!section_is_for(section, (const void *)v->x->algorithm.plugin) ||
        (strcmp(section->name, "fault") == 0 && !fault_is_planted(v->x)) ||
        (strcmp(section->name, "model") == 0 && v->x->model.name == NULL))
        return;
    if (section->plugin) {
        const struct ep_choice *chosen = values;

        options = &chosen->plugin->options;
        values = chosen->config;
        visit_value(v, section->name, "name", NULL, chosen->plugin->name);
    }
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (!(nested && strcmp(o->name, section_key(section->nested)) == 0) &&
            option_is_set(o, values) && option_applies(v->x, section, o->name) &&
            (section->plugin || !is_silent(v->x, o)))
            visit_value(v, section->name, o->name, o, values);
    if (strcmp(section->name, "expect") == 0)
        visit_rows(v);
    if (nested)
        visit_nested(v, section->nested);
}

void experiment_visit(const struct experiment *x,
                      void (*fn)(void *arg, const struct experiment_value *), void *arg)
{
    const struct visitor v = {x, fn, arg};

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        if (option_is_set(o, x) && !is_silent(x, o))
            visit_value(&v, NULL, o->name, o, x);
    for (const struct section *section = experiment_sections; section->name != NULL; section++)
        visit_section(&v, section);
}

/* Adds text in double quotes; escapes all characters that YAML might interpret. */
static void add_quoted(struct text *out, const char *text)
{
    text_auto escaped = {0};
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
}

/* The items of a list contain its variables. */
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

struct showing {
    struct text *out;
    const char *section; /* section of the previous value */
    bool with_origin;
};

static void show_value(void *arg, const struct experiment_value *v)
{
    struct showing *to = arg;
    const char *dot = v->section == NULL ? NULL : strchr(v->section, '.'); /* of a nested section */
    const char *indent = v->section == NULL ? "" : dot == NULL ? "  " : "    ";
    size_t start, used;

    if (v->section != NULL && (to->section == NULL || strcmp(to->section, v->section) != 0))
        text_add(to->out, "%s%s:\n", dot == NULL ? "" : "  ", dot == NULL ? v->section : dot + 1);
    to->section = v->section;
    start = to->out->bytes;
    text_add(to->out, "%s%s: ", indent, v->key);
    if (v->string)
        add_quoted(to->out, v->value);
    else
        text_add(to->out, "%s", v->value);
    used = to->out->bytes - start;
    if (to->with_origin) {
        text_add(to->out, "%*s", used < COMMENT_COLUMN ? (int)(COMMENT_COLUMN - used) : 1, "");
        add_origin(to->out, v->origin);
    }
    text_add(to->out, "\n");
}

void experiment_show(const struct experiment *x, bool with_origin, struct text *out)
{
    experiment_visit(x, show_value, &(struct showing){.out = out, .with_origin = with_origin});
}

struct part {
    enum key_role role;
    struct text *out;
};

static void add_part(void *arg, const struct experiment_value *v)
{
    const struct part *part = arg;

    if (key_role_of(v->path) == part->role)
        text_add(part->out, "%s: %s\n", v->path, v->value);
}

void experiment_part(const struct experiment *x, enum key_role role, struct text *out)
{
    experiment_visit(x, add_part, &(struct part){role, out});
}

/* The hash leaves out names, model, profile, expectations, and the launcher, so that a batch
 * continues under another launcher. A path is hashed in its written form, because it resolves
 * differently on each machine. */
static void hash_value(void *arg, const struct experiment_value *v)
{
    bool path =
        strcmp(v->path, "routing.path") == 0 || strcmp(v->path, "routing.hidden_states") == 0;
    const char *value = path && v->origin != NULL ? v->origin->text : v->value;

    if (strcmp(v->path, "name") == 0 || strncmp(v->path, "profile.", 8) == 0 ||
        strncmp(v->path, "model.", 6) == 0 || strncmp(v->path, "expect.", 7) == 0 ||
        strncmp(v->path, "launcher.", 9) == 0)
        return;
    hash_add(arg, v->path, strlen(v->path) + 1);
    hash_add(arg, value, strlen(value) + 1);
}

uint64_t experiment_hash(const struct experiment *x)
{
    uint64_t hash = HASH_BEGIN;

    experiment_visit(x, hash_value, &hash);
    return (hash ^ hash >> 48) & UINT64_C(0xffffffffffff);
}

/* Hashes the values of the launcher that are not defaults. */
static void hash_launcher(void *arg, const struct experiment_value *v)
{
    if (strncmp(v->path, "launcher.", 9) != 0 || v->origin == NULL)
        return;
    hash_add(arg, v->path, strlen(v->path) + 1);
    hash_add(arg, v->value, strlen(v->value) + 1);
}

uint64_t experiment_launcher_hash(const struct experiment *x)
{
    uint64_t hash = HASH_BEGIN;

    experiment_visit(x, hash_launcher, &hash);
    return (hash ^ hash >> 48) & UINT64_C(0xffffffffffff);
}
