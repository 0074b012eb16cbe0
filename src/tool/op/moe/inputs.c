/* Inputs and traffic of a rank. */
#include "op/moe/inputs.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/memory.h"
#include "base/random.h"
#include "epa2a/quant.h"
#include "op/moe/routing.h"

uint64_t op_moe_most_tokens(const struct problem_params *x)
{
    return x->moe.max_tokens;
}

/* Arrays that the input type does not use have 0 bytes. */
uint32_t op_moe_arrays(const struct problem_params *x, uint64_t tokens, struct op_array *out)
{
    const struct moe_options *m = &x->moe;
    bool fp8 = m->input_dtype == MOE_INPUT_FP8;
    uint64_t row = m->hidden * sizeof(uint16_t), scales = fp8 ? m->hidden / m->fp8_group_size : 0;

    out[ARRAY_X] = (struct op_array){"x", fp8 ? 0 : tokens * row};
    out[ARRAY_X_FP8] = (struct op_array){"x_fp8", fp8 ? tokens * m->hidden : 0};
    out[ARRAY_X_SCALE] = (struct op_array){"x_scale", tokens * scales * sizeof(float)};
    out[ARRAY_EXPERT] = (struct op_array){"expert", tokens * m->topk * sizeof(int32_t)};
    out[ARRAY_WEIGHT] = (struct op_array){"weight", tokens * m->topk * sizeof(float)};
    out[ARRAY_FACTOR] = (struct op_array){
        "expert_factor", x->expert.kind == EXPERT_MLP ? 0 : m->experts * sizeof(float)};
    out[ARRAY_OUT] = (struct op_array){"out", m->max_tokens * row, .output = true};
    return ARRAYS;
}

void op_moe_factors(const struct op_moe *op, uint64_t iteration, float *out)
{
    for (uint32_t e = 0; e < op->r.params->moe.experts; e++)
        out[e] = op_moe_factor(op, iteration, e);
}

void op_moe_route(const struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t tokens,
                  int32_t *expert, float *weight)
{
    const struct problem_params *x = op->r.params;

    routing_fill(x, op->r.source, rank, iteration, tokens, expert, weight);
    if (op->r.oracle.hard_values && op->r.oracle.signed_weights && iteration % 4 == 3 &&
        x->routing.kind != ROUTING_FILE)
        routing_fill_signed(x, rank, iteration, tokens, expert, weight);
}

/* Plants a NaN and an infinity in half of the tokens. */
static void plant_nonfinite(uint64_t key, bool f16, uint32_t hidden, uint16_t *x)
{
    uint64_t draw = random_at(key, 0);
    uint32_t at = (uint32_t)(draw >> 32) % hidden, other = (at + hidden / 2) % hidden;
    uint16_t sign = (uint16_t)(draw << 14 & 0x8000u);

    if ((draw & 1) == 0)
        return;
    x[at] = f16 ? 0x7e00 : 0x7fc0;
    x[other] = (uint16_t)(sign | (f16 ? 0x7c00 : 0x7f80));
}

/* Plants values that reveal careless numerics in one group of 16. They are finite; verify.nonfinite plants
 * non-finite ones. With `times` 0 an outlier has the largest exponent, and in f16 the output of some
 * synthetic experts overflows. Otherwise the outlier is the value times `times`. */
static void plant_hard_values(uint64_t key, bool f16, float times, uint32_t group, uint32_t groups,
                              uint16_t *x)
{
    const uint16_t denormal = f16 ? 0x83ff : 0x807f;

    for (uint32_t g = 0; g < groups; g++, x += group) {
        uint64_t r = random_at(key, g);
        uint32_t at = (uint32_t)(r >> 32) % group;

        switch (r & 63) {
        case 0:
            memset(x, 0, group * sizeof(*x));
            break;
        case 1: /* an outlier: all other values have codes near the lowest ones */
            x[at] = times == 0 ? (uint16_t)((x[at] & 0x8000u) | (0x7bffu - (r >> 12 & 1023u)))
                               : word_of_float(f16, float_of_word(f16, x[at]) * times);
            break;
        case 2: /* a group of denormals */
            for (uint32_t i = 0; i < group; i++)
                x[i] &= denormal;
            break;
        case 3: /* denormals and zeros of both signs among other values */
            x[at] &= denormal;
            x[(at + 1) % group] = 0x8000;
            x[(at + 2) % group] = 0;
            break;
        default:
            break;
        }
    }
}

void op_moe_token(const struct op_moe *op, uint32_t rank, uint64_t iteration, uint32_t token,
                  uint16_t *out)
{
    const struct problem_params *x = op->r.params;
    const uint16_t *read = routing_hidden(op->r.source, x, rank, iteration, token);

    if (read != NULL) {
        memcpy(out, read, x->moe.hidden * sizeof(*out));
        return;
    }
    if (op->weights.integers) {
        weights_token(&op->weights,
                      random_at(random_key(x->seed, RANDOM_X, rank, iteration), token), is_f16(op),
                      out);
        return;
    }
    random_words(random_at(random_key(x->seed, RANDOM_X, rank, iteration), token), x->moe.hidden,
                 is_f16(op), out);
    if (op->r.oracle.hard_values)
        plant_hard_values(random_at(random_key(x->seed, RANDOM_HARD, rank, iteration), token),
                          is_f16(op),
                          !is_f16(op)        ? 1000.0f
                          : op->mlp.ffn != 0 ? 100.0f
                                             : 0,
                          x->moe.fp8_group_size, (uint32_t)hidden_groups(op), out);
    if (op->r.oracle.hard_values && op->r.oracle.nonfinite)
        plant_nonfinite(random_at(random_key(x->seed, RANDOM_NONFINITE, rank, iteration), token),
                        is_f16(op), x->moe.hidden, out);
}

/* Tokens that threads fill. */
struct filling {
    const struct op_moe *op;
    uint16_t *to;
    uint64_t iteration;
    uint32_t tokens, next; /* next: counter from which threads take groups of tokens */
};

static void fill_groups(void *arg, uint32_t thread)
{
    enum { GROUP = 16 };
    struct filling *k = arg;
    const struct op_moe *op = k->op;

    (void)thread;
    /* Relaxed: the counter only distributes tokens to threads. */
    for (uint32_t t; (t = __atomic_fetch_add(&k->next, GROUP, __ATOMIC_RELAXED)) < k->tokens;)
        for (uint32_t i = t; i < t + GROUP && i < k->tokens; i++)
            op_moe_token(op, op->r.world.rank, k->iteration, i,
                         k->to + (size_t)i * op->r.params->moe.hidden);
}

/* Several threads are faster from about a million channels on. */
static void fill_native(const struct op_moe *op, struct op_slot *s, uint32_t tokens)
{
    struct crew crew = op->r.crew;
    struct filling k = {op, s->array[ARRAY_X].here, s->iteration, tokens, 0};

    if ((uint64_t)tokens * op->r.params->moe.hidden < 1u << 20)
        crew.threads = 1;
    crew_run(&crew, fill_groups, &k);
}

static void fill_tokens(struct op_moe *op, struct op_slot *s, uint32_t tokens)
{
    const struct epa_kernels *kernels =
        epa_kernels_get((enum epa_dtype)op->r.params->moe.dtype, NULL);
    const struct moe_options *moe = &op->r.params->moe;
    uint32_t rank = op->r.world.rank;

    if (moe->input_dtype == MOE_INPUT_NATIVE) {
        fill_native(op, s, tokens);
        return;
    }
    for (uint32_t t = 0; t < tokens; t++) {
        size_t at = (size_t)t * moe->hidden;

        op_moe_token(op, rank, s->iteration, t, op->row);
        kernels->quantise(op->row, moe->hidden, moe->fp8_group_size, NULL,
                          (uint8_t *)s->array[ARRAY_X_FP8].here + at,
                          (float *)s->array[ARRAY_X_SCALE].here + t * hidden_groups(op));
    }
}

/* ---- traffic, computed from the routing of all ranks: the world may be larger than any world that this
 * machine can run ---- */

/* Numbers of rows: one per choice; one per token and rank. */
struct rows {
    uint64_t all, once;
};

/* Counts of one rank in an iteration. All nodes have the same number of ranks, except in far_out
 * and far_in: the hosts of a launch may have different numbers of ranks. */
struct counted {
    uint64_t chosen, arrived;      /* choices of its tokens, and of its experts */
    struct rows rows;              /* sent and received rows, including its own */
    struct rows out, in;           /* to and from other nodes */
    struct rows node_out, node_in; /* in the first rank of a node: sums over its ranks */
    struct rows far_out, far_in;   /* to and from other nodes of the given world */
    uint64_t seen;                 /* last token that was counted for it, from 1 */
};

static void count_row(struct rows *rows, bool first)
{
    rows->all++;
    rows->once += first;
}

static void count_token(const struct problem_params *x, uint32_t node, const uint32_t *node_of,
                        struct counted *all, uint32_t from, const int32_t *expert, uint64_t token)
{
    uint32_t local = x->moe.experts / x->ranks;

    for (uint32_t k = 0; k < x->moe.topk; k++) {
        uint32_t to = expert[k] >= 0 ? (uint32_t)expert[k] / local : 0;
        bool first = all[to].seen != token;

        if (expert[k] < 0)
            continue;
        all[from].chosen++;
        all[to].arrived++;
        all[to].seen = token;
        count_row(&all[from].rows, first);
        count_row(&all[to].rows, first);
        if (node_of != NULL && node_of[from] != node_of[to]) {
            count_row(&all[from].far_out, first);
            count_row(&all[to].far_in, first);
        }
        if (from / node == to / node)
            continue;
        count_row(&all[from].out, first);
        count_row(&all[to].in, first);
        count_row(&all[from / node * node].node_out, first);
        count_row(&all[to / node * node].node_in, first);
    }
}

/* Returns the counts [ranks] with `node` ranks per node. node_of: [ranks], for far_out and far_in,
 * or NULL. of_expert: [experts], choices of each. */
static struct counted *count_all(const struct problem_params *x, const struct op_source *source,
                                 uint64_t iteration, uint32_t node, const uint32_t *node_of,
                                 uint64_t *of_expert)
{
    size_t choices = (size_t)x->moe.max_tokens * x->moe.topk;
    struct counted *all = memory_alloc(x->ranks, sizeof(*all));
    int32_t *expert = memory_alloc(choices, sizeof(*expert));
    float *weight = memory_alloc(choices, sizeof(*weight));
    uint64_t token = 0;

    for (uint32_t r = 0; r < x->ranks; r++) {
        uint32_t n = routing_tokens_of(x, r, iteration);

        routing_fill(x, source, r, iteration, n, expert, weight);
        for (uint32_t t = 0; t < n; t++)
            count_token(x, node, node_of, all, r, expert + (size_t)t * x->moe.topk, ++token);
        for (size_t i = 0; i < (size_t)n * x->moe.topk; i++)
            if (expert[i] >= 0)
                of_expert[expert[i]]++;
    }
    free(expert);
    free(weight);
    return all;
}

/* Directions of rows: tokens to experts, and outputs back. */
enum direction { DISPATCHED, COMBINED };

/* Returns the number of rows that the algorithm sends in a direction. */
static uint64_t sent_of(const struct epa_moe_footprint *f, enum direction d, struct rows rows)
{
    bool once = d == DISPATCHED ? f->dispatch_dedup : f->combine_dedup;

    return once || f->layout == EPA_LAYOUT_RANK ? rows.once : rows.all;
}

/* Returns true if far_dispatch_row_bytes replaces the rows between nodes. */
static bool has_far_rows(const struct epa_moe_footprint *f)
{
    return f->far_dispatch_row_bytes != 0;
}

/* Rows between a rank and the ranks of other nodes that one put per peer transfers. */
struct far {
    uint64_t peers; /* ranks of other nodes; 0: all rows are rows of the node */
    uint64_t out, in;
};

/* Moves the rows between this rank and other nodes from `c` to the result. */
static struct far take_far_rows(const struct op_rank *rank, uint64_t iteration, struct counted *c)
{
    uint64_t own = routing_tokens_of(rank->params, rank->world.rank, iteration);
    struct far far = {0, 0, 0};

    for (uint32_t r = 0; r < rank->world.size; r++) {
        if (epa_same_node(&rank->world, r))
            continue;
        far.peers++;
        far.out += own;
        far.in += routing_tokens_of(rank->params, r, iteration);
    }
    c->out.all -= c->far_out.all;
    c->out.once -= c->far_out.once;
    c->in.all -= c->far_in.all;
    c->in.once -= c->far_in.once;
    return far;
}

/* Replaces the rows between nodes of `node` ranks, which are `out` and `in`, by a row per token and
 * peer. */
static void count_far_rows(const struct problem_params *x, uint64_t iteration, uint32_t node,
                           struct counted *all)
{
    uint64_t tokens = 0;

    for (uint32_t r = 0; r < x->ranks; r++)
        tokens += routing_tokens_of(x, r, iteration);
    for (uint32_t first = 0; first < x->ranks; first += node) {
        uint64_t of_node = 0, in;

        for (uint32_t r = first; r < first + node; r++)
            of_node += routing_tokens_of(x, r, iteration);
        in = tokens - of_node;
        for (uint32_t r = first; r < first + node; r++) {
            struct counted *c = &all[r];
            uint64_t out = (uint64_t)routing_tokens_of(x, r, iteration) * (x->ranks - node);

            c->rows.once += out - c->out.once + in - c->in.once;
            c->rows.all += out - c->out.all + in - c->in.all;
            c->out = (struct rows){out, out};
            c->in = (struct rows){in, in};
        }
        all[first].node_out =
            (struct rows){of_node * (x->ranks - node), of_node * (x->ranks - node)};
        all[first].node_in = (struct rows){in * node, in * node};
    }
}

/* Returns the bytes of a token or an expert output with its scales. */
static uint64_t least_bytes(const struct op_moe *op, enum epa_dtype dtype)
{
    const struct moe_options *moe = &op->r.params->moe;

    return dtype == EPA_FP8_E4M3 ? moe->hidden + hidden_groups(op) * sizeof(float)
                                 : moe->hidden * sizeof(uint16_t);
}

/* Returns the operations of real experts for a number of entries; a multiply-add counts as two. */
static double mlp_flops(const struct op_moe *op, uint64_t entries)
{
    const struct epa_mlp *m = &op->mlp;
    double row = (double)op->r.params->moe.hidden * ((double)epa_mlp_up_rows(m) + (double)m->ffn);

    return 2 * row * (double)entries;
}

/* Returns the number of rows in memory that a rank receives in this layout, including its own. */
static uint64_t rows_in_memory(const struct epa_moe_footprint *f, const struct counted *c)
{
    uint64_t own = (c->rows.once - c->out.once - c->in.once) / 2;

    return f->layout == EPA_LAYOUT_RANK ? c->in.once + own : c->arrived;
}

/* Counts the bytes of device memory that kernels read and write in both phases. Dispatch reads the
 * tokens and writes the received rows; combine reads the expert outputs and writes the sums. Rows that
 * arrive in a buffer are written once more; they are read while they are in the cache. Metadata are not
 * counted. With `fused` the expert outputs are not in memory, and nothing is counted. */
static void count_memory(const struct op_moe *op, uint64_t tokens, const struct counted *c,
                         struct op_traffic *t)
{
    const struct epa_moe_footprint *f = &op->footprint;
    const struct moe_options *moe = &op->r.params->moe;
    enum epa_dtype dtype = (enum epa_dtype)moe->dtype;
    uint64_t rows = rows_in_memory(f, c), row = least_bytes(op, dtype);
    uint64_t token = moe->input_dtype == MOE_INPUT_FP8 ? least_bytes(op, EPA_FP8_E4M3) : row;

    if (f->fused || op->r.backend->memory == EPA_MEMORY_HOST)
        return;
    t->phase[DISPATCHED].memory = tokens * token + rows * least_bytes(op, f->recv_dtype);
    t->phase[COMBINED].memory = rows * row + tokens * row;
    if (f->dispatch_staged)
        t->phase[DISPATCHED].memory += sent_of(f, DISPATCHED, c->in) * f->dispatch_row_bytes;
    if (f->combine_staged)
        t->phase[COMBINED].memory += sent_of(f, COMBINED, c->out) * f->combine_row_bytes;
}

void op_moe_traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    const struct op_moe *op = op_moe_of(rank);
    const struct epa_moe_footprint *f = &op->footprint;
    const struct op_slot *s = &rank->slot[slot];
    const struct moe_options *moe = &rank->params->moe;
    uint64_t *of_expert = memory_alloc(moe->experts, sizeof(*of_expert));
    struct counted *all =
        count_all(rank->params, rank->source, s->iteration, 1, rank->world.node, of_expert);
    struct counted c = all[rank->world.rank], whole = c;
    uint64_t most = c.out.once > c.in.once ? c.out.once : c.in.once;
    struct far far =
        has_far_rows(f) ? take_far_rows(rank, s->iteration, &c) : (struct far){0, 0, 0};
    uint64_t out = sent_of(f, DISPATCHED, c.out), in = sent_of(f, DISPATCHED, c.in);
    uint64_t back_out = sent_of(f, COMBINED, c.in), back_in = sent_of(f, COMBINED, c.out);
    uint64_t control =
        f->control_bytes * (rank->world.size - 1 - far.peers) + f->far_control_bytes * far.peers;
    uint32_t first = rank->world.rank * op->local_experts, experts = 0;
    struct op_traffic t = {
        .phase = {{.needed = c.chosen * f->dispatch_token_bytes,
                   .sent = out * f->dispatch_row_bytes + c.out.all * f->choice_bytes +
                           far.out * f->far_dispatch_row_bytes + control,
                   .received = in * f->dispatch_row_bytes + c.in.all * f->choice_bytes +
                               far.in * f->far_dispatch_row_bytes + control,
                   .least = most * least_bytes(op, f->recv_dtype)},
                  {.needed = c.chosen * f->combine_token_bytes,
                   .sent = back_out * f->combine_row_bytes + far.in * f->far_combine_row_bytes,
                   .received = back_in * f->combine_row_bytes + far.out * f->far_combine_row_bytes,
                   .least = most * least_bytes(op, f->output_dtype)}},
        .flops = rank->footprint.flops * s->units / moe->max_tokens};

    count_memory(op, s->units, &whole, &t);
    for (uint32_t e = first; e < first + op->local_experts; e++)
        experts += of_expert[e] != 0;
    if (op->mlp.ffn != 0) {
        t.flops = mlp_flops(op, c.arrived);
        t.weights = weights_bytes(&op->weights, experts);
    }
    op_traffic_add(sum, &t);
    free(all);
    free(of_expert);
}

static double larger(const struct epa_moe_footprint *f, enum direction d, struct rows a,
                     struct rows b)
{
    return fmax((double)sent_of(f, d, a), (double)sent_of(f, d, b));
}

void op_moe_load(const struct problem_params *x, const struct epa_footprint *footprint,
                 const struct op_source *source, uint64_t iteration, struct op_load load[OP_PHASES])
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    bool far_rows = has_far_rows(f);
    const double row[] = {
        (double)(far_rows ? f->far_dispatch_row_bytes : f->dispatch_row_bytes),
        (double)(far_rows ? f->far_combine_row_bytes : f->combine_row_bytes),
    };
    uint64_t control_bytes = far_rows ? f->far_control_bytes : f->control_bytes;
    uint32_t node = x->ranks_per_node != 0 ? x->ranks_per_node : x->ranks, far = x->ranks - node;
    uint64_t *of_expert = memory_alloc(x->moe.experts, sizeof(*of_expert));
    struct counted *all = count_all(x, source, iteration, node, NULL, of_expert);

    if (far_rows)
        count_far_rows(x, iteration, node, all);
    memset(load, 0, OP_PHASES * sizeof(*load));
    for (uint32_t r = 0; r < x->ranks; r++) {
        const struct counted *c = &all[r];
        double messages[] = {(double)sent_of(f, DISPATCHED, c->out) + (control_bytes > 0 ? far : 0),
                             (double)sent_of(f, COMBINED, c->in)};

        for (enum direction i = DISPATCHED; i <= COMBINED; i++) {
            double control = i == DISPATCHED ? (double)control_bytes * far : 0;

            load[i].rows = fmax(load[i].rows, (double)sent_of(f, i, c->rows));
            load[i].entries = fmax(load[i].entries, (double)(c->chosen + c->arrived));
            load[i].rank_bytes =
                fmax(load[i].rank_bytes, larger(f, i, c->out, c->in) * row[i] + control);
            load[i].messages = fmax(load[i].messages, messages[i]);
            if (r % node == 0)
                load[i].node_bytes =
                    fmax(load[i].node_bytes,
                         larger(f, i, c->node_out, c->node_in) * row[i] + control * node);
        }
    }
    free(all);
    free(of_expert);
}

/* Adds one iteration's `n` counts. `before`: number of iterations in the means so far. */
static void spread_add(struct routing_spread *s, const uint64_t *count, uint32_t n, uint64_t before)
{
    uint64_t least = UINT64_MAX, most = 0, sum = 0;
    double this_mean, this_imbalance;

    for (uint32_t i = 0; i < n; i++) {
        least = count[i] < least ? count[i] : least;
        most = count[i] > most ? count[i] : most;
        sum += count[i];
    }
    this_mean = (double)sum / n;
    this_imbalance = sum != 0 ? (double)most / this_mean : 1;
    s->min = before == 0 || least < s->min ? least : s->min;
    s->max = most > s->max ? most : s->max;
    s->mean += (this_mean - s->mean) / (double)(before + 1);
    s->imbalance += (this_imbalance - s->imbalance) / (double)(before + 1);
}

void op_moe_stats_add(void *sums, const struct problem_params *x, const struct op_source *source,
                      uint64_t iteration)
{
    struct routing_stats *stats = sums;
    uint64_t *of_expert = memory_alloc((size_t)x->moe.experts + x->ranks, sizeof(*of_expert));
    uint64_t *of_rank = of_expert + x->moe.experts;
    struct counted *all = count_all(x, source, iteration, x->ranks, NULL, of_expert);

    for (uint32_t r = 0; r < x->ranks; r++) {
        uint64_t tokens = routing_tokens_of(x, r, iteration);

        stats->tokens += tokens;
        stats->choices += tokens * x->moe.topk;
        stats->dropped += tokens * x->moe.topk - all[r].chosen;
        of_rank[r] = all[r].arrived;
    }
    spread_add(&stats->expert, of_expert, x->moe.experts, stats->iterations);
    spread_add(&stats->rank, of_rank, x->ranks, stats->iterations);
    stats->iterations++;
    free(all);
    free(of_expert);
}

/* ---- an iteration ---- */

uint32_t op_moe_inputs(struct op_rank *rank, struct op_slot *s)
{
    struct op_moe *op = op_moe_of(rank);
    uint32_t me = rank->world.rank, tokens = routing_tokens_of(rank->params, me, s->iteration);
    struct epa_moe *m = &s->problem.u.moe;

    op_moe_route(op, me, s->iteration, tokens, s->array[ARRAY_EXPERT].here,
                 s->array[ARRAY_WEIGHT].here);
    fill_tokens(op, s, tokens);
    if (s->array[ARRAY_FACTOR].here != NULL)
        op_moe_factors(op, s->iteration, s->array[ARRAY_FACTOR].here);
    m->tokens = tokens;
    m->x = s->array[ARRAY_X].there;
    m->x_fp8 = s->array[ARRAY_X_FP8].there;
    m->x_scale = s->array[ARRAY_X_SCALE].there;
    m->expert = s->array[ARRAY_EXPERT].there;
    m->weight = s->array[ARRAY_WEIGHT].there;
    m->expert_factor = op->footprint.fused ? s->array[ARRAY_FACTOR].there : NULL;
    m->mlp = op->mlp;
    m->out = s->array[ARRAY_OUT].there;
    return tokens;
}
