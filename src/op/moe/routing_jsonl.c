/* Routing as JSON lines, as routing loggers write it: an object a line. One with `topk_ids`
 * is a token (`topk_weights` and `layer` may be there too); one of type "meta" says top_k
 * and num_experts; objects of other types are passed over. jansson reads each line by
 * itself, so a broken line has a number and a column. */
#include "op/moe/routing_file.h"

#include <jansson.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>

enum { LINE_BYTES_MAX = 1 << 20 };

static const int64_t no_layer = -1;

struct reader {
    const char *name;
    const struct routing_shape *shape;
    const char *line;
    size_t line_bytes, line_number;
    struct routing_table table;
    uint64_t room;       /* tokens that the table has memory for */
    int64_t first_layer; /* of the first token; INT64_MIN: none yet */
    int64_t *id;         /* [topk] */
    struct epa_error *err;
};

/* The column of item `index` of the list `key`, or of the key, by a scan of the text: good
 * for a caret, and jansson does not keep places. */
static size_t column_of(const struct reader *r, const char *key, size_t index)
{
    size_t n = strlen(key);
    const char *p = memmem(r->line, r->line_bytes, key, n), *end = r->line + r->line_bytes;

    if (p == NULL || p == r->line)
        return 1;
    if (index == SIZE_MAX)
        return (size_t)(p - r->line); /* of its quote */
    while (p < end && *p != '[')
        p++;
    for (p++; p < end && index > 0; p++)
        index -= *p == ',';
    while (p < end && *p == ' ')
        p++;
    return (size_t)(p - r->line) + 1;
}

__attribute__((format(printf, 4, 5))) static enum epa_status
refuse(const struct reader *r, const char *key, size_t index, const char *fmt, ...)
{
    char what[320];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    return epa_fail(r->err, EPA_ERR_CONFIG, "%s:%zu:%zu: %s", r->name, r->line_number,
                    key == NULL ? (size_t)1 : column_of(r, key, index), what);
}

/* A number of the meta line, where it is there, must be that of the experiment. */
static enum epa_status check_meta(const struct reader *r, const json_t *object, const char *key,
                                  const char *option, uint32_t want)
{
    const json_t *value = json_object_get(object, key);

    if (value == NULL || json_is_null(value))
        return EPA_OK;
    if (!json_is_integer(value))
        return refuse(r, key, SIZE_MAX, "%s should be a whole number", key);
    if (json_integer_value(value) == (json_int_t)want)
        return EPA_OK;
    return refuse(r, key, SIZE_MAX, "%s is %lld, %s is %u: set %s to %lld", key,
                  (long long)json_integer_value(value), option, want, option,
                  (long long)json_integer_value(value));
}

/* Whether the token is of the layer asked for. */
static enum epa_status check_layer(struct reader *r, const json_t *object, bool *wanted)
{
    const json_t *value = json_object_get(object, "layer");
    int64_t layer = no_layer;

    if (value != NULL && !json_is_null(value)) {
        layer = json_integer_value(value);
        if (!json_is_integer(value) || layer < 0)
            return refuse(r, "layer", SIZE_MAX,
                          "layer should be a whole number that is not negative");
    }
    if (r->first_layer == INT64_MIN)
        r->first_layer = layer;
    *wanted = true;
    if (r->shape->layer == UINT32_MAX) {
        if (layer != r->first_layer)
            return refuse(r, layer == no_layer ? NULL : "layer", SIZE_MAX,
                          "tokens of several layers; say which with routing.layer");
        return EPA_OK;
    }
    if (layer == no_layer)
        return refuse(r, NULL, 0, "this token has no layer, routing.layer asks for %u",
                      r->shape->layer);
    *wanted = layer == (int64_t)r->shape->layer;
    return EPA_OK;
}

static enum epa_status grow(struct reader *r)
{
    uint64_t room = r->room == 0 ? 1024 : r->room * 2;
    size_t row = r->shape->topk * sizeof(int32_t);
    void *expert, *weight;

    if (r->table.tokens < r->room)
        return EPA_OK;
    expert = realloc(r->table.expert, room * row);
    if (expert != NULL)
        r->table.expert = expert;
    weight = realloc(r->table.weight, room * row);
    if (weight != NULL)
        r->table.weight = weight;
    if (expert == NULL || weight == NULL || room > UINT32_MAX)
        return epa_fail(r->err, EPA_ERR_NOMEM, "%s:%zu: no memory for the choices of %llu tokens",
                        r->name, r->line_number, (unsigned long long)room);
    r->room = room;
    return EPA_OK;
}

static enum epa_status read_ids(struct reader *r, const json_t *list, int32_t *out)
{
    uint32_t topk = r->shape->topk, bad, twice;

    if (!json_is_array(list))
        return refuse(r, "topk_ids", SIZE_MAX, "topk_ids should be a list of expert numbers");
    if (json_array_size(list) != topk && r->table.tokens != 0)
        return refuse(r, "topk_ids", SIZE_MAX, "%zu choices, the tokens above have %u",
                      json_array_size(list), topk);
    if (json_array_size(list) != topk)
        return refuse(r, "topk_ids", SIZE_MAX, "%zu choices, moe.topk is %u: set moe.topk to %zu",
                      json_array_size(list), topk, json_array_size(list));
    for (uint32_t k = 0; k < topk; k++) {
        const json_t *item = json_array_get(list, k);

        if (!json_is_integer(item))
            return refuse(r, "topk_ids", k, "choice %u is not a whole number", k);
        r->id[k] = json_integer_value(item);
        out[k] = (int32_t)r->id[k];
    }
    bad = routing_bad_choice(r->id, r->shape, &twice);
    if (bad == topk)
        return EPA_OK;
    if (twice < topk)
        return refuse(r, "topk_ids", bad, "expert %lld twice, as choices %u and %u",
                      (long long)r->id[bad], twice, bad);
    return refuse(r, "topk_ids", bad,
                  "choice %u is expert %lld; moe.experts is %u, so 0 to %u, or -1 for a "
                  "dropped choice",
                  bad, (long long)r->id[bad], r->shape->experts, r->shape->experts - 1);
}

static enum epa_status read_weights(const struct reader *r, const json_t *list,
                                    const int32_t *expert, float *out)
{
    uint32_t topk = r->shape->topk;

    if (list == NULL || json_is_null(list)) {
        routing_even_weights(expert, topk, out);
        return EPA_OK;
    }
    if (!json_is_array(list) || json_array_size(list) != topk)
        return refuse(r, "topk_weights", SIZE_MAX,
                      "topk_weights should be a list of %u, one for each choice", topk);
    for (uint32_t k = 0; k < topk; k++) {
        const json_t *item = json_array_get(list, k);
        double v = json_number_value(item);

        if (!json_is_number(item))
            return refuse(r, "topk_weights", k, "weight %u is not a number", k);
        if (!(v >= 0 && v <= 1e6)) /* sums stay finite, whatever the hidden states */
            return refuse(r, "topk_weights", k, "weight %u is %g; weights are from 0 to 1e6", k, v);
        out[k] = expert[k] >= 0 ? (float)v : 0;
    }
    return EPA_OK;
}

static enum epa_status read_token(struct reader *r, const json_t *object)
{
    size_t at = (size_t)r->table.tokens * r->shape->topk;
    enum epa_status status;
    bool wanted = false;

    status = check_layer(r, object, &wanted);
    if (status != EPA_OK || !wanted)
        return status;
    status = grow(r);
    if (status == EPA_OK)
        status = read_ids(r, json_object_get(object, "topk_ids"), r->table.expert + at);
    if (status == EPA_OK)
        status = read_weights(r, json_object_get(object, "topk_weights"), r->table.expert + at,
                              r->table.weight + at);
    if (status == EPA_OK)
        r->table.tokens++;
    return status;
}

static enum epa_status read_object(struct reader *r, const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    enum epa_status status;

    if (!json_is_object(object))
        return refuse(r, NULL, 0, "each line should be a JSON object");
    if (json_object_get(object, "topk_ids") != NULL)
        return read_token(r, object);
    if (type != NULL && strcmp(type, "meta") == 0) {
        status = check_meta(r, object, "top_k", "moe.topk", r->shape->topk);
        if (status == EPA_OK)
            status = check_meta(r, object, "num_experts", "moe.experts", r->shape->experts);
        return status;
    }
    if (type == NULL || strcmp(type, "route") == 0)
        return refuse(r, NULL, 0, "this line has no topk_ids");
    return EPA_OK;
}

static bool is_blank(const char *line, size_t bytes)
{
    for (size_t i = 0; i < bytes; i++)
        if (line[i] != ' ' && line[i] != '\t' && line[i] != '\r')
            return false;
    return true;
}

static enum epa_status read_line(struct reader *r)
{
    json_error_t why;
    json_t *object;
    enum epa_status status;

    if (r->line_bytes > LINE_BYTES_MAX)
        return refuse(r, NULL, 0, "a line of %zu bytes; up to 1 MiB are read", r->line_bytes);
    if (is_blank(r->line, r->line_bytes))
        return EPA_OK;
    object = json_loadb(r->line, r->line_bytes, JSON_REJECT_DUPLICATES, &why);
    if (object == NULL)
        return epa_fail(r->err, EPA_ERR_CONFIG, "%s:%zu:%d: no JSON: %s", r->name, r->line_number,
                        why.column > 0 ? why.column : 1, why.text);
    status = read_object(r, object);
    json_decref(object);
    return status;
}

static enum epa_status read_lines(struct reader *r, const char *text, size_t bytes)
{
    const char *end = text + bytes;
    enum epa_status status = EPA_OK;

    for (const char *p = text; p < end && status == EPA_OK; p += r->line_bytes + 1) {
        const char *stop = memchr(p, '\n', (size_t)(end - p));

        r->line = p;
        r->line_bytes = (size_t)((stop != NULL ? stop : end) - p);
        r->line_number++;
        status = read_line(r);
    }
    if (status != EPA_OK || r->table.tokens != 0)
        return status;
    if (r->first_layer >= 0 && r->shape->layer != UINT32_MAX)
        return epa_fail(r->err, EPA_ERR_CONFIG,
                        "%s: no token of layer %u; the first one is of layer %lld", r->name,
                        r->shape->layer, (long long)r->first_layer);
    return epa_fail(r->err, EPA_ERR_CONFIG,
                    "%s:%zu:1: the file ends without a token: a line with topk_ids", r->name,
                    r->line_number);
}

enum epa_status routing_parse_jsonl(const char *name, const char *text, size_t bytes,
                                    const struct routing_shape *shape, struct routing_table *out,
                                    struct epa_error *err)
{
    struct reader r = {.name = name, .shape = shape, .first_layer = INT64_MIN, .err = err};
    enum epa_status status;

    r.id = calloc(shape->topk, sizeof(*r.id));
    status = r.id == NULL ? epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name)
                          : read_lines(&r, text, bytes);
    free(r.id);
    if (status != EPA_OK) {
        free(r.table.expert);
        free(r.table.weight);
        return status;
    }
    *out = r.table;
    return EPA_OK;
}
