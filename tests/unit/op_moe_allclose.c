/* What the contest's problem asks of op_moe: experts that multiply by 1 + their rank, whose
 * factors algorithms may use themselves, and a check with tolerances in place of bits. */
#include "test.h"

#include <unistd.h>

#include "fake_moe.h"
#include "op/moe/routing.h"

static struct fake allclose_of(enum epa_dtype dtype)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, dtype);

    f.x.moe.dtype = dtype;
    f.x.expert.kind = EXPERT_RANK;
    f.x.routing.weights = WEIGHTS_UNIFORM;
    f.x.verify.tolerance = TOLERANCE_ALLCLOSE;
    f.x.verify.rtol = 1e-2;
    f.x.verify.atol = 5e-3;
    f.footprint.u.moe.output_dtype = dtype;
    return f;
}

/* ---- factors ---- */

TEST(factors_are_those_of_experts_or_of_their_ranks)
{
    for (int kind = EXPERT_SCALE; kind <= EXPERT_RANK; kind++)
        for (uint32_t cuda = 0; cuda < 2; cuda++) {
            struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
            struct epa_error err = {EPA_OK, ""};

            f.x.expert.kind = kind;
            if (cuda != 0)
                f.backend.memory = EPA_MEMORY_CUDA;
            assert_int_equal(fake_open(&f, &err), EPA_OK);
            fake_inputs(&f, 0, 1);
            fake_inputs(&f, 1, 2);
            for (uint32_t r = 0; r < RANKS; r++) {
                const float *factor = fake_here(&f, f.moe[r][0]->expert_factor);

                assert_ptr_equal(f.moe[r][0]->expert_factor, f.moe[r][1]->expert_factor);
                for (uint32_t e = 0; e < EXPERTS; e++)
                    assert_true(factor[e] == (kind == EXPERT_RANK ? 1.0f + (float)(e / LOCAL)
                                                                  : expert_factor(e)));
            }
            fake_close(&f);
        }
}

TEST(factors_that_cannot_be_written_are_reported)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};

    f.backend.memory = EPA_MEMORY_CUDA;
    f.device.fail = true;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_SYSTEM);
    assert_string_equal(err.text, "fake: the device is gone");
    fake_close(&f);
}

static uint64_t wrong_combines(struct fake *f, uint32_t slot, struct epa_error *err)
{
    uint64_t compared = 0, wrong = 0;

    for (uint32_t r = 0; r < RANKS; r++)
        (void)op_moe.check(f->op[r], EPA_STAGE_COMBINE, slot, &compared, &wrong, err);
    assert_int_equal(compared, RANKS * TOKENS * HIDDEN);
    return wrong;
}

TEST(experts_that_multiply_by_rank_are_checked_to_the_bit)
{
    for (uint32_t layout = 0; layout < 2; layout++) {
        struct fake f = fake_of(layout == 0 ? EPA_LAYOUT_EXPERT : EPA_LAYOUT_RANK, EPA_FP8_E4M3);
        struct epa_error err = {EPA_OK, ""};

        f.x.expert.kind = EXPERT_RANK;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        for (uint64_t i = 0; i < 20; i++) {
            fake_inputs(&f, 0, i);
            fake_dispatch(&f, 0);
            assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
            fake_combine(&f, 0, RIGHT);
            assert_int_equal(wrong_combines(&f, 0, &err), 0);
        }
        f.x.expert.kind = EXPERT_SCALE; /* op_moe looks at the same experiment */
        assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
        fake_combine(&f, 0, RIGHT);
        f.x.expert.kind = EXPERT_RANK;
        assert_true(wrong_combines(&f, 0, NULL) > RANKS * TOKENS * HIDDEN / 2);
        fake_close(&f);
    }
}

/* ---- algorithms that do the experts' work ---- */

TEST(fused_outputs_are_the_algorithms_own)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};

    f.footprint.u.moe.fused = true;
    f.rows = FAKE_COMPACT;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 3);
    fake_dispatch(&f, 0);
    f.device.allocs = 0;
    assert_int_equal(fake_experts(&f, 0, &err), EPA_OK);
    assert_int_equal(f.device.allocs, 0);
    for (uint32_t r = 0; r < RANKS; r++) {
        struct received *got = f.received[r][0];
        const float *factor = f.moe[r][0]->expert_factor;

        assert_null(f.moe[r][0]->y);
        for (uint32_t e = 0; e < LOCAL; e++)
            for (uint64_t row = got->start[e]; row < got->start[e] + got->count[e]; row++)
                for (uint32_t h = 0; h < HIDDEN; h++)
                    got->y[row][h] = bf16_of_float(float_of_bf16(got->message[row].data[h]) *
                                                   factor[r * LOCAL + e]);
        f.moe[r][0]->y = got->y; /* for the fake's own combine */
    }
    fake_combine(&f, 0, RIGHT);
    assert_int_equal(wrong_combines(&f, 0, &err), 0);
    fake_close(&f);
}

TEST(fused_needs_layout_expert)
{
    struct fake f = fake_of(EPA_LAYOUT_RANK, EPA_BF16);
    struct epa_error err = {EPA_OK, ""};

    f.footprint.u.moe.fused = true;
    assert_int_equal(fake_open(&f, &err), EPA_ERR_UNSUPPORTED);
    assert_string_equal(err.text,
                        "the algorithm does the experts' work itself and delivers rows by "
                        "rank; it can do that by expert alone");
    fake_close(&f);
}

/* ---- the contest's reference ---- */

enum way { ONCE, STEPS_BY_EXPERT, STEPS_BY_K };

static float value_of(enum epa_dtype dtype, uint16_t bits)
{
    return dtype == EPA_F16 ? float_of_f16(bits) : float_of_bf16(bits);
}

static uint16_t bits_of(enum epa_dtype dtype, float value)
{
    return dtype == EPA_F16 ? f16_of_float(value) : bf16_of_float(value);
}

/* One element: the sum in double, or step by step as the contest's own code has it. */
static uint16_t element(enum epa_dtype dtype, float x, const int32_t *expert, const float *weight,
                        enum way way)
{
    int32_t order[TOPK] = {0, 1, 2}, swap;
    double exact = 0;
    float sum = 0;

    for (uint32_t i = 0; i < TOPK && way == STEPS_BY_EXPERT; i++)
        for (uint32_t j = i + 1; j < TOPK; j++)
            if (expert[order[j]] < expert[order[i]]) {
                swap = order[i];
                order[i] = order[j];
                order[j] = swap;
            }
    for (uint32_t i = 0; i < TOPK; i++) {
        uint32_t k = (uint32_t)order[i];
        float factor = 1.0f + (float)(expert[k] / LOCAL), term;

        exact += (double)x * (double)factor * (double)weight[k];
        term = value_of(dtype, bits_of(dtype, x * factor)) * weight[k];
        sum = value_of(dtype, bits_of(dtype, sum + term));
    }
    return bits_of(dtype, way == ONCE ? (float)exact : sum);
}

static uint16_t *out_of(const struct fake *f, uint32_t rank)
{
    return f->moe[rank][0]->out;
}

/* Outputs of an iteration, out of the inputs that the problem holds. */
static void fill_outputs(struct fake *f, uint64_t iteration, enum way way)
{
    fake_inputs(f, 0, iteration);
    for (uint32_t r = 0; r < RANKS; r++) {
        const struct epa_moe *m = f->moe[r][0];
        const uint16_t *x = m->x;

        for (uint32_t i = 0; i < m->tokens * HIDDEN; i++)
            out_of(f, r)[i] =
                element((enum epa_dtype)m->dtype, value_of((enum epa_dtype)m->dtype, x[i]),
                        m->expert + i / HIDDEN * TOPK, m->weight + i / HIDDEN * TOPK, way);
    }
}

TEST(sums_that_are_rounded_once_are_close_enough)
{
    struct fake f = allclose_of(EPA_F16);
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    for (uint64_t i = 0; i < 300; i++) {
        fill_outputs(&f, i, ONCE);
        assert_int_equal(wrong_combines(&f, 0, &err), 0);
    }
    fake_close(&f);
}

/* Without a tolerance nothing but the contest's own steps will do. */
TEST(the_reference_is_the_contests_step_by_step)
{
    static const enum epa_dtype dtypes[] = {EPA_BF16, EPA_F16};

    for (size_t d = 0; d < 2; d++) {
        struct fake f = allclose_of(dtypes[d]);
        struct epa_error err = {EPA_OK, ""};
        uint64_t once = 0, by_k = 0;

        f.x.verify.rtol = f.x.verify.atol = 0;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        for (uint64_t i = 0; i < 20; i++) {
            fill_outputs(&f, i, STEPS_BY_EXPERT);
            assert_int_equal(wrong_combines(&f, 0, &err), 0);
            fill_outputs(&f, i, ONCE);
            once += wrong_combines(&f, 0, NULL);
            fill_outputs(&f, i, STEPS_BY_K);
            by_k += wrong_combines(&f, 0, NULL);
        }
        assert_true(once > 1000);
        assert_true(by_k > 1000);
        fake_close(&f);
    }
}

/* |out - ref| <= atol + rtol * |ref|, each by itself and both. */
TEST(both_tolerances_count_and_no_more_than_they_say)
{
    static const double tolerances[][2] = {{0, 0.25}, {0.125, 0}, {0.125, 0.25}};

    for (size_t i = 0; i < sizeof(tolerances) / sizeof(tolerances[0]); i++) {
        struct fake f = allclose_of(EPA_F16);
        struct epa_error err = {EPA_OK, ""};
        double rtol = tolerances[i][0], atol = tolerances[i][1], right, room;

        f.x.verify.rtol = rtol;
        f.x.verify.atol = atol;
        assert_int_equal(fake_open(&f, &err), EPA_OK);
        fill_outputs(&f, 5, STEPS_BY_EXPERT);
        right = (double)float_of_f16(out_of(&f, 1)[70]);
        room = atol + rtol * fabs(right);
        out_of(&f, 1)[70] = f16_of_float((float)(right + room * 0.98));
        assert_int_equal(wrong_combines(&f, 0, &err), 0);
        out_of(&f, 1)[70] = f16_of_float((float)(right - room * 0.98));
        assert_int_equal(wrong_combines(&f, 0, &err), 0);
        out_of(&f, 1)[70] = f16_of_float((float)(right + room * 1.02));
        assert_int_equal(wrong_combines(&f, 0, &err), 1);
        assert_non_null(strstr(err.text, "rank 1, iteration 5, combine: token 1, column 6 is "));
        assert_non_null(strstr(err.text, " to "));
        fake_close(&f);
    }
}

TEST(what_is_no_number_is_wrong)
{
    static const uint16_t none[] = {0x7e00, 0x7c00, 0xfc00, 0xffff};

    for (size_t i = 0; i < sizeof(none) / sizeof(none[0]); i++) {
        struct fake f = allclose_of(EPA_F16);
        struct epa_error err = {EPA_OK, ""};

        assert_int_equal(fake_open(&f, &err), EPA_OK);
        fill_outputs(&f, 5, ONCE);
        out_of(&f, 0)[3] = none[i];
        assert_int_equal(wrong_combines(&f, 0, &err), 1);
        assert_non_null(strstr(err.text, "token 0, column 3 "));
        if (none[i] == 0xffff)
            assert_non_null(strstr(err.text, "was not written; should be "));
        fake_close(&f);
    }
}

/* Weights of a million are more than f16 holds. */
TEST(an_infinite_reference_wants_that_infinity)
{
    char path[] = "/tmp/contest-XXXXXX.jsonl";
    struct fake f = allclose_of(EPA_F16);
    struct epa_error err = {EPA_OK, ""};
    struct epa_world world = {.rank = 0, .size = RANKS};
    struct op_source *source;
    int fd = mkstemps(path, 6);
    uint64_t compared = 0, wrong = 0;
    const struct epa_moe *m;
    uint16_t *out;

    assert_true(fd >= 0);
    for (uint32_t t = 0; t < RANKS * TOKENS; t++)
        dprintf(fd, "{\"topk_ids\": [5, 3, 1], \"topk_weights\": [1e6, 0, 1e6]}\n");
    close(fd);
    f.x.routing.kind = ROUTING_FILE;
    f.x.routing.path = path;
    assert_int_equal(routing_open(&f.x, &source, &err), EPA_OK);
    assert_int_equal(
        op_moe.create(&(struct op_params){&f.x, &world, &f.footprint, source, &f.backend, 1, false},
                      &f.op[0], &err),
        EPA_OK);
    assert_int_equal(op_moe_inputs(f.op[0], 0, 0), EPA_OK);
    m = &op_moe_problem(f.op[0], 0)->u.moe;
    out = m->out;
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        out[i] = element(EPA_F16, float_of_f16(((const uint16_t *)m->x)[i]), m->expert, m->weight,
                         STEPS_BY_EXPERT);
    assert_int_equal(out[0] & 0x7fff, 0x7c00);
    assert_int_equal(op_moe.check(f.op[0], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err), EPA_OK);
    out[0] ^= 0x8000;                    /* the other infinity */
    out[1] = (out[1] & 0x8000) | 0x7bff; /* the largest that is finite */
    assert_int_equal(op_moe.check(f.op[0], EPA_STAGE_COMBINE, 0, &compared, &wrong, NULL),
                     EPA_ERR_MISMATCH);
    assert_int_equal(wrong, 2);
    op_moe_destroy(f.op[0]);
    routing_close(source);
    unlink(path);
}

TEST(another_tokens_output_is_wrong)
{
    struct fake f = allclose_of(EPA_F16);
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fill_outputs(&f, 5, ONCE);
    memcpy(out_of(&f, 2), out_of(&f, 2) + HIDDEN, HIDDEN * sizeof(uint16_t));
    assert_in_range(wrong_combines(&f, 0, &err), HIDDEN * 3 / 4, HIDDEN);
    fake_close(&f);
}
