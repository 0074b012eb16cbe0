/* Routing and hidden states from files: what is read, and what each bad file is told. */
#include "test.h"

#include <sys/stat.h>
#include <unistd.h>

#include "base/dtype.h"
#include "config/experiment.h"
#include "op/moe/routing.h"

static const struct routing_shape two_of_eight = {.topk = 2, .experts = 8, .layer = UINT32_MAX};

struct bytes {
    char data[4096];
    size_t n;
};

/* A .npy file of version 1.0 with this dict and data. */
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

struct bad {
    const char *text, *message;
};

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
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        struct bytes b;

        for (uint32_t v = 0; v < 4; v++)
            data[v * types[i].bytes] = (unsigned char)ids[v];
        snprintf(dict, sizeof(dict),
                 "{'descr': '%s', 'fortran_order': False, 'shape': (2, 2), }          \n",
                 types[i].descr);
        b = npy_of(dict, data, (size_t)4 * types[i].bytes);
        assert_int_equal(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, &err), EPA_OK);
        assert_int_equal(t.tokens, 2);
        assert_memory_equal(t.expert, ids, sizeof(ids));
        assert_true(t.weight[0] == 0.5f);
        free_table(&t);
    }
}

TEST(npy_of_three_dimensions_gives_the_layer_asked_for)
{
    static const int16_t data[2][3][2] = {{{0, 1}, {2, 3}, {4, 5}}, {{5, 4}, {-1, 2}, {1, 0}}};
    static const int32_t ids[] = {2, 3, -1, 2};
    static const float weights[] = {0.5f, 0.5f, 0, 1};
    struct bytes b =
        npy_of("{'shape': (2, 3, 2), 'descr': '<i2', 'fortran_order': False}", data, sizeof(data));
    struct routing_shape shape = {.topk = 2, .experts = 8, .layer = 1};
    struct epa_error err = {EPA_OK, ""};
    struct routing_table t;

    assert_int_equal(routing_parse_npy("f", b.data, b.n, &shape, &t, &err), EPA_OK);
    assert_memory_equal(t.expert, ids, sizeof(ids));
    assert_memory_equal(t.weight, weights, sizeof(weights));
    free_table(&t);
    shape.layer = 3;
    assert_int_equal(routing_parse_npy("f", b.data, b.n, &shape, &t, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "f: routing.layer is 3, the file has 3 layers, from 0");
    err.status = EPA_OK;
    shape.layer = UINT32_MAX;
    assert_int_equal(routing_parse_npy("f", b.data, b.n, &shape, &t, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "f: has 3 layers; say which: routing.layer from 0 to 2");
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
        {DICT("<i4", "False", "(99999999999999999999, 2)"), "f: .. truncated: 8 bytes of"},
        {DICT("<i4", "False", "(4294967296, 4294967296, 4294967296)"),
         "f: offset 97: truncated: 8 bytes of"},
        {DICT("<i4", "False", "(2, 2)"), "f: offset 67: truncated: 8 bytes of"},
        {DICT("<i4", "False", "(1, 1)"), "f: offset 67: too long: 8 bytes of"},
        {DICT("<f4", "False", "(1, 2)"), "f: .. floats, where routing is"},
        {DICT("<i4", "False", "(2,)"), "f: .. one dimension; routing is"},
    };
    static const int32_t data[2] = {0, 1};

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct bytes b = npy_of(bad[i].text, data, sizeof(data));
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        enum epa_status status = routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, &err);

        assert_words(err.text, bad[i].message);
        assert_int_equal(status, EPA_ERR_CONFIG);
    }
}

TEST(a_bad_choice_in_npy_is_reported_token_and_offset)
{
    static const int32_t out_of_range[] = {0, 1, 2, 8}, twice[] = {0, 1, 2, 2};
    static const char dict[] = DICT("<i4", "False", "(2, 2)");
    struct bytes b = npy_of(dict, out_of_range, sizeof(out_of_range));
    struct epa_error err = {EPA_OK, ""};
    struct routing_table t;

    assert_int_equal(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "79 .. token 1 .. 8 .. moe.experts .. 8 .. 0 .. 7 .. -1");
    err.status = EPA_OK;
    b = npy_of(dict, twice, sizeof(twice));
    assert_int_equal(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "79 .. token 1 .. 2 .. 0 .. 1");
}

TEST(npy_cut_off_anywhere_is_refused)
{
    static const int32_t data[] = {0, 1, 2, 3};
    struct bytes b = npy_of(DICT("<i4", "False", "(2, 2)"), data, sizeof(data));
    struct routing_table t;

    for (size_t n = 0; n < b.n; n++) {
        struct epa_error err = {EPA_OK, ""};
        char *exact = malloc(n + 1); /* so that a sanitizer sees a read past the end */

        memcpy(exact, b.data, n);
        assert_int_equal(routing_parse_npy("f", exact, n, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
        assert_non_null(strstr(err.text, "f: offset "));
        free(exact);
    }
}

TEST(a_huge_header_is_refused_by_its_length)
{
    struct bytes b = {.data = "\x93NUMPY\x02\x00\xff\xff\xff\x7f{", .n = 13};
    struct epa_error err = {EPA_OK, ""};
    struct routing_table t;

    assert_int_equal(routing_parse_npy("f", b.data, b.n, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "f: offset .. 16384");
}

TEST(hidden_states_round_to_dtype)
{
    static const uint16_t halves[] = {0x3c00, 0xc000, 0x7bff, 0x0001, 0x8000, 0x3555};
    static const float floats[] = {1, -2, 65504, 0x1p-24f, -0.0f, 0.333251953125f};
    static const char f2[] = DICT("<f2", "False", "(2, 3)");
    static const char f4[] = DICT("<f4", "False", "(2, 3)");
    struct bytes b[] = {npy_of(f2, halves, sizeof(halves)), npy_of(f4, floats, sizeof(floats))};

    for (size_t i = 0; i < 4; i++) {
        struct epa_error err = {EPA_OK, ""};
        bool f16 = i >= 2;
        struct hidden_table t;

        assert_int_equal(hidden_parse_npy("f", b[i % 2].data, b[i % 2].n, 3, f16, &t, &err),
                         EPA_OK);
        assert_int_equal(t.tokens, 2);
        for (uint32_t v = 0; v < 6; v++)
            assert_int_equal(t.x[v], f16 ? halves[v] : bf16_of_float(floats[v]));
        free(t.x);
    }
}

TEST(bad_hidden_states_are_reported)
{
    static const struct bad bad[] = {
        {DICT("<i4", "False", "(1, 2)"), "f: hidden states are float16"},
        {DICT("<f8", "False", "(1,)"), "f: hidden states are float16"},
        {DICT("<f4", "False", "(2,)"), "f: hidden states are .. [tokens, hidden]"},
        {DICT("<f4", "False", "(2, 1)"), "f: rows of 1, moe.hidden is 2: set moe.hidden to 1"},
        {DICT("<f4", "False", "(1, 2)"), "f: offset 71: .. 1 .. 0 .. 1e+30 .. moe.dtype: bf16"},
    };
    const float data[2] = {1, NAN};

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct bytes b = npy_of(bad[i].text, data, sizeof(data));
        struct epa_error err = {EPA_OK, ""};
        struct hidden_table t;

        assert_int_equal(hidden_parse_npy("f", b.data, b.n, 2, false, &t, &err), EPA_ERR_CONFIG);
        assert_words(err.text, bad[i].message);
    }
}

TEST(hidden_states_past_f16_are_reported)
{
    const float data[2] = {-65504, 65505};
    struct bytes b = npy_of(DICT("<f4", "False", "(1, 2)"), data, sizeof(data));
    struct epa_error err = {EPA_OK, ""};
    struct hidden_table t;

    assert_int_equal(hidden_parse_npy("f", b.data, b.n, 2, true, &t, &err), EPA_ERR_CONFIG);
    assert_words(err.text, "71 .. 1 .. 0 .. 65505 .. 65504 .. moe.dtype: f16");
}

TEST(hidden_states_wrap_by_themselves)
{
    static const float data[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    struct bytes b = npy_of(DICT("<f4", "False", "(3, 2)"), data, sizeof(data));
    char path[] = "/tmp/epa2a-hidden-XXXXXX";
    struct experiment x = {
        .ranks = 2,
        .moe = {.max_tokens = 2, .hidden = 2, .experts = 8, .topk = 2},
        .routing = {.kind = ROUTING_UNIFORM, .hidden_states = path, .layer = UINT32_MAX},
    };
    struct epa_error err = {EPA_OK, ""};
    struct op_source *source;
    FILE *f = fdopen(mkstemp(path), "w");

    fwrite(b.data, 1, b.n, f);
    fclose(f);
    assert_int_equal(routing_open(&x, &source, &err), EPA_OK);
    assert_int_equal(routing_tokens(source), 0);
    assert_int_equal(routing_period(source, &x), 0);
    assert_int_equal(routing_hidden(source, &x, 0, 0, 1)[0], bf16_of_float(3));
    assert_int_equal(routing_hidden(source, &x, 1, 0, 1)[0], bf16_of_float(1));
    assert_int_equal(routing_hidden(source, &x, 0, 1, 0)[1], bf16_of_float(4));
    routing_close(source);
    unlink(path);
}

TEST(hidden_states_are_skipped_with_their_tokens)
{
    static const float data[3][2] = {{1, 2}, {3, 4}, {5, 6}};
    struct bytes b = npy_of(DICT("<f4", "False", "(3, 2)"), data, sizeof(data));
    char path[] = "/tmp/epa2a-hidden-XXXXXX", routes[] = "/tmp/epa2a-routing-XXXXXX";
    struct experiment x = {
        .ranks = 1,
        .moe = {.max_tokens = 1, .hidden = 2, .experts = 8, .topk = 1},
        .routing = {.kind = ROUTING_FILE,
                    .path = routes,
                    .hidden_states = path,
                    .skip = 1,
                    .layer = UINT32_MAX},
    };
    struct epa_error err = {EPA_OK, ""};
    struct op_source *source;
    FILE *f = fdopen(mkstemp(path), "w");

    fwrite(b.data, 1, b.n, f);
    fclose(f);
    f = fdopen(mkstemp(routes), "w");
    fputs("{\"topk_ids\": [1]}\n{\"topk_ids\": [2]}\n{\"topk_ids\": [3]}\n", f);
    fclose(f);
    assert_int_equal(routing_open(&x, &source, &err), EPA_OK);
    assert_int_equal(routing_period(source, &x), 2);
    assert_int_equal(routing_hidden(source, &x, 0, 0, 0)[0], bf16_of_float(3));
    assert_int_equal(routing_hidden(source, &x, 0, 1, 0)[1], bf16_of_float(6));
    routing_close(source);
    unlink(path);
    unlink(routes);
}

TEST(files_that_are_none_are_reported)
{
    char folder[] = "/tmp/epa2a-files-XXXXXX", path[128], want[256];
    struct epa_error err = {EPA_OK, ""};
    struct routing_table t;
    FILE *f;

    assert_non_null(mkdtemp(folder));
    assert_int_equal(routing_read(folder, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    snprintf(want, sizeof(want), "%s: Is a directory", folder);
    assert_words(err.text, want);

    snprintf(path, sizeof(path), "%s/fifo", folder);
    assert_int_equal(mkfifo(path, 0600), 0);
    err.status = EPA_OK;
    assert_int_equal(routing_read(path, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    unlink(path);

    snprintf(path, sizeof(path), "%s/none", folder);
    err.status = EPA_OK;
    assert_int_equal(routing_read(path, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    snprintf(want, sizeof(want), "%s: No such file or directory", path);
    assert_words(err.text, want);

    snprintf(path, sizeof(path), "%s/empty.npy", folder);
    fclose(fopen(path, "w"));
    err.status = EPA_OK;
    assert_int_equal(routing_read(path, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    snprintf(want, sizeof(want), "%s:1:1: the file is empty", path);
    assert_words(err.text, want);

    f = fopen(path, "w");
    fputs("{\"topk_ids\": [0, 1]}\n", f); /* the name says .npy */
    fclose(f);
    err.status = EPA_OK;
    assert_int_equal(routing_read(path, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    snprintf(want, sizeof(want), "%s: offset 0: no .npy file: it should begin with \\x93NUMPY",
             path);
    assert_words(err.text, want);
    unlink(path);
    rmdir(folder);
}

/* Logs of real models, where the tester has them. */
TEST(captured_logs_are_read)
{
    static const struct {
        const char *file;
        struct routing_shape shape;
        uint64_t tokens;
    } logs[] = {
        {"olmoe-1b-7b-layer0.jsonl", {8, 64, UINT32_MAX}, 6519},
        {"qwen1.5-moe-a2.7b-layer12.jsonl", {4, 60, 12}, 12805},
    };
    const char *folder = getenv("EPA2A_ROUTING_DATA");

    if (folder == NULL)
        skip();
    for (size_t i = 0; i < 2; i++) {
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        char path[512];

        snprintf(path, sizeof(path), "%s/%s", folder, logs[i].file);
        assert_int_equal(routing_read(path, &logs[i].shape, &t, &err), EPA_OK);
        assert_int_equal(t.tokens, logs[i].tokens);
        free_table(&t);
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
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(routing_parse_jsonl("f", text, sizeof(text) - 1, &two_of_eight, &t, &err),
                     EPA_OK);
    assert_int_equal(t.tokens, 3);
    assert_memory_equal(t.expert, ids, sizeof(ids));
    assert_memory_equal(t.weight, weights, sizeof(weights));
    free_table(&t);
}

TEST(one_layer_of_several_is_picked)
{
    static const char text[] = "{\"layer\": 0, \"topk_ids\": [0, 1]}\n"
                               "{\"layer\": 1, \"topk_ids\": [2, 3]}\n"
                               "{\"layer\": 0, \"topk_ids\": [4, 5]}\n";
    struct routing_shape shape = {.topk = 2, .experts = 8, .layer = 1};
    struct routing_table t;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(routing_parse_jsonl("f", text, sizeof(text) - 1, &shape, &t, &err), EPA_OK);
    assert_int_equal(t.tokens, 1);
    assert_int_equal(t.expert[0], 2);
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
         "f:2:2: 1 choices, moe.topk is 2: set moe.topk to 1"},
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
         "f:1:18: .. num_experts .. 60 .. moe.experts .. 8 .. moe.experts .. 60"},
        {"{\"type\": \"meta\", \"top_k\": \"2\"}\n", "f:1:18: top_k should be a whole number"},
        {"{\"layer\": 0, \"topk_ids\": [0, 1]}\n{\"layer\": 1, \"topk_ids\": [0, 1]}\n",
         "f:2:2: .. routing.layer"},
        {"{\"layer\": -1, \"topk_ids\": [0, 1]}\n", "f:1:2: .. layer should be a"},
        {"{\"topk_ids\": [0, 1], \"topk_ids\": [0, 1]}\n", "f:1:31: no JSON: "},
        {"\n\n", "f:2:1: .. topk_ids"},
        {"{\"type\": \"meta\"}\n", "f:1:1: .. topk_ids"},
    };

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;
        enum epa_status status =
            routing_parse_jsonl("f", bad[i].text, strlen(bad[i].text), &two_of_eight, &t, &err);

        if (strstr(bad[i].message, "no JSON: ") != NULL) /* what follows is jansson's */
            err.text[strlen(bad[i].message)] = 0;
        assert_words(err.text, bad[i].message);
        assert_int_equal(status, EPA_ERR_CONFIG);
    }
}

TEST(a_layer_that_is_not_there_is_reported)
{
    static const struct bad bad[] = {
        {"{\"layer\": 3, \"topk_ids\": [0, 1]}\n",
         "f: no token of layer 1; the first one is of layer 3"},
        {"{\"topk_ids\": [0, 1]}\n", "f:1:1: .. routing.layer .. 1"},
    };
    struct routing_shape shape = {.topk = 2, .experts = 8, .layer = 1};

    for (size_t i = 0; i < sizeof(bad) / sizeof(*bad); i++) {
        struct epa_error err = {EPA_OK, ""};
        struct routing_table t;

        assert_int_equal(
            routing_parse_jsonl("f", bad[i].text, strlen(bad[i].text), &shape, &t, &err),
            EPA_ERR_CONFIG);
        assert_words(err.text, bad[i].message);
    }
}

TEST(a_line_without_end_is_refused)
{
    size_t n = (1 << 20) + 100;
    char *text = malloc(n);
    struct epa_error err = {EPA_OK, ""};
    struct routing_table t;

    memset(text, '[', n);
    assert_int_equal(routing_parse_jsonl("f", text, n, &two_of_eight, &t, &err), EPA_ERR_CONFIG);
    assert_string_equal(err.text, "f:1:1: a line of 1048676 bytes; up to 1 MiB are read");
    free(text);
}
