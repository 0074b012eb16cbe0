/* Matrix products by cuBLASLt, which is column-major: a row-major C [m][n] is its D, n x m, and D =
 * B' * A', where B' is the transposed k x n matrix of the weights' rows, and A' is the k x m matrix
 * of the rows of A.
 *
 * The number of rows is fixed when a call is queued, but only the device knows the actual number.
 * The product therefore covers all rows for which there is room. */
#include "cublaslt.h"

#ifdef EPA2A_CUBLASLT
#include <cublasLt.h>
#include <cuda_runtime_api.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "kernels/libraries.h"

enum {
    CANDIDATES = 8, /* maximum number of candidates of the heuristic that are timed */
    TIMES = 3,      /* timed calls per candidate */
    ALIGNMENT = 16,
    GROUP = 128,   /* columns of a scale of FP8 */
    SCALE_LEAD = 4 /* rows of scales of B are padded to a multiple of so many */
};

/* Names of cublasLt.h 12.9 and later. Older libraries reject the values. */
enum { A_SCALE_MODE = 31, B_SCALE_MODE = 32, SCALE_VECTORS = 4, SCALE_BLOCKS = 5 };

/* clang-format off */
#define FUNCTIONS(X)                                                                               \
    X(Create) X(Destroy) X(GetVersion) X(MatmulDescCreate) X(MatmulDescDestroy)                    \
    X(MatmulDescSetAttribute) X(MatrixLayoutCreate) X(MatrixLayoutDestroy)                         \
    X(MatmulPreferenceCreate) X(MatmulPreferenceDestroy) X(MatmulPreferenceSetAttribute)           \
    X(MatmulAlgoGetHeuristic) X(Matmul)
/* clang-format on */

struct api {
#define MEMBER(name) __typeof__(&cublasLt##name) name;
    FUNCTIONS(MEMBER)
};

enum { WEIGHTS, ROWS, OUT, MATRICES }; /* B', A' and D */

struct cublaslt {
    struct api api;
    struct epa_backend *backend;
    struct cublaslt_product product;
    char name[32];
    cublasLtHandle_t handle;
    cublasLtMatmulDesc_t operation;
    cublasLtMatrixLayout_t matrix[MATRICES];
    cublasLtMatmulPreference_t preference;
    cublasLtMatmulHeuristicResult_t candidate[CANDIDATES];
    int candidates;
    cublasLtMatmulAlgo_t algo;
    void *workspace, *bias; /* bias: converted to the type of C */
    void *b_scale;          /* FP8: scales of B with padded rows */
};

static enum epa_status load_library(struct api *out, struct epa_error *err)
{
    static const struct library_function function[] = {
#define ROW(name) {"cublasLt" #name, offsetof(struct api, name)},
        FUNCTIONS(ROW)};

    return library_load(LIBRARY_ID_CUBLASLT, function, sizeof(function) / sizeof(*function), out,
                        err) != NULL
               ? EPA_OK
               : EPA_ERR_UNSUPPORTED;
}

/* ---- matrices and operation ---- */

static cudaDataType_t type_of(const struct cublaslt_product *p)
{
    return p->dtype == EPA_FP8_E4M3 ? CUDA_R_8F_E4M3
           : p->dtype == EPA_F16    ? CUDA_R_16F
                                    : CUDA_R_16BF;
}

static cudaDataType_t out_type_of(const struct cublaslt_product *p)
{
    return p->dtype == EPA_F16 ? CUDA_R_16F : CUDA_R_16BF;
}

static cublasStatus_t make_matrices(struct cublaslt *l)
{
    const struct cublaslt_product *p = &l->product;
    const uint64_t shape[MATRICES][2] = {
        [WEIGHTS] = {p->k, p->n}, [ROWS] = {p->k, p->m}, [OUT] = {p->n, p->m}};
    cublasStatus_t status = CUBLAS_STATUS_SUCCESS;

    for (int i = 0; i < MATRICES && status == CUBLAS_STATUS_SUCCESS; i++)
        status = l->api.MatrixLayoutCreate(&l->matrix[i], i == OUT ? out_type_of(p) : type_of(p),
                                           shape[i][0], shape[i][1], (int64_t)shape[i][0]);
    return status;
}

static cublasStatus_t set_scales(struct cublaslt *l)
{
    static const int32_t mode[] = {SCALE_BLOCKS, SCALE_VECTORS};
    const struct api *d = &l->api;
    cublasStatus_t status = d->MatmulDescSetAttribute(
        l->operation, (cublasLtMatmulDescAttributes_t)A_SCALE_MODE, &mode[0], sizeof(mode[0]));

    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulDescSetAttribute(
            l->operation, (cublasLtMatmulDescAttributes_t)B_SCALE_MODE, &mode[1], sizeof(mode[1]));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_A_SCALE_POINTER,
                                           &l->b_scale, sizeof(l->b_scale));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                           &l->product.a_scale, sizeof(l->product.a_scale));
    return status;
}

static cublasStatus_t make_operation(struct cublaslt *l)
{
    const struct api *d = &l->api;
    const cublasOperation_t transposed = CUBLAS_OP_T;
    const cublasLtEpilogue_t epilogue = CUBLASLT_EPILOGUE_BIAS;
    cublasStatus_t status = d->MatmulDescCreate(&l->operation, CUBLAS_COMPUTE_32F, CUDA_R_32F);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_TRANSA, &transposed,
                                           sizeof(transposed));
    if (status == CUBLAS_STATUS_SUCCESS && l->bias != NULL)
        status = d->MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_EPILOGUE, &epilogue,
                                           sizeof(epilogue));
    if (status == CUBLAS_STATUS_SUCCESS && l->bias != NULL)
        status = d->MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_BIAS_POINTER,
                                           &l->bias, sizeof(l->bias));
    return status == CUBLAS_STATUS_SUCCESS && l->b_scale != NULL ? set_scales(l) : status;
}

static cublasStatus_t find_candidates(struct cublaslt *l)
{
    static const cublasLtMatmulPreferenceAttributes_t alignments[] = {
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_A_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_B_BYTES,
        CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_C_BYTES, CUBLASLT_MATMUL_PREF_MIN_ALIGNMENT_D_BYTES};
    const struct api *d = &l->api;
    const size_t workspace = CUBLASLT_WORKSPACE;
    const uint32_t alignment = ALIGNMENT;
    cublasStatus_t status = d->MatmulPreferenceCreate(&l->preference);

    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulPreferenceSetAttribute(
            l->preference, CUBLASLT_MATMUL_PREF_MAX_WORKSPACE_BYTES, &workspace, sizeof(workspace));
    for (size_t i = 0; i < 4 && status == CUBLAS_STATUS_SUCCESS; i++)
        status = d->MatmulPreferenceSetAttribute(l->preference, alignments[i], &alignment,
                                                 sizeof(alignment));
    if (status == CUBLAS_STATUS_SUCCESS)
        status = d->MatmulAlgoGetHeuristic(l->handle, l->operation, l->matrix[WEIGHTS],
                                           l->matrix[ROWS], l->matrix[OUT], l->matrix[OUT],
                                           l->preference, CANDIDATES, l->candidate, &l->candidates);
    return status == CUBLAS_STATUS_SUCCESS && l->candidates == 0 ? CUBLAS_STATUS_NOT_SUPPORTED
                                                                 : status;
}

/* Converts the bias, since the library adds a bias in the type of C. Fails if the conversion would
 * round a value; own kernels then multiply. */
static enum epa_status convert_bias(struct cublaslt *l, struct epa_error *err)
{
    const struct cublaslt_product *p = &l->product;
    struct epa_backend *b = l->backend;
    float *from = malloc(p->n * sizeof(*from));
    uint16_t *to = malloc(p->n * sizeof(*to));
    bool same = true;
    enum epa_status status = from != NULL && to != NULL ? EPA_OK : EPA_ERR_NOMEM;

    if (status == EPA_OK)
        status = b->ops->read(b, from, p->bias, p->n * sizeof(*from));
    if (status == EPA_OK)
        status = b->ops->sync(b);
    for (uint32_t i = 0; i < p->n && status == EPA_OK; i++) {
        uint32_t bits;

        memcpy(&bits, &from[i], sizeof(bits));
        to[i] = (uint16_t)(bits >> 16);
        same = same && (bits & 0xffff) == 0;
    }
    if (status == EPA_OK && same && p->dtype != EPA_F16)
        status = b->ops->alloc(b, p->n * sizeof(*to), &l->bias);
    if (status == EPA_OK && l->bias != NULL)
        status = b->ops->write(b, l->bias, to, p->n * sizeof(*to));
    if (status == EPA_OK && l->bias != NULL)
        status = b->ops->sync(b);
    free(from);
    free(to);
    if (status != EPA_OK)
        return epa_fail(err, status, "cuBLASLt: the bias could not be converted");
    return l->bias != NULL ? EPA_OK
                           : epa_fail(err, EPA_ERR_UNSUPPORTED,
                                      "%s adds the bias in the type of C, which would round this "
                                      "float32 bias",
                                      l->name);
}

/* Copies the scales of B to rows that are padded. */
static enum epa_status pad_scales(struct cublaslt *l, struct epa_error *err)
{
    const struct cublaslt_product *p = &l->product;
    struct epa_backend *b = l->backend;
    size_t rows = (p->n + GROUP - 1) / GROUP, groups = (p->k + GROUP - 1) / GROUP;
    size_t lead = (groups + SCALE_LEAD - 1) / SCALE_LEAD * SCALE_LEAD;
    float *from = malloc(rows * groups * sizeof(*from)), *to = calloc(rows * lead, sizeof(*to));
    enum epa_status status = from != NULL && to != NULL ? EPA_OK : EPA_ERR_NOMEM;

    if (status == EPA_OK)
        status = b->ops->read(b, from, p->b_scale, rows * groups * sizeof(*from));
    if (status == EPA_OK)
        status = b->ops->sync(b);
    for (size_t i = 0; i < rows && status == EPA_OK; i++)
        memcpy(to + i * lead, from + i * groups, groups * sizeof(*to));
    if (status == EPA_OK)
        status = b->ops->alloc(b, rows * lead * sizeof(*to), &l->b_scale);
    if (status == EPA_OK)
        status = b->ops->write(b, l->b_scale, to, rows * lead * sizeof(*to));
    if (status == EPA_OK)
        status = b->ops->sync(b);
    free(from);
    free(to);
    return status == EPA_OK ? EPA_OK
                            : epa_fail(err, status, "cuBLASLt: no copy of the scales of B");
}

/* ---- the fastest candidate ---- */

static cublasStatus_t queue_product(struct cublaslt *l, const cublasLtMatmulAlgo_t *algo,
                                    const void *a, void *c)
{
    const float one = 1.0f, none = 0.0f;

    return l->api.Matmul(l->handle, l->operation, &one, l->product.b, l->matrix[WEIGHTS], a,
                         l->matrix[ROWS], &none, c, l->matrix[OUT], c, l->matrix[OUT], algo,
                         l->workspace, CUBLASLT_WORKSPACE, l->backend->stream);
}

/* Measures TIMES calls; the result is in *ms. */
static cublasStatus_t time_candidate(struct cublaslt *l, const cublasLtMatmulAlgo_t *algo, void *c,
                                     const cudaEvent_t event[2], float *ms)
{
    cudaStream_t stream = l->backend->stream;
    cublasStatus_t done = queue_product(l, algo, l->product.a, c);
    bool timed = cudaEventRecord(event[0], stream) == cudaSuccess;

    for (int i = 0; i < TIMES && done == CUBLAS_STATUS_SUCCESS; i++)
        done = queue_product(l, algo, l->product.a, c);
    timed = timed && cudaEventRecord(event[1], stream) == cudaSuccess &&
            l->backend->ops->sync(l->backend) == EPA_OK &&
            cudaEventElapsedTime(ms, event[0], event[1]) == cudaSuccess;
    return done != CUBLAS_STATUS_SUCCESS || timed ? done : CUBLAS_STATUS_EXECUTION_FAILED;
}

static enum epa_status choose_algorithm(struct cublaslt *l, struct epa_error *err)
{
    const struct cublaslt_product *p = &l->product;
    cudaEvent_t event[2] = {NULL, NULL};
    struct epa_backend *b = l->backend;
    void *c = NULL;
    cublasStatus_t done = CUBLAS_STATUS_SUCCESS, last = done; /* last: status of the last failure */
    float ms = 0, least = -1;
    enum epa_status status = b->ops->alloc(b, (size_t)p->m * p->n * sizeof(uint16_t), &c);

    for (int i = 0; i < 2 && status == EPA_OK; i++)
        if (cudaEventCreateWithFlags(&event[i], cudaEventDefault) != cudaSuccess)
            status = EPA_ERR_SYSTEM;
    for (int i = 0; i < l->candidates && status == EPA_OK; i++) {
        done = time_candidate(l, &l->candidate[i].algo, c, event, &ms);
        if (done != CUBLAS_STATUS_SUCCESS) {
            last = done;
        } else if (least < 0 || ms < least) {
            least = ms;
            l->algo = l->candidate[i].algo;
        }
    }
    for (int i = 0; i < 2; i++)
        if (event[i] != NULL)
            (void)cudaEventDestroy(event[i]);
    b->ops->free(b, c);
    if (status != EPA_OK)
        return epa_fail(err, status, "cuBLASLt: no memory or events to time candidates on GPU %d",
                        b->device);
    return least >= 0 ? EPA_OK
                      : epa_fail(err, EPA_ERR_UNSUPPORTED,
                                 "%s: all %d candidates fail on GPU %d (status %d)", l->name,
                                 l->candidates, b->device, (int)last);
}

/* ---- set-up and calls ---- */

enum epa_status cublaslt_create(const struct cublaslt_product *p, struct epa_backend *backend,
                                struct cublaslt **out, struct epa_error *err)
{
    struct cublaslt *l = calloc(1, sizeof(*l));
    cublasStatus_t done = CUBLAS_STATUS_SUCCESS;
    enum epa_status status;
    size_t version;

    if (l == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "cuBLASLt: no memory");
    l->backend = backend;
    l->product = *p;
    status = load_library(&l->api, err);
    if (status == EPA_OK && cudaSetDevice(backend->device) != cudaSuccess)
        status = epa_fail(err, EPA_ERR_SYSTEM, "cuBLASLt: no GPU %d", backend->device);
    if (status == EPA_OK) {
        version = l->api.GetVersion(); /* for example 130002, or 120900 */
        snprintf(l->name, sizeof(l->name), "cuBLASLt %zu.%zu.%zu", version / 10000,
                 version / 100 % 100, version % 100);
        done = l->api.Create(&l->handle);
        if (done != CUBLAS_STATUS_SUCCESS)
            status = epa_fail(err, EPA_ERR_UNSUPPORTED, "%s does not start on GPU %d (status %d)",
                              l->name, backend->device, (int)done);
        else if (p->bias != NULL)
            status = convert_bias(l, err);
        if (status == EPA_OK && p->dtype == EPA_FP8_E4M3)
            status = pad_scales(l, err);
    }
    if (status == EPA_OK) {
        done = make_matrices(l);
        if (done == CUBLAS_STATUS_SUCCESS)
            done = make_operation(l);
        if (done == CUBLAS_STATUS_SUCCESS)
            done = find_candidates(l);
        if (done != CUBLAS_STATUS_SUCCESS)
            status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                              "%s cannot multiply %u rows by %u columns, k %u, on GPU %d (status "
                              "%d)",
                              l->name, p->m, p->n, p->k, backend->device, (int)done);
    }
    if (status == EPA_OK) {
        status = backend->ops->alloc(backend, CUBLASLT_WORKSPACE, &l->workspace);
        if (status != EPA_OK)
            (void)epa_fail(err, status, "%s: no memory for the workspace", l->name);
    }
    if (status == EPA_OK)
        status = choose_algorithm(l, err);
    if (status != EPA_OK) {
        cublaslt_destroy(l);
        return status;
    }
    *out = l;
    return EPA_OK;
}

void cublaslt_destroy(struct cublaslt *l)
{
    if (l == NULL)
        return;
    if (l->preference != NULL)
        (void)l->api.MatmulPreferenceDestroy(l->preference);
    for (int i = 0; i < MATRICES; i++)
        if (l->matrix[i] != NULL)
            (void)l->api.MatrixLayoutDestroy(l->matrix[i]);
    if (l->operation != NULL)
        (void)l->api.MatmulDescDestroy(l->operation);
    if (l->handle != NULL)
        (void)l->api.Destroy(l->handle);
    if (l->workspace != NULL)
        l->backend->ops->free(l->backend, l->workspace);
    if (l->bias != NULL)
        l->backend->ops->free(l->backend, l->bias);
    if (l->b_scale != NULL)
        l->backend->ops->free(l->backend, l->b_scale);
    free(l);
}

const char *cublaslt_name(const struct cublaslt *l)
{
    return l->name;
}

enum epa_status cublaslt_multiply(struct cublaslt *l, const void *a, const float *a_scale, void *c,
                                  struct epa_error *err)
{
    cublasStatus_t done = CUBLAS_STATUS_SUCCESS;

    if ((uintptr_t)a % ALIGNMENT != 0 || (uintptr_t)c % ALIGNMENT != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: A at %p or C at %p is not at a multiple of %d",
                        l->name, a, c, ALIGNMENT);
    if (a_scale != NULL)
        done = l->api.MatmulDescSetAttribute(l->operation, CUBLASLT_MATMUL_DESC_B_SCALE_POINTER,
                                             &a_scale, sizeof(a_scale));
    if (done == CUBLAS_STATUS_SUCCESS)
        done = queue_product(l, &l->algo, a, c);
    return done == CUBLAS_STATUS_SUCCESS
               ? EPA_OK
               : epa_fail(err, EPA_ERR_SYSTEM, "%s on GPU %d fails with status %d", l->name,
                          l->backend->device, (int)done);
}
#else
enum epa_status cublaslt_create(const struct cublaslt_product *p, struct epa_backend *backend,
                                struct cublaslt **out, struct epa_error *err)
{
    (void)p, (void)backend, (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "epa2a was built without cublasLt.h");
}

void cublaslt_destroy(struct cublaslt *l)
{
    (void)l;
}

const char *cublaslt_name(const struct cublaslt *l)
{
    (void)l;
    return "cuBLASLt";
}

enum epa_status cublaslt_multiply(struct cublaslt *l, const void *a, const float *a_scale, void *c,
                                  struct epa_error *err)
{
    (void)l, (void)a, (void)a_scale, (void)c;
    return epa_fail(err, EPA_ERR_UNSUPPORTED, "epa2a was built without cublasLt.h");
}
#endif
