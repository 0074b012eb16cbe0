/* Parts that operations share: buffers, inputs, checks, and peaks of computing. */
#include "op/op.h"

#include <math.h>
#include <stdlib.h>

#include <epa2a/wait.h>
#include "base/memory.h"
#include "base/random.h"
#include "epa2a/gemm.h"

uint32_t op_tokens_of(const struct problem_params *x, uint32_t most, uint32_t rank,
                      uint64_t iteration)
{
    struct random r = {.key = random_key(x->seed, RANDOM_TOKENS, rank, iteration)};
    uint32_t least = x->tokens.min, tokens;

    switch (x->tokens.kind) {
    case TOKENS_RANDOM: /* the limits have a higher probability */
        switch (random_below(&r, 8)) {
        case 0:
            return least;
        case 1:
            return most;
        default:
            return least + random_below(&r, most - least + 1);
        }
    case TOKENS_LIST:
        tokens = x->tokens.per_rank.item[rank];
        return tokens < most ? tokens : most;
    default:
        return most;
    }
}

void op_wrong(struct op_finding *f, const char *fmt, ...)
{
    char text[400];
    va_list args;

    f->wrong++;
    if (f->err == NULL || f->err->status != EPA_OK)
        return;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)epa_fail_key(f->err, EPA_ERR_MISMATCH, OP_PLACED, "rank %u, iteration %llu, %s: %s%s%s",
                       f->rank, (unsigned long long)f->iteration, f->stage, f->where,
                       f->where[0] != 0 ? ": " : "", text);
}

enum epa_status op_backend_done(struct epa_backend *b, enum epa_status status,
                                struct epa_error *err, const char *fmt, ...)
{
    char text[200];
    va_list args;

    if (status == EPA_OK)
        return EPA_OK;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    b->ops->explain(b, err);
    return epa_fail(err, status, "%s", text);
}

enum epa_status op_alloc(struct epa_backend *b, const char *what, uint64_t bytes, void **out,
                         struct epa_error *err)
{
    return op_backend_done(b, b->ops->alloc(b, bytes + OP_SPARE, out), err,
                           "no memory for %s: %llu bytes", what, (unsigned long long)bytes);
}

enum epa_status op_buffer_alloc(struct epa_backend *b, const char *what, uint64_t bytes,
                                struct op_buffer *out, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    *out = (struct op_buffer){0};
    if (bytes != 0)
        status = op_alloc(b, what, bytes, &out->there, err);
    if (status != EPA_OK || bytes == 0)
        return status;
    out->here = b->memory == EPA_MEMORY_HOST ? out->there : malloc(bytes);
    return out->here != NULL ? EPA_OK
                             : epa_fail(err, EPA_ERR_NOMEM, "no memory for %s: %llu bytes", what,
                                        (unsigned long long)bytes);
}

void op_buffer_free(struct epa_backend *b, struct op_buffer *buffer)
{
    if (buffer->here != buffer->there)
        free(buffer->here);
    if (buffer->there != NULL)
        b->ops->free(b, buffer->there);
}

enum epa_status op_buffer_send(struct epa_backend *b, const struct op_buffer *buffer,
                               uint64_t bytes)
{
    return buffer->here == buffer->there || bytes == 0
               ? EPA_OK
               : b->ops->write(b, buffer->there, buffer->here, bytes);
}

enum epa_status op_buffer_read(struct epa_backend *b, const struct op_buffer *buffer,
                               uint64_t bytes)
{
    return buffer->here == buffer->there || bytes == 0
               ? EPA_OK
               : b->ops->read(b, buffer->here, buffer->there, bytes);
}

/* ---- state of a rank ---- */

void op_destroy(struct op_rank *rank)
{
    if (rank == NULL)
        return;
    if (rank->operation->finish != NULL)
        rank->operation->finish(rank);
    for (uint32_t i = 0; i < rank->n_slots; i++)
        for (uint32_t k = 0; k < OP_ARRAYS; k++)
            op_buffer_free(rank->backend, &rank->slot[i].array[k]);
    free(rank->slot);
    free(rank);
}

enum epa_status op_create(const struct operation *operation, const struct op_params *p,
                          struct op_rank **out, struct epa_error *err)
{
    struct op_rank *rank = memory_alloc(1, operation->state_bytes);
    struct op_array array[OP_ARRAYS];
    uint32_t n = operation->arrays(p->problem, operation->most_units(p->problem), array);
    enum epa_status status = EPA_OK;

    *rank = (struct op_rank){.operation = operation,
                             .params = p->problem,
                             .oracle = p->oracle,
                             .backend_name = p->backend_name,
                             .source = p->source,
                             .world = *p->world,
                             .footprint = *p->footprint,
                             .backend = p->backend,
                             .crew = p->crew,
                             .n_slots = p->slots,
                             .slot = memory_alloc(p->slots, sizeof(*rank->slot))};
    if (operation->init != NULL)
        status = operation->init(rank, p, err);
    for (uint32_t i = 0; i < p->slots * n && status == EPA_OK; i++)
        status = op_buffer_alloc(p->backend, array[i % n].what, array[i % n].bytes,
                                 &rank->slot[i / n].array[i % n], err);
    if (status != EPA_OK) {
        op_destroy(rank);
        return status;
    }
    *out = rank;
    return EPA_OK;
}

/* With a device, only the checks need host copies of outputs. */
uint64_t op_bytes(const struct operation *operation, const struct problem_params *x,
                  const struct epa_footprint *footprint, enum epa_memory memory, uint32_t slots,
                  bool checks)
{
    struct op_array array[OP_ARRAYS];
    uint32_t n = operation->arrays(x, operation->most_units(x), array);
    uint64_t slot = 0;

    for (uint32_t i = 0; i < n; i++)
        if (!array[i].output || memory == EPA_MEMORY_HOST || checks)
            slot += array[i].bytes;
    return slots * slot + operation->bytes(x, footprint, memory, slots, checks);
}

enum epa_status op_inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    const struct operation *operation = rank->operation;
    struct epa_backend *b = rank->backend;
    struct op_slot *s = &rank->slot[slot];
    struct op_array array[OP_ARRAYS];
    enum epa_status status = EPA_OK;
    uint32_t n;

    s->iteration = iteration;
    operation->shape(rank->params, rank->world.rank, &s->problem);
    s->units = operation->inputs(rank, s);
    n = operation->arrays(rank->params, s->units, array);
    for (uint32_t i = 0; i < n && status == EPA_OK; i++)
        if (!array[i].output)
            status = op_buffer_send(b, &s->array[i], array[i].bytes);
        else if (array[i].bytes > 0) /* an array of other dtypes has no memory */
            status = b->ops->fill(b, s->array[i].there, OP_POISON, array[i].bytes);
    return status;
}

enum epa_status op_check(struct op_rank *rank, enum epa_stage_kind kind, uint32_t slot,
                         uint64_t *compared, uint64_t *wrong, struct epa_error *err)
{
    const struct operation *operation = rank->operation;
    struct op_finding f = {.stage = "layer", /* the kind WHOLE covers all phases */
                           .rank = rank->world.rank,
                           .iteration = rank->slot[slot].iteration,
                           .err = err};
    enum epa_status status;

    for (uint32_t i = 0; i < operation->n_phases; i++)
        if (operation->phase[i].kind == kind)
            f.stage = operation->phase[i].name;
    status = operation->check(rank, kind, slot, &f);
    *compared += f.compared;
    *wrong += f.wrong;
    rank->share.outputs += f.share.outputs;
    rank->share.compared += f.share.compared;
    rank->share.overflowed += f.share.overflowed;
    rank->share.widths += f.share.widths;
    rank->share.widest = fmax(rank->share.widest, f.share.widest);
    return status == EPA_OK && f.wrong > 0 ? EPA_ERR_MISMATCH : status;
}

enum epa_status op_check_kept(struct op_rank *rank, uint32_t slot, uint64_t *wrong,
                              struct epa_error *err)
{
    const struct operation *operation = rank->operation;
    struct op_finding f = {.stage = operation->phase[0].name,
                           .rank = rank->world.rank,
                           .iteration = rank->slot[slot].iteration,
                           .err = err};
    enum epa_status status = EPA_OK;

    if (operation->check_kept != NULL)
        status = operation->check_kept(rank, slot, &f);
    *wrong += f.wrong;
    return status == EPA_OK && f.wrong > 0 ? EPA_ERR_MISMATCH : status;
}

/* ---- computing peaks of a rank, measured on all ranks at a time. On hosts all workers run the
 * multiply instruction of the kernels, and read uncached memory. On a device kernels of the backend run.
 * ---- */

enum {
    LINE = 64,
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
    TURNS = 1, /* a build for tests: saves seconds of each bench */
    READ_BYTES = 1 << 20,
#else
    TURNS = 5,             /* repetitions; the best one counts */
    READ_BYTES = 64 << 20, /* bytes per worker */
#endif
};

struct measuring {
    const struct epa_gemm *gemm;
    struct op_peaks sum; /* sum over workers */
    bool failed;
};

static void add_rate(double *to, double rate)
{
    double have = *to;

    while (!__atomic_compare_exchange(to, &have, &(double){have + rate}, false, __ATOMIC_RELAXED,
                                      __ATOMIC_RELAXED))
        ;
}

static void run_multiplies(void *arg, uint32_t worker, uint32_t workers)
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
        from[turn] = sum[turn]; /* keeps the compiler from removing the sums */
        rate = READ_BYTES / (double)(epa_now_ns() - begin);
        best = rate > best ? rate : best;
    }
    add_rate(&s->sum.bytes_per_ns, best);
    free(from);
}

/* `flops` NULL: only the rate of memory. */
static enum epa_status measure_device(struct op_rank *rank, enum epa_dtype dtype, double *flops,
                                      struct op_peaks *out, struct epa_error *err)
{
    struct epa_backend *b = rank->backend;
    enum epa_status status = EPA_OK;

    out->cache_bytes = (double)b->cache_bytes;
    if (b->ops->peaks != NULL)
        status = b->ops->peaks(b, dtype, flops, &out->bytes_per_ns);
    return op_backend_done(b, status, err, "cannot measure the peak of the device");
}

enum epa_status op_measure_memory(struct op_rank *rank, struct op_peaks *out, struct epa_error *err)
{
    *out = (struct op_peaks){0, 0, 0};
    if (rank->backend->memory == EPA_MEMORY_HOST)
        return EPA_OK;
    return measure_device(rank, EPA_BF16, NULL, out, err);
}

enum epa_status op_measure_peaks(struct op_rank *rank, enum epa_dtype dtype, struct op_peaks *out,
                                 struct epa_error *err)
{
    struct epa_backend *b = rank->backend;
    struct measuring s = {.failed = false};
    enum epa_status status = EPA_OK;

    *out = (struct op_peaks){0, 0, 0};
    if (b->memory != EPA_MEMORY_HOST)
        return measure_device(rank, dtype, &out->flops_per_ns, out, err);
    s.gemm = epa_gemm_get(dtype, NULL);
    if (s.gemm->peak != NULL)
        status = b->ops->parallel(b, run_multiplies, &s);
    if (status == EPA_OK)
        status = b->ops->parallel(b, read_memory, &s);
    if (status != EPA_OK)
        b->ops->explain(b, err);
    if (s.failed)
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory to measure the peak of the host");
    *out = s.sum;
    return status;
}
