/* The operation allgather: its check finds each way to be wrong and names the first wrong byte;
 * its traffic is counted from the rows of all ranks. */

#include "test.h"

#include "op/op.h"

enum { RANKS = 3, ROWS = 4, ROW_BYTES = 48, ME = 1, ITERATION = 6, CONTROL = 8 };

static enum epa_status take(struct epa_backend *b, size_t bytes, void **out)
{
    (void)b;
    *out = malloc(bytes);
    return *out != NULL ? EPA_OK : EPA_ERR_NOMEM;
}

static void give_back(struct epa_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static const struct epa_backend_ops ops = {.alloc = take, .free = give_back};

/* All ranks, and the output that ME should get of ITERATION. */
struct fixture {
    struct experiment x;
    struct epa_backend backend;
    struct op_rank *rank[RANKS];
    char out[RANKS * ROWS * ROW_BYTES];
};

static const uint32_t counts[RANKS] = {2, 4, 3};

static struct epa_allgather *problem_of(const struct fixture *f, uint32_t rank)
{
    return &op_allgather.problem(f->rank[rank], 0)->u.allgather;
}

static void make_inputs(struct fixture *f, uint64_t iteration)
{
    char *to = f->out;

    for (uint32_t r = 0; r < RANKS; r++) {
        assert_int_equal(op_allgather.inputs(f->rank[r], 0, iteration), EPA_OK);
        memcpy(to, problem_of(f, r)->in, counts[r] * ROW_BYTES);
        to += counts[r] * ROW_BYTES;
    }
}

static int set_up(void **state)
{
    struct fixture *f = calloc(1, sizeof(*f));
    struct epa_footprint footprint = {.u.allgather = {.control_bytes = CONTROL}};
    struct epa_error err = {EPA_OK, ""};

    assert_non_null(f);
    f->x = (struct experiment){.ranks = RANKS,
                               .seed = 9,
                               .tokens = {.kind = TOKENS_LIST, .per_rank = {counts, RANKS}},
                               .allgather = {.max_rows = ROWS, .row_bytes = ROW_BYTES}};
    f->backend = (struct epa_backend){.ops = &ops, .memory = EPA_MEMORY_HOST};
    for (uint32_t r = 0; r < RANKS; r++) {
        struct epa_world world = {.rank = r, .size = RANKS};
        struct op_params params = {.x = &f->x,
                                   .world = &world,
                                   .footprint = &footprint,
                                   .backend = &f->backend,
                                   .slots = 1};

        assert_int_equal(op_allgather.create(&params, &f->rank[r], &err), EPA_OK);
    }
    make_inputs(f, ITERATION);
    problem_of(f, ME)->out = f->out;
    *state = f;
    return 0;
}

static int tear_down(void **state)
{
    struct fixture *f = *state;

    for (uint32_t r = 0; r < RANKS; r++)
        op_allgather.destroy(f->rank[r]);
    free(f);
    return 0;
}

/* Checks; how many bytes are wrong, and what is said of the first. */
static uint64_t wrong_bytes(struct fixture *f, const char *words)
{
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;
    enum epa_status status =
        op_allgather.check(f->rank[ME], EPA_STAGE_WHOLE, 0, &compared, &wrong, &err);

    assert_int_equal(status, words == NULL ? EPA_OK : EPA_ERR_MISMATCH);
    assert_int_equal(err.status, status);
    if (words != NULL && strstr(err.text, words) == NULL)
        fail_msg("'%s' is not in '%s'", words, err.text);
    return wrong;
}

TEST_IN(set_up, tear_down, a_right_output_passes)
{
    struct fixture *f = *state;
    struct epa_error err = {EPA_OK, ""};
    uint64_t compared = 0, wrong = 0;

    assert_int_equal(op_allgather.check(f->rank[ME], EPA_STAGE_WHOLE, 0, &compared, &wrong, &err),
                     EPA_OK);
    assert_int_equal(compared, 9 * ROW_BYTES);
    assert_int_equal(wrong, 0);
}

TEST_IN(set_up, tear_down, a_wrong_byte_is_named)
{
    struct fixture *f = *state;

    f->out[(2 + 4 + 1) * ROW_BYTES + 7] ^= 0x10;
    assert_int_equal(wrong_bytes(f, "rank 1, iteration 6, allgather: byte 7 of row 1 of rank "
                                    "2 is 0x"),
                     1);
}

TEST_IN(set_up, tear_down, rows_of_the_iteration_before_are_wrong)
{
    struct fixture *f = *state;

    assert_int_equal(op_allgather.inputs(f->rank[0], 0, ITERATION - 1), EPA_OK);
    memcpy(f->out, problem_of(f, 0)->in, ROW_BYTES);
    assert_true(wrong_bytes(f, "row 0 of rank 0") > ROW_BYTES / 2);
}

TEST_IN(set_up, tear_down, swapped_rows_are_wrong)
{
    struct fixture *f = *state;
    char row[ROW_BYTES];

    memcpy(row, f->out + ROW_BYTES, ROW_BYTES); /* the last of rank 0, the first of rank 1 */
    memmove(f->out + ROW_BYTES, f->out + 2 * ROW_BYTES, ROW_BYTES);
    memcpy(f->out + 2 * ROW_BYTES, row, ROW_BYTES);
    assert_true(wrong_bytes(f, "row 1 of rank 0") > ROW_BYTES);
}

TEST_IN(set_up, tear_down, an_output_that_is_not_given_is_wrong)
{
    struct fixture *f = *state;

    problem_of(f, ME)->out = NULL;
    (void)wrong_bytes(f, "no output");
}

/* Own rows leave once for each other rank; the rows of all others are needed and arrive. */
TEST_IN(set_up, tear_down, traffic_is_of_the_rows_of_all_ranks)
{
    struct fixture *f = *state;
    struct op_traffic t = {.flops = 0};

    op_allgather.traffic(f->rank[ME], 0, &t);
    op_allgather.traffic(f->rank[ME], 0, &t); /* adds up */
    assert_int_equal(t.phase[0].needed, 2 * 5 * ROW_BYTES);
    assert_int_equal(t.phase[0].sent, 2 * (2 * 4 * ROW_BYTES + 2 * CONTROL));
    assert_int_equal(t.phase[0].received, 2 * (5 * ROW_BYTES + 2 * CONTROL));
    assert_int_equal(t.phase[0].least, 2 * 5 * ROW_BYTES);
}
