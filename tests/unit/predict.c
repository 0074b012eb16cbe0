/* The model of `epa2a predict`: costs are found again, links add what they must. */
#include <math.h>

#include "test.h"

#include "report/predict.h"

static const struct op_load load = {.rank_bytes = 5e6, .node_bytes = 40e6, .messages = 1000};

static struct predict_link link_of(const char *text)
{
    struct predict_link link = {0};
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(predict_link_read(text, &link, &err), EPA_OK);
    return link;
}

/* Worlds of 2, 4 and 8 ranks, with all tokens, one, and fewer choices. */
static uint32_t points(const double *cost, struct predict_point *out)
{
    uint32_t n = 0;

    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2)
        for (uint32_t kind = 0; kind < 3; kind++, n++) {
            double choices = kind == 0 ? 2048 : kind == 1 ? 16 : 512;
            double rows = choices * (1 - pow(0.5, ranks));

            out[n] = (struct predict_point){
                {1, ranks - 1, rows, choices}, .share = ranks > 4 ? 2 : 1, .weight = 1};
            out[n].ns = predict_local(cost, &out[n]);
        }
    return n;
}

TEST(costs_are_found_again)
{
    static const double costs[][PREDICT_TERMS] = {
        {1500, 120, 200, 40}, {0, 300, 0, 25}, {900, 0, 310, 0}, {700, 0, 0, 0}};
    struct predict_point point[9];
    double cost[PREDICT_TERMS];

    for (uint32_t i = 0; i < sizeof(costs) / sizeof(costs[0]); i++) {
        predict_fit(point, points(costs[i], point), cost);
        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            assert_true(fabs(cost[t] - costs[i][t]) <= 1e-3 * (costs[i][t] + 1));
    }
}

TEST(no_cost_is_below_0)
{
    static const double truth[PREDICT_TERMS] = {1000, 10, 100, 0};
    struct predict_point point[9];
    double cost[PREDICT_TERMS];
    uint32_t n = points(truth, point);

    for (uint32_t seed = 1; seed < 200; seed++) {
        uint32_t x = seed * 2654435761u;

        for (uint32_t i = 0; i < n; i++, x = x * 1664525u + 1013904223u)
            point[i].ns = predict_local(truth, &point[i]) * (0.5 + (x >> 8) / 16777216.0);
        predict_fit(point, n, cost);
        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            assert_true(cost[t] >= 0);
        assert_true(predict_local(cost, &point[0]) > 0);
    }
}

TEST(what_shares_a_core_takes_as_many_times_as_long)
{
    static const double cost[PREDICT_TERMS] = {100, 10, 2, 1};
    struct predict_point point = {{1, 7, 20, 30}, .share = 1};

    assert_true(fabs(predict_local(cost, &point) - 240) < 1e-9); /* 100 + 70 + 40 + 30 */
    point.share = 4;
    assert_true(fabs(predict_local(cost, &point) - 960) < 1e-9);
}

/* 5 MB at 50 GB/s are 100 us, 40 MB at 400 GB/s as many, 1000 messages of 30 ns are 30. */
TEST(the_longest_of_copy_bytes_and_messages_counts)
{
    struct predict_link link = link_of("50GB/s,2us");
    struct predict_time t = predict_time(60e3, &load, &link, 500);

    assert_true(fabs(t.ns - 101.5e3) < 1 && t.bound == PREDICT_BYTES); /* and 2 - 0.5 us */
    t = predict_time(160e3, &load, &link, 500);
    assert_true(fabs(t.ns - 161.5e3) < 1 && t.bound == PREDICT_LOCAL);
    link = link_of("400GB/s,2us,30ns,node");
    t = predict_time(20e3, &load, &link, 5e3);
    assert_true(fabs(t.ns - 100e3) < 1 && t.bound == PREDICT_BYTES); /* no latency below 0 */
    link = link_of("3200Gbit/s,0us,200ns");
    t = predict_time(20e3, &load, &link, 0);
    assert_true(fabs(t.ns - 200e3) < 1 && t.bound == PREDICT_MESSAGES);
    link = link_of("1TB/s,1ms");
    t = predict_time(20e3, &load, &link, 0);
    assert_true(fabs(t.ns - 1020e3) < 1 && t.bound == PREDICT_LATENCY);
    assert_true(fabs(predict_time(20e3, &load, NULL, 0).ns - 20e3) < 1e-9);
}

TEST(a_better_link_is_never_slower)
{
    for (double rate = 0.1; rate < 1e3; rate *= 1.7)
        for (double latency = 100; latency < 1e6; latency *= 3) {
            struct predict_link worse = {rate, latency, 20, false}, better = worse;
            double ns = predict_time(60e3, &load, &worse, 500).ns;

            better.bytes_per_ns *= 1.5;
            assert_true(predict_time(60e3, &load, &better, 500).ns <= ns);
            better = worse;
            better.latency_ns /= 2;
            assert_true(predict_time(60e3, &load, &better, 500).ns <= ns);
            better = worse;
            better.message_ns = 0;
            assert_true(predict_time(60e3, &load, &better, 500).ns <= ns);
        }
}

TEST(links_that_are_none_are_refused)
{
    static const char *const wrong[] = {
        "",        "50",       "50GB",      "GB/s,2us", "-1GB/s",        "0GB/s",
        "infGB/s", "50GB/s,2", "50GB/s,2m", "50GB/s,",  "50GB/s,2us,ns", "50GB/s,1us,1us,1us"};

    for (uint32_t i = 0; i < sizeof(wrong) / sizeof(wrong[0]); i++) {
        struct predict_link link;
        struct epa_error err = {EPA_OK, ""};

        assert_int_equal(predict_link_read(wrong[i], &link, &err), EPA_ERR_CONFIG);
        assert_non_null(strstr(err.text, "--link"));
    }
}
