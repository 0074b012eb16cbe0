/* Matrices of ag_gemm and the check of its output. The check must detect one wrong element among
 * millions and must not take longer than the product itself. Two kinds of values:
 *
 *   integers  Small integers; a row of A has at most 16 non-zero elements, one in each sixteenth of k
 *             at a hashed position. All sums are exact in float32 in any order, so the check compares
 *             every bit of C at any shape. The reference needs 16 multiplications per element.
 *   random    Dense. Small shapes: each element is compared with float64. Large shapes (Freivalds): for
 *             a random vector s of +1 and -1 over a block of columns, the sum of s[j] * C[i][j] is
 *             compared with A[i] * (sum of s[j] * B[j]), which needs one product per row and block.
 *
 * The bound for random values is proved. Products are exact in float32. A sum has at most R roundings
 * between a product and the result, each with relative error u = 2^-24. So the value before the rounding
 * to dtype has an error of at most g * S, with g = R u / (1 - R u) and S the sum of the magnitudes
 * (Higham, Accuracy and Stability, section 3.1). The last rounding adds at most d / (1 - d) of |C|,
 * d = 2^-8 (bf16) or 2^-11 (f16), and half of the least denormal. The bound of a block is the sum of the
 * bounds of its elements.
 *
 * C in FP8, integers: the sums before the quantisation are exact, so are the largest magnitude of a group,
 * and the scale and the codes have one right value each. The check compares them to the bit.
 *
 * C in FP8, random values: the scale s is a function of the sums before the quantisation, whose exact values
 * the check does not know. s = amax * (1/448) and all quotients are rounded with relative error u, so the
 * quotient of the largest element rounds to 448. The check therefore demands that the largest code of each
 * group is 448, unless all codes are 0 and the scale is 1. With this scale the quantisation of a sum v adds at
 * most d / (1 - d) |C| with d = 2^-4 (1 + 4 u), and s times half of the least denormal, 2^-10: the factor
 * (1 + 4 u) covers the division, the scale, and the largest element, which the saturation at 448 changes by
 * less than 4 u. A block of columns has the sum of these bounds, a sixteenth of the sum of magnitudes: single wrong
 * elements of large shapes are found with integers only. */
#include "op/ag_gemm_check.h"

#include <math.h>
#include <stdlib.h>

#include "base/memory.h"
#include "base/pool.h"
#include "base/random.h"

enum { STRATA = 16, GROUP = 128, BLOCK_LEAST = 32 };

/* Limits of multiplications: up to full_most the check compares each element; beyond it, blocks of
 * columns are as narrow as blocks_most permits. */
static const double full_most = 0x1p24, blocks_most = 0x1p26;

struct gemm_reference {
    struct pool pool; /* memory of all arrays below */
    struct gemm_values v;
    uint32_t rank;
    float *bias;     /* [n]; zeros without a bias */
    uint8_t *a;      /* a row of A */
    float *a_scale;  /* scales of the row */
    float *c_value;  /* [n] values of a row of C */
    float *exact;    /* [n] integers: the row before the rounding to the type of C */
    double *a_value; /* values of the row */
    /* integers */
    int8_t *b_int; /* [k][n]: B in units of 1/2 */
    int32_t *sum;  /* [n]: sums in units of 1/4 */
    /* random */
    uint32_t blocks, width; /* blocks of columns; width 1: each element */
    double *b;              /* [blocks][k] signed sums of B */
    double *b_size;         /* [blocks][k] sums of magnitudes */
    double *bias_sum, *bias_size;
    int8_t *sign; /* [n] */
};

static size_t gemm_element_bytes(const struct gemm_values *v)
{
    return v->dtype == EPA_FP8_E4M3 ? 1 : 2;
}

static bool is_fp8(const struct gemm_values *v)
{
    return v->dtype == EPA_FP8_E4M3;
}

static bool has_f16(const struct gemm_values *v)
{
    return v->dtype == EPA_F16;
}

/* ---- values ---- */

static void store_element(const struct gemm_values *v, void *out, uint32_t i, float value)
{
    if (is_fp8(v))
        ((uint8_t *)out)[i] = e4m3_of_float(value);
    else
        ((uint16_t *)out)[i] = word_of_float(has_f16(v), value);
}

static float load_element(const struct gemm_values *v, const void *from, uint32_t i)
{
    return is_fp8(v) ? float_of_e4m3(((const uint8_t *)from)[i])
                     : float_of_word(has_f16(v), ((const uint16_t *)from)[i]);
}

static uint64_t a_key(const struct gemm_values *v, uint32_t rank, uint64_t iteration, uint32_t row)
{
    return random_at(random_key(v->seed, RANDOM_X, rank, iteration), row);
}

static uint64_t b_key(const struct gemm_values *v, uint32_t rank)
{
    return random_key(v->seed, RANDOM_WEIGHTS, rank, 0);
}

/* Returns 1/2, 1 or 2. */
static float integer_scale(uint64_t key, uint32_t i)
{
    return 0.5f * (float)(1u << (random_at(key, i) >> 32) % 3);
}

/* Returns a scale with a random fraction. */
static float random_scale(uint64_t key, uint32_t i)
{
    return (float)(1.0 + (double)(random_at(key, i) >> 40) * 0x1p-24) * 0x1p-6f;
}

static uint32_t strata_of(const struct gemm_values *v)
{
    return v->k < STRATA ? v->k : STRATA;
}

/* Returns the position of the non-zero element of stratum s, and its value, one of -4..-1, 1..4. */
static uint32_t integer_of(const struct gemm_values *v, uint64_t key, uint32_t s, int32_t *value)
{
    uint32_t strata = strata_of(v);
    uint32_t first = (uint32_t)((uint64_t)v->k * s / strata);
    uint32_t width = (uint32_t)((uint64_t)v->k * (s + 1) / strata) - first;
    uint64_t z = random_at(key, s);

    *value = (int32_t)(z & 7) - 4;
    *value += *value >= 0;
    return first + (uint32_t)((z >> 32) * width >> 32);
}

void gemm_make_a(const struct gemm_values *v, uint32_t rank, uint64_t iteration, uint32_t row,
                 void *out, float *scale)
{
    uint64_t key = a_key(v, rank, iteration, row), scale_key = random_at(key, UINT32_MAX);
    uint32_t groups = epa_ag_gemm_groups(v->k);

    if (v->integers) {
        memset(out, 0, v->k * gemm_element_bytes(v));
        for (uint32_t s = 0; s < strata_of(v); s++) {
            int32_t value;
            uint32_t at = integer_of(v, key, s, &value);

            store_element(v, out, at, (float)value);
        }
        for (uint32_t g = 0; g < groups && is_fp8(v); g++)
            scale[g] = integer_scale(scale_key, g);
    } else if (!is_fp8(v)) {
        random_words(key, v->k, has_f16(v), out);
    } else {
        for (uint32_t g = 0; g < groups; g++) {
            uint32_t n = v->k - g * GROUP < GROUP ? v->k - g * GROUP : GROUP;
            uint16_t word[GROUP];

            random_words(random_at(key, g), n, false, word);
            scale[g] = e4m3_group_of(false, word, n, (uint8_t *)out + (size_t)g * GROUP);
        }
    }
}

void gemm_make_b(const struct gemm_values *v, uint32_t rank, uint32_t row, void *out)
{
    uint64_t key = random_at(b_key(v, rank), row);

    if (v->integers) {
        for (uint32_t i = 0; i < v->k; i += 8) {
            uint64_t z = random_at(key, i / 8);

            for (uint32_t j = 0; j < 8; j++)
                store_element(v, out, i + j, (float)((int32_t)((z >> 8 * j & 255) * 9 >> 8) - 4));
        }
    } else if (!is_fp8(v)) {
        random_words(key, v->k, has_f16(v), out);
    } else {
        for (uint32_t i = 0; i < v->k; i += GROUP) {
            uint32_t n = v->k - i < GROUP ? v->k - i : GROUP;
            uint16_t word[GROUP];

            random_words(random_at(key, i), n, false, word);
            for (uint32_t j = 0; j < n; j++)
                store_element(v, out, i + j, float_of_bf16(word[j]) * 64);
        }
    }
}

static float b_scale_of(const struct gemm_values *v, uint32_t rank, uint32_t block)
{
    uint64_t key = random_at(b_key(v, rank), UINT32_MAX);

    return !is_fp8(v) ? 1 : v->integers ? integer_scale(key, block) : random_scale(key, block);
}

void gemm_make_b_scale(const struct gemm_values *v, uint32_t rank, float *out)
{
    for (uint32_t i = 0; i < epa_ag_gemm_groups(v->n) * epa_ag_gemm_groups(v->k); i++)
        out[i] = b_scale_of(v, rank, i);
}

void gemm_make_bias(const struct gemm_values *v, uint32_t rank, float *out)
{
    uint64_t key = random_at(b_key(v, rank), UINT64_C(1) << 33);

    for (uint32_t i = 0; i < v->n; i++) {
        uint64_t z = random_at(key, i) >> 32;

        if (!v->bias)
            out[i] = 0;
        else
            out[i] = v->integers ? (float)(z % 65) - 32 : (float)((double)z * 0x1p-29 - 4);
    }
}

/* ---- the reference ---- */

static bool is_full(const struct gemm_values *v, uint64_t rows)
{
    return (double)rows * v->n * v->k <= full_most;
}

static uint32_t blocks_of(const struct gemm_values *v, uint64_t rows)
{
    double most = ceil((double)v->n / BLOCK_LEAST);
    double few = floor(blocks_most / ((double)(rows > 0 ? rows : 1) * v->k));

    return is_full(v, rows) ? v->n : few < 1 ? 1 : few < most ? (uint32_t)few : (uint32_t)most;
}

static void allocate_reference(const struct gemm_values *v, uint64_t rows, struct gemm_reference *r)
{
    struct pool *p = &r->pool;

    r->bias = pool_alloc(p, v->n, sizeof(*r->bias));
    r->a = pool_alloc(p, v->k, sizeof(uint16_t));
    r->a_scale = pool_alloc(p, epa_ag_gemm_groups(v->k), sizeof(*r->a_scale));
    r->c_value = pool_alloc(p, v->n, sizeof(*r->c_value));
    r->exact = pool_alloc(p, v->n, sizeof(*r->exact));
    r->a_value = pool_alloc(p, v->k, sizeof(*r->a_value));
    if (v->integers) {
        r->b_int = pool_alloc(p, v->n, v->k);
        r->sum = pool_alloc(p, v->n, sizeof(*r->sum));
        return;
    }
    r->blocks = blocks_of(v, rows);
    r->width = (v->n + r->blocks - 1) / r->blocks;
    r->blocks = (v->n + r->width - 1) / r->width;
    r->b = pool_alloc(p, (size_t)r->blocks * v->k, sizeof(*r->b));
    r->b_size = pool_alloc(p, (size_t)r->blocks * v->k, sizeof(*r->b_size));
    r->bias_sum = pool_alloc(p, r->blocks, sizeof(*r->bias_sum));
    r->bias_size = pool_alloc(p, r->blocks, sizeof(*r->bias_size));
    r->sign = pool_alloc(p, v->n, sizeof(*r->sign));
}

uint64_t gemm_reference_bytes(const struct gemm_values *v, uint64_t rows)
{
    struct gemm_reference r = {.pool = {.counting = true}};

    allocate_reference(v, rows, &r);
    return sizeof(r) + r.pool.bytes;
}

void gemm_reference_destroy(struct gemm_reference *r)
{
    if (r == NULL)
        return;
    pool_free(&r->pool);
    free(r);
}

static void fill_integers(struct gemm_reference *r, uint8_t *row)
{
    const struct gemm_values *v = &r->v;
    uint32_t groups = epa_ag_gemm_groups(v->k);
    float half = is_fp8(v) ? 2 : 1;

    for (uint32_t j = 0; j < v->n; j++) {
        gemm_make_b(v, r->rank, j, row);
        for (uint32_t i = 0; i < v->k; i++) {
            float scale = b_scale_of(v, r->rank, j / GROUP * groups + i / GROUP);

            r->b_int[(size_t)i * v->n + j] = (int8_t)(load_element(v, row, i) * scale * half);
        }
    }
}

static void fill_random(struct gemm_reference *r, uint8_t *row)
{
    const struct gemm_values *v = &r->v;
    uint32_t groups = epa_ag_gemm_groups(v->k);

    memset(r->b, 0, (size_t)r->blocks * v->k * sizeof(*r->b));
    memset(r->b_size, 0, (size_t)r->blocks * v->k * sizeof(*r->b_size));
    memset(r->bias_sum, 0, r->blocks * sizeof(*r->bias_sum));
    memset(r->bias_size, 0, r->blocks * sizeof(*r->bias_size));
    for (uint32_t j = 0; j < v->n; j++) {
        uint32_t block = j / r->width;
        uint64_t z = random_at(random_key(v->seed, RANDOM_CHECK, r->rank, 0), j);
        double *b = r->b + (size_t)block * v->k, *size = r->b_size + (size_t)block * v->k;

        r->sign[j] = r->width == 1 || (z >> 63) == 0 ? 1 : -1;
        r->bias_sum[block] += r->sign[j] * (double)r->bias[j];
        r->bias_size[block] += fabs((double)r->bias[j]);
        gemm_make_b(v, r->rank, j, row);
        for (uint32_t i = 0; i < v->k; i++) {
            float scale = b_scale_of(v, r->rank, j / GROUP * groups + i / GROUP);
            double value = (double)load_element(v, row, i) * scale;

            b[i] += r->sign[j] * value;
            size[i] += fabs(value);
        }
    }
}

enum epa_status gemm_reference_create(const struct gemm_values *v, uint32_t rank, uint64_t rows,
                                      struct gemm_reference **out, struct epa_error *err)
{
    struct gemm_reference *r = memory_alloc(1, sizeof(*r));

    r->v = *v;
    r->rank = rank;
    allocate_reference(v, rows, r);
    if (r->pool.failed) {
        gemm_reference_destroy(r);
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the reference: %llu bytes",
                        (unsigned long long)gemm_reference_bytes(v, rows));
    }
    gemm_make_bias(v, rank, r->bias);
    if (v->integers)
        fill_integers(r, r->a);
    else
        fill_random(r, r->a);
    *out = r;
    return EPA_OK;
}

/* ---- the check ---- */

/* A row of C: words of 16 bits, or codes with scales. */
struct c_row {
    const uint16_t *word;
    const uint8_t *code; /* FP8; NULL otherwise */
    const float *scale;
};

/* Returns the scale that a group of n values has. */
static float scale_of(const float *v, uint32_t n)
{
    float amax = 0;

    for (uint32_t i = 0; i < n; i++)
        amax = fmaxf(amax, fabsf(v[i]));
    amax *= 1.0f / 448.0f;
    return amax > 0 ? amax : 1;
}

/* Compares scales and codes with the exact values. */
static void check_codes(const struct gemm_reference *r, const struct c_row *c, struct op_finding *f)
{
    for (uint32_t first = 0; first < r->v.n; first += GROUP) {
        uint32_t n = r->v.n - first < GROUP ? r->v.n - first : GROUP;
        float scale = scale_of(r->exact + first, n), have = c->scale[first / GROUP];

        if (bits_of_float(have) != bits_of_float(scale))
            op_wrong(f, "the scale of columns %u to %u is %g, should be %g", first, first + n - 1,
                     (double)have, (double)scale);
        for (uint32_t j = first; j < first + n; j++) {
            float want = float_of_e4m3(e4m3_of_float(r->exact[j] / scale));
            float code = float_of_e4m3(c->code[j]);

            if (code != want) /* both signs of zero are equal */
                op_wrong(f, "column %u is %g times its scale, should be %g times", j, (double)code,
                         (double)want);
        }
    }
}

static void check_integers(struct gemm_reference *r, uint64_t key, const struct c_row *c,
                           struct op_finding *f)
{
    const struct gemm_values *v = &r->v;

    memset(r->sum, 0, v->n * sizeof(*r->sum));
    for (uint32_t s = 0; s < strata_of(v); s++) {
        int32_t value;
        uint32_t at = integer_of(v, key, s, &value);
        const int8_t *b = r->b_int + (size_t)at * v->n;

        if (is_fp8(v))
            value = (int32_t)((float)value * r->a_scale[at / GROUP] * 2);
        for (uint32_t j = 0; j < v->n; j++)
            r->sum[j] += value * b[j];
    }
    for (uint32_t j = 0; j < v->n; j++) {
        float want, have;

        r->exact[j] = (float)r->sum[j] * (is_fp8(v) ? 0.25f : 1) + r->bias[j];
        if (v->out_fp8)
            continue;
        want = float_of_word(has_f16(v), word_of_float(has_f16(v), r->exact[j]));
        have = float_of_word(has_f16(v), c->word[j]);
        if (have != want) /* both signs of zero are equal */
            op_wrong(f, "column %u is %g, should be %g", j, (double)have, (double)want);
    }
    if (v->out_fp8)
        check_codes(r, c, f);
}

/* Returns the maximum number of roundings of a product, without the last rounding to dtype. */
static double roundings(const struct gemm_values *v)
{
    return is_fp8(v) ? GROUP + epa_ag_gemm_groups(v->k) + 4 : v->k + 1;
}

/* Checks the scale of each group: its largest code is 448, or all codes are 0 and the scale is 1. */
static void check_gemm_scales(const struct gemm_reference *r, const struct c_row *c,
                              struct op_finding *f)
{
    for (uint32_t first = 0; first < r->v.n; first += GROUP) {
        uint32_t n = r->v.n - first < GROUP ? r->v.n - first : GROUP;
        float scale = c->scale[first / GROUP], most = 0;

        for (uint32_t j = first; j < first + n; j++)
            most = fmaxf(most, fabsf(float_of_e4m3(c->code[j])));
        if (!(scale > 0 && isfinite(scale)) || !(most == 448 || (most == 0 && scale == 1)))
            op_wrong(f, "columns %u to %u have the scale %g, and their largest code is %g, not 448",
                     first, first + n - 1, (double)scale, (double)most);
    }
}

/* Reads the values of a row of C. Returns the bounds of the last rounding: relative to an element, and
 * relative to its scale (absolute for 16 bits). */
static double read_row(struct gemm_reference *r, const struct c_row *c, double *least)
{
    const struct gemm_values *v = &r->v;

    for (uint32_t j = 0; j < v->n; j++)
        r->c_value[j] =
            v->out_fp8 ? float_of_e4m3(c->code[j]) : float_of_word(has_f16(v), c->word[j]);
    *least = v->out_fp8 ? 0x1p-10 : 0x1p-25;
    return v->out_fp8 ? 0x1p-4 * (1 + 0x1p-22) : has_f16(v) ? 0x1p-11 : 0x1p-8;
}

static void check_random(struct gemm_reference *r, const struct c_row *c, struct op_finding *f)
{
    const struct gemm_values *v = &r->v;
    double ru = roundings(v) * 0x1p-24, g = ru / (1 - ru), least, d = read_row(r, c, &least);

    if (v->out_fp8)
        check_gemm_scales(r, c, f);
    for (uint32_t i = 0; i < v->k; i++) {
        r->a_value[i] = load_element(v, r->a, i);
        if (is_fp8(v))
            r->a_value[i] *= r->a_scale[i / GROUP];
    }
    for (uint32_t block = 0; block < r->blocks; block++) {
        const double *b = r->b + (size_t)block * v->k, *b_size = r->b_size + (size_t)block * v->k;
        uint32_t first = block * r->width;
        uint32_t end = first + r->width < v->n ? first + r->width : v->n;
        double want = r->bias_sum[block], size = r->bias_size[block], have = 0, c_size = 0;
        double least_size = 0, bound;

        for (uint32_t i = 0; i < v->k; i++) {
            want += r->a_value[i] * b[i];
            size += fabs(r->a_value[i]) * b_size[i];
        }
        for (uint32_t j = first; j < end; j++) {
            double scale = v->out_fp8 ? (double)c->scale[j / GROUP] : 1;
            double value = (double)r->c_value[j] * scale;

            have += r->sign[j] * value;
            c_size += fabs(value);
            least_size += least * scale;
        }
        /* The last factor covers the roundings of these float64 sums. */
        bound = (d / (1 - d) * c_size + g * size + least_size) * (1 + 0x1p-20);
        if (fabs(have - want) <= bound && isfinite(c_size))
            continue;
        if (r->width == 1)
            op_wrong(f, "column %u is %g, should be %g +- %.2g", first, have, want, bound);
        else
            op_wrong(f, "columns %u to %u add up, with random signs, to %g, should be %g +- %.2g",
                     first, end - 1, have, want, bound);
    }
}

void gemm_check_row(struct gemm_reference *r, uint64_t iteration, uint32_t source, uint32_t row,
                    const void *c, const void *c_scale, struct op_finding *f)
{
    const struct c_row of = {
        .word = c, .code = r->v.out_fp8 ? c : NULL, .scale = r->v.out_fp8 ? c_scale : NULL};

    gemm_make_a(&r->v, source, iteration, row, r->a, r->a_scale);
    if (r->v.integers)
        check_integers(r, a_key(&r->v, source, iteration, row), &of, f);
    else
        check_random(r, &of, f);
}
