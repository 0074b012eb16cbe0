/* ll_v1 on GPUs, as far as no GPU is needed: its layout, how work is divided among warps, and
 * the lines that parts travel as. The kernels compile from the same header. */
#include "layouts.h"

#include "../../plugins/algorithm/ll_v1/ll_v1.h"
#include "../../plugins/common/algo_cuda.h"

extern const struct epa_algorithm_plugin epa_plugin;

/* As the kernels have it: lines of a warp at a time, and fours of them that it holds of a row
 * in FP8, of one as it is. */
enum { PACKETS = 4, GROUPS_FP8 = 3, GROUPS_DTYPE = 4 };

static const struct v1_config plain = {.pdl = true, .exchange = V1_EXCHANGE_AUTO, .buffers = 2};

LAYOUTS(v1_layout, v1_config, v1_layout_make)

static void assert_apart(const struct v1_layout *l)
{
    const struct v1_region *const regions[] = {&l->splits, &l->starts,      &l->arrival,
                                               &l->recv,   &l->recv_scales, &l->origin,
                                               &l->y,      &l->outputs};
    const uint32_t times[] = {2, l->buffers, 2, l->buffers, l->buffers, l->buffers, l->buffers, 2};
    uint64_t end = 0;

    for (size_t i = 0; i < LENGTH(times); i++) {
        assert_int_equal(regions[i]->at % 4096, 0);
        assert_true(regions[i]->at >= end);
        end = regions[i]->at + regions[i]->bytes * times[i];
    }
    assert_true(end <= l->heap_bytes);
}

TEST(regions_stand_apart_and_hold_what_comes)
{
    for (uint32_t i = 0; i < 16; i++) {
        struct v1_config c = {.pdl = true,
                              .dispatch_dtype = (int)(i & 1),
                              .exchange = (int)(i >> 1 & 1),
                              .buffers = 1 + (i >> 2 & 1),
                              .capacity = (i >> 3 & 1) != 0 ? 1.5 : 0};
        struct v1_layout l = made(&decode, 8, OF_GPUS, &c);

        assert_apart(&l);
        assert_int_equal(l.splits.bytes, 256 * sizeof(struct v1_packet));
        assert_true(l.arrival.bytes >= l.rows * l.units * l.unit_bytes);
        assert_int_equal(l.unit_bytes % EPA_PACKET, 0);
        assert_int_equal(l.arrival.at % EPA_PACKET, 0);
        assert_int_equal(l.arrival.bytes % V1_LINE, 0);
        assert_true(l.outputs.bytes >= (uint64_t)128 * 8 * l.sent_bytes);
        assert_int_equal(l.outputs.bytes == 0, l.pull);
        assert_int_equal(l.starts.bytes != 0, l.pull);
        assert_int_equal(l.token.bytes + l.slot.bytes + l.out.bytes, 0);
    }
}

TEST(gpus_push_few_outputs_and_pull_many_unless_reported)
{
    struct v1_config c = plain;
    struct epa_moe few = decode;
    struct epa_world world = {.size = 2, .local_size = 2, .local_cores = 1};
    struct epa_error err = {EPA_OK, ""};
    struct v1_layout l;

    few.max_tokens = 32;
    assert_true(made(&decode, 2, OF_GPUS, &c).pull);
    assert_false(made(&few, 2, OF_GPUS, &c).pull);
    c.exchange = V1_EXCHANGE_PUSH;
    assert_false(made(&decode, 2, OF_GPUS, &c).pull);
    c.exchange = V1_EXCHANGE_PULL;
    assert_true(made(&few, 2, OF_GPUS, &c).pull);
    c.exchange = V1_EXCHANGE_AUTO;
    assert_int_equal(v1_layout_make(&decode, &world, EPA_TRANSPORT_LOAD_STORE, &c, &l, &err),
                     EPA_OK);
    assert_true(l.pull);
}

/* What lanes hold of a part is enough for it, and a part begins where a packet does. */
TEST(parts_cover_a_row_and_fit_their_packets)
{
    struct epa_moe m = decode;

    for (int wire = 0; wire < 2; wire++) {
        struct v1_config c = {.pdl = true, .dispatch_dtype = wire, .buffers = 1};
        bool fp8 = wire == ALGO_DTYPE_FP8;

        for (m.hidden = 256; m.hidden <= 20480; m.hidden += 256) {
            for (m.fp8_group_size = 16; m.fp8_group_size <= 256; m.fp8_group_size *= 2) {
                struct v1_layout l = made(&m, 4, OF_GPUS, &c);
                uint32_t last = m.hidden - (l.units - 1) * l.unit_channels;
                uint32_t scales = fp8 ? l.unit_channels / m.fp8_group_size : 0;
                struct v1_payload s = v1_payload_of(l.unit_channels * (fp8 ? 1 : 2), scales);

                assert_in_range(last, 1, l.unit_channels);
                assert_int_equal(fp8 ? l.unit_channels % m.fp8_group_size : 0, 0);
                assert_true(s.scales % 16 == 0 && s.token % 4 == 0);
                assert_true(s.bytes <= l.unit_bytes / EPA_PACKET * EPA_PACKET_WORDS * 8);
                assert_true(l.unit_bytes / EPA_PACKET <=
                            PACKETS * (fp8 ? GROUPS_FP8 : GROUPS_DTYPE));
            }
        }
    }
}

/* A share of a sum has four lines of each expert output, and no line is of two shares. */
TEST(shares_and_pieces_cover_an_output)
{
    struct epa_moe m = decode;
    struct v1_config c = {.pdl = true,
                          .dispatch_dtype = ALGO_DTYPE_NATIVE,
                          .exchange = V1_EXCHANGE_PUSH,
                          .buffers = 1};

    assert_int_equal(V1_SHARE_TAKE * 2, PACKETS * EPA_PACKET_WORDS * 8);
    for (m.hidden = 16; m.hidden <= 20480; m.hidden += 16) {
        struct v1_layout l = made(&m, 4, OF_GPUS, &c);
        uint32_t packets = l.sent_bytes / EPA_PACKET;

        assert_true(packets * EPA_PACKET_WORDS * 8 >= 2 * m.hidden);
        assert_true((packets - 1) * EPA_PACKET_WORDS * 8 < 2 * m.hidden);
        assert_int_equal(l.shares, (packets + PACKETS - 1) / PACKETS);
        assert_true(l.pieces * V1_PIECE_PACKETS >= packets);
        assert_true((l.pieces - 1) * V1_PIECE_PACKETS < packets);
    }
}

TEST(an_entry_is_in_the_cell_that_has_it)
{
    static const uint32_t rows[] = {0, 0, 3, 1, 0, 7, 0, 0, 2, 0};
    enum { CELLS = LENGTH(rows) };
    uint32_t begin[CELLS], total = 0;

    for (uint32_t i = 0; i < CELLS; total += rows[i++])
        begin[i] = total;
    for (uint32_t i = 0; i < total; i++) {
        uint32_t cell = device_cell_of(begin, CELLS, i);

        assert_in_range(i, begin[cell], begin[cell] + rows[cell] - 1);
    }
    assert_int_equal(device_cell_of(begin, 1, 5), 0);
}

TEST(what_is_for_hosts_is_refused_on_gpus)
{
    struct v1_config c = plain;

    c.nontemporal = ALGO_NONTEMPORAL_OFF;
    assert_refused(&decode, 2, OF_GPUS, &c, "ll_v1: nontemporal is for hosts; leave it out");
}

static void assert_for_gpus(const struct v1_config *c, const char *what)
{
    struct epa_world world = {.size = 2, .local_size = 2, .local_cores = 1};
    struct epa_error err = {EPA_OK, ""};
    struct v1_layout l;
    char why[128];

    assert_int_equal(v1_layout_make(&decode, &world, EPA_TRANSPORT_LOAD_STORE, c, &l, &err),
                     EPA_ERR_CONFIG);
    snprintf(why, sizeof(why), "ll_v1: %s is for GPUs; leave it out, or set backend.name: cuda",
             what);
    assert_words(err.text, why);
}

TEST(what_is_for_gpus_is_refused_on_hosts)
{
    struct v1_config c = plain;

    c.pdl = false;
    assert_for_gpus(&c, "pdl");
    c.blocks = 3;
    assert_for_gpus(&c, "blocks");
    c.profile = "there";
    assert_for_gpus(&c, "profile");
}

TEST(the_plan_says_what_packets_take)
{
    struct epa_problem p = {.op = EPA_OP_MOE, .u.moe = decode};
    struct epa_world world = {.size = 4, .local_size = 4, .local_cores = 1};
    struct v1_config c = plain;
    struct epa_footprint plan;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(epa_plugin.plan(&p, &world, OF_GPUS, &c, &plan, &err), EPA_OK);
    assert_int_equal(plan.u.moe.combine_row_bytes, 7168 * 2); /* pulled */
    c.exchange = V1_EXCHANGE_PUSH;
    assert_int_equal(epa_plugin.plan(&p, &world, OF_GPUS, &c, &plan, &err), EPA_OK);
    assert_int_equal(plan.u.moe.dispatch_row_bytes, 7 * 9 * EPA_PACKET);
    assert_int_equal(plan.u.moe.combine_row_bytes, 120 * EPA_PACKET);
    assert_int_equal(plan.u.moe.control_bytes, 64 * 16 + 8);
    p.u.moe.hidden = 2048 + 128;
    assert_int_equal(epa_plugin.plan(&p, &world, OF_GPUS, &c, &plan, &err), EPA_OK);
    assert_int_equal(plan.u.moe.dispatch_row_bytes, (2 * 9 + 2) * EPA_PACKET);
}
