/* The checks of op_moe: each way to be wrong is told, with the place. One thing is
 * broken in what a right dispatch or combine left behind; everything else is as it
 * should be. */

#include "test.h"

#include "fake_moe.h"

/* The rank whose data is broken. */
enum { ME = 1 };

struct mutant {
    const char *name;
    void (*harm)(struct fake *);
    const char *reported; /* must be in the message */
    int layout;           /* enum epa_layout, or -1: both */
};

static struct received *got(struct fake *f)
{
    return f->received[ME][0];
}

static struct message *row(struct fake *f, uint32_t e, uint32_t i)
{
    uint64_t entry = got(f)->start[e] + i;

    return &got(f)->message[f->footprint.u.moe.layout == EPA_LAYOUT_RANK ? got(f)->row[entry]
                                                                         : entry];
}

static void swap_sources(struct fake *f)
{
    struct epa_origin swap = row(f, 0, 0)->origin;

    row(f, 0, 0)->origin = row(f, 0, 1)->origin;
    row(f, 0, 1)->origin = swap;
}

static void swap_rows(struct fake *f)
{
    struct message swap = *row(f, 0, 0);

    *row(f, 0, 0) = *row(f, 1, got(f)->count[1] - 1);
    *row(f, 1, got(f)->count[1] - 1) = swap;
}

static void off_by_one_token(struct fake *f)
{
    row(f, 0, 2)->origin.token++;
}

static void unknown_rank(struct fake *f)
{
    row(f, 0, 2)->origin.rank = RANKS;
}

static void unknown_token(struct fake *f)
{
    row(f, 0, 2)->origin.token = TOKENS;
}

static void scale_off_by_an_ulp(struct fake *f)
{
    float *scale = &row(f, 0, 1)->scale[1];

    *scale = nextafterf(*scale, 1e9f);
}

static void scale_of_neighbour(struct fake *f)
{
    memcpy(row(f, 0, 1)->scale, row(f, 0, 0)->scale, sizeof(row(f, 0, 0)->scale));
}

static void one_bit(struct fake *f)
{
    ((uint8_t *)row(f, 0, 1)->data)[HIDDEN - 1] ^= 1;
}

static void short_row(struct fake *f)
{
    memset((uint8_t *)row(f, 0, 1)->data + HIDDEN / 2, 0, HIDDEN / 2);
}

/* Data of the iteration before, which the other slot still has. */
static void stale_row(struct fake *f)
{
    memcpy(row(f, 0, 0)->data, f->received[ME][1]->message[0].data, sizeof(row(f, 0, 0)->data));
}

static void stale_count(struct fake *f)
{
    got(f)->count[0]++;
    if (f->footprint.u.moe.layout == EPA_LAYOUT_RANK)
        f->moe[ME][0]->recv_entries++;
}

static void dropped_row(struct fake *f)
{
    got(f)->count[0]--;
}

static void next_slot(struct fake *f)
{
    got(f)->start[0]++;
}

static void row_twice(struct fake *f)
{
    *row(f, 0, 1) = *row(f, 0, 0);
}

static void entries_overlap(struct fake *f)
{
    got(f)->start[1] = got(f)->start[0];
}

static void start_far_out(struct fake *f)
{
    got(f)->start[1] = UINT64_MAX - 1;
}

static void no_rows(struct fake *f)
{
    f->moe[ME][0]->recv = NULL;
}

static void no_counts(struct fake *f)
{
    f->moe[ME][0]->recv_count = NULL;
}

static void too_many_rows(struct fake *f)
{
    f->moe[ME][0]->recv_rows = ROWS + 1;
}

static void rows_unlike_entries(struct fake *f)
{
    f->moe[ME][0]->recv_rows--;
}

static void too_few_entries(struct fake *f)
{
    f->moe[ME][0]->recv_entries = 1;
}

static void crooked_scales(struct fake *f)
{
    f->moe[ME][0]->recv_scale = (const void *)((const char *)f->moe[ME][0]->recv_scale + 2);
}

static void weight_of_neighbour(struct fake *f)
{
    got(f)->weight[0] = got(f)->weight[1];
}

static void row_far_out(struct fake *f)
{
    got(f)->row[1] = ROWS;
}

static void row_of_neighbour(struct fake *f)
{
    got(f)->row[0] = got(f)->row[1];
}

/* A token that both experts of this rank want stands in recv a second time. */
static void token_in_two_rows(struct fake *f)
{
    struct epa_moe *m = f->moe[ME][0];
    uint32_t i, j;

    for (i = 0; i < got(f)->count[0]; i++)
        for (j = 0; j < got(f)->count[1]; j++)
            if (row(f, 0, i) == row(f, 1, j)) {
                got(f)->message[m->recv_rows] = *row(f, 1, j);
                got(f)->row[got(f)->start[1] + j] = (uint32_t)m->recv_rows++;
                return;
            }
    fail_msg("no token chose both experts: another seed is needed");
}

static const struct mutant dispatch_mutants[] = {
    {"swapped source indices", swap_sources, "dispatch: expert 2, ", -1},
    {"swapped rows", swap_rows, "dispatch: ", -1},
    {"source index off by one", off_by_one_token, "dispatch: expert 2, ", -1},
    {"unknown rank", unknown_rank, "of rank 3, which does not exist", -1},
    {"unknown token", unknown_token, "origin is token 6 of rank", -1},
    {"scale off by an ulp", scale_off_by_an_ulp, "scale of group 1 is ", -1},
    {"scales of the neighbour", scale_of_neighbour, "scale of group 0 is ", -1},
    {"one bit in the last column", one_bit, "column 63 is 0x", -1},
    {"half a row", short_row, "column 32 is 0x00, should be 0x", -1},
    {"row of the iteration before", stale_row, "row 0, column ", -1},
    {"stale count", stale_count, "expert 2 (local 0) has recv_count ", -1},
    {"dropped row", dropped_row, "expert 2 (local 0) has recv_count ", -1},
    {"start off by one", next_slot, "dispatch: ", -1},
    {"a row twice", row_twice, "both are token ", -1},
    {"overlap", entries_overlap, "entries of experts 2 and 3 overlap at entry 0", -1},
    {"start far out", start_far_out, "plan() said at most 36", -1},
    {"no rows", no_rows, "dispatch: recv is NULL", -1},
    {"no counts", no_counts, "recv_count is NULL", -1},
    {"too many rows", too_many_rows, "37 rows and ", -1},
    {"rows unlike entries", rows_unlike_entries, "recv_entries is 36; layout expert",
     EPA_LAYOUT_EXPERT},
    {"too few entries", too_few_entries, "recv_entries is 1", -1},
    {"crooked scales", crooked_scales, "scales are not aligned to float32", -1},
    {"weight of the neighbour", weight_of_neighbour, "has weight ", EPA_LAYOUT_RANK},
    {"row far out", row_far_out, "entry 1 of expert 2 is in row 36; ", EPA_LAYOUT_RANK},
    {"row of the neighbour", row_of_neighbour, "has weight ", EPA_LAYOUT_RANK},
    {"token in two rows", token_in_two_rows, " and again in row ", EPA_LAYOUT_RANK},
};

static void dispatched(struct fake *f, enum epa_layout layout, enum epa_memory memory)
{
    struct epa_error err = {EPA_OK, ""};

    *f = fake_of(layout, EPA_FP8_E4M3);
    f->backend.memory = memory;
    assert_int_equal(fake_open(f, &err), EPA_OK);
    fake_inputs(f, 1, 8);
    fake_dispatch(f, 1);
    fake_inputs(f, 0, 9);
    fake_dispatch(f, 0);
}

static void harm_dispatch(const struct mutant *m, enum epa_layout layout, enum epa_memory memory)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;
    struct fake f;

    if (m->layout >= 0 && m->layout != (int)layout)
        return;
    dispatched(&f, layout, memory);
    assert_int_equal(op_moe_check_dispatch(f.op[ME], 0, &compared, &wrong, &err), EPA_OK);
    m->harm(&f);
    assert_int_equal(op_moe_check_dispatch(f.op[ME], 0, &compared, &wrong, &err), EPA_ERR_MISMATCH);
    if (strncmp(err.text, "rank 1, iteration 9, dispatch: ", 31) != 0 ||
        strstr(err.text, m->reported) == NULL)
        fail_msg("%s: \"%s\" lacks \"%s\"", m->name, err.text, m->reported);
    assert_true(wrong >= 1 && wrong <= compared);
    fake_close(&f);
}

TEST(each_harm_to_dispatch_is_reported)
{
    for (size_t i = 0; i < sizeof(dispatch_mutants) / sizeof(*dispatch_mutants); i++)
        for (uint32_t j = 0; j < 4; j++)
            harm_dispatch(&dispatch_mutants[i], j & 1 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT,
                          j & 2 ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST);
}

/* The number is that of the elements that differ: no more, no less. */
TEST(wrong_elements_are_counted)
{
    struct fake f;
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    dispatched(&f, EPA_LAYOUT_EXPERT, EPA_MEMORY_HOST);
    for (uint32_t h = 0; h < 5; h++)
        ((uint8_t *)row(&f, 0, 1)->data)[h * 7] ^= 0x11;
    row(&f, 1, 0)->scale[0] += 1;
    op_moe_check_dispatch(f.op[ME], 0, &compared, &wrong, &err);
    assert_int_equal(wrong, 6);
    fake_close(&f);
}

static uint16_t *out_of(struct fake *f, uint32_t token)
{
    return (uint16_t *)f->moe[ME][0]->out + (size_t)token * HIDDEN;
}

static void nothing_written(struct fake *f)
{
    memset(out_of(f, 2), 0xff, HIDDEN * sizeof(uint16_t));
}

static void last_bit(struct fake *f)
{
    out_of(f, 2)[HIDDEN - 1] ^= 1;
}

static void tokens_swapped(struct fake *f)
{
    uint16_t swap[HIDDEN];

    memcpy(swap, out_of(f, 0), sizeof(swap));
    memcpy(out_of(f, 0), out_of(f, 1), sizeof(swap));
    memcpy(out_of(f, 1), swap, sizeof(swap));
}

static void outputs_of_the_wrong_expert(struct fake *f)
{
    for (uint32_t r = 0; r < RANKS; r++)
        for (uint64_t i = 0; i < ROWS; i++)
            for (uint32_t h = 0; h < HIDDEN; h++) {
                uint16_t *y = &f->received[r][0]->y[i][h];

                *y = bf16_of_float(float_of_bf16(*y) * expert_factor(r * LOCAL + 1) /
                                   expert_factor(r * LOCAL));
            }
    fake_combine(f, 0, RIGHT);
}

static void output_of_the_neighbour(struct fake *f)
{
    uint32_t owner = 0;
    uint64_t entry = fake_entry(f, 0, ME, 0, 0, &owner);

    if (f->footprint.u.moe.layout == EPA_LAYOUT_RANK)
        entry = f->received[owner][0]->row[entry];
    memcpy(f->received[owner][0]->y[entry], f->received[owner][0]->y[entry == 0],
           HIDDEN * sizeof(uint16_t));
    fake_combine(f, 0, RIGHT);
}

static void weights_of_the_token_before(struct fake *f)
{
    float *weight = (float *)(uintptr_t)f->moe[ME][0]->weight;

    memcpy(weight + TOPK, weight, TOPK * sizeof(*weight));
    fake_combine(f, 0, RIGHT);
}

static void a_rank_forgotten(struct fake *f)
{
    memset(f->received[2][0]->y, 0, sizeof(f->received[2][0]->y));
    fake_combine(f, 0, RIGHT);
}

static const struct mutant combine_mutants[] = {
    {"nothing written", nothing_written, "token 2, column 0 was not written; should be ", -1},
    {"the last bit", last_bit, "token 2, column 63 is ", -1},
    {"tokens swapped", tokens_swapped, "token 0, column ", -1},
    {"expert outputs of the wrong expert", outputs_of_the_wrong_expert, "token 0, column ", -1},
    {"answer of the neighbour", output_of_the_neighbour, "token 0, column ", -1},
    {"weights of the token before", weights_of_the_token_before, "token 1, column ",
     EPA_LAYOUT_EXPERT},
    {"a rank forgotten", a_rank_forgotten, "column ", -1},
};

static void harm_combine(enum epa_sum sum)
{
    for (size_t i = 0; i < sizeof(combine_mutants) / sizeof(*combine_mutants); i++)
        for (int layout = EPA_LAYOUT_EXPERT; layout <= EPA_LAYOUT_RANK; layout++) {
            const struct mutant *m = &combine_mutants[i];
            struct epa_error err = {EPA_OK, ""};
            uint64_t compared = 0, wrong = 0;
            struct fake f;

            if (m->layout >= 0 && m->layout != layout)
                continue;
            f = fake_of(layout, EPA_BF16);
            f.footprint.u.moe.sum = sum;
            f.x.seed = 6;
            assert_int_equal(fake_open(&f, &err), EPA_OK);
            fake_inputs(&f, 0, 9);
            fake_dispatch(&f, 0);
            assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
            fake_combine(&f, 0, RIGHT);
            assert_int_equal(op_moe.check(f.op[ME], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err),
                             EPA_OK);
            m->harm(&f);
            assert_int_equal(op_moe.check(f.op[ME], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err),
                             EPA_ERR_MISMATCH);
            if (strncmp(err.text, "rank 1, iteration 9, combine: ", 30) != 0 ||
                strstr(err.text, m->reported) == NULL)
                fail_msg("%s: \"%s\" lacks \"%s\"", m->name, err.text, m->reported);
            assert_true(wrong >= 1 && wrong <= compared);
            fake_close(&f);
        }
}

TEST(each_harm_to_an_ordered_sum_is_reported)
{
    harm_combine(EPA_SUM_ORDERED);
}

TEST(each_harm_to_any_sum_is_reported)
{
    harm_combine(EPA_SUM_ANY);
}

/* bf16 hides most of what another order does to float32: it takes a million elements to
 * see. */
static uint64_t wrong_when_backwards(enum epa_sum sum)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    f.footprint.u.moe.sum = sum;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    for (uint64_t i = 0; i < 1000; i++) {
        fake_inputs(&f, 0, i);
        fake_dispatch(&f, 0);
        assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
        fake_combine(&f, 0, BACKWARDS);
        for (uint32_t r = 0; r < RANKS; r++)
            op_moe.check(f.op[r], EPA_STAGE_COMBINE, 0, &compared, &wrong, NULL);
    }
    fake_close(&f);
    return wrong;
}

TEST(another_order_is_wrong_where_it_is_laid_down_only)
{
    assert_in_range(wrong_when_backwards(EPA_SUM_ORDERED), 1, 500);
    assert_int_equal(wrong_when_backwards(EPA_SUM_ANY), 0);
}

TEST(a_token_that_is_not_there_must_not_be_written)
{
    static const uint32_t each[RANKS] = {TOKENS, 2, TOKENS};
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    f.x.tokens.kind = TOKENS_LIST;
    f.x.tokens.per_rank = (struct epa_u32_list){.item = each, .n = RANKS};
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 0);
    fake_dispatch(&f, 0);
    assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
    fake_combine(&f, 0, RIGHT);
    assert_int_equal(op_moe.check(f.op[ME], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err), EPA_OK);
    out_of(&f, 2)[5] = 0;
    assert_int_equal(op_moe.check(f.op[ME], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err),
                     EPA_ERR_MISMATCH);
    assert_string_equal(err.text, "rank 1, iteration 0, combine: token 2, column 5 was "
                                  "written, and there is no such token");
    assert_int_equal(wrong, 1);
    fake_close(&f);
}

/* Without a check before them (bench) they must not follow what points nowhere. */
TEST(experts_refuse_what_points_nowhere)
{
    struct fake f;
    struct epa_error err = {EPA_OK, ""};

    dispatched(&f, EPA_LAYOUT_RANK, EPA_MEMORY_HOST);
    row_far_out(&f);
    assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "is in row 36"));
    fake_close(&f);
}

TEST(experts_refuse_more_entries_than_choices_in_a_row)
{
    struct fake f;
    struct epa_error err = {EPA_OK, ""};

    dispatched(&f, EPA_LAYOUT_RANK, EPA_MEMORY_HOST);
    for (uint32_t i = 0; i < got(&f)->count[0]; i++)
        got(&f)->row[got(&f)->start[0] + i] = 0;
    assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "share row 0; a token has 3 choices"));
    fake_close(&f);
}
