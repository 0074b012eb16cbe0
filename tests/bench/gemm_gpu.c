/* Times the matrix products of plugins/common/gemm_experts.h on a GPU of compute capability 9.0:
 * dense beside cuBLAS, where libcublas.so.13 can be loaded, and those of a DeepSeek-V3 layer's 64
 * local experts (hidden 7168, ffn 2048) beside what reading their weights takes.
 *
 * A GPU lowers its clock when it draws too much power, so that only what ran in turn can be
 * compared, on random data: all programs of a line take turns, and the median counts. Before each,
 * 8 GiB are written, so that L2 is cold and the chip cool. */
#include <dlfcn.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include <cublas_v2.h>
#include <cuda_runtime_api.h>

#include "base/dtype.h"
#include "common/gemm_experts.h"

enum { ROUNDS = 11, EXPERTS = 64, HIDDEN = 7168, FFN = 2048, CHUNK = 96 << 20 };

static const double memory_rate = 4.55e12; /* bytes/s, loads alone, as measured on an H200 */

static void ok(cudaError_t code)
{
    if (code == cudaSuccess)
        return;
    fprintf(stderr, "bench-gemm-gpu: %s\n", cudaGetErrorString(code));
    exit(1);
}

static cudaStream_t stream;
static uint32_t blocks;
static void *flush;
static const size_t flush_bytes = 8ull << 30;

/* Something on a line that is timed. */
struct program {
    const char *name;
    void (*run)(const struct program *);
    struct gemm_args first, then; /* `then`: of a pair, experts > 0 */
    int dtype;
    bool swiglu;
    enum gemm_out_type out;
    uint32_t m, n, k; /* cuBLAS */
    const void *a, *b;
    void *c;
    double flops;
    float us[ROUNDS];
};

static void run_gemm(const struct program *p)
{
    ok(gemm_launch(&p->first, p->dtype, p->out, p->swiglu, blocks, stream));
    if (p->then.experts > 0)
        ok(gemm_launch(&p->then, p->dtype, GEMM_OUT_BF16, false, blocks, stream));
}

/* ---- cuBLAS ---- */

static struct {
    cublasHandle_t handle;
    cublasStatus_t (*gemm)(cublasHandle_t, cublasOperation_t, cublasOperation_t, int, int, int,
                           const void *, const void *, cudaDataType, int, const void *,
                           cudaDataType, int, const void *, void *, cudaDataType, int,
                           cublasComputeType_t, cublasGemmAlgo_t);
} blas;

static void find(void *library, const char *name, void *out)
{
    void *symbol = dlsym(library, name);

    memcpy(out, &symbol, sizeof(symbol));
}

static void load_cublas(void)
{
    void *library = dlopen("libcublas.so.13", RTLD_NOW);
    cublasStatus_t (*create)(cublasHandle_t *), (*set_stream)(cublasHandle_t, cudaStream_t);
    cublasStatus_t (*set_workspace)(cublasHandle_t, void *, size_t);
    void *workspace;

    if (library == NULL) {
        printf("without cuBLAS: %s\n", dlerror());
        return;
    }
    find(library, "cublasCreate_v2", &create);
    find(library, "cublasSetStream_v2", &set_stream);
    find(library, "cublasSetWorkspace_v2", &set_workspace);
    find(library, "cublasGemmEx", &blas.gemm);
    ok(cudaMalloc(&workspace, 64 << 20));
    if (create(&blas.handle) != CUBLAS_STATUS_SUCCESS ||
        set_stream(blas.handle, stream) != CUBLAS_STATUS_SUCCESS ||
        set_workspace(blas.handle, workspace, 64 << 20) != CUBLAS_STATUS_SUCCESS)
        blas.gemm = NULL;
}

static void run_cublas(const struct program *p)
{
    const float one = 1, zero = 0;

    if (blas.gemm(blas.handle, CUBLAS_OP_T, CUBLAS_OP_N, (int)p->n, (int)p->m, (int)p->k, &one,
                  p->b, CUDA_R_16BF, (int)p->k, p->a, CUDA_R_16BF, (int)p->k, &zero, p->c,
                  CUDA_R_16BF, (int)p->n, CUBLAS_COMPUTE_32F,
                  CUBLAS_GEMM_DEFAULT) != CUBLAS_STATUS_SUCCESS) {
        fprintf(stderr, "bench-gemm-gpu: cuBLAS failed\n");
        exit(1);
    }
}

/* ---- timing ---- */

static int by_value(const void *a, const void *b)
{
    float x = *(const float *)a, y = *(const float *)b;

    return (x > y) - (x < y);
}

static void measure(struct program *p, int n)
{
    cudaEvent_t begin, end;

    ok(cudaEventCreate(&begin));
    ok(cudaEventCreate(&end));
    for (int round = -2; round < ROUNDS; round++)
        for (int i = 0; i < n; i++) {
            float ms;

            ok(cudaMemsetAsync(flush, round, flush_bytes, stream));
            ok(cudaEventRecord(begin, stream));
            p[i].run(&p[i]);
            ok(cudaEventRecord(end, stream));
            ok(cudaEventSynchronize(end));
            ok(cudaEventElapsedTime(&ms, begin, end));
            if (round >= 0)
                p[i].us[round] = ms * 1000;
        }
    for (int i = 0; i < n; i++)
        qsort(p[i].us, ROUNDS, sizeof(float), by_value);
    ok(cudaEventDestroy(begin));
    ok(cudaEventDestroy(end));
}

static void show(const char *what, const struct program *p, int n, double floor_us)
{
    printf("%-30s", what);
    if (floor_us > 0)
        printf(" weights %.0f us;", floor_us);
    for (int i = 0; i < n; i++)
        printf("%s %s %.0f us (%.0f..%.0f) %.0f TFLOP/s", i > 0 ? "," : "", p[i].name,
               (double)p[i].us[ROUNDS / 2], (double)p[i].us[0], (double)p[i].us[ROUNDS - 1],
               p[i].flops / (double)p[i].us[ROUNDS / 2] * 1e-6);
    printf("\n");
    fflush(stdout);
}

/* ---- data ---- */

static char *random_values(int dtype)
{
    char *p = malloc(CHUNK);
    uint64_t s = 88172645463325252u;

    if (p == NULL)
        abort();
    for (size_t i = 0; i < CHUNK / 2; i++) {
        float v[2];

        for (int j = 0; j < 2; j++) { /* near a normal distribution */
            s ^= s << 13;
            s ^= s >> 7;
            s ^= s << 17;
            v[j] = (float)((int)(s & 255) + (int)(s >> 8 & 255) + (int)(s >> 16 & 255) +
                           (int)(s >> 24 & 255) - 510) /
                   148;
        }
        if (dtype == EPA_FP8_E4M3) {
            ((uint8_t *)p)[2 * i] = e4m3_of_float(v[0] * 32);
            ((uint8_t *)p)[2 * i + 1] = e4m3_of_float(v[1] * 32);
        } else {
            ((uint16_t *)p)[i] = bf16_of_float(v[0]);
        }
    }
    return p;
}

static void *device_values(const char *chunk, size_t bytes)
{
    char *to;

    ok(cudaMalloc((void **)&to, bytes));
    for (size_t at = 0; at < bytes; at += CHUNK)
        ok(cudaMemcpy(to + at, at == 0 ? chunk : to, bytes - at < CHUNK ? bytes - at : CHUNK,
                      at == 0 ? cudaMemcpyHostToDevice : cudaMemcpyDeviceToDevice));
    return to;
}

static float *device_scales(size_t n)
{
    float *host = malloc(n * sizeof(*host)), *to;

    if (host == NULL)
        abort();
    for (size_t i = 0; i < n; i++)
        host[i] = (float)(1 + i % 7) * 1e-4f;
    ok(cudaMalloc((void **)&to, n * sizeof(*to)));
    ok(cudaMemcpy(to, host, n * sizeof(*to), cudaMemcpyHostToDevice));
    free(host);
    return to;
}

/* C [rows of all experts][columns] = A [..][k] * B^T; B [experts][weight_rows][k]. */
static struct gemm_args product(int dtype, const void *a, const float *a_scale, const void *b,
                                const float *b_scale, uint32_t experts, uint64_t rows, uint32_t k,
                                uint32_t weight_rows, bool swiglu, const uint32_t *count, void *c,
                                size_t c_bytes, float *c_scale)
{
    uint32_t columns = swiglu ? weight_rows / 2 : weight_rows,
             bytes = dtype == EPA_FP8_E4M3 ? 1 : 2;
    struct gemm_args g = {
        .experts = experts,
        .k_blocks = k * bytes / GEMM_BLOCK,
        .weight_rows = weight_rows,
        .second = swiglu ? columns : GEMM_BOX,
        .step = swiglu ? GEMM_BOX : 2 * GEMM_BOX,
        .columns = columns,
        .count = count,
        .row_scale = a_scale,
        .row_scale_stride = k / GEMM_FP8_GROUP,
        .row_group = GEMM_FP8_GROUP,
        .weight_scale = b_scale,
        .out = c,
        .out_stride = columns * c_bytes,
        .out_scale = c_scale,
        .out_group = GEMM_FP8_GROUP,
    };

    g.tiles = (columns + g.step - 1) / g.step;
    if (!gemm_map_rows(&g.rows, dtype, a, rows, k, (size_t)k * bytes) ||
        !gemm_map_weights(&g.weights, dtype, b, (uint64_t)experts * weight_rows, k, GEMM_BOX)) {
        fprintf(stderr, "bench-gemm-gpu: no tensor map\n");
        exit(1);
    }
    return g;
}

static const char *pack(struct gemm_args *g, const void *weights)
{
    const struct gemm_packing p = {g->k_blocks, g->weight_rows, g->second, g->tiles, g->step};
    char *to;

    ok(cudaMalloc((void **)&to, gemm_packed_bytes(&p, g->experts)));
    ok(gemm_pack(to, weights, &p, g->experts, stream));
    ok(cudaStreamSynchronize(stream));
    g->packed = to;
    return to;
}

static const uint32_t *device_counts(const uint32_t *count, uint32_t n)
{
    uint32_t *to;

    ok(cudaMalloc((void **)&to, n * sizeof(*to)));
    ok(cudaMemcpy(to, count, n * sizeof(*to), cudaMemcpyHostToDevice));
    return to;
}

static void drop(const void *p)
{
    ok(cudaFree((void *)(uintptr_t)p));
}

/* ---- lines ---- */

static void dense(int dtype, const char *chunk, uint32_t m, uint32_t n, uint32_t k)
{
    size_t bytes = dtype == EPA_FP8_E4M3 ? 1 : 2;
    void *a = device_values(chunk, m * k * bytes), *b = device_values(chunk + 1024, n * k * bytes),
         *c;
    float *a_scale = device_scales((size_t)m * k / 128),
          *b_scale = device_scales((size_t)n * k / 16384);
    const uint32_t *count = device_counts(&m, 1);
    struct program p[2] = {{.name = "own", .run = run_gemm, .dtype = dtype, .out = GEMM_OUT_BF16}};
    char what[64];
    int programs = 1;

    ok(cudaMalloc(&c, (size_t)m * n * 2));
    p[0].first = product(dtype, a, a_scale, b, b_scale, 1, m, k, n, false, count, c, 2, NULL);
    if (dtype == EPA_BF16 && blas.gemm != NULL)
        p[programs++] = (struct program){
            .name = "cuBLAS", .run = run_cublas, .m = m, .n = n, .k = k, .a = a, .b = b, .c = c};
    measure(p, programs);
    snprintf(what, sizeof(what), "%s %u x %u x %u", dtype == EPA_BF16 ? "bf16" : "fp8", m, n, k);
    p[0].flops = p[1].flops = 2.0 * m * n * k;
    show(what, p, programs, 0);
    drop(a), drop(b), drop(c), drop(a_scale), drop(b_scale), drop(count);
}

/* `hot` of the experts have `rows` rows, the others none. */
static void experts(int dtype, const char *chunk, uint32_t hot, uint32_t rows)
{
    const size_t bytes = dtype == EPA_FP8_E4M3 ? 1 : 2, all = (size_t)hot * rows;
    const size_t weights = (size_t)EXPERTS * FFN * HIDDEN;
    const enum gemm_out_type out = dtype == EPA_FP8_E4M3 ? GEMM_OUT_FP8 : GEMM_OUT_BF16;
    void *x = device_values(chunk, all * HIDDEN * bytes), *y, *a;
    void *w_up = device_values(chunk + 1024, 2 * weights * bytes);
    void *w_down = device_values(chunk + 2048, weights * bytes);
    float *x_scale = device_scales(all * HIDDEN / 128),
          *up_scale = device_scales(2 * weights / 16384);
    float *a_scale = device_scales(all * FFN / 128), *down_scale = device_scales(weights / 16384);
    uint32_t count[EXPERTS] = {0};
    const uint32_t *counts;
    struct program p[4] = {
        {.name = "up", .run = run_gemm, .dtype = dtype, .out = out, .swiglu = true},
        {.name = "down", .run = run_gemm, .dtype = dtype, .out = GEMM_OUT_BF16}};
    const char *packed[2];
    char what[64];

    for (uint32_t e = 0; e < EXPERTS; e++)
        count[e] = e % (EXPERTS / hot) == 0 ? rows : 0;
    counts = device_counts(count, EXPERTS);
    ok(cudaMalloc(&y, all * HIDDEN * 2));
    ok(cudaMalloc(&a, all * FFN * 2));
    p[0].first = product(dtype, x, x_scale, w_up, up_scale, EXPERTS, all, HIDDEN, 2 * FFN, true,
                         counts, a, bytes, a_scale);
    p[1].first = product(dtype, a, a_scale, w_down, down_scale, EXPERTS, all, FFN, HIDDEN, false,
                         counts, y, 2, NULL);
    p[2] = p[0];
    p[2].name = "both";
    p[2].then = p[1].first;
    p[2].then.early = 1;
    p[3] = p[2];
    p[3].name = "packed";
    packed[0] = pack(&p[3].first, w_up);
    packed[1] = pack(&p[3].then, w_down);
    measure(p, 4);
    snprintf(what, sizeof(what), "%s %u experts x %u rows", dtype == EPA_BF16 ? "bf16" : "fp8", hot,
             rows);
    p[1].flops = 2.0 * (double)all * FFN * HIDDEN;
    p[0].flops = 2 * p[1].flops;
    p[2].flops = p[3].flops = 3 * p[1].flops;
    show(what, p, 2, 0);
    show("", p + 2, 2, 3.0 * (double)weights * (double)bytes * hot / EXPERTS / memory_rate * 1e6);
    drop(x), drop(y), drop(a), drop(w_up), drop(w_down), drop(x_scale), drop(up_scale);
    drop(a_scale), drop(down_scale), drop(counts), drop(packed[0]), drop(packed[1]);
}

int main(void)
{
    static const uint32_t shapes[][3] = {{8192, 8192, 8192},
                                         {8192, 6144, 12288},
                                         {8192, 3584, 8192},
                                         {4096, 7168, 2048},
                                         {32768, 640, 1024}};
    static const uint32_t shapes8[][3] = {
        {4096, 7168, 2048}, {4096, 4096, 7168}, {8192, 8192, 8192}};
    static const uint32_t rows[] = {4, 16, 32, 64, 128, 256, 512, 1024};
    struct cudaDeviceProp device;

    if (cudaGetDeviceProperties(&device, 0) != cudaSuccess || device.major != 9) {
        printf("SKIP: no GPU of compute capability 9.0\n");
        return 77;
    }
    blocks = (uint32_t)device.multiProcessorCount;
    ok(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking));
    ok(cudaMalloc(&flush, flush_bytes));
    load_cublas();
    printf("%s\n", device.name);
    for (int i = 0; i < 2; i++) {
        int dtype = i == 0 ? EPA_BF16 : EPA_FP8_E4M3;
        char *chunk = random_values(dtype);

        for (size_t s = 0; s < (i == 0 ? sizeof(shapes) : sizeof(shapes8)) / sizeof(shapes[0]); s++)
            dense(dtype, chunk, (i == 0 ? shapes : shapes8)[s][0],
                  (i == 0 ? shapes : shapes8)[s][1], (i == 0 ? shapes : shapes8)[s][2]);
        experts(dtype, chunk, 8, 1);
        for (size_t r = 0; r < sizeof(rows) / sizeof(rows[0]); r++)
            experts(dtype, chunk, EXPERTS, rows[r]);
        free(chunk);
    }
    return 0;
}
