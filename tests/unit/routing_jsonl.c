/* Routing as JSON lines: what is read, and what each bad file is told. */
#include "test.h"

#include "op/moe/routing.h"

static const struct routing_shape two_of_eight = {.topk = 2, .experts = 8, .layer = UINT32_MAX};

struct bad {
    const char *text, *message;
};

static void free_table(struct routing_table *t)
{
    free(t->expert);
    free(t->weight);
}

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
         "f:2:2: 1 choices, the tokens above have 2"},
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
