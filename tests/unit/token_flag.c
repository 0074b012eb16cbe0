/* token_flag: its layout and its signals, what it refuses, and calls that come out of turn. */
#include "layouts.h"

#include "../../plugins/algorithm/token_flag/token_flag.h"

extern const struct epa_algorithm_plugin epa_plugin;

/* The largest shape that it takes of what an experiment can have. */
enum { RANKS = 64, TOKENS = 4096, HIDDEN = 131072 };

static struct tf_config config_of(int lock, uint32_t buffers)
{
    return (struct tf_config){.dispatch_dtype = TF_DTYPE_NATIVE,
                              .flag_granularity = lock,
                              .chunks = 1,
                              .buffers = buffers};
}

LAYOUTS(tf_layout, tf_config, tf_layout_make)

static void each_shape(void (*check)(const struct tf_layout *, const struct epa_moe *))
{
    static const uint32_t hidden[] = {16, 48, 1040, 7168, HIDDEN};

    for (uint32_t i = 0; i < 5 * 64; i++) {
        struct epa_moe m = decode;
        struct tf_config c = config_of((int)(i & 1), 1 + (i >> 1 & 1));
        struct tf_layout l;

        m.hidden = hidden[i / 64];
        m.fp8_group_size = m.hidden % 128 == 0 ? 128 : 16;
        c.dispatch_dtype = (i >> 2 & 1) != 0 ? TF_DTYPE_FP8 : TF_DTYPE_NATIVE;
        c.fuse_expert = (i >> 3 & 1) != 0;
        l = made(&m, (i >> 4 & 1) != 0 ? RANKS : 1, (i >> 5 & 1) != 0 ? OVER_PUTS : OVER_LOADS, &c);
        check(&l, &m);
    }
}

static void check_regions(const struct tf_layout *l, const struct epa_moe *m)
{
    const uint64_t at[] = {l->reported_at, l->counts_at,  l->comm_at,   l->grouped_at,
                           l->y_at,        l->outputs_at, l->staging_at};
    const uint64_t bytes[] = {l->reported_bytes,
                              2 * l->counts_bytes,
                              l->buffers * l->comm_bytes,
                              l->buffers * l->grouped_bytes,
                              l->buffers * l->y_bytes,
                              l->buffers * l->outputs_bytes,
                              l->staging_bytes};
    uint64_t end = 0;

    (void)m;
    for (size_t i = 0; i < LENGTH(at); i++) {
        assert_int_equal(at[i] % TF_PAGE, 0);
        assert_int_equal(bytes[i] % TF_LINE, 0);
        assert_true(at[i] >= end);
        end = at[i] + bytes[i];
    }
    assert_true(end <= l->heap_bytes);
}

TEST(regions_stand_apart_in_every_shape)
{
    each_shape(check_regions);
}

static void check_message(const struct tf_layout *l, const struct epa_moe *m)
{
    uint64_t scales = l->fp8 ? (uint64_t)m->hidden / m->fp8_group_size * sizeof(float) : 0;

    assert_int_equal(l->message_bytes % TF_LINE, 0);
    assert_int_equal(l->slot_bytes % TF_LINE, 0);
    assert_int_equal(l->scales_at % sizeof(float), 0);
    assert_int_equal(l->meta_at % sizeof(uint64_t), 0);
    assert_true(l->scales_at + scales <= l->meta_at);
    assert_true(l->meta_at >= l->message_bytes - TF_LINE);
    assert_true(l->output_bytes + TF_FLAG_BYTES <= l->slot_bytes);
    assert_true(l->message_bytes < l->scales_at + scales + TF_META_BYTES + TF_LINE);
}

TEST(a_flag_is_the_last_word_of_its_message_in_one_line_with_what_it_ends)
{
    assert_int_equal(sizeof(struct tf_meta), TF_META_BYTES);
    assert_int_equal(offsetof(struct tf_meta, flag), TF_META_BYTES - TF_FLAG_BYTES);
    each_shape(check_message);
}

TEST(counts_and_epoch_are_one_word_that_grows)
{
    assert_true(tf_count_flag(1, 0) > 0);
    assert_true(tf_count_flag(2, 0) > tf_count_flag(1, UINT32_MAX - 1));
    assert_int_equal((uint32_t)tf_count_flag(7, 12) - 1, 12);
}

/* Counts, rows and expert outputs of all sets: no two in one word, and none beyond the last. */
TEST(each_flag_that_is_put_has_a_signal_of_its_own)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_moe m = decode;
    struct tf_layout l;
    uint8_t *used;

    m.max_tokens = 5;
    l = made(&m, 4, OVER_PUTS, &c);
    used = calloc(l.signals, 1);
    assert_non_null(used);
    for (uint32_t source = 0; source < 4; source++)
        for (uint64_t epoch = 8; epoch < 10; epoch++)
            assert_int_equal(used[tf_count_signal(&l, epoch, source)]++, 0);
    for (uint32_t set = 0; set < 2; set++) {
        for (uint32_t i = 0; i < 4 * l.source_rows; i++)
            assert_int_equal(used[tf_row_signal(&l, set, i / l.source_rows, i % l.source_rows)]++,
                             0);
        for (uint32_t i = 0; i < 5 * 8; i++)
            assert_int_equal(used[tf_output_signal(&l, set, i / 8, i % 8)]++, 0);
    }
    for (uint32_t i = 0; i < l.signals; i++)
        assert_int_equal(used[i], 1);
    free(used);
}

TEST(only_what_is_put_has_signals_and_staging)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct tf_layout l = made(&decode, 8, OVER_LOADS, &c);

    assert_int_equal(l.signals, 16);
    assert_int_equal(l.staging_bytes, 0);
    l = made(&decode, 8, OVER_PUTS, &c);
    assert_int_equal(l.signals, 16 + 2 * (8 * 1024 + 1024));
    assert_int_equal(l.staging_bytes, 1024 * l.message_bytes);
    c.flag_granularity = TF_FLAG_PER_RANK;
    l = made(&decode, 8, OVER_PUTS, &c);
    assert_int_equal(l.signals, 16 + 2 * 1024);
    l = made(&decode, 1, OVER_PUTS, &c);
    assert_int_equal(l.staging_bytes, 0);
}

TEST(fused_outputs_need_no_room_of_their_own_but_to_be_put)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 1);

    c.fuse_expert = true;
    assert_int_equal(made(&decode, 8, OVER_LOADS, &c).y_bytes, 0);
    assert_int_equal(made(&decode, 8, OVER_PUTS, &c).y_bytes, 8 * 1024 * 2 * 7168);
}

TEST(the_largest_shape_fits_into_64_bits)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_moe m = decode;
    struct tf_layout l;

    m.max_tokens = TOKENS;
    m.hidden = HIDDEN;
    m.topk = TF_TOPK;
    m.experts = RANKS * TF_TOPK;
    l = made(&m, RANKS, OVER_PUTS, &c);
    check_regions(&l, &m);
    assert_int_equal(l.rows, (uint64_t)RANKS * TOKENS * TF_TOPK);
    assert_true(l.heap_bytes > 2 * l.rows * 6 * HIDDEN);
    assert_int_equal(tf_output_signal(&l, 1, TOKENS - 1, TF_TOPK - 1), l.signals - 1);
}

TEST(what_it_cannot_do_is_refused_in_words)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, 2);
    struct epa_moe m;

    m = decode, m.dtype = EPA_F32;
    assert_refused(&m, 8, OVER_LOADS, &c,
                   "token_flag moves tokens of 16 bits; set moe.dtype: bf16 or f16");
    m = decode, m.topk = 33;
    assert_refused(&m, 8, OVER_LOADS, &c, "token_flag takes moe.topk from 1 to 32, not 33");
    m = decode, m.experts = 130;
    assert_refused(&m, 65, OVER_LOADS, &c, "token_flag takes 1 to 64 ranks, not 65");
    assert_refused(&decode, 7, OVER_LOADS, &c, "token_flag .. moe.experts (256) .. ranks (7)");
    m = decode, m.experts = 1 << 20;
    assert_refused(&m, 8, OVER_LOADS, &c,
                   "token_flag takes up to 65536 experts a rank, not 131072");
    m = decode, m.max_tokens = 1u << 24;
    assert_refused(&m, 8, OVER_LOADS, &c,
                   "token_flag .. 32 .. ranks (8) .. moe.max_tokens (16777216) .. moe.topk (8)");
    m = decode, m.hidden = 24;
    assert_refused(&m, 8, OVER_LOADS, &c,
                   "token_flag needs moe.hidden (24) to be a multiple of 16");
    m = decode, m.x_dtype = EPA_FP8_E4M3;
    assert_refused(
        &m, 8, OVER_LOADS, &c,
        "token_flag .. dispatch_dtype: native .. dispatch_dtype: fp8 .. moe.input_dtype: native");
    m = decode, m.fp8_group_size = 96, c.dispatch_dtype = TF_DTYPE_FP8;
    assert_refused(
        &m, 8, OVER_LOADS, &c,
        "token_flag .. dispatch_dtype: fp8 .. moe.hidden (7168) .. moe.fp8_group_size (96) .. dispatch_dtype: native");
}

TEST(chunks_need_a_flag_for_each_row)
{
    struct tf_config c = config_of(TF_FLAG_PER_RANK, 2);

    c.chunks = 4;
    assert_refused(&decode, 8, OVER_LOADS, &c,
                   "token_flag .. chunks: 4 .. flag_granularity: token .. flag_granularity: rank");
}

/* ---- calls out of turn: one rank, nothing of the transport but what it calls alone ---- */

struct fixture {
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_algorithm *a;
    struct epa_problem problem;
    char *peer_heap[1];
    uint16_t x[64], out[64];
    int32_t expert[1];
    float weight[1];
};

static enum epa_status nothing(struct epa_transport *t)
{
    (void)t;
    return EPA_OK;
}

static enum epa_status one_worker(struct epa_backend *b, void (*fn)(void *, uint32_t, uint32_t),
                                  void *arg)
{
    (void)b;
    fn(arg, 0, 1);
    return EPA_OK;
}

static const struct epa_transport_ops transport_ops = {.quiet = nothing, .progress = nothing};
static const struct epa_backend_ops backend_ops = {.parallel = one_worker};

static void set_up(struct fixture *f, uint32_t buffers)
{
    struct tf_config c = config_of(TF_FLAG_PER_TOKEN, buffers);
    struct tf_layout l;
    struct epa_error err = {EPA_OK, ""};

    f->problem = (struct epa_problem){.op = EPA_OP_MOE,
                                      .u.moe = {.max_tokens = 1,
                                                .hidden = 64,
                                                .experts = 1,
                                                .topk = 1,
                                                .dtype = EPA_BF16,
                                                .tokens = 1,
                                                .x_dtype = EPA_BF16,
                                                .x = f->x,
                                                .expert = f->expert,
                                                .weight = f->weight,
                                                .out = f->out}};
    l = made(&f->problem.u.moe, 1, OVER_LOADS, &c);
    f->backend = (struct epa_backend){.ops = &backend_ops, .memory = EPA_MEMORY_HOST};
    f->t = (struct epa_transport){.ops = &transport_ops,
                                  .size = 1,
                                  .heap = aligned_alloc(TF_PAGE, l.heap_bytes),
                                  .heap_bytes = l.heap_bytes,
                                  .peer_heap = f->peer_heap};
    assert_non_null(f->t.heap);
    memset(f->t.heap, 0xff, l.heap_bytes); /* no promise says that it holds zeros */
    f->peer_heap[0] = f->t.heap;
    assert_int_equal(epa_plugin.create(
                         &(struct epa_algorithm_params){
                             .problem = &f->problem,
                             .world = {.size = 1, .local_size = 1, .local_cores = 1},
                             .transport = &f->t,
                             .backend = &f->backend,
                             .config = &c,
                             .transport_flags = EPA_TRANSPORT_HOST | EPA_TRANSPORT_LOAD_STORE,
                             .timeout_ns = 1000000},
                         &f->a, &err),
                     EPA_OK);
}

static void tear_down(struct fixture *f)
{
    f->a->destroy(f->a);
    free(f->t.heap);
}

static enum epa_status call(struct fixture *f, uint32_t stage)
{
    return f->a->stages[stage].run(f->a, &f->problem);
}

static void assert_says(struct fixture *f, uint32_t stage, const char *words)
{
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(call(f, stage), EPA_ERR_CONFIG);
    f->a->explain(f->a, &err);
    if (strstr(err.text, words) == NULL)
        fail_msg("'%s' does not say: %s", err.text, words);
}

TEST(each_half_needs_the_one_before)
{
    struct fixture f = {.weight = {1}};

    set_up(&f, 2);
    f.problem.u.moe.epoch = 1;
    assert_says(&f, 1,
                "dispatch_recv/counts: called for dispatch 1, but there is "
                "none that is sent");
    assert_says(&f, 2, "none that is received");
    assert_says(&f, 3, "none that is answered");
    assert_int_equal(call(&f, 0), EPA_OK);
    assert_says(&f, 0, "dispatch 1 has been sent and not received: call dispatch_recv");
    tear_down(&f);
}

TEST(no_more_dispatches_are_open_than_there_are_sets)
{
    for (uint32_t buffers = 1; buffers <= 2; buffers++) {
        struct fixture f = {.weight = {1}};

        (void)state;
        set_up(&f, buffers);
        for (uint32_t i = 0; i < buffers; i++) {
            assert_int_equal(call(&f, 0), EPA_OK);
            assert_int_equal(call(&f, 1), EPA_OK);
        }
        assert_says(&f, 0, "combine one first");
        if (buffers == 2)
            assert_says(&f, 2, "called for dispatch 2, but 1 is the oldest that is received");
        tear_down(&f);
    }
}

TEST(a_rank_alone_outputs_itself_for_as_long_as_it_likes)
{
    struct fixture f = {.weight = {2}};

    set_up(&f, 1);
    for (uint16_t i = 1; i < 50; i++) {
        f.x[3] = (uint16_t)(0x3f80 + i);
        for (uint32_t stage = 0; stage < 4; stage++) {
            assert_int_equal(call(&f, stage), EPA_OK);
            f.problem.u.moe.y = f.problem.u.moe.recv;
        }
        assert_int_equal(f.problem.u.moe.epoch, i);
        assert_int_equal(f.out[3], f.x[3] + 0x80); /* times 2 */
    }
    tear_down(&f);
}
