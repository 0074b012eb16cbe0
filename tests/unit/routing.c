/* Tests of routing: the properties that each kind promises, windows of files and their distribution
 * over ranks, parsing of files of choices and hidden states, and messages for invalid files.
 * tests/cli/routing.case and results.py cover statistics of routing and generators fitted to
 * files. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "base/dtype.h"
#include "config/experiment.h"
#include "experiment/check_operation.h"
#include "op/moe/routing_file.h"
#include "op/moe/routing_source.h"

enum { TOKENS = 256, EXPERTS = 64, TOPK = 8 };

struct made {
    int32_t expert[TOKENS][TOPK];
    float weight[TOKENS][TOPK];
};

static struct problem_params problem_of_kind(int kind)
{
    return (struct problem_params){
        .ranks = 4,
        .seed = 1,
        .moe = {.max_tokens = TOKENS, .hidden = 64, .experts = EXPERTS, .topk = TOPK},
        .routing = {.kind = kind, .exponent = 1.2, .sigma = 1.5, .share = 0.5, .layer = UINT32_MAX},
    };
}

static void make_choices(const struct problem_params *x, uint32_t rank, uint64_t iteration,
                         struct made *out)
{
    routing_fill(x, NULL, rank, iteration, TOKENS, &out->expert[0][0], &out->weight[0][0]);
}

static void check_rows(const struct made *m)
{
    for (uint32_t t = 0; t < TOKENS; t++) {
        double sum = 0;
        uint32_t kept = 0;

        for (uint32_t k = 0; k < TOPK; k++) {
            assert_in_range(m->expert[t][k] + 1, 0, EXPERTS);
            if (m->expert[t][k] < 0) {
                assert_true(m->weight[t][k] == 0);
                continue;
            }
            kept++;
            sum += (double)m->weight[t][k];
            assert_true(m->weight[t][k] > 0);
            for (uint32_t j = 0; j < k; j++)
                assert_int_not_equal(m->expert[t][j], m->expert[t][k]);
        }
        assert_true(kept == 0 || fabs(sum - 1) < 1e-6);
    }
}

TEST(choices_are_distinct_in_range_and_weights_add_up_to_one)
{
    static struct made m;

    for (int kind = ROUTING_UNIFORM; kind < ROUTING_FILE; kind++) {
        struct problem_params x = problem_of_kind(kind);

        for (uint64_t i = 0; i < 4; i++) {
            make_choices(&x, (uint32_t)i, i, &m);
            check_rows(&m);
        }
    }
}

/* The number of tokens does not matter, either. */
TEST(choices_change_with_rank_iteration_and_seed_only)
{
    static struct made a, b;

    for (int kind = ROUTING_UNIFORM; kind < ROUTING_FILE; kind++) {
        struct problem_params x = problem_of_kind(kind);

        make_choices(&x, 1, 2, &a);
        make_choices(&x, 1, 2, &b);
        assert_memory_equal(&a, &b, sizeof(a));
        make_choices(&x, 1, 3, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
        make_choices(&x, 2, 2, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
        routing_fill(&x, NULL, 1, 2, 10, &b.expert[0][0], &b.weight[0][0]);
        assert_memory_equal(a.expert, b.expert, 10 * sizeof(a.expert[0]));
        x.seed = 2;
        make_choices(&x, 1, 2, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
    }
}

static uint32_t chosen(const struct made *m, int32_t expert)
{
    uint32_t n = 0;

    for (uint32_t t = 0; t < TOKENS; t++)
        for (uint32_t k = 0; k < TOPK; k++)
            n += m->expert[t][k] == expert;
    return n;
}

/* With topk 1 the draw is plain: counts follow (i + 1)^-exponent. */
TEST(zipf_follows_its_exponent)
{
    enum { N = 20000 };
    static int32_t expert[N];
    static float weight[N];
    struct problem_params x = problem_of_kind(ROUTING_ZIPF);
    uint32_t n[4] = {0}, top[4] = {0};

    x.moe.topk = 1;
    x.moe.experts = 4;
    x.moe.max_tokens = N;
    x.routing.exponent = 1;
    routing_fill(&x, NULL, 0, 0, N, expert, weight);
    for (uint32_t t = 0; t < N; t++)
        n[expert[t]]++;
    for (uint32_t i = 0; i < 4; i++)
        for (uint32_t e = 0, best = 0; e < 4; e++)
            if (n[e] >= best && (i == 0 || n[e] < top[i - 1])) {
                best = n[e];
                top[i] = best;
            }
    for (uint32_t i = 0; i < 4; i++)
        assert_true(fabs(top[i] / (N * 12.0 / 25 / (i + 1)) - 1) < 0.06);
}

TEST(hot_and_masked_keep_their_share)
{
    static const double shares[] = {0, 0.5, 1};
    static struct made m;

    for (uint32_t i = 0; i < 6; i++) {
        bool hot = i < 3;
        struct problem_params x = problem_of_kind(hot ? ROUTING_HOT : ROUTING_MASKED);
        double share = shares[i % 3], all = hot ? TOKENS : TOKENS * TOPK;
        uint32_t n = 0;

        x.routing.share = share;
        make_choices(&x, 0, 0, &m);
        for (uint32_t t = 0; t < TOKENS && hot; t++) /* the hot expert is the first choice */
            n += m.expert[t][0] == 0;
        n += hot ? 0 : chosen(&m, -1);
        assert_in_range(n, share < 1 ? all * share * 0.8 : all, all * share + all / 10);
    }
}

/* Stores the loads of all ranks together in `out` [EXPERTS]. */
static void loads(const struct problem_params *x, uint64_t iteration, uint64_t *out)
{
    struct made m;

    memset(out, 0, EXPERTS * sizeof(*out));
    for (uint32_t rank = 0; rank < x->ranks; rank++) {
        uint32_t tokens = routing_tokens_of(x, rank, iteration);

        make_choices(x, rank, iteration, &m);
        check_rows(&m);
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t k = 0; k < TOPK; k++)
                out[m.expert[t][k]]++;
    }
}

TEST(maxvio_is_exact_to_the_token)
{
    static const double violations[] = {0, 0.2, 1, 4, 7};
    struct problem_params x = problem_of_kind(ROUTING_MAXVIO);
    uint64_t load[EXPERTS], hot = 0;

    for (int i = 0; i < 10; i++) {
        double mean = 0;
        uint64_t most = 0, second = 0, tokens = 0;

        x.tokens.kind = i < 5 ? TOKENS_FULL : TOKENS_RANDOM;
        x.routing.violation = violations[i % 5];
        loads(&x, (uint64_t)i, load);
        for (uint32_t rank = 0; rank < x.ranks; rank++)
            tokens += routing_tokens_of(&x, rank, (uint64_t)i);
        mean = (double)(tokens * TOPK) / EXPERTS;
        for (uint32_t e = 0; e < EXPERTS; e++) {
            second = load[e] > most ? most : load[e] > second ? load[e] : second;
            most = load[e] > most ? load[e] : most;
            hot = i == 2 && load[e] == most ? e : hot;
        }
        assert_true(fabs((double)most - (1 + x.routing.violation) * mean) < 1);
        assert_true((double)second <= ceil(mean));
        if (i == 3) /* another iteration, the same expert */
            assert_int_equal(load[hot], most);
    }
}

TEST(tokens_are_random_from_the_least_to_the_most_or_listed)
{
    static const uint32_t each[] = {0, 5, 1000, 7};
    struct problem_params x = problem_of_kind(ROUTING_UNIFORM);
    uint32_t seen[6] = {0}, same = 0;

    x.moe.max_tokens = 5;
    x.tokens.kind = TOKENS_RANDOM;
    for (uint32_t least = 0; least <= 2; least += 2) {
        x.tokens.min = least;
        memset(seen, 0, sizeof(seen));
        for (uint64_t i = 0; i < 1000; i++) {
            uint32_t tokens = routing_tokens_of(&x, (uint32_t)(i % 4), i);

            assert_in_range(tokens, least, 5);
            seen[tokens]++;
            same += tokens == routing_tokens_of(&x, (uint32_t)(i % 4), i + 1);
        }
        for (uint32_t n = least; n <= 5; n++)
            assert_true(seen[n] > 50);
    }
    assert_true(same < 1000);
    x.moe.max_tokens = TOKENS;
    x.tokens.kind = TOKENS_LIST;
    x.tokens.per_rank = (struct epa_u32_list){.item = each, .n = 4};
    assert_int_equal(routing_tokens_of(&x, 0, 9), 0);
    assert_int_equal(routing_tokens_of(&x, 1, 9), 5);
    assert_int_equal(routing_tokens_of(&x, 2, 9), TOKENS); /* never more than max_tokens */
}

/* ---- files ---- */

static const struct epa_algorithm_plugin any_algorithm = {.op = EPA_OP_MOE};
static const struct experiment replaying = {
    .algorithm = {.plugin = &any_algorithm.plugin},
    .problem = {.ranks = 4, .moe = {.max_tokens = 8, .hidden = 64, .experts = 8, .topk = 2}}};
static const struct op_advice advice = {experiment_takes, &replaying};
static const struct routing_shape two_of_eight = {
    .topk = 2, .experts = 8, .layer = UINT32_MAX, .hidden = 64, .advice = &advice};

struct bytes {
    char data[4096];
    size_t n;
};

/* Returns a .npy file of version 1.0 with this dict and data. */
static struct bytes npy_of(const char *dict, const void *data, size_t bytes)
{
    struct bytes b = {.data = "\x93NUMPY\x01", .n = 10};
    size_t n = strlen(dict);

    b.data[8] = (char)(n & 0xff);
    b.data[9] = (char)(n >> 8);
    memcpy(b.data + b.n, dict, n);
    b.n += n;
    if (bytes != 0)
        memcpy(b.data + b.n, data, bytes);
    b.n += bytes;
    return b;
}

static void free_table(struct routing_table *t)
{
    free(t->expert);
    free(t->weight);
}

/* Writes a file with these bytes and returns its path. The caller unlinks it. */
static char *file_of(char *path, const void *data, size_t bytes)
{
    int fd = mkstemp(path);

    assert_int_equal(write(fd, data, bytes), bytes);
    close(fd);
    return path;
}

/* Five tokens replayed by 2 ranks with 2 tokens each. The choice of a token and its hidden state
 * are 10 + its number. The second pass skips the first three tokens; skipping all is an error. */
TEST(tokens_of_files_are_distributed_in_order_and_repeat)
{
    static const int32_t want[2][3][2][2] = {
        {{{10, 11}, {12, 13}}, {{14, 10}, {11, 12}}, {{13, 14}, {10, 11}}},
        {{{13, 14}, {13, 14}}, {{13, 14}, {13, 14}}, {{13, 14}, {13, 14}}}};
    static const float states[] = {10, 0, 11, 0, 12, 0, 13, 0, 14, 0};
    static const char lines[] = "{\"topk_ids\": [10]}\n{\"topk_ids\": [11]}\n{\"topk_ids\": [12]}\n"
                                "{\"topk_ids\": [13]}\n{\"topk_ids\": [14]}\n";
    struct bytes npy =
        npy_of("{'descr': '<f4', 'fortran_order': False, 'shape': (5, 2)}", states, sizeof(states));
    char path[] = "/tmp/epa2a-routing-XXXXXX", hidden[] = "/tmp/epa2a-hidden-XXXXXX";
    struct problem_params x = problem_of_kind(ROUTING_FILE);
    struct op_source *source;

    x.ranks = x.moe.max_tokens = x.moe.hidden = 2;
    x.moe.topk = 1;
    x.routing.path = file_of(path, lines, sizeof(lines) - 1);
    x.routing.hidden_states = file_of(hidden, npy.data, npy.n);
    for (uint32_t skip = 0; skip < 2; skip++) {
        x.routing.skip = 3 * skip;
        assert_int_equal(routing_open(&x, NULL, &source, NULL), EPA_OK);
        assert_int_equal(source->table.tokens, skip != 0 ? 2 : 5);
        assert_int_equal(routing_period(source, &x), skip != 0 ? 0 : 1);
        for (uint32_t i = 0; i < 12; i++) {
            uint32_t r = i / 2 % 2, t = i % 2;
            int32_t expert[2];
            float weight[2];

            routing_fill(&x, source, r, i / 4, 2, expert, weight);
            assert_int_equal(expert[t], want[skip][i / 4][r][t]);
            assert_true(weight[t] == 1);
            assert_int_equal(routing_hidden(source, &x, r, i / 4, t)[0],
                             bf16_of_float((float)expert[t]));
        }
        routing_close(source);
    }
    x.routing.skip = 5;
    assert_status(routing_open(&x, NULL, &source, test_error()), EPA_ERR_CONFIG,
                  "routing.skip is 5, but  ..  has 5 tokens: none would remain");
    unlink(path);
    unlink(hidden);
}

struct bad {
    const char *text, *message;
};

/* Checks the messages for invalid lines; the text after "no JSON: " is from jansson. */
static void assert_bad_lines(const struct routing_shape *shape, const struct bad *bad, size_t n)
{
    for (; n > 0; n--, bad++) {
        struct routing_table t;

        assert_status(
            routing_parse_jsonl("f", bad->text, strlen(bad->text), shape, &t, test_error()),
            EPA_ERR_CONFIG, bad->message);
    }
}

TEST(npy_of_every_integer_type_is_read)
{
    static const struct {
        const char *descr;
        uint32_t bytes;
    } types[] = {{"|u1", 1}, {"|i1", 1}, {"<i2", 2}, {"<u2", 2},
                 {"<i4", 4}, {"<u4", 4}, {"<i8", 8}, {"<u8", 8}};
    static const int32_t ids[] = {7, 0, 3, 5};

    for (size_t i = 0; i < sizeof(types) / sizeof(*types); i++) {
        unsigned char data[32] = {0};
        char dict[128];
        struct routing_table t;
        struct bytes b;

        for (uint32_t v = 0; v < 4; v++)
            data[v * types[i].bytes] = (unsigned char)ids[v];
        snprintf(dict, sizeof(dict),
                 "{'descr': '%s', 'fortran_order': False, 'shape': (2, 2), }          \n",
                 types[i].descr);
        b = npy_of(dict, data, (size_t)4 * types[i].bytes);
        assert_int_equal(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, NULL), EPA_OK);
        assert_int_equal(t.tokens, 2);
        assert_memory_equal(t.expert, ids, sizeof(ids));
        assert_true(t.weight[0] == 0.5f);
        free_table(&t);
    }
}

#define DICT(descr, order, shape) \
    "{'descr': '" descr "', 'fortran_order': " order ", 'shape': " shape "}"

TEST(bad_npy_headers_are_reported)
{
    static const struct bad bad[] = {
        {"", "f: offset 0: .. descr"},
        {"{'descr': '<i4'}", "f: offset 10: .. fortran_order"},
        {DICT("<i4", "True", "(1, 2)"), "f: offset 10: .. numpy.ascontiguousarray"},
        {DICT("<i4", "Maybe", "(1, 2)"), "f: offset 10: .. fortran_order"},
        {DICT(">i4", "False", "(1, 2)"), "f: offset 10: .. '<i4'"},
        {DICT("|O", "False", "(1, 2)"), "f: offset 10: .. integers or floats"},
        {DICT("<c8", "False", "(1, 2)"), "f: offset 10: .. integers or floats"},
        {DICT("|f1", "False", "(1, 2)"), "f: offset 10: .. integers or floats"},
        {"{'fortran_order': False, 'shape': (1,), 'descr': '", "f: offset 10: .. integers"},
        {"{'descr': [('a', '<i4')], 'fortran_order': False, 'shape': (1,)}",
         "f: offset 10: .. integers or floats"},
        {DICT("<i4", "False", "()"), "f: offset 10: a single number, not an array"},
        {DICT("<i4", "False", "(1, 2, 3, 4)"), "f: offset 10: more than 3 dimensions"},
        {DICT("<i4", "False", "(-1, 2)"), "f: offset 10: .. dimension"},
        {DICT("<i4", "False", "(0, 2)"), "f: offset 10: .. dimension"},
        {DICT("<i4", "False", "(1, 2"), "f: offset 10: .. dimension"},
        {DICT("<i4", "False", "(99999999999999999999, 2)"),
         "f: .. truncated: .. 2^63 bytes or more, the file has 94"},
        {DICT("<i4", "False", "(4294967296, 4294967296, 4294967296)"),
         "f: offset 97: truncated: .. 2^63 bytes or more, the file has 105"},
        {DICT("<i4", "False", "(2, 2)"),
         "f: offset 67: truncated: .. a file of 83 bytes, the file has 75"},
        {DICT("<i4", "False", "(1, 1)"),
         "f: offset 67: too long: .. a file of 71 bytes, the file has 75"},
        {DICT("|u1", "False", "(4, 2)"),
         "f: offset 68: token 0: .. 0 .. 0 .. 1"}, /* an expert twice */
        {DICT("<f4", "False", "(1, 2)"), "f: .. floats, where routing is"},
        {DICT("<i4", "False", "(2,)"), "f: .. one dimension; routing is"},
        {DICT("<i4", "False", "(2, 1)"), "f: the shape is [2, 1] .. transposed"},
        {DICT("<i2", "False", "(1, 4)"),
         "f: 4 choices for each token, moe.topk is 2: set moe.topk to 4"},
        {DICT("|u1", "False", "(1, 8)"), "f: 8 choices .. set moe.topk to 8"},
    };
    static const int32_t data[2] = {0, 1};

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct bytes b = npy_of(bad[i].text, data, sizeof(data));
        struct routing_table t;

        assert_status(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, test_error()),
                      EPA_ERR_CONFIG, bad[i].message);
    }
}

TEST(hidden_states_round_to_dtype)
{
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x3555};
    static const float floats[] = {1, -2, 65504, 0x1p-24f, -0.0f, 0.333251953125f};
    static const char f2[] = DICT("<f2", "False", "(2, 3)");
    static const char f4[] = DICT("<f4", "False", "(2, 3)");
    struct bytes b[] = {npy_of(f2, halves, sizeof(halves)), npy_of(f4, floats, sizeof(floats))};

    for (size_t i = 0; i < 4; i++) {
        bool f16 = i >= 2;
        const struct routing_shape shape = {.hidden = 3, .f16 = f16};
        struct hidden_table t;

        assert_int_equal(hidden_parse_npy("f", b[i % 2].data, b[i % 2].n, &shape, &t, NULL), 0);
        assert_int_equal(t.tokens, 2);
        for (uint32_t v = 0; v < 6; v++)
            assert_int_equal(t.x[v], f16 ? halves[v] : bf16_of_float(floats[v]));
        free(t.x);
    }
}

TEST(bad_hidden_states_are_reported)
{
    static const struct {
        const char *dict, *said;
        float data[2];
        bool f16;
    } bad[] = {
        {DICT("<i4", "False", "(1, 2)"), "f: hidden states are float16", {1, 1}, false},
        {DICT("<f8", "False", "(1,)"), "f: hidden states are float16", {1, 1}, false},
        {DICT("<f4", "False", "(2,)"), "f: hidden states are .. [tokens, hidden]", {1, 1}, false},
        {DICT(">f4", "False", "(1, 2)"), "f: offset 10: .. astype('<f4')", {1, 1}, false},
        {DICT("<f4", "False", "(2, 1)"),
         "f: rows of 1, moe.hidden is 2, and cannot be 1: moe.hidden .. 16",
         {1, 1},
         false},
        {DICT("<f4", "False", "(1, 2)"),
         "f: offset 71: .. 1 .. 0 .. 1e+30 .. moe.dtype: bf16",
         {1, NAN},
         false},
        {DICT("<f4", "False", "(1, 2)"),
         "71 .. 1 .. 0 .. 65505 .. 65504 .. moe.dtype: f16",
         {-65504, 65505},
         true},
    };

    for (size_t i = 0; i < LENGTH(bad); i++) {
        struct bytes b = npy_of(bad[i].dict, bad[i].data, sizeof(bad[i].data));
        const struct routing_shape shape = {.hidden = 2, .f16 = bad[i].f16, .advice = &advice};
        struct hidden_table t;

        assert_status(hidden_parse_npy("f", b.data, b.n, &shape, &t, test_error()), EPA_ERR_CONFIG,
                      bad[i].said);
    }
}

/* ---- JSON lines ---- */

TEST(json_lines_give_ids_and_weights)
{
    static const char text[] =
        "{\"type\": \"meta\", \"top_k\": 2, \"num_experts\": 8, \"model_id\": \"m\"}\n"
        "\n"
        "{\"type\": \"route\", \"layer\": 3, \"topk_ids\": [7, 0], "
        "\"topk_weights\": [0.75, 0.5]}\r\n"
        "{\"type\": \"note\", \"text\": \"passed over\"}\n"
        "{\"layer\": 3, \"topk_ids\": [-1, 4], \"topk_weights\": [0.25, 1]}\n"
        "{\"layer\": 3, \"topk_ids\": [1, -1]}"; /* no newline at the end */
    static const int32_t ids[] = {7, 0, -1, 4, 1, -1};
    static const float weights[] = {0.75f, 0.5f, 0, 1, 1, 0};
    struct routing_table t;

    assert_int_equal(routing_parse_jsonl("f", text, sizeof(text) - 1, &two_of_eight, &t, NULL), 0);
    assert_int_equal(t.tokens, 3);
    assert_memory_equal(t.expert, ids, sizeof(ids));
    assert_memory_equal(t.weight, weights, sizeof(weights));
    free_table(&t);
}

TEST(bad_json_lines_are_reported_line_and_column)
{
    static const struct bad bad[] = {
        {"{\"topk_ids\": [0, 1]}\n{\"topk_ids\": [0, 1\n", "f:2:18: no JSON: "},
        {"not json\n", "f:1:3: no JSON: "},
        {"[1, 2]\n", "f:1:1: each line should be a JSON object"},
        {"{\"type\": \"route\"}\n", "f:1:1: this line has no topk_ids"},
        {"{\"topk_ids\": 5}\n", "f:1:2: topk_ids should be a list of expert numbers"},
        {"{\"topk_ids\": [0, 1, 2]}\n", "f:1:2: 3 choices, moe.topk is 2: set moe.topk to 3"},
        {"{\"topk_ids\": [0, 1]}\n{\"topk_ids\": [0]}\n",
         "f:2:2: 1 choices, and each token has 2: write -1 for a dropped choice"},
        {"{\"topk_ids\": []}\n", "f:1:2: 0 choices .. 2: write -1"},
        {"{\"topk_ids\": [0, 1]}\n{\"topk_ids\": [0, 1, 2]}\n", "f:2:2: 3 choices .. 2: .. -1"},
        {"{\"topk_ids\": [0, 1, 2, 3, 4, 5, 6, 7, -1]}\n",
         "f:1:2: 9 choices, moe.topk is 2, and cannot be 9: moe.topk (9) .. moe.experts (8"},
        {"{\"topk_ids\": [[0, 1], [2, 3], [4, 5]]}\n", "f:1:15: a list of lists"},
        {"{\"topk_ids\": [0, 8]}\n", "f:1:18: .. 1 .. 8 .. moe.experts .. 8 .. 0 .. 7 .. -1"},
        {"{\"topk_ids\": [-2, 1]}\n", "f:1:15: .. 0 .. -2 .. moe.experts .. 8 .. 0 .. 7 .. -1"},
        {"{\"topk_ids\": [4294967296, 1]}\n",
         "f:1:15: .. 0 .. 4294967296 .. moe.experts .. 8 .. 0 .. 7 .. -1"},
        {"{\"topk_ids\": [3, 3]}\n", "f:1:18: expert 3 twice, as choices 0 and 1"},
        {"{\"topk_ids\": [3, \"4\"]}\n", "f:1:18: choice 1 is not a whole number"},
        {"{\"topk_ids\": [3, 4.0]}\n", "f:1:18: choice 1 is not a whole number"},
        {"{\"topk_ids\": [3, null]}\n", "f:1:18: choice 1 is not a whole number"},
        {"{\"topk_ids\": [3, 4], \"topk_weights\": [0.5]}\n", "f:1:22: .. topk_weights .. 2"},
        {"{\"topk_ids\": [3, 4], \"topk_weights\": [0.5, -0.5]}\n",
         "f:1:44: weight 1 is -0.5; weights are from 0 to 1e6"},
        {"{\"topk_ids\": [3, 4], \"topk_weights\": [0.5, 1e30]}\n",
         "f:1:44: .. 1 .. 1e+30 .. 0 .. 1e6"},
        {"{\"topk_ids\": [3, 4], \"topk_weights\": [0.5, \"x\"]}\n",
         "f:1:44: weight 1 is not a number"},
        {"{\"topk_ids\": [3, 4], \"topk_weights\": [0.5, NaN]}\n", "f:1:46: no JSON: "},
        {"{\"type\": \"meta\", \"top_k\": 4}\n",
         "f:1:18: .. top_k .. 4 .. moe.topk .. 2 .. moe.topk .. 4"},
        {"{\"type\": \"meta\", \"num_experts\": 60}\n",
         "f:1:18: .. num_experts .. 60 .. moe.experts .. 8 .. set moe.experts to 60"},
        {"{\"type\": \"meta\", \"num_experts\": 61}\n",
         "f:1:18: .. num_experts .. 61 .. cannot be 61: moe.experts (61) .. ranks (4"},
        {"{\"type\": \"meta\", \"num_experts\": 5000}\n",
         "f:1:18: .. cannot be 5000: moe.experts has to be 1 to 4096"},
        {"{\"type\": \"meta\", \"top_k\": \"2\"}\n", "f:1:18: top_k should be a whole number"},
        {"{\"layer\": 0, \"topk_ids\": [0, 1]}\n{\"layer\": 1, \"topk_ids\": [0, 1]}\n",
         "f:2:2: .. routing.layer"},
        {"{\"layer\": -1, \"topk_ids\": [0, 1]}\n", "f:1:2: .. layer should be a"},
        {"{\"topk_ids\": [0, 1], \"topk_ids\": [0, 1]}\n", "f:1:31: no JSON: "},
        {"\n\n", "f:2:1: .. topk_ids"},
        {"{\"type\": \"meta\"}\n", "f:1:1: .. topk_ids"},
    };

    assert_bad_lines(&two_of_eight, bad, LENGTH(bad));
}

TEST(one_layer_is_selected_and_a_missing_layer_is_reported)
{
    static const struct bad bad[] = {
        {"{\"layer\": 3, \"topk_ids\": [0, 1]}\n",
         "f: no token of layer 1; the first one is of layer 3"},
        {"{\"topk_ids\": [0, 1]}\n", "f:1:1: .. routing.layer .. 1"},
    };
    static const char text[] = "{\"layer\": 0, \"topk_ids\": [0, 1]}\n"
                               "{\"layer\": 1, \"topk_ids\": [2, 3]}\n"
                               "{\"layer\": 0, \"topk_ids\": [4, 5]}\n";
    struct routing_shape shape = {.topk = 2, .experts = 8, .layer = 1, .advice = &advice};
    struct routing_table t;

    assert_int_equal(routing_parse_jsonl("f", text, sizeof(text) - 1, &shape, &t, NULL), EPA_OK);
    assert_int_equal(t.tokens, 1);
    assert_int_equal(t.expert[0], 2);
    free_table(&t);
    assert_bad_lines(&shape, bad, LENGTH(bad));
}

TEST(a_line_without_end_is_refused)
{
    size_t n = (1 << 20) + 100;
    char *text = malloc(n);
    struct routing_table t;

    memset(text, '[', n);
    assert_status(routing_parse_jsonl("f", text, n, &two_of_eight, &t, test_error()),
                  EPA_ERR_CONFIG, "f:1:1: a line of more than 1 MiB; up to 1 MiB are read");
    free(text);
}
