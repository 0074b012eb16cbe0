/* Files of routing and hidden states: read whole, checked once. A file must be regular, so
 * that a pipe cannot hold the program up, and its size bounds all memory taken for it. */
#include "op/moe/routing_file.h"

#include <errno.h>
#include <fcntl.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "op/moe/npy.h"

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
