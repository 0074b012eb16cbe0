/* One reader for each type of option. A rejected value leaves the default in place, so that reading
 * continues and finds further errors. */
#include "config/options.h"

#include <ctype.h>
#include <inttypes.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

#include "base/text.h"
#include "config/diag.h"

/* ---- texts to values ---- */

/* Parses numbers strictly: digits and, if the type has one, a unit. An error names the notation
 * found and, if possible, the intended value. */

struct unit {
    const char *name; /* NULL ends the list; output uses the first factor that divides */
    uint64_t factor;
    bool shown;
};

static const struct unit byte_units[] = {
    {"TiB", 1ull << 40, true},
    {"GiB", 1ull << 30, true},
    {"MiB", 1ull << 20, true},
    {"KiB", 1ull << 10, true},
    {"T", 1ull << 40, false},
    {"G", 1ull << 30, false},
    {"M", 1ull << 20, false},
    {"K", 1ull << 10, false},
    {"B", 1, false},
    {"", 1, true},
    {0},
};
static const struct unit time_units[] = {
    {"s", 1000000000, true}, {"ms", 1000000, true}, {"us", 1000, true}, {"ns", 1, true}, {0},
};

__attribute__((format(printf, 3, 4))) static bool
reject_text(struct value_error *error, const char *hint, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    vsnprintf(error->what, sizeof(error->what), fmt, args);
    va_end(args);
    snprintf(error->hint, sizeof(error->hint), "%s", hint);
    return false;
}

/* Reads digits; returns false if they do not fit. */
static bool parse_digits(const char **text, uint64_t *out)
{
    bool fits = true;
    uint64_t value = 0;

    for (; isdigit((unsigned char)**text); (*text)++)
        fits = fits && !__builtin_mul_overflow(value, 10u, &value) &&
               !__builtin_add_overflow(value, (uint64_t)(**text - '0'), &value);
    *out = value;
    return fits;
}

static bool leading_zero(const char *text)
{
    return text[0] == '0' && isdigit((unsigned char)text[1]);
}

static bool reject_leading_zero(const char *text, struct value_error *error)
{
    char hint[sizeof(error->hint)];

    text += strspn(text, "0");
    snprintf(hint, sizeof(hint), "write %.40s", isdigit((unsigned char)*text) ? text : text - 1);
    return reject_text(error, hint, "begins with 0, which some programs read as octal");
}

/* Suggests the number intended by an unsupported notation: 1e3, 0x10, 7_168. */
static void suggest_number(const char *text, struct value_error *error)
{
    char plain[32], *end;
    size_t n = 0;
    double value;

    for (const char *s = text; *s != 0 && n + 1 < sizeof(plain); s++)
        if (*s != '_')
            plain[n++] = *s;
    plain[n] = 0;
    value = strtod(plain, &end);
    if (isdigit((unsigned char)*text) && *end == 0 && value < 9e15 && value == floor(value))
        snprintf(error->hint, sizeof(error->hint), "write %.0f", value);
}

bool value_u64(const char *text, uint64_t *out, struct value_error *error)
{
    const char *end = text;
    uint64_t value;
    bool fits = parse_digits(&end, &value), whole = end != text && *end == 0;

    if (whole && !fits)
        return reject_text(error, "at most 18446744073709551615", "is too large for 64 bits");
    if (whole && leading_zero(text))
        return reject_leading_zero(text, error);
    if (whole) {
        *out = value;
        return true;
    }
    if (*text == '-' && isdigit((unsigned char)text[1]) &&
        text[1 + strspn(text + 1, "0123456789")] == 0)
        return reject_text(error, "", "is negative");
    reject_text(error, "", "is not a whole number");
    suggest_number(text, error);
    return false;
}

/* Parses a real number; 50% is 0.5. */
static bool value_real(const char *text, double *out, struct value_error *error)
{
    const char *s = text + (*text == '-' || *text == '+');
    size_t whole = strspn(s, "0123456789"), fraction = 0;
    double value;

    s += whole;
    if (*s == '.') {
        fraction = strspn(s + 1, "0123456789");
        s += 1 + fraction;
    }
    if (whole + fraction != 0 && (*s == 'e' || *s == 'E')) {
        s += 1 + (s[1] == '-' || s[1] == '+');
        s += strspn(s, "0123456789");
        if (!isdigit((unsigned char)s[-1]))
            return reject_text(error, "", "is not a number");
    }
    if (whole + fraction == 0 || (*s != 0 && strcmp(s, "%") != 0))
        return reject_text(error, "", "is not a number");
    value = strtod(text, NULL) / (*s == '%' ? 100 : 1);
    if (!isfinite(value))
        return reject_text(error, "", "is too large");
    *out = value;
    return true;
}

static bool value_bool(const char *text, bool *out, struct value_error *error)
{
    static const char *const other[][2] = {
        {"yes", "true"}, {"on", "true"},   {"y", "true"},  {"1", "true"},  {"true", "true"},
        {"no", "false"}, {"off", "false"}, {"n", "false"}, {"0", "false"}, {"false", "false"},
    };

    if (strcmp(text, "true") == 0 || strcmp(text, "false") == 0) {
        *out = *text == 't';
        return true;
    }
    for (size_t i = 0; i < sizeof(other) / sizeof(other[0]); i++) {
        if (strcasecmp(text, other[i][0]) == 0) {
            char hint[sizeof(error->hint)];

            snprintf(hint, sizeof(hint), "write %s", other[i][1]);
            return reject_text(error, hint, "is not true or false");
        }
    }
    return reject_text(error, "", "is not true or false");
}

/* Computes value = digits[.digits] * factor; returns false if the result is not whole. */
static bool scale_number(uint64_t whole, const char *fraction, size_t n_fraction, uint64_t factor,
                         bool bytes, struct value_error *error, uint64_t *out)
{
    uint64_t parts = 0, of = 1, value;

    if (n_fraction > 6)
        return reject_text(error, "", "has more than 6 digits behind the point");
    for (size_t i = 0; i < n_fraction; i++) {
        parts = parts * 10 + (uint64_t)(fraction[i] - '0');
        of *= 10;
    }
    if (parts * factor % of != 0)
        return reject_text(error, bytes ? "give a whole number of B" : "give a whole number of ns",
                           "is not a whole number of %s", bytes ? "bytes" : "nanoseconds");
    if (__builtin_mul_overflow(whole, factor, &value) ||
        __builtin_add_overflow(value, parts * factor / of, &value))
        return reject_text(error, "", "is too large for 64 bits");
    *out = value;
    return true;
}

static bool scaled(const char *text, const struct unit *units, const char *is_not,
                   struct value_error *error, uint64_t *out)
{
    const char *s = text, *fraction;
    uint64_t whole;
    size_t n_fraction = 0;

    if (*text == '-' && isdigit((unsigned char)text[1]))
        return reject_text(error, "", "is negative");
    if (!isdigit((unsigned char)*text))
        return reject_text(error, "", "is not %s", is_not);
    if (leading_zero(text))
        return reject_leading_zero(text, error);
    if (!parse_digits(&s, &whole))
        return reject_text(error, "", "is too large for 64 bits");
    fraction = s;
    if (*s == '.') {
        fraction = s + 1;
        n_fraction = strspn(fraction, "0123456789");
        s = fraction + n_fraction;
        if (n_fraction == 0)
            return reject_text(error, "", "is not %s", is_not);
    }
    for (; *s == ' '; s++)
        ;
    if (whole == 0 && n_fraction == 0 && *s == 0) { /* zero needs no unit */
        *out = 0;
        return true;
    }
    for (const struct unit *unit = units; unit->name != NULL; unit++)
        if (strcmp(unit->name, s) == 0)
            return scale_number(whole, fraction, n_fraction, unit->factor, units == byte_units,
                                error, out);
    if (*s == 0)
        return reject_text(error, "add a unit: ns, us, ms or s", "has no unit");
    return reject_text(error, units == time_units ? "units: ns, us, ms, s" : "units: KiB, MiB, GiB",
                       "has the unit '%.16s', which is unknown", s);
}

bool value_duration(const char *text, uint64_t *out, struct value_error *error)
{
    return scaled(text, time_units, "a duration", error, out);
}

static char *unscaled(char *buf, size_t room, uint64_t value, const struct unit *units)
{
    while (value != 0 && (!units->shown || value % units->factor != 0 || value < units->factor))
        units++;
    snprintf(buf, room, "%" PRIu64 "%s", value / units->factor, value == 0 ? "" : units->name);
    return buf;
}

char *value_duration_text(char *buf, size_t room, uint64_t ns)
{
    return unscaled(buf, room, ns, time_units);
}

/* ---- options ---- */

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

char *value_real_text(char *buf, size_t room, double value)
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

bool option_is_number(const struct epa_option *option)
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
    if (!option_is_number(option) || (option->min == 0 && option->max == 0))
        return;
    text_add(out, "%s%s", before, option->max == 0 ? "at least " : "");
    option_number_text(option, option->min, out);
    if (option->max != 0) {
        text_add(out, " to ");
        option_number_text(option, option->max, out);
    }
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
    const struct epa_choice *named = option->type == EPA_OPTION_U32 ? option->choices : NULL;
    char buf[64];

    while (named != NULL && named->name != NULL && (uint32_t)named->value != value)
        named++;
    if (named != NULL && named->name != NULL)
        text_add(out, "%s", named->name);
    else if (option->type == EPA_OPTION_BYTES)
        text_add(out, "%s", unscaled(buf, sizeof(buf), value, byte_units));
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

bool option_is_bounded(const struct epa_option *real)
{
    return real->least != 0.0 || real->most != 0.0;
}

/* ---- reading ---- */

/* Reports the error, with the type and the range as a hint. */
static bool reject_option_value(const struct epa_option *option, struct value_error *error,
                                const char *what)
{
    text_auto range = {0};

    option_range(option, ", ", &range);
    snprintf(error->what, sizeof(error->what), "%s", what);
    for (const struct epa_choice *c = option->choices; c != NULL && c->name != NULL; c++)
        text_add(&range, ", or %s", c->name);
    snprintf(error->hint, sizeof(error->hint), "expected %s%s", option_type(option),
             range.bytes == 0 ? "" : range.data);
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
        good = scaled(text, byte_units, "a size", error, &number);
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
    text_auto all = {0};
    char hint[NEAREST_ROOM];

    for (const struct epa_choice *c = option->choices; c->name != NULL; c++) {
        if (strcmp(c->name, text) == 0) {
            *out = c->value;
            return true;
        }
        text_add(&all, "%s%s", all.bytes == 0 ? "one of " : ", ", c->name);
        nearest_try(&nearest, c->name);
    }
    snprintf(error->what, sizeof(error->what), "is not a choice");
    snprintf(error->hint, sizeof(error->hint), "%s", nearest_hint(&nearest, hint, all.data));
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
    char what[sizeof(error->what)];

    *error = (struct value_error){"", ""};
    if (parse_value(option, text, out, error))
        return true;
    memcpy(what, error->what, sizeof(what));
    if (error->hint[0] == 0)
        reject_option_value(option, error, what);
    return false;
}

/* One option being read, for the functions below. */
struct reading {
    const struct epa_option *option;
    const char *key;
    struct arena *arena;
    struct diag *diag;
};

/* Reports an error. `better` is the suggestion; if it is "", the type and range are. */
__attribute__((format(printf, 4, 5))) static bool
reject_node(const struct reading *r, struct node *value, const char *better, const char *fmt, ...)
{
    struct value_error error;
    char what[256];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    reject_option_value(r->option, &error, "");
    value->refused = true;
    diag_error(r->diag, &value->location, *better != 0 ? better : error.hint, "%s: %s", r->key,
               what);
    if (value->variables != NULL)
        diag_note(r->diag, &value->location, "it is from the environment: %s", value->variables);
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

/* Returns true for a scalar with contents; numbers and booleans must not be quoted. */
static bool is_scalar(const struct reading *r, struct node *value)
{
    /* Accepts numbers in quotes, since JSON writes sizes and durations as strings: so JSON is a
     * valid experiment. */
    bool quotes = r->option->type == EPA_OPTION_STRING || r->option->type == EPA_OPTION_CHOICE ||
                  r->option->type == EPA_OPTION_DURATION || r->option->type == EPA_OPTION_BYTES ||
                  (value->kind == NODE_SCALAR && is_text_in_json(r->option, value->text));

    if (value->refused)
        return false;
    if (value->kind != NODE_SCALAR)
        return reject_node(r, value, "", "a single value is expected, this is a %s",
                           value->kind == NODE_MAP ? "map" : "list");
    if (*value->text == 0 && !value->quoted)
        return reject_node(r, value, "", "no value");
    if (value->quoted && !quotes && value->variables == NULL)
        return reject_node(r, value, "remove the quotes", "'%.40s' in quotes is a string",
                           value->text);
    return true;
}

static void read_scalar(const struct reading *r, struct node *value, void *out)
{
    struct value_error error = {"", ""};

    if (!is_scalar(r, value))
        return;
    if (!option_parse(r->option, value->text, out, &error))
        reject_node(r, value, error.hint, "'%.40s' %s", value->text, error.what);
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
        reject_node(r, value, "", "a list is expected, this is a %s",
                    value->kind == NODE_MAP ? "map" : "single value");
        return;
    }
    item = arena_alloc(r->arena, (value->n + 1) * sizeof(*item));
    for (uint32_t i = 0; i < value->n; i++) {
        struct node *node = value->item[i];
        uint64_t number = 0;

        error = (struct value_error){"", ""};
        if (is_scalar(r, node) && !parse_number(r->option, node->text, &number, &error))
            reject_node(r, node, error.hint, "'%.40s' %s", node->text, error.what);
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

static void reject_unknown_key(const struct epa_options *options, const char *section,
                               const char *own, struct node *key, struct diag *diag)
{
    struct nearest nearest = {.want = key->text};
    text_auto all = {0};
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
            reject_unknown_key(options, section, own, map->key[i], diag);
        else
            option_read(option, arena_printf(arena, "%s.%s", section, option->name), map->item[i],
                        arena, diag, out);
    }
}
