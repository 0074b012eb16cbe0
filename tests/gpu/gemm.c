/* Tests of products of expert rows (plugins/common/gemm_experts.h). Inputs are small integers / 16,
 * so that sums are exact in float32 in any order and every element is compared bit by bit. */
#include "../unit/test.h"

#include <math.h>

#include "base/dtype.h"
#include "common/gemm_experts.h"
#include "gpu.h"

/* The product: C [rows][columns] = A [rows][k] * B^T, rows grouped by expert. */
struct product {
    int dtype;
    enum gemm_out_type out;
    bool packed;
    uint32_t group, out_group; /* groups of A, and of C in FP8 */
    uint32_t experts, k, columns;
    const uint32_t *count;
    uint32_t gap; /* unused rows between experts */
};

static const uint32_t counts[] = {0, 1, 8, 9, 33, 64, 65, 0, 128, 130, 144, 145};
/* More tiles in a column than a panel has, for several experts and for one. */
static const uint32_t many[] = {700, 3, 650}, dense[] = {2200};

static void ok(cudaError_t code)
{
    if (code != cudaSuccess)
        fail_msg("%s", cudaGetErrorString(code));
}

static void *on_device(const void *from, size_t bytes)
{
    void *to = NULL;

    ok(cudaMalloc(&to, bytes + 16));
    ok(cudaMemcpy(to, from, bytes, cudaMemcpyHostToDevice));
    return to;
}

static void *array(size_t n, size_t size)
{
    void *p = calloc(n + 1, size);

    assert_non_null(p);
    return p;
}

static size_t bytes_of(int dtype)
{
    return dtype == EPA_FP8_E4M3 ? 1 : dtype == EPA_F32 ? 4 : 2;
}

static void store(int dtype, void *to, size_t i, float v)
{
    if (dtype == EPA_FP8_E4M3)
        ((uint8_t *)to)[i] = e4m3_of_float(v);
    else if (dtype == EPA_F32)
        ((float *)to)[i] = v;
    else
        ((uint16_t *)to)[i] = word_of_float(dtype == EPA_F16, v);
}

/* A problem in host and device memory. */
struct made {
    struct product p;
    uint32_t weight_rows;
    uint64_t rows; /* rows of A and C, including gaps */
    uint64_t start[16];
    uint32_t *owner;           /* [rows]: expert, or ~0 for a gap */
    uint32_t blocks, k_blocks; /* FP8: scale blocks of weight_rows and of K */
    float *a, *b, *a_scale, *b_scale;
    void *device[8];
    struct gemm_args args;
};

static int out_dtype(const struct product *p)
{
    const int of[GEMM_OUTS] = {EPA_BF16, EPA_F16, EPA_F32, EPA_FP8_E4M3};

    return of[p->out];
}

static void make_inputs(struct made *m, uint64_t seed)
{
    const struct product *p = &m->p;
    uint64_t state = seed * 0x9e3779b97f4a7c15u + 1;
    size_t a = m->rows * p->k, b = (size_t)p->experts * m->weight_rows * p->k;

    m->a = array(a, sizeof(float));
    m->b = array(b, sizeof(float));
    m->a_scale = array(a / p->group, sizeof(float));
    m->b_scale = array((size_t)p->experts * m->blocks * m->k_blocks, sizeof(float));
    for (size_t i = 0; i < a; i++)
        m->a[i] = (float)((int)((next_random(&state) >> 20) % 5) - 2) / 16;
    for (size_t i = 0; i < b; i++)
        m->b[i] = (float)((int)((next_random(&state) >> 20) % 5) - 2);
    for (size_t i = 0; i < a / p->group; i++)
        m->a_scale[i] = ldexpf(1, (int)((next_random(&state) >> 20) % 3) - 1);
    for (size_t i = 0; i < (size_t)p->experts * m->blocks * m->k_blocks; i++)
        m->b_scale[i] = ldexpf(1, (int)((next_random(&state) >> 20) % 3) - 1);
}

static void *stored(int dtype, const float *v, size_t n)
{
    void *host = array(n, bytes_of(dtype)), *to;

    for (size_t i = 0; i < n; i++)
        store(dtype, host, i, v[i]);
    to = on_device(host, n * bytes_of(dtype));
    free(host);
    return to;
}

static void begin(struct made *m, const struct product *p, uint64_t seed)
{
    struct gemm_packing packing;
    size_t out;

    memset(m, 0, sizeof(*m));
    m->p = *p;
    m->weight_rows = p->columns;
    m->blocks = (p->columns + 127) / 128;
    m->k_blocks = (p->k + 127) / 128;
    for (uint32_t e = 0; e < p->experts; e++) {
        m->start[e] = m->rows;
        m->rows += p->count[e] + p->gap;
    }
    m->owner = array(m->rows, sizeof(*m->owner));
    memset(m->owner, 0xff, m->rows * sizeof(*m->owner));
    for (uint32_t e = 0; e < p->experts; e++)
        for (uint32_t i = 0; i < p->count[e]; i++)
            m->owner[m->start[e] + i] = e;
    make_inputs(m, seed);
    out = m->rows * p->columns * bytes_of(out_dtype(p));
    m->device[0] = stored(p->dtype, m->a, m->rows * p->k);
    m->device[1] = stored(p->dtype, m->b, (size_t)p->experts * m->weight_rows * p->k);
    m->device[2] = on_device(m->a_scale, m->rows * p->k / p->group * sizeof(float));
    m->device[3] =
        on_device(m->b_scale, (size_t)p->experts * m->blocks * m->k_blocks * sizeof(float));
    m->device[4] = on_device(p->count, p->experts * sizeof(*p->count));
    m->device[5] = on_device(m->start, p->experts * sizeof(*m->start));
    ok(cudaMalloc(&m->device[6],
                  out + m->rows * (p->columns + 127) / p->out_group * sizeof(float)));
    ok(cudaMemset(m->device[6], 0xff,
                  out + m->rows * (p->columns + 127) / p->out_group * sizeof(float)));
    m->args = (struct gemm_args){
        .experts = p->experts,
        .k_blocks = (p->k * (uint32_t)bytes_of(p->dtype) + GEMM_BLOCK - 1) / GEMM_BLOCK,
        .weight_rows = m->weight_rows,
        .weight_blocks = m->blocks,
        .second = GEMM_BOX,
        .step = 2 * GEMM_BOX,
        .columns = p->columns,
        .count = m->device[4],
        .start = p->gap != 0 ? m->device[5] : NULL,
        .row_scale = m->device[2],
        .row_scale_stride = p->k / p->group,
        .row_group = p->group,
        .row_groups = p->k / p->group,
        .weight_scale = m->device[3],
        .out = m->device[6],
        .out_stride = p->columns * bytes_of(out_dtype(p)),
        .out_scale = (float *)((char *)m->device[6] + out),
        .out_group = p->out_group,
    };
    m->args.tiles = (p->columns + m->args.step - 1) / m->args.step;
    assert_true(gemm_map_rows(&m->args.rows, p->dtype, m->device[0], m->rows, p->k,
                              p->k * bytes_of(p->dtype)));
    assert_true(gemm_map_weights(&m->args.weights, p->dtype, m->device[1],
                                 (uint64_t)p->experts * m->weight_rows, p->k, GEMM_BOX));
    if (!p->packed)
        return;
    packing = (struct gemm_packing){m->args.k_blocks, m->weight_rows, m->args.second,
                                    m->args.tiles,    m->args.step,   p->k * bytes_of(p->dtype)};
    ok(cudaMalloc(&m->device[7], gemm_packed_bytes(&packing, p->experts)));
    ok(gemm_pack(m->device[7], m->device[1], &packing, p->experts, NULL));
    m->args.packed = m->device[7];
    memset(&m->args.weights, 0xff, sizeof(m->args.weights)); /* must not be read */
}

static void finish(struct made *m)
{
    for (size_t i = 0; i < LENGTH(m->device); i++)
        ok(cudaFree(m->device[i]));
    free(m->owner);
    free(m->a);
    free(m->b);
    free(m->a_scale);
    free(m->b_scale);
}

/* Returns the product of row `row` and row `of` of the weights of its expert. */
static float sum_of(const struct made *m, uint64_t row, uint32_t of)
{
    const struct product *p = &m->p;
    uint64_t line = (uint64_t)m->owner[row] * m->weight_rows + of;
    uint64_t block = (uint64_t)m->owner[row] * m->blocks + of / 128;
    const float *a = m->a + row * p->k, *b = m->b + line * p->k;
    float sum = 0;

    for (uint32_t g = 0; g * p->group < p->k; g++) {
        float part = 0;

        for (uint32_t k = g * p->group; k < p->k && k < (g + 1) * p->group; k++)
            part += a[k] * b[k];
        if (p->dtype == EPA_FP8_E4M3)
            part *= m->a_scale[row * (p->k / p->group) + g] *
                    m->b_scale[block * m->k_blocks + g * p->group / 128];
        sum += part;
    }
    return sum;
}

/* Computes the expected row of C, in FP8 with its scales; otherwise these are 1. */
static void expected(const struct made *m, uint64_t row, char *c, float *scale)
{
    const uint32_t group = m->p.out_group;

    for (uint32_t i = 0; i < m->p.columns; i += group) {
        const uint32_t n = m->p.columns - i < group ? m->p.columns - i : group;
        float sum[128], amax = 0, by = 1;

        for (uint32_t j = 0; j < n; j++) {
            sum[j] = sum_of(m, row, i + j);
            amax = fmaxf(amax, fabsf(sum[j]));
        }
        if (m->p.out == GEMM_OUT_FP8 && amax * (1.0f / 448.0f) > 0)
            by = amax * (1.0f / 448.0f);
        for (uint32_t j = 0; j < n; j++)
            store(out_dtype(&m->p), c, i + j, sum[j] / by);
        scale[i / group] = by;
    }
}

static void compare(const struct made *m)
{
    const struct product *p = &m->p;
    size_t line = p->columns * bytes_of(out_dtype(p)),
           scales = (p->columns + p->out_group - 1) / p->out_group;
    char *is = array(m->rows, line), *right = array(1, line);
    float *scale = array(m->rows * scales, sizeof(float)), *by = array(scales, sizeof(float));

    ok(cudaDeviceSynchronize());
    ok(cudaMemcpy(is, m->args.out, m->rows * line, cudaMemcpyDeviceToHost));
    ok(cudaMemcpy(scale, m->args.out_scale, m->rows * scales * sizeof(float),
                  cudaMemcpyDeviceToHost));
    for (uint64_t row = 0; row < m->rows; row++) {
        if (m->owner[row] == ~0u) { /* a gap must not be written */
            memset(right, 0xff, line);
        } else {
            expected(m, row, right, by);
            if (p->out == GEMM_OUT_FP8)
                assert_memory_equal(scale + row * scales, by, scales * sizeof(float));
        }
        assert_memory_equal(is + row * line, right, line);
    }
    free(is);
    free(right);
    free(scale);
    free(by);
}

static uint32_t blocks(void)
{
    int n = 0;

    ok(cudaDeviceGetAttribute(&n, cudaDevAttrMultiProcessorCount, 0));
    return (uint32_t)n;
}

static void check(const struct product *p)
{
    /* Runs with and without merging the last tile into the previous one. */
    for (uint32_t more = 0; more < (p->dtype == EPA_FP8_E4M3 ? 2 : 1); more++) {
        struct made m;

        begin(&m, p, p->k + p->columns);
        m.args.more = more;
        ok(gemm_launch(&m.args, p->dtype, p->out, false, blocks(), NULL));
        compare(&m);
        finish(&m);
    }
}

/* Runs all variants of gemm_launch() except activations, which runs with real experts cover. */
static void check_all(bool packed, uint32_t k, uint32_t columns, uint32_t gap)
{
    const struct {
        int dtype;
        enum gemm_out_type out;
        uint32_t group, out_group;
    } all[] = {
        {EPA_BF16, GEMM_OUT_BF16, 128, 128},     {EPA_BF16, GEMM_OUT_F32, 128, 128},
        {EPA_F16, GEMM_OUT_F16, 128, 128},       {EPA_F16, GEMM_OUT_F32, 128, 128},
        {EPA_FP8_E4M3, GEMM_OUT_FP8, 128, 128},  {EPA_FP8_E4M3, GEMM_OUT_FP8, 128, 64},
        {EPA_FP8_E4M3, GEMM_OUT_BF16, 128, 128}, {EPA_FP8_E4M3, GEMM_OUT_BF16, 64, 128},
        {EPA_FP8_E4M3, GEMM_OUT_F16, 128, 128},  {EPA_FP8_E4M3, GEMM_OUT_F16, 64, 128},
        {EPA_FP8_E4M3, GEMM_OUT_F32, 128, 128},  {EPA_FP8_E4M3, GEMM_OUT_F32, 64, 128},
    };

    for (size_t i = 0; i < LENGTH(all); i++)
        check(&(struct product){all[i].dtype, all[i].out, packed, all[i].group, all[i].out_group,
                                LENGTH(counts), k, columns, counts, gap});
}

TEST(products_of_rows_that_follow_each_other)
{
    check_all(false, 256, 384, 0);
}

TEST(products_of_rows_with_gaps_and_packed_weights)
{
    check_all(true, 384, 256, 3);
}

/* K and columns end within a block, a box and a tile, as in gpt-oss. */
TEST(products_that_end_within_a_block_and_a_box)
{
    static const struct {
        int dtype;
        enum gemm_out_type out;
        uint32_t group, out_group, k, columns;
    } all[] = {
        {EPA_BF16, GEMM_OUT_BF16, 128, 128, 96, 160},
        {EPA_BF16, GEMM_OUT_F32, 128, 128, 352, 32},
        {EPA_F16, GEMM_OUT_F16, 128, 128, 160, 480},
        {EPA_F16, GEMM_OUT_F32, 128, 128, 32, 288},
        {EPA_FP8_E4M3, GEMM_OUT_FP8, 64, 64, 320, 192},
        {EPA_FP8_E4M3, GEMM_OUT_FP8, 64, 128, 192, 384},
        {EPA_FP8_E4M3, GEMM_OUT_FP8, 128, 64, 384, 320},
        {EPA_FP8_E4M3, GEMM_OUT_BF16, 64, 128, 64, 448},
        {EPA_FP8_E4M3, GEMM_OUT_F16, 64, 128, 576, 64},
        {EPA_FP8_E4M3, GEMM_OUT_F32, 64, 128, 192, 192},
        {EPA_FP8_E4M3, GEMM_OUT_BF16, 128, 128, 256, 224},
    };

    for (size_t i = 0; i < LENGTH(all); i++)
        for (int packed = 0; packed < 2; packed++)
            check(&(struct product){all[i].dtype, all[i].out, packed != 0, all[i].group,
                                    all[i].out_group, LENGTH(counts), all[i].k, all[i].columns,
                                    counts, 3 * (uint32_t)packed});
}

TEST(products_of_many_rows)
{
    check(&(struct product){EPA_FP8_E4M3, GEMM_OUT_F32, false, 128, 128, LENGTH(many), 128, 640,
                            many, 0});
    check(&(struct product){EPA_BF16, GEMM_OUT_F32, true, 128, 128, LENGTH(dense), 128, 640, dense,
                            0});
}

/* Runs a product whose rows have these scales in turn. */
static void multiply_scaled(struct made *m, const float *scale, uint32_t scales)
{
    static const uint32_t rows[] = {5, 12, 30, 60, 100};

    begin(m,
          &(struct product){EPA_FP8_E4M3, GEMM_OUT_FP8, false, 128, 128, LENGTH(rows), 128, 128,
                            rows, 0},
          3);
    for (uint64_t row = 0; row < m->rows; row++)
        m->a_scale[row] = scale[row % scales];
    ok(cudaMemcpy(m->device[2], m->a_scale, m->rows * sizeof(float), cudaMemcpyHostToDevice));
    ok(gemm_launch(&m->args, EPA_FP8_E4M3, GEMM_OUT_FP8, false, blocks(), NULL));
}

TEST(scales_without_a_normal_reciprocal)
{
    struct made m;

    multiply_scaled(&m, (const float[]){0x1p-130f, 0x1p110f, 0}, 3);
    compare(&m);
    finish(&m);
}

/* Infinity becomes the largest code and does not affect the scale; NaN stays NaN. */
TEST(rows_that_are_not_finite)
{
    uint8_t code[128], nan_code = 0x7f;
    struct made m;
    float scale;

    multiply_scaled(&m, (const float[]){INFINITY, NAN}, 2);
    ok(cudaDeviceSynchronize());
    for (uint64_t row = 0; row < m.rows; row++) {
        ok(cudaMemcpy(code, m.args.out + row * 128, 128, cudaMemcpyDeviceToHost));
        ok(cudaMemcpy(&scale, m.args.out_scale + row, sizeof(scale), cudaMemcpyDeviceToHost));
        assert_true(scale == 1);
        for (uint32_t i = 0; i < 128; i++) {
            float sum = sum_of(&m, row, i); /* infinite, or NaN if the products cancel */

            if ((code[i] & 0x7f) != (isinf(sum) ? 0x7e : nan_code) ||
                (isinf(sum) && (code[i] >> 7) != (sum < 0)))
                fail_msg("row %llu, column %u: 0x%02x of %g", (unsigned long long)row, i, code[i],
                         (double)sum);
        }
    }
    finish(&m);
}

TEST_GROUP(want_gpu, NULL)
