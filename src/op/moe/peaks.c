/* What a rank's workers can do at best for real experts, measured while all ranks do it: products
 * of matrices that fit a cache, by the kernels that multiply the experts', and reading memory that does not. */
#include "op/moe/moe.h"

#include <stdlib.h>

#include "base/clock.h"
#include "epa2a/gemm.h"

enum {
    ROWS = 256,
    COLUMNS = 256,
    DEPTH = 512,
    TURNS = 5, /* the best of them counts */
    PRODUCTS = 8,
    READ_BYTES = 64 << 20, /* of a worker */
    LINE = 64,
};

struct peaks {
    const struct op_moe *op;
    const struct epa_gemm *gemm;
    double flops_per_ns, bytes_per_ns; /* of all workers */
    bool failed;
};

static void add_rate(double *to, double rate)
{
    double have = *to;

    while (!__atomic_compare_exchange(to, &have, &(double){have + rate}, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        ;
}

static void fill_rows(const struct op_moe *op, uint32_t rows, char *out)
{
    struct weights w = op->weights;

    w.hidden = DEPTH; /* the length of a row */
    w.integers = false;
    for (uint32_t i = 0; i < rows; i++)
        weights_row(&w, 0, WEIGHTS_UP, i, out + (size_t)i * DEPTH * weights_element(&w));
}

static void multiply(void *arg, uint32_t worker, uint32_t workers)
{
    struct peaks *p = arg;
    bool fp8 = p->op->weights.mlp.dtype == EPA_FP8_E4M3;
    char *a = aligned_alloc(LINE, epa_gemm_a_bytes(ROWS, DEPTH));
    char *b = aligned_alloc(LINE, epa_gemm_b_bytes(EPA_BF16, COLUMNS, DEPTH));
    char *rows = aligned_alloc(LINE, (size_t)ROWS * DEPTH * 2);
    float *c = aligned_alloc(LINE, sizeof(float) * ROWS * COLUMNS), one[DEPTH];
    double best = 0;

    (void)worker;
    (void)workers;
    for (uint32_t i = 0; i < DEPTH; i++)
        one[i] = 1;
    if (a == NULL || b == NULL || rows == NULL || c == NULL) {
        __atomic_store_n(&p->failed, true, __ATOMIC_RELAXED);
    } else {
        struct epa_gemm_call call = {.a = a,
                                     .b = b,
                                     .m = ROWS,
                                     .n = COLUMNS,
                                     .k = DEPTH,
                                     .c = c,
                                     .ldc = COLUMNS,
                                     .a_scale = one,
                                     .b_scale = one};

        fill_rows(p->op, ROWS, rows);
        p->gemm->pack_b(rows, DEPTH, COLUMNS, DEPTH, b);
        for (uint32_t i = 0; i < ROWS; i++)
            if (fp8)
                p->gemm->pack_a_fp8((const uint8_t *)rows + i * DEPTH, NULL, 128, DEPTH, a, i);
            else
                p->gemm->pack_a(rows + (size_t)i * DEPTH * 2, DEPTH, a, i);
        for (uint32_t turn = 0; turn < TURNS; turn++) {
            uint64_t begin = clock_ns();
            double rate;

            for (uint32_t i = 0; i < PRODUCTS; i++)
                p->gemm->multiply(&call);
            rate = 2.0 * ROWS * COLUMNS * DEPTH * PRODUCTS / (double)(clock_ns() - begin);
            best = rate > best ? rate : best;
        }
        add_rate(&p->flops_per_ns, best);
    }
    free(a);
    free(b);
    free(rows);
    free(c);
}

static void read_memory(void *arg, uint32_t worker, uint32_t workers)
{
    struct peaks *p = arg;
    uint64_t *from = aligned_alloc(LINE, READ_BYTES), sum[8] = {0};
    size_t n = READ_BYTES / sizeof(*from);
    double best = 0;

    (void)worker;
    (void)workers;
    if (from == NULL) {
        __atomic_store_n(&p->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (size_t i = 0; i < n; i++)
        from[i] = i;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint64_t begin = clock_ns();
        double rate;

        for (size_t i = 0; i < n; i += 8)
            for (uint32_t k = 0; k < 8; k++)
                sum[k] += from[i + k];
        from[turn] = sum[turn]; /* so that the sums are wanted */
        rate = READ_BYTES / (double)(clock_ns() - begin);
        best = rate > best ? rate : best;
    }
    add_rate(&p->bytes_per_ns, best);
    free(from);
}

enum epa_status op_moe_measure(struct op_rank *rank, struct op_peaks *out, struct epa_error *err)
{
    const struct op_moe *op = op_moe_of(rank);
    struct peaks p = {.op = op};
    enum epa_status status;

    *out = (struct op_peaks){0, 0};
    if (op->weights.mlp.ffn == 0 || op->backend->memory != EPA_MEMORY_HOST)
        return EPA_OK;
    p.gemm = epa_gemm_get((enum epa_dtype)op->weights.mlp.dtype, NULL);
    status = op->backend->ops->parallel(op->backend, multiply, &p);
    if (status == EPA_OK)
        status = op->backend->ops->parallel(op->backend, read_memory, &p);
    if (status != EPA_OK)
        op->backend->ops->explain(op->backend, err);
    if (p.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to measure what the host computes");
    out->flops_per_ns = p.flops_per_ns;
    out->bytes_per_ns = p.bytes_per_ns;
    return status;
}
