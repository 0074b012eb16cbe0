/* State of the checks of a rank: its memory, the routing of all ranks, and reference rows. */
#include "op/moe/check_state.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/pool.h"
#include "op/moe/inputs.h"
#include "op/moe/routing.h"

/* Limits of a block of outputs: memory, and tokens; and rows of an expert that one of several threads
 * computes at a time. */
enum { ROOM_BYTES = 64 << 20, MOST_ROWS = 256, MOST_SPARSE_ROWS = 1024, MORE_ROWS = 64 };

/* Returns the number of tokens whose outputs are computed at a time. With integers, the entries of all
 * experts are made for each block, so a block of many tokens has as much memory as tokens and outputs of the
 * rank. */
static uint32_t block_tokens(const struct problem_params *x)
{
    bool sparse = x->expert.kind == EXPERT_MLP && x->expert.values == EXPERT_VALUES_INTEGERS;
    uint64_t outputs = (uint64_t)x->moe.topk * x->moe.hidden * 2 * sizeof(float);
    uint64_t room = 2 * (uint64_t)x->moe.max_tokens * x->moe.hidden * sizeof(uint16_t);
    uint64_t n = (sparse && room > ROOM_BYTES ? room : ROOM_BYTES) / outputs;
    uint32_t most = sparse ? MOST_SPARSE_ROWS : MOST_ROWS;

    n = n < 1 ? 1 : n < most ? n : most;
    return n < x->moe.max_tokens ? (uint32_t)n : x->moe.max_tokens;
}

static bool has_real_experts(const struct problem_params *x)
{
    return x->expert.kind == EXPERT_MLP;
}

/* Allocates the arrays of a thread. */
static void lay_out_space(const struct problem_params *x, uint32_t rows, struct pool *p,
                          struct check_space *s)
{
    size_t hidden = x->moe.hidden;

    s->row.x = pool_alloc(p, hidden, sizeof(*s->row.x));
    s->row.q = pool_alloc(p, hidden, sizeof(*s->row.q));
    s->row.scale = pool_alloc(p, hidden, sizeof(*s->row.scale)); /* one per group: fewer */
    s->row.value = pool_alloc(p, hidden, sizeof(*s->row.value));
    s->sent = pool_alloc(p, hidden, sizeof(*s->sent));
    s->sent_q = pool_alloc(p, hidden, sizeof(*s->sent_q));
    s->order = pool_alloc(p, x->moe.topk, sizeof(*s->order));
    s->size = pool_alloc(p, hidden, sizeof(*s->size));
    for (uint32_t i = 0; i < (has_real_experts(x) ? 2 : 1); i++) {
        s->total[i] = pool_alloc(p, hidden, sizeof(float));
        s->part[i] = pool_alloc(p, hidden, sizeof(float));
        s->quantised[i] = pool_alloc(p, hidden, sizeof(float));
        s->sum[i] = pool_alloc(p, hidden, sizeof(double));
    }
    if (!has_real_experts(x)) {
        s->synthetic = pool_alloc(p, hidden, sizeof(float));
        return;
    }
    s->rows = rows;
    s->expert_rows = pool_alloc(p, rows, sizeof(*s->expert_rows));
}

/* Allocates the arrays of check_combine.c from the pool. */
static void check_combine_lay_out(const struct problem_params *x, struct moe_check *c)
{
    size_t n = block_tokens(x), hidden = x->moe.hidden;
    struct pool *p = &c->pool;
    struct weights w;

    c->block_tokens = (uint32_t)n;
    c->token = pool_alloc(p, n, sizeof(*c->token));
    c->result = pool_alloc(p, n, sizeof(*c->result));
    lay_out_space(x, c->block_tokens, p, &c->own);
    if (!has_real_experts(x))
        return;
    weights_init(x, &w);
    for (uint32_t i = 0; i < 2; i++)
        c->output[i] = pool_alloc(p, n * x->moe.topk * hidden, sizeof(float));
    c->block_x = pool_alloc(p, n * hidden, sizeof(*c->block_x));
    c->block_scale = pool_alloc(p, n * (hidden / w.x_group), sizeof(*c->block_scale));
}

/* Returns the bytes of the other memory of check_combine.c. */
static uint64_t check_combine_bytes(const struct problem_params *x)
{
    struct weights w;

    if (!has_real_experts(x))
        return 0;
    weights_init(x, &w);
    return reference_bytes(&w, block_tokens(x));
}

static void allocate_check(const struct problem_params *x, struct moe_check *c)
{
    size_t choices = (size_t)x->ranks * x->moe.max_tokens * x->moe.topk;
    struct pool *p = &c->pool;

    c->tokens = pool_alloc(p, x->ranks, sizeof(*c->tokens));
    c->expert = pool_alloc(p, choices, sizeof(*c->expert));
    c->weight = pool_alloc(p, choices, sizeof(*c->weight));
    c->filed = pool_alloc(p, choices, sizeof(*c->filed));
    c->range = pool_alloc(p, x->moe.experts / x->ranks, sizeof(*c->range));
    check_combine_lay_out(x, c);
}

uint64_t op_moe_check_bytes(const struct problem_params *x)
{
    struct moe_check c = {.pool = {.counting = true}};

    allocate_check(x, &c);
    return c.pool.bytes + check_combine_bytes(x);
}

void op_moe_check_destroy(struct moe_check *c)
{
    if (c == NULL)
        return;
    reference_destroy(c->own.reference);
    for (uint32_t i = 0; i < c->n_more; i++)
        reference_destroy(c->more[i].reference);
    free(c->more);
    pool_free(&c->more_pool);
    pool_free(&c->pool);
    free(c);
}

size_t check_choice(const struct op_moe *op, uint32_t rank, uint32_t token)
{
    return ((size_t)rank * op->r.params->moe.max_tokens + token) * op->r.params->moe.topk;
}

enum epa_status check_begin(struct op_moe *op, uint64_t iteration, struct epa_error *err)
{
    struct moe_check *c = op->check;

    if (c != NULL && c->iteration == iteration)
        return EPA_OK;
    if (c == NULL) {
        c = memory_alloc(1, sizeof(*c));
        allocate_check(op->r.params, c);
        if (c->pool.failed) {
            op_moe_check_destroy(c);
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for the checks: %llu bytes",
                            (unsigned long long)op_moe_check_bytes(op->r.params));
        }
        for (uint32_t q = 0; q < 256; q++)
            c->decode[q] = float_of_e4m3((uint8_t)q);
        op->check = c;
    }
    for (uint32_t r = 0; r < op->r.world.size; r++) {
        size_t at = check_choice(op, r, 0);

        c->tokens[r] = routing_tokens_of(op->r.params, r, iteration);
        op_moe_route(op, r, iteration, c->tokens[r], c->expert + at, c->weight + at);
    }
    c->iteration = iteration;
    return EPA_OK;
}

void check_load_row(const struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t token,
                    const struct check_row *out)
{
    uint32_t hidden = op->r.params->moe.hidden, group = op->r.params->moe.fp8_group_size;
    bool f16 = is_f16(op);

    op_moe_token(op, rank, iteration, token, out->x);
    if (op->footprint.recv_dtype != EPA_FP8_E4M3) {
        for (uint32_t h = 0; h < hidden; h++)
            out->value[h] = float_of_word(f16, out->x[h]);
        return;
    }
    for (uint32_t h = 0; h < hidden; h += group) {
        float scale = e4m3_group_of(f16, out->x + h, group, out->q + h);

        out->scale[h / group] = scale;
        for (uint32_t i = h; i < h + group; i++)
            out->value[i] = op->check->decode[out->q[i]] * scale;
    }
}

uint32_t check_threads(struct op_moe *op, uint32_t wanted)
{
    const struct problem_params *x = op->r.params;
    struct moe_check *c = op->check;
    struct pool one = {.counting = true};
    struct check_space ignored = {0};
    uint32_t ranks = op->r.world.local_size > 0 ? op->r.world.local_size : 1;
    uint64_t each, most;

    if (wanted <= 1)
        return 1;
    lay_out_space(x, MORE_ROWS, &one, &ignored);
    each = one.bytes + (has_real_experts(x) ? reference_bytes(&op->weights, MORE_ROWS) : 0);
    most = CHECK_MORE_BYTES / ranks / each;
    most = most < wanted - 1 ? most : wanted - 1;
    if (c->more == NULL && most > 0)
        c->more = calloc(most, sizeof(*c->more));
    for (; c->more != NULL && c->n_more < most && !c->more_pool.failed; c->n_more++) {
        lay_out_space(x, MORE_ROWS, &c->more_pool, &c->more[c->n_more]);
        if (c->more_pool.failed)
            break;
    }
    return c->n_more < most ? c->n_more + 1 : (uint32_t)most + 1;
}

struct check_space *check_space(struct op_moe *op, uint32_t thread)
{
    return thread == 0 ? &op->check->own : &op->check->more[thread - 1];
}
