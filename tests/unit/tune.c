/* Tests of the search of `epa2a tune` with made-up times. The time of each setting is known, so
 * that the tests can tell whether the search found the fastest. */
#include "test.h"

#include <math.h>
#include <unistd.h>

#include "base/exit_code.h"
#include "base/memory.h"
#include "base/random.h"
#include "cli/tune_candidates.h"
#include "cli/tune_search.h"
#include "launch/program_registry.h"

/* Change of the time by a value, as a logarithm. Two values separated by " ": additional change if
 * both are set. */
struct effect {
    const char *what;
    double log;
};

struct made_up {
    const struct effect *effect; /* ends with a NULL name */
    /* time with the settings of the file; standard deviation of a turn as a logarithm */
    double ns, noise;
    uint64_t beside_ns;  /* time of a turn outside iterations */
    double untimed_ns;   /* untimed part of an iteration */
    uint32_t iterations; /* iterations of the last turn; set by it */
    uint32_t unreached;  /* values without a turn of their own; set by the search */
    uint64_t longest_ns; /* longest turn; set by it */
    double burst;        /* probability that other load disturbs a turn */
    uint64_t random;
    double drift;
};

static struct made_up *now;

static double uniform(void)
{
    return (double)(next_random(&now->random) >> 11) * 0x1p-53;
}

static double normal(void)
{
    return sqrt(-2 * log(1 - uniform())) * cos(2 * acos(-1) * uniform());
}

static bool has(const struct tune_setting *x, const char *what, size_t bytes)
{
    for (uint32_t i = 0; i < x->n; i++)
        if (strlen(x->set[i]) == bytes && memcmp(x->set[i], what, bytes) == 0)
            return true;
    return false;
}

static double log_of(const struct tune_setting *x)
{
    double out = 0;

    for (const struct effect *e = now->effect; e->what != NULL; e++) {
        bool all = true;

        for (const char *at = e->what; *at != '\0'; at += strcspn(at, " "), at += *at == ' ')
            all = all && has(x, at, strcspn(at, " "));
        out += all ? e->log : 0;
    }
    return out;
}

static int take(struct tune_search *s, const struct tune_setting *x, enum tune_verb verb,
                struct tune_turn *out)
{
    double ns = now->ns * exp(log_of(x));
    uint32_t n = verb == TUNE_VERIFY ? TUNE_VERIFIED : s->iterations + s->warmup;
    double took_ns = n * (ns + now->untimed_ns);

    now->drift = 0.9 * now->drift + 0.4 * now->noise * normal();
    *out = (struct tune_turn){
        .took_ns = now->beside_ns + (uint64_t)fmin(took_ns, (double)s->longest_ns), .samples = n};
    now->iterations = n;
    now->longest_ns = now->longest_ns > out->took_ns ? now->longest_ns : out->took_ns;
    out->fastest_ns = out->median_ns = ns * exp(now->noise * normal() + now->drift +
                                                (uniform() < now->burst ? 0.3 * uniform() : 0));
    return EXIT_OK;
}

static const char text[] =
    "version: 1\nranks: 2\ntransport: shm\nalgorithm: {name: ll_v2, dispatch_dtype: fp8}\n"
    "moe: {max_tokens: 128, hidden: 1024, experts: 256, topk: 8}\n"
    "bench: {warmup: 20, iterations: 40}\n";

/* Runs a search. Returns the logarithm of the time of the result relative to the settings of the
 * file, and describes the result in `found`. */
static double search_over(struct made_up *m, double budget_s, char *found, size_t room)
{
    char path[] = "/tmp/epa2a-tune-XXXXXX";
    int fd = mkstemp(path);
    const char *arg[] = {path};
    struct cli cli = {.arg = arg, .n_args = 1, .alpha = 0.01, .progress = PROGRESS_NEVER};
    struct tune_search s = {
        .t = {.cli = &cli, .arena = arena_create(), .budget_ns = (uint64_t)(budget_s * 1e9)},
        .take = take};
    double out;

    assert_int_equal(write(fd, text, sizeof(text) - 1), sizeof(text) - 1);
    close(fd);
    now = m;
    s.t.setting = arena_alloc(s.t.arena, TUNE_SETTINGS * sizeof(struct tune_setting *));
    assert_int_equal(program_registry_create(NULL, &s.registry, &s.err), EPA_OK);
    assert_int_equal(tune_read_bases(&s), EPA_OK);
    s.n_delivers = tune_delivered(&s, s.base[0].x, s.delivers);
    assert_non_null(tune_add_setting(&s, 0, NULL, 0, NULL, 0));
    assert_int_equal(tune_search(&s), EXIT_OK);
    assert_true(s.t.spent_ns <= s.t.budget_ns + 2 * m->longest_ns); /* the rest of a round */
    out = log_of(s.t.is_better ? s.t.best : s.t.setting[0]);
    snprintf(found, room, "%s%s, %u turns %u last %.1f s, %.3f..%.3f", s.t.is_better ? "" : "not ",
             s.t.best->name, s.t.turns, s.t.rounds, (double)s.t.spent_ns / 1e9, s.t.last.low,
             s.t.last.high);
    for (uint32_t i = 0; i < s.t.n; i++)
        m->unreached += s.t.setting[i]->pass == 1 && s.t.setting[i]->rounds == 0;
    unlink(path);
    for (struct tune_kept *k = s.kept; k != NULL; k = k->next)
        runs_finish(&k->runs);
    registry_destroy(s.registry);
    arena_destroy(s.t.arena);
    return out;
}

#define SLOW \
    {"backend.workers=2", 0.5}, {"backend.workers=4", 1}, {"backend.workers=8", 1.5}, \
        {"backend.workers=16", 2}, {"algorithm.nontemporal=on", 0.5}, \
        {"transport.wait=yield", 0.04}, \
    { \
        "launcher.pin=none", 0.02 \
    }

/* Only both values together gain. */
static const struct effect together[] = {SLOW,
                                         {"algorithm.nontemporal=off", -0.01},
                                         {"algorithm.nontemporal=off transport.wait=spin", -0.1},
                                         {"algorithm.recv_layout=padded", 0.12},
                                         {"algorithm.dedup=true", 0.03},
                                         {0}};
/* One of the two values loses alone. */
static const struct effect valley[] = {SLOW,
                                       {"transport.wait=spin", 0.05},
                                       {"algorithm.nontemporal=off transport.wait=spin", -0.15},
                                       {"algorithm.recv_layout=padded", 0.05},
                                       {"algorithm.dedup=true", 0.2},
                                       {0}};
static const struct effect apart[] = {SLOW,
                                      {"transport.wait=spin", -0.04},
                                      {"algorithm.nontemporal=off", -0.06},
                                      {"algorithm.recv_layout=padded", 0.12},
                                      {"algorithm.dedup=true", 0.03},
                                      {0}};
/* Each value gains alone, and both together lose. */
static const struct effect against[] = {SLOW,
                                        {"transport.wait=spin", -0.05},
                                        {"algorithm.nontemporal=off", -0.06},
                                        {"algorithm.nontemporal=off transport.wait=spin", 0.11},
                                        {0}};
static const struct effect none[] = {SLOW,
                                     {"transport.wait=spin", 0.01},
                                     {"algorithm.nontemporal=off", 0.8},
                                     {"algorithm.recv_layout=padded", 0.05},
                                     {"algorithm.dedup=true", 0.2},
                                     {0}};

/* Returns how many of 10 searches end more than 2 % from the best. */
static uint32_t misses(const struct effect *effect, double budget_s, double noise, double best)
{
    uint32_t out = 0;

    for (uint64_t k = 0; k < 10; k++) {
        struct made_up m = {.effect = effect,
                            .ns = 60000,
                            .noise = noise,
                            .beside_ns = 100000000,
                            .burst = 0.04,
                            .random = random_mix(k + 1)};
        char found[400];
        double behind = search_over(&m, budget_s, found, sizeof(found)) - best;

        out += behind > 0.02;
        if (behind > 0.02)
            print_message("%.0f s, noise %.3f: %.3f from the best: %s\n", budget_s, noise, behind,
                          found);
    }
    return out;
}

/* ---- the last comparison ---- */

/* The first round is much slower; all others are faster. */
static int take_made_up(void *arg, uint32_t first, double median[][2], double *figure)
{
    struct turns *t = arg;

    (void)first;
    t->spent_ns += 1000000000;
    median[0][0] = 100;
    median[0][1] = 90;
    figure[0] = t->rounds == 0 ? 0.3 : -0.1 - 0.001 * t->rounds;
    return EXIT_OK;
}

/* After 19 rounds p is 0.0012. This is more than the error allowed at look 3 (0.01 / 12), and less
 * than the error allowed at the last look (0.01 / 3). */
TEST(the_last_look_gets_the_unused_error_probability)
{
    struct turns t = {.take = take_made_up, .arg = &t, .threshold = 0.01, .alpha = 0.01};
    struct arena *arena = arena_create();
    enum compare_verdict verdict;
    struct comparison x = {0};

    turns_init(&t, arena, 1);
    assert_int_equal(turns_take(&t, UINT64_C(19000000000), &verdict), EXIT_OK);
    assert_int_equal(t.rounds, 19);
    assert_int_equal(verdict, COMPARE_UNCLEAR);
    assert_int_equal(turns_result(&t, 0, &x), COMPARE_FASTER);
    assert_true(x.high < 1 && x.p > 0.01 / 12);
    arena_destroy(arena);
}

/* ---- random effects: single values, a few of them large, and some pairs ---- */

enum { VALUES = 10, PAIRED = VALUES * VALUES / 2, EFFECTS = VALUES + PAIRED + 4 };
static const char *const values[VALUES] = {
    "transport.wait=spin",      "transport.wait=yield", "algorithm.nontemporal=off",
    "algorithm.nontemporal=on", "launcher.pin=none",    "algorithm.recv_layout=padded",
    "algorithm.dedup=true",     "backend.workers=2",    "transport.huge_pages=off",
    "backend.huge_pages=false",
};

static void draw_effects(struct made_up *m, struct effect out[EFFECTS], char name[PAIRED][80])
{
    static const struct effect slow[] = {
        {"backend.workers=4", 1}, {"backend.workers=8", 2}, {"backend.workers=16", 4}};
    uint32_t n = 0, pairs = 0;

    now = m;
    for (size_t i = 0; i < LENGTH(slow); i++)
        out[n++] = slow[i];
    for (uint32_t i = 0; i < VALUES; i++) {
        double size = uniform() < 0.15 ? 0.4 : 0.05;

        out[n++] = (struct effect){values[i], uniform() < 0.4 ? 0 : size * normal()};
        for (uint32_t k = 0; k < i; k++) {
            const char *a = values[k], *b = values[i], *first = strcmp(a, b) < 0 ? a : b;

            if (uniform() > 0.2)
                continue;
            snprintf(name[pairs], 80, "%s %s", first, first == a ? b : a);
            out[n++] = (struct effect){name[pairs++], 0.035 * normal()};
        }
    }
    out[n] = (struct effect){NULL, 0};
}

/* Returns the least time over all combinations. Values of one option are adjacent in the table. */
static double find_least(uint32_t from, const char **set, uint32_t n)
{
    struct tune_setting x = {.set = set, .n = n};
    double least = log_of(&x);

    for (uint32_t i = from; i < VALUES; i++) {
        uint32_t next = i + 1;
        size_t bytes = strcspn(values[i], "=") + 1;

        while (next < VALUES && strncmp(values[next], values[i], bytes) == 0)
            next++;
        set[n] = values[i];
        least = fmin(least, find_least(next, set, n + 1));
    }
    return least;
}

/* Returns the mean distance of 20 searches from the best. */
static double mean_behind(double budget_s, double noise)
{
    static char name[PAIRED][80], found[400];
    struct effect effects[EFFECTS];
    const char *set[VALUES];
    double sum = 0;

    for (uint64_t k = 0; k < 20; k++) {
        struct made_up m = {.effect = effects,
                            .ns = 50000,
                            .noise = noise,
                            .beside_ns = 60000000,
                            .burst = 0.03,
                            .random = random_mix(k + 100)};

        draw_effects(&m, effects, name);
        sum += search_over(&m, budget_s, found, sizeof(found)) - find_least(0, set, 0);
    }
    print_message("%.0f s, noise %.3f: %.4f behind the best\n", budget_s, noise, sum / 20);
    return sum / 20;
}

TEST(random_effects_end_near_the_best)
{
    assert_true(mean_behind(30, 0.01) < 0.008);
    assert_true(mean_behind(8, 0.01) < 0.02);
}

TEST(values_that_gain_only_together_are_found)
{
    assert_true(misses(together, 60, 0.015, -0.11) <= 1);
    assert_true(misses(together, 60, 0.04, -0.11) <= 1);
    assert_true(misses(together, 15, 0.015, -0.11) <= 2);
    assert_true(misses(valley, 60, 0.015, -0.1) <= 3);
}

TEST(values_that_gain_alone_are_found_and_combined)
{
    assert_true(misses(apart, 60, 0.04, -0.1) <= 1);
    assert_true(misses(apart, 15, 0.015, -0.1) <= 2);
    assert_true(misses(against, 60, 0.015, -0.06) <= 1);
}

TEST(the_files_settings_stay_where_nothing_gains)
{
    assert_int_equal(misses(none, 60, 0.04, 0), 0);
    assert_int_equal(misses(none, 15, 0.04, 0), 0);
}

/* There is no comparison at the end, and 30 turns are twice as many as single values need. */
TEST(a_budget_is_for_the_search_where_nothing_seems_faster)
{
    struct made_up m = {
        .effect = none, .ns = 60000, .beside_ns = 600000000, .random = random_mix(1)};
    char found[400];

    (void)search_over(&m, 18, found, sizeof(found));
    assert_int_equal(m.unreached, 0);
}

/* Iterations take a third of the 600 ms outside them; the file requests 40 iterations. */
TEST(a_turn_has_many_iterations_where_they_are_short)
{
    struct made_up m = {
        .effect = none, .ns = 60000, .beside_ns = 600000000, .random = random_mix(1)};
    char found[400];

    (void)search_over(&m, 60, found, sizeof(found));
    assert_in_range(m.iterations, 2000, 5000);
}

/* Experts and barriers take five times as long as the timed part. If they counted as time outside
 * iterations, a turn would have 500 iterations. */
TEST(untimed_work_in_iterations_does_not_lengthen_a_turn)
{
    struct made_up m = {.effect = none,
                        .ns = 50000,
                        .noise = 0.01,
                        .beside_ns = 60000000,
                        .untimed_ns = 250000,
                        .random = random_mix(1)};
    char found[400];

    (void)search_over(&m, 15, found, sizeof(found));
    assert_in_range(m.iterations, 40, 110);
}

/* ---- roles of keys ---- */

TEST(names_seeds_and_lengths_of_runs_are_no_settings)
{
    static const char *const measures[] = {
        "name",           "seed",
        "timeout",        "run.iterations",
        "verify.order",   "bench.warmup",
        "bench.ci95",     "bench.check",
        "bench.min_time", "bench.max_time",
        "expect.median",  "expect.dispatch.median",
        "profile.file",   "bench.iterations",
    };
    static const char *const means[] = {"algorithm.name", "launcher.pin", "backend.workers",
                                        "transport"};
    static const char *const task[] = {"ranks",          "moe.hidden",     "routing.kind",
                                       "bench.clock",    "bench.arrivals", "fault.kind",
                                       "expert.library", "unknown.key",    "unknown"};

    for (size_t i = 0; i < LENGTH(measures); i++)
        assert_int_equal(key_role_of(measures[i]), KEY_MEASURES);
    for (size_t i = 0; i < LENGTH(means); i++)
        assert_int_equal(key_role_of(means[i]), KEY_MEANS);
    for (size_t i = 0; i < LENGTH(task); i++)
        assert_int_equal(key_role_of(task[i]), KEY_TASK);
}
