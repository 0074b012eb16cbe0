/* Files of routing (JSON lines or .npy) and of hidden states (.npy). The program reads a file in
 * parts: the header of a .npy file first, then the rows of the layer that it needs; JSON lines line
 * by line. Only the result takes memory, and its size is known before its memory is allocated.
 *
 * JSON lines have the format of routing loggers, one object per line: an object with `topk_ids` is a token
 * (`topk_weights` and `layer` are optional), an object of type "meta" has top_k and num_experts, and
 * objects of other types are skipped. jansson reads each line separately, so that messages about a broken
 * line give its number and column.
 *
 * A .npy file consists of a magic, a version, the length of the header, the header in the format of numpy
 * ({'descr': '<i4', 'fortran_order': False, 'shape': (128, 8), }), and the items. */
#include "op/moe/routing_file.h"

#include <errno.h>
#include <math.h>
#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "base/dtype.h"
#include "base/file.h"
#include "base/json.h"
#include "base/memory.h"
#include "op/op.h"

enum { NO_LAYER = -1, LINE_BYTES_MAX = 1 << 20 };
enum { NPY_DIMENSIONS = 3, NPY_MAGIC_BYTES = 6, NPY_HEADER_MAX = 16384 };
enum { SKIP_SEEK = 1 << 16 }; /* bytes; a seek is faster than a read of this length */

/* State of reading a file of routing. */
struct reader {
    const char *name;
    struct routing_shape shape; /* a member of 0 is set by the first line or header that has it */
    struct routing_table table;
    uint64_t room; /* capacity of the table in tokens */
    int64_t id[ROUTING_TOPK_MAX];
    struct epa_error *err;
    /* JSON lines: the present line. .npy: line_number is 0, and `offset` is the token's offset. */
    const char *line;
    size_t line_bytes, line_number, offset;
    uint32_t item_bytes;
    int64_t first_layer; /* layer of the first token; INT64_MIN: no token yet */
};

/* ---- suggestions: settings that the experiment accepts ---- */

enum { SUGGESTION = 240 };

/* Returns the user's name of `key`: the key of the experiment, or an option of `routing stats`. */
static const char *name_of(const struct routing_shape *shape, const char *key)
{
    if (shape->advice != NULL)
        return key;
    return strcmp(key, "routing.layer") == 0 ? "--layer"
           : strcmp(key, "moe.experts") == 0 ? "--experts"
                                             : key;
}

/* Writes ": set moe.topk to 8", or the reason why the value is invalid. Returns buf. */
static const char *suggest(const struct routing_shape *shape, const char *key, uint64_t value,
                           char buf[SUGGESTION])
{
    char why[SUGGESTION / 2];

    if (shape->advice == NULL)
        snprintf(buf, SUGGESTION, "%s", "");
    else if (shape->advice->takes(shape->advice->arg, key, value, why, sizeof(why)))
        snprintf(buf, SUGGESTION, ": set %s to %llu", key, (unsigned long long)value);
    else
        snprintf(buf, SUGGESTION, ", and cannot be %llu: %s", (unsigned long long)value, why);
    return buf;
}

/* ---- choices ---- */

/* Returns the column of item `index` of the list `key`, or of the key (SIZE_MAX). Scans the text, since
 * jansson does not keep positions. */
static size_t column_of(const struct reader *r, const char *key, size_t index)
{
    const char *p = memmem(r->line, r->line_bytes, key, strlen(key)),
               *end = r->line + r->line_bytes;

    if (p == NULL || p == r->line)
        return 1;
    if (index == SIZE_MAX)
        return (size_t)(p - r->line); /* column of the opening quote */
    while (p < end && *p != '[')
        p++;
    for (p++; p < end && index > 0; p++)
        index -= *p == ',';
    while (p < end && *p == ' ')
        p++;
    return (size_t)(p - r->line) + 1;
}

/* Fails at item `index` of `key`; NULL: at the whole line. */
EPA_PRINTF(4, 5)
static enum epa_status fail_at(const struct reader *r, const char *key, size_t index,
                               const char *fmt, ...)
{
    char what[320];
    va_list args;

    va_start(args, fmt);
    vsnprintf(what, sizeof(what), fmt, args);
    va_end(args);
    if (r->line_number == 0)
        return epa_fail(r->err, EPA_ERR_CONFIG, "%s: offset %zu: token %llu: %s", r->name,
                        r->offset + index * r->item_bytes, (unsigned long long)r->table.tokens,
                        what);
    return epa_fail(r->err, EPA_ERR_CONFIG, "%s:%zu:%zu: %s", r->name, r->line_number,
                    key == NULL ? (size_t)1 : column_of(r, key, index), what);
}

/* Makes room for at least one more token, or for `tokens` in all if known. */
static enum epa_status grow_table(struct reader *r, uint64_t tokens)
{
    uint64_t room = r->room == 0 ? 1024 : r->room * 2;
    size_t row = r->shape.topk * sizeof(int32_t);
    void *expert, *weight;
    enum epa_status status;

    if (r->table.tokens < r->room)
        return EPA_OK;
    room = tokens != 0 ? tokens : room;
    status = tokens != 0 ? file_fits_memory(r->name, 2 * room * row, r->err) : EPA_OK;
    if (status != EPA_OK)
        return status;
    expert = realloc(r->table.expert, room * row);
    if (expert != NULL)
        r->table.expert = expert;
    weight = realloc(r->table.weight, room * row);
    if (weight != NULL)
        r->table.weight = weight;
    if (expert == NULL || weight == NULL || room > UINT32_MAX)
        return epa_fail(r->err, EPA_ERR_NOMEM, "%s: no memory for the choices of %llu tokens",
                        r->name, (unsigned long long)room);
    r->room = room;
    return EPA_OK;
}

/* Adds a token with the choices in r->id, which must be distinct and in range, and equal weights. */
static enum epa_status take_ids(struct reader *r)
{
    uint32_t topk = r->shape.topk, experts = r->shape.experts, kept = 0;
    int64_t most = experts != 0 ? experts : PROBLEM_EXPERTS_MAX;
    int32_t *expert = r->table.expert + r->table.tokens * topk;
    float *weight = r->table.weight + r->table.tokens * topk;

    for (uint32_t k = 0; k < topk; k++) {
        int64_t id = r->id[k];

        if (id < -1 || id >= most)
            return fail_at(r, "topk_ids", k,
                           "choice %u is expert %lld; %s %lld, so 0 to %lld, or -1 for a dropped "
                           "choice",
                           k, (long long)id,
                           experts == 0              ? "the most experts are"
                           : r->shape.advice != NULL ? "moe.experts is"
                                                     : "the number of experts is",
                           (long long)most, (long long)most - 1);
        for (uint32_t j = 0; j < k && id >= 0; j++)
            if (r->id[j] == id)
                return fail_at(r, "topk_ids", k, "expert %lld twice, as choices %u and %u",
                               (long long)id, j, k);
        expert[k] = (int32_t)id;
        kept += id >= 0;
    }
    for (uint32_t k = 0; k < topk; k++)
        weight[k] = expert[k] >= 0 ? 1.0f / (float)kept : 0;
    return EPA_OK;
}

static enum epa_status reader_end(struct reader *r, enum epa_status status,
                                  struct routing_table *out)
{
    struct routing_table *t = &r->table;
    uint32_t experts = 1;

    t->topk = r->shape.topk;
    for (uint64_t i = 0; i < t->tokens * t->topk; i++)
        experts = t->expert[i] >= (int32_t)experts ? (uint32_t)t->expert[i] + 1 : experts;
    t->experts = r->shape.experts != 0 ? r->shape.experts : experts; /* otherwise the maximum */
    if (status == EPA_OK) {
        *out = *t;
        return EPA_OK;
    }
    free(r->table.expert);
    free(r->table.weight);
    return status;
}

/* ---- .npy ---- */

struct npy {
    char kind; /* 'i', 'u' or 'f' */
    uint32_t item_bytes, dimensions;
    uint64_t shape[NPY_DIMENSIONS];
    uint64_t items; /* product of shape, not 0 */
    size_t offset;  /* offset of the first item */
    FILE *in;       /* positioned at byte `at` */
    uint64_t at;
};

static uint64_t little_endian(const unsigned char *p, uint32_t bytes)
{
    uint64_t v = 0;

    for (uint32_t i = 0; i < bytes; i++)
        v |= (uint64_t)p[i] << (8 * i);
    return v;
}

/* Returns the value of a key of the header, or "". */
static const char *npy_value(const char *header, const char *key)
{
    const char *p = strstr(header, key);

    return p == NULL ? "" : p + strlen(key) + strspn(p + strlen(key), " :");
}

/* Reads the header in the format of numpy. Returns the reason why the array is not usable, or NULL. The
 * caller requires floats (`floats`) or integers. */
static const char *npy_read_header(const char *header, bool floats, struct npy *out)
{
    const char *descr = npy_value(header, "'descr'"), *p = npy_value(header, "'shape'");
    const char *order = npy_value(header, "'fortran_order'");
    char *end;

    if (strncmp(order, "True", 4) == 0)
        return "Fortran order; save numpy.ascontiguousarray(...) of it";
    if (strncmp(order, "False", 5) != 0 || *p++ != '(')
        return "the header has no descr, fortran_order or shape as numpy writes them";
    if (strlen(descr) < 5 || descr[0] != '\'' || strchr("<|", descr[1]) == NULL ||
        strchr("iuf", descr[2]) == NULL || strchr("1248", descr[3]) == NULL || descr[4] != '\'' ||
        (descr[2] == 'f' && descr[3] < '2'))
        return floats ? "no array of integers or floats, little-endian; save with .astype('<f4')"
                      : "no array of integers or floats, little-endian; save with .astype('<i4')";
    out->kind = descr[2];
    out->item_bytes = (uint32_t)(descr[3] - '0');
    for (; *p != ')'; p = end + strspn(end, ", ")) {
        if (out->dimensions == NPY_DIMENSIONS)
            return "more than 3 dimensions";
        out->shape[out->dimensions] = strtoull(p, &end, 10);
        if (end == p || *p == '-' || out->shape[out->dimensions++] == 0)
            return "a dimension of the shape is no positive number";
    }
    return out->dimensions == 0 ? "a single number, not an array" : NULL;
}

/* Compares the size of the file (UINT64_MAX: a pipe) with the size that the header promises. */
static enum epa_status npy_check_size(const char *name, struct npy *npy, uint64_t bytes,
                                      struct epa_error *err)
{
    bool overflow = false;
    uint64_t size;

    npy->items = 1;
    for (uint32_t i = 0; i < npy->dimensions; i++)
        overflow |= __builtin_mul_overflow(npy->items, npy->shape[i], &npy->items);
    overflow |= __builtin_mul_overflow(npy->items, npy->item_bytes, &size);
    overflow |= __builtin_add_overflow(size, npy->offset, &size);
    if (overflow || size > INT64_MAX)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: offset %zu: truncated: the header promises 2^63 bytes or more, the "
                        "file has %llu",
                        name, npy->offset, (unsigned long long)bytes);
    if (bytes != UINT64_MAX && bytes != size)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: offset %zu: %s: the header promises a file of %llu bytes, the file "
                        "has %llu",
                        name, npy->offset, bytes < size ? "truncated" : "too long",
                        (unsigned long long)size, (unsigned long long)bytes);
    if (npy->shape[0] >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: more than 2^32 tokens", name);
    return EPA_OK;
}

/* Reads the header of a file of `bytes` bytes from its start. */
static enum epa_status npy_open(const char *name, FILE *in, uint64_t bytes, bool floats,
                                struct npy *out, struct epa_error *err)
{
    struct npy npy = {.in = in};
    size_t start = NPY_MAGIC_BYTES + 4, length = 0, n;
    unsigned char head[NPY_MAGIC_BYTES + 6];
    char header[NPY_HEADER_MAX + 1];
    const char *wrong = NULL;

    n = fread(head, 1, start, in);
    if (n < NPY_MAGIC_BYTES || memcmp(head, "\x93NUMPY", NPY_MAGIC_BYTES) != 0)
        wrong = "not an .npy file: it does not begin with \\x93NUMPY";
    else if (n == start && head[NPY_MAGIC_BYTES] > 1) {
        n += fread(head + n, 1, 2, in);
        start += 2;
    }
    if (wrong == NULL && n < start)
        wrong = "truncated in its header; write it again";
    else if (wrong == NULL && (head[NPY_MAGIC_BYTES] < 1 || head[NPY_MAGIC_BYTES] > 3))
        wrong = "the version of .npy is not 1, 2 or 3";
    if (wrong == NULL) {
        length = little_endian(head + NPY_MAGIC_BYTES + 2, (uint32_t)start - NPY_MAGIC_BYTES - 2);
        wrong = length > NPY_HEADER_MAX                  ? "a header of more than 16384 bytes"
                : fread(header, 1, length, in) != length ? "truncated in its header; write it again"
                                                         : NULL;
    }
    if (wrong == NULL) {
        header[length] = '\0';
        wrong = npy_read_header(header, floats, &npy);
    }
    if (ferror(in))
        return epa_fail_errno(err, EPA_ERR_CONFIG, errno, "%s: %s", name, strerror(errno));
    if (wrong != NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: offset %zu: %s", name, length == 0 ? 0 : start,
                        wrong);
    npy.offset = npy.at = start + length;
    *out = npy;
    return npy_check_size(name, out, bytes, err);
}

/* The data ends before the size that the header promises: in a pipe, or in a file that another
 * program shortened. */
static enum epa_status fail_npy_end(const char *name, const struct npy *npy, struct epa_error *err)
{
    if (ferror(npy->in))
        return epa_fail_errno(err, EPA_ERR_CONFIG, errno, "%s: offset %llu: %s", name,
                              (unsigned long long)npy->at, strerror(errno));
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s: offset %zu: truncated: the header promises a file of %llu bytes, the data "
                    "ends after %llu",
                    name, npy->offset,
                    (unsigned long long)(npy->offset + npy->items * npy->item_bytes),
                    (unsigned long long)npy->at);
}

static enum epa_status npy_read(const char *name, struct npy *npy, unsigned char *out, size_t bytes,
                                struct epa_error *err)
{
    size_t n = fread(out, 1, bytes, npy->in);

    npy->at += n;
    return n == bytes ? EPA_OK : fail_npy_end(name, npy, err);
}

/* Skips the data of other layers. */
static enum epa_status npy_skip(const char *name, struct npy *npy, uint64_t bytes,
                                struct epa_error *err)
{
    enum epa_status status = EPA_OK;
    unsigned char unused[1 << 12];

    if (bytes >= SKIP_SEEK && fseeko(npy->in, (off_t)bytes, SEEK_CUR) == 0) {
        npy->at += bytes;
        return EPA_OK;
    }
    for (size_t n; status == EPA_OK && bytes > 0; bytes -= n) {
        n = bytes < sizeof(unused) ? (size_t)bytes : sizeof(unused);
        status = npy_read(name, npy, unused, n, err);
    }
    return status;
}

/* A pipe has no size to compare before its data. */
static enum epa_status npy_end(const char *name, const struct npy *npy, struct epa_error *err)
{
    if (getc(npy->in) == EOF)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_CONFIG,
                    "%s: offset %zu: too long: the header promises a file of %llu bytes, and more "
                    "follow",
                    name, npy->offset, (unsigned long long)npy->at);
}

/* Routing has the shape [tokens, topk], or [tokens, layers, topk]. */
static enum epa_status npy_routing_shape(const char *name, const struct npy *npy,
                                         struct routing_shape *shape, uint64_t *layers,
                                         uint64_t *layer, struct epa_error *err)
{
    uint64_t topk = npy->shape[npy->dimensions - 1];
    char more[SUGGESTION];

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
    if (shape->topk == 0 && topk > ROUTING_TOPK_MAX)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: %llu choices for each token; up to %d are read",
                        name, (unsigned long long)topk, ROUTING_TOPK_MAX);
    if (shape->topk == 0)
        shape->topk = (uint32_t)topk;
    if (topk != shape->topk && npy->dimensions == 2 && npy->shape[0] == shape->topk)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: the shape is [%llu, %llu] and should be [tokens, topk]; save the "
                        "transposed array with numpy.ascontiguousarray(...)",
                        name, (unsigned long long)npy->shape[0], (unsigned long long)topk);
    if (topk != shape->topk)
        return epa_fail_key(err, EPA_ERR_CONFIG, "routing.path moe.topk",
                            "%s: %llu choices for each token, moe.topk is %u%s", name,
                            (unsigned long long)topk, shape->topk,
                            suggest(shape, "moe.topk", topk, more));
    *layers = npy->dimensions == 3 ? npy->shape[1] : 1;
    if (shape->layer == UINT32_MAX && *layers > 1)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: has %llu layers; say which: %s from 0 to %llu",
                        name, (unsigned long long)*layers, name_of(shape, "routing.layer"),
                        (unsigned long long)*layers - 1);
    *layer = shape->layer == UINT32_MAX ? 0 : shape->layer;
    if (*layer >= *layers)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: %s is %u, the file has %llu layers, from 0", name,
                        name_of(shape, "routing.layer"), shape->layer, (unsigned long long)*layers);
    return EPA_OK;
}

/* The choices of a token in the data of an .npy file. */
static void npy_ids(const struct npy *npy, const unsigned char *data, uint32_t topk, int64_t *id)
{
    uint32_t unused = 64 - 8 * npy->item_bytes;

    for (uint32_t k = 0; k < topk; k++) {
        uint64_t v = little_endian(data + (size_t)k * npy->item_bytes, npy->item_bytes);

        if (npy->kind == 'i') /* sign extension: shift left and back */
            id[k] = (int64_t)(v << unused) >> unused;
        else
            id[k] = v > INT64_MAX ? INT64_MAX : (int64_t)v;
    }
}

static enum epa_status read_npy_routing(const char *name, FILE *in, uint64_t bytes,
                                        const struct routing_shape *shape,
                                        struct routing_table *out, struct epa_error *err)
{
    struct reader r = {.name = name, .shape = *shape, .err = err};
    unsigned char data[ROUTING_TOPK_MAX * sizeof(uint64_t)];
    uint64_t layers = 0, layer = 0;
    size_t row;
    struct npy npy;
    enum epa_status status = npy_open(name, in, bytes, false, &npy, err);

    if (status == EPA_OK)
        status = npy_routing_shape(name, &npy, &r.shape, &layers, &layer, err);
    if (status != EPA_OK)
        return status;
    r.item_bytes = npy.item_bytes;
    row = (size_t)r.shape.topk * npy.item_bytes;
    status = grow_table(&r, npy.shape[0]);
    for (uint64_t t = 0; t < npy.shape[0] && status == EPA_OK; t++) {
        status = npy_skip(name, &npy, layer * row, err);
        r.offset = npy.at;
        if (status == EPA_OK)
            status = npy_read(name, &npy, data, row, err);
        if (status == EPA_OK) {
            npy_ids(&npy, data, r.shape.topk, r.id);
            status = take_ids(&r);
        }
        if (status == EPA_OK)
            status = npy_skip(name, &npy, (layers - 1 - layer) * row, err);
        r.table.tokens += status == EPA_OK;
    }
    if (status == EPA_OK)
        status = npy_end(name, &npy, err);
    return reader_end(&r, status, out);
}

/* Reads a value of hidden states and rounds it to dtype. */
static enum epa_status take_value(const char *name, const struct npy *npy, uint64_t i,
                                  const unsigned char *data, const struct routing_shape *shape,
                                  uint16_t *out, struct epa_error *err)
{
    /* Sums of larger values overflow in bf16, and the check could not detect errors. All finite f16
     * values are permitted. */
    float most = shape->f16 ? 65504.0f : 1e30f;
    uint32_t bits = (uint32_t)little_endian(data, npy->item_bytes);
    float v = npy->item_bytes == 2 ? float_of_f16((uint16_t)bits) : float_of_bits(bits);

    if (!(fabsf(v) <= most))
        return epa_fail_key(err, EPA_ERR_CONFIG, "routing.hidden_states moe.dtype",
                            "%s: offset %zu: channel %llu of token %llu is %g; values up to "
                            "%.6g can be checked in moe.dtype: %s",
                            name, (size_t)(npy->offset + i * npy->item_bytes),
                            (unsigned long long)(i % shape->hidden),
                            (unsigned long long)(i / shape->hidden), (double)v, (double)most,
                            shape->f16 ? "f16" : "bf16");
    *out = word_of_float(shape->f16, v);
    return EPA_OK;
}

static enum epa_status read_npy_hidden(const char *name, FILE *in, uint64_t bytes,
                                       const struct routing_shape *shape, struct hidden_table *out,
                                       struct epa_error *err)
{
    unsigned char data[1 << 12];
    char more[SUGGESTION];
    struct npy npy;
    uint16_t *x;
    enum epa_status status = npy_open(name, in, bytes, true, &npy, err);

    if (status != EPA_OK)
        return status;
    if (npy.kind != 'f' || npy.item_bytes > 4 || npy.dimensions != 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: hidden states are float16 or float32, [tokens, hidden]; this is %s "
                        "of %u bytes in %u dimensions",
                        name, npy.kind == 'f' ? "floats" : "integers", npy.item_bytes,
                        npy.dimensions);
    if (npy.shape[1] != shape->hidden)
        return epa_fail_key(err, EPA_ERR_CONFIG, "routing.hidden_states moe.hidden",
                            "%s: rows of %llu, moe.hidden is %u%s", name,
                            (unsigned long long)npy.shape[1], shape->hidden,
                            suggest(shape, "moe.hidden", npy.shape[1], more));
    status = file_fits_memory(name, npy.items * sizeof(*x), err);
    if (status != EPA_OK)
        return status;
    x = malloc(npy.items * sizeof(*x));
    if (x == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %llu values", name,
                        (unsigned long long)npy.items);
    for (uint64_t i = 0, n; i < npy.items && status == EPA_OK; i += n) {
        n = sizeof(data) / npy.item_bytes;
        n = n < npy.items - i ? n : npy.items - i;
        status = npy_read(name, &npy, data, n * npy.item_bytes, err);
        for (uint64_t k = 0; k < n && status == EPA_OK; k++)
            status =
                take_value(name, &npy, i + k, data + k * npy.item_bytes, shape, &x[i + k], err);
    }
    if (status == EPA_OK)
        status = npy_end(name, &npy, err);
    if (status != EPA_OK) {
        free(x);
        return status;
    }
    *out = (struct hidden_table){.tokens = npy.shape[0], .x = x};
    return EPA_OK;
}

/* ---- JSON lines ---- */

/* Checks that a number of the meta line, if present, equals the number of the experiment. */
static enum epa_status check_meta(const struct reader *r, const json_t *object, const char *key,
                                  const char *option, uint32_t max, uint32_t *want)
{
    const json_t *value = json_object_get(object, key);
    long long have = json_integer_value(value);
    char more[SUGGESTION];

    if (value == NULL || json_is_null(value))
        return EPA_OK;
    if (!json_is_integer(value))
        return fail_at(r, key, SIZE_MAX, "%s should be a whole number", key);
    if (have == *want)
        return EPA_OK;
    if (*want != 0 && r->shape.advice == NULL && r->table.tokens == 0 &&
        strcmp(option, "moe.experts") == 0)
        return fail_at(r, key, SIZE_MAX, "%s is %lld, --experts is %u: leave it out", key, have,
                       *want);
    if (*want != 0 && r->shape.advice == NULL)
        return fail_at(r, key, SIZE_MAX, "%s is %lld, and lines before have %u", key, have, *want);
    if (*want != 0)
        return fail_at(r, key, SIZE_MAX, "%s is %lld, %s is %u%s", key, have, option, *want,
                       suggest(&r->shape, option, have > 0 ? (uint64_t)have : 0, more));
    if (have < 1 || have > max)
        return fail_at(r, key, SIZE_MAX, "%s is %lld; 1 to %u are read", key, have, max);
    *want = (uint32_t)have;
    return EPA_OK;
}

/* Sets *wanted if the token belongs to the requested layer. */
static enum epa_status check_layer(struct reader *r, const json_t *object, bool *wanted)
{
    const json_t *value = json_object_get(object, "layer");
    int64_t layer = NO_LAYER;

    if (value != NULL && !json_is_null(value)) {
        layer = json_integer_value(value);
        if (!json_is_integer(value) || layer < 0)
            return fail_at(r, "layer", SIZE_MAX,
                           "layer should be a whole number that is not negative");
    }
    if (r->first_layer == INT64_MIN)
        r->first_layer = layer;
    *wanted = true;
    if (r->shape.layer == UINT32_MAX)
        return layer == r->first_layer ? EPA_OK
                                       : fail_at(r, layer == NO_LAYER ? NULL : "layer", SIZE_MAX,
                                                 "tokens of several layers; say which with %s",
                                                 name_of(&r->shape, "routing.layer"));
    if (layer == NO_LAYER)
        return fail_at(r, NULL, 0, "this token has no layer, %s asks for %u",
                       name_of(&r->shape, "routing.layer"), r->shape.layer);
    *wanted = layer == (int64_t)r->shape.layer;
    return EPA_OK;
}

/* Reports a token whose number of choices is not topk. Suggests another topk only for the first token,
 * since earlier tokens fit the present one. */
static enum epa_status report_count(const struct reader *r, size_t n)
{
    uint32_t topk = r->shape.topk;
    char more[SUGGESTION];

    if (n == 0 || (n < topk && r->table.tokens > 0))
        return fail_at(r, "topk_ids", SIZE_MAX,
                       "%zu choices, and each token has %u: write -1 for a dropped choice", n,
                       topk);
    if (r->table.tokens > 0)
        return fail_at(r, "topk_ids", SIZE_MAX,
                       "%zu choices, and tokens before have %u: fill all up to one number with -1, "
                       "for dropped choices",
                       n, topk);
    return fail_at(r, "topk_ids", SIZE_MAX, "%zu choices, %s is %u%s", n,
                   r->shape.advice != NULL ? "moe.topk" : "top_k", topk,
                   suggest(&r->shape, "moe.topk", n, more));
}

static enum epa_status read_ids(struct reader *r, const json_t *list)
{
    uint32_t topk = r->shape.topk;

    if (!json_is_array(list))
        return fail_at(r, "topk_ids", SIZE_MAX, "topk_ids should be a list of expert numbers");
    if (json_is_array(json_array_get(list, 0)))
        return fail_at(r, "topk_ids", 0, "a list of lists; each token needs a line of its own");
    if (json_array_size(list) != topk)
        return report_count(r, json_array_size(list));
    for (uint32_t k = 0; k < topk; k++) {
        const json_t *item = json_array_get(list, k);

        if (!json_is_integer(item))
            return fail_at(r, "topk_ids", k, "choice %u is not a whole number", k);
        r->id[k] = json_integer_value(item);
    }
    return take_ids(r);
}

static enum epa_status read_weights(const struct reader *r, const json_t *list)
{
    uint32_t topk = r->shape.topk;

    if (list == NULL || json_is_null(list))
        return EPA_OK;
    if (!json_is_array(list) || json_array_size(list) != topk)
        return fail_at(r, "topk_weights", SIZE_MAX,
                       "topk_weights should be a list of %u, one for each choice", topk);
    for (uint32_t k = 0; k < topk; k++) {
        const json_t *item = json_array_get(list, k);
        double v = json_number_value(item);

        if (!json_is_number(item))
            return fail_at(r, "topk_weights", k, "weight %u is not a number", k);
        if (!(v >= 0 && v <= 1e6)) /* keeps sums finite for all hidden states */
            return fail_at(r, "topk_weights", k, "weight %u is %g; weights are from 0 to 1e6", k,
                           v);
        r->table.weight[r->table.tokens * topk + k] = r->id[k] >= 0 ? (float)v : 0;
    }
    return EPA_OK;
}

static enum epa_status read_object(struct reader *r, const json_t *object)
{
    const char *type = json_string_value(json_object_get(object, "type"));
    const json_t *ids = json_object_get(object, "topk_ids");
    enum epa_status status;
    bool wanted = false;

    if (!json_is_object(object))
        return fail_at(r, NULL, 0, "each line should be a JSON object");
    if (ids != NULL) {
        status = check_layer(r, object, &wanted);
        if (status != EPA_OK || !wanted)
            return status;
        if (r->shape.topk == 0 && json_array_size(ids) >= 1 &&
            json_array_size(ids) <= ROUTING_TOPK_MAX)
            r->shape.topk = (uint32_t)json_array_size(ids);
        if (r->shape.topk == 0)
            return fail_at(r, "topk_ids", SIZE_MAX,
                           "topk_ids should be a list of 1 to %d expert numbers", ROUTING_TOPK_MAX);
        status = grow_table(r, 0);
        if (status == EPA_OK)
            status = read_ids(r, ids);
        if (status == EPA_OK)
            status = read_weights(r, json_object_get(object, "topk_weights"));
        r->table.tokens += status == EPA_OK;
        return status;
    }
    if (type != NULL && strcmp(type, "meta") == 0) {
        status = check_meta(r, object, "top_k", "moe.topk", ROUTING_TOPK_MAX, &r->shape.topk);
        if (status == EPA_OK)
            status = check_meta(r, object, "num_experts", "moe.experts", PROBLEM_EXPERTS_MAX,
                                &r->shape.experts);
        return status;
    }
    if (type == NULL || strcmp(type, "route") == 0)
        return fail_at(r, NULL, 0, "this line has no topk_ids");
    return EPA_OK;
}

static enum epa_status read_line(struct reader *r)
{
    size_t blank = 0;
    json_error_t why;
    json_t *object;
    enum epa_status status;

    if (r->line_bytes > LINE_BYTES_MAX)
        return fail_at(r, NULL, 0, "a line of more than 1 MiB; up to 1 MiB are read");
    while (blank < r->line_bytes && memchr(" \t\r", r->line[blank], 3) != NULL)
        blank++;
    if (blank == r->line_bytes)
        return EPA_OK;
    object = json_loadb(r->line, r->line_bytes, JSON_REJECT_DUPLICATES, &why);
    if (object == NULL)
        return epa_fail(r->err, EPA_ERR_CONFIG, "%s:%zu:%d: no JSON: %s", r->name, r->line_number,
                        why.column > 0 ? why.column : 1, why.text);
    status = read_object(r, object);
    json_decref(object);
    return status;
}

/* Reads the next line without its newline into `line`, which has room for LINE_BYTES_MAX + 1 bytes;
 * a longer line fills it. Returns false at the end of the file. */
static bool next_line(FILE *in, char *line, size_t *bytes)
{
    size_t n = 0;
    int c = 0;

    while (n <= LINE_BYTES_MAX && (c = getc_unlocked(in)) != EOF && c != '\n')
        line[n++] = (char)c;
    *bytes = n;
    return n > 0 || c == '\n';
}

static enum epa_status read_json_lines(const char *name, FILE *in,
                                       const struct routing_shape *shape, struct routing_table *out,
                                       struct epa_error *err)
{
    struct reader r = {.name = name, .shape = *shape, .first_layer = INT64_MIN, .err = err};
    char *line = memory_alloc(1, LINE_BYTES_MAX + 1);
    enum epa_status status = EPA_OK;
    size_t bytes, mark;

    while (status == EPA_OK && next_line(in, line, &bytes)) {
        mark = text_mark_bytes(line, bytes); /* byte order mark, also of an appended file */
        r.line = line + mark;
        r.line_bytes = bytes - mark;
        r.line_number++;
        status = read_line(&r);
    }
    free(line);
    if (status == EPA_OK && ferror(in))
        status = epa_fail_errno(err, EPA_ERR_CONFIG, errno, "%s: %s", name, strerror(errno));
    else if (status == EPA_OK && r.table.tokens == 0 && r.first_layer >= 0 &&
             shape->layer != UINT32_MAX)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s: no token of layer %u; the first one is of layer %lld", name,
                          shape->layer, (long long)r.first_layer);
    else if (status == EPA_OK && r.table.tokens == 0)
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s:%zu:1: the file ends without a token: a line with topk_ids", name,
                          r.line_number);
    return reader_end(&r, status, out);
}

/* ---- files ---- */

/* Returns true for .npy, whose first byte is invalid in JSON and UTF-8. */
static bool begins_as_npy(FILE *in)
{
    int first = getc(in);

    ungetc(first, in);
    return first == 0x93;
}

/* The caller closes *in. */
static enum epa_status open_input(const char *path, FILE **in, uint64_t *bytes,
                                  struct epa_error *err)
{
    struct epa_error why = {EPA_OK, ""};
    enum epa_status status;
    int fd, first;

    status = file_open(path, &fd, bytes, &why);
    if (status != EPA_OK) /* the path is part of the experiment */
        return epa_fail(err, EPA_ERR_CONFIG, "%s", why.text);
    *in = fdopen(fd, "r");
    if (*in == NULL) {
        close(fd);
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno, "%s: %s", path, strerror(errno));
    }
    first = getc(*in);
    if (first != EOF) {
        ungetc(first, *in);
        return EPA_OK;
    }
    status = ferror(*in)
                 ? epa_fail_errno(err, EPA_ERR_CONFIG, errno, "%s: %s", path, strerror(errno))
                 : epa_fail(err, EPA_ERR_CONFIG, "%s:1:1: the file is empty", path);
    fclose(*in);
    return status;
}

enum epa_status routing_read(const char *path, const struct routing_shape *shape,
                             struct routing_table *out, struct epa_error *err)
{
    const char *dot = strrchr(path, '.');
    uint64_t bytes;
    FILE *in;
    enum epa_status status = open_input(path, &in, &bytes, err);

    if (status != EPA_OK)
        return status;
    if (begins_as_npy(in) || (dot != NULL && strcmp(dot, ".npy") == 0))
        status = read_npy_routing(path, in, bytes, shape, out, err);
    else
        status = read_json_lines(path, in, shape, out, err);
    fclose(in);
    return status;
}

enum epa_status hidden_read(const char *path, const struct routing_shape *shape,
                            struct hidden_table *out, struct epa_error *err)
{
    uint64_t bytes;
    FILE *in;
    enum epa_status status = open_input(path, &in, &bytes, err);

    if (status != EPA_OK)
        return status;
    status = read_npy_hidden(path, in, bytes, shape, out, err);
    fclose(in);
    return status;
}

/* ---- files in memory ---- */

static enum epa_status open_memory(const char *name, const void *data, size_t bytes, FILE **in,
                                   struct epa_error *err)
{
    *in = fmemopen((void *)(uintptr_t)data, bytes, "r");
    return *in != NULL ? EPA_OK
                       : epa_fail_errno(err, EPA_ERR_NOMEM, errno, "%s: %s", name, strerror(errno));
}

enum epa_status routing_parse_jsonl(const char *name, const char *text, size_t bytes,
                                    const struct routing_shape *shape, struct routing_table *out,
                                    struct epa_error *err)
{
    FILE *in;
    enum epa_status status = open_memory(name, text, bytes, &in, err);

    if (status != EPA_OK)
        return status;
    status = read_json_lines(name, in, shape, out, err);
    fclose(in);
    return status;
}

enum epa_status routing_parse_npy(const char *name, const void *data, size_t bytes,
                                  const struct routing_shape *shape, struct routing_table *out,
                                  struct epa_error *err)
{
    FILE *in;
    enum epa_status status = open_memory(name, data, bytes, &in, err);

    if (status != EPA_OK)
        return status;
    status = read_npy_routing(name, in, bytes, shape, out, err);
    fclose(in);
    return status;
}

enum epa_status hidden_parse_npy(const char *name, const void *data, size_t bytes,
                                 const struct routing_shape *shape, struct hidden_table *out,
                                 struct epa_error *err)
{
    FILE *in;
    enum epa_status status = open_memory(name, data, bytes, &in, err);

    if (status != EPA_OK)
        return status;
    status = read_npy_hidden(name, in, bytes, shape, out, err);
    fclose(in);
    return status;
}
