/* oneDNN's matmul, 2.x and 3.x. B is reordered once into what the library likes best; a primitive
 * is made for a number of rows and kept until another is wanted. Each worker has its own, and runs
 * it on one thread. */
#include "library.h"

#include <stdlib.h>

#include <omp.h>
#include <oneapi/dnnl/dnnl.h>
#include <oneapi/dnnl/dnnl_debug.h>

/* What the two versions name or pass in different ways. */
#if DNNL_VERSION_MAJOR >= 3
typedef const_dnnl_memory_desc_t desc_ref;

static dnnl_status_t desc_init(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                               dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_create_with_tag(out, 2, dims, type, tag);
}

static desc_ref ref_of(const dnnl_memory_desc_t *d)
{
    return *d;
}

static void desc_finish(dnnl_memory_desc_t *d)
{
    (void)dnnl_memory_desc_destroy(*d);
}

static dnnl_status_t plan_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc_ref a,
                                 desc_ref b, desc_ref bias, desc_ref c)
{
    return dnnl_matmul_primitive_desc_create(out, engine, a, b, bias, c, NULL);
}
#else
typedef const dnnl_memory_desc_t *desc_ref;

static dnnl_status_t desc_init(dnnl_memory_desc_t *out, const dnnl_dims_t dims,
                               dnnl_data_type_t type, dnnl_format_tag_t tag)
{
    return dnnl_memory_desc_init_by_tag(out, 2, dims, type, tag);
}

static desc_ref ref_of(const dnnl_memory_desc_t *d)
{
    return d;
}

static void desc_finish(dnnl_memory_desc_t *d)
{
    (void)d;
}

static dnnl_status_t plan_matmul(dnnl_primitive_desc_t *out, dnnl_engine_t engine, desc_ref a,
                                 desc_ref b, desc_ref bias, desc_ref c)
{
    dnnl_matmul_desc_t d;
    dnnl_status_t status = dnnl_matmul_desc_init(&d, a, b, bias, c);

    return status == dnnl_success ? dnnl_primitive_desc_create(out, &d, NULL, engine, NULL)
                                  : status;
}
#endif

struct worker {
    uint32_t rows; /* of the primitive */
    dnnl_stream_t stream;
    dnnl_primitive_t matmul;
    dnnl_memory_t a, c;
};

struct library {
    uint32_t n, k, workers;
    dnnl_engine_t engine;
    dnnl_memory_t b, bias; /* bias NULL: there is none */
    struct worker *worker;
};

static dnnl_status_t plan_rows(const struct library *l, uint32_t rows, desc_ref b,
                               dnnl_primitive_desc_t *out)
{
    dnnl_memory_desc_t a, c, any, bias;
    dnnl_status_t status = desc_init(&a, (dnnl_dims_t){rows, l->k}, dnnl_bf16, dnnl_ab);

    if (status != dnnl_success)
        return status;
    status = desc_init(&c, (dnnl_dims_t){rows, l->n}, dnnl_bf16, dnnl_ab);
    if (status == dnnl_success)
        status = desc_init(&any, (dnnl_dims_t){l->k, l->n}, dnnl_bf16, dnnl_format_tag_any);
    if (status == dnnl_success)
        status = desc_init(&bias, (dnnl_dims_t){1, l->n}, dnnl_f32, dnnl_ab);
    if (status != dnnl_success)
        return status;
    status = plan_matmul(out, l->engine, ref_of(&a), b != NULL ? b : ref_of(&any),
                         l->bias != NULL ? ref_of(&bias) : NULL, ref_of(&c));
    desc_finish(&a);
    desc_finish(&c);
    desc_finish(&any);
    desc_finish(&bias);
    return status;
}

bool library_knows(const struct epa_ag_gemm *g)
{
    struct library l = {.n = g->n, .k = g->k};
    dnnl_primitive_desc_t plan = NULL;
    dnnl_status_t status;

    if (g->dtype != EPA_BF16 || dnnl_engine_create(&l.engine, dnnl_cpu, 0) != dnnl_success)
        return false;
    status = plan_rows(&l, 1, NULL, &plan);
    if (status == dnnl_success)
        (void)dnnl_primitive_desc_destroy(plan);
    (void)dnnl_engine_destroy(l.engine);
    return status == dnnl_success;
}

static dnnl_status_t pack_weights(struct library *l, const void *weights, uint32_t rows)
{
    dnnl_memory_desc_t given;
    dnnl_primitive_desc_t plan, reorder_plan = NULL;
    dnnl_primitive_t reorder = NULL;
    dnnl_memory_t from = NULL;
    dnnl_stream_t stream = l->worker[0].stream;
    dnnl_status_t status = plan_rows(l, rows, NULL, &plan);
    desc_ref best;

    if (status != dnnl_success)
        return status;
    best = dnnl_primitive_desc_query_md(plan, dnnl_query_weights_md, 0);
    /* [n][k] row-major is [k][n] column-major. */
    status = desc_init(&given, (dnnl_dims_t){l->k, l->n}, dnnl_bf16, dnnl_ba);
    if (status == dnnl_success)
        status = dnnl_memory_create(&l->b, best, l->engine, DNNL_MEMORY_ALLOCATE);
    if (status == dnnl_success)
        status = dnnl_memory_create(&from, ref_of(&given), l->engine, (void *)(uintptr_t)weights);
    if (status == dnnl_success)
        status = dnnl_reorder_primitive_desc_create(&reorder_plan, ref_of(&given), l->engine, best,
                                                    l->engine, NULL);
    if (status == dnnl_success)
        status = dnnl_primitive_create(&reorder, reorder_plan);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(
            reorder, stream, 2, (dnnl_exec_arg_t[]){{DNNL_ARG_FROM, from}, {DNNL_ARG_TO, l->b}});
    if (status == dnnl_success)
        status = dnnl_stream_wait(stream);
    desc_finish(&given);
    (void)dnnl_primitive_destroy(reorder);
    (void)dnnl_primitive_desc_destroy(reorder_plan);
    (void)dnnl_memory_destroy(from);
    (void)dnnl_primitive_desc_destroy(plan);
    return status;
}

static void drop_primitive(struct worker *w)
{
    (void)dnnl_primitive_destroy(w->matmul);
    (void)dnnl_memory_destroy(w->a);
    (void)dnnl_memory_destroy(w->c);
    w->matmul = NULL;
    w->a = w->c = NULL;
    w->rows = 0;
}

void library_destroy(struct library *l)
{
    if (l == NULL)
        return;
    for (uint32_t i = 0; i < l->workers && l->worker != NULL; i++) {
        drop_primitive(&l->worker[i]);
        (void)dnnl_stream_destroy(l->worker[i].stream);
    }
    (void)dnnl_memory_destroy(l->b);
    (void)dnnl_memory_destroy(l->bias);
    (void)dnnl_engine_destroy(l->engine);
    free(l->worker);
    free(l);
}

static dnnl_status_t make_bias(struct library *l, const float *bias)
{
    dnnl_memory_desc_t d;
    dnnl_status_t status = desc_init(&d, (dnnl_dims_t){1, l->n}, dnnl_f32, dnnl_ab);

    if (status == dnnl_success)
        status = dnnl_memory_create(&l->bias, ref_of(&d), l->engine, (void *)(uintptr_t)bias);
    desc_finish(&d);
    return status;
}

enum epa_status library_create(const struct epa_ag_gemm *g, uint32_t rows, uint32_t workers,
                               struct library **out, struct epa_error *err)
{
    struct library *l = calloc(1, sizeof(*l));
    dnnl_status_t status;

    if (l == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "oneDNN: no memory");
    *l = (struct library){.n = g->n, .k = g->k, .workers = workers};
    l->worker = calloc(workers, sizeof(*l->worker));
    status = l->worker != NULL ? dnnl_engine_create(&l->engine, dnnl_cpu, 0) : dnnl_out_of_memory;
    for (uint32_t i = 0; i < workers && status == dnnl_success; i++)
        status = dnnl_stream_create(&l->worker[i].stream, l->engine, dnnl_stream_default_flags);
    if (status == dnnl_success && g->bias)
        status = make_bias(l, g->bias_of);
    if (status == dnnl_success)
        status = pack_weights(l, g->b, rows);
    if (status != dnnl_success) {
        library_destroy(l);
        return epa_fail(err, EPA_ERR_SYSTEM, "oneDNN: %s", dnnl_status2str(status));
    }
    *out = l;
    return EPA_OK;
}

static dnnl_status_t make_primitive(struct library *l, struct worker *w, uint32_t rows)
{
    dnnl_primitive_desc_t plan;
    desc_ref b = NULL;
    dnnl_status_t status;

    drop_primitive(w);
    status = dnnl_memory_get_memory_desc(l->b, &b);
    if (status == dnnl_success)
        status = plan_rows(l, rows, b, &plan);
    if (status != dnnl_success)
        return status;
    status = dnnl_primitive_create(&w->matmul, plan);
    if (status == dnnl_success)
        status = dnnl_memory_create(&w->a, dnnl_primitive_desc_query_md(plan, dnnl_query_src_md, 0),
                                    l->engine, DNNL_MEMORY_NONE);
    if (status == dnnl_success)
        status = dnnl_memory_create(&w->c, dnnl_primitive_desc_query_md(plan, dnnl_query_dst_md, 0),
                                    l->engine, DNNL_MEMORY_NONE);
    (void)dnnl_primitive_desc_destroy(plan);
    w->rows = status == dnnl_success ? rows : 0;
    return status;
}

enum epa_status library_multiply(struct library *l, uint32_t worker, const void *a, uint32_t rows,
                                 void *c)
{
    struct worker *w = &l->worker[worker];
    dnnl_status_t status = dnnl_success;

    if (rows == 0)
        return EPA_OK;
    omp_set_num_threads(1); /* of this thread */
    if (w->rows != rows)
        status = make_primitive(l, w, rows);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(w->a, (void *)(uintptr_t)a);
    if (status == dnnl_success)
        status = dnnl_memory_set_data_handle(w->c, c);
    if (status == dnnl_success)
        status = dnnl_primitive_execute(w->matmul, w->stream, l->bias != NULL ? 4 : 3,
                                        (dnnl_exec_arg_t[]){{DNNL_ARG_SRC, w->a},
                                                            {DNNL_ARG_WEIGHTS, l->b},
                                                            {DNNL_ARG_DST, w->c},
                                                            {DNNL_ARG_BIAS, l->bias}});
    if (status == dnnl_success)
        status = dnnl_stream_wait(w->stream);
    return status == dnnl_success ? EPA_OK : EPA_ERR_SYSTEM;
}
