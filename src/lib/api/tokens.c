/* Inputs of a data call. A wrong index would write outside the memory of a peer, so each index is
 * checked on hosts. */
#include "api/tokens.h"

#include <stdlib.h>
#include <string.h>

#include "api/alignment.h"
#include "api/struct_size.h"

/* ---- indices ---- */

/* Finds the first index that is wrong, for the message. */
static enum epa_status explain_experts(const struct epa_moe *m, uint32_t tokens,
                                       const int32_t *expert, struct epa_error *err)
{
    for (uint32_t t = 0; t < tokens; t++, expert += m->topk)
        for (uint32_t k = 0; k < m->topk; k++) {
            if (expert[k] < -1 || expert[k] >= (int32_t)m->experts)
                return epa_fail(err, EPA_ERR_CONFIG,
                                "topk_idx: choice %u of token %u is expert %d; experts are 0 to "
                                "%u, or -1 for no expert",
                                k, t, expert[k], m->experts - 1);
            for (uint32_t i = 0; i < k; i++)
                if (expert[k] >= 0 && expert[i] == expert[k])
                    return epa_fail(err, EPA_ERR_CONFIG,
                                    "topk_idx: token %u selects expert %d twice (choices %u and "
                                    "%u)",
                                    t, expert[k], i, k);
        }
    return EPA_OK;
}

/* Four choices of a token. Comparisons return -1 in equal lanes. */
typedef int32_t four_choices __attribute__((vector_size(16)));

static inline four_choices rotate_one(four_choices v)
{
    return (four_choices){v[1], v[2], v[3], v[0]};
}

static inline four_choices rotate_two(four_choices v)
{
    return (four_choices){v[2], v[3], v[0], v[1]};
}

/* Compares all pairs of choices of a token; topk is a multiple of 4. Returns lanes that are not 0 if the
 * token selects an expert twice. */
static inline four_choices compare_choices(const int32_t *expert, uint32_t topk)
{
    four_choices found = {0};

    for (uint32_t i = 0; i < topk; i += 4) {
        four_choices a, equal;

        memcpy(&a, expert + i, sizeof(a));
        equal = (a == rotate_one(a)) | (a == rotate_two(a));
        for (uint32_t k = i + 4; k < topk; k += 4) {
            four_choices b, next;

            memcpy(&b, expert + k, sizeof(b));
            next = rotate_one(b);
            equal |= (a == b) | (a == next) | (a == rotate_two(b)) | (a == rotate_two(next));
        }
        found |= equal & ~(a >> 31); /* dropped choices are negative */
    }
    return found;
}

static bool has_repetition_in_fours(const struct epa_moe *m, uint32_t tokens, const int32_t *expert)
{
    four_choices found = {0};

    /* The compiler unrolls the usual number of choices. */
    for (uint32_t t = 0; m->topk == 8 && t < tokens; t++, expert += 8)
        found |= compare_choices(expert, 8);
    for (uint32_t t = 0; m->topk != 8 && t < tokens; t++, expert += m->topk)
        found |= compare_choices(expert, m->topk);
    return (found[0] | found[1] | found[2] | found[3]) != 0;
}

/* Returns true if a token selects an expert twice. `last` has the last token of each expert, from 1 on;
 * its first element belongs to dropped choices. */
static bool has_repetition(const struct epa_moe *m, uint32_t tokens, const int32_t *expert,
                           uint32_t *last)
{
    bool repeated = false;

    if (m->topk % 4 == 0)
        return has_repetition_in_fours(m, tokens, expert);
    memset(last, 0, ((size_t)m->experts + 1) * sizeof(*last));
    for (uint32_t t = 1; t <= tokens; t++, expert += m->topk)
        for (uint32_t k = 0; k < m->topk; k++) {
            uint32_t at = (uint32_t)expert[k] + 1;

            repeated |= at != 0 && last[at] == t;
            last[at] = t;
        }
    return repeated;
}

/* Returns true if a choice is neither an expert nor -1. */
static bool has_unknown_expert(const struct epa_moe *m, const int32_t *expert, size_t n)
{
    int32_t most = (int32_t)m->experts - 1;
    const four_choices high = {most, most, most, most}, low = {-1, -1, -1, -1};
    four_choices found = {0};
    bool unknown = false;
    size_t i = 0;

    for (; i + 4 <= n; i += 4) {
        four_choices a;

        memcpy(&a, expert + i, sizeof(a));
        found |= (a > high) | (a < low);
    }
    for (; i < n; i++)
        unknown |= expert[i] > most || expert[i] < -1;
    return unknown || (found[0] | found[1] | found[2] | found[3]) != 0;
}

static enum epa_status check_experts(const struct epa_moe *m, uint32_t tokens,
                                     const int32_t *expert, uint32_t *last, struct epa_error *err)
{
    bool wrong = has_unknown_expert(m, expert, (size_t)tokens * m->topk) ||
                 has_repetition(m, tokens, expert, last);

    return wrong ? explain_experts(m, tokens, expert, err) : EPA_OK;
}

enum epa_status tokens_read_experts(struct tokens *t, const struct epa_moe *m, uint32_t tokens,
                                    const void *from, int32_t bytes, int32_t *to,
                                    const int32_t **out, struct epa_error *err)
{
    size_t n = (size_t)tokens * m->topk;
    const int64_t *wide = from;

    if (bytes == 4) {
        *out = from;
        return check_experts(m, tokens, *out, t->last, err);
    }
    for (size_t i = 0; i < n; i++)
        to[i] = wide[i] < -1 || wide[i] >= m->experts ? INT32_MIN : (int32_t)wide[i];
    for (size_t i = 0; i < n; i++)
        if (to[i] == INT32_MIN)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "topk_idx: choice %zu of token %zu is expert %lld; experts are 0 to "
                            "%u, or -1 for no expert",
                            i % m->topk, i / m->topk, (long long)wide[i], m->experts - 1);
    *out = to;
    return check_experts(m, tokens, to, t->last, err);
}

/* ---- rows ---- */

/* On a device: lists the copy of rows to the place `at` of the memory for dense rows. */
static enum epa_status list_copy(struct tokens *t, const char *name, const void *from,
                                 size_t stride, size_t bytes, size_t at, const void **out,
                                 struct epa_error *err)
{
    if (t->dense == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "%s_stride: rows on a device must be dense",
                        name);
    t->copy[t->copies++] = (struct tokens_copy){
        .to = t->dense + at, .from = from, .stride = stride, .row_bytes = bytes};
    *out = t->dense + at;
    return EPA_OK;
}

/* Sets *out to dense rows: `from`, or a copy in *copy, on a device at byte `at` of its memory. */
static enum epa_status make_dense(struct tokens *t, const char *name, const struct epa_moe *m,
                                  uint32_t tokens, const void *from, size_t stride, size_t bytes,
                                  size_t at, void **copy, const void **out, struct epa_error *err)
{
    *out = from;
    if (from == NULL || stride == 0 || stride == bytes)
        return EPA_OK;
    if (stride < bytes)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s_stride is %zu bytes; a row of %s has %zu bytes (0: dense rows)", name,
                        stride, name, bytes);
    if (!t->host)
        return list_copy(t, name, from, stride, bytes, at, out, err);
    if (*copy == NULL)
        *copy = malloc(m->max_tokens * bytes);
    if (*copy == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for a dense copy of %s: %zu bytes", name,
                        m->max_tokens * bytes);
    for (uint32_t i = 0; i < tokens; i++)
        memcpy((char *)*copy + i * bytes, (const char *)from + i * stride, bytes);
    *out = *copy;
    return EPA_OK;
}

static enum epa_status read_rows(struct tokens *t, const struct epa2a_tokens *in, struct epa_moe *m,
                                 struct epa_error *err)
{
    bool quantised = in->x_scale != NULL;
    size_t row = (size_t)m->hidden * (quantised ? 1 : 2);
    size_t scales = quantised ? m->hidden / m->fp8_group_size * sizeof(float) : 0;
    const void *x = NULL, *scale = NULL;
    void *copy = t->x;
    enum epa_status status;

    if (quantised && m->hidden % m->fp8_group_size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "x_scale: hidden (%u) is not a multiple of fp8_group (%u)", m->hidden,
                        m->fp8_group_size);
    t->copies = 0;
    status = make_dense(t, "x", m, in->tokens, in->x, in->x_stride, row, 0, &copy, &x, err);
    t->x = copy;
    copy = t->x_scale;
    if (status == EPA_OK) /* codes of 8 bits leave half of the memory for scales */
        status = make_dense(t, "x_scale", m, in->tokens, in->x_scale, in->x_scale_stride, scales,
                            (size_t)m->max_tokens * m->hidden, &copy, &scale, err);
    t->x_scale = copy;
    if (status != EPA_OK)
        return status;
    m->x_dtype = quantised ? (int)EPA_FP8_E4M3 : m->dtype;
    m->x = quantised ? NULL : x;
    m->x_fp8 = quantised ? x : NULL;
    m->x_scale = scale;
    return EPA_OK;
}

/* ---- the struct ---- */

enum epa_status tokens_init(struct tokens *t, const struct epa_moe *m, enum epa_memory memory,
                            struct epa_error *err)
{
    *t = (struct tokens){.host = memory == EPA_MEMORY_HOST};
    if (!t->host)
        return EPA_OK;
    t->expert = malloc((size_t)m->max_tokens * m->topk * sizeof(*t->expert));
    t->last = malloc(((size_t)m->experts + 1) * sizeof(*t->last));
    return t->expert != NULL && t->last != NULL
               ? EPA_OK
               : epa_fail(err, EPA_ERR_NOMEM, "no memory for indices");
}

void tokens_finish(struct tokens *t)
{
    free(t->expert);
    free(t->last);
    free(t->x);
    free(t->x_scale);
    *t = (struct tokens){0};
}

enum epa_status tokens_read(struct tokens *t, const struct epa2a_tokens *from,
                            struct epa2a_tokens *in, struct epa_moe *m, struct epa_error *err)
{
    enum epa_status status = struct_read(in, sizeof(*in), from, "epa2a_tokens", err);

    if (status != EPA_OK)
        return status;
    if (in->tokens > m->max_tokens)
        return epa_fail(err, EPA_ERR_CONFIG, "%u tokens are more than max_tokens of the shape (%u)",
                        in->tokens, m->max_tokens);
    if (in->topk_idx_bytes != 4 && in->topk_idx_bytes != 8)
        return epa_fail(err, EPA_ERR_CONFIG, "topk_idx_bytes is %d; write 4 or 8",
                        in->topk_idx_bytes);
    if (in->tokens > 0 && (in->x == NULL || in->topk_idx == NULL))
        return epa_fail(err, EPA_ERR_CONFIG, "%s is NULL, with %u tokens",
                        in->x == NULL ? "x" : "topk_idx", in->tokens);
    if (!t->host && in->topk_idx_bytes != 4)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "topk_idx_bytes: indices on a device have 4");
    status = alignment_check_tokens(in, m->hidden, !t->host, err);
    if (status != EPA_OK)
        return status;
    m->tokens = in->tokens;
    m->weight = in->topk_weight;
    m->expert = in->topk_idx;
    if (t->host)
        status = tokens_read_experts(t, m, in->tokens, in->topk_idx, in->topk_idx_bytes, t->expert,
                                     &m->expert, err);
    return status == EPA_OK ? read_rows(t, in, m, err) : status;
}
