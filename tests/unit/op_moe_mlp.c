/* Real experts of op_moe: computed on the host from rows of a host or of a device that nobody
 * here can follow, or by a device; what is given to combine is right for the check, and what was
 * mixed up is not. */

#include "test.h"

#define FAKE_HIDDEN 256
#define FAKE_GROUP 128
#include "fake_moe.h"

enum { FFN = 128 };

static struct fake fake_mlp(enum epa_layout layout, enum epa_dtype wire, enum epa_memory memory,
                            int weights, int values)
{
    struct fake f = fake_of(layout, wire);

    f.backend.memory = memory;
    f.x.expert = (struct expert_options){.kind = EXPERT_MLP,
                                         .ffn = FFN,
                                         .activation = values == EXPERT_VALUES_INTEGERS
                                                           ? EPA_ACTIVATION_NONE
                                                           : EPA_ACTIVATION_SWIGLU,
                                         .weights = weights,
                                         .fp8_group_size = 64,
                                         .values = values};
    return f;
}

static void open_and_dispatch(struct fake *f)
{
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(fake_open(f, &err), EPA_OK);
    fake_inputs(f, 0, 4);
    fake_dispatch(f, 0);
}

static uint64_t wrong_of(struct fake *f, struct epa_error *err)
{
    uint64_t compared = 0, wrong = 0;

    *err = (struct epa_error){EPA_OK, ""};
    for (uint32_t r = 0; r < RANKS; r++)
        (void)op_moe_check_out(f->op[r], "combine", 0, &compared, &wrong, err);
    assert_int_not_equal(compared, 0);
    return wrong;
}

static void run(struct fake *f)
{
    struct epa_error err;

    open_and_dispatch(f);
    assert_int_equal(fake_experts(f, 0, &err), EPA_OK);
    fake_combine(f, 0, RIGHT);
    if (wrong_of(f, &err) != 0)
        fail_msg("%s", err.text);
}

static void each(void (*fn)(struct fake *))
{
    for (int i = 0; i < 48; i++) {
        struct fake f = fake_mlp((i & 1) != 0 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT,
                                 (i & 2) != 0 ? EPA_FP8_E4M3 : EPA_BF16,
                                 (i & 4) != 0 ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST,
                                 (i & 8) != 0 ? EXPERT_WEIGHTS_FP8 : EXPERT_WEIGHTS_NATIVE,
                                 i % 3 == 0 ? EXPERT_VALUES_INTEGERS : EXPERT_VALUES_RANDOM);

        f.rows = (enum fake_rows)(i / 16);
        fn(&f);
        fake_close(&f);
    }
}

TEST(outputs_are_right_wherever_rows_are)
{
    each(run);
}

/* ---- what is mixed up ---- */

/* The output of the first entry of a rank that has two, in place of the next one's. */
static void stale_row_is_found(struct fake *f)
{
    struct epa_error err;
    bool done = false;

    open_and_dispatch(f);
    assert_int_equal(fake_experts(f, 0, &err), EPA_OK);
    for (uint32_t r = 0; r < RANKS && !done; r++) {
        uint16_t *y = fake_here(f, f->moe[r][0]->y);

        for (uint32_t e = 0; e < LOCAL && !done; e++)
            if (f->received[r][0]->count[e] > 1 && f->footprint.u.moe.layout == EPA_LAYOUT_EXPERT) {
                uint64_t at = f->received[r][0]->start[e];

                memcpy(y + (at + 1) * HIDDEN, y + at * HIDDEN, HIDDEN * sizeof(*y));
                done = true;
            }
    }
    fake_combine(f, 0, RIGHT);
    assert_true(!done || wrong_of(f, &err) > HIDDEN / 8);
}

TEST(a_stale_row_is_found)
{
    each(stale_row_is_found);
}

/* Rows that experts do not know to be theirs: as if counts had been exchanged. */
static void rows_of_another_expert_are_found(struct fake *f)
{
    struct epa_error err;
    struct received *got;
    uint64_t start;
    uint32_t count;

    open_and_dispatch(f);
    got = f->received[0][0];
    if (f->footprint.u.moe.layout == EPA_LAYOUT_RANK)
        return; /* where the same lists say who is in a row */
    start = got->start[0];
    count = got->count[0];
    got->start[0] = got->start[1];
    got->count[0] = got->count[1];
    got->start[1] = start;
    got->count[1] = count;
    assert_int_equal(fake_experts(f, 0, &err), EPA_OK);
    count = got->count[0];
    got->count[0] = got->count[1];
    got->count[1] = count;
    got->start[1] = got->start[0];
    got->start[0] = start;
    fake_combine(f, 0, RIGHT);
    assert_true(wrong_of(f, &err) > HIDDEN / 8);
}

TEST(weights_of_another_expert_are_found)
{
    each(rows_of_another_expert_are_found);
}

TEST(a_bit_of_integers_is_found)
{
    struct fake f = fake_mlp(EPA_LAYOUT_EXPERT, EPA_BF16, EPA_MEMORY_HOST, EXPERT_WEIGHTS_FP8,
                             EXPERT_VALUES_INTEGERS);
    struct epa_error err;

    run(&f);
    for (uint32_t h = 0; h < HIDDEN; h += 37) {
        ((uint16_t *)fake_here(&f, f.moe[1][0]->out))[HIDDEN + h] ^= 1;
        assert_int_equal(wrong_of(&f, &err), 1);
        assert_non_null(strstr(err.text, "should be"));
        ((uint16_t *)fake_here(&f, f.moe[1][0]->out))[HIDDEN + h] ^= 1;
    }
    fake_close(&f);
}

/* ---- a device ---- */

/* Experts of a device: one sum after the other from the weights as struct epa_mlp lays them out. */
struct epa_experts {
    struct epa_experts_params p;
    struct epa_moe moe;
    struct fake *fake;
    uint32_t runs;
};

static struct epa_experts *made[RANKS];
static uint32_t n_made;

static enum epa_status device_create(struct epa_backend *b, const struct epa_experts_params *p,
                                     struct epa_experts **out, struct epa_error *err)
{
    struct epa_experts *x = calloc(1, sizeof(*x));

    (void)err;
    x->p = *p;
    x->moe = *p->moe;
    x->fake = fake_of_backend(b);
    made[n_made++] = x;
    *out = x;
    return EPA_OK;
}

static float weight_at(const struct epa_experts *x, bool up, uint32_t e, uint32_t row, uint32_t k)
{
    const struct epa_mlp *m = &x->moe.mlp;
    uint32_t columns = up ? HIDDEN : m->ffn, rows = up ? epa_mlp_up_rows(m) : HIDDEN;
    size_t at = ((size_t)e * rows + row) * columns + k;
    size_t block = ((size_t)e * (rows / 128) + row / 128) * (columns / 128) + k / 128;

    if (m->dtype == EPA_FP8_E4M3)
        return float_of_e4m3(((const uint8_t *)fake_here(x->fake, up ? m->up : m->down))[at]) *
               ((const float *)fake_here(x->fake, up ? m->up_scale : m->down_scale))[block];
    return float_of_bf16(((const uint16_t *)fake_here(x->fake, up ? m->up : m->down))[at]);
}

static void device_row(const struct epa_experts *x, uint32_t e, const struct message *row,
                       uint16_t *y)
{
    const struct epa_mlp *m = &x->moe.mlp;
    float a[FFN];

    for (uint32_t i = 0; i < FFN; i++) {
        float g = 0, u = 0;

        for (uint32_t k = 0; k < HIDDEN; k++) {
            g += float_of_bf16(row->data[k]) * weight_at(x, true, e, i, k);
            if (m->activation == EPA_ACTIVATION_SWIGLU)
                u += float_of_bf16(row->data[k]) * weight_at(x, true, e, FFN + i, k);
        }
        a[i] = m->activation == EPA_ACTIVATION_SWIGLU ? g / (1 + expf(-g)) * u : g;
        a[i] = float_of_bf16(bf16_of_float(a[i]));
    }
    for (uint32_t i = 0; i < HIDDEN; i++) {
        float sum = 0;

        for (uint32_t k = 0; k < FFN; k++)
            sum += a[k] * weight_at(x, false, e, i, k);
        y[i] = bf16_of_float(sum);
    }
}

static enum epa_status device_run(struct epa_experts *x, const struct epa_moe *moe, void *y)
{
    const uint32_t *count = fake_here(x->fake, moe->recv_count);
    const uint64_t *start = fake_here(x->fake, moe->recv_start);
    const struct message *row = (const void *)((const char *)fake_here(x->fake, moe->recv) -
                                               offsetof(struct message, data));

    x->runs++;
    for (uint32_t e = 0; e < x->p.experts; e++)
        for (uint32_t i = 0; i < count[e]; i++)
            device_row(x, e, row + start[e] + i,
                       (uint16_t *)fake_here(x->fake, y) + (start[e] + i) * HIDDEN);
    return EPA_OK;
}

static const char *device_name(const struct epa_experts *x)
{
    (void)x;
    return "a fake library 1.0";
}

static void device_destroy(struct epa_experts *x)
{
    free(x);
}

TEST(a_device_computes_from_its_own_weights)
{
    struct epa_backend_ops ops = fake_ops;

    ops.experts_create = device_create;
    ops.experts_run = device_run;
    ops.experts_name = device_name;
    ops.experts_destroy = device_destroy;
    for (int values = EXPERT_VALUES_RANDOM; values <= EXPERT_VALUES_INTEGERS; values++) {
        struct fake f =
            fake_mlp(EPA_LAYOUT_EXPERT, EPA_BF16, EPA_MEMORY_CUDA, EXPERT_WEIGHTS_NATIVE, values);
        struct epa_error err;
        char by[64];

        n_made = 0;
        f.backend.ops = &ops;
        open_and_dispatch(&f);
        assert_int_equal(n_made, RANKS);
        assert_int_equal(made[1]->p.experts, LOCAL);
        assert_int_equal(made[1]->p.recv_entries, ROWS);
        op_moe_mlp_by(f.op[1], by, sizeof(by));
        assert_string_equal(by, "a fake library 1.0");
        f.device.reads = f.device.writes = 0;
        assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
        assert_int_equal(f.device.reads, 0); /* the host looks at nothing */
        assert_int_equal(f.device.writes, 0);
        assert_int_equal(made[1]->runs, 1);
        fake_combine(&f, 0, RIGHT);
        if (wrong_of(&f, &err) != 0)
            fail_msg("%s", err.text);
        fake_close(&f);
    }
}

/* An algorithm that computes experts finds the same weights on a host and on a device. */
TEST(weights_of_a_fused_algorithm_lie_as_promised)
{
    for (int i = 0; i < 4; i++) {
        struct fake f = fake_mlp(
            EPA_LAYOUT_EXPERT, EPA_FP8_E4M3, (i & 1) != 0 ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST,
            (i & 2) != 0 ? EXPERT_WEIGHTS_FP8 : EXPERT_WEIGHTS_NATIVE, EXPERT_VALUES_RANDOM);
        struct epa_error err = {EPA_OK, ""};
        struct epa_problem p = {.op = EPA_OP_MOE};
        struct weights w;
        uint16_t row[HIDDEN];
        float scale[HIDDEN / 128];
        size_t at;

        f.footprint.u.moe.fused = true;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        op_moe.weights(f.op[2], &p);
        weights_init(&f.x, &w);
        at = ((size_t)1 * 2 * FFN + 131) * HIDDEN * weights_element(&w);
        weights_row(&w, 2 * LOCAL + 1, WEIGHTS_UP, 131, row);
        assert_memory_equal((const char *)fake_here(&f, p.u.moe.mlp.up) + at, row,
                            HIDDEN * weights_element(&w));
        at = ((size_t)1 * HIDDEN + 200) * FFN * weights_element(&w);
        weights_row(&w, 2 * LOCAL + 1, WEIGHTS_DOWN, 200, row);
        assert_memory_equal((const char *)fake_here(&f, p.u.moe.mlp.down) + at, row,
                            FFN * weights_element(&w));
        if ((i & 2) != 0) {
            weights_scales(&w, 2 * LOCAL + 1, WEIGHTS_UP, 1, scale);
            assert_memory_equal((const float *)fake_here(&f, p.u.moe.mlp.up_scale) +
                                    (1 * 2 + 1) * (HIDDEN / 128),
                                scale, sizeof(scale));
        }
        fake_close(&f);
    }
}
