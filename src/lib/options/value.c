/* Texts of numbers, sizes, durations and booleans, and the values that they denote. */
#include "options/value.h"

#include <ctype.h>
#include <inttypes.h>
#include <locale.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <strings.h>

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

/* Returns the number at the begin of a text. strtod() would read "0.5" as 0 if the application has
 * chosen a locale with a decimal comma. The locale "C" of the C library is static. */
static double read_number(const char *text, char **end)
{
    locale_t plain = newlocale(LC_ALL_MASK, "C", (locale_t)0);
    double value = plain != (locale_t)0 ? strtod_l(text, end, plain) : strtod(text, end);

    if (plain != (locale_t)0)
        freelocale(plain);
    return value;
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
    value = read_number(plain, &end);
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

bool value_real(const char *text, double *out, struct value_error *error)
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
    value = read_number(text, NULL) / (*s == '%' ? 100 : 1);
    if (!isfinite(value))
        return reject_text(error, "", "is too large");
    *out = value;
    return true;
}

bool value_bool(const char *text, bool *out, struct value_error *error)
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

bool value_bytes(const char *text, uint64_t *out, struct value_error *error)
{
    return scaled(text, byte_units, "a size", error, out);
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

char *value_bytes_text(char *buf, size_t room, uint64_t bytes)
{
    return unscaled(buf, room, bytes, byte_units);
}

char *value_duration_text(char *buf, size_t room, uint64_t ns)
{
    return unscaled(buf, room, ns, time_units);
}

/* Replaces the decimal point of the application's locale, which may have several bytes. */
static void use_decimal_point(char *number)
{
    char *point = number + strspn(number, "-0123456789");
    size_t bytes = strcspn(point, "0123456789");

    if (*point == '\0' || *point == 'e' || *point == '.' || *point == 'i' || *point == 'n')
        return;
    memmove(point + 1, point + bytes, strlen(point + bytes) + 1);
    *point = '.';
}

char *value_real_text(char *buf, size_t room, double value)
{
    for (int precision = 1; precision <= 17; precision++) {
        snprintf(buf, room, "%.*g", precision, value);
        use_decimal_point(buf);
        bool small = value == 0.0 || (fabs(value) >= 1e-4 && fabs(value) < 1e15);

        if (read_number(buf, NULL) == value && (!small || strchr(buf, 'e') == NULL))
            break;
    }
    if (strpbrk(buf, ".e") == NULL && strlen(buf) + 2 < room)
        strcat(buf, ".0");
    return buf;
}
