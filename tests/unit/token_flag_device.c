/* token_flag on GPUs, what of it runs anywhere: the layout, lines and parts, which row comes
 * when, and what is refused. */
#include "layouts.h"

#include "../../plugins/algorithm/token_flag/token_flag.h"

static const struct epa_moe contest = {
    .max_tokens = 256,
    .hidden = 7168,
    .experts = 256,
    .topk = 8,
    .fp8_group_size = 128,
    .dtype = EPA_F16,
    .x_dtype = EPA_F16,
};

static const struct tf_config plain = {.dispatch_dtype = ALGO_DTYPE_NATIVE,
                                       .flag_granularity = TF_FLAG_PER_TOKEN,
                                       .chunks = 1,
                                       .buffers = 2};

LAYOUTS(tf_layout, tf_config, tf_layout_make)

static void check_regions(const struct tf_layout *l)
{
    const uint64_t at[] = {l->counts_at, l->comm_at, l->grouped_at, l->y_at, l->outputs_at};
    const uint64_t bytes[] = {2 * l->counts_bytes, l->buffers * l->comm_bytes,
                              l->buffers * l->grouped_bytes, l->buffers * l->y_bytes,
                              l->buffers * l->outputs_bytes};
    uint64_t end = 0;

    for (size_t i = 0; i < LENGTH(at); i++) {
        assert_int_equal(at[i] % TF_PAGE, 0);
        assert_true(at[i] >= end);
        end = at[i] + bytes[i];
    }
    assert_true(end <= l->heap_bytes);
    assert_int_equal(l->reported_bytes + l->staging_bytes, 0);
}

/* What is in a line before META's own words; META is words 12 and 13 of the last. */
static void check_packets(const struct tf_layout *l)
{
    uint64_t scales = l->fp8 ? (uint64_t)l->hidden / l->group * sizeof(float) : 0;
    uint64_t content = (l->scales_at + scales + 7) / 8 * 8;

    assert_true(content <= 8ull * (l->packets * EPA_PACKET_WORDS - TF_META_WORDS));
    assert_true(content + 8 * TF_META_WORDS > 8ull * (l->packets - 1) * EPA_PACKET_WORDS);
    assert_true(content <= l->meta_at);
    assert_int_equal(l->wire_bytes, l->packets * 128);
    assert_int_equal(l->slot_bytes, l->output_packets * 128);
    assert_true(l->output_bytes <= 8ull * l->output_packets * EPA_PACKET_WORDS);
    assert_true(l->counts_bytes >= 8ull * l->size * l->local);
    assert_true(tf_units_of(l->packets) * TF_UNIT_PACKETS >= l->packets);
    assert_true((tf_units_of(l->packets) - 1) * TF_UNIT_PACKETS < l->packets);
    assert_int_equal(TF_UNIT_BYTES % 16, 0);
}

TEST(a_message_and_its_meta_fit_into_their_packets_in_every_shape)
{
    static const uint32_t hidden[] = {16, 48, 128, 1040, 2880, 7168, 20480, 40960};

    for (uint32_t i = 0; i < 8 * 16; i++) {
        struct tf_config c = plain;
        struct epa_moe m = contest;
        struct tf_layout l;

        m.hidden = hidden[i / 16];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        c.buffers = 1 + i % 2;
        c.dispatch_dtype = (i >> 1 & 1) != 0 ? ALGO_DTYPE_FP8 : ALGO_DTYPE_NATIVE;
        c.fuse_expert = (i >> 2 & 1) != 0;
        l = made(&m, (i >> 3 & 1) != 0 ? EPA_DEVICE_RANKS : 1, OF_GPUS, &c);
        check_regions(&l);
        check_packets(&l);
    }
    assert_int_equal(made(&contest, 4, OF_GPUS, &plain).packets, 120);
}

/* Every row of every source once, a source's in order, and none behind by more than one while
 * it has some. */
static void check_order(uint32_t size, const uint32_t *n)
{
    uint32_t next[EPA_DEVICE_RANKS] = {0}, all = 0, source, row;

    for (uint32_t s = 0; s < size; s++)
        all += n[s];
    for (uint32_t i = 0; i < all; i++) {
        tf_row_at(size, size / 2, n, i, &source, &row);
        assert_in_range(source, 0, size - 1);
        assert_int_equal(row, next[source]);
        next[source]++;
        for (uint32_t s = 0; s < size; s++)
            assert_true(next[s] == n[s] || next[s] + 1 >= next[source]);
    }
    for (uint32_t s = 0; s < size; s++)
        assert_int_equal(next[s], n[s]);
}

TEST(rows_come_from_all_sources_in_turn_however_many_each_has)
{
    uint32_t n[EPA_DEVICE_RANKS], random = 1;

    check_order(1, (uint32_t[]){5});
    check_order(3, (uint32_t[]){0, 0, 0});
    check_order(4, (uint32_t[]){0, 7, 0, 7});
    check_order(4, (uint32_t[]){9, 1, 0, 4});
    for (uint32_t i = 0; i < 200; i++) {
        for (uint32_t s = 0; s < EPA_DEVICE_RANKS; s++) {
            random = random * 1664525u + 1013904223u;
            n[s] = random >> 16 & 15;
        }
        check_order(1 + i % EPA_DEVICE_RANKS, n);
    }
}

TEST(each_row_is_taken_in_early_or_late_and_none_early_without_chunks)
{
    for (uint32_t rows = 0; rows < 50; rows++) {
        assert_int_equal(tf_early_rows(rows, 1), 0);
        for (uint32_t chunks = 2; chunks < 60; chunks++)
            assert_int_equal(rows - tf_early_rows(rows, chunks), rows / chunks);
    }
}

TEST(what_gpus_cannot_do_is_refused_in_words)
{
    struct tf_config c = plain;
    struct epa_moe m;

    m = contest, m.hidden = 65536;
    assert_refused(&m, 8, OF_GPUS, &c, "token_flag .. 98304 .. moe.hidden .. 65536 .. 139904");
    m = contest, m.max_tokens = 1 << 20, m.topk = 32;
    assert_refused(&m, 8, OF_GPUS, &c,
                   "token_flag .. 32 .. 268435456 .. 8 .. moe.max_tokens .. moe.topk");
    c.nontemporal = TF_NONTEMPORAL_ON;
    assert_refused(&contest, 8, OF_GPUS, &c, "token_flag: nontemporal is for hosts; leave it out");
}

TEST(hosts_refuse_what_only_gpus_can_do)
{
    struct epa_world world = {.size = 2, .local_size = 2, .local_cores = 1};
    struct tf_config c = plain;
    struct epa_error err = {EPA_OK, ""};
    struct tf_layout l;

    c.blocks = 4;
    assert_int_equal(tf_layout_make(&contest, &world, EPA_TRANSPORT_HOST, &c, &l, &err),
                     EPA_ERR_CONFIG);
    assert_words(err.text, "token_flag: blocks .. backend.name: cuda");
    c = plain, c.profile = "trace", err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(tf_layout_make(&contest, &world, EPA_TRANSPORT_HOST, &c, &l, &err),
                     EPA_ERR_CONFIG);
    assert_words(err.text, "token_flag: profile .. backend.name: cuda");
}
