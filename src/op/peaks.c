/* What a rank computes at best, measured while all ranks do it. On hosts by all workers: the
 * instruction of the kernels that multiply, and reading memory that no cache holds. On a device by
 * kernels of the backend. */
#include "op/op.h"

#include <math.h>
#include <stdlib.h>

#include <epa2a/wait.h>
#include "epa2a/gemm.h"

enum {
    LINE = 64,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    TURNS = 1, /* no benchmark, but seconds of each test that benches */
    READ_BYTES = 1 << 20,
#else
    TURNS = 5,             /* the best of them counts */
    READ_BYTES = 64 << 20, /* of a worker */
#endif
};

struct measuring {
    const struct epa_gemm *gemm;
    struct op_peaks sum; /* of all workers */
    bool failed;
};

static void add_rate(double *to, double rate)
{
    double have = *to;

    while (!__atomic_compare_exchange(to, &have, &(double){have + rate}, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        ;
}

static void multiply(void *arg, uint32_t worker, uint32_t workers)
{
    struct measuring *s = arg;
    double best = 0;

    (void)worker;
    (void)workers;
    for (uint32_t turn = 0; turn < TURNS; turn++)
        best = fmax(best, s->gemm->peak());
    add_rate(&s->sum.flops_per_ns, best);
}

static void read_memory(void *arg, uint32_t worker, uint32_t workers)
{
    struct measuring *s = arg;
    uint64_t *from = aligned_alloc(LINE, READ_BYTES), sum[8] = {0};
    size_t n = READ_BYTES / sizeof(*from);
    double best = 0;

    (void)worker;
    (void)workers;
    if (from == NULL) {
        __atomic_store_n(&s->failed, true, __ATOMIC_RELAXED);
        return;
    }
    for (size_t i = 0; i < n; i++)
        from[i] = i;
    for (uint32_t turn = 0; turn < TURNS; turn++) {
        uint64_t begin = epa_now_ns();
        double rate;

        for (size_t i = 0; i < n; i += 8)
            for (uint32_t k = 0; k < 8; k++)
                sum[k] += from[i + k];
        from[turn] = sum[turn]; /* so that the sums are wanted */
        rate = READ_BYTES / (double)(epa_now_ns() - begin);
        best = rate > best ? rate : best;
    }
    add_rate(&s->sum.bytes_per_ns, best);
    free(from);
}

enum epa_status op_measure_peaks(struct op_rank *rank, enum epa_dtype dtype, struct op_peaks *out,
                                 struct epa_error *err)
{
    struct epa_backend *b = rank->backend;
    struct measuring s = {.failed = false};
    enum epa_status status = EPA_OK;

    *out = (struct op_peaks){0, 0};
    if (b->memory != EPA_MEMORY_HOST) {
        if (b->ops->peaks == NULL)
            return EPA_OK;
        status = b->ops->peaks(b, dtype, &out->flops_per_ns, &out->bytes_per_ns);
        return op_backend_done(b, status, err, "what the device computes could not be measured");
    }
    s.gemm = epa_gemm_get(dtype, NULL);
    if (s.gemm->peak != NULL)
        status = b->ops->parallel(b, multiply, &s);
    if (status == EPA_OK)
        status = b->ops->parallel(b, read_memory, &s);
    if (status != EPA_OK)
        b->ops->explain(b, err);
    if (s.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to measure what the host computes");
    *out = s.sum;
    return status;
}
