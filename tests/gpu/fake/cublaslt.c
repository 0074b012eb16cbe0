/* A libcublasLt.so.13 for the simulated CUDA that multiplies on the CPU, in float and in stream
 * order, as its descriptors specify. Its first candidate takes 10 s by the clock of the stream and
 * writes wrong values: it must not be chosen. Products with one column are unsupported; products
 * with two columns are announced as supported, and each call fails. FP8 needs scales of B for blocks
 * of 128 x 128, scales of A for 128 columns, and a multiple of 4 rows. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "fake_cuda.h"

#define EXPORTED __attribute__((visibility("default")))

enum { CANDIDATES = 2, GROUP = 128 };

struct matrix {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};

struct operation {
    bool transposed, bias;
    const uint16_t *bias_of;
    const float *scale[2]; /* of the first matrix by block, of the second by row */
    int32_t mode[2];
};

struct product {
    struct operation o;
    struct matrix a, b, d;
    const void *a_at, *b_at;
    uint16_t *d_at;
    bool slow;
};

static void read_column(const struct matrix *m, const void *at, uint64_t column, float *out)
{
    for (uint64_t x = 0; x < m->rows; x++) {
        uint64_t i = column * (uint64_t)m->ld + x;

        out[x] = m->type == CUDA_R_8F_E4M3
                     ? float_of_e4m3(((const uint8_t *)at)[i])
                     : float_of_word(m->type == CUDA_R_16F, ((const uint16_t *)at)[i]);
    }
}

/* Sums the products of each group, times the scales of the group. */
static float scaled_sum(const struct product *p, uint64_t i, uint64_t j, const float *weights,
                        const float *row)
{
    uint64_t k = p->a.rows, groups = (k + GROUP - 1) / GROUP, lead = (groups + 3) / 4 * 4;
    float all = 0;

    for (uint64_t g = 0; g < groups; g++) {
        float sum = 0;

        for (uint64_t x = g * GROUP; x < k && x < (g + 1) * GROUP; x++)
            sum += weights[x] * row[x];
        all += sum * (p->o.scale[1][g * p->b.columns + j] * p->o.scale[0][i / GROUP * lead + g]);
    }
    return all;
}

static void multiply(void *data)
{
    const struct product *p = data;
    uint64_t k = p->a.rows;
    bool f16 = p->d.type == CUDA_R_16F, fp8 = p->a.type == CUDA_R_8F_E4M3;
    float *row = malloc(k * sizeof(*row)), *weights = malloc(p->a.columns * k * sizeof(*weights));

    for (uint64_t i = 0; i < p->a.columns; i++)
        read_column(&p->a, p->a_at, i, weights + i * k);
    if (p->slow)
        fake_takes(10000000000u);
    for (uint64_t j = 0; j < p->b.columns; j++) {
        read_column(&p->b, p->b_at, j, row);
        for (uint64_t i = 0; i < p->a.columns; i++) {
            float sum = fp8 ? scaled_sum(p, i, j, weights + i * k, row) : 0;

            for (uint64_t x = 0; x < k && !fp8; x++)
                sum += weights[i * k + x] * row[x];
            if (p->o.bias)
                sum += float_of_word(f16, p->o.bias_of[i]);
            p->d_at[j * (uint64_t)p->d.ld + i] = word_of_float(f16, p->slow ? sum + 1 : sum);
        }
    }
    free(weights);
    free(row);
}

#define CREATE(name, type, bytes) \
    EXPORTED cublasStatus_t name(type *out) \
    { \
        *out = calloc(1, bytes); \
        fake_count(1); \
        return CUBLAS_STATUS_SUCCESS; \
    }
CREATE(cublasLtCreate, cublasLtHandle_t, 1)
CREATE(cublasLtMatmulPreferenceCreate, cublasLtMatmulPreference_t, sizeof(**out))

#define DESTROY(name, type) \
    EXPORTED cublasStatus_t name(type at) \
    { \
        free(at); \
        fake_count(-1); \
        return CUBLAS_STATUS_SUCCESS; \
    }
DESTROY(cublasLtDestroy, cublasLtHandle_t)
DESTROY(cublasLtMatmulDescDestroy, cublasLtMatmulDesc_t)
DESTROY(cublasLtMatrixLayoutDestroy, cublasLtMatrixLayout_t)
DESTROY(cublasLtMatmulPreferenceDestroy, cublasLtMatmulPreference_t)

EXPORTED size_t cublasLtGetVersion(void)
{
    return 130203;
}

EXPORTED cublasStatus_t cublasLtMatmulDescCreate(cublasLtMatmulDesc_t *out,
                                                 cublasComputeType_t compute, cudaDataType_t scale)
{
    *out = calloc(1, sizeof(**out));
    fake_count(1);
    return compute == CUBLAS_COMPUTE_32F && scale == CUDA_R_32F ? CUBLAS_STATUS_SUCCESS
                                                                : CUBLAS_STATUS_NOT_SUPPORTED;
}

EXPORTED cublasStatus_t cublasLtMatmulDescSetAttribute(cublasLtMatmulDesc_t d,
                                                       cublasLtMatmulDescAttributes_t which,
                                                       const void *value, size_t bytes)
{
    struct operation *o = (void *)d;

    if (which == CUBLASLT_MATMUL_DESC_TRANSA)
        o->transposed = *(const cublasOperation_t *)value == CUBLAS_OP_T;
    else if (which == CUBLASLT_MATMUL_DESC_EPILOGUE)
        o->bias = *(const cublasLtEpilogue_t *)value == CUBLASLT_EPILOGUE_BIAS;
    else if (which == CUBLASLT_MATMUL_DESC_BIAS_POINTER)
        memcpy(&o->bias_of, value, bytes);
    else if (which == CUBLASLT_MATMUL_DESC_A_SCALE_POINTER)
        memcpy(&o->scale[0], value, bytes);
    else if (which == CUBLASLT_MATMUL_DESC_B_SCALE_POINTER)
        memcpy(&o->scale[1], value, bytes);
    else if (which == (cublasLtMatmulDescAttributes_t)31) /* CUBLASLT_MATMUL_DESC_A_SCALE_MODE */
        memcpy(&o->mode[0], value, bytes);
    else if (which == (cublasLtMatmulDescAttributes_t)32)
        memcpy(&o->mode[1], value, bytes);
    else
        return CUBLAS_STATUS_INVALID_VALUE;
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatrixLayoutCreate(cublasLtMatrixLayout_t *out, cudaDataType type,
                                                   uint64_t rows, uint64_t columns, int64_t ld)
{
    const struct matrix m = {type, rows, columns, ld};

    *out = calloc(1, sizeof(**out));
    memcpy(*out, &m, sizeof(m));
    fake_count(1);
    return rows > 0 && columns > 0 && ld >= (int64_t)rows ? CUBLAS_STATUS_SUCCESS
                                                          : CUBLAS_STATUS_INVALID_VALUE;
}

EXPORTED cublasStatus_t cublasLtMatmulPreferenceSetAttribute(
    cublasLtMatmulPreference_t p, cublasLtMatmulPreferenceAttributes_t which, const void *value,
    size_t bytes)
{
    return CUBLAS_STATUS_SUCCESS;
}

/* D = A^T * B requires matching shapes. */
static bool fits(const struct operation *o, const struct matrix *a, const struct matrix *b,
                 const struct matrix *d)
{
    return o->transposed && a->rows == b->rows && d->rows == a->columns && d->columns == b->columns;
}

/* Returns false for FP8 without scales. 5 and 4 are CUBLASLT_MATMUL_MATRIX_SCALE_BLK128x128_32F and
 * CUBLASLT_MATMUL_MATRIX_SCALE_VEC128_32F of cublasLt.h 12.9. */
static bool has_scales(const struct operation *o, const struct matrix *a, const struct matrix *b)
{
    return a->type != CUDA_R_8F_E4M3 || (o->mode[0] == 5 && o->mode[1] == 4 && b->columns % 4 == 0);
}

EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int n, cublasLtMatmulHeuristicResult_t *out, int *found)
{
    if (!fits((void *)o, (void *)a, (void *)b, (void *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (((const struct matrix *)(void *)d)->rows == 1 ||
        !has_scales((void *)o, (void *)a, (void *)b))
        return CUBLAS_STATUS_NOT_SUPPORTED;
    *found = n < CANDIDATES ? n : CANDIDATES;
    for (int i = 0; i < *found; i++) {
        out[i] = (cublasLtMatmulHeuristicResult_t){.state = CUBLAS_STATUS_SUCCESS};
        out[i].algo.data[0] = (uint64_t)i;
    }
    return CUBLAS_STATUS_SUCCESS;
}

EXPORTED cublasStatus_t cublasLtMatmul(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t o, const void *alpha, const void *a,
    cublasLtMatrixLayout_t a_of, const void *b, cublasLtMatrixLayout_t b_of, const void *beta,
    const void *c, cublasLtMatrixLayout_t c_of, void *d, cublasLtMatrixLayout_t d_of,
    const cublasLtMatmulAlgo_t *algo, void *workspace, size_t bytes, cudaStream_t stream)
{
    union {
        struct product product;
        char bytes[(sizeof(struct product) + 15) / 16 * 16]; /* size as required by fake_queue() */
    } x = {.product = {.a_at = a, .b_at = b, .d_at = d, .slow = algo->data[0] == 0}};

    if (((const struct matrix *)(void *)d_of)->rows == 2)
        return CUBLAS_STATUS_EXECUTION_FAILED;
    memcpy(&x.product.o, o, sizeof(x.product.o));
    memcpy(&x.product.a, a_of, sizeof(x.product.a));
    memcpy(&x.product.b, b_of, sizeof(x.product.b));
    memcpy(&x.product.d, d_of, sizeof(x.product.d));
    return fake_queue(stream, multiply, &x, sizeof(x)) == cudaSuccess
               ? CUBLAS_STATUS_SUCCESS
               : CUBLAS_STATUS_EXECUTION_FAILED;
}
