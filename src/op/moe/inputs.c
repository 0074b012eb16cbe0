/* A rank's side of the MoE problem: its memory, its inputs, its traffic. Memory that
 * an algorithm sees is the backend's; where that is not the host, each array has a second
 * copy here, and backend->ops->write carries it over. */
#include "op/moe/moe.h"

#include <stdlib.h>
#include <string.h>

#include "base/dtype.h"
#include "base/random.h"
#include "epa2a/quant.h"

enum epa_status op_moe_area(struct area *area, const char *what, uint64_t bytes,
                            struct epa_error *err)
{
    if (bytes <= area->bytes && area->data != NULL)
        return EPA_OK;
    free(area->data);
    *area = (struct area){.data = malloc(bytes + 1), .bytes = bytes};
    if (area->data != NULL)
        return EPA_OK;
    area->bytes = 0;
    return epa_fail(err, EPA_ERR_NOMEM, "no memory for %s: %llu bytes", what,
                    (unsigned long long)bytes);
}

/* Arrays of a slot for so many tokens; those that the inputs' type does without have no bytes. */
static void list_arrays(const struct moe_options *m, struct slot *s, uint64_t tokens,
                        struct op_array out[ARRAYS])
{
    bool fp8 = m->input_dtype == MOE_INPUT_FP8;
    const struct op_array of_token[ARRAYS] = {
        [ARRAY_X] = {"x", fp8 ? 0 : m->hidden * sizeof(uint16_t)},
        [ARRAY_X_FP8] = {"x_fp8", fp8 ? m->hidden : 0},
        [ARRAY_X_SCALE] = {"x_scale", fp8 ? m->hidden / m->fp8_group_size * sizeof(float) : 0},
        [ARRAY_EXPERT] = {"expert", m->topk * sizeof(int32_t)},
        [ARRAY_WEIGHT] = {"weight", m->topk * sizeof(float)},
        [ARRAY_OUT] = {"out", m->hidden * sizeof(uint16_t)},
    };

    for (uint32_t i = 0; i < ARRAYS; i++)
        out[i] = (struct op_array){of_token[i].what, tokens * of_token[i].bytes, &s->array[i]};
}

static void slot_free(struct op_moe *op, struct slot *s)
{
    for (uint32_t i = 0; i < ARRAYS; i++)
        op_buffer_free(op->backend, &s->array[i]);
    if (s->y != NULL)
        op->backend->ops->free(op->backend, s->y);
}

static enum epa_status slot_alloc(struct op_moe *op, struct slot *s, struct epa_error *err)
{
    struct op_array array[ARRAYS];

    list_arrays(&op->x->moe, s, op->x->moe.max_tokens, array);
    return op_arrays_alloc(op->backend, array, ARRAYS, err);
}

/* Made once: nothing in it changes with the iteration. */
static enum epa_status make_factors(struct op_moe *op, struct epa_error *err)
{
    uint32_t experts = op->x->moe.experts;
    enum epa_status status = op_buffer_alloc(op->backend, "the experts' factors",
                                             experts * sizeof(float), &op->factor, err);

    if (status != EPA_OK)
        return status;
    for (uint32_t e = 0; e < experts; e++)
        ((float *)op->factor.here)[e] = op_moe_factor(op, e);
    status = op_buffer_send(op->backend, &op->factor, experts * sizeof(float));
    return op_backend_done(op->backend, status, err, "the experts' factors could not be written");
}

static enum epa_status scratch_alloc(struct op_moe *op, struct epa_error *err)
{
    const struct moe_options *moe = &op->x->moe;
    size_t choices = (size_t)moe->max_tokens * moe->topk;
    struct pool *p = &op->scratch;

    op->row = pool_alloc(p, moe->hidden, sizeof(*op->row));
    op->expert = pool_alloc(p, choices, sizeof(*op->expert));
    op->weight = pool_alloc(p, choices, sizeof(*op->weight));
    op->reached = pool_alloc(p, op->world.size, sizeof(*op->reached));
    op->used = pool_alloc(p, op->local_experts, sizeof(*op->used));
    op->run = pool_alloc(p, op->local_experts, sizeof(*op->run));
    op->first = pool_alloc(p, op->local_experts, sizeof(*op->first));
    if (op->footprint.layout == EPA_LAYOUT_RANK) {
        op->row_first = pool_alloc(p, op->footprint.recv_rows + 1, sizeof(*op->row_first));
        op->output = pool_alloc(p, (size_t)moe->topk * moe->hidden, sizeof(*op->output));
        op->part = pool_alloc(p, moe->topk, sizeof(*op->part));
        op->part_weight = pool_alloc(p, moe->topk, sizeof(*op->part_weight));
    }
    if (p->failed)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the experts' work space");
    memset(op->used, 0, op->local_experts * sizeof(*op->used));
    return EPA_OK;
}

enum epa_status op_moe_refuse(const struct experiment *x, const struct epa_footprint *footprint,
                              struct epa_error *err)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    const char *dtype = x->moe.dtype == EPA_F16 ? "f16" : "bf16";

    if (x->moe.dtype != EPA_BF16 && x->moe.dtype != EPA_F16)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "moe.dtype: only bf16 and f16 can be verified");
    if (f->recv_dtype != (enum epa_dtype)x->moe.dtype && f->recv_dtype != EPA_FP8_E4M3)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the algorithm delivers rows that are neither %s, as moe.dtype is, "
                        "nor FP8",
                        dtype);
    if (f->output_dtype != (enum epa_dtype)x->moe.dtype && f->output_dtype != EPA_FP8_E4M3 &&
        (f->output_dtype != EPA_F32 || !f->fused || f->sum != EPA_SUM_BY_RANK ||
         x->expert.kind != EXPERT_MLP))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the algorithm sends expert outputs that are neither %s, as moe.dtype is, "
                        "nor FP8",
                        dtype);
    if (f->fused && f->layout != EPA_LAYOUT_EXPERT)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the algorithm does the experts' work itself and delivers rows by "
                        "rank; it can do that by expert alone");
    if (x->moe.input_dtype == MOE_INPUT_FP8 && f->recv_dtype != EPA_FP8_E4M3)
        return epa_fail(
            err, EPA_ERR_CONFIG,
            "moe.input_dtype is fp8, the algorithm delivers %s rows; set moe.input_dtype: "
            "native",
            dtype);
    if ((f->recv_dtype == EPA_FP8_E4M3 || f->output_dtype == EPA_FP8_E4M3) &&
        x->moe.hidden % x->moe.fp8_group_size != 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "moe.hidden (%u) is no multiple of moe.fp8_group_size (%u)", x->moe.hidden,
                        x->moe.fp8_group_size);
    if (f->recv_entries >= UINT32_MAX || f->recv_rows >= UINT32_MAX)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "more than 2^32 received rows in a rank");
    return EPA_OK;
}

void op_moe_destroy(struct op_rank *rank)
{
    struct op_moe *op = op_moe_of(rank);

    if (op == NULL)
        return;
    for (uint32_t i = 0; i < op->n_slots; i++)
        slot_free(op, &op->slot[i]);
    op_buffer_free(op->backend, &op->factor);
    op_moe_mlp_destroy(op);
    for (uint32_t i = 0; i < STAGED; i++)
        free(op->staged[i].data);
    op_moe_check_destroy(op->check);
    free(op->slot);
    pool_free(&op->scratch);
    free(op->window.data);
    free(op->share.data);
    free(op);
}

enum epa_status op_moe_create(const struct op_params *p, struct op_rank **out,
                              struct epa_error *err)
{
    uint32_t slots = p->slots;
    struct op_moe *op;
    enum epa_status status = op_moe_refuse(p->x, p->footprint, err);

    if (status != EPA_OK)
        return status;
    op = memory_alloc(1, sizeof(*op));
    op->base.operation = &op_moe;
    op->x = p->x;
    op->source = p->source;
    op->world = *p->world;
    op->footprint = p->footprint->u.moe;
    op->flops = p->footprint->flops;
    op->backend = p->backend;
    op->local_experts = p->x->moe.experts / p->world->size;
    op->hard_values = p->hard_values;
    op->n_slots = slots;
    if (p->x->expert.kind == EXPERT_MLP)
        weights_init(p->x, &op->weights);
    op->slot = memory_alloc(slots, sizeof(*op->slot));
    status = scratch_alloc(op, err);
    if (status == EPA_OK)
        status = make_factors(op, err);
    if (status == EPA_OK)
        status = op_moe_mlp_create(op, err);
    for (uint32_t i = 0; i < slots && status == EPA_OK; i++)
        status = slot_alloc(op, &op->slot[i], err);
    if (status != EPA_OK) {
        op_moe_destroy(&op->base);
        return status;
    }
    *out = &op->base;
    return EPA_OK;
}

/* Entries that a rank can have at most; the rest of what plan() said is gaps. */
static uint64_t most_entries(const struct experiment *x, const struct epa_moe_footprint *f)
{
    uint64_t local = x->moe.experts / x->ranks;
    uint64_t most =
        (uint64_t)x->ranks * x->moe.max_tokens * (x->moe.topk < local ? x->moe.topk : local);

    return most < f->recv_entries ? most : f->recv_entries;
}

/* Copies on the host of what a device holds, other than inputs and outputs. */
static uint64_t staged_bytes(const struct experiment *x, const struct epa_moe_footprint *f,
                             bool checks)
{
    uint64_t entries = most_entries(x, f), row = x->moe.hidden * sizeof(uint16_t);
    uint64_t window = WINDOW_BYTES + row, bytes = 2 * window;
    uint64_t rows =
        (f->layout == EPA_LAYOUT_EXPERT ? entries : f->recv_rows) * f->dispatch_row_bytes;

    if (checks && rows > window)
        bytes += rows - window;
    if (f->layout == EPA_LAYOUT_RANK)
        bytes += entries * (sizeof(uint32_t) + sizeof(float));
    return bytes;
}

uint64_t op_moe_bytes(const struct experiment *x, const struct epa_footprint *footprint,
                      enum epa_memory memory, uint32_t slots, bool checks)
{
    const struct epa_moe_footprint *f = &footprint->u.moe;
    uint64_t tokens = x->moe.max_tokens, local = x->moe.experts / x->ranks, slot = 0;
    uint64_t shared = tokens * x->moe.topk * (sizeof(int32_t) + sizeof(float));
    struct op_array array[ARRAYS];

    list_arrays(&x->moe, &(struct slot){0}, tokens, array);
    for (uint32_t i = 0; i < ARRAYS; i++)
        slot += array[i].bytes;
    if (x->expert.output == OUTPUT_SEPARATE && !f->fused && memory == EPA_MEMORY_HOST)
        slot += op_moe_rows(f) * x->moe.hidden * sizeof(uint16_t);
    shared += (uint64_t)x->moe.hidden * sizeof(uint16_t) + x->moe.experts * sizeof(float) +
              local * (sizeof(struct run) + sizeof(uint64_t));
    if (f->layout == EPA_LAYOUT_RANK)
        shared += (f->recv_rows + 1) * sizeof(uint32_t) +
                  most_entries(x, f) * sizeof(struct share) +
                  (uint64_t)x->moe.topk * x->moe.hidden * sizeof(uint16_t);
    if (memory != EPA_MEMORY_HOST)
        shared += staged_bytes(x, f, checks);
    return slots * slot + shared + (checks ? op_moe_check_bytes(x) : 0);
}

/* One group in 16 gets values that trip up careless numerics. Nothing here is infinite or
 * NaN: sums of such would tell right from wrong no more. In f16 an outlier has the largest
 * exponent: the output of synthetic experts overflows, for some; `times`, not 0, is what it is
 * multiplied by instead. */
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
        case 1: /* an outlier: all others are near the lowest codes */
            x[at] = times == 0 ? (uint16_t)((x[at] & 0x8000u) | (0x7bffu - (r >> 12 & 1023u)))
                               : word_of_float(f16, float_of_word(f16, x[at]) * times);
            break;
        case 2: /* a group of denormals */
            for (uint32_t i = 0; i < group; i++)
                x[i] &= denormal;
            break;
        case 3: /* denormals and zeros of both signs among the others */
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
    const struct experiment *x = op->x;
    const uint16_t *read = routing_hidden(op->source, x, rank, iteration, token);

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
    if (op->hard_values)
        plant_hard_values(random_at(random_key(x->seed, RANDOM_HARD, rank, iteration), token),
                          is_f16(op),
                          !is_f16(op)        ? 1000.0f
                          : op->mlp.ffn != 0 ? 100.0f
                                             : 0,
                          x->moe.fp8_group_size, (uint32_t)hidden_groups(op), out);
}

static void fill_tokens(struct op_moe *op, struct slot *s, uint32_t tokens)
{
    const struct epa_kernels *kernels = epa_kernels_get((enum epa_dtype)op->x->moe.dtype, NULL);
    const struct moe_options *moe = &op->x->moe;
    uint32_t rank = op->world.rank;

    for (uint32_t t = 0; t < tokens; t++) {
        size_t at = (size_t)t * moe->hidden;

        if (moe->input_dtype == MOE_INPUT_NATIVE) {
            op_moe_token(op, rank, s->iteration, t, (uint16_t *)s->array[ARRAY_X].here + at);
            continue;
        }
        op_moe_token(op, rank, s->iteration, t, op->row);
        kernels->quantise(op->row, moe->hidden, moe->fp8_group_size, NULL,
                          (uint8_t *)s->array[ARRAY_X_FP8].here + at,
                          (float *)s->array[ARRAY_X_SCALE].here + t * hidden_groups(op));
    }
}

static enum epa_status send_inputs(struct op_moe *op, struct slot *s, uint32_t tokens)
{
    const struct moe_options *moe = &op->x->moe;
    struct epa_backend *b = op->backend;
    struct op_array array[ARRAYS];
    enum epa_status status;

    /* Bytes 0xff are NaN in both types: what is not written shows. */
    status = b->ops->fill(b, s->array[ARRAY_OUT].there, 0xff,
                          (size_t)moe->max_tokens * moe->hidden * sizeof(uint16_t));
    list_arrays(moe, s, tokens, array);
    return status == EPA_OK ? op_arrays_send(b, array, ARRAY_OUT) : status;
}

/* ---- traffic: from the routing of all ranks ---- */

struct rows {
    uint64_t all, once; /* one for each choice; one for each token and rank */
};

/* Adds rows that go from one rank's tokens to ranks other than `from` (to UINT32_MAX), or
 * to rank `to` alone. */
static void count_rows(struct op_moe *op, const int32_t *expert, uint32_t tokens, uint32_t from,
                       uint32_t to, struct rows *sum)
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

/* What real experts take for so many entries, a multiply-add counted as two. */
static double mlp_flops(const struct op_moe *op, uint64_t entries)
{
    const struct epa_mlp *m = &op->mlp;
    double row = (double)op->x->moe.hidden * ((double)epa_mlp_up_rows(m) + (double)m->ffn);

    return 2 * row * (double)entries;
}

static void mark_used(struct op_moe *op, const int32_t *expert, size_t n)
{
    int64_t first = (int64_t)op->world.rank * op->local_experts;

    for (size_t i = 0; i < n; i++)
        if (expert[i] >= first && expert[i] < first + op->local_experts)
            op->used[expert[i] - first] = 1;
}

/* Bytes of the weights of those that have rows. */
static uint64_t used_weights(const struct op_moe *op)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < op->local_experts; e++)
        n += op->used[e];
    return op->mlp.ffn != 0 ? weights_bytes(&op->weights, n) : 0;
}

static void count_traffic(struct op_moe *op, struct slot *s, uint32_t tokens)
{
    const struct epa_moe_footprint *f = &op->footprint;
    const int32_t *mine = s->array[ARRAY_EXPERT].here;
    uint32_t rank = op->world.rank, topk = op->x->moe.topk;
    uint64_t control = f->control_bytes * (op->world.size - 1);
    bool once = f->dedup || f->layout == EPA_LAYOUT_RANK;
    struct rows to = {0}, from = {0};
    uint64_t kept = 0, out, in, most;

    memset(op->used, 0, op->local_experts);
    mark_used(op, mine, (size_t)tokens * topk);
    count_rows(op, mine, tokens, rank, UINT32_MAX, &to);
    for (size_t i = 0; i < (size_t)tokens * topk; i++)
        kept += mine[i] >= 0;
    for (uint32_t r = 0; r < op->world.size; r++) {
        uint32_t n = routing_tokens_of(op->x, r, s->iteration);

        if (r == rank)
            continue;
        routing_fill(op->x, op->source, r, s->iteration, n, op->expert, op->weight);
        count_rows(op, op->expert, n, r, rank, &from);
        mark_used(op, op->expert, (size_t)n * topk);
    }
    out = once ? to.once : to.all;
    in = once ? from.once : from.all;
    most = to.once > from.once ? to.once : from.once;
    s->traffic = (struct op_traffic){
        .phase = {{.needed = kept * f->dispatch_token_bytes,
                   .sent = out * f->dispatch_row_bytes + to.all * f->choice_bytes + control,
                   .received = in * f->dispatch_row_bytes + from.all * f->choice_bytes + control,
                   .least = most * least_bytes(op, f->recv_dtype)},
                  {.needed = kept * f->combine_token_bytes,
                   .sent = in * f->combine_row_bytes,
                   .received = out * f->combine_row_bytes,
                   .least = most * least_bytes(op, f->output_dtype)}},
        .flops = op->mlp.ffn != 0 ? mlp_flops(op, kept - to.all + from.all)
                                  : op->flops * tokens / op->x->moe.max_tokens,
        .weights = used_weights(op),
    };
}

void op_moe_traffic(const struct op_rank *rank, uint32_t slot, struct op_traffic *sum)
{
    op_traffic_add(sum, &op_moe_of(rank)->slot[slot].traffic);
}

/* ---- an iteration ---- */

enum epa_status op_moe_inputs(struct op_rank *rank, uint32_t slot, uint64_t iteration)
{
    struct op_moe *op = op_moe_of(rank);
    struct slot *s = &op->slot[slot];
    uint32_t tokens = routing_tokens_of(op->x, op->world.rank, iteration);
    enum epa_status status;
    struct epa_moe *m;

    s->iteration = iteration;
    routing_fill(op->x, op->source, op->world.rank, iteration, tokens, s->array[ARRAY_EXPERT].here,
                 s->array[ARRAY_WEIGHT].here);
    fill_tokens(op, s, tokens);
    count_traffic(op, s, tokens);
    status = send_inputs(op, s, tokens);
    if (status != EPA_OK)
        return status;
    op_moe.shape(op->x, &s->problem);
    m = &s->problem.u.moe;
    m->tokens = tokens;
    m->x = s->array[ARRAY_X].there;
    m->x_fp8 = s->array[ARRAY_X_FP8].there;
    m->x_scale = s->array[ARRAY_X_SCALE].there;
    m->expert = s->array[ARRAY_EXPERT].there;
    m->weight = s->array[ARRAY_WEIGHT].there;
    m->expert_factor = op->factor.there;
    m->mlp = op->mlp;
    m->out = s->array[ARRAY_OUT].there;
    return EPA_OK;
}

struct epa_problem *op_moe_problem(struct op_rank *rank, uint32_t slot)
{
    return &op_moe_of(rank)->slot[slot].problem;
}

uint32_t op_moe_given(struct op_rank *rank, uint32_t slot, struct op_given *out)
{
    const struct op_moe *op = op_moe_of(rank);
    const struct moe_options *moe = &op->x->moe;
    struct slot *s = &op->slot[slot];
    struct op_array used[ARRAYS], all[ARRAYS];
    uint32_t n = 0;

    list_arrays(moe, s, s->problem.u.moe.tokens, used);
    list_arrays(moe, s, moe->max_tokens, all);
    for (uint32_t i = 0; i < ARRAYS; i++)
        if (s->array[i].there != NULL)
            out[n++] = (struct op_given){.name = all[i].what,
                                         .at = s->array[i].there,
                                         .used = used[i].bytes,
                                         .bytes = all[i].bytes,
                                         .output = i == ARRAY_OUT};
    return n;
}
