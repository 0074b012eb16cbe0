/* routing.c: what each kind promises of the choices that it makes, and how windows of a
 * file are dealt out. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "config/experiment.h"
#include "op/moe/routing.h"

enum { TOKENS = 256, EXPERTS = 64, TOPK = 8 };

struct made {
    int32_t expert[TOKENS][TOPK];
    float weight[TOKENS][TOPK];
};

static struct experiment experiment_of(int kind)
{
    return (struct experiment){
        .ranks = 4,
        .seed = 1,
        .moe = {.max_tokens = TOKENS, .hidden = 64, .experts = EXPERTS, .topk = TOPK},
        .routing = {.kind = kind, .exponent = 1.2, .sigma = 1.5, .share = 0.5, .layer = UINT32_MAX},
    };
}

static void make(const struct experiment *x, uint32_t rank, uint64_t iteration, struct made *out)
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
        struct experiment x = experiment_of(kind);

        for (uint64_t i = 0; i < 4; i++) {
            make(&x, (uint32_t)i, i, &m);
            check_rows(&m);
        }
    }
}

TEST(uniform_weights_are_in_0_to_1_and_add_up_to_anything)
{
    static struct made m;
    struct experiment x = experiment_of(ROUTING_MASKED);
    double least = 1, most = 0, total = 0;
    uint32_t kept = 0;

    x.routing.weights = WEIGHTS_UNIFORM;
    make(&x, 0, 0, &m);
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        double weight = (double)(&m.weight[0][0])[i];

        if ((&m.expert[0][0])[i] < 0) {
            assert_true(weight == 0);
            continue;
        }
        assert_true(weight >= 0 && weight < 1);
        least = fmin(least, weight);
        most = fmax(most, weight);
        total += weight;
        kept++;
    }
    assert_true(kept > TOKENS * TOPK / 3);
    assert_true(least < 0.02 && most > 0.98);
    assert_true(fabs(total / kept - 0.5) < 0.05);
}

TEST(weights_do_not_change_who_is_chosen)
{
    static struct made a, b;
    struct experiment x = experiment_of(ROUTING_UNIFORM);

    make(&x, 1, 2, &a);
    x.routing.weights = WEIGHTS_UNIFORM;
    make(&x, 1, 2, &b);
    assert_memory_equal(a.expert, b.expert, sizeof(a.expert));
}

TEST(every_expert_can_be_chosen_at_once)
{
    int32_t expert[32];
    float weight[32];

    for (int kind = ROUTING_UNIFORM; kind < ROUTING_FILE; kind++) {
        struct experiment x = experiment_of(kind);
        uint64_t seen = 0;

        x.moe.experts = x.moe.topk = 32;
        x.routing.exponent = 8; /* the last expert is 2^40 times less popular */
        x.routing.share = 0;
        routing_fill(&x, NULL, 0, 0, 1, expert, weight);
        for (uint32_t k = 0; k < 32; k++)
            seen |= UINT64_C(1) << expert[k];
        assert_true(seen == 0xffffffff);
    }
}

TEST(choices_change_with_rank_iteration_and_seed_only)
{
    static struct made a, b;

    for (int kind = ROUTING_UNIFORM; kind < ROUTING_FILE; kind++) {
        struct experiment x = experiment_of(kind);

        make(&x, 1, 2, &a);
        make(&x, 1, 2, &b);
        assert_memory_equal(&a, &b, sizeof(a));
        make(&x, 1, 3, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
        make(&x, 2, 2, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
        x.seed = 2;
        make(&x, 1, 2, &b);
        assert_memory_not_equal(&a, &b, sizeof(a));
    }
}

TEST(fewer_tokens_make_the_same_choices)
{
    static struct made all, few;

    for (int kind = ROUTING_UNIFORM; kind < ROUTING_FILE; kind++) {
        struct experiment x = experiment_of(kind);

        make(&x, 0, 0, &all);
        routing_fill(&x, NULL, 0, 0, 10, &few.expert[0][0], &few.weight[0][0]);
        assert_memory_equal(all.expert, few.expert, 10 * sizeof(all.expert[0]));
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

TEST(uniform_favours_nobody)
{
    struct experiment x = experiment_of(ROUTING_UNIFORM);
    uint32_t n[EXPERTS] = {0};
    static struct made m;

    for (uint64_t i = 0; i < 40; i++) {
        make(&x, 0, i, &m);
        for (int32_t e = 0; e < EXPERTS; e++)
            n[e] += chosen(&m, e);
    }
    for (uint32_t e = 0; e < EXPERTS; e++) /* 1280 expected */
        assert_in_range(n[e], 1100, 1460);
}

/* The same experts are popular on every rank and in every iteration, else the skew of many
 * iterations would average out. */
TEST(popularity_is_skewed_and_lasts)
{
    static const int kinds[] = {ROUTING_ZIPF, ROUTING_LOGNORMAL};
    static struct made a, b;

    for (uint32_t i = 0; i < 2; i++) {
        struct experiment x = experiment_of(kinds[i]);
        int32_t top = 0;

        make(&x, 0, 0, &a);
        make(&x, 3, 9, &b);
        for (int32_t e = 0; e < EXPERTS; e++)
            top = chosen(&a, e) > chosen(&a, top) ? e : top;
        assert_true(chosen(&a, top) > 4 * TOKENS * TOPK / EXPERTS);
        assert_true(chosen(&b, top) > 4 * TOKENS * TOPK / EXPERTS);
    }
}

/* With topk 1 a draw is a plain one: counts follow (i + 1)^-exponent. */
TEST(zipf_follows_its_exponent)
{
    enum { N = 20000 };
    static int32_t expert[N];
    static float weight[N];
    struct experiment x = experiment_of(ROUTING_ZIPF);
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

TEST(hot_sends_its_share_to_expert_0_first)
{
    struct experiment x = experiment_of(ROUTING_HOT);
    static struct made m;
    uint32_t first = 0;

    make(&x, 0, 0, &m);
    for (uint32_t t = 0; t < TOKENS; t++)
        first += m.expert[t][0] == 0;
    assert_in_range(first, TOKENS * 4 / 10, TOKENS * 6 / 10);
    x.routing.share = 1;
    make(&x, 0, 0, &m);
    assert_int_equal(chosen(&m, 0), TOKENS);
}

TEST(masked_drops_its_share)
{
    struct experiment x = experiment_of(ROUTING_MASKED);
    static struct made m;

    make(&x, 0, 0, &m);
    assert_in_range(chosen(&m, -1), TOKENS * TOPK * 4 / 10, TOKENS * TOPK * 6 / 10);
    x.routing.share = 1;
    make(&x, 0, 0, &m);
    assert_int_equal(chosen(&m, -1), TOKENS * TOPK);
    x.routing.share = 0;
    make(&x, 0, 0, &m);
    assert_int_equal(chosen(&m, -1), 0);
}

/* Loads of all ranks together, in `out` [EXPERTS]. */
static void loads(const struct experiment *x, uint64_t iteration, uint64_t *out)
{
    struct made m;

    memset(out, 0, EXPERTS * sizeof(*out));
    for (uint32_t rank = 0; rank < x->ranks; rank++) {
        uint32_t tokens = routing_tokens_of(x, rank, iteration);

        make(x, rank, iteration, &m);
        check_rows(&m);
        for (uint32_t t = 0; t < tokens; t++)
            for (uint32_t k = 0; k < TOPK; k++)
                out[m.expert[t][k]]++;
    }
}

TEST(maxvio_is_met_to_the_token)
{
    static const double violations[] = {0, 0.2, 1, 4, 7};
    struct experiment x = experiment_of(ROUTING_MAXVIO);
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

TEST(maxvio_spreads_its_tokens_over_ranks)
{
    struct experiment x = experiment_of(ROUTING_MAXVIO);
    struct made m;

    x.routing.violation = 3; /* half of the tokens */
    for (uint32_t rank = 0; rank < x.ranks; rank++) {
        uint32_t most = 0;

        make(&x, rank, 1, &m);
        for (int32_t e = 0; e < EXPERTS; e++)
            most = chosen(&m, e) > most ? chosen(&m, e) : most;
        assert_in_range(most, TOKENS / 2 - 1, TOKENS / 2 + 1);
    }
}

TEST(random_tokens_reach_both_ends_and_change)
{
    struct experiment x = experiment_of(ROUTING_UNIFORM);
    uint32_t none = 0, all = 0, same = 0;

    x.tokens.kind = TOKENS_RANDOM;
    for (uint64_t i = 0; i < 100; i++) {
        uint32_t n = routing_tokens_of(&x, 0, i);

        assert_in_range(n, 0, TOKENS);
        none += n == 0;
        all += n == TOKENS;
        same += n == routing_tokens_of(&x, 1, i);
    }
    assert_in_range(none, 4, 30);
    assert_in_range(all, 4, 30);
    assert_in_range(same, 0, 20);
}

TEST(random_tokens_are_no_fewer_than_the_least)
{
    struct experiment x = experiment_of(ROUTING_UNIFORM);
    uint32_t seen[6] = {0};

    x.moe.max_tokens = 5;
    x.tokens.kind = TOKENS_RANDOM;
    x.tokens.min = 2;
    for (uint64_t i = 0; i < 1000; i++) {
        uint32_t tokens = routing_tokens_of(&x, (uint32_t)(i % 4), i);

        assert_in_range(tokens, 2, 5);
        seen[tokens]++;
    }
    for (uint32_t n = 2; n <= 5; n++)
        assert_true(seen[n] > 100);
    x.tokens.min = 5; /* as many as there are */
    assert_int_equal(routing_tokens_of(&x, 0, 7), 5);
}

TEST(listed_tokens_are_each_ranks_own)
{
    static const uint32_t each[] = {0, 5, 1000, 7};
    struct experiment x = experiment_of(ROUTING_UNIFORM);

    assert_int_equal(routing_tokens_of(&x, 2, 9), TOKENS);
    x.tokens.kind = TOKENS_LIST;
    x.tokens.per_rank = (struct epa_u32_list){.item = each, .n = 4};
    assert_int_equal(routing_tokens_of(&x, 0, 9), 0);
    assert_int_equal(routing_tokens_of(&x, 1, 9), 5);
    assert_int_equal(routing_tokens_of(&x, 2, 9), TOKENS); /* never more than max_tokens */
}

TEST(statistics_count_by_hand)
{
    struct experiment x = experiment_of(ROUTING_HOT);
    struct routing_stats s = {0};

    x.moe.topk = 1;
    x.moe.max_tokens = 10;
    x.routing.share = 1; /* everything to expert 0 */
    routing_stats_add(&s, &x, NULL, 0);
    routing_stats_add(&s, &x, NULL, 1);
    assert_int_equal(s.iterations, 2);
    assert_int_equal(s.tokens, 80);
    assert_int_equal(s.choices, 80);
    assert_int_equal(s.dropped, 0);
    assert_int_equal(s.expert.min, 0);
    assert_int_equal(s.expert.max, 40);
    assert_int_equal(s.rank.min, 0);
    assert_int_equal(s.rank.max, 40);
    assert_true(fabs(s.expert.mean - 40.0 / EXPERTS) < 1e-9);
    assert_true(fabs(s.rank.mean - 10) < 1e-9);
    assert_true(fabs(s.expert.imbalance - EXPERTS) < 1e-9);
    assert_true(fabs(s.rank.imbalance - 4) < 1e-9);
}

TEST(dropped_choices_are_counted_apart)
{
    struct experiment x = experiment_of(ROUTING_MASKED);
    struct routing_stats s = {0};

    x.routing.share = 1;
    routing_stats_add(&s, &x, NULL, 0);
    assert_int_equal(s.choices, s.dropped);
    assert_true(s.expert.imbalance == 1);
}

/* Five tokens, whose choice is 10 + their number, on 2 ranks of 2. */
static struct op_source *open_five(struct experiment *x, char *path)
{
    struct epa_error err = {EPA_OK, ""};
    struct op_source *source;
    FILE *f = fdopen(mkstemp(path), "w");

    for (int t = 0; t < 5; t++)
        fprintf(f, "{\"topk_ids\": [%d]}\n", 10 + t);
    fclose(f);
    x->ranks = 2;
    x->moe.max_tokens = 2;
    x->moe.topk = 1;
    x->routing.path = path;
    assert_int_equal(routing_open(x, &source, &err), EPA_OK);
    return source;
}

TEST(a_file_is_dealt_in_order_and_begins_again)
{
    static const int32_t want[3][2][2] = {
        {{10, 11}, {12, 13}}, {{14, 10}, {11, 12}}, {{13, 14}, {10, 11}}};
    struct experiment x = experiment_of(ROUTING_FILE);
    char path[] = "/tmp/epa2a-routing-XXXXXX";
    struct op_source *source = open_five(&x, path);
    int32_t expert[2];
    float weight[2];

    assert_int_equal(routing_tokens(source), 5);
    assert_int_equal(routing_period(source, &x), 1);
    for (uint64_t i = 0; i < 3; i++)
        for (uint32_t r = 0; r < 2; r++) {
            routing_fill(&x, source, r, i, 2, expert, weight);
            assert_memory_equal(expert, want[i][r], sizeof(expert));
            assert_true(weight[0] == 1);
        }
    routing_fill(&x, source, 1, UINT64_MAX / 8, 2, expert, weight); /* no overflow */
    assert_in_range(expert[0], 10, 14);
    routing_close(source);
    unlink(path);
}

TEST(skipped_tokens_are_not_there)
{
    struct experiment x = experiment_of(ROUTING_FILE);
    struct epa_error err = {EPA_OK, ""};
    char path[] = "/tmp/epa2a-routing-XXXXXX";
    struct op_source *source, *none = NULL;
    int32_t expert[2];
    float weight[2];

    x.routing.skip = 3;
    source = open_five(&x, path);
    assert_int_equal(routing_tokens(source), 2);
    routing_fill(&x, source, 0, 0, 2, expert, weight);
    assert_int_equal(expert[0], 13);
    assert_int_equal(expert[1], 14);
    routing_close(source);
    x.routing.skip = 5;
    assert_int_equal(routing_open(&x, &none, &err), EPA_ERR_CONFIG);
    assert_non_null(strstr(err.text, "routing.skip is 5, and "));
    assert_non_null(strstr(err.text, " has 5 tokens: nothing would be left"));
    assert_null(none);
    unlink(path);
}

TEST(without_files_there_is_no_source_and_no_end)
{
    struct experiment x = experiment_of(ROUTING_ZIPF);
    struct epa_error err = {EPA_OK, ""};
    struct op_source *source = (void *)&x;

    assert_int_equal(routing_open(&x, &source, &err), EPA_OK);
    assert_null(source);
    assert_int_equal(routing_tokens(NULL), 0);
    assert_true(routing_period(NULL, &x) == UINT64_MAX);
    assert_null(routing_hidden(NULL, &x, 0, 0, 0));
    routing_close(NULL);
}
