/* Tests of the model of `epa2a predict`: the fit recovers the costs of made-up measurements, and
 * links add the expected time. tests/cli/predict.py compares predictions with real measurements. */
#include "test.h"

#include <math.h>

#include "report/summary.h"
#include "report/predict.h"

/* Makes points for worlds of 2, 4 and 8 ranks on 4 cores, with all tokens, one token, and fewer
 * choices. */
static uint32_t points(const double *cost, struct predict_point *out)
{
    uint32_t n = 0;

    for (uint32_t ranks = 2; ranks <= 8; ranks *= 2)
        for (uint32_t kind = 0; kind < 3; kind++, n++) {
            double choices = kind == 0 ? 2048 : kind == 1 ? 16 : 512;
            double rows = choices * (1 - pow(0.5, ranks));
            bool few = kind == 1, shared = ranks > 4;

            out[n] =
                (struct predict_point){.term = {[PREDICT_CALL] = 1,
                                                [PREDICT_PEER] = ranks - 1,
                                                [PREDICT_ROW] = few ? 0 : rows,
                                                [PREDICT_CHOICE] = few ? 0 : choices,
                                                [PREDICT_FEW_ROW] = few ? rows : 0,
                                                [PREDICT_SHARED_CALL] = shared,
                                                [PREDICT_SHARED_ROW] = shared && !few ? rows : 0},
                                       .share = shared ? 2 : 1,
                                       .weight = 1};
            out[n].ns = predict_local(cost, &out[n]);
        }
    return n;
}

TEST(the_fit_recovers_known_costs)
{
    static const double costs[][PREDICT_TERMS] = {{1500, 120, 200, 40, 80, 0, 0},
                                                  {0, 300, 0, 25, 5, 0, 0},
                                                  {900, 0, 310, 0, 30, 2700, 0},
                                                  {700, 20, 100, 0, 100, 600, 180},
                                                  {700, 0, 0, 0, 0, 0, 0}};
    struct predict_point point[9], known = {{1, 7, 20, 30, 0, 1, 20}, .share = 4};
    double cost[PREDICT_TERMS];

    for (size_t i = 0; i < LENGTH(costs); i++) {
        uint32_t n = points(costs[i], point);

        predict_fit(point, n, cost);
        for (uint32_t t = 0; t < PREDICT_TERMS; t++)
            assert_true(fabs(cost[t] - costs[i][t]) <= 1e-3 * (costs[i][t] + 1));
    }
    /* 100 + 70 + 40 + 30 + 5 + 60, times 4, since four ranks share a core */
    assert_true(fabs(predict_local((double[]){100, 10, 2, 1, 9, 5, 3}, &known) - 1220) < 1e-9);
}

/* A single world cannot separate costs per peer from costs per call; the call gets both. */
TEST(one_world_assigns_the_cost_of_peers_to_calls)
{
    struct predict_point point[9];
    double cost[PREDICT_TERMS];

    (void)points((double[PREDICT_TERMS]){700, 50, 10}, point);
    predict_fit(point, 2, cost);
    assert_true(cost[PREDICT_PEER] < 1e-6 && cost[PREDICT_CALL] > 700);
}

TEST(costs_are_never_negative)
{
    static const double truth[PREDICT_TERMS] = {1000, 10, 100, 0, 50, 2000, 30};
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

/* 5 MB at 50 GB/s and 40 MB at 400 GB/s take 100 us each; 1000 messages of 30 ns take 30 us. */
TEST(the_longest_of_copy_bytes_and_messages_counts)
{
    static const struct op_load load = {.rank_bytes = 5e6, .node_bytes = 40e6, .messages = 1000};
    static const struct {
        const char *link; /* NULL: no links; the last case is invalid */
        double local_ns, latency_ns, ns;
        int bound;
    } c[] = {
        {"50GB/s,2us", 60e3, 500, 103e3, PREDICT_BYTES}, /* adds 2 x (2 - 0.5) us of latency */
        {"50GB/s,2us", 160e3, 500, 163e3, PREDICT_LOCAL},
        /* the added latency is never negative */
        {"400GB/s,2us,30ns,node", 20e3, 5e3, 100e3, PREDICT_BYTES},
        {"3200Gbit/s,0us,200ns", 20e3, 0, 200e3, PREDICT_MESSAGES},
        {"1TB/s,1ms", 20e3, 0, 2020e3, PREDICT_LATENCY},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        struct predict_link link;
        struct predict_time t;

        assert_int_equal(predict_link_read(c[i].link, &link, NULL), EPA_OK);
        t = predict_time(c[i].local_ns, &load, &link, c[i].latency_ns);
        assert_true(fabs(t.ns - c[i].ns) < 1 && (int)t.bound == c[i].bound);
    }
    assert_true(fabs(predict_time(20e3, &load, NULL, 0).ns - 20e3) < 1e-9);
}
