/* One reader for each type of option. A value that is refused leaves the default in place,
 * so that reading goes on and finds the next error. */
#include "config/options.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"

static const char *const type_names[] = {
    [EPA_OPTION_BOOL] = "true or false",
    [EPA_OPTION_U32] = "a whole number",
    [EPA_OPTION_U64] = "a whole number",
    [EPA_OPTION_REAL] = "a number",
    [EPA_OPTION_BYTES] = "a size such as 64KiB",
    [EPA_OPTION_DURATION] = "a duration such as 10us",
    [EPA_OPTION_STRING] = "a string",
    [EPA_OPTION_CHOICE] = "one of the choices",
    [EPA_OPTION_U32_LIST] = "a list of whole numbers such as [1, 2, 3]",
};

const char *option_type(const struct epa_option *option)
{
    return type_names[option->type];
}

const char *option_unit(const struct epa_option *option)
{
    if (option->type == EPA_OPTION_DURATION)
        return "ns, us, ms or s";
    return option->type == EPA_OPTION_BYTES ? "B, KiB, MiB, GiB or TiB" : NULL;
}

bool option_is_note(const char *key)
{
    return strncmp(key, "x-", 2) == 0;
}

bool option_is_text(const struct epa_option *option)
{
    return option->type == EPA_OPTION_BYTES || option->type == EPA_OPTION_DURATION ||
           option->type == EPA_OPTION_STRING || option->type == EPA_OPTION_CHOICE;
}

/* A whole number, alone or in a list, a size or a duration. */
static bool is_number(const struct epa_option *option)
{
    return option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U64 ||
           option->type == EPA_OPTION_BYTES || option->type == EPA_OPTION_DURATION ||
           option->type == EPA_OPTION_U32_LIST;
}

const struct epa_option *option_find(const struct epa_options *options, const char *name)
{
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (strcmp(o->name, name) == 0)
            return o;
    return NULL;
}

void option_number_text(const struct epa_option *option, uint64_t value, struct text *out)
{
    char buf[64];

    if (option->type == EPA_OPTION_BYTES)
        text_add(out, "%s", value_bytes_text(buf, sizeof(buf), value));
    else if (option->type == EPA_OPTION_DURATION)
        text_add(out, "%s", value_duration_text(buf, sizeof(buf), value));
    else
        text_add(out, "%" PRIu64, value);
}

uint64_t option_greatest(const struct epa_option *option)
{
    bool narrow = option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U32_LIST;

    if (option->max != 0)
        return option->max;
    return narrow ? UINT32_MAX : UINT64_MAX;
}

static bool is_bounded(const struct epa_option *real)
{
    return real->least != 0.0 || real->most != 0.0;
}

void option_range(const struct epa_option *option, const char *before, struct text *out)
{
    char least[64], most[64];

    if (option->type == EPA_OPTION_REAL && is_bounded(option))
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

/* ---- reading ---- */

/* Says what is wrong, and as a hint what the type and the range are. */
static bool refuse_text(const struct epa_option *option, struct value_error *error,
                        const char *what)
{
    struct text range = {0};

    option_range(option, ", ", &range);
    snprintf(error->what, sizeof(error->what), "%s", what);
    snprintf(error->hint, sizeof(error->hint), "expected %s%s", option_type(option),
             range.bytes == 0 ? "" : range.data);
    text_free(&range);
    return false;
}

static bool parse_number(const struct epa_option *option, const char *text, uint64_t *out,
                         struct value_error *error)
{
    uint64_t number = 0;
    bool good;

    if (option->type == EPA_OPTION_BYTES)
        good = value_bytes(text, &number, error);
    else if (option->type == EPA_OPTION_DURATION)
        good = value_duration(text, &number, error);
    else
        good = value_u64(text, &number, error);
    if (good && (number < option->min || number > option_greatest(option))) {
        good = refuse_text(option, error, "is out of range");
        if (option->max == 0 && number > option_greatest(option))
            snprintf(error->hint, sizeof(error->hint), "at most %" PRIu32, UINT32_MAX);
    }
    if (good)
        *out = number;
    return good;
}

static bool parse_real(const struct epa_option *option, const char *text, double *out,
                       struct value_error *error)
{
    double number = 0.0;

    if (!value_real(text, &number, error))
        return false;
    if (is_bounded(option) && (number < option->least || number > option->most))
        return refuse_text(option, error, "is out of range");
    *out = number;
    return true;
}

static bool parse_choice(const struct epa_option *option, const char *text, int *out,
                         struct value_error *error)
{
    struct nearest nearest = {.want = text};
    struct text all = {0};
    char hint[NEAREST_ROOM];

    for (const struct epa_choice *c = option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0) {
            *out = c->value;
            text_free(&all);
            return true;
        }
        text_add(&all, "%s%s", all.bytes == 0 ? "one of " : ", ", c->name);
        nearest_try(&nearest, c->name);
    }
    snprintf(error->what, sizeof(error->what), "is not a choice");
    snprintf(error->hint, sizeof(error->hint), "%s", nearest_hint(&nearest, hint, all.data));
    text_free(&all);
    return false;
}

static bool parse(const struct epa_option *option, const char *text, void *out,
                  struct value_error *error)
{
    void *field = (char *)out + option->offset;
    uint64_t number;

    switch (option->type) {
    case EPA_OPTION_BOOL:
        return value_bool(text, field, error);
    case EPA_OPTION_U32:
        if (!parse_number(option, text, &number, error))
            return false;
        *(uint32_t *)field = (uint32_t)number;
        return true;
    case EPA_OPTION_U64:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        return parse_number(option, text, field, error);
    case EPA_OPTION_REAL:
        return parse_real(option, text, field, error);
    case EPA_OPTION_STRING:
        *(const char **)field = text;
        return true;
    case EPA_OPTION_CHOICE:
        return parse_choice(option, text, field, error);
    case EPA_OPTION_U32_LIST:
        break;
    }
    return refuse_text(option, error, "cannot be a list");
}

bool option_parse(const struct epa_option *option, const char *text, void *out,
                  struct value_error *error)
{
    char what[sizeof(error->what)];

    *error = (struct value_error){"", ""};
    if (parse(option, text, out, error))
        return true;
    memcpy(what, error->what, sizeof(what));
    if (error->hint[0] == 0)
        refuse_text(option, error, what);
    return false;
}

/* One option being read, for the functions below. */
struct reading {
    const struct epa_option *option;
    const char *key;
    struct arena *arena;
    struct diag *diag;
};

/* `better` says what to write; where it is "", the type and range do. */
__attribute__((format(printf, 4, 5))) static bool
refuse(const struct reading *r, struct node *value, const char *better, const char *fmt, ...)
{
    struct value_error error;
    char what[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    refuse_text(r->option, &error, "");
    value->refused = true;
    diag_error(r->diag, &value->location, *better != 0 ? better : error.hint, "%s: %s", r->key,
               what);
    if (value->variables != NULL)
        diag_note(r->diag, &value->location, "it is from the environment: %s", value->variables);
    return false;
}

/* A scalar with something in it; numbers and booleans without quotes. */
static bool is_scalar(const struct reading *r, struct node *value)
{
    /* As JSON has what is not a number, so that JSON is an experiment, too. */
    bool quotes = r->option->type == EPA_OPTION_STRING || r->option->type == EPA_OPTION_CHOICE ||
                  r->option->type == EPA_OPTION_DURATION || r->option->type == EPA_OPTION_BYTES;

    if (value->refused)
        return false;
    if (value->kind != NODE_SCALAR)
        return refuse(r, value, "", "a single value is expected, this is a %s",
                      value->kind == NODE_MAP ? "map" : "list");
    if (*value->text == 0 && !value->quoted)
        return refuse(r, value, "", "no value");
    if (value->quoted && !quotes && value->variables == NULL)
        return refuse(r, value, "remove the quotes", "'%.40s' in quotes is a string", value->text);
    return true;
}

static void read_scalar(const struct reading *r, struct node *value, void *out)
{
    struct value_error error = {"", ""};

    if (!is_scalar(r, value))
        return;
    if (!option_parse(r->option, value->text, out, &error))
        refuse(r, value, error.hint, "'%.40s' %s", value->text, error.what);
    else if (r->option->type == EPA_OPTION_STRING && !value->quoted &&
             (strcmp(value->text, "null") == 0 || strcmp(value->text, "~") == 0))
        *(const char **)(void *)((char *)out + r->option->offset) = NULL; /* not set */
}

static void read_list(const struct reading *r, struct node *value, struct epa_u32_list *out)
{
    struct value_error error;
    uint32_t *item;

    if (value->refused)
        return;
    if (value->kind != NODE_LIST) {
        refuse(r, value, "", "a list is expected, this is a %s",
               value->kind == NODE_MAP ? "map" : "single value");
        return;
    }
    item = arena_alloc(r->arena, (value->n + 1) * sizeof(*item));
    for (uint32_t i = 0; i < value->n; i++) {
        struct node *node = value->item[i];
        uint64_t number = 0;

        error = (struct value_error){"", ""};
        if (is_scalar(r, node) && !parse_number(r->option, node->text, &number, &error))
            refuse(r, node, error.hint, "'%.40s' %s", node->text, error.what);
        value->refused = value->refused || node->refused;
        item[i] = (uint32_t)number;
    }
    if (!value->refused)
        *out = (struct epa_u32_list){item, value->n};
}

void option_read(const struct epa_option *option, const char *key, struct node *value,
                 struct arena *arena, struct diag *diag, void *out)
{
    const struct reading r = {option, key, arena, diag};

    if (option->type == EPA_OPTION_U32_LIST)
        read_list(&r, value, (void *)((char *)out + option->offset));
    else
        read_scalar(&r, value, out);
}

static void refuse_key(const struct epa_options *options, const char *section, const char *own,
                       struct node *key, struct diag *diag)
{
    struct nearest nearest = {.want = key->text};
    struct text all = {0};
    char hint[NEAREST_ROOM];

    if (own != NULL) {
        text_add(&all, "it has: %s", own);
        nearest_try(&nearest, own);
    }
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        text_add(&all, "%s%s", all.bytes == 0 ? "it has: " : ", ", o->name);
    nearest_try_table(&nearest, options->table, sizeof(*options->table));
    if (nearest.name != NULL)
        nearest_hint(&nearest, hint, "");
    diag_error(diag, &key->location,
               nearest.name != NULL             ? hint
               : strchr(key->text, ' ') != NULL ? "a text with a comma in it needs quotes here"
                                                : all.data,
               "unknown key '%.64s' in '%s'", key->text, section);
    text_free(&all);
}

void options_read(const struct epa_options *options, const char *section, const char *own,
                  const struct node *map, struct arena *arena, struct diag *diag, void *out)
{
    if (options->size != 0)
        memcpy(out, options->defaults, options->size);
    for (uint32_t i = 0; map != NULL && i < map->n; i++) {
        const struct epa_option *option = option_find(options, map->key[i]->text);

        if (option_is_note(map->key[i]->text) ||
            (own != NULL && strcmp(map->key[i]->text, own) == 0))
            continue;
        if (option == NULL)
            refuse_key(options, section, own, map->key[i], diag);
        else
            option_read(option, arena_printf(arena, "%s.%s", section, option->name), map->item[i],
                        arena, diag, out);
    }
}

/* ---- and back ---- */

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
        return !is_bounded(option) || (real >= option->least && real <= option->most);
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
