/* op_moe where the host cannot follow a pointer, and where rows have holes: only what
 * entries point to is copied, nothing else is written, and what stands in a hole is no
 * row. */

#include "test.h"

#include "fake_moe.h"

enum { ME = 1, HOLE = 0xa5a5 /* as fake_forget() leaves it */ };

static struct received *got(struct fake *f)
{
    return f->received[ME][0];
}

static bool by_rank(const struct fake *f)
{
    return f->footprint.u.moe.layout == EPA_LAYOUT_RANK;
}

/* The row of entry i of local expert e. */
static uint64_t row_of(struct fake *f, uint32_t e, uint32_t i)
{
    uint64_t entry = got(f)->start[e] + i;

    return by_rank(f) ? got(f)->row[entry] : entry;
}

static bool in_use(struct fake *f, uint64_t row)
{
    for (uint32_t e = 0; e < LOCAL; e++)
        for (uint32_t i = 0; i < got(f)->count[e]; i++)
            if (row_of(f, e, i) == row)
                return true;
    return false;
}

static void dispatched(struct fake *f, enum epa_layout layout, enum epa_memory memory,
                       enum fake_rows rows)
{
    struct epa_error err = {EPA_OK, ""};

    *f = fake_of(layout, EPA_FP8_E4M3);
    f->backend.memory = memory;
    f->rows = rows;
    assert_int_equal(fake_open(f, &err), EPA_OK);
    fake_inputs(f, 0, 9);
    fake_dispatch(f, 0);
    memset(&f->device, 0, sizeof(f->device));
}

static enum epa_status check(struct fake *f, struct epa_error *err)
{
    uint64_t compared = 0, wrong = 0;

    return op_moe_check_dispatch(f->op[ME], 0, &compared, &wrong, err);
}

/* ---- what is copied ---- */

/* Ranges that the entries in use are in: one where experts are one after the other. */
static uint32_t ranges(struct fake *f)
{
    uint32_t n = 0;

    for (uint32_t e = 0; e < LOCAL; e++)
        n += got(f)->count[e] != 0;
    return f->rows == FAKE_COMPACT || (by_rank(f) && f->rows != FAKE_HOLES) ? 1 : n;
}

TEST(only_rows_in_use_are_read)
{
    for (uint32_t rows = FAKE_AS_EVER; rows <= FAKE_HOLES; rows++) {
        struct epa_error err = {EPA_OK, ""};
        struct fake f;
        uint64_t n, lists = LOCAL * (sizeof(uint32_t) + sizeof(uint64_t));

        dispatched(&f, EPA_LAYOUT_EXPERT, EPA_MEMORY_CUDA, rows);
        n = got(&f)->count[0] + got(&f)->count[1];
        assert_int_equal(check(&f, &err), EPA_OK);
        /* Token, scales and origin are one message: not read three times. */
        assert_int_equal(f.device.reads, 2 + ranges(&f));
        assert_in_range(f.device.read_bytes, lists + n * (HIDDEN + 8),
                        lists + n * sizeof(struct message));
        fake_close(&f);
    }
}

TEST(lists_of_a_rank_are_read_where_entries_are)
{
    for (uint32_t rows = FAKE_AS_EVER; rows <= FAKE_HOLES; rows++) {
        struct epa_error err = {EPA_OK, ""};
        struct fake f;

        dispatched(&f, EPA_LAYOUT_RANK, EPA_MEMORY_CUDA, rows);
        assert_int_equal(check(&f, &err), EPA_OK);
        assert_int_equal(f.device.reads, 2 + 2 * ranges(&f) + 1);
        assert_true(f.device.read_bytes < RANKS * TOKENS * sizeof(struct message) +
                                              RANKS * TOKENS * TOPK * 8 + LOCAL * 12);
        fake_close(&f);
    }
}

TEST(parts_that_stand_apart_are_read_apart)
{
    struct fake f;
    struct epa_error err = {EPA_OK, ""};

    f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    f.backend.memory = EPA_MEMORY_CUDA;
    f.apart = true;
    assert_int_equal(fake_open(&f, &err), EPA_OK);
    fake_inputs(&f, 0, 9);
    fake_dispatch(&f, 0);
    f.device.reads = 0;
    assert_int_equal(check(&f, &err), EPA_OK);
    assert_int_equal(f.device.reads, 2 + 3 * ranges(&f));
    got(&f)->scale[got(&f)->start[1]][1] *= 2;
    assert_int_equal(check(&f, &err), EPA_ERR_MISMATCH);
    assert_non_null(strstr(err.text, "row 18, scale of group 1 is "));
    fake_close(&f);
}

TEST(parts_that_are_as_far_from_row_to_row_need_not_be_one_message)
{
    struct message *copy = malloc(ROWS * sizeof(*copy));
    struct epa_error err = {EPA_OK, ""};
    struct fake f;

    dispatched(&f, EPA_LAYOUT_EXPERT, EPA_MEMORY_CUDA, FAKE_AS_EVER);
    memcpy(copy, got(&f)->message, ROWS * sizeof(*copy));
    for (uint32_t i = 0; i < ROWS; i++)
        memset(got(&f)->message[i].scale, 0, sizeof(got(&f)->message[i].scale));
    f.moe[ME][0]->recv_scale = fake_there(&f, copy[0].scale);
    assert_int_equal(check(&f, &err), EPA_OK);
    assert_int_equal(f.device.reads, 2 + 3 * ranges(&f));
    fake_close(&f);
    free(copy);
}

/* ---- what is written ---- */

TEST(outputs_go_to_rows_in_use_only)
{
    for (uint32_t i = 0; i < 12; i++) {
        struct epa_error err = {EPA_OK, ""};
        enum epa_memory memory = i & 2 ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST;
        uint64_t used = 0;
        struct fake f;

        dispatched(&f, i & 1 ? EPA_LAYOUT_RANK : EPA_LAYOUT_EXPERT, memory, i / 4);
        assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_OK);
        for (uint64_t row = 0; row < ROWS; row++) {
            bool use = in_use(&f, row);

            used += use;
            for (uint32_t h = 0; h < HIDDEN; h++)
                if (!use)
                    assert_int_equal(got(&f)->y[row][h], HOLE);
            if (use) /* an expert output that is all HOLE would be a wonder */
                assert_int_not_equal(got(&f)->y[row][0], HOLE);
        }
        if (memory == EPA_MEMORY_CUDA)
            assert_int_equal(f.device.write_bytes, used * HIDDEN * sizeof(uint16_t));
        fake_close(&f);
    }
}

TEST(outputs_in_place_take_no_memory_of_the_device)
{
    for (uint32_t apart = 0; apart < 2; apart++) {
        struct epa_error err = {EPA_OK, ""};
        struct fake f;

        dispatched(&f, EPA_LAYOUT_EXPERT, EPA_MEMORY_CUDA, FAKE_AS_EVER);
        f.x.expert.output = apart ? OUTPUT_SEPARATE : OUTPUT_IN_PLACE;
        assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_OK);
        assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_OK);
        assert_int_equal(f.device.allocs, apart);
        assert_true((f.moe[ME][0]->y == f.moe[ME][0]->y_space) != apart);
        fake_close(&f);
    }
}

/* ---- windows ---- */

enum { MANY = 40000 }; /* rows: more than a window holds */

/* What one rank with one expert delivers to itself, every row but for each third. */
struct many {
    uint32_t count;
    uint64_t start;
    uint32_t row[MANY];
    float weight[MANY];
    struct epa_origin origin[2 * MANY];
    uint16_t y[2 * MANY][HIDDEN], x[2 * MANY][HIDDEN];
};

static uint32_t spread(const struct fake *f, uint32_t token)
{
    return by_rank(f) ? token + token / 2 : token;
}

static void deliver(struct fake *f, struct many *d, struct epa_moe *m)
{
    const uint16_t *x = fake_here(f, m->x);

    memset(d, 0xa5, sizeof(*d));
    d->count = MANY;
    d->start = 0;
    for (uint32_t t = 0; t < MANY; t++) {
        d->row[t] = spread(f, t);
        d->weight[t] = 1;
        d->origin[d->row[t]] = (struct epa_origin){0, t};
        memcpy(d->x[d->row[t]], x + (size_t)t * HIDDEN, sizeof(d->x[0]));
    }
    m->recv_rows = by_rank(f) ? 2 * MANY : MANY;
    m->recv_entries = MANY;
    m->recv_count = fake_there(f, &d->count);
    m->recv_start = fake_there(f, &d->start);
    m->recv_row = fake_there(f, d->row);
    m->recv_weight = fake_there(f, d->weight);
    m->recv = fake_there(f, d->x);
    m->origin = fake_there(f, d->origin);
    m->recv_stride = sizeof(d->x[0]);
    m->origin_stride = sizeof(d->origin[0]);
    m->y_space = fake_there(f, d->y);
}

static void expect_many(const struct fake *f, const struct many *d)
{
    float factor = expert_factor(0);

    for (uint32_t t = 0; t < MANY; t++)
        for (uint32_t h = 0; h < HIDDEN; h++)
            if (d->y[spread(f, t)][h] !=
                bf16_of_float(float_of_bf16(d->x[spread(f, t)][h]) * factor))
                fail_msg("token %u, column %u", t, h);
    for (uint32_t row = 2; by_rank(f) && row < MANY; row += 3)
        assert_int_equal(d->y[row][0], HOLE);
}

TEST(what_is_more_than_a_window_goes_through_it)
{
    struct many *d = malloc(sizeof(*d));

    for (int layout = EPA_LAYOUT_EXPERT; layout <= EPA_LAYOUT_RANK; layout++) {
        struct fake f = fake_of(layout, EPA_BF16);
        struct epa_world world = {.rank = 0, .size = 1};
        struct epa_error err = {EPA_OK, ""};
        uint64_t compared = 0, wrong = 0;
        struct op_rank *op = NULL;

        f.backend.memory = EPA_MEMORY_CUDA;
        f.x.ranks = f.x.moe.experts = f.x.moe.topk = 1;
        f.x.moe.max_tokens = MANY;
        f.footprint.u.moe.recv_rows = 2 * MANY;
        f.footprint.u.moe.recv_entries = MANY;
        assert_int_equal(op_moe.create(&(struct op_params){&f.x, &world, &f.footprint, NULL,
                                                           &f.backend, 1, false},
                                       &op, &err),
                         EPA_OK);
        assert_int_equal(op_moe_inputs(op, 0, 0), EPA_OK);
        deliver(&f, d, &op_moe_problem(op, 0)->u.moe);
        assert_int_equal(op_moe_check_dispatch(op, 0, &compared, &wrong, &err), EPA_OK);
        assert_int_equal(op_moe_experts(op, 0, &err), EPA_OK);
        expect_many(&f, d);
        op_moe_destroy(op);
    }
    free(d);
}

/* ---- holes ---- */

/* A row that no entry is in. */
static uint32_t hole(struct fake *f)
{
    for (uint32_t row = 0; row < RANKS * TOKENS; row++)
        if (!in_use(f, row))
            return row;
    fail_msg("no hole: another seed is needed");
    return 0;
}

/* Entry 0 of the first expert is in a hole. */
static void nothing_there(struct fake *f)
{
    got(f)->row[got(f)->start[0]] = hole(f);
}

/* The row was written beside where its entry says. */
static void misplaced(struct fake *f)
{
    struct message *right = &got(f)->message[row_of(f, 0, 0)];

    got(f)->message[hole(f)] = *right;
    memset(right, 0xa5, sizeof(*right));
}

/* What stood there an iteration ago still looks like a row. */
static void stale(struct fake *f)
{
    uint32_t row = hole(f);

    got(f)->message[row] = got(f)->message[row_of(f, 0, 0)];
    ((uint8_t *)got(f)->message[row].data)[3] ^= 1;
    got(f)->row[got(f)->start[0]] = row;
}

/* Both are told that they are the token of the hole. */
static void pointed_to_twice(struct fake *f)
{
    uint32_t row = hole(f);

    got(f)->message[row] = got(f)->message[row_of(f, 0, 0)];
    got(f)->row[got(f)->start[0]] = row;
    got(f)->row[got(f)->start[0] + 1] = row;
}

static void entry_lost(struct fake *f)
{
    got(f)->count[1]--;
}

static void list_ends_in_a_gap(struct fake *f)
{
    got(f)->count[0]++;
}

static void strides_forgotten(struct fake *f)
{
    struct epa_moe *m = f->moe[ME][0];

    m->recv_stride = m->scale_stride = m->origin_stride = 0;
}

struct mutant {
    const char *name;
    void (*harm)(struct fake *);
    const char *reported;
};

static const struct mutant mutants[] = {
    {"nothing there", nothing_there, "origin is token 2779096485 of rank 2779096485"},
    {"misplaced", misplaced, "origin is token 2779096485 of rank 2779096485"},
    {"stale", stale, "column 3 is 0x"},
    {"pointed to twice", pointed_to_twice, "both are token "},
    {"an entry lost", entry_lost, "expert 3 (local 1) has recv_count "},
    {"strides forgotten", strides_forgotten, "both are token "},
    {"the list ends in a gap", list_ends_in_a_gap, "is in row 2779096485; there are 18"},
};

TEST(what_stands_in_a_hole_is_no_row)
{
    for (size_t i = 0; i < sizeof(mutants) / sizeof(*mutants); i++)
        for (uint32_t device = 0; device < 2; device++) {
            struct epa_error err = {EPA_OK, ""};
            struct fake f;

            dispatched(&f, EPA_LAYOUT_RANK, device ? EPA_MEMORY_CUDA : EPA_MEMORY_HOST, FAKE_HOLES);
            assert_int_equal(check(&f, &err), EPA_OK);
            mutants[i].harm(&f);
            assert_int_equal(check(&f, &err), EPA_ERR_MISMATCH);
            if (strstr(err.text, mutants[i].reported) == NULL)
                fail_msg("%s: \"%s\" lacks \"%s\"", mutants[i].name, err.text, mutants[i].reported);
            fake_close(&f);
        }
}

/* ---- failures, memory ---- */

TEST(a_device_that_fails_is_reported)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;
    struct fake f;

    dispatched(&f, EPA_LAYOUT_RANK, EPA_MEMORY_CUDA, FAKE_HOLES);
    f.device.fail = true;
    assert_int_equal(check(&f, &err), EPA_ERR_SYSTEM);
    assert_string_equal(err.text, "rank 1, iteration 9, dispatch: fake: the device is gone");
    err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(op_moe_experts(f.op[ME], 0, &err), EPA_ERR_SYSTEM);
    assert_non_null(strstr(err.text, "the device is gone"));
    err = (struct epa_error){EPA_OK, ""};
    assert_int_equal(op_moe.check(f.op[ME], EPA_STAGE_COMBINE, 0, &compared, &wrong, &err),
                     EPA_ERR_SYSTEM);
    assert_non_null(strstr(err.text, "the device is gone"));
    assert_int_equal(op_moe_inputs(f.op[ME], 0, 10), EPA_ERR_SYSTEM);
    fake_close(&f);
}

/* Gaps are room on the device; what the host holds of it is what can be in use. */
TEST(memory_of_the_host_does_not_grow_with_gaps)
{
    struct fake f = fake_of(EPA_LAYOUT_EXPERT, EPA_FP8_E4M3);
    uint64_t checks, bench;

    f.x.moe.max_tokens = 4096;
    f.x.moe.hidden = 7168;
    f.footprint.u.moe.dispatch_row_bytes = 7680;
    f.footprint.u.moe.recv_rows = f.footprint.u.moe.recv_entries = 1u << 20;
    checks = op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_CUDA, 1, true);
    bench = op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_CUDA, 1, false);
    f.footprint.u.moe.recv_rows = f.footprint.u.moe.recv_entries = 1u << 24;
    assert_int_equal(op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_CUDA, 1, true), checks);
    f.x.expert.output = OUTPUT_SEPARATE; /* which the device has room for */
    assert_int_equal(op_moe_bytes(&f.x, &f.footprint, EPA_MEMORY_CUDA, 1, true), checks);
    /* 2 of the 3 choices of 3 x 4096 tokens; and without checks a few windows only. */
    assert_true(checks > 2ull * 3 * 4096 * 7680);
    assert_true(bench < (2ull * 4096 * 7168 * 2) + (16 << 20));
}
