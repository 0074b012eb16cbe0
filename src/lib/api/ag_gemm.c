/* AllGather and matrix product. */
#include <epa2a.h>

#include <stdlib.h>

#include "api/alignment.h"
#include "api/error.h"
#include "api/object.h"
#include "api/struct_size.h"
#include "ep/ep_explain.h"

enum { K_STEP = 8 };

struct epa2a_ag_gemm {
    struct object object;
    struct epa_problem problem; /* shape and B; inputs of the last call */
};

/* ---- creation ---- */

static size_t element_of(int32_t dtype)
{
    return dtype == EPA2A_FP8_E4M3 ? 1 : sizeof(uint16_t);
}

static enum epa_status check_weights(const struct epa2a_ag_gemm_params *p, bool cuda,
                                     struct epa_error *err)
{
    const struct tensor list[] = {
        {"b", p->b, alignment_of_rows(cuda, element_of(p->dtype))},
        {"b_scale", p->b_scale, sizeof(*p->b_scale)},
        {"bias", p->bias, sizeof(*p->bias)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}

static enum epa_status read_params(const struct epa2a_ag_gemm_params *from, bool cuda,
                                   struct epa2a_ag_gemm_params *out, struct epa_ag_gemm *gemm,
                                   struct epa_error *err)
{
    struct epa2a_ag_gemm_params p;
    enum epa_status status = struct_read(&p, sizeof(p), from, "epa2a_ag_gemm_params", err);

    if (status != EPA_OK)
        return status;
    p.dtype = p.dtype != 0 ? p.dtype : EPA2A_BF16;
    if (p.max_rows == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "max_rows is 0");
    if (p.k == 0 || p.k % K_STEP != 0)
        return epa_fail(err, EPA_ERR_CONFIG, "k is %u; write a multiple of %d", p.k, K_STEP);
    if (p.dtype != EPA2A_BF16 && p.dtype != EPA2A_F16 && p.dtype != EPA2A_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "dtype is %d; write EPA2A_BF16, EPA2A_F16 or EPA2A_FP8_E4M3", p.dtype);
    if (p.out_dtype != 0 && p.out_dtype != EPA2A_FP8_E4M3)
        return epa_fail(err, EPA_ERR_CONFIG, "out_dtype is %d; write 0 or EPA2A_FP8_E4M3",
                        p.out_dtype);
    if (p.zero != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "the field zero of epa2a_ag_gemm_params is %u; write 0", p.zero);
    if (p.n != 0 && p.b == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "b is NULL");
    if (p.n != 0 && (p.dtype == EPA2A_FP8_E4M3) != (p.b_scale != NULL))
        return epa_fail(err, EPA_ERR_CONFIG, "b_scale is %s; only EPA2A_FP8_E4M3 has scales",
                        p.b_scale == NULL ? "NULL" : "set");
    status = check_weights(&p, cuda, err);
    if (status != EPA_OK)
        return status;
    *out = p;
    *gemm = (struct epa_ag_gemm){.max_rows = p.max_rows,
                                 .n = p.n,
                                 .k = p.k,
                                 .dtype = p.dtype,
                                 .out_fp8 = p.out_dtype == EPA2A_FP8_E4M3,
                                 .bias = p.bias != NULL,
                                 .b = p.b,
                                 .b_scale = p.b_scale,
                                 .bias_of = p.bias};
    return EPA_OK;
}

/* Finds the largest n of all ranks. A rank without columns has no bias: gemm->bias becomes the value
 * of a rank with columns. Collective. */
static enum epa_status exchange_columns(struct epa2a_comm *comm, struct epa_ag_gemm *gemm,
                                        struct epa_error *err)
{
    struct epa_bootstrap *boot = comm->boot;
    const uint32_t mine[2] = {gemm->n, gemm->bias};
    uint32_t(*all)[2] = calloc(boot->world.size, sizeof(*all));
    enum epa_status status;

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to exchange the columns of the ranks");
    status = ep_explain_boot(&comm->ep, boot->allgather(boot, mine, sizeof(mine), all), err);
    for (uint32_t r = 0; r < boot->world.size && status == EPA_OK; r++) {
        gemm->max_n = all[r][0] > gemm->max_n ? all[r][0] : gemm->max_n;
        if (gemm->n == 0 && all[r][0] != 0)
            gemm->bias = all[r][1] != 0;
    }
    free(all);
    if (status == EPA_OK && gemm->max_n == 0)
        status = epa_fail(err, EPA_ERR_CONFIG, "n is 0 on all ranks");
    return status;
}

static void free_ag_gemm(void *arg)
{
    struct epa2a_ag_gemm *g = arg;

    if (g == NULL)
        return;
    object_free(&g->object);
    free(g);
}

static enum epa_status create_ag_gemm(struct epa2a_comm *comm, struct epa2a_ag_gemm *g,
                                      const struct epa2a_ag_gemm_params *from,
                                      struct epa_error *err)
{
    struct epa_ag_gemm *gemm = &g->problem.u.ag_gemm;
    struct epa_problem shape = {.op = EPA_OP_AG_GEMM};
    struct epa2a_ag_gemm_params p = {.options = NULL};
    enum epa_status status = read_params(from, comm_is_cuda(comm), &p, gemm, err);

    g->problem.op = EPA_OP_AG_GEMM;
    if (status == EPA_OK)
        status = exchange_columns(comm, gemm, err);
    if (status != EPA_OK)
        return status;
    shape.u.ag_gemm = *gemm;
    shape.u.ag_gemm.b = NULL;
    shape.u.ag_gemm.b_scale = shape.u.ag_gemm.bias_of = NULL;
    status = object_plan(&g->object, comm,
                         &(struct object_params){.op = EPA_OP_AG_GEMM, .options = p.options},
                         &shape, err);
    return status == EPA_OK ? object_open(&g->object, &g->problem, err) : status;
}

int epa2a_ag_gemm_create(struct epa2a_comm *comm, const struct epa2a_ag_gemm_params *params,
                         struct epa2a_ag_gemm **out)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_ag_gemm *g;
    enum epa_status status = comm_enter(comm, "epa2a_ag_gemm_create", &err);

    if (status != EPA_OK)
        return api_fail(&err);
    g = calloc(1, sizeof(*g));
    if (g == NULL)
        status = epa_fail(&err, EPA_ERR_NOMEM, "no memory for an ag_gemm");
    else if (out == NULL)
        status = epa_fail(&err, EPA_ERR_CONFIG, "the output pointer is NULL");
    else
        status = comm_check_capture(comm, &err);
    if (status == EPA_OK)
        status = create_ag_gemm(comm, g, params, &err);
    status = comm_agree(comm, status, &err);
    if (status == EPA_OK)
        *out = g;
    else
        free_ag_gemm(g);
    return comm_leave(comm, status, &err);
}

void epa2a_ag_gemm_destroy(struct epa2a_ag_gemm *g)
{
    if (g != NULL)
        object_destroy(&g->object, "epa2a_ag_gemm_destroy", free_ag_gemm, g);
}

/* ---- a call ---- */

static enum epa_status check_alignment(const struct epa_ag_gemm *in, bool cuda,
                                       struct epa_error *err)
{
    const struct tensor list[] = {
        {"rows", in->rows, sizeof(*in->rows)},
        {"a", in->a, alignment_of_rows(cuda, element_of(in->dtype))},
        {"a_scale", in->a_scale, sizeof(*in->a_scale)},
        {"c", in->c, alignment_of_rows(cuda, in->out_fp8 ? 1 : sizeof(uint16_t))},
        {"c_scale", in->c_scale, sizeof(*in->c_scale)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}

/* Checks the arrays and, on hosts, the numbers of rows. */
static enum epa_status check_inputs(const struct epa2a_ag_gemm *g, const struct epa_ag_gemm *in,
                                    struct epa_error *err)
{
    const struct epa_transport *t = g->object.ep.transport;
    bool fp8 = in->dtype == EPA_FP8_E4M3, cuda = comm_is_cuda(g->object.comm);
    uint64_t sum = 0;
    enum epa_status status;

    if (in->rows == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "rows is NULL");
    if (in->n > 0 && in->out_fp8 && in->c_scale == NULL)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "c_scale is NULL; with out_dtype EPA2A_FP8_E4M3 call epa2a_ag_gemm_run_fp8()");
    if (!in->out_fp8 && in->c_scale != NULL)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "c_scale is set; only out_dtype EPA2A_FP8_E4M3 has scales of C");
    status = check_alignment(in, cuda, err);
    if (status != EPA_OK || cuda)
        return status;
    for (uint32_t r = 0; r < t->size; r++) {
        if (in->rows[r] > in->max_rows)
            return epa_fail(err, EPA_ERR_CONFIG, "rows[%u] is %u, more than max_rows (%u)", r,
                            in->rows[r], in->max_rows);
        sum += in->rows[r];
    }
    if (in->rows[t->rank] > 0 && (in->a == NULL || (fp8 && in->a_scale == NULL)))
        return epa_fail(err, EPA_ERR_CONFIG, "%s is NULL, with %u rows",
                        in->a == NULL ? "a" : "a_scale", in->rows[t->rank]);
    if (sum > 0 && in->n > 0 && in->c == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "c is NULL");
    return EPA_OK;
}

static enum epa_status run_ag_gemm(struct epa2a_ag_gemm *g, struct epa_error *err)
{
    const struct epa_algorithm *a = g->object.ep.algorithm;
    enum epa_status status = check_inputs(g, &g->problem.u.ag_gemm, err);

    for (uint32_t i = 0; i < a->n_stages && status == EPA_OK; i++)
        status = object_call(&g->object, &a->stages[i], &g->problem, err);
    return status;
}

/* Runs the call `name` of the interface. */
static int call_ag_gemm(struct epa2a_ag_gemm *g, const char *name, const uint32_t *rows,
                        const void *a, const float *a_scale, void *c, float *c_scale, void *stream)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_comm *comm = g != NULL ? g->object.comm : NULL;
    struct epa_ag_gemm *in;

    if (comm_enter_stream(comm, name, stream, &err) != EPA_OK)
        return api_fail(&err);
    in = &g->problem.u.ag_gemm;
    in->rows = rows;
    in->a = a;
    in->a_scale = a_scale;
    in->c = c;
    in->c_scale = c_scale;
    return comm_leave(comm, run_ag_gemm(g, &err), &err);
}

int epa2a_ag_gemm_run(struct epa2a_ag_gemm *g, const uint32_t *rows, const void *a,
                      const float *a_scale, void *c, void *stream)
{
    return call_ag_gemm(g, "epa2a_ag_gemm_run", rows, a, a_scale, c, NULL, stream);
}

int epa2a_ag_gemm_run_fp8(struct epa2a_ag_gemm *g, const uint32_t *rows, const void *a,
                          const float *a_scale, void *c, float *c_scale, void *stream)
{
    return call_ag_gemm(g, "epa2a_ag_gemm_run_fp8", rows, a, a_scale, c, c_scale, stream);
}
