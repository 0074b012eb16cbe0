/* Combine against the oracle. The check computes the sum of a token twice: in the specified order of
 * combine, and exactly in float64. The terms are expert outputs after rounding and quantisation, so their
 * loss is no error; any further deviation is.
 *
 *   synthetic experts  All bits of the outputs are known. The sum must equal the sum in the specified
 *                      order bit by bit. It must always equal the exact sum within the error of float32
 *                      additions in any order, rounded to dtype.
 *   real experts       Outputs are intervals (reference.c), so all sums are intervals; combine is
 *                      monotone, including rounding. If intervals are points, as with expert.values:
 *                      integers without SwiGLU, the sum is a point. All tokens are checked with integers
 *                      or if the check is cheap. Otherwise a budget of multiply-adds limits the checked
 *                      tokens, different ones in each iteration; other tokens must have been written,
 *                      which does not count as a check.
 *
 * Threads share blocks of tokens in three steps: they load tokens, compute experts, and compare tokens.
 * Each part of a step depends on no other part, and results are added in order of tokens, so they do not
 * depend on the number of threads. */
#include "op/moe/check_combine.h"

#include <math.h>
#include <string.h>

#include "base/dtype.h"
#include "op/moe/check_state.h"

/* Limit of a check: multiply-adds in float64 (about 0.1 s). */
static const double budget = 0x1p26;

/* Work from which several threads are faster: operations on elements (about 5 ms). */
static const double shared_least = 0x1p22;

/* A step of a check of the first `n` tokens of the block. */
struct step {
    struct op_moe *op;
    uint64_t iteration;
    uint32_t n, next;      /* next: counter from which threads take parts */
    uint32_t rows, pieces; /* experts: maximum number of rows of a part, and parts of an expert */
    const uint16_t *out;
    const struct op_finding *found;
    bool failed; /* no memory */
};

/* Relaxed: the counter only distributes parts to threads. */
static uint32_t take_part(struct step *s)
{
    return __atomic_fetch_add(&s->next, 1, __ATOMIC_RELAXED);
}

static bool is_real(const struct op_moe *op)
{
    return op->weights.shape.mlp.ffn != 0;
}

/* Returns 2 for intervals and 1 for points. */
static uint32_t ends_of(const struct op_moe *op)
{
    return is_real(op) ? 2 : 1;
}

/* Returns the reference of a thread, or NULL without memory. */
static struct reference *reference_of(struct op_moe *op, struct check_space *s)
{
    if (s->reference == NULL)
        s->reference = reference_create(&(struct reference_params){
            .weights = &op->weights,
            .f16 = is_f16(op),
            .rounded = op->footprint.output_dtype != EPA_F32,
            .fp8_sum_bits =
                op->device_experts != NULL ? EPA_EXPERTS_FP8_SUM_BITS : op->footprint.fp8_sum_bits,
            .rows = s->rows});
    return s->reference;
}

/* ---- expert outputs ---- */

static float round_to_dtype(bool f16, float value)
{
    return float_of_word(f16, word_of_float(f16, value));
}

/* Loads a token in the input format of the up projection (problem.h, struct epa_mlp). */
static void load_token(const struct op_moe *op, const struct check_space *s, uint64_t iteration,
                       uint32_t token, float *x, float *scale)
{
    const struct moe_check *c = op->check;
    const struct check_row *row = &s->row;
    uint32_t hidden = op->r.params->moe.hidden, group = op->weights.x_group;
    bool f16 = is_f16(op), quantised = op->footprint.recv_dtype == EPA_FP8_E4M3;

    check_load_row(op, op->r.world.rank, iteration, token, row);
    for (uint32_t h = 0; op->weights.shape.mlp.dtype != EPA_FP8_E4M3 && h < hidden; h++)
        x[h] = round_to_dtype(f16, row->value[h]);
    if (op->weights.shape.mlp.dtype == EPA_INT8)
        scale[0] = reference_quantise_int8(x, x, hidden, x, x).low;
    for (uint32_t g = 0; op->weights.shape.mlp.dtype == EPA_FP8_E4M3 && g < hidden; g += group) {
        scale[g / group] =
            quantised ? row->scale[g / group] : e4m3_group_of(f16, row->x + g, group, s->sent_q);
        for (uint32_t i = 0; i < group; i++)
            x[g + i] = c->decode[quantised ? row->q[g + i] : s->sent_q[i]];
    }
}

static void load_tokens(void *arg, uint32_t thread)
{
    struct step *k = arg;
    const struct moe_check *c = k->op->check;
    size_t hidden = k->op->r.params->moe.hidden, groups = hidden / k->op->weights.x_group;

    for (uint32_t i; (i = take_part(k)) < k->n;)
        load_token(k->op, check_space(k->op, thread), k->iteration, c->token[i],
                   c->block_x + i * hidden, c->block_scale + i * groups);
}

/* Computes the outputs of a piece of the rows of an expert. */
static void compute_piece(const struct step *k, struct check_space *s, uint32_t e, uint32_t piece)
{
    const struct op_moe *op = k->op;
    const struct moe_check *c = op->check;
    size_t hidden = op->r.params->moe.hidden, topk = op->r.params->moe.topk,
           groups = hidden / op->weights.x_group;
    bool scales = mlp_has_scales(&op->weights.shape);
    uint32_t first = piece * k->rows, nth = 0, rows = 0;

    for (uint32_t i = 0; i < k->n; i++)
        for (size_t j = 0; j < topk; j++) {
            size_t at = (i * topk + j) * hidden;

            if (c->expert[check_choice(op, op->r.world.rank, c->token[i]) + j] == (int32_t)e &&
                nth++ >= first && rows < k->rows)
                s->expert_rows[rows++] =
                    (struct reference_row){.x = c->block_x + i * hidden,
                                           .scale = scales ? c->block_scale + i * groups : NULL,
                                           .low = c->output[0] + at,
                                           .high = c->output[1] + at};
        }
    if (rows != 0)
        reference_expert(s->reference, e, rows, s->expert_rows);
}

static void compute_experts(void *arg, uint32_t thread)
{
    struct step *k = arg;
    struct check_space *s = check_space(k->op, thread);
    uint32_t parts = k->op->r.params->moe.experts * k->pieces;

    if (reference_of(k->op, s) == NULL) {
        if (thread == 0) /* another thread may have no memory and leaves the work to the rest */
            k->failed = true;
        return;
    }
    for (uint32_t i; (i = take_part(k)) < parts;)
        compute_piece(k, s, i / k->pieces, i % k->pieces);
}

/* Loads the output of choice k of token i of the block, whose reference row is loaded. */
static void load_output(const struct op_moe *op, const struct check_space *s, int32_t expert,
                        uint32_t i, uint32_t k, float *out[2])
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden;
    size_t at = is_real(op) ? ((size_t)i * op->r.params->moe.topk + k) * hidden : 0;
    float factor;

    if (is_real(op)) {
        out[0] = c->output[0] + at;
        out[1] = c->output[1] + at;
        return;
    }
    out[0] = s->synthetic;
    factor = op_moe_factor(op, c->iteration, (uint32_t)expert);
    for (uint32_t h = 0; h < hidden; h++)
        out[0][h] = round_to_dtype(is_f16(op), s->row.value[h] * factor);
}

/* ---- sums ---- */

/* Returns true if the outputs of a rank's experts are reduced to one, and these are added up rank by
 * rank. */
static bool adds_by_rank(const struct op_moe *op)
{
    return op->footprint.layout == EPA_LAYOUT_RANK || op->footprint.sum == EPA_SUM_BY_RANK;
}

/* Returns the key of the stable sort of choices. Layout rank and the contest: experts ascending, and thus
 * ranks ascending, which is the order of op_moe_experts(). */
static uint32_t order_of(const struct op_moe *op, int32_t expert)
{
    if (op->footprint.layout == EPA_LAYOUT_RANK || op->r.oracle.allclose)
        return (uint32_t)expert;
    return adds_by_rank(op) ? (uint32_t)expert / op->local_experts : 0;
}

/* Sorts the kept choices of a token into s->order, the order of addition. Returns their number. */
static uint32_t sort_choices(const struct op_moe *op, const struct check_space *s,
                             const int32_t *expert)
{
    uint32_t n = 0, *order = s->order;

    for (uint32_t k = 0; k < op->r.params->moe.topk; k++) {
        uint32_t at = n;

        if (expert[k] < 0)
            continue;
        for (; at > 0 && order_of(op, expert[order[at - 1]]) > order_of(op, expert[k]); at--)
            order[at] = order[at - 1];
        order[at] = k;
        n++;
    }
    return n;
}

/* Replaces outputs in dtype by their values after transit. */
static void quantise_outputs(const struct op_moe *op, const struct check_space *space,
                             float *const v[2])
{
    const struct moe_check *c = op->check;
    uint32_t hidden = op->r.params->moe.hidden, group = op->r.params->moe.fp8_group_size;
    bool f16 = is_f16(op);

    for (uint32_t g = 0; g < hidden; g += group) {
        float *low = v[0] + g, *high = v[1] + g, *const *q = space->quantised;

        if (is_real(op)) {
            struct reference_scale s = reference_quantise(low, high, group, q[0], q[1]);

            for (uint32_t i = 0; i < group; i++) {
                low[i] = q[0][i] * (q[0][i] < 0 ? s.high : s.low);
                high[i] = q[1][i] * (q[1][i] < 0 ? s.low : s.high);
            }
        } else {
            float scale;

            for (uint32_t i = 0; i < group; i++)
                space->sent[i] = word_of_float(f16, low[i]);
            scale = e4m3_group_of(f16, space->sent, group, space->sent_q);
            for (uint32_t i = 0; i < group; i++)
                low[i] = c->decode[space->sent_q[i]] * scale;
        }
    }
}

/* acc += weight * output with the specified rounding, at all ends. */
static void add_ordered(const struct op_moe *op, float weight, float *const output[2],
                        float *const acc[2])
{
    for (uint32_t end = 0, ends = ends_of(op); end < ends; end++) {
        const float *restrict from = output[weight < 0 ? ends - 1 - end : end];
        float *restrict to = acc[end];

        for (uint32_t h = 0; h < op->r.params->moe.hidden; h++)
            to[h] = fmaf(weight, from[h], to[h]);
    }
}

/* Adds a term to the exact sum and to the sum of magnitudes. */
static void add_exactly(const struct op_moe *op, const struct check_space *c, float weight,
                        float *const output[2])
{
    uint32_t last = ends_of(op) - 1;
    const float *restrict low = output[weight < 0 ? last : 0];
    const float *restrict high = output[weight < 0 ? 0 : last];

    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        double a = (double)weight * (double)low[h], b = (double)weight * (double)high[h];

        c->sum[0][h] += a;
        if (last == 1)
            c->sum[1][h] += b;
        c->size[h] += fabs(a) > fabs(b) ? fabs(a) : fabs(b);
    }
}

/* Adds the reduced outputs of a rank's experts after transit to the sums; starts the next rank. */
static void add_part(const struct op_moe *op, const struct check_space *c)
{
    uint32_t hidden = op->r.params->moe.hidden;
    bool fp8 = op->footprint.output_dtype == EPA_FP8_E4M3;

    for (uint32_t end = 0; end < ends_of(op); end++)
        for (uint32_t h = 0; h < hidden; h++)
            c->part[end][h] = round_to_dtype(is_f16(op), c->part[end][h]);
    if (fp8)
        quantise_outputs(op, c, c->part);
    add_ordered(op, 1, c->part, c->total);
    add_exactly(op, c, 1, c->part);
    for (uint32_t end = 0; end < ends_of(op); end++)
        memset(c->part[end], 0, hidden * sizeof(float));
}

/* Computes the right output of token i of the block, whose reference row is loaded. Returns the number of
 * terms. */
static uint32_t add_up_choices(const struct op_moe *op, const struct check_space *c, uint32_t i,
                               const int32_t *expert, const float *weight)
{
    uint32_t hidden = op->r.params->moe.hidden, n = sort_choices(op, c, expert), terms = 0;

    for (uint32_t end = 0; end < ends_of(op); end++) {
        memset(c->total[end], 0, hidden * sizeof(float));
        memset(c->part[end], 0, hidden * sizeof(float));
        memset(c->sum[end], 0, hidden * sizeof(double));
    }
    memset(c->size, 0, hidden * sizeof(double));
    for (uint32_t j = 0; j < n; j++) {
        uint32_t k = c->order[j], rank = (uint32_t)expert[k] / op->local_experts;
        float *output[2];

        load_output(op, c, expert[k], i, k, output);
        if (adds_by_rank(op)) {
            add_ordered(op, weight[k], output, c->part);
            if (j + 1 < n && (uint32_t)expert[c->order[j + 1]] / op->local_experts == rank)
                continue;
            add_part(op, c);
        } else {
            if (op->footprint.output_dtype == EPA_FP8_E4M3)
                quantise_outputs(op, c, output);
            add_ordered(op, weight[k], output, c->total);
            add_exactly(op, c, weight[k], output);
        }
        terms++;
    }
    return terms;
}

/* The reference of GPU MODE's contest ("all2all", AMD distributed challenge): expert outputs in dtype,
 * each times its weight, added in float32 in order of experts to a sum that is rounded to dtype after each
 * step. It tells if an entry would have passed the contest. A lost bit can pass as well: the exact
 * reference detects more. */
static uint32_t add_up_as_contest(const struct op_moe *op, const struct check_space *s,
                                  const int32_t *expert, const float *weight)
{
    float *total = s->total[0], *output[2];
    uint32_t n = sort_choices(op, s, expert);
    bool f16 = is_f16(op);

    memset(total, 0, op->r.params->moe.hidden * sizeof(*total));
    for (uint32_t j = 0; j < n; j++) {
        uint32_t k = s->order[j];

        load_output(op, s, expert[k], 0, k, output);
        for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
            float term = output[0][h] * weight[k];

            total[h] = round_to_dtype(f16, total[h] + term);
        }
    }
    return n;
}

/* ---- comparisons ---- */

static void is_wrong(struct op_finding *f, bool f16, uint32_t token, uint32_t h, uint16_t is,
                     double low, double high, uint32_t terms)
{
    double value = (double)float_of_word(f16, is);

    if (is == 0xffff)
        op_wrong(f, "token %u, column %u was not written; should be %.9g (%u expert outputs)",
                 token, h, low, terms);
    else if (low == high || isnan(low))
        op_wrong(f,
                 "token %u, column %u is %.9g (0x%04x), should be %.9g (0x%04x; %u "
                 "expert outputs)",
                 token, h, value, is, low, word_of_float(f16, (float)low), terms);
    else
        op_wrong(f,
                 "token %u, column %u is %.9g (0x%04x), should be %.9g to %.9g (%u expert outputs)",
                 token, h, value, is, low, high, terms);
}

/* Returns true for the same number with the same sign, or two NaNs. */
static bool is_same(float is, float should)
{
    return bits_of_float(is) == bits_of_float(should) || (isnan(is) && isnan(should));
}

static void add_width(struct op_share *share, double width)
{
    share->widths += width;
    share->widest = fmax(share->widest, width);
}

static void compare_output(const struct op_moe *op, const struct check_space *c, uint32_t token,
                           const uint16_t *out, uint32_t terms, struct op_finding *f)
{
    bool ordered = op->footprint.sum != EPA_SUM_ANY, f16 = is_f16(op), real = is_real(op);
    bool units = real && op->weights.integers && op->mlp.activation == EPA_ACTIVATION_NONE &&
                 op->mlp.dtype != EPA_INT8 && op->footprint.output_dtype != EPA_FP8_E4M3;
    double unit =
        WEIGHTS_UNIT_X * WEIGHTS_UNIT_UP * WEIGHTS_UNIT_DOWN * (double)WEIGHTS_UNIT_ROUTING;
    uint32_t last = ends_of(op) - 1;

    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        /* Each product and each addition has an error of at most 2^-24 of the sum of magnitudes, or half
         * of the least denormal; so does the conversion from float64 to float32 below. Sums of units
         * that fit a float32 are exact. */
        double slack = c->size[h] * ((terms + 3) * 0x1p-24) + terms * 0x1p-149;
        float is = float_of_word(f16, out[h]), low, high;

        if (real && !isfinite(c->size[h])) {
            f->share.overflowed++;
            continue;
        }
        /* An output in f16 may be infinite; then the sum is infinite in any order, since all terms of a
         * channel have the same sign. */
        if (!isfinite(c->size[h]) || (units && c->size[h] < 0x1p24 * unit))
            slack = 0;
        f->compared++;
        f->share.compared++;
        low = round_to_dtype(f16, c->total[0][h]);
        /* The poison of an unwritten output is a NaN and would otherwise pass as one. */
        if (out[h] == 0xffff || (ordered && !real && !is_same(is, low))) {
            is_wrong(f, is_f16(op), token, h, out[h], low, low, terms);
            continue;
        }
        high = round_to_dtype(f16, c->total[last][h]);
        if (!ordered || !real) {
            low = round_to_dtype(f16, (float)(c->sum[0][h] - slack));
            high = round_to_dtype(f16, (float)(c->sum[last][h] + slack));
        }
        if (low < high && !(ordered && !real))
            add_width(&f->share, ((double)high - (double)low) / c->size[h]);
        if (!(is >= low && is <= high) && !(isnan(is) && isnan(low)))
            is_wrong(f, is_f16(op), token, h, out[h], low, high, terms);
    }
}

/* If the contest's reference is infinite or NaN, the output must be the same; otherwise it may deviate by
 * atol + rtol * |ref|. */
static void compare_close(const struct op_moe *op, const struct check_space *s, uint32_t token,
                          const uint16_t *out, uint32_t terms, struct op_finding *f)
{
    const struct op_oracle *v = &op->r.oracle;

    f->compared += op->r.params->moe.hidden;
    f->share.compared += op->r.params->moe.hidden;
    for (uint32_t h = 0; h < op->r.params->moe.hidden; h++) {
        double want = (double)s->total[0][h], is = (double)float_of_word(is_f16(op), out[h]);
        double slack = v->atol + v->rtol * fabs(want);

        if (out[h] != 0xffff && (isnan(want)   ? isnan(is)
                                 : isinf(want) ? is == want
                                               : fabs(is - want) <= slack))
            continue;
        is_wrong(f, is_f16(op), token, h, out[h], want - slack, want + slack, terms);
    }
}

/* ---- out ---- */

/* Returns how many of the tokens are checked. */
static uint32_t tokens_to_check(const struct op_moe *op, uint32_t tokens)
{
    double cost = is_real(op) ? reference_cost(&op->weights) * op->r.params->moe.topk : 0;

    if (op->weights.integers || cost * tokens <= budget)
        return tokens;
    return cost < budget ? (uint32_t)(budget / cost) : 1;
}

/* Returns the nth checked token. The checked tokens are spread out and begin at another token in each
 * iteration. */
static uint32_t nth_token(const struct op_slot *s, uint32_t tokens, uint32_t checked, uint32_t n)
{
    uint64_t at = (uint64_t)n * tokens / checked;

    return (uint32_t)((at + s->iteration * 7 + 3) % tokens);
}

/* Compares token i of the block. */
static void compare_token(const struct step *k, const struct check_space *s, uint32_t i,
                          struct op_finding *f)
{
    const struct op_moe *op = k->op;
    const struct moe_check *c = op->check;
    uint32_t t = c->token[i];
    size_t choice = check_choice(op, op->r.world.rank, t);
    const uint16_t *out = k->out + (size_t)t * op->r.params->moe.hidden;
    const int32_t *expert = c->expert + choice;
    const float *weight = c->weight + choice;

    if (!is_real(op))
        check_load_row(op, op->r.world.rank, k->iteration, t, &s->row);
    if (!is_real(op) && op->r.oracle.allclose)
        compare_close(op, s, t, out, add_up_as_contest(op, s, expert, weight), f);
    else
        compare_output(op, s, t, out, add_up_choices(op, s, i, expert, weight), f);
}

/* A thread takes tokens in ascending order and keeps the message about the first wrong one. */
static void compare_tokens(void *arg, uint32_t thread)
{
    struct step *k = arg;
    struct check_space *s = check_space(k->op, thread);

    for (uint32_t i; (i = take_part(k)) < k->n;) {
        struct op_finding f = *k->found;

        f.compared = f.wrong = 0;
        f.share = (struct op_share){0};
        f.err = &s->err;
        if (s->err.status == EPA_OK)
            s->wrong_token = i;
        compare_token(k, s, i, &f);
        k->op->check->result[i] = (struct check_result){f.compared, f.wrong, f.share};
    }
}

/* Adds the results of a block in order of tokens. */
static void add_results(const struct step *k, const struct crew *crew, struct op_finding *f)
{
    const struct check_space *first = NULL;

    for (uint32_t i = 0; i < k->n; i++) {
        const struct check_result *r = &k->op->check->result[i];

        f->compared += r->compared;
        f->wrong += r->wrong;
        f->share.compared += r->share.compared;
        f->share.overflowed += r->share.overflowed;
        f->share.widths += r->share.widths;
        f->share.widest = fmax(f->share.widest, r->share.widest);
    }
    for (uint32_t i = 0; i < crew->threads; i++) {
        const struct check_space *s = check_space(k->op, i);

        if (s->err.status != EPA_OK && (first == NULL || s->wrong_token < first->wrong_token))
            first = s;
    }
    if (first != NULL && f->err != NULL && f->err->status == EPA_OK)
        *f->err = first->err;
    for (uint32_t i = 0; i < crew->threads; i++)
        check_space(k->op, i)->err.status = EPA_OK;
}

static void run_step(struct step *k, const struct crew *crew, void (*fn)(void *, uint32_t))
{
    k->next = 0;
    crew_run(crew, fn, k);
}

/* Returns the threads of the check: one if the work is small. */
static struct crew crew_of_check(struct op_moe *op, uint32_t tokens)
{
    const struct moe_options *moe = &op->r.params->moe;
    double of_token =
        (double)moe->topk * (moe->hidden + (is_real(op) ? reference_cost(&op->weights) : 0));
    struct crew crew = op->r.crew;

    if (crew.threads > tokens)
        crew.threads = tokens;
    crew.threads = check_threads(op, of_token * tokens < shared_least ? 1 : crew.threads);
    return crew;
}

/* Checks the first n tokens of the block, of which c->token has the numbers. */
static enum epa_status check_block(struct step *k, const struct crew *crew, struct op_finding *f)
{
    struct op_moe *op = k->op;

    if (is_real(op)) {
        run_step(k, crew, load_tokens);
        run_step(k, crew, compute_experts);
    }
    if (k->failed)
        return epa_fail(f->err, EPA_ERR_NOMEM, "no memory for the checks");
    run_step(k, crew, compare_tokens);
    add_results(k, crew, f);
    return EPA_OK;
}

static enum epa_status check_tokens(struct op_moe *op, const struct op_slot *s, uint32_t tokens,
                                    const uint16_t *out, struct op_finding *f)
{
    uint32_t checked = tokens_to_check(op, tokens);
    size_t hidden = op->r.params->moe.hidden;
    struct moe_check *c = op->check;
    const struct crew crew = crew_of_check(op, checked);
    enum epa_status status = EPA_OK;

    for (size_t i = 0; is_real(op) && i < tokens * hidden; i++)
        if (out[i] == 0xffff)
            op_wrong(f, "token %zu, column %zu was not written", i / hidden, i % hidden);
    for (uint32_t done = 0, n;
         status == EPA_OK && done < checked && !(is_real(op) && f->wrong != 0); done += n) {
        struct step k = {.op = op, .iteration = s->iteration, .out = out, .found = f};

        n = checked - done < c->block_tokens ? checked - done : c->block_tokens;
        for (uint32_t i = 0; i < n; i++)
            c->token[i] = is_real(op) ? nth_token(s, tokens, checked, done + i) : done + i;
        k.n = n;
        k.rows = crew.threads > 1 ? check_space(op, 1)->rows : c->own.rows;
        k.pieces = is_real(op) ? (n + k.rows - 1) / k.rows : 0;
        status = check_block(&k, &crew, f);
    }
    return status;
}

enum epa_status op_moe_check_out(struct op_rank *side, uint32_t slot, struct op_finding *f)
{
    struct op_moe *op = op_moe_of(side);
    struct op_slot *s = &op->r.slot[slot];
    size_t hidden = op->r.params->moe.hidden, end = op->r.params->moe.max_tokens * hidden;
    enum epa_status status = check_begin(op, s->iteration, f->err);
    const uint16_t *out = s->array[ARRAY_OUT].here;
    uint32_t tokens;

    if (status == EPA_OK)
        status = op_backend_done(
            op->r.backend, op_buffer_read(op->r.backend, &s->array[ARRAY_OUT], end * sizeof(*out)),
            f->err, "cannot read outputs back");
    if (status != EPA_OK)
        return status;
    tokens = op->check->tokens[op->r.world.rank];
    f->share.outputs += tokens * hidden;
    status = check_tokens(op, s, tokens, out, f);
    /* Rows behind the last token of this rank must not change. */
    for (size_t i = tokens * hidden; i < end; i++) {
        f->compared++;
        if (out[i] != 0xffff)
            op_wrong(f, "token %zu, column %zu was written, and there is no such token", i / hidden,
                     i % hidden);
    }
    return status;
}
