/* ll_v1: the layout of its heap, which code for hosts and for devices shares. */
#include "layouts.h"

#include "../../plugins/algorithm/ll_v1/ll_v1.h"

extern const struct epa_algorithm_plugin epa_plugin;

/* The largest shape that an experiment can have. */
enum { RANKS = 64, TOKENS = 4096, TOPK = 32, HIDDEN = 131072 };

static const struct v1_config pulled = {.pdl = true, .exchange = V1_EXCHANGE_PULL, .buffers = 2};

LAYOUTS(v1_layout, v1_config, v1_layout_make)

/* Each region is on a page of its own, in order, and all of it is in the heap. */
static void assert_apart(const struct v1_layout *l)
{
    const struct v1_region *const regions[] = {
        &l->splits,      &l->out_splits,  &l->starts, &l->token,      &l->token_scales,
        &l->slot,        &l->slot_scales, &l->out,    &l->out_scales, &l->recv,
        &l->recv_scales, &l->origin,      &l->y,      &l->outputs,
    };
    const uint32_t times[] = {2, 1, l->buffers, 2,          2,          2,          2,
                              1, 1, l->buffers, l->buffers, l->buffers, l->buffers, 2};
    uint64_t end = 0;

    for (size_t i = 0; i < LENGTH(times); i++) {
        assert_int_equal(regions[i]->at % 4096, 0);
        assert_int_equal(regions[i]->bytes % V1_LINE, 0);
        assert_true(regions[i]->at >= end);
        end = regions[i]->at + regions[i]->bytes * times[i];
    }
    assert_true(end <= l->heap_bytes);
}

static void check_shape(const struct epa_moe *m, uint32_t i)
{
    struct v1_config c = {.pdl = true, .dispatch_dtype = (int)(i & 1), .buffers = 1 + (i >> 1 & 1)};
    uint32_t ranks = (i >> 2 & 1) != 0 ? RANKS : 1;
    struct v1_layout l;

    c.exchange = (int)(i >> 4 & 1);
    c.capacity = (i >> 5 & 1) != 0 ? 1.5 : 0;
    l = made(m, ranks, (i >> 3 & 1) != 0 ? OVER_PUTS : OVER_LOADS, &c);
    assert_apart(&l);
    assert_true(l.row_bytes >= l.token_bytes && l.row_bytes < l.token_bytes + V1_LINE);
    assert_int_equal(l.row_bytes % V1_LINE, 0);
    assert_int_equal(l.scales_bytes % V1_LINE, 0);
    if (l.fp8)
        assert_true(l.scales_bytes >= m->hidden / m->fp8_group_size * sizeof(float));
    assert_true(l.split_words >= l.local + 1 + l.max_m);
    assert_true(l.token.bytes >= m->max_tokens * l.row_bytes);
    assert_true(l.recv.bytes >= l.rows * l.row_bytes);
    assert_true(l.y.bytes >= l.rows * l.output_bytes);
}

TEST(regions_stand_apart_in_every_shape)
{
    static const uint32_t hidden[] = {16, 48, 1040, 7168, HIDDEN};

    for (uint32_t i = 0; i < 5 * 64; i++) {
        struct epa_moe m = decode;

        m.hidden = hidden[i / 64];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        check_shape(&m, i);
    }
}

TEST(the_largest_shape_keeps_in_64_bits)
{
    struct epa_moe m = decode;
    struct v1_config c = {.pdl = true,
                          .dispatch_dtype = ALGO_DTYPE_NATIVE,
                          .exchange = V1_EXCHANGE_PUSH,
                          .buffers = 2};
    struct v1_layout l;

    m.max_tokens = TOKENS;
    m.topk = TOPK;
    m.hidden = HIDDEN;
    m.experts = RANKS * TOPK;
    l = made(&m, RANKS, OVER_PUTS, &c);
    assert_apart(&l);
    assert_int_equal(l.rows, (uint64_t)RANKS * TOKENS * TOPK);
    assert_int_equal(l.slot.bytes, l.rows * 2 * HIDDEN);
}

TEST(the_decode_shape_has_the_sizes_of_the_readme)
{
    struct v1_layout l = made(&decode, 8, OVER_LOADS, &pulled);

    assert_int_equal(l.local, 32);
    assert_int_equal(l.max_m, 128 * 8);
    assert_int_equal(l.rows, 8 * 128 * 8);
    assert_int_equal(l.row_bytes, 7168);
    assert_int_equal(l.scales_bytes, 256);
}

TEST(only_who_pushes_or_puts_has_slots_and_outputs)
{
    struct v1_config pushed = {.pdl = true, .exchange = V1_EXCHANGE_PUSH, .buffers = 2};
    struct v1_layout l = made(&decode, 4, OVER_LOADS, &pulled);

    assert_int_equal(l.slot.bytes + l.slot_scales.bytes + l.out.bytes + l.outputs.bytes, 0);
    l = made(&decode, 4, OVER_LOADS, &pushed);
    assert_int_equal(l.slot.bytes, l.rows * l.row_bytes);
    assert_int_equal(l.outputs.bytes, 128 * 8 * l.output_bytes);
    assert_int_equal(l.out.bytes, 0);
    l = made(&decode, 4, OVER_PUTS, &pulled);
    assert_int_equal(l.slot.bytes, l.rows * l.row_bytes);
    assert_int_equal(l.out.bytes, 128 * 8 * l.row_bytes);
}

TEST(max_m_is_what_one_rank_can_send_to_another)
{
    struct v1_config c = pulled;
    struct epa_moe m = decode;

    m.experts = 16; /* 2 of a rank: a token has no more choices there */
    assert_int_equal(made(&m, 8, OVER_LOADS, &c).max_m, 128 * 2);
    m.experts = 256;
    c.capacity = 2; /* the even share is 128 */
    assert_int_equal(made(&m, 8, OVER_LOADS, &c).max_m, 256 + 1);
    c.capacity = 100;
    assert_int_equal(made(&m, 8, OVER_LOADS, &c).max_m, 128 * 8);
}

TEST(every_call_has_words_of_its_own_mode_and_position)
{
    bool seen[V1_MODES * V1_POSITIONS * 5] = {false};

    for (int mode = 0; mode < V1_MODES; mode++) {
        for (uint64_t call = 7; call < 7 + V1_POSITIONS; call++) {
            for (uint32_t source = 0; source < 5; source++) {
                uint32_t word = v1_signal_of(5, (enum v1_mode)mode, call, source);

                assert_true(word < sizeof(seen));
                assert_false(seen[word]);
                seen[word] = true;
                assert_int_equal(v1_signal_of(5, (enum v1_mode)mode, call + 2, source), word);
            }
        }
    }
}

TEST(what_cannot_be_is_refused_in_words)
{
    struct v1_config raw = {.pdl = true, .dispatch_dtype = ALGO_DTYPE_NATIVE, .buffers = 2};

    assert_refusals("ll_v1", &pulled, &raw);
}

TEST(the_plan_says_what_crosses)
{
    struct epa_problem p = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 8, .local_size = 8, .local_cores = 1};
    struct epa_footprint plan;
    struct epa_error err = {EPA_OK, ""};

    p.u.moe.dtype = EPA_F16;
    assert_int_equal(epa_plugin.plan(&p, &world, EPA_TRANSPORT_LOAD_STORE, &pulled, &plan, &err),
                     EPA_OK);
    assert_int_equal(plan.signals, 2 * 2 * 8);
    assert_int_equal(plan.u.moe.recv_dtype, EPA_FP8_E4M3);
    assert_int_equal(plan.u.moe.output_dtype, EPA_F16);
    assert_int_equal(plan.u.moe.dispatch_row_bytes, 7168 + 256 + 4);
    assert_int_equal(plan.u.moe.control_bytes, (32 + 1) * 4 + 16);
    assert_int_equal(plan.in_flight, 2);
    assert_false(plan.u.moe.dedup);
}
