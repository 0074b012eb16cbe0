/* What the ranks of a world have to move, counted from the routing of all of them. No rank has to
 * be there, so the world may be larger than any that this machine can run. */
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "op/moe/moe.h"

/* Rows of one rank in an iteration. A row that crosses is one for each choice or, with dedup or in
 * layout rank, one for each token and rank. */
struct counted {
    uint64_t rows, entries;     /* out and in, its own included */
    uint64_t far_out, far_in;   /* rows that cross, to and from other nodes */
    uint64_t node_out, node_in; /* of the first rank of a node: those of all its ranks */
    uint64_t seen;              /* the last token that has reached it, counted from 1 */
};

static void count_token(const struct experiment *x, struct counted *all, uint32_t from,
                        const int32_t *expert, uint64_t token)
{
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    uint32_t local = x->moe.experts / x->ranks;
    uint32_t node = x->ranks_per_node != 0 ? x->ranks_per_node : x->ranks;
    bool once = f->dedup || f->layout == EPA_LAYOUT_RANK;

    for (uint32_t k = 0; k < x->moe.topk; k++) {
        uint32_t to = expert[k] >= 0 ? (uint32_t)expert[k] / local : 0;
        bool crosses = !once || all[to].seen != token;

        if (expert[k] < 0)
            continue;
        all[from].entries++;
        all[to].entries++;
        all[to].seen = token;
        all[from].rows += crosses;
        all[to].rows += crosses;
        if (!crosses || from / node == to / node)
            continue;
        all[from].far_out++;
        all[to].far_in++;
        all[from / node * node].node_out++;
        all[to / node * node].node_in++;
    }
}

static double larger(uint64_t a, uint64_t b)
{
    return (double)(a > b ? a : b);
}

static void find_busiest(const struct experiment *x, const struct counted *all,
                         struct op_load load[OP_PHASES])
{
    const struct epa_moe_footprint *f = &x->footprint.u.moe;
    uint32_t node = x->ranks_per_node != 0 ? x->ranks_per_node : x->ranks, far = x->ranks - node;
    uint64_t control = f->control_bytes * far;

    for (uint32_t r = 0; r < x->ranks; r++) {
        const struct counted *c = &all[r];
        double bytes[] = {larger(c->far_out, c->far_in) * (double)f->dispatch_row_bytes +
                              (double)control,
                          larger(c->far_out, c->far_in) * (double)f->combine_row_bytes};
        double of_node[] = {larger(c->node_out, c->node_in) * (double)f->dispatch_row_bytes +
                                (double)control * node,
                            larger(c->node_out, c->node_in) * (double)f->combine_row_bytes};
        double messages[] = {(double)c->far_out + (f->control_bytes > 0 ? far : 0),
                             (double)c->far_in};

        for (uint32_t i = 0; i < 2; i++) {
            load[i].rows = fmax(load[i].rows, (double)c->rows);
            load[i].entries = fmax(load[i].entries, (double)c->entries);
            load[i].rank_bytes = fmax(load[i].rank_bytes, bytes[i]);
            load[i].messages = fmax(load[i].messages, messages[i]);
            if (r % node == 0)
                load[i].node_bytes = fmax(load[i].node_bytes, of_node[i]);
        }
    }
}

void op_moe_load(const struct experiment *x, const struct op_source *source, uint64_t iteration,
                 struct op_load load[OP_PHASES])
{
    size_t choices = (size_t)x->moe.max_tokens * x->moe.topk;
    struct counted *all = memory_alloc(x->ranks, sizeof(*all));
    int32_t *expert = memory_alloc(choices, sizeof(*expert));
    float *weight = memory_alloc(choices, sizeof(*weight));
    uint64_t token = 0;

    memset(load, 0, OP_PHASES * sizeof(*load));
    for (uint32_t r = 0; r < x->ranks; r++) {
        uint32_t n = routing_tokens_of(x, r, iteration);

        routing_fill(x, source, r, iteration, n, expert, weight);
        for (uint32_t t = 0; t < n; t++)
            count_token(x, all, r, expert + (size_t)t * x->moe.topk, ++token);
    }
    find_busiest(x, all, load);
    free(all);
    free(expert);
    free(weight);
}
