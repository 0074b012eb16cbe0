/* Dispatch and combine in few lines, on hosts, over any transport. tests/cli/thorough.py plants
 * faults in it, and the kernels of fakemoe.c use it.
 *
 * A rank has an inbox of rows per source, in any order, and an output slot per choice. A sender
 * puts or stores rows to the inbox; after a fence, the signal carries the number of rows. The
 * receiver copies rows to its experts, and their outputs go directly to the slots.
 *
 * Two sets alternate without a barrier. The inbox of call e + 2 is written by a rank that has ended
 * dispatch e + 1; its owner has therefore begun dispatch e + 1 and has copied the inbox of call e.
 * The slots of e + 2 are written by a rank that has ended dispatch e + 2; their owner has therefore
 * begun it and ended combine e, since at most two calls are open. */
#include <epa2a/algorithm.h>

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"

enum { SETS = 2, ROW_HEAD = 16, BOX_HEAD = 64 };
enum { ROWS, OUTPUTS, KINDS };

struct head {
    uint32_t token, k, expert, pad; /* expert: local number */
};

struct shape {
    uint32_t size, local, most; /* most: maximum of rows from a source to a rank */
    uint64_t row, box, boxes, outputs, recv, y, staging, heap;
};

struct plain {
    struct epa_algorithm base; /* first member */
    struct epa_transport *t;
    struct epa_world world;
    struct shape s;
    uint64_t heap, timeout_ns, epoch;
    uint32_t signal, count[64], *recv_count;
    uint32_t awaited;    /* rank of the last wait */
    uint64_t rows[SETS]; /* number of received rows */
    uint64_t *recv_start;
    struct epa_origin *origin;
    struct head *from; /* head of each received row */
};

static struct shape shape_of(const struct epa_moe *m, uint32_t size)
{
    struct shape s = {.size = size, .local = m->experts / size};
    uint64_t out = 2 * (uint64_t)m->hidden;

    s.most = m->max_tokens * (m->topk < s.local ? m->topk : s.local);
    s.row = ROW_HEAD + out;
    s.box = BOX_HEAD + s.most * s.row;
    s.boxes = size * s.box;
    s.outputs = SETS * s.boxes;
    s.recv = s.outputs + SETS * m->max_tokens * m->topk * out;
    s.y = s.recv + SETS * size * s.most * out;
    s.staging = s.y + SETS * size * s.most * out;
    s.heap = s.staging + s.boxes;
    return s;
}

static const char *const stage_names[] = {"dispatch", "combine", NULL};

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    struct shape s = shape_of(m, world->size);

    if (m->x_dtype == EPA_FP8_E4M3 || world->size > 64)
        return epa_fail(err, EPA_ERR_CONFIG, "plainmoe supports 16-bit types and at most 64 ranks");
    *out = (struct epa_footprint){.heap_bytes = s.heap,
                                  .signals = KINDS * s.size,
                                  .stages = stage_names,
                                  .in_flight = 2,
                                  .discards = true,
                                  .u.moe = {.recv_rows = (uint64_t)s.size * s.most,
                                            .recv_entries = (uint64_t)s.size * s.most,
                                            .layout = EPA_LAYOUT_EXPERT,
                                            .recv_dtype = (enum epa_dtype)m->dtype,
                                            .sum = EPA_SUM_ORDERED,
                                            .output_dtype = (enum epa_dtype)m->dtype,
                                            .dispatch_row_bytes = s.row,
                                            .dispatch_token_bytes = 2 * m->hidden,
                                            .combine_row_bytes = 2 * m->hidden,
                                            .combine_token_bytes = 2 * m->hidden,
                                            .control_bytes = 16}};
    return EPA_OK;
}

/* Returns the own memory at an offset of the algorithm's part. */
static char *here(const struct plain *p, uint64_t at)
{
    return p->t->heap + p->heap + at;
}

/* `src` is in the own heap and must not change until quiet(). */
static enum epa_status put(struct plain *p, uint64_t at, const void *src, size_t bytes,
                           uint32_t peer)
{
    char *to = epa_peer(p->t, p->heap + at, peer);
    uint64_t begun = epa_now_ns();
    enum epa_status status = EPA_AGAIN;

    if (to != NULL)
        return memmove(to, src, bytes), EPA_OK;
    while (status == EPA_AGAIN && epa_now_ns() - begun < p->timeout_ns) {
        status = epa_put(p->t, p->heap + at, src, bytes, peer);
        if (status == EPA_AGAIN && p->t->ops->progress(p->t) != EPA_OK)
            return EPA_ERR_ABORTED;
    }
    return status;
}

/* Puts `bytes` to `at` after all earlier puts, then raises the signal. */
static enum epa_status signal_with(struct plain *p, uint32_t kind, uint64_t value, uint64_t at,
                                   const void *src, size_t bytes, uint32_t peer)
{
    uint32_t word = p->signal + kind * p->s.size + p->world.rank;
    uint64_t begun = epa_now_ns();
    enum epa_status status = p->t->ops->fence(p->t, peer);

    if (status == EPA_OK)
        status = EPA_AGAIN;
    while (status == EPA_AGAIN && epa_now_ns() - begun < p->timeout_ns) {
        status = epa_put_signal(p->t, p->heap + at, src, bytes, word, value, peer);
        if (status == EPA_AGAIN && p->t->ops->progress(p->t) != EPA_OK)
            return EPA_ERR_ABORTED;
    }
    return status;
}

static enum epa_status wait_all(struct plain *p, uint32_t kind, uint64_t value)
{
    enum epa_status status = EPA_OK;

    for (uint32_t r = 0; r < p->s.size && status == EPA_OK; r++)
        if (r != p->world.rank) {
            p->awaited = r;
            status = epa_wait(p->t, p->signal + kind * p->s.size + r, value, p->timeout_ns);
        }
    return status;
}

static enum epa_status send_rows(struct plain *p, const struct epa_moe *m, uint32_t set)
{
    uint32_t me = p->world.rank;
    uint64_t mine = set * p->s.boxes + me * p->s.box;
    enum epa_status status = EPA_OK;

    memset(p->count, 0, sizeof(p->count));
    for (uint32_t i = 0; i < m->tokens * m->topk && status == EPA_OK; i++) {
        int32_t e = m->expert[i];
        uint32_t r, n;
        struct head head;
        char *row;

        if (e < 0)
            continue;
        r = (uint32_t)e / p->s.local;
        n = p->count[r]++;
        head = (struct head){i / m->topk, i % m->topk, (uint32_t)e % p->s.local, 0};
        row = here(p, p->s.staging + r * p->s.box + BOX_HEAD + n * p->s.row);
        memcpy(row, &head, sizeof(head));
        memcpy(row + ROW_HEAD, (const char *)m->x + (uint64_t)head.token * m->hidden * 2,
               m->hidden * 2);
        status = put(p, mine + BOX_HEAD + n * p->s.row, row, p->s.row, r);
    }
    for (uint32_t i = 1; i <= p->s.size && status == EPA_OK; i++) {
        uint32_t r = (me + i) % p->s.size;
        char *count = here(p, p->s.staging + r * p->s.box);

        memcpy(count, &p->count[r], sizeof(p->count[r]));
        if (r == me)
            memcpy(here(p, mine), count, sizeof(p->count[r]));
        else
            status = signal_with(p, ROWS, p->epoch, mine, count, sizeof(p->count[r]), r);
    }
    return status;
}

/* Sets the pointers to received rows for the experts. `rows` is their number or an upper bound. */
static void show_rows(struct plain *p, struct epa_moe *m, uint32_t set, uint64_t rows)
{
    uint64_t base = (uint64_t)set * p->s.size * p->s.most, out = m->hidden * 2;

    m->recv_rows = m->recv_entries = rows;
    m->recv_count = p->recv_count + set * p->s.local;
    m->recv_start = p->recv_start + set * p->s.local;
    m->recv = here(p, p->s.recv) + base * out;
    m->recv_stride = out;
    m->origin = p->origin + base;
    m->origin_stride = sizeof(struct epa_origin);
}

/* Copies the rows of all sources, grouped by expert. */
static void take_rows(struct plain *p, struct epa_moe *m, uint32_t set)
{
    uint64_t n = 0, base = (uint64_t)set * p->s.size * p->s.most, out = m->hidden * 2;
    char *recv = here(p, p->s.recv) + base * out;

    for (uint32_t e = 0; e < p->s.local; e++) {
        p->recv_start[set * p->s.local + e] = n;
        for (uint32_t source = 0; source < p->s.size; source++) {
            const char *box = here(p, set * p->s.boxes + source * p->s.box);
            uint32_t rows;

            memcpy(&rows, box, sizeof(rows));
            for (uint32_t i = 0; i < rows && i < p->s.most; i++) {
                const char *row = box + BOX_HEAD + i * p->s.row;
                struct head head;

                memcpy(&head, row, sizeof(head));
                if (head.expert != e || n == (uint64_t)p->s.size * p->s.most)
                    continue;
                memcpy(recv + n * out, row + ROW_HEAD, out);
                p->origin[base + n] = (struct epa_origin){source, head.token};
                p->from[base + n++] = head;
            }
        }
        p->recv_count[set * p->s.local + e] = (uint32_t)(n - p->recv_start[set * p->s.local + e]);
    }
    m->epoch = p->epoch;
    show_rows(p, m, set, p->rows[set] = n);
}

static enum epa_status dispatch(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct plain *p = (struct plain *)a;
    uint32_t set = (uint32_t)(++p->epoch % SETS);
    enum epa_status status = send_rows(p, &problem->u.moe, set);

    if (status == EPA_OK)
        status = wait_all(p, ROWS, p->epoch);
    if (status == EPA_OK)
        take_rows(p, &problem->u.moe, set);
    return status == EPA_OK ? p->t->ops->quiet(p->t) : status;
}

static void reduce(const struct epa_moe *m, const char *outputs)
{
    for (uint32_t t = 0; t < m->tokens; t++)
        for (uint32_t h = 0; h < m->hidden; h++) {
            uint16_t *out = (uint16_t *)m->out + (uint64_t)t * m->hidden + h;
            float sum = 0;

            for (uint32_t k = 0; k < m->topk; k++) {
                uint64_t i = (uint64_t)t * m->topk + k;
                float weight = m->weight[i];
                uint16_t y;

                memcpy(&y, outputs + (i * m->hidden + h) * 2, sizeof(y));
                if (m->expert[i] >= 0)
                    sum =
                        fmaf(m->dtype == EPA_F16 ? float_of_f16(y) : float_of_bf16(y), weight, sum);
            }
            *out = m->dtype == EPA_F16 ? f16_of_float(sum) : bf16_of_float(sum);
        }
}

/* Returns the offset of the output slots of a call, the same at each rank. */
static uint64_t slots_of(const struct plain *p, const struct epa_moe *m, uint64_t call)
{
    return p->s.outputs + call % SETS * m->max_tokens * m->topk * m->hidden * 2;
}

/* Sends the outputs for rows of dispatch `m->epoch` in combine number `call`. */
static enum epa_status send_outputs(struct plain *p, const struct epa_moe *m, uint64_t call)
{
    uint32_t set = (uint32_t)(m->epoch % SETS);
    uint64_t out = m->hidden * 2, base = (uint64_t)set * p->s.size * p->s.most;
    enum epa_status status = EPA_OK;

    memcpy(here(p, p->s.y + base * out), m->y, p->rows[set] * out);
    for (uint64_t i = 0; i < p->rows[set] && status == EPA_OK; i++) {
        const struct head *head = &p->from[base + i];

        status = put(p, slots_of(p, m, call) + ((uint64_t)head->token * m->topk + head->k) * out,
                     here(p, p->s.y + (base + i) * out), out, p->origin[base + i].rank);
    }
    for (uint32_t i = 1; i < p->s.size && status == EPA_OK; i++)
        status = signal_with(p, OUTPUTS, call, 0, NULL, 0, (p->world.rank + i) % p->s.size);
    return status;
}

static enum epa_status combine(struct epa_algorithm *a, struct epa_problem *problem)
{
    struct plain *p = (struct plain *)a;
    const struct epa_moe *m = &problem->u.moe;
    enum epa_status status = send_outputs(p, m, m->epoch);

    if (status == EPA_OK)
        status = wait_all(p, OUTPUTS, m->epoch);
    if (status == EPA_OK)
        reduce(m, here(p, slots_of(p, m, m->epoch)));
    return status == EPA_OK ? p->t->ops->quiet(p->t) : status;
}

static const struct epa_stage stages[] = {{"dispatch", EPA_STAGE_DISPATCH, dispatch},
                                          {"combine", EPA_STAGE_COMBINE, combine}};

static enum epa_status discard(struct epa_algorithm *a, struct epa_problem *problem)
{
    return EPA_OK;
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    struct plain *p = (struct plain *)a;

    struct epa_error why = {EPA_OK, ""};

    p->t->ops->explain(p->t, &why);
    (void)epa_fail(&why, EPA_ERR_TIMEOUT, "no room, for too long");
    (void)epa_fail(epa_awaits(err, p->awaited), why.status, "plainmoe waits for rank %u: %.300s",
                   p->awaited, why.text);
}

static void destroy(struct epa_algorithm *a)
{
    struct plain *p = (struct plain *)a;

    free(p->recv_count);
    free(p->recv_start);
    free(p->origin);
    free(p->from);
    free(p);
}

static enum epa_status create(const struct epa_algorithm_params *params, struct epa_algorithm **out,
                              struct epa_error *err)
{
    struct plain *p = malloc(sizeof(*p));
    struct shape s = shape_of(&params->problem->u.moe, params->world.size);
    size_t rows = (size_t)SETS * s.size * s.most, local = (size_t)SETS * s.local;

    *p = (struct plain){.base = {.stages = stages,
                                 .n_stages = 2,
                                 .discard = discard,
                                 .explain = explain,
                                 .destroy = destroy},
                        .t = params->transport,
                        .world = params->world,
                        .s = s,
                        .heap = params->heap,
                        .signal = params->signal,
                        .timeout_ns = params->timeout_ns,
                        .epoch = params->epoch,
                        .recv_count = calloc(local, sizeof(uint32_t)),
                        .recv_start = calloc(local, sizeof(uint64_t)),
                        .origin = calloc(rows, sizeof(struct epa_origin)),
                        .from = calloc(rows, sizeof(struct head))};
    *out = &p->base;
    return EPA_OK;
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "plainmoe",
               .summary = "dispatch and combine as plain as can be, for faults"},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST,
    .needs_host = EPA_TRANSPORT_HOST,
    .plan = plan,
    .create = create,
};
