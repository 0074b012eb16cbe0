/* The resolved experiment, value by value: as YAML that reads back as the same experiment, as JSON
 * for reports, and as a hash. Options that are not set or have no effect are left out. The bounds
 * of `expect` and the text form of options follow. */
#include "config/experiment.h"

#include <inttypes.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "config/tree.h"
#include "config/options.h"

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
           (strcmp(option->name, "epoch") == 0 && x->verify.epoch == 0);
}

static void visit_section(const struct visitor *v, const struct section *section)
{
    const void *values = (const char *)v->x + section->offset;
    const struct epa_options *options = &section->options;

    if (!section_is_for(section, (const void *)v->x->algorithm.plugin) ||
        (strcmp(section->name, "fault") == 0 && !fault_is_planted(v->x)) ||
        (strcmp(section->name, "model") == 0 && v->x->model.name == NULL))
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
    if (strcmp(section->name, "expect") == 0)
        visit_rows(v);
}

void experiment_visit(const struct experiment *x,
                      void (*fn)(void *arg, const struct experiment_value *), void *arg)
{
    const struct visitor v = {x, fn, arg};

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        if (option_is_set(o, x))
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
    size_t start, used;

    if (v->section != NULL && (to->section == NULL || strcmp(to->section, v->section) != 0))
        text_add(to->out, "%s:\n", v->section);
    to->section = v->section;
    start = to->out->bytes;
    text_add(to->out, "%s%s: ", v->section == NULL ? "" : "  ", v->key);
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

/* The table of `expect`: bounds of figures by name, for the last row of a result or for the row
 * that a key or a map names. */

/* Limit of bounds; the search for keys takes quadratic time. */
enum { DAY_S = 86400, MOST_BOUNDS = 1000 };

#define MOST(figure, what) \
    { \
        .name = #figure, EPA_DURATION(struct expect_options, last.figure), \
        .max = (uint64_t)DAY_S * 1000000000, .help = "upper bound of " what \
    }
#define LEAST(figure, limit, what) \
    { \
        .name = #figure, EPA_REAL(struct expect_options, last.figure), .most = limit, \
        .help = "lower bound " what \
    }

const struct epa_option expect_table[] = {
    {.name = "wrong",
     EPA_U32(struct expect_options, wrong),
     .max = 1000000000,
     .help = "maximum number of wrong elements; elements must have been compared; the only bound "
             "that verify checks"},
    MOST(min, "the shortest sample; as median"),
    MOST(median, "the median: 120us of the total, or of a row by expect.dispatch.median"),
    MOST(p95, "the 95th percentile; as median"),
    MOST(p99, "the 99th percentile; as median"),
    MOST(p999, "the 99.9th percentile, which needs 1000 samples; as median"),
    MOST(max, "the longest sample; as median"),
    MOST(mean, "the mean; as median"),
    LEAST(goodput, 1e9, "in GB/s, of the total or of a row, as median; `epa2a help bandwidth`"),
    LEAST(wire, 1e9, "in GB/s; as goodput"),
    LEAST(bottleneck, 1e9, "in GB/s; as goodput"),
    LEAST(of_peak, 1, "of the percentage of peak, by the median: 50%"),
    {0},
};
const struct epa_option *const expect_figures = &expect_table[1];

double expect_bound(const struct epa_option *figure, const struct expect_bounds *bounds)
{
    const void *field = (const char *)bounds + figure->offset;

    if (!option_is_set(figure, bounds))
        return NAN;
    return figure->type == EPA_OPTION_DURATION ? (double)*(const uint64_t *)field
                                               : *(const double *)field;
}

const struct expect_bounds *expect_row_at(const struct expect_options *x, uint32_t i,
                                          const char **name)
{
    *name = i > 0 && i <= x->n_rows ? x->row[i - 1].name : "";
    return i == 0 ? &x->last : i <= x->n_rows ? &x->row[i - 1].bounds : NULL;
}

bool expect_wrong_is_set(const struct expect_options *x)
{
    return option_is_set(&expect_table[0], x);
}

bool expect_is_set(const struct expect_options *x)
{
    for (const struct epa_option *o = expect_figures; o->name != NULL; o++)
        if (option_is_set(o, x))
            return true;
    return x->n_rows > 0 || expect_wrong_is_set(x);
}

/* ---- reading ---- */

struct node *expect_flatten(struct arena *arena, const struct node *map)
{
    struct node *flat = node_make(arena, NODE_MAP, &map->location);

    for (uint32_t i = 0; i < map->n && flat->n <= MOST_BOUNDS; i++) {
        struct node *key = map->key[i], *item = map->item[i];

        if (item->kind != NODE_MAP)
            node_set(arena, flat, key, item);
        for (uint32_t k = 0; item->kind == NODE_MAP && k < item->n && flat->n <= MOST_BOUNDS; k++)
            node_set(arena, flat,
                     tree_word(arena, arena_printf(arena, "%s.%s", key->text, item->key[k]->text),
                               &item->key[k]->location),
                     item->item[k]);
    }
    return flat;
}

void expect_read(const struct node *map, struct arena *arena, struct diag *diag,
                 struct expect_options *out)
{
    const struct epa_options figures = {.table = expect_figures};
    const struct section *section = section_find("expect");
    struct node *others = node_make(arena, NODE_MAP, &map->location);
    struct expect_row *row = arena_alloc(arena, (map->n + 1) * sizeof(*row));
    uint32_t n = 0;

    if (map->n > MOST_BOUNDS) {
        diag_error(diag, &map->location, NULL, "expect: more than %d bounds", MOST_BOUNDS);
        return;
    }
    for (uint32_t i = 0; i < map->n; i++) {
        const char *key = map->key[i]->text, *dot = strrchr(key, '.');
        const struct epa_option *option = dot != NULL ? option_find(&figures, dot + 1) : NULL;
        uint32_t at = 0;

        if (option == NULL) {
            node_append(arena, others, map->key[i], map->item[i]);
            continue;
        }
        key = arena_strndup(arena, key, (size_t)(dot - key));
        while (at < n && strcmp(row[at].name, key) != 0)
            at++;
        if (at == n)
            row[n++] = (struct expect_row){key, EXPECT_ANY};
        option_read(option, arena_printf(arena, "expect.%s", map->key[i]->text), map->item[i],
                    arena, diag, &row[at].bounds);
    }
    options_read(&section->options, section->name, NULL, others, arena, diag, out);
    out->row = row;
    out->n_rows = n;
}

/* ---- options as text ---- */

static char *value_real_text(char *buf, size_t room, double value)
{
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(buf, room, "%.*g", precision, value);
        bool small = value == 0.0 || (fabs(value) >= 1e-4 && fabs(value) < 1e15);

        if (strtod(buf, NULL) == value && (!small || strchr(buf, 'e') == NULL))
            break;
    }
    if (strpbrk(buf, ".e") == NULL && strlen(buf) + 2 < room)
        strcat(buf, ".0");
    return buf;
}

/* Returns true for a whole number, alone or in a list, a size or a duration. */
static bool is_number(const struct epa_option *option)
{
    return option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U64 ||
           option->type == EPA_OPTION_BYTES || option->type == EPA_OPTION_DURATION ||
           option->type == EPA_OPTION_U32_LIST;
}

void option_range(const struct epa_option *option, const char *before, struct text *out)
{
    char least[64], most[64];

    if (option->type == EPA_OPTION_REAL && option_is_bounded(option))
        text_add(out, "%s%s to %s", before, value_real_text(least, sizeof(least), option->least),
                 value_real_text(most, sizeof(most), option->most));
    if (!is_number(option) || (option->min == 0 && option->max == 0))
        return;
    text_add(out, "%s%s", before, option->max == 0 ? "at least " : "");
    option_number_text(option, option->min, out);
    if (option->max != 0) {
        text_add(out, " to ");
        option_number_text(option, option->max, out);
    }
}

static uint64_t number_at(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;

    return option->type == EPA_OPTION_U32 ? *(const uint32_t *)field : *(const uint64_t *)field;
}

bool option_is_set(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;
    double real;

    switch (option->type) {
    case EPA_OPTION_STRING:
        return *(const char *const *)field != NULL;
    case EPA_OPTION_U32_LIST:
        return ((const struct epa_u32_list *)field)->item != NULL;
    case EPA_OPTION_REAL:
        real = *(const double *)field;
        return !option_is_bounded(option) || (real >= option->least && real <= option->most);
    default:
        return !is_number(option) || (number_at(option, from) >= option->min &&
                                      number_at(option, from) <= option_greatest(option));
    }
}

static void list_text(const struct epa_u32_list *list, struct text *out)
{
    text_add(out, "[");
    for (uint32_t i = 0; i < list->n; i++)
        text_add(out, "%s%" PRIu32, i == 0 ? "" : ", ", list->item[i]);
    text_add(out, "]");
}

void option_text(const struct epa_option *option, const void *from, struct text *out)
{
    const void *field = (const char *)from + option->offset;
    char buf[64];

    switch (option->type) {
    case EPA_OPTION_BOOL:
        text_add(out, "%s", *(const bool *)field ? "true" : "false");
        break;
    case EPA_OPTION_REAL:
        text_add(out, "%s", value_real_text(buf, sizeof(buf), *(const double *)field));
        break;
    case EPA_OPTION_STRING:
        text_add(out, "%s", *(const char *const *)field);
        break;
    case EPA_OPTION_CHOICE:
        for (const struct epa_choice *c = option->choices; c->name != NULL; c++)
            if (c->value == *(const int *)field)
                text_add(out, "%s", c->name);
        break;
    case EPA_OPTION_U32_LIST:
        list_text(field, out);
        break;
    default:
        option_number_text(option, number_at(option, from), out);
    }
}

bool option_candidate(const struct epa_option *o, bool on_gpus, uint32_t i, struct text *out)
{
    static const char gpus[] = "cuda: ";
    bool gpus_only = o->tune != NULL && strncmp(o->tune, gpus, sizeof(gpus) - 1) == 0;
    const char *at = gpus_only ? o->tune + sizeof(gpus) - 1 : o->tune;

    if (at == NULL || (gpus_only && !on_gpus))
        return false;
    if (strcmp(at, "*") == 0 && o->type == EPA_OPTION_BOOL) {
        if (i < 2)
            text_add(out, "%s", i == 0 ? "false" : "true");
        return i < 2;
    }
    if (strcmp(at, "*") == 0) {
        const struct epa_choice *c = o->choices;

        while (c->name != NULL && i-- > 0)
            c++;
        if (c->name != NULL)
            text_add(out, "%s", c->name);
        return c->name != NULL;
    }
    for (; i > 0 && *at != '\0'; i--)
        at += strcspn(at, " ") + strspn(at + strcspn(at, " "), " ");
    if (*at != '\0')
        text_add(out, "%.*s", (int)strcspn(at, " "), at);
    return *at != '\0';
}
