/* ll_v2 on GPUs, as far as no GPU is needed: its layout, who takes up which row, the words
 * that ranks tell each other of routing, and the quotient that quantising rests on. The
 * kernels compile from the same headers. */
#include "layouts.h"

#include "base/dtype.h"
#include "../../plugins/algorithm/ll_v2/ll_v2.h"
#include <epa2a/both.h>

extern const struct epa_algorithm_plugin epa_plugin;

LAYOUTS(ll_layout, ll_config, ll_layout_make)

/* All that a plan of GPUs can be asked for. */
static const struct ll_config all_configs[] = {
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_NATIVE,
     .buffers = 2,
     .layout = EPA_LAYOUT_RANK},
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_FP8,
     .buffers = 2,
     .layout = EPA_LAYOUT_RANK},
    {.dispatch_dtype = ALGO_DTYPE_NATIVE,
     .combine_dtype = ALGO_DTYPE_NATIVE,
     .buffers = 2,
     .layout = EPA_LAYOUT_RANK},
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_NATIVE,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT},
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_FP8,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT},
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_NATIVE,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT,
     .dedup = true},
    {.dispatch_dtype = ALGO_DTYPE_NATIVE,
     .combine_dtype = ALGO_DTYPE_FP8,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT,
     .dedup = true},
    {.dispatch_dtype = ALGO_DTYPE_FP8,
     .combine_dtype = ALGO_DTYPE_NATIVE,
     .buffers = 2,
     .layout = EPA_LAYOUT_EXPERT,
     .recv_layout = LL_RECV_PADDED},
};

enum { CONFIGS = LENGTH(all_configs) };

TEST(regions_are_apart_and_in_the_heap)
{
    for (uint32_t i = 0; i < CONFIGS; i++) {
        struct ll_layout l = made(&decode, 8, OF_GPUS, &all_configs[i]);
        const uint64_t region[][3] = {
            {l.counts_at, l.counts_bytes, l.buffers}, {l.recv_at, l.recv_bytes, l.buffers},
            {l.y_at, l.y_bytes, l.buffers},           {l.outputs_at, l.outputs_bytes, 2},
            {l.routes_at, l.routes_bytes, l.buffers}, {l.arrival_at, l.arrival_bytes, l.buffers},
        };

        for (uint32_t a = 0; a < 6; a++) {
            assert_true(region[a][0] + region[a][1] * region[a][2] <= l.heap_bytes);
            assert_int_equal(region[a][0] % 4096, 0);
            for (uint32_t b = 0; b < a; b++)
                assert_true(region[a][1] == 0 || region[b][1] == 0 ||
                            region[b][0] + region[b][1] * region[b][2] <= region[a][0] ||
                            region[a][0] + region[a][1] * region[a][2] <= region[b][0]);
        }
    }
}

TEST(what_warps_store_begins_with_a_packet)
{
    for (uint32_t i = 0; i < CONFIGS; i++) {
        struct ll_layout l = made(&decode, 4, OF_GPUS, &all_configs[i]);

        assert_int_equal(l.counts_bytes, (uint64_t)l.size * l.experts * sizeof(struct ll_packet));
        assert_int_equal(l.unit_bytes % EPA_PACKET, 0);
        assert_int_equal(l.message_bytes % EPA_PACKET, 0);
        assert_int_equal(l.token_at, 0);
        assert_true(l.scales_at >= l.token_bytes && l.scales_at % sizeof(float) == 0);
        assert_true(l.meta_at >= l.scales_at + (l.fp8 ? l.hidden / l.group * 4 : 0));
        assert_int_equal(l.meta_at % LL_META_BYTES, 0);
        assert_true(l.choices_at >= l.meta_at + LL_META_BYTES);
        assert_int_equal(l.choices_at % EPA_PACKET, 0);
        assert_true(l.choices_at + (l.by_rank ? l.topk * sizeof(struct ll_packet) : 0) <=
                    l.message_bytes);
        assert_int_equal(l.sent_bytes % (l.pushes ? EPA_PACKET : 32), 0);
    }
}

TEST(the_parts_of_a_row_cover_it)
{
    struct epa_moe m = decode;
    struct ll_config c = {.pdl = true,
                          .dispatch_dtype = ALGO_DTYPE_NATIVE,
                          .combine_dtype = ALGO_DTYPE_NATIVE,
                          .buffers = 2};

    for (m.hidden = 16; m.hidden <= 20480; m.hidden += 16) {
        struct ll_layout l = made(&m, 4, OF_GPUS, &c);

        assert_true(l.unit_channels <= LL_UNIT_CHANNELS && l.unit_channels % 256 == 0);
        assert_true(l.share_channels <= LL_SHARE_CHANNELS && l.share_channels % 256 == 0);
        assert_true((l.units - 1) * l.unit_channels < l.hidden);
        assert_true(l.units * l.unit_channels >= l.hidden);
        assert_true((l.shares - 1) * l.share_channels < l.hidden);
        assert_true(l.shares * l.share_channels >= l.hidden);
    }
}

TEST(every_signal_is_used_for_one_thing)
{
    struct epa_moe m = decode;
    static uint8_t used[1 << 18];

    m.max_tokens = 5;
    for (uint32_t i = 0; i < CONFIGS; i++) {
        struct ll_layout l = made(&m, 4, OF_GPUS, &all_configs[i]);

        memset(used, 0, sizeof(used));
        assert_true(l.signals < sizeof(used));
        for (uint32_t s = 0; s < LL_SIGNALS * l.size; s++)
            used[s]++;
        for (uint64_t row = 0; row < (l.dedup && !l.by_rank ? 0 : l.rows); row++)
            for (uint32_t u = 0; u < l.row_signals; u++)
                used[ll_row_signal(l.size, l.row_signals, (uint32_t)row, u)]++;
        for (uint32_t s = 0; s < l.signals; s++)
            assert_int_equal(used[s], 1);
        assert_int_equal(used[l.signals], 0);
    }
}

TEST(each_slot_is_taken_up_once)
{
    enum { SIZE = 5, TOKENS = 9 };

    for (uint32_t rank = 0; rank < SIZE; rank++) {
        uint8_t seen[SIZE * TOKENS] = {0};

        for (uint32_t i = 0; i < SIZE * TOKENS; i++) {
            uint32_t source, token;

            ll_slot_at(SIZE, rank, i, &source, &token);
            assert_true(source < SIZE && token < TOKENS);
            seen[ll_slot(TOKENS, source, token)]++;
        }
        for (uint32_t i = 0; i < SIZE * TOKENS; i++)
            assert_int_equal(seen[i], 1);
    }
}

TEST(a_choice_says_how_many_there_are)
{
    for (uint32_t expert = 0; expert < LL_DEVICE_EXPERTS; expert++)
        for (uint32_t n = 1; n <= LL_TOPK; n++) {
            assert_int_equal(ll_choice_expert(ll_choice_of(expert, n)), expert);
            assert_int_equal(ll_choice_n(ll_choice_of(expert, n)), n);
        }
}

/* The parts of a string are apart, in words of their own, and fit the lines it has room
 * for. */
TEST(a_payload_fits_its_packets)
{
    for (uint32_t topk = 0; topk <= LL_TOPK; topk++) {
        for (uint32_t scales = 0; scales <= 128; scales += 1 + topk % 7) {
            struct ll_payload s = ll_payload_of(topk, scales, 2048);

            assert_true(s.weights >= topk * 2 && s.weights % 8 == 0);
            assert_true(s.scales >= s.weights + topk * 4 && s.scales % 8 == 0);
            assert_true(s.token >= s.scales + scales * 4 && s.token % 16 == 0);
            assert_int_equal(s.bytes, s.token + 2048);
            assert_true(epa_packets_of(s.bytes) * EPA_PACKET_WORDS * 8 >= s.bytes);
            assert_true((epa_packets_of(s.bytes) - 1) * EPA_PACKET_WORDS * 8 < s.bytes);
            /* kernels read choices and scales from the first four lines that a warp has */
            assert_true(s.scales <= 4 * EPA_PACKET_WORDS * 8);
        }
    }
    assert_int_equal(epa_packets_of(LL_PUSH_CHANNELS * 2) * EPA_PACKET_WORDS * 8,
                     LL_PUSH_CHANNELS * 2);
}

/* Expert outputs in FP8: a share's lines hold its chunks, and a chunk's scale is one of those in
 * its line, whatever part of a share there is. */
TEST(each_chunk_of_an_output_finds_its_scale)
{
    struct epa_moe m = decode;
    struct ll_config c = {.pdl = true,
                          .dispatch_dtype = ALGO_DTYPE_NATIVE,
                          .combine_dtype = ALGO_DTYPE_FP8,
                          .buffers = 2};

    for (m.fp8_group_size = 16; m.fp8_group_size <= 256; m.fp8_group_size *= 2) {
        struct ll_layout l = made(&m, 4, OF_GPUS, &c);
        uint32_t chunks = ll_chunks_of(m.fp8_group_size), scales = chunks == 7 ? 2 : 6;

        assert_true(4 * chunks <= 32 && chunks * 16 + scales * 4 <= EPA_PACKET_WORDS * 8);
        assert_true(l.share_channels % m.fp8_group_size == 0 && l.share_bytes <= 8 * EPA_PACKET);
        assert_true(l.shares * l.share_channels >= m.hidden);
        for (uint32_t n = m.fp8_group_size / 16; n <= l.share_channels / 16;
             n += m.fp8_group_size / 16) {
            uint32_t packets = ll_code_packets(n * 16, m.fp8_group_size);

            assert_true(packets * chunks >= n && (packets - 1) * chunks < n);
            assert_true(packets * EPA_PACKET <= l.share_bytes);
            for (uint32_t chunk = 0; chunk < n; chunk++) {
                uint32_t line = chunk / chunks, slot = chunk % chunks;
                uint32_t i = ll_scale_of(m.fp8_group_size, line, slot);
                uint32_t of = ll_scale_chunk(m.fp8_group_size, line, i, n);

                assert_true(i < scales && of < n);
                assert_int_equal(of * 16 / m.fp8_group_size, chunk * 16 / m.fp8_group_size);
            }
        }
    }
}

/* Each amax of one binade in `of`, each x up to it: what the quotient rounds to in FP8 is
 * what the division does, and it is the division where FP8 can tell. */
static void compare_quotients(bool f16, uint32_t of)
{
    uint32_t bits = f16 ? 10 : 7, infinity = f16 ? 0x7c00 : 0x7f80;

    for (uint32_t amax = 1; amax < infinity; amax++) {
        float scale = float_of_word(f16, (uint16_t)amax) * (1.0f / 448.0f), inverse = 1.0f / scale;

        if ((amax >> bits) % of != 7 % of)
            continue;
        if (!(scale >= EPA_QUOTIENT_LEAST && scale <= EPA_QUOTIENT_MOST)) {
            assert_false(f16); /* all of its scales are in between */
            continue;
        }
        for (uint32_t x = 0; x <= amax; x++) {
            float value = float_of_word(f16, (uint16_t)x), right = value / scale;
            float is = epa_quotient(value, scale, inverse);

            if (e4m3_of_float(is) != e4m3_of_float(right) ||
                (right > 0x1p-30f && bits_of_float(is) != bits_of_float(right)))
                fail_msg("x 0x%04x, amax 0x%04x: %a, not %a", x, amax, (double)is, (double)right);
        }
    }
}

TEST(the_quotient_is_the_division)
{
    compare_quotients(false, 12);
}

TEST(the_quotient_of_f16_is_the_division)
{
    compare_quotients(true, 8);
}

TEST(an_option_of_the_other_kind_of_memory_is_refused)
{
    struct epa_world world = {.size = 2, .local_size = 2, .local_cores = 1};
    struct ll_config blocks = {.pdl = true, .buffers = 2, .blocks = 3},
                     stream = {.buffers = 2, .nontemporal = ALGO_NONTEMPORAL_ON};
    struct ll_config after = {.buffers = 2, .pdl = false};
    uint32_t host = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE;
    struct ll_layout l;
    struct epa_error err = {EPA_OK, ""}, second = {EPA_OK, ""};

    assert_int_equal(ll_layout_make(&decode, &world, host, &blocks, &l, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text,
                        "ll_v2: blocks is for GPUs; leave it out, or set backend.name: cuda");
    assert_int_equal(ll_layout_make(&decode, &world, host, &after, &l, &second), EPA_ERR_CONFIG);
    assert_string_equal(second.text,
                        "ll_v2: pdl is for GPUs; leave it out, or set backend.name: cuda");
    assert_refused(&decode, 2, OF_GPUS, &stream, "ll_v2: nontemporal is for hosts; leave it out");
    assert_refused(&decode, 64, OF_GPUS, &blocks, "ll_v2 on GPUs takes 1 to 32 ranks, not 64");
    assert_int_equal(make(&decode, 2, OF_GPUS, &blocks, &l, &err), EPA_OK);
    assert_int_equal(make(&decode, 2, OF_GPUS, &after, &l, &err), EPA_OK);
}

/* Of each type, with outputs made by others or in combine, and over other nodes. */
TEST(a_profile_is_of_any_kernel)
{
    struct ll_config c = {.pdl = true,
                          .profile = "trace",
                          .combine_dtype = ALGO_DTYPE_NATIVE,
                          .buffers = 2,
                          .dedup = true};
    struct epa_moe m = decode;
    struct ll_layout l;
    struct epa_error err;

    for (uint32_t way = 0; way < 8; way++) {
        uint32_t flags =
            way / 4 != 0 ? (OF_GPUS & ~EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES : OF_GPUS;

        m.dtype = way % 2 != 0 ? EPA_F16 : EPA_BF16;
        c.fuse_expert = way / 2 % 2 != 0;
        assert_int_equal(make(&m, 4, flags, &c, &l, &err), EPA_OK);
    }
}

/* Nobody writes answers for others to read then. */
TEST(outputs_made_in_combine_need_no_room)
{
    struct ll_config c = {
        .pdl = true, .combine_dtype = ALGO_DTYPE_NATIVE, .fuse_expert = true, .buffers = 2};
    struct ll_layout l, apart;

    for (uint32_t way = 0; way < 4; way++) {
        c.dedup = way % 2 != 0;
        c.dispatch_dtype = way / 2 != 0 ? ALGO_DTYPE_FP8 : ALGO_DTYPE_NATIVE;
        l = made(&decode, 4, OF_GPUS, &c);
        c.fuse_expert = false;
        apart = made(&decode, 4, OF_GPUS, &c);
        c.fuse_expert = true;
        assert_true(l.fused && !apart.fused);
        assert_int_equal(l.y_bytes, 0);
        assert_int_equal(l.pushes, apart.pushes);
        assert_int_equal(l.heap_bytes + apart.y_bytes * l.buffers, apart.heap_bytes);
    }
    c.combine_dtype = ALGO_DTYPE_FP8;
    assert_refused(&decode, 4, OF_GPUS, &c,
                   "ll_v2 .. fuse_expert: true .. combine_dtype: native .. fuse_expert: false");
}

/* On hosts. */
TEST(a_plan_has_rows_and_outputs_in_dtype)
{
    static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16};
    struct epa_world world = {.size = 4, .local_size = 4};

    for (size_t i = 0; i < 2; i++) {
        struct ll_config c = {.pdl = true,
                              .dispatch_dtype = ALGO_DTYPE_NATIVE,
                              .combine_dtype = ALGO_DTYPE_NATIVE,
                              .buffers = 1};
        struct epa_problem problem = {.op = EPA_OP_MOE, .u.moe = decode};
        struct epa_error err = {EPA_OK, ""};
        struct epa_footprint plan;

        problem.u.moe.dtype = problem.u.moe.x_dtype = dtypes[i];
        assert_int_equal(
            epa_plugin.plan(&problem, &world, EPA_TRANSPORT_LOAD_STORE, &c, &plan, &err), EPA_OK);
        assert_int_equal(plan.u.moe.recv_dtype, dtypes[i]);
        assert_int_equal(plan.u.moe.output_dtype, dtypes[i]);
    }
}

TEST(a_plan_says_that_outputs_are_made_in_combine)
{
    struct ll_config c = {
        .pdl = true, .combine_dtype = ALGO_DTYPE_NATIVE, .fuse_expert = true, .buffers = 2};
    struct epa_problem problem = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 4, .local_size = 4};
    struct epa_error err = {EPA_OK, ""};
    struct epa_footprint plan;

    assert_int_equal(epa_plugin.plan(&problem, &world, OF_GPUS, &c, &plan, &err), EPA_OK);
    assert_true(plan.u.moe.fused && plan.u.moe.layout == EPA_LAYOUT_EXPERT);
    c.layout = EPA_LAYOUT_RANK;
    assert_int_equal(epa_plugin.plan(&problem, &world, OF_GPUS, &c, &plan, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "ll_v2 .. fuse_expert: true .. layout: rank .. layout: expert");
}
