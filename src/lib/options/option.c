/* Tables of options (epa2a/plugin.h): look-up, description, and the setter of one value. A rejected
 * value leaves the field unchanged. */
#include "options/option.h"

#include <inttypes.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>

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

bool option_is_number(const struct epa_option *option)
{
    return option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U64 ||
           option->type == EPA_OPTION_BYTES || option->type == EPA_OPTION_DURATION ||
           option->type == EPA_OPTION_U32_LIST;
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

char *option_number_text(const struct epa_option *option, uint64_t value, char *buf, size_t room)
{
    const struct epa_choice *named = option->type == EPA_OPTION_U32 ? option->choices : NULL;

    while (named != NULL && named->name != NULL && (uint32_t)named->value != value)
        named++;
    if (option->type == EPA_OPTION_BYTES)
        return value_bytes_text(buf, room, value);
    if (option->type == EPA_OPTION_DURATION)
        return value_duration_text(buf, room, value);
    if (named != NULL && named->name != NULL)
        snprintf(buf, room, "%s", named->name);
    else
        snprintf(buf, room, "%" PRIu64, value);
    return buf;
}

uint64_t option_greatest(const struct epa_option *option)
{
    bool narrow = option->type == EPA_OPTION_U32 || option->type == EPA_OPTION_U32_LIST;

    if (option->max != 0)
        return option->max;
    return narrow ? UINT32_MAX : UINT64_MAX;
}

bool option_is_bounded(const struct epa_option *real)
{
    return real->least != 0.0 || real->most != 0.0;
}

char *option_range(const struct epa_option *option, const char *before, char *buf, size_t room)
{
    char least[64], most[64];

    *buf = '\0';
    if (option->type == EPA_OPTION_REAL && option_is_bounded(option))
        snprintf(buf, room, "%s%s to %s", before,
                 value_real_text(least, sizeof(least), option->least),
                 value_real_text(most, sizeof(most), option->most));
    if (!option_is_number(option) || (option->min == 0 && option->max == 0))
        return buf;
    option_number_text(option, option->min, least, sizeof(least));
    option_number_text(option, option->max, most, sizeof(most));
    if (option->max == 0)
        snprintf(buf, room, "%sat least %s", before, least);
    else
        snprintf(buf, room, "%s%s to %s", before, least, most);
    return buf;
}

/* Appends to a string, up to the end of its buffer. */
__attribute__((format(printf, 3, 4))) static void append(char *buf, size_t room, const char *fmt,
                                                         ...)
{
    size_t bytes = strlen(buf);
    va_list args;

    va_start(args, fmt);
    vsnprintf(buf + bytes, room - bytes, fmt, args);
    va_end(args);
}

/* Writes the type and the range as a hint. */
static void hint_type(const struct epa_option *option, struct value_error *error)
{
    char range[OPTION_RANGE_ROOM];

    snprintf(error->hint, sizeof(error->hint), "expected %s%s", option_type(option),
             option_range(option, ", ", range, sizeof(range)));
    for (const struct epa_choice *c = option->choices; c != NULL && c->name != NULL; c++)
        append(error->hint, sizeof(error->hint), ", or %s", c->name);
}

/* Reports the error, with the type and the range as a hint. */
static bool reject_option_value(const struct epa_option *option, struct value_error *error,
                                const char *what)
{
    snprintf(error->what, sizeof(error->what), "%s", what);
    hint_type(option, error);
    return false;
}

/* Removes a hint that this option would reject; its type and range are then the hint. */
static void drop_bad_hint(const struct epa_option *option, struct value_error *error)
{
    struct value_error ignored = {"", ""};
    uint64_t number = 0;
    bool good = true;

    if (strncmp(error->hint, "write ", 6) == 0)
        good = value_u64(error->hint + 6, &number, &ignored) && number >= option->min &&
               number <= option_greatest(option);
    else if (strncmp(error->hint, "at most ", 8) == 0)
        good = option_greatest(option) == UINT64_MAX;
    if (!good)
        error->hint[0] = 0;
}

static bool parse_number(const struct epa_option *option, const char *text, uint64_t *out,
                         struct value_error *error)
{
    const struct epa_choice *named = option->type == EPA_OPTION_U32 ? option->choices : NULL;
    uint64_t number = 0;
    bool good = false;

    while (named != NULL && named->name != NULL && strcmp(named->name, text) != 0)
        named++;
    if (named != NULL && named->name != NULL)
        number = (uint32_t)named->value, good = true;
    else if (option->type == EPA_OPTION_BYTES)
        good = value_bytes(text, &number, error);
    else if (option->type == EPA_OPTION_DURATION)
        good = value_duration(text, &number, error);
    else
        good = value_u64(text, &number, error);
    if (!good)
        drop_bad_hint(option, error);
    if (good && (number < option->min || number > option_greatest(option))) {
        good = reject_option_value(option, error, "is out of range");
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
    if (option_is_bounded(option) && (number < option->least || number > option->most))
        return reject_option_value(option, error, "is out of range");
    *out = number;
    return true;
}

static bool parse_choice(const struct epa_option *option, const char *text, int *out,
                         struct value_error *error)
{
    struct nearest nearest = {.want = text};
    char all[sizeof(error->hint)] = "";

    for (const struct epa_choice *c = option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0) {
            *out = c->value;
            return true;
        }
        append(all, sizeof(all), "%s%s", *all == '\0' ? "one of " : ", ", c->name);
        nearest_try(&nearest, c->name);
    }
    snprintf(error->what, sizeof(error->what), "is not a choice");
    if (nearest.name != NULL)
        nearest_hint(&nearest, error->hint, "");
    else
        memcpy(error->hint, all, sizeof(all));
    return false;
}

static bool parse_value(const struct epa_option *option, const char *text, void *out,
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
    return reject_option_value(option, error, "cannot be a list");
}

bool option_parse(const struct epa_option *option, const char *text, void *out,
                  struct value_error *error)
{
    *error = (struct value_error){"", ""};
    if (parse_value(option, text, out, error))
        return true;
    if (error->hint[0] == '\0')
        hint_type(option, error);
    return false;
}

/* Returns true if results contain the number as text, since integers of JSON end at 2^63 here: a
 * seed. */
static bool is_text_in_json(const struct epa_option *option, const char *text)
{
    struct value_error ignored;
    uint64_t number;

    return option->type == EPA_OPTION_U64 && value_u64(text, &number, &ignored) &&
           number > INT64_MAX;
}

/* Returns true for a scalar with contents; numbers and booleans must not be quoted. Numbers in
 * quotes are accepted where JSON writes strings: so JSON is a valid experiment. */
static bool check_scalar(const struct epa_option *option, const struct option_value *value,
                         struct value_error *error)
{
    bool quotes = option_is_text(option) ||
                  (value->form == OPTION_SCALAR && is_text_in_json(option, value->text));
    char what[sizeof(error->what)];

    if (value->form != OPTION_SCALAR) {
        snprintf(what, sizeof(what), "a single value is expected, this is a %s",
                 value->form == OPTION_MAP ? "map" : "list");
        return reject_option_value(option, error, what);
    }
    if (*value->text == '\0' && !value->quoted)
        return reject_option_value(option, error, "no value");
    if (value->quoted && !quotes && !value->expanded) {
        snprintf(error->what, sizeof(error->what), "'%.40s' in quotes is a string", value->text);
        snprintf(error->hint, sizeof(error->hint), "remove the quotes");
        return false;
    }
    return true;
}

/* Puts the rejected text before the reason. */
static void name_text(const char *text, struct value_error *error)
{
    char what[sizeof(error->what)];

    memcpy(what, error->what, sizeof(what));
    snprintf(error->what, sizeof(error->what), "'%.40s' %.96s", text, what);
}

bool option_set(const struct epa_option *option, const struct option_value *value, void *out,
                struct value_error *error)
{
    bool unset = option->type == EPA_OPTION_STRING && !value->quoted &&
                 value->form == OPTION_SCALAR &&
                 (strcmp(value->text, "null") == 0 || strcmp(value->text, "~") == 0);

    *error = (struct value_error){"", ""};
    if (!check_scalar(option, value, error))
        return false;
    if (!option_parse(option, value->text, out, error)) {
        name_text(value->text, error);
        return false;
    }
    if (unset)
        *(const char **)(void *)((char *)out + option->offset) = NULL;
    return true;
}

bool option_check_list(const struct epa_option *option, const struct option_value *value,
                       struct value_error *error)
{
    char what[sizeof(error->what)];

    if (value->form == OPTION_LIST)
        return true;
    snprintf(what, sizeof(what), "a list is expected, this is a %s",
             value->form == OPTION_MAP ? "map" : "single value");
    return reject_option_value(option, error, what);
}

bool option_set_item(const struct epa_option *option, const struct option_value *item,
                     uint32_t *out, struct value_error *error)
{
    uint64_t number = 0;

    *error = (struct value_error){"", ""};
    if (!check_scalar(option, item, error))
        return false;
    if (!parse_number(option, item->text, &number, error)) {
        name_text(item->text, error);
        if (error->hint[0] == '\0')
            hint_type(option, error);
        return false;
    }
    *out = (uint32_t)number;
    return true;
}

bool option_unknown_hint(const struct epa_options *options, const char *own, const char *key,
                         char *buf, size_t room)
{
    struct nearest nearest = {.want = key};
    char near[NEAREST_ROOM];

    snprintf(buf, room, "%s%s", own != NULL ? "it has: " : "", own != NULL ? own : "");
    if (own != NULL)
        nearest_try(&nearest, own);
    for (const struct epa_option *o = options->table; o != NULL && o->name != NULL; o++)
        append(buf, room, "%s%s", *buf == '\0' ? "it has: " : ", ", o->name);
    nearest_try_table(&nearest, options->table, sizeof(*options->table));
    if (nearest.name != NULL)
        snprintf(buf, room, "%s", nearest_hint(&nearest, near, ""));
    return nearest.name != NULL;
}
