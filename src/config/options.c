/* One reader for each type of option. A value that is refused leaves the default in place,
 * so that reading goes on and finds the next error. */
#include "config/options.h"

#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "config/value.h"

enum { NAMES = 64, HINT = 256 };

/* One option being read, for the functions below. */
struct reading {
    const struct epa_option *option;
    const char *key;
    struct arena *arena;
    struct diag *diag;
};

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
        value_bytes_text(buf, sizeof(buf), value);
    else if (option->type == EPA_OPTION_DURATION)
        value_duration_text(buf, sizeof(buf), value);
    else
        snprintf(buf, sizeof(buf), "%" PRIu64, value);
    text_add(out, "%s", buf);
}

uint64_t option_greatest(const struct epa_option *option)
{
    bool narrow = option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U32_LIST;

    if (option->max != 0)
        return option->max;
    return narrow ? UINT32_MAX : UINT64_MAX;
}

void option_range(const struct epa_option *option, struct text *out)
{
    char least[64], most[64];

    switch (option->type) {
    case EPA_OPTION_REAL:
        if (option->least != 0.0 || option->most != 0.0)
            text_add(out, "%s to %s", value_real_text(least, sizeof(least), option->least),
                     value_real_text(most, sizeof(most), option->most));
        break;
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
    case EPA_OPTION_U32_LIST:
        if (option->min != 0 && option->max == 0)
            text_add(out, "at least ");
        if (option->min != 0 || option->max != 0)
            option_number_text(option, option->min, out);
        if (option->max != 0) {
            text_add(out, " to ");
            option_number_text(option, option->max, out);
        }
        break;
    case EPA_OPTION_BOOL:
    case EPA_OPTION_STRING:
    case EPA_OPTION_CHOICE:
        break;
    }
}

/* `better` says what to write; where it is "", the type and range do. */
__attribute__((format(printf, 4, 5))) static void
refuse(const struct reading *r, struct node *value, const char *better, const char *fmt, ...)
{
    struct text hint = {0};
    char what[HINT];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    text_add(&hint, "%s", better);
    if (*better == 0) {
        struct text range = {0};

        option_range(r->option, &range);
        text_add(&hint, "expected %s%s%s", option_type(r->option), range.bytes == 0 ? "" : ", ",
                 range.bytes == 0 ? "" : range.data);
        text_free(&range);
    }
    value->refused = true;
    diag_error(r->diag, &value->location, hint.data, "%s: %s", r->key, what);
    if (value->variables != NULL)
        diag_note(r->diag, &value->location, "it is from the environment: %s", value->variables);
    text_free(&hint);
}

/* A scalar with something in it; numbers and booleans without quotes. */
static bool scalar(const struct reading *r, struct node *value)
{
    /* As JSON has what is not a number, so that JSON is an experiment, too. */
    bool quotes = r->option->type == EPA_OPTION_STRING || r->option->type == EPA_OPTION_CHOICE ||
                  r->option->type == EPA_OPTION_DURATION || r->option->type == EPA_OPTION_BYTES;

    if (value->refused)
        return false;
    if (value->kind != NODE_SCALAR)
        refuse(r, value, "", "a single value is expected, this is a %s",
               value->kind == NODE_MAP ? "map" : "list");
    else if (*value->text == 0 && !value->quoted)
        refuse(r, value, "", "no value");
    else if (value->quoted && !quotes && value->variables == NULL)
        refuse(r, value, "remove the quotes", "'%.40s' in quotes is a string", value->text);
    return !value->refused;
}

static bool in_range(const struct reading *r, struct node *value, uint64_t number)
{
    if (number >= r->option->min && number <= option_greatest(r->option))
        return true;
    if (r->option->max == 0 && number > option_greatest(r->option))
        refuse(r, value, "at most 4294967295", "%.40s is out of range", value->text);
    else
        refuse(r, value, "", "%.40s is out of range", value->text);
    return false;
}

static bool read_number(const struct reading *r, struct node *value, uint64_t *out)
{
    struct value_error error = {"", ""};
    uint64_t number = 0;
    bool good;

    if (!scalar(r, value))
        return false;
    if (r->option->type == EPA_OPTION_BYTES)
        good = value_bytes(value->text, &number, &error);
    else if (r->option->type == EPA_OPTION_DURATION)
        good = value_duration(value->text, &number, &error);
    else
        good = value_u64(value->text, &number, &error);
    if (!good) {
        refuse(r, value, error.hint, "'%.40s' %s", value->text, error.what);
        return false;
    }
    if (!in_range(r, value, number))
        return false;
    *out = number;
    return true;
}

static void read_real(const struct reading *r, struct node *value, double *out)
{
    const struct epa_option *o = r->option;
    struct value_error error = {"", ""};
    double number = 0.0;

    if (!scalar(r, value))
        return;
    if (!value_real(value->text, &number, &error))
        refuse(r, value, error.hint, "'%.40s' %s", value->text, error.what);
    else if ((o->least != 0.0 || o->most != 0.0) && (number < o->least || number > o->most))
        refuse(r, value, "", "%.40s is out of range", value->text);
    else
        *out = number;
}

static void read_bool(const struct reading *r, struct node *value, bool *out)
{
    struct value_error error = {"", ""};

    if (scalar(r, value) && !value_bool(value->text, out, &error))
        refuse(r, value, error.hint, "'%.40s' %s", value->text, error.what);
}

/* null stands for "not set", which only a string can be. */
static void read_string(const struct reading *r, struct node *value, const char **out)
{
    if (!scalar(r, value))
        return;
    if (!value->quoted && (strcmp(value->text, "null") == 0 || strcmp(value->text, "~") == 0))
        *out = NULL;
    else
        *out = value->text;
}

static void read_choice(const struct reading *r, struct node *value, int *out)
{
    const char *names[NAMES], *near;
    struct text hint = {0};
    uint32_t n = 0;

    if (!scalar(r, value))
        return;
    for (const struct epa_choice *c = r->option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, value->text) == 0) {
            *out = c->value;
            return;
        }
        if (n < NAMES)
            names[n++] = c->name;
    }
    near = text_nearest(value->text, names, n);
    if (near != NULL)
        text_add(&hint, "did you mean '%s'?", near);
    for (uint32_t i = 0; near == NULL && i < n; i++)
        text_add(&hint, "%s%s", i == 0 ? "one of " : ", ", names[i]);
    refuse(r, value, hint.data, "'%.40s' is not a choice", value->text);
    text_free(&hint);
}

static void read_list(const struct reading *r, struct node *value, struct epa_u32_list *out)
{
    struct epa_u32_list list = {NULL, value->n};
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
        uint64_t number = 0;

        if (!read_number(r, value->item[i], &number))
            value->refused = true;
        item[i] = (uint32_t)number;
    }
    list.item = item;
    if (!value->refused)
        *out = list;
}

void option_read(const struct epa_option *option, const char *key, struct node *value,
                 struct arena *arena, struct diag *diag, void *out)
{
    const struct reading r = {option, key, arena, diag};
    void *field = (char *)out + option->offset;
    uint64_t number;

    switch (option->type) {
    case EPA_OPTION_BOOL:
        read_bool(&r, value, field);
        break;
    case EPA_OPTION_U32:
        if (read_number(&r, value, &number))
            *(uint32_t *)field = (uint32_t)number;
        break;
    case EPA_OPTION_U64:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        if (read_number(&r, value, &number))
            *(uint64_t *)field = number;
        break;
    case EPA_OPTION_REAL:
        read_real(&r, value, field);
        break;
    case EPA_OPTION_STRING:
        read_string(&r, value, field);
        break;
    case EPA_OPTION_CHOICE:
        read_choice(&r, value, field);
        break;
    case EPA_OPTION_U32_LIST:
        read_list(&r, value, field);
        break;
    }
}

static void refuse_key(const struct epa_options *options, const char *section, const char *own,
                       struct node *key, struct diag *diag)
{
    const char *names[NAMES], *near;
    struct text hint = {0};
    uint32_t n = 0;

    if (own != NULL)
        names[n++] = own;
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        if (n < NAMES)
            names[n++] = o->name;
    near = text_nearest(key->text, names, n);
    if (near != NULL)
        text_add(&hint, "did you mean '%s'?", near);
    else if (strchr(key->text, ' ') != NULL)
        text_add(&hint, "a text with a comma in it needs quotes here");
    for (uint32_t i = 0; hint.bytes == 0 && i < n; i++)
        text_add(&hint, "%s%s", i == 0 ? "it has: " : ", ", names[i]);
    diag_error(diag, &key->location, hint.data, "unknown key '%.64s' in '%s'", key->text, section);
    text_free(&hint);
}

void options_read(const struct epa_options *options, const char *section, const char *own,
                  const struct node *map, struct arena *arena, struct diag *diag, void *out)
{
    if (options->size != 0)
        memcpy(out, options->defaults, options->size);
    if (map == NULL)
        return;
    for (uint32_t i = 0; i < map->n; i++) {
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

static uint64_t number_at(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;

    return option->type == EPA_OPTION_U32 ? *(const uint32_t *)field : *(const uint64_t *)field;
}

bool option_is_set(const struct epa_option *option, const void *from)
{
    const void *field = (const char *)from + option->offset;
    uint64_t number;
    double real;

    switch (option->type) {
    case EPA_OPTION_STRING:
        return *(const char *const *)field != NULL;
    case EPA_OPTION_U32_LIST:
        return ((const struct epa_u32_list *)field)->item != NULL;
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        number = number_at(option, from);
        return number >= option->min && number <= option_greatest(option);
    case EPA_OPTION_REAL:
        real = *(const double *)field;
        return (option->least == 0.0 && option->most == 0.0) ||
               (real >= option->least && real <= option->most);
    case EPA_OPTION_BOOL:
    case EPA_OPTION_CHOICE:
        break;
    }
    return true;
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
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
    case EPA_OPTION_BYTES:
    case EPA_OPTION_DURATION:
        option_number_text(option, number_at(option, from), out);
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
    }
}
