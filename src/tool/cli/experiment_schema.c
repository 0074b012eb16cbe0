/* `epa2a config schema`: the JSON Schema (draft-07) of an experiment's file, for editors. Each option
 * is a definition ("bench.warmup", "algorithm.ll_v2.dispatch_dtype"); the sections, the runs and the
 * matrix refer to it. The schema accepts values that JSON Schema cannot check: ranges of sizes with
 * units, and combinations of options. */
#include "cli/experiment_schema.h"

#include <stdio.h>
#include <string.h>

#include "base/json.h"
#include "base/memory.h"
#include "base/text.h"
#include "cli/topics.h"
#include "config/experiment.h"
#include "config/option_text.h"
#include "options/option.h"
#include "experiment/batch_keys.h"
#include "op/operations.h"

/* ---- a schema for each type of option; a number may also be a string with ${NAME} ---- */

#define REAL_PATTERN "([0-9]+\\.?[0-9]*|\\.[0-9]+)([eE][-+]?[0-9]+)?"
#define NUMBER_PATTERN "(0|[1-9][0-9]*)(\\.[0-9]{1,6})? *"

/* Matches ${NAME}, which the reader replaces by an environment variable; $${ is no variable. */
#define SCHEMA_VARIABLE "(^|[^$])[$]\\{"

/* Returns the schema of a string that matches a pattern. */
static json_t *string_schema(const char *pattern)
{
    return json_pack("{s:s, s:s}", "type", "string", "pattern", pattern);
}

static json_t *any_of_schema(json_t *a, json_t *b)
{
    return json_pack("{s:[o, o]}", "anyOf", a, b);
}

/* Adds a word and its help to an enum. Takes the reference to `word`. */
static void add_enum_word(json_t *words, json_t *word, const char *help)
{
    json_array_append_new(json_object_get(words, "enum"), word);
    json_array_append_new(json_object_get(words, "enumDescriptions"),
                          json_string(help != NULL ? help : ""));
}

static json_t *empty_enum(void)
{
    return json_pack("{s:[], s:[]}", "enum", "enumDescriptions");
}

static json_t *integer_schema(const struct epa_option *o)
{
    text_auto pattern = {0};
    json_t *schema;

    for (const struct epa_choice *c = o->choices; c != NULL && c->name != NULL; c++)
        text_add(&pattern, "^%s$|", c->name);
    if (o->type == EPA_OPTION_U64 && option_greatest(o) > INT64_MAX) /* values of 2^63 or more */
        text_add(&pattern, "^(9[2-9][0-9]{17}|1[0-8][0-9]{18})$|");
    text_add(&pattern, "%s", SCHEMA_VARIABLE);
    schema = json_pack("{s:[s, s], s:s}", "type", "integer", "string", "pattern", pattern.data);
    json_object_set_new(schema, "minimum", json_integer((json_int_t)o->min));
    if (option_greatest(o) <= INT64_MAX)
        json_object_set_new(schema, "maximum", json_integer((json_int_t)option_greatest(o)));
    else
        json_object_set_new(schema, "exclusiveMaximum", json_real(0x1p64));
    return schema;
}

static json_t *real_schema(const struct epa_option *o)
{
    json_t *schema = json_pack("{s:s}", "type", "number");

    if (option_is_bounded(o)) {
        json_object_set_new(schema, "minimum", json_real(o->least));
        json_object_set_new(schema, "maximum", json_real(o->most));
    }
    return any_of_schema(schema, string_schema("^[-+]?" REAL_PATTERN "%$|" SCHEMA_VARIABLE));
}

static json_t *choice_schema(const struct epa_option *o)
{
    json_t *words = empty_enum();

    for (const struct epa_choice *c = o->choices; c->name != NULL; c++) {
        json_t *number = json_loads(c->name, JSON_DECODE_ANY, NULL);

        add_enum_word(words, json_string(c->name), c->help);
        if (number != NULL) /* YAML reads 256 without quotes as a number */
            add_enum_word(words, number, c->help);
    }
    return any_of_schema(words, string_schema(SCHEMA_VARIABLE));
}

static json_t *type_schema(const struct epa_option *o)
{
    json_t *text;

    switch (o->type) {
    case EPA_OPTION_BOOL:
        return json_pack("{s:[s, s], s:s}", "type", "boolean", "string", "pattern",
                         SCHEMA_VARIABLE);
    case EPA_OPTION_U32:
    case EPA_OPTION_U64:
        return integer_schema(o);
    case EPA_OPTION_REAL:
        return real_schema(o);
    case EPA_OPTION_BYTES:
        return any_of_schema(integer_schema(o),
                             string_schema("^" NUMBER_PATTERN "([TGMK]iB|[TGMK]|B)$"));
    case EPA_OPTION_DURATION:
        text = string_schema("^" NUMBER_PATTERN "(s|ms|us|ns)$|" SCHEMA_VARIABLE);
        return o->min != 0 ? text : any_of_schema(json_pack("{s:i}", "const", 0), text);
    case EPA_OPTION_STRING:
        break;
    case EPA_OPTION_CHOICE:
        return choice_schema(o);
    case EPA_OPTION_U32_LIST:
        return json_pack("{s:s, s:o}", "type", "array", "items", integer_schema(o));
    }
    return json_pack("{s:[s, s, s, s]}", "type", "string", "number", "boolean", "null");
}

/* Returns the default with its YAML type: a number if YAML reads one, such as a size without a
 * unit. */
static json_t *default_json(const struct epa_option *o, const void *defaults)
{
    text_auto value = {0};
    json_t *json = NULL;

    option_text(o, defaults, &value);
    if (o->type != EPA_OPTION_STRING && o->type != EPA_OPTION_CHOICE)
        json = json_loads(value.data, JSON_DECODE_ANY, NULL);
    if (json == NULL)
        json = json_string(value.data);
    return json;
}

/* Returns the schema of an option with its help and its default in the struct `defaults`. */
static json_t *schema_of_option(const struct epa_option *o, const void *defaults)
{
    json_t *schema = type_schema(o);
    char range[OPTION_RANGE_ROOM];
    text_auto help = {0};

    option_range(o, " (", range, sizeof(range));
    text_add(&help, "%s%s%s", o->help, range, *range != '\0' ? ")" : "");
    json_object_set_new(schema, "description", json_string(help.data));
    if (option_is_set(o, defaults))
        json_object_set_new(schema, "default", default_json(o, defaults));
    return schema;
}

struct schema {
    json_t *definitions;
    const struct registry_entry *entry;
    uint32_t n;
    struct arena *arena; /* memory of names */
};

/* ---- small parts ---- */

static json_t *reference_to(const char *name)
{
    return json_pack("{s:s+}", "$ref", "#/definitions/", name);
}

static json_t *add_definition(struct schema *s, json_t *what, const char *name)
{
    json_object_set_new(s->definitions, name, what);
    return reference_to(name);
}

/* Returns the schema of a map with these keys, user keys x-..., and no others. */
static json_t *map_schema(json_t *properties, const char *help)
{
    json_t *map = json_pack("{s:s, s:o, s:{s:{}}, s:b}", "type", "object", "properties", properties,
                            "patternProperties", "^x-", "additionalProperties", 0);

    if (help != NULL)
        json_object_set_new(map, "description", json_string(help));
    return map;
}

static json_t *list_schema(json_t *items)
{
    return json_pack("{s:s, s:o, s:i}", "type", "array", "items", items, "minItems", 1);
}

/* ---- options ---- */

/* Defines PREFIX.NAME, or NAME without a prefix, for each option. Returns the properties that refer
 * to them. */
static json_t *properties_of(struct schema *s, const char *prefix, const struct epa_options *of)
{
    json_t *properties = json_object();

    for (const struct epa_option *o = of->table; o != NULL && o->name != NULL; o++)
        json_object_set_new(properties, o->name,
                            add_definition(s, schema_of_option(o, of->defaults),
                                           prefix == NULL
                                               ? o->name
                                               : arena_printf(s->arena, "%s.%s", prefix, o->name)));
    return properties;
}

/* ---- sections ---- */

/* Adds the bounds of rows to `expect`: "dispatch: {p99: 80us}", or "dispatch.p99: 80us". */
static void add_row_bounds(struct schema *s, json_t *map)
{
    json_t *patterns = json_object_get(map, "patternProperties"), *row = json_object();

    for (const struct epa_option *o = expect_figures; o->name != NULL; o++) {
        const char *name = arena_printf(s->arena, "expect.%s", o->name);

        json_object_set_new(row, o->name, reference_to(name));
        json_object_set_new(patterns, arena_printf(s->arena, "[.]%s$", o->name),
                            reference_to(name));
    }
    json_object_set_new(map, "additionalProperties", map_schema(row, "bounds of a row"));
}

static void define_section(struct schema *s, const struct section *section)
{
    json_t *forms = json_array(), *map;
    text_auto help = {0}, operations = {0};

    operation_names(section->ops, &operations);
    text_add(&help, "%s%s%s", section->help, operations.bytes != 0 ? "; for algorithms of " : "",
             operations.bytes != 0 ? operations.data : "");
    map = map_schema(properties_of(s, section->name, &section->options), help.data);
    if (section->options.table == expect_table)
        add_row_bounds(s, map);
    json_array_append_new(forms, map);
    if (section->main != NULL)
        json_array_append_new(
            forms, reference_to(arena_printf(s->arena, "%s.%s", section->name, section->main)));
    if (strcmp(section->name, "tokens") == 0)
        json_array_append_new(forms, reference_to("tokens.per_rank"));
    json_decref(add_definition(s, json_pack("{s:s, s:o}", "description", help.data, "oneOf", forms),
                               section->name));
}

/* Makes the name of the plugin a required key of the map. */
static json_t *require_name(json_t *map, const struct section *section, json_t *name)
{
    json_object_set_new(json_object_get(map, "properties"), section->main, name);
    json_object_set_new(map, "required", json_pack("[s]", section->main));
    return map;
}

/* Returns the schema of an option that names a further plugin: `name`, whose reference is taken, or a
 * map with the options of that plugin. A map without a name is merged with the map of another
 * file. */
static json_t *nested_schema(struct schema *s, const struct section *section, json_t *name)
{
    const char *outer = topics_section(section->kind)->name;
    json_t *forms = json_pack("[o]", name), *all = json_object();

    for (uint32_t i = 0; i < s->n; i++) {
        const struct registry_entry *entry = &s->entry[i];
        json_t *properties;

        if (entry->plugin == NULL || !section_takes(section, entry->plugin))
            continue;
        properties = json_object();
        for (const struct epa_option *o = entry->plugin->options.table;
             o != NULL && o->name != NULL; o++) {
            json_object_set_new(
                properties, o->name,
                reference_to(arena_printf(s->arena, "%s.%s.%s", outer, entry->name, o->name)));
            json_object_set_new(all, o->name,
                                reference_to(arena_printf(s->arena, "%s.%s", outer, o->name)));
        }
        json_array_append_new(forms,
                              require_name(map_schema(properties, entry->plugin->summary), section,
                                           json_pack("{s:s}", "const", entry->name)));
    }
    json_array_append_new(forms, map_schema(all, section->help));
    return json_pack("{s:s, s:o}", "description", section->help, "anyOf", forms);
}

/* Returns the schema of a map with the name and the options of one plugin; any options if the plugin
 * cannot be loaded. Adds the schema of each key to its list in `all`. */
static json_t *named_plugin_schema(struct schema *s, const struct section *section,
                                   const struct registry_entry *entry, json_t *all)
{
    json_t *name = json_pack("{s:s}", "const", entry->name), *properties;

    if (entry->plugin == NULL)
        return json_pack("{s:s, s:{s:o}, s:[s], s:s}", "type", "object", "properties",
                         section->main, name, "required", section->main, "description", entry->why);
    properties = properties_of(s, arena_printf(s->arena, "%s.%s", section->name, entry->name),
                               &entry->plugin->options);
    if (section->nested != NULL &&
        option_find(&entry->plugin->options, section_key(section->nested)) != NULL) {
        const char *own = arena_printf(s->arena, "%s.%s.%s", section->name, entry->name,
                                       section_key(section->nested));

        json_decref(add_definition(
            s, nested_schema(s, section->nested, json_incref(json_object_get(s->definitions, own))),
            own));
    }
    for (struct json_walk it = {properties}; json_next(&it);) {
        if (json_object_get(all, it.key) == NULL)
            json_object_set_new(all, it.key, json_array());
        json_array_append(json_object_get(all, it.key), it.value);
    }
    return require_name(map_schema(properties, entry->plugin->summary), section, name);
}

/* Returns the schema of a map without a plugin name: with the options of `plugin`, or of any plugin
 * if NULL. */
static json_t *unnamed_plugin_schema(struct schema *s, const struct section *section, json_t *all,
                                     const struct epa_plugin *plugin)
{
    json_t *properties = json_object();

    for (const struct epa_option *o = plugin == NULL ? NULL : plugin->options.table;
         o != NULL && o->name != NULL; o++)
        json_object_set_new(
            properties, o->name,
            reference_to(arena_printf(s->arena, "%s.%s.%s", section->name, plugin->name, o->name)));
    for (struct json_walk forms = {plugin == NULL ? all : NULL}; json_next(&forms);)
        json_object_set_new(properties, forms.key, json_pack("{s:O}", "anyOf", forms.value));
    return map_schema(properties, section->help);
}

/* Defines "transport" for a file that is merged with another: any plugin or none. Defines
 * "transport_alone" for a file without a base: a map without a name has the default plugin. */
static void define_plugins(struct schema *s, const struct section *section)
{
    const char *main = arena_printf(s->arena, "%s.%s", section->name, section->main);
    json_t *words = empty_enum(), *forms = json_array(), *alone;
    const struct epa_plugin *usual = NULL;
    json_auto_t *all = json_object();

    for (uint32_t i = 0; i < s->n; i++) {
        const struct registry_entry *entry = &s->entry[i];

        if (entry->kind != section->kind)
            continue;
        usual = strcmp(entry->name, section->chosen) == 0 ? entry->plugin : usual;
        add_enum_word(words, json_string(entry->name),
                      entry->plugin == NULL ? entry->why : entry->plugin->summary);
        json_array_append_new(forms, named_plugin_schema(s, section, entry, all));
    }
    if (strcmp(section->chosen, "auto") == 0) {
        add_enum_word(words, json_string("auto"), section->help);
        json_array_append_new(forms, require_name(unnamed_plugin_schema(s, section, all, NULL),
                                                  section, json_pack("{s:s}", "const", "auto")));
    }
    json_array_append_new(forms, require_name(unnamed_plugin_schema(s, section, all, NULL), section,
                                              string_schema(SCHEMA_VARIABLE)));
    json_array_insert_new(
        forms, 0,
        add_definition(s,
                       json_pack("{s:s, s:s, s:[o, o]}", "description", section->help, "default",
                                 section->chosen, "anyOf", words, string_schema(SCHEMA_VARIABLE)),
                       main));
    for (struct json_walk option = {all}; json_next(&option);)
        json_decref(add_definition(s, json_pack("{s:O}", "anyOf", option.value),
                                   arena_printf(s->arena, "%s.%s", section->name, option.key)));
    alone = json_copy(forms);
    json_array_append_new(forms, unnamed_plugin_schema(s, section, all, NULL));
    json_array_append_new(alone, unnamed_plugin_schema(s, section, all, usual));
    json_decref(add_definition(
        s, json_pack("{s:s, s:o}", "description", section->help, "oneOf", forms), section->name));
    json_decref(
        add_definition(s, json_pack("{s:s, s:o}", "description", section->help, "oneOf", alone),
                       arena_printf(s->arena, "%s_alone", section->name)));
}

/* ---- runs ---- */

/* Returns all keys, including dotted ones such as "bench.warmup". With `lists` each value is a list;
 * a section may be a map of lists. */
static json_t *dotted_keys_schema(const struct schema *s, bool lists)
{
    json_t *properties = json_object();

    for (const struct epa_option *o = experiment_options.table; o->name != NULL; o++)
        json_object_set_new(properties, o->name,
                            lists ? list_schema(reference_to(o->name)) : reference_to(o->name));
    for (const struct section *section = experiment_sections; section->name != NULL; section++)
        json_object_set_new(properties, section->name,
                            lists
                                ? any_of_schema(list_schema(reference_to(section->name)),
                                                json_pack("{s:s, s:{s:s}}", "type", "object",
                                                          "additionalProperties", "type", "array"))
                                : reference_to(section->name));
    for (struct json_walk it = {s->definitions}; json_next(&it);) {
        const char *point = strchr(it.key, '.');
        const struct section *section;

        if (point == NULL || strchr(point + 1, '.') != NULL)
            continue;
        json_object_set_new(properties, it.key,
                            lists ? list_schema(reference_to(it.key)) : reference_to(it.key));
        section = section_find(arena_strndup(s->arena, it.key, (size_t)(point - it.key)));
        if (section != NULL && section->nested != NULL)
            json_object_set_new(properties,
                                arena_printf(s->arena, "%s%s", section->nested->name, point),
                                lists ? list_schema(reference_to(it.key)) : reference_to(it.key));
    }
    return properties;
}

/* Returns the schema of a key that makes runs. A key that is unknown here may have any value. */
static json_t *batch_schema(const struct schema *s, const struct batch_key *key)
{
    json_t *schema = NULL, *properties;

    if (strcmp(key->name, "include") == 0) {
        schema = json_pack("{s:s}", "type", "string");
    } else if (strcmp(key->name, "runs") == 0) {
        properties = dotted_keys_schema(s, false);
        json_object_set_new(properties, "from", json_pack("{s:s}", "type", "string"));
        schema =
            json_pack("{s:s, s:{s:[{s:s}, o]}, s:i}", "type", "object", "additionalProperties",
                      "anyOf", "type", "null", map_schema(properties, NULL), "minProperties", 1);
    } else if (strcmp(key->name, "matrix") == 0) {
        properties = dotted_keys_schema(s, true);
        json_object_set_new(properties, "exclude",
                            list_schema(map_schema(dotted_keys_schema(s, false), NULL)));
        json_object_set_new(properties, "include",
                            list_schema(map_schema(dotted_keys_schema(s, false), NULL)));
        schema = map_schema(properties, NULL);
    } else if (strcmp(key->name, "zip") == 0) {
        schema = map_schema(dotted_keys_schema(s, true), NULL);
    } else if (strcmp(key->name, "repeat") == 0) {
        schema = json_pack("{s:[s, s], s:s, s:i}", "type", "integer", "string", "pattern",
                           SCHEMA_VARIABLE, "minimum", 1);
    } else if (strcmp(key->name, "baseline") == 0) {
        schema = json_pack("{s:s}", "type", "string");
    } else {
        schema = json_object();
    }
    json_object_set_new(schema, "description", json_string(key->help));
    return schema;
}

/* ---- the document ---- */

static json_t *document_schema(struct schema *s)
{
    json_t *properties = properties_of(s, NULL, &experiment_options), *alone = json_object();
    const struct epa_option *version = experiment_options.table;
    json_t *schema;

    json_decref(add_definition(
        s, json_pack("{s:s, s:i}", "description", version->help, "const", EXPERIMENT_VERSION),
        version->name));
    for (const struct section *x = experiment_sections; x->name != NULL; x++) {
        (x->plugin ? define_plugins : define_section)(s, x);
        if (x->plugin)
            json_object_set_new(alone, x->name,
                                reference_to(arena_printf(s->arena, "%s_alone", x->name)));
        json_object_set_new(properties, x->name, reference_to(x->name));
    }
    for (const struct batch_key *key = batch_keys; key->name != NULL; key++)
        json_object_set_new(properties, key->name, batch_schema(s, key));
    schema = map_schema(properties, "An experiment of `epa2a run`, `bench` and `verify`");
    /* A file that includes another, or a model, may leave out required keys. */
    json_object_set_new(
        schema, "if",
        json_pack("{s:[{s:[s]}, {s:[s]}]}", "anyOf", "required", "include", "required", "model"));
    json_object_set_new(schema, "else",
                        json_pack("{s:[s], s:o}", "required", version->name, "properties", alone));
    return schema;
}

void experiment_schema_print(const struct registry_entry *entry, uint32_t n)
{
    struct schema s = {
        .definitions = json_object(), .entry = entry, .n = n, .arena = arena_create()};
    json_auto_t *schema = document_schema(&s), *all = json_object();

    json_object_set_new(all, "$schema", json_string("http://json-schema.org/draft-07/schema#"));
    json_object_set_new(all, "title", json_string("an experiment of epa2a " EPA2A_RELEASE));
    json_object_update(all, schema);
    json_object_set_new(all, "definitions", s.definitions);
    json_dumpf(all, stdout, JSON_INDENT(1) | JSON_REAL_PRECISION(15));
    printf("\n");
    arena_destroy(s.arena);
}
