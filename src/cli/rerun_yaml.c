/* JSON has text for what YAML has without quotes (5s, 64KiB): text goes without them wherever
 * it is a plain word, which strings may be, too. */
#include "cli/rerun_yaml.h"

#include <jansson.h>
#include <stdlib.h>
#include <string.h>

#include "config/experiment.h"

static bool is_plain(const char *text)
{
    static const char plain[] = "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ"
                                "0123456789._+/";

    return text[0] != '\0' && text[strspn(text, plain)] == '\0' && strcmp(text, "null") != 0;
}

/* In double quotes YAML has all the escapes that JSON has. */
static bool add_scalar(struct text *out, const json_t *value)
{
    const char *text = json_string_value(value);
    char *dump;

    if (text != NULL && is_plain(text)) {
        text_add(out, "%s", text);
        return true;
    }
    dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT | JSON_REAL_PRECISION(15));
    if (dump != NULL)
        text_add(out, "%s", dump);
    free(dump);
    return dump != NULL;
}

static bool add_map(struct text *out, const json_t *map, int indent)
{
    const char *key;
    json_t *value;
    bool good = true;

    json_object_foreach((json_t *)map, key, value)
    {
        if (strcmp(key, "version") == 0)
            continue;
        text_add(out, "%*s%s: ", indent, "", key);
        if (json_is_object(value)) {
            text_add(out, "\n");
            good = good && add_map(out, value, indent + 2);
            continue;
        }
        good = good && add_scalar(out, value);
        text_add(out, "\n");
    }
    return good;
}

/* Labels are keys, which differ. */
static void add_label(struct text *out, const struct results *results, uint32_t i)
{
    json_t *label;
    struct text name = {0};
    uint32_t before = 0;

    for (uint32_t k = 0; k < i; k++)
        before += strcmp(results->run[k].label, results->run[i].label) == 0;
    text_add(&name, "%s", results->run[i].label);
    if (before > 0)
        text_add(&name, " #%u", before + 1);
    label = json_string(name.data);
    (void)add_scalar(out, label);
    json_decref(label);
    text_free(&name);
}

enum epa_status rerun_yaml(const struct results *results, struct text *out, struct epa_error *err)
{
    bool runs = results->n > 1 || strcmp(results->run[0].label, results->run[0].name) != 0;

    text_add(out, "version: %d\n%s", EXPERIMENT_VERSION, runs ? "runs:\n" : "");
    for (uint32_t i = 0; i < results->n; i++) {
        const json_t *x = json_object_get((const json_t *)results->run[i].json, "experiment");
        json_int_t version = json_integer_value(json_object_get(x, "version"));

        if (!json_is_object(x))
            return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' does not hold its experiment",
                            results->path, results->run[i].label);
        if (version != EXPERIMENT_VERSION)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: '%s' has an experiment of version %lld; this program runs %d",
                            results->path, results->run[i].label, (long long)version,
                            EXPERIMENT_VERSION);
        if (runs) {
            text_add(out, "  ");
            add_label(out, results, i);
            text_add(out, ":\n");
        }
        if (!add_map(out, x, runs ? 4 : 0))
            return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for an experiment", results->path);
    }
    return EPA_OK;
}
