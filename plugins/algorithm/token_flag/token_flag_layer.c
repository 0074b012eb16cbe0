/* token_flag on hosts: a layer in parts of the tokens, as a software pipeline.
 *
 * A part is a dispatch with its experts and its combine, each with a buffer set. One step of the
 * pipeline, for part n:
 *
 *   dispatch_recv n, dispatch_send n + 1, experts n, quiet, combine_send n, combine_recv n - 1
 *
 * The rows of part n + 1 and the outputs of part n - 1 are in transit while the experts compute part
 * n. All ranks have the same number of parts, also ranks with few tokens: a part may be empty.
 *
 * Halves, which bench times alone: the pipeline without experts, and the experts without the
 * pipeline. The experts of a part that a later part has overwritten use the rows of the later
 * part. */
#include "token_flag_layer.h"

#include "token_flag_combine.h"
#include "token_flag_recv.h"
#include "token_flag_send.h"

/* ---- parts ---- */

static enum epa_status
call_stage(struct tf_host *h,
           enum epa_status (*stage)(struct epa_algorithm *, struct epa_problem *), uint32_t n)
{
    h->at = n;
    return stage(&h->a.base, &h->part[n % TF_HOST_SETS]);
}

static enum epa_status run_experts(struct tf_host *h, uint32_t n)
{
    struct epa_moe *m = &h->part[n % TF_HOST_SETS].u.moe;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    m->y = m->y_space;
    if (h->experts == NULL)
        return EPA_OK;
    h->at = n;
    algo_begin(&h->a, "experts", "experts");
    status = host_experts_run(h->experts, m, m->y_space, &err);
    if (status != EPA_OK)
        return algo_fail(&h->a, status, "%s", err.text);
    algo_end(&h->a);
    return EPA_OK;
}

static enum epa_status complete_sends(struct tf_host *h)
{
    enum epa_status status;

    algo_begin(&h->a, "quiet", "quiet");
    status = h->a.t->ops->quiet(h->a.t);
    algo_end(&h->a);
    return status;
}

/* ---- stages ---- */

static enum epa_status run_pipeline(struct tf_host *h, struct epa_problem *whole, bool experts)
{
    uint32_t parts = h->l.parts;
    enum epa_status status;

    tf_set_part(&h->l, whole, 0, &h->part[0]);
    status = call_stage(h, tf_dispatch_send, 0);
    for (uint32_t n = 0; n < parts && status == EPA_OK; n++) {
        struct epa_moe *m = &h->part[n % TF_HOST_SETS].u.moe;

        status = call_stage(h, tf_dispatch_recv, n);
        if (status == EPA_OK && n == 0) /* dispatch_send 1 has the staging area of 0 */
            status = complete_sends(h);
        if (status == EPA_OK && n + 1 < parts) {
            tf_set_part(&h->l, whole, n + 1, &h->part[(n + 1) % TF_HOST_SETS]);
            status = call_stage(h, tf_dispatch_send, n + 1);
        }
        m->y = m->y_space;
        if (status == EPA_OK && experts)
            status = run_experts(h, n);
        if (status == EPA_OK)
            status = complete_sends(h);
        if (status == EPA_OK)
            status = call_stage(h, tf_combine_send, n);
        if (status == EPA_OK && n != 0)
            status = call_stage(h, tf_combine_recv, n - 1);
    }
    if (status == EPA_OK)
        status = call_stage(h, tf_combine_recv, parts - 1);
    whole->u.moe.epoch = h->a.epoch;
    return status == EPA_OK ? complete_sends(h) : status;
}

static enum epa_status run_layer(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_pipeline((struct tf_host *)a, problem, true);
}

static enum epa_status run_communication(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run_pipeline((struct tf_host *)a, problem, false);
}

static enum epa_status run_all_experts(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct tf_host *h = (struct tf_host *)a;
    enum epa_status status = EPA_OK;

    (void)problem;
    for (uint32_t n = 0; n < h->l.parts && status == EPA_OK; n++)
        status = run_experts(h, n);
    return status;
}

const struct epa_stage tf_layer[1] = {{"layer", EPA_STAGE_WHOLE, run_layer}};

static const struct epa_stage halves[EPA_PARTS] = {
    {"dispatch and combine", EPA_STAGE_WHOLE, run_communication},
    {"experts", EPA_STAGE_WHOLE, run_all_experts},
};

/* ---- set-up ---- */

/* Names the part of the failed stage. */
static void explain_part(struct epa_algorithm *a, struct epa_error *err)
{
    struct tf_host *h = (struct tf_host *)a;
    const char *stage = h->a.last.stage;
    char text[48];

    snprintf(text, sizeof(text), "part %u of %u, %s", h->at + 1, h->l.parts, stage);
    h->a.last.stage = text;
    algo_explain(a, err);
    h->a.last.stage = stage;
}

static void destroy_layer(struct epa_algorithm *a)
{
    struct tf_host *h = (struct tf_host *)a;

    if (h != NULL)
        host_experts_destroy(h->experts);
    algo_destroy(a);
}

/* Operations that the transport has delayed continue while the experts run. The next wait reports a
 * failure. */
static void make_progress(void *arg)
{
    struct tf_host *h = arg;

    (void)h->a.t->ops->progress(h->a.t);
}

static struct epa_experts_params params_of(const struct epa_moe *m, const struct tf_layout *l)
{
    return (struct epa_experts_params){
        .moe = m,
        .experts = l->local,
        .recv_rows = l->rows,
        .recv_entries = l->rows,
        .layout = EPA_LAYOUT_EXPERT,
        .recv_dtype = l->fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
    };
}

uint64_t tf_layer_bytes(const struct epa_moe *m, const struct tf_layout *l, uint32_t workers)
{
    const struct host_experts_params p = {.experts = params_of(m, l)};

    return m->mlp.ffn == 0 ? 0 : host_experts_bytes(&p, workers);
}

enum epa_status tf_layer_create(struct tf_host *h, const struct epa_algorithm_params *p,
                                struct epa_error *err)
{
    const struct epa_moe *m = &p->problem->u.moe;
    const struct mlp_shape shape = {.hidden = m->hidden, .mlp = m->mlp};
    const struct host_experts_params params = {
        .experts = params_of(m, &h->l),
        .source = mlp_source_of_memory(&shape),
        .after_task = make_progress,
        .arg = h,
    };
    enum epa_status status;

    h->a.base.explain = explain_part;
    h->a.base.destroy = destroy_layer;
    if (m->mlp.ffn == 0)
        return EPA_OK;
    status = host_experts_create(h->a.backend, &params, &h->experts, err);
    if (status != EPA_OK)
        return status;
    h->a.base.parts = halves;
    h->a.base.n_parts = EPA_PARTS;
    h->a.base.products_by = host_experts_name(h->experts);
    return EPA_OK;
}
