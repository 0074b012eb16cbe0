/* State of the checks of a rank: its memory, the routing of all ranks, and reference rows. */
#include "op/moe/check_state.h"

#include <stdlib.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/pool.h"
#include "op/moe/inputs.h"
#include "op/moe/routing.h"

/* Limits of a block of outputs: memory, and tokens. */
enum { ROOM_BYTES = 64 << 20, MOST_ROWS = 256 };

/* Returns the number of tokens whose outputs are computed at a time. */
static uint32_t block_tokens(const struct problem_params *x)
{
    uint64_t n = ROOM_BYTES / ((uint64_t)x->moe.topk * x->moe.hidden * 2 * sizeof(float));

    n = n < 1 ? 1 : n < MOST_ROWS ? n : MOST_ROWS;
    return n < x->moe.max_tokens ? (uint32_t)n : x->moe.max_tokens;
}

/* Allocates the arrays of check_combine.c from the pool. */
static void check_combine_lay_out(const struct problem_params *x, struct moe_check *c)
{
    size_t n = block_tokens(x), hidden = x->moe.hidden;
    uint32_t ends = x->expert.kind == EXPERT_MLP ? 2 : 1;
    struct pool *p = &c->pool;
    struct weights w;

    c->sent = pool_alloc(p, hidden, sizeof(*c->sent));
    c->sent_q = pool_alloc(p, hidden, sizeof(*c->sent_q));
    c->order = pool_alloc(p, x->moe.topk, sizeof(*c->order));
    c->size = pool_alloc(p, hidden, sizeof(*c->size));
    if (ends == 1)
        n = 1;
    for (uint32_t i = 0; i < ends; i++) {
        c->total[i] = pool_alloc(p, hidden, sizeof(float));
        c->part[i] = pool_alloc(p, hidden, sizeof(float));
        c->quantised[i] = pool_alloc(p, hidden, sizeof(float));
        c->sum[i] = pool_alloc(p, hidden, sizeof(double));
        c->output[i] = pool_alloc(p, ends == 1 ? hidden : n * x->moe.topk * hidden, sizeof(float));
    }
    if (ends == 1)
        return;
    weights_init(x, &w);
    c->block_tokens = (uint32_t)n;
    c->token = pool_alloc(p, n, sizeof(*c->token));
    c->block_x = pool_alloc(p, n * hidden, sizeof(*c->block_x));
    c->block_scale = pool_alloc(p, n * (hidden / w.x_group), sizeof(*c->block_scale));
    c->row = pool_alloc(p, n, sizeof(*c->row));
}

/* Returns the bytes of the other memory of check_combine.c. */
static uint64_t check_combine_bytes(const struct problem_params *x)
{
    struct weights w;

    if (x->expert.kind != EXPERT_MLP)
        return 0;
    weights_init(x, &w);
    return reference_bytes(&w, block_tokens(x));
}

static void allocate_check(const struct problem_params *x, struct moe_check *c)
{
    size_t hidden = x->moe.hidden, choices = (size_t)x->ranks * x->moe.max_tokens * x->moe.topk;
    struct pool *p = &c->pool;

    c->tokens = pool_alloc(p, x->ranks, sizeof(*c->tokens));
    c->expert = pool_alloc(p, choices, sizeof(*c->expert));
    c->weight = pool_alloc(p, choices, sizeof(*c->weight));
    c->filed = pool_alloc(p, choices, sizeof(*c->filed));
    c->range = pool_alloc(p, x->moe.experts / x->ranks, sizeof(*c->range));
    c->x = pool_alloc(p, hidden, sizeof(*c->x));
    c->q = pool_alloc(p, hidden, sizeof(*c->q));
    c->scale = pool_alloc(p, hidden, sizeof(*c->scale)); /* one per group; larger than needed */
    c->value = pool_alloc(p, hidden, sizeof(*c->value));
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
    reference_destroy(c->reference);
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

void check_load_row(struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t token)
{
    struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden, group = op->r.params->moe.fp8_group_size;
    bool f16 = is_f16(op);

    op_moe_token(op, rank, iteration, token, c->x);
    if (op->footprint.recv_dtype != EPA_FP8_E4M3) {
        for (uint32_t h = 0; h < hidden; h++)
            c->value[h] = float_of_word(f16, c->x[h]);
        return;
    }
    for (uint32_t h = 0; h < hidden; h += group) {
        float scale = e4m3_group_of(f16, c->x + h, group, c->q + h);

        c->scale[h / group] = scale;
        for (uint32_t i = h; i < h + group; i++)
            c->value[i] = c->decode[c->q[i]] * scale;
    }
}
