/* ll_v2: the layout of its heap, which code for hosts and for devices shares. */
#include "layouts.h"

#include "../../plugins/algorithm/ll_v2/ll_v2.h"

extern const struct epa_algorithm_plugin epa_plugin;

/* The largest shape that an experiment can have. */
enum { RANKS = 64, TOKENS = 4096, TOPK = 32, HIDDEN = 131072 };

static struct ll_config config_of(int wire, int layout, uint32_t buffers)
{
    return (struct ll_config){.pdl = true,
                              .dispatch_dtype = wire,
                              .combine_dtype = ALGO_DTYPE_NATIVE,
                              .layout = layout,
                              .buffers = buffers};
}

LAYOUTS(ll_layout, ll_config, ll_layout_make)

/* Each region is on a page of its own, in order, and all of it is in the heap. */
static void assert_apart(const struct ll_layout *l)
{
    const uint64_t at[] = {l->counts_at,  l->recv_at,    l->y_at,     l->staging_at,
                           l->outputs_at, l->arrival_at, l->outbox_at};
    const uint64_t bytes[] = {l->counts_bytes,  l->recv_bytes,    l->y_bytes,     l->staging_bytes,
                              l->outputs_bytes, l->arrival_bytes, l->outbox_bytes};
    uint64_t end = 0;

    for (size_t i = 0; i < LENGTH(at); i++) {
        assert_int_equal(at[i] % 4096, 0);
        assert_int_equal(bytes[i] % LL_LINE, 0);
        assert_true(at[i] >= end);
        end = at[i] + bytes[i] * l->buffers;
    }
    assert_true(end <= l->heap_bytes);
}

static void each_shape(void (*check)(const struct ll_layout *, const struct epa_moe *))
{
    static const uint32_t hidden[] = {16, 48, 1040, 7168, HIDDEN};

    for (uint32_t i = 0; i < 5 * 256; i++) {
        struct epa_moe m = decode;
        struct ll_config c = config_of((int)(i & 1), (int)(i >> 1 & 1), 1 + (i >> 2 & 1));
        uint32_t ranks = (i >> 4 & 1) != 0 ? RANKS : 1;
        struct ll_layout l;

        m.hidden = hidden[i / 256];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        c.dedup = (i >> 5 & 1) != 0;
        c.recv_layout = (i >> 6 & 1) != 0 ? LL_RECV_PADDED : LL_RECV_PACKED;
        c.combine_dtype = (i >> 7 & 1) != 0 ? ALGO_DTYPE_FP8 : ALGO_DTYPE_NATIVE;
        l = made(&m, ranks, (i >> 3 & 1) != 0 ? OVER_PUTS : OVER_LOADS, &c);
        check(&l, &m);
    }
}

static void check_regions(const struct ll_layout *l, const struct epa_moe *m)
{
    (void)m;
    assert_apart(l);
}

TEST(regions_stand_apart_in_every_shape)
{
    each_shape(check_regions);
}

static void check_message(const struct ll_layout *l, const struct epa_moe *m)
{
    uint64_t scales = l->fp8 ? (uint64_t)m->hidden / m->fp8_group_size * sizeof(float) : 0;
    uint64_t choices = l->dedup ? m->topk * sizeof(struct ll_choice) : 0;

    assert_int_equal(l->token_bytes, l->fp8 ? m->hidden : 2 * m->hidden);
    assert_int_equal(l->scales_at, LL_META_BYTES + l->token_bytes);
    assert_int_equal(l->scales_at % sizeof(float), 0);
    assert_int_equal(l->choices_at, l->scales_at + scales);
    assert_int_equal(l->choices_at % _Alignof(struct ll_choice), 0);
    assert_true(l->message_bytes >= l->choices_at + choices);
    assert_true(l->message_bytes < l->choices_at + choices + LL_LINE);
    assert_int_equal(l->message_bytes % LL_LINE, 0);
}

TEST(the_parts_of_a_message_are_aligned_and_fill_it)
{
    assert_int_equal(sizeof(struct ll_meta), LL_META_BYTES);
    each_shape(check_message);
}

static void check_output(const struct ll_layout *l, const struct epa_moe *m)
{
    uint64_t scales = (uint64_t)m->hidden / m->fp8_group_size * sizeof(float);
    bool apart = l->output_fp8 || (l->dedup && !l->by_rank);

    assert_int_equal(l->output_bytes, 2 * m->hidden);
    if (l->output_fp8) {
        assert_int_equal(l->sent_scales_at, m->hidden);
        assert_true(l->sent_bytes >= m->hidden + scales);
        assert_int_equal(l->sent_bytes % LL_LINE, 0);
    } else {
        assert_int_equal(l->sent_bytes, l->output_bytes);
    }
    assert_int_equal(l->outbox_bytes != 0, apart);
    if (apart)
        assert_true(l->outbox_bytes / l->sent_bytes >=
                    (l->dedup ? l->size * l->max_tokens : l->rows));
}

TEST(outputs_that_are_made_on_the_way_have_an_outbox)
{
    each_shape(check_output);
}

TEST(the_decode_shape_has_the_sizes_of_the_readme)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout l = made(&decode, 8, OVER_LOADS, &c);

    assert_int_equal(l.message_bytes, 116 * LL_LINE);
    assert_int_equal(l.local, 32);
    assert_int_equal(l.entries, 8 * 128 * 8);
    assert_int_equal(l.rows, l.entries);
    assert_int_equal(l.y_bytes, l.rows * 7168 * 2);
}

TEST(by_rank_a_token_stands_once)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_RANK, 2);
    struct ll_layout l = made(&decode, 4, OVER_LOADS, &c);

    assert_int_equal(l.places, 4);
    assert_int_equal(l.rows, 4 * 128);
    assert_int_equal(l.entries, 4 * 128 * 8);
}

TEST(a_token_that_crosses_once_arrives_once_and_stands_for_each_expert)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout l;

    c.dedup = true;
    l = made(&decode, 4, OVER_PUTS, &c);
    assert_int_equal(l.places, 4);
    assert_int_equal(l.rows, 4 * 128 * 8);
    assert_int_equal(l.arrival_bytes, 4 * 128 * l.message_bytes);
    assert_int_equal(l.outbox_bytes, 4 * 128 * 2 * 7168);
    assert_int_equal(l.staging_bytes, 128 * 4 * l.message_bytes);
    assert_int_equal(l.outputs_bytes, 128 * 4 * 2 * 7168);
    c.capacity = 0.25; /* fewer rows than tokens */
    l = made(&decode, 4, OVER_PUTS, &c);
    assert_int_equal(l.arrival_bytes, (256 + 1) * l.message_bytes);
}

TEST(padded_an_expert_has_room_for_every_token)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);

    c.recv_layout = LL_RECV_PADDED;
    c.capacity = 1; /* means nothing then */
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).entries, 32 * 8 * 128);
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).rows, 32 * 8 * 128);
    c.layout = EPA_LAYOUT_RANK;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).entries, 32 * 8 * 128);
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).rows, 8 * 128);
}

TEST(fp8_outputs_are_half_as_long_and_a_line_of_scales)
{
    struct ll_config c = config_of(ALGO_DTYPE_NATIVE, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout l;

    c.combine_dtype = ALGO_DTYPE_FP8;
    l = made(&decode, 8, OVER_LOADS, &c);
    assert_int_equal(l.sent_bytes, 7168 + 256);
    assert_int_equal(l.outbox_bytes, l.rows * l.sent_bytes);
}

TEST(a_rank_with_few_experts_needs_few_entries)
{
    struct epa_moe m = decode;
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);

    m.experts = 16;
    assert_int_equal(made(&m, 8, OVER_LOADS, &c).entries, 8 * 128 * 2);
}

TEST(only_puts_need_staging)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout near = made(&decode, 8, OVER_LOADS, &c), far = made(&decode, 8, OVER_PUTS, &c);

    assert_int_equal(near.staging_bytes, 0);
    assert_int_equal(near.outputs_bytes, 0);
    assert_int_equal(far.staging_bytes, 128 * far.message_bytes);
    assert_int_equal(far.outputs_bytes, 128 * 8 * far.output_bytes);
    c.layout = EPA_LAYOUT_RANK;
    far = made(&decode, 4, OVER_PUTS, &c);
    assert_int_equal(far.staging_bytes, 128 * 4 * far.message_bytes);
}

TEST(one_rank_needs_no_staging)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout l = made(&decode, 1, OVER_PUTS, &c);

    assert_int_equal(l.staging_bytes + l.outputs_bytes, 0);
}

TEST(ranks_on_several_nodes_need_staging)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct epa_world world = {.size = 8, .local_size = 4};
    struct epa_error err = {EPA_OK, ""};
    struct ll_layout l;

    assert_int_equal(ll_layout_make(&decode, &world, EPA_TRANSPORT_LOAD_STORE | EPA_TRANSPORT_NODES,
                                    &c, &l, &err),
                     EPA_OK);
    assert_true(l.puts);
}

TEST(the_largest_shape_fits_into_64_bits)
{
    struct epa_moe m = decode;
    struct ll_config c = config_of(ALGO_DTYPE_NATIVE, EPA_LAYOUT_EXPERT, 2);
    struct ll_layout l;

    m.max_tokens = TOKENS;
    m.hidden = HIDDEN;
    m.topk = TOPK;
    m.experts = RANKS * 32;
    l = made(&m, RANKS, OVER_PUTS, &c);
    assert_apart(&l);
    assert_int_equal(l.entries, (uint64_t)RANKS * TOKENS * TOPK);
    assert_int_equal(l.recv_bytes, l.entries * (16 + 2 * HIDDEN + 48));
    assert_true(l.heap_bytes > 2 * l.entries * 4 * HIDDEN);
}

TEST(capacity_is_a_multiple_of_the_even_share)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);

    c.capacity = 1.5;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).entries, 1536 + 1);
    c.layout = EPA_LAYOUT_RANK;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).rows, 8 * 128);
    c.capacity = 0.5;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).rows, 512 + 1);
}

TEST(capacity_never_asks_for_more_than_the_worst_case)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    uint64_t worst = made(&decode, 8, OVER_LOADS, &c).entries;

    c.capacity = 1024;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).entries, worst);
}

TEST(what_it_cannot_do_is_refused_in_words)
{
    struct ll_config fp8 = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct ll_config native = config_of(ALGO_DTYPE_NATIVE, EPA_LAYOUT_EXPERT, 2);

    assert_refusals("ll_v2", &fp8, &native);
}

TEST(more_padded_entries_than_can_be_numbered_are_refused)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    struct epa_moe m = decode;
    struct ll_layout l;
    struct epa_error err;

    m.max_tokens = 1u << 20;
    m.experts = 1u << 12;
    c.recv_layout = LL_RECV_PADDED;
    assert_refused(
        &m, 8, OVER_LOADS, &c,
        "ll_v2 .. 32 .. moe.max_tokens (1048576) .. moe.experts (4096) .. recv_layout: packed");
    c.recv_layout = LL_RECV_PACKED;
    assert_int_equal(make(&m, 8, OVER_LOADS, &c, &l, &err), EPA_OK);
}

TEST(what_only_gpus_can_do_is_refused_on_hosts)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);

    c.split_phase = true;
    assert_refused(&decode, 8, OVER_LOADS, &c, "ll_v2: split_phase: true .. backend.name: cuda");
    c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_EXPERT, 2);
    c.fuse_expert = true;
    assert_refused(&decode, 8, OVER_LOADS, &c, "ll_v2: fuse_expert: true .. backend.name: cuda");
    c.profile = "trace";
    assert_refused(&decode, 8, OVER_LOADS, &c, "ll_v2: profile .. backend.name: cuda");
}

static void plan_of(int layout, bool dedup, int combine_dtype, struct epa_footprint *out)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, layout, 1);
    struct epa_problem problem = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 4, .local_size = 4};
    struct epa_error err = {EPA_OK, ""};

    c.dedup = dedup;
    c.combine_dtype = combine_dtype;
    assert_int_equal(epa_plugin.plan(&problem, &world, EPA_TRANSPORT_LOAD_STORE, &c, out, &err),
                     EPA_OK);
}

TEST(the_plan_says_how_outputs_are_added_and_travel)
{
    struct epa_footprint plan;

    plan_of(EPA_LAYOUT_EXPERT, false, ALGO_DTYPE_NATIVE, &plan);
    assert_true(plan.u.moe.sum == EPA_SUM_ORDERED && plan.u.moe.output_dtype == EPA_BF16 &&
                !plan.u.moe.dedup);
    plan_of(EPA_LAYOUT_EXPERT, true, ALGO_DTYPE_FP8, &plan);
    assert_true(plan.u.moe.sum == EPA_SUM_BY_RANK && plan.u.moe.output_dtype == EPA_FP8_E4M3);
    assert_true(plan.u.moe.dedup);
    assert_int_equal(plan.u.moe.combine_row_bytes, 7168 + 256);
    plan_of(EPA_LAYOUT_RANK, true, ALGO_DTYPE_NATIVE, &plan);
    assert_true(plan.u.moe.sum == EPA_SUM_ORDERED && plan.u.moe.dedup);
}

TEST(the_plan_says_what_the_layout_has)
{
    struct ll_config c = config_of(ALGO_DTYPE_FP8, EPA_LAYOUT_RANK, 1);
    struct epa_problem problem = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 4, .local_size = 4};
    struct ll_layout l = made(&decode, 4, OVER_LOADS, &c);
    struct epa_footprint plan;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(epa_plugin.plan(&problem, &world, EPA_TRANSPORT_LOAD_STORE, &c, &plan, &err),
                     EPA_OK);
    assert_int_equal(plan.heap_bytes, l.heap_bytes);
    assert_int_equal(plan.signals, LL_SIGNALS * 4);
    assert_int_equal(plan.u.moe.recv_rows, l.rows);
    assert_int_equal(plan.u.moe.recv_entries, l.entries);
    assert_int_equal(plan.in_flight, 1);
    assert_int_equal(plan.u.moe.layout, EPA_LAYOUT_RANK);
    assert_int_equal(plan.u.moe.dispatch_row_bytes, l.message_bytes);
}
