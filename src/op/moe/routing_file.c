/* Files of routing and hidden states: read whole, checked once. A file must be regular, so
 * that a pipe cannot hold the program up, and its size bounds all memory taken for it. */
#include "op/moe/routing.h"

#include <errno.h>
#include <fcntl.h>
#include <jansson.h>
#include <math.h>
#include <stdarg.h>
#include <stdbool.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"

static const uint64_t file_bytes_max = UINT64_C(16) << 30;

void routing_even_weights(const int32_t *expert, uint32_t topk, float *weight)
{
    uint32_t kept = 0;

    for (uint32_t k = 0; k < topk; k++)
        kept += expert[k] >= 0;
    for (uint32_t k = 0; k < topk; k++)
        weight[k] = expert[k] >= 0 ? 1.0f / (float)kept : 0;
}

uint32_t routing_bad_choice(const int64_t *id, const struct routing_shape *shape, uint32_t *twice)
{
    *twice = shape->topk;
    for (uint32_t k = 0; k < shape->topk; k++) {
        if (id[k] < -1 || id[k] >= (int64_t)shape->experts)
            return k;
        for (uint32_t j = 0; j < k && id[k] >= 0; j++)
            if (id[j] == id[k]) {
                *twice = j;
                return k;
            }
    }
    return shape->topk;
}

/* A little-endian integer of 1, 2, 4 or 8 bytes. */
static int64_t integer_at(const unsigned char *p, const struct npy *npy)
{
    uint32_t unused = 64 - 8 * npy->item_bytes;
    uint64_t v = 0;

    for (uint32_t i = 0; i < npy->item_bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    if (npy->kind == 'i') /* the sign goes up and comes down again */
        return (int64_t)(v << unused) >> unused;
    return v > INT64_MAX ? INT64_MAX : (int64_t)v;
}

/* Which of `layers` to take. */
static enum epa_status npy_layer(const char *name, const struct routing_shape *shape,
                                 uint64_t layers, uint64_t *out, struct epa_error *err)
{
    if (shape->layer == UINT32_MAX && layers > 1)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: has %llu layers; say which: routing.layer from 0 to %llu", name,
                        (unsigned long long)layers, (unsigned long long)layers - 1);
    *out = shape->layer == UINT32_MAX ? 0 : shape->layer;
    if (*out >= layers)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: routing.layer is %u, the file has %llu layers, from 0", name,
                        shape->layer, (unsigned long long)layers);
    return EPA_OK;
}

static enum epa_status npy_routing_shape(const char *name, const struct npy *npy,
                                         const struct routing_shape *shape, uint64_t *layers,
                                         struct epa_error *err)
{
    uint64_t topk = npy->shape[npy->dimensions - 1];

    if (npy->kind == 'f')
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: floats, where routing is integers: expert numbers as uint8, "
                        "int16, int32 or int64",
                        name);
    if (npy->dimensions < 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: one dimension; routing is [tokens, topk] or [tokens, layers, "
                        "topk]",
                        name);
    if (topk != shape->topk)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %llu choices for each token, moe.topk is %u: set moe.topk to "
                        "%llu",
                        name, (unsigned long long)topk, shape->topk, (unsigned long long)topk);
    if (npy->shape[0] >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: more than 2^32 tokens", name);
    *layers = npy->dimensions == 3 ? npy->shape[1] : 1;
    return EPA_OK;
}

static enum epa_status bad_npy_choice(const char *name, const struct routing_shape *shape,
                                      size_t offset, uint64_t token, uint32_t k, int64_t id,
                                      uint32_t twice, struct epa_error *err)
{
    if (twice < shape->topk)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: offset %zu: token %llu wants expert %lld twice, as choices %u "
                        "and %u",
                        name, offset, (unsigned long long)token, (long long)id, twice, k);
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s: offset %zu: choice %u of token %llu is expert %lld; moe.experts is "
                    "%u, so 0 to %u, or -1 for a dropped choice",
                    name, offset, k, (unsigned long long)token, (long long)id, shape->experts,
                    shape->experts - 1);
}

static enum epa_status table_alloc(const char *name, uint64_t tokens, uint32_t topk,
                                   struct routing_table *out, struct epa_error *err)
{
    out->tokens = tokens;
    out->expert = calloc(tokens, (size_t)topk * sizeof(*out->expert));
    out->weight = calloc(tokens, (size_t)topk * sizeof(*out->weight));
    if (out->expert != NULL && out->weight != NULL)
        return EPA_OK;
    free(out->expert);
    free(out->weight);
    return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for the choices of %llu tokens", name,
                    (unsigned long long)tokens);
}

/* Fills the table from one layer of the array. `id` has room for topk. */
static enum epa_status npy_rows(const char *name, const unsigned char *data, const struct npy *npy,
                                const struct routing_shape *shape, uint64_t layers, uint64_t layer,
                                int64_t *id, struct routing_table *table, struct epa_error *err)
{
    uint32_t topk = shape->topk, bad, twice;

    for (uint64_t t = 0; t < table->tokens; t++) {
        size_t at = npy->offset + (t * layers + layer) * topk * npy->item_bytes;
        int32_t *expert = table->expert + t * topk;

        for (uint32_t k = 0; k < topk; k++) {
            id[k] = integer_at(data + at + (size_t)k * npy->item_bytes, npy);
            expert[k] = (int32_t)id[k];
        }
        bad = routing_bad_choice(id, shape, &twice);
        if (bad < topk)
            return bad_npy_choice(name, shape, at + (size_t)bad * npy->item_bytes, t, bad, id[bad],
                                  twice, err);
        routing_even_weights(expert, topk, table->weight + t * topk);
    }
    return EPA_OK;
}

enum epa_status routing_parse_npy(const char *name, const void *data, size_t bytes,
                                  const struct routing_shape *shape, struct routing_table *out,
                                  struct epa_error *err)
{
    struct routing_table table = {0};
    uint64_t layers = 0, layer = 0;
    struct npy npy;
    int64_t *id;
    enum epa_status status = npy_parse(name, data, bytes, &npy, err);

    if (status == EPA_OK)
        status = npy_routing_shape(name, &npy, shape, &layers, err);
    if (status == EPA_OK)
        status = npy_layer(name, shape, layers, &layer, err);
    if (status == EPA_OK)
        status = table_alloc(name, npy.shape[0], shape->topk, &table, err);
    if (status != EPA_OK)
        return status;
    id = calloc(shape->topk, sizeof(*id));
    status = id == NULL ? epa_fail(err, EPA_ERR_NOMEM, "%s: no memory", name)
                        : npy_rows(name, data, &npy, shape, layers, layer, id, &table, err);
    free(id);
    if (status != EPA_OK) {
        free(table.expert);
        free(table.weight);
        return status;
    }
    *out = table;
    return EPA_OK;
}

static float float_at(const unsigned char *p, uint32_t item_bytes)
{
    uint32_t low = (uint32_t)p[0] | (uint32_t)p[1] << 8;

    if (item_bytes == 2)
        return float_of_f16((uint16_t)low);
    return float_of_bits(low | (uint32_t)p[2] << 16 | (uint32_t)p[3] << 24);
}

static enum epa_status hidden_shape(const char *name, const struct npy *npy, uint32_t hidden,
                                    struct epa_error *err)
{
    if (npy->kind != 'f' || npy->item_bytes > 4)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: hidden states are float16 or float32; this is %s of %u bytes", name,
                        npy->kind == 'f' ? "floats" : "integers", npy->item_bytes);
    if (npy->dimensions != 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: %u dimensions; hidden states are [tokens, hidden]", name,
                        npy->dimensions);
    if (npy->shape[1] != hidden)
        return epa_fail(
            err, EPA_ERR_CONFIG, "%s: rows of %llu, moe.hidden is %u: set moe.hidden to %llu", name,
            (unsigned long long)npy->shape[1], hidden, (unsigned long long)npy->shape[1]);
    if (npy->shape[0] >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: more than 2^32 tokens", name);
    return EPA_OK;
}

enum epa_status hidden_parse_npy(const char *name, const void *data, size_t bytes, uint32_t hidden,
                                 bool f16, struct hidden_table *out, struct epa_error *err)
{
    /* Sums of larger ones overflow in bf16, and then right and wrong look the same. In f16
     * whatever is a number there can be summed. */
    float most = f16 ? 65504.0f : 1e30f;
    struct npy npy;
    uint16_t *x;
    enum epa_status status = npy_parse(name, data, bytes, &npy, err);

    if (status == EPA_OK)
        status = hidden_shape(name, &npy, hidden, err);
    if (status != EPA_OK)
        return status;
    x = malloc(npy.items * sizeof(*x));
    if (x == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %llu values", name,
                        (unsigned long long)npy.items);
    for (uint64_t i = 0; i < npy.items; i++) {
        size_t at = npy.offset + i * npy.item_bytes;
        float v = float_at((const unsigned char *)data + at, npy.item_bytes);

        if (!(fabsf(v) <= most)) {
            free(x);
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: offset %zu: channel %llu of token %llu is %g; values up to "
                            "%.6g can be checked in moe.dtype: %s",
                            name, at, (unsigned long long)(i % hidden),
                            (unsigned long long)(i / hidden), (double)v, (double)most,
                            f16 ? "f16" : "bf16");
        }
        x[i] = word_of_float(f16, v);
    }
    *out = (struct hidden_table){.tokens = npy.shape[0], .x = x};
    return EPA_OK;
}

static enum epa_status fill_from(int fd, const char *path, char *data, size_t bytes,
                                 struct epa_error *err)
{
    size_t done = 0;

    while (done < bytes) {
        ssize_t n = read(fd, data + done, bytes - done);

        if (n < 0 && errno == EINTR)
            continue;
        if (n < 0)
            return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
        if (n == 0)
            return epa_fail(err, EPA_ERR_SYSTEM, "%s: became shorter while it was read", path);
        done += (size_t)n;
    }
    return EPA_OK;
}

/* *out is malloc'ed and has *bytes, at least 1. */
static enum epa_status read_open_file(int fd, const char *path, char **out, size_t *bytes,
                                      struct epa_error *err)
{
    enum epa_status status;
    struct stat st;
    char *data;

    if (fstat(fd, &st) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "%s: %s", path, strerror(errno));
    if (!S_ISREG(st.st_mode))
        return epa_fail(err, EPA_ERR_CONFIG, "%s: is not a regular file", path);
    if (st.st_size == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s:1:1: the file is empty", path);
    if ((uint64_t)st.st_size > file_bytes_max)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: has %lld bytes; up to 16 GiB are read", path,
                        (long long)st.st_size);
    data = malloc((size_t)st.st_size);
    if (data == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %lld bytes", path,
                        (long long)st.st_size);
    status = fill_from(fd, path, data, (size_t)st.st_size, err);
    if (status != EPA_OK) {
        free(data);
        return status;
    }
    *out = data;
    *bytes = (size_t)st.st_size;
    return EPA_OK;
}

static enum epa_status read_all(const char *path, char **out, size_t *bytes, struct epa_error *err)
{
    /* Without O_NONBLOCK a pipe that nobody writes to would not open. */
    int fd = open(path, O_RDONLY | O_CLOEXEC | O_NONBLOCK);
    enum epa_status status;

    if (fd < 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: %s", path, strerror(errno));
    status = read_open_file(fd, path, out, bytes, err);
    close(fd);
    return status;
}

enum epa_status routing_read(const char *path, const struct routing_shape *shape,
                             struct routing_table *out, struct epa_error *err)
{
    const char *dot = strrchr(path, '.');
    enum epa_status status;
    size_t bytes;
    char *data;

    status = read_all(path, &data, &bytes, err);
    if (status != EPA_OK)
        return status;
    if (npy_is(data, bytes) || (dot != NULL && strcmp(dot, ".npy") == 0))
        status = routing_parse_npy(path, data, bytes, shape, out, err);
    else
        status = routing_parse_jsonl(path, data, bytes, shape, out, err);
    free(data);
    return status;
}

enum epa_status hidden_read(const char *path, uint32_t hidden, bool f16, struct hidden_table *out,
                            struct epa_error *err)
{
    enum epa_status status;
    size_t bytes;
    char *data;

    status = read_all(path, &data, &bytes, err);
    if (status != EPA_OK)
        return status;
    status = hidden_parse_npy(path, data, bytes, hidden, f16, out, err);
    free(data);
    return status;
}

/* ---- routing as JSON lines ---- */

/* Routing as JSON lines, as routing loggers write it: an object a line. One with `topk_ids`
 * is a token (`topk_weights` and `layer` may be there too); one of type "meta" says top_k
 * and num_experts; objects of other types are passed over. jansson reads each line by
 * itself, so a broken line has a number and a column. */

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
