/* A schema for each type of option. Numbers may be texts with ${NAME} in them too. */
#include "cli/schema_options.h"

#include <string.h>

#include "base/text.h"
#include "config/expect.h"
#include "config/experiment_table.h"
#include "config/options.h"

#define REAL_PATTERN "([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?"
#define NUMBER_PATTERN "(0|[1-9][0-9]*)(\\.[0-9]{1,6})? *"

json_t *schema_of_variable(void)
{
    return json_pack("{s:s, s:s}", "type", "string", "pattern", SCHEMA_VARIABLE);
}

static json_t *whole_number(const struct epa_option *o)
{
    json_t *schema =
        json_pack("{s:[s, s], s:s}", "type", "integer", "string", "pattern", SCHEMA_VARIABLE);

    json_object_set_new(schema, "minimum", json_integer((json_int_t)o->min));
    if (option_greatest(o) <= INT64_MAX)
        json_object_set_new(schema, "maximum", json_integer((json_int_t)option_greatest(o)));
    else
        json_object_set_new(schema, "exclusiveMaximum", json_real(0x1p64));
    return schema;
}

static json_t *real_number(const struct epa_option *o)
{
    json_t *schema = json_pack("{s:s}", "type", "number");

    if (o->least != 0.0 || o->most != 0.0) {
        json_object_set_new(schema, "minimum", json_real(o->least));
        json_object_set_new(schema, "maximum", json_real(o->most));
    }
    return json_pack("{s:[o, {s:s, s:s}]}", "anyOf", schema, "type", "string", "pattern",
                     "^[-+]?" REAL_PATTERN "%$|" SCHEMA_VARIABLE);
}

static json_t *bytes(const struct epa_option *o)
{
    return json_pack("{s:[o, {s:s, s:s}]}", "anyOf", whole_number(o), "type", "string", "pattern",
                     "^" NUMBER_PATTERN "([TGMK]iB|[TGMK]|B)$");
}

static json_t *duration(const struct epa_option *o)
{
    json_t *text = json_pack("{s:s, s:s}", "type", "string", "pattern",
                             "^" NUMBER_PATTERN "(s|ms|us|ns)$|" SCHEMA_VARIABLE);

    return o->min != 0 ? text : json_pack("{s:[{s:i}, o]}", "anyOf", "const", 0, text);
}

static json_t *choice(const struct epa_option *o)
{
    json_t *names = json_array(), *helps = json_array();

    for (const struct epa_choice *c = o->choices; c->name != NULL; c++) {
        const char *help = c->help == NULL ? "" : c->help;
        json_t *number = json_loads(c->name, JSON_DECODE_ANY, NULL);

        json_array_append_new(names, json_string(c->name));
        json_array_append_new(helps, json_string(help));
        if (number == NULL)
            continue;
        json_array_append_new(names, number); /* 256 without quotes is no string */
        json_array_append_new(helps, json_string(help));
    }
    return json_pack("{s:[{s:o, s:o}, o]}", "anyOf", "enum", names, "enumDescriptions", helps,
                     schema_of_variable());
}

/* "dispatch 80us, total 120us": a bound, with or without a row before it, and more of them. */
static json_t *expectations(const struct epa_option *o)
{
    static const char *const bound[] = {[EXPECT_NS] = "(" NUMBER_PATTERN "(s|ms|us|ns)|0)",
                                        [EXPECT_RATE] = "[+]?" REAL_PATTERN,
                                        [EXPECT_SHARE] = "[+]?" REAL_PATTERN "%"};
    enum expect_figure figure = EXPECT_MIN;
    struct text one = {0}, pattern = {0};
    json_t *forms;

    while (strcmp(expect_name[figure], o->name) != 0)
        figure++;
    text_add(&one, " *([A-Za-z][^ ,]* +)?%s *", bound[expect_unit_of(figure)]);
    text_add(&pattern, "^%s(,%s)*$|" SCHEMA_VARIABLE, one.data, one.data);
    forms =
        json_pack("[{s:s, s:s}, {s:s}]", "type", "string", "pattern", pattern.data, "type", "null");
    if (expect_unit_of(figure) == EXPECT_RATE)
        json_array_append_new(
            forms, json_pack("{s:s, s:i, s:f}", "type", "number", "minimum", 0, "maximum", 1e300));
    if (expect_unit_of(figure) == EXPECT_NS)
        json_array_append_new(forms, json_pack("{s:i}", "const", 0));
    text_free(&one);
    text_free(&pattern);
    return json_pack("{s:o}", "anyOf", forms);
}

static json_t *text_schema(const struct epa_option *o)
{
    for (const struct epa_option *e = expect_table; e->name != NULL; e++)
        if (e == o)
            return expectations(o);
    return json_pack("{s:[s, s, s, s]}", "type", "string", "number", "boolean", "null");
}

static json_t *type_of(const struct epa_option *o)
{
    switch (o->type) {
    case EPA_OPTION_BOOL:
        return json_pack("{s:[s, s], s:s}", "type", "boolean", "string", "pattern",
                         SCHEMA_VARIABLE);
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
        return whole_number(o);
    case EPA_OPTION_REAL:
        return real_number(o);
    case EPA_OPTION_BYTES:
        return bytes(o);
    case EPA_OPTION_DURATION:
        return duration(o);
    case EPA_OPTION_STRING:
        break;
    case EPA_OPTION_CHOICE:
        return choice(o);
    case EPA_OPTION_U32_LIST:
        return json_pack("{s:s, s:o}", "type", "array", "items", whole_number(o));
    }
    return text_schema(o);
}

/* As YAML reads it: a number where it is one, such as a size without a unit. */
static json_t *default_of(const struct epa_option *o, const void *defaults)
{
    struct text value = {0};
    json_t *json = NULL;

    option_text(o, defaults, &value);
    if (o->type != EPA_OPTION_STRING && o->type != EPA_OPTION_CHOICE)
        json = json_loads(value.data, JSON_DECODE_ANY, NULL);
    if (json == NULL)
        json = json_string(value.data);
    text_free(&value);
    return json;
}

json_t *schema_of_option(const struct epa_option *o, const void *defaults)
{
    json_t *schema = type_of(o);
    struct text help = {0}, range = {0};

    option_range(o, &range);
    text_add(&help, "%s%s%s%s", o->help, range.bytes == 0 ? "" : " (",
             range.bytes == 0 ? "" : range.data, range.bytes == 0 ? "" : ")");
    json_object_set_new(schema, "description", json_string(help.data));
    if (option_is_set(o, defaults))
        json_object_set_new(schema, "default", default_of(o, defaults));
    text_free(&help);
    text_free(&range);
    return schema;
}
