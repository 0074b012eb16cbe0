/* A libcublasLt.so.13 for the simulated CUDA that multiplies on the CPU, in float and in stream
 * order, as its descriptors specify. Its first candidate takes 10 s by the clock of the stream and
 * writes wrong values: it must not be chosen. Products with one column are unsupported; products
 * with two columns are announced as supported, and each call fails. */
#include <cublasLt.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "fake_cuda.h"

#define EXPORTED __attribute__((visibility("default")))

enum { CANDIDATES = 2 };

struct matrix {
    cudaDataType_t type;
    uint64_t rows, columns;
    int64_t ld;
};

struct operation {
    bool transposed, bias;
    const uint16_t *bias_of;
};

struct product {
    struct operation o;
    struct matrix a, b, d;
    const uint16_t *a_at, *b_at;
    uint16_t *d_at;
    bool slow;
};

static void multiply(void *data)
{
    const struct product *p = data;
    uint64_t k = p->a.rows;
    float *row = malloc(k * sizeof(*row)), *weights = malloc(p->a.columns * k * sizeof(*weights));

    for (uint64_t i = 0; i < p->a.columns; i++)
        for (uint64_t x = 0; x < k; x++)
            weights[i * k + x] =
                float_of_word(p->a.type == CUDA_R_16F, p->a_at[i * (uint64_t)p->a.ld + x]);
    if (p->slow)
        fake_takes(10000000000u);
    for (uint64_t j = 0; j < p->b.columns; j++) {
        for (uint64_t x = 0; x < k; x++)
            row[x] = float_of_word(p->b.type == CUDA_R_16F, p->b_at[j * (uint64_t)p->b.ld + x]);
        for (uint64_t i = 0; i < p->a.columns; i++) {
            float sum = 0;

            for (uint64_t x = 0; x < k; x++)
                sum += weights[i * k + x] * row[x];
            if (p->o.bias)
                sum += float_of_word(p->d.type == CUDA_R_16F, p->o.bias_of[i]);
            p->d_at[j * (uint64_t)p->d.ld + i] =
                word_of_float(p->d.type == CUDA_R_16F, p->slow ? sum + 1 : sum);
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

EXPORTED cublasStatus_t cublasLtMatmulAlgoGetHeuristic(
    cublasLtHandle_t handle, cublasLtMatmulDesc_t o, cublasLtMatrixLayout_t a,
    cublasLtMatrixLayout_t b, cublasLtMatrixLayout_t c, cublasLtMatrixLayout_t d,
    cublasLtMatmulPreference_t preference, int n, cublasLtMatmulHeuristicResult_t *out, int *found)
{
    if (!fits((void *)o, (void *)a, (void *)b, (void *)d))
        return CUBLAS_STATUS_INVALID_VALUE;
    if (((const struct matrix *)(void *)d)->rows == 1)
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
