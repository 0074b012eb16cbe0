/* ll_v1: the layout of its heap, which code for hosts and for devices shares. */
#include <setjmp.h>
#include <stdarg.h>
#include <stddef.h>
#include <stdint.h>
#include <cmocka.h>

#include "../../plugins/algorithm/ll_v1/ll_v1.h"

extern const struct epa_algorithm_plugin epa_plugin;

/* The largest shape that an experiment can have. */
enum { RANKS = 64, TOKENS = 4096, TOPK = 32, HIDDEN = 131072 };

static const struct epa_moe decode = {
    .max_tokens = 128,
    .hidden = 7168,
    .experts = 256,
    .topk = 8,
    .fp8_group_size = 128,
    .dtype = EPA_BF16,
    .x_dtype = EPA_BF16,
};
static const struct v1_config pulled = {.pdl = true, .exchange = V1_EXCHANGE_PULL, .buffers = 2};

static enum epa_status make(const struct epa_moe *m, uint32_t ranks, bool puts,
                            const struct v1_config *c, struct v1_layout *out,
                            struct epa_error *err)
{
    struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = 1};

    *err = (struct epa_error){EPA_OK, ""};
    return v1_layout_make(
        m, &world, EPA_TRANSPORT_HOST | (puts ? 0u : (uint32_t)EPA_TRANSPORT_LOAD_STORE), c,
        out, err);
}

static struct v1_layout made(const struct epa_moe *m, uint32_t ranks, bool puts,
                             const struct v1_config *c)
{
    struct v1_layout l;
    struct epa_error err;

    if (make(m, ranks, puts, c, &l, &err) != EPA_OK)
        fail_msg("%s", err.text);
    return l;
}

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

    for (size_t i = 0; i < sizeof(times) / sizeof(times[0]); i++) {
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
    l = made(m, ranks, (i >> 3 & 1) != 0, &c);
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

static void regions_stand_apart_in_every_shape(void **state)
{
    static const uint32_t hidden[] = {16, 48, 1040, 7168, HIDDEN};

    (void)state;
    for (uint32_t i = 0; i < 5 * 64; i++) {
        struct epa_moe m = decode;

        m.hidden = hidden[i / 64];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        check_shape(&m, i);
    }
}

static void the_largest_shape_keeps_in_64_bits(void **state)
{
    struct epa_moe m = decode;
    struct v1_config c = {.pdl = true, 
        .dispatch_dtype = V1_DTYPE_NATIVE, .exchange = V1_EXCHANGE_PUSH, .buffers = 2};
    struct v1_layout l;

    (void)state;
    m.max_tokens = TOKENS;
    m.topk = TOPK;
    m.hidden = HIDDEN;
    m.experts = RANKS * TOPK;
    l = made(&m, RANKS, true, &c);
    assert_apart(&l);
    assert_int_equal(l.rows, (uint64_t)RANKS * TOKENS * TOPK);
    assert_int_equal(l.slot.bytes, l.rows * 2 * HIDDEN);
}

static void the_decode_shape_has_the_sizes_of_the_readme(void **state)
{
    struct v1_layout l = made(&decode, 8, false, &pulled);

    (void)state;
    assert_int_equal(l.local, 32);
    assert_int_equal(l.max_m, 128 * 8);
    assert_int_equal(l.rows, 8 * 128 * 8);
    assert_int_equal(l.row_bytes, 7168);
    assert_int_equal(l.scales_bytes, 256);
}

static void only_who_pushes_or_puts_has_slots_and_outputs(void **state)
{
    struct v1_config pushed = {.pdl = true, .exchange = V1_EXCHANGE_PUSH, .buffers = 2};
    struct v1_layout l = made(&decode, 4, false, &pulled);

    (void)state;
    assert_int_equal(l.slot.bytes + l.slot_scales.bytes + l.out.bytes + l.outputs.bytes, 0);
    l = made(&decode, 4, false, &pushed);
    assert_int_equal(l.slot.bytes, l.rows * l.row_bytes);
    assert_int_equal(l.outputs.bytes, 128 * 8 * l.output_bytes);
    assert_int_equal(l.out.bytes, 0);
    l = made(&decode, 4, true, &pulled);
    assert_int_equal(l.slot.bytes, l.rows * l.row_bytes);
    assert_int_equal(l.out.bytes, 128 * 8 * l.row_bytes);
}

static void max_m_is_what_one_rank_can_send_to_another(void **state)
{
    struct v1_config c = pulled;
    struct epa_moe m = decode;

    (void)state;
    m.experts = 16; /* 2 of a rank: a token has no more choices there */
    assert_int_equal(made(&m, 8, false, &c).max_m, 128 * 2);
    m.experts = 256;
    c.capacity = 2; /* the even share is 128 */
    assert_int_equal(made(&m, 8, false, &c).max_m, 256 + 1);
    c.capacity = 100;
    assert_int_equal(made(&m, 8, false, &c).max_m, 128 * 8);
}

static void every_call_has_words_of_its_own_mode_and_position(void **state)
{
    bool seen[V1_MODES * V1_POSITIONS * 5] = {false};

    (void)state;
    for (int mode = 0; mode < V1_MODES; mode++) {
        for (uint64_t call = 7; call < 7 + V1_POSITIONS; call++) {
            for (uint32_t source = 0; source < 5; source++) {
                uint32_t word = v1_signal_of(5, (enum v1_mode)mode, call, source);

                assert_true(word < sizeof(seen));
                assert_false(seen[word]);
                seen[word] = true;
                assert_int_equal(v1_signal_of(5, (enum v1_mode)mode, call + 2, source),
                                 word);
            }
        }
    }
}

static void assert_refused(const struct epa_moe *m, uint32_t ranks,
                           const struct v1_config *c, const char *why)
{
    struct v1_layout l;
    struct epa_error err;

    assert_int_equal(make(m, ranks, false, c, &l, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, why);
}

static void what_cannot_be_is_refused_in_words(void **state)
{
    struct v1_config raw = {.pdl = true, .dispatch_dtype = V1_DTYPE_NATIVE, .buffers = 2};
    struct epa_moe m = decode;

    (void)state;
    assert_refused(&m, 3, &pulled,
                   "ll_v1 needs moe.experts (256) to be a multiple of ranks (3)");
    assert_refused(&m, 128, &pulled, "ll_v1 takes 1 to 64 ranks, not 128");
    m.dtype = EPA_F32;
    assert_refused(&m, 2, &pulled,
                   "ll_v1 moves bf16 or f16 tokens; set moe.dtype to one of them");
    m = decode;
    m.topk = 33;
    assert_refused(&m, 2, &pulled, "ll_v1 takes moe.topk from 1 to 32, not 33");
    m = decode;
    m.hidden = 7160;
    assert_refused(&m, 2, &pulled, "ll_v1 needs moe.hidden (7160) to be a multiple of 16");
    m = decode;
    m.fp8_group_size = 96;
    assert_refused(&m, 2, &pulled,
                   "ll_v1 with dispatch_dtype: fp8 needs moe.hidden (7168) to be a multiple of "
                   "moe.fp8_group_size (96); choose another group or dispatch_dtype: native");
    m = decode;
    m.x_dtype = EPA_FP8_E4M3;
    assert_refused(&m, 2, &raw,
                   "ll_v1 with dispatch_dtype: native cannot send input that is quantised already; "
                   "set dispatch_dtype: fp8 or moe.input_dtype: native");
    m = decode;
    m.max_tokens = 1u << 29;
    assert_refused(&m, 2, &pulled,
                   "ll_v1 numbers rows in 32 bits, which ranks (2) x moe.max_tokens "
                   "(536870912) x moe.topk (8) exceed");
}

static void the_plan_says_what_crosses(void **state)
{
    struct epa_problem p = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 8, .local_size = 8, .local_cores = 1};
    struct epa_footprint plan;
    struct epa_error err = {EPA_OK, ""};

    (void)state;
    p.u.moe.dtype = EPA_F16;
    assert_int_equal(
        epa_plugin.plan(&p, &world, EPA_TRANSPORT_LOAD_STORE, &pulled, &plan, &err),
        EPA_OK);
    assert_int_equal(plan.signals, 2 * 2 * 8);
    assert_int_equal(plan.u.moe.recv_dtype, EPA_FP8_E4M3);
    assert_int_equal(plan.u.moe.output_dtype, EPA_F16);
    assert_int_equal(plan.u.moe.dispatch_row_bytes, 7168 + 256 + 4);
    assert_int_equal(plan.u.moe.control_bytes, (32 + 1) * 4 + 16);
    assert_int_equal(plan.in_flight, 2);
    assert_false(plan.u.moe.once);
}

int main(void)
{
    const struct CMUnitTest tests[] = {
        cmocka_unit_test(regions_stand_apart_in_every_shape),
        cmocka_unit_test(the_largest_shape_keeps_in_64_bits),
        cmocka_unit_test(the_decode_shape_has_the_sizes_of_the_readme),
        cmocka_unit_test(only_who_pushes_or_puts_has_slots_and_outputs),
        cmocka_unit_test(max_m_is_what_one_rank_can_send_to_another),
        cmocka_unit_test(every_call_has_words_of_its_own_mode_and_position),
        cmocka_unit_test(what_cannot_be_is_refused_in_words),
        cmocka_unit_test(the_plan_says_what_crosses),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
