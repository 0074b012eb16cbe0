/* What an iteration moves: bytes that a rank needs moved, and those that its algorithm moves
 * for it, worked out from everybody's routing. */
#include "op/moe/op_moe.h"

#include <string.h>

#include "op/moe/moe.h"

struct rows {
    uint64_t all, once; /* one for each choice; one for each token and rank */
};

/* Adds rows that go from one rank's tokens to ranks other than `from` (to UINT32_MAX), or
 * to rank `to` alone. */
static void count_rows(struct op_moe *op, const int32_t *expert, uint32_t tokens,
                       uint32_t from, uint32_t to, struct rows *sum)
{
    uint32_t topk = op->x->moe.topk;

    for (uint32_t t = 0; t < tokens; t++, expert += topk) {
        memset(op->reached, 0, op->world.size);
        for (uint32_t k = 0; k < topk; k++) {
            uint32_t rank;

            if (expert[k] < 0)
                continue;
            rank = (uint32_t)expert[k] / op->local_experts;
            if (rank == from || (to != UINT32_MAX && rank != to))
                continue;
            sum->all++;
            sum->once += op->reached[rank] == 0;
            op->reached[rank] = 1;
        }
    }
}

/* Bytes of a token, or an expert output, and its scales. */
static uint64_t least_bytes(const struct op_moe *op, enum epa_dtype dtype)
{
    const struct moe_options *moe = &op->x->moe;

    return dtype == EPA_FP8_E4M3 ? moe->hidden + hidden_groups(op) * sizeof(float)
                                 : moe->hidden * sizeof(uint16_t);
}

void op_moe_count(struct op_moe *op, struct slot *s, uint32_t tokens)
{
    const struct epa_footprint *f = &op->footprint;
    const int32_t *mine = s->expert.here;
    uint32_t rank = op->world.rank, topk = op->x->moe.topk;
    uint64_t control = f->control_bytes * (op->world.size - 1);
    bool once = f->dedup || f->layout == EPA_LAYOUT_RANK;
    struct rows to = {0}, from = {0};
    uint64_t kept = 0, out, in, most;

    count_rows(op, mine, tokens, rank, UINT32_MAX, &to);
    for (size_t i = 0; i < (size_t)tokens * topk; i++)
        kept += mine[i] >= 0;
    for (uint32_t r = 0; r < op->world.size; r++) {
        uint32_t n = routing_tokens_of(op->x, r, s->iteration);

        if (r == rank)
            continue;
        routing_fill(op->x, op->source, r, s->iteration, n, op->expert, op->weight);
        count_rows(op, op->expert, n, r, rank, &from);
    }
    out = once ? to.once : to.all;
    in = once ? from.once : from.all;
    most = to.once > from.once ? to.once : from.once;
    s->traffic = (struct moe_traffic){
        .dispatch_needed = kept * f->dispatch_token_bytes,
        .combine_needed = kept * f->combine_token_bytes,
        .dispatch_dtype = out * f->dispatch_row_bytes + control,
        .combine_dtype = in * f->combine_row_bytes,
        .dispatch_in = in * f->dispatch_row_bytes + control,
        .combine_in = out * f->combine_row_bytes,
        .dispatch_least = most * least_bytes(op, f->recv_dtype),
        .combine_least = most * least_bytes(op, f->output_dtype),
    };
}

void op_moe_traffic(const struct op_moe *op, uint32_t slot, struct moe_traffic *sum)
{
    const struct moe_traffic *t = &op->slot[slot].traffic;

    sum->dispatch_needed += t->dispatch_needed;
    sum->combine_needed += t->combine_needed;
    sum->dispatch_dtype += t->dispatch_dtype;
    sum->combine_dtype += t->combine_dtype;
    sum->dispatch_in += t->dispatch_in;
    sum->combine_in += t->combine_in;
    sum->dispatch_least += t->dispatch_least;
    sum->combine_least += t->combine_least;
}
