/* Tests of src/tool/base and epa2a/wait.h: the distribution of random values (the checks of `verify`
 * cover determinism), statistics as far as tests/cli/results.py does not recompute them from real
 * samples, texts and numbers of documents, and back-off of waits. */
#include "test.h"

#include <epa2a/wait.h>
#include <errno.h>
#include <math.h>
#include <sys/resource.h>

#include "base/json.h"
#include "base/random.h"
#include "base/stats.h"
#include "base/text.h"

/* ---- random ---- */

TEST(values_are_finite_and_about_normal)
{
    enum { N = 100000 };
    static uint16_t x[N];
    double sum = 0, squares = 0, neighbours = 0;
    uint32_t beyond = 0;

    random_words(5, N, false, x);
    for (uint32_t i = 0; i < N; i++) {
        double v = (double)float_of_bf16(x[i]);

        assert_true(fabs(v) <= 3);
        sum += v;
        squares += v * v;
        beyond += fabs(v) > 2;
        neighbours += i > 0 ? v * (double)float_of_bf16(x[i - 1]) : 0;
    }
    assert_true(fabs(sum / N) < 0.02);
    assert_true(fabs(squares / N - 1) < 0.02);
    assert_true(fabs(neighbours / N) < 0.02);
    assert_in_range(beyond, N / 50, N / 20); /* 4.6 % of a normal distribution */
}

/* ---- errors ---- */

static const char *complete(enum epa_status status, int error, const char *key, const char *text)
{
    static struct epa_error err;

    err = (struct epa_error){EPA_OK, ""};
    if (key != NULL)
        (void)epa_fail_key(&err, status, key, "%s", text);
    else
        (void)epa_fail_errno(&err, status, error, "%s", text);
    error_add_remedy(&err);
    error_add_remedy(&err); /* a second call adds nothing */
    return err.text;
}

/* The words of a message have no meaning for the program: only its status and key. */
TEST(errors_name_the_limit_that_may_have_caused_them)
{
    struct rlimit before, limited;

    assert_int_equal(getrlimit(RLIMIT_AS, &before), 0);
    limited = before;
    limited.rlim_cur = UINT64_C(1) << 46;
    assert_int_equal(setrlimit(RLIMIT_AS, &limited), 0);
    assert_string_equal(complete(EPA_ERR_NOMEM, 0, NULL, "no workers"),
                        "no workers (RLIMIT_AS: ulimit -v)");
    assert_string_equal(complete(EPA_ERR_SYSTEM, ENOMEM, NULL, "mmap: a text"),
                        "mmap: a text (RLIMIT_AS: ulimit -v)");
    assert_non_null(strstr(complete(EPA_ERR_SYSTEM, EAGAIN, NULL, "thread: a text"),
                           "a text (RLIMIT_AS: ulimit -v); raise RLIMIT_NPROC (ulimit -u)"));
    assert_string_equal(complete(EPA_ERR_NOMEM, 0, EPA_LIMIT_NAMED, "no memory on GPU 0"),
                        "no memory on GPU 0");
    assert_string_equal(complete(EPA_ERR_NOMEM, 0, "moe.max_tokens", "no memory for 1 GiB"),
                        "no memory for 1 GiB");
    assert_string_equal(complete(EPA_ERR_SYSTEM, EIO, NULL, "socket: Too many open files"),
                        "socket: Too many open files");
    assert_int_equal(setrlimit(RLIMIT_AS, &before), 0);
    if (before.rlim_cur == RLIM_INFINITY)
        assert_string_equal(complete(EPA_ERR_NOMEM, 0, NULL, "no memory"), "no memory");
    assert_string_equal(complete(EPA_ERR_SYSTEM, EMFILE, NULL, "socket: a text"),
                        "socket: a text; raise the limit of open files: ulimit -n");
}

/* ---- statistics ---- */

/* Compares doubles within rounding; cmocka compares floats. */
static void assert_near(double is, double want)
{
    assert_true(fabs(is - want) <= 1e-12 * fabs(want));
}

/* Returns P(heads < k) of n coins, from Pascal's triangle. */
static double fewer_than(uint64_t n, uint64_t k)
{
    static double row[2048];
    double sum = 0;

    row[0] = 1;
    for (uint64_t i = 1; i <= n; i++) {
        row[i] = 0;
        for (uint64_t j = i; j > 0; j--)
            row[j] = (row[j] + row[j - 1]) / 2;
        row[0] /= 2;
    }
    for (uint64_t j = 0; j < k; j++)
        sum += row[j];
    return sum;
}

/* Few samples have no such interval. */
TEST(the_interval_is_the_narrowest_with_95_percent_coverage)
{
    static const uint64_t many[] = {333, 500, 777, 1000, 1001};

    for (uint64_t n = 0; n < INTERVAL_LEAST; n++)
        assert_int_equal(interval_of_median(n), 0);
    for (uint64_t n = INTERVAL_LEAST; n <= 200 + LENGTH(many); n++) {
        uint64_t samples = n <= 200 ? n : many[n - 201], k = interval_of_median(samples);

        assert_true(k > 0 && k <= samples / 2);
        assert_true(fewer_than(samples, k) <= 0.025);
        assert_true(fewer_than(samples, k + 1) > 0.025);
    }
}

TEST(outliers_are_beyond_the_modified_z_score)
{
    double x[] = {98, 99, 100, 101, 102, 100 + 14.8, 100 - 14.9};
    double scratch[7];
    struct stats s = stats_of(x, 7, scratch);

    assert_near(s.median, 100);
    assert_near(s.mad, 2); /* 0 1 1 2 2 14.8 14.9 */
    assert_int_equal(s.outliers, 0);
    x[5] = 100 + 2 * STATS_OUTLIER + 0.1;
    x[6] = 100 - 2 * STATS_OUTLIER - 0.1;
    assert_int_equal(stats_of(x, 7, scratch).outliers, 2);
}

/* ---- texts ---- */

static bool near(const char *want, const char *have)
{
    struct nearest nearest = {.want = want};

    nearest_try(&nearest, have);
    return nearest.name != NULL;
}

TEST(near_allows_one_edit_or_swap_in_short_names_and_two_in_long_ones)
{
    char *endless = malloc(70000);

    assert_true(near("shm", "shm"));
    assert_true(near("shn", "shm"));
    assert_false(near("sxx", "shm"));
    assert_true(near("hiden", "hidden"));
    assert_true(near("tokne", "token"));
    assert_false(near("kitten", "sitting"));
    assert_true(near("tranpsort", "transport"));
    assert_true(near("trnsprt", "transport"));
    assert_false(near("trsprt", "transport"));
    assert_true(near("FP8", "fp8"));
    memset(endless, 'a', 69999);
    endless[69999] = 0;
    assert_false(near(endless, "aaa"));
    assert_false(near("aaa", endless));
    free(endless);
}

TEST(sizes_read_well)
{
    static const struct {
        uint64_t bytes;
        const char *text;
    } c[] = {{0, "0 B"},
             {640, "640 B"},
             {(1 << 20) - 1, "1.00 MiB"},
             {15938355, "15.2 MiB"},
             {1536ull << 20, "1.50 GiB"},
             {UINT64_MAX, "16.0 EiB"}};
    char buf[32];

    for (size_t i = 0; i < LENGTH(c); i++)
        assert_string_equal(text_size(buf, sizeof(buf), c[i].bytes), c[i].text);
}

/* The printed result of a run must equal the output printed from its document. */
TEST(a_number_is_equal_after_it_is_written_and_read)
{
    static const double x[] = {1.0 / 3, 3.1124549996, 123456789.123, -2e18 / 7, 0.1 + 0.2, 1e-320};

    for (size_t i = 0; i < LENGTH(x); i++) {
        json_auto_t *number = json_number(x[i]), *again;
        text_auto text = {0};

        json_write(&text, number, JSON_ENCODE_ANY | JSON_DIGITS);
        again = json_loads(text.data, JSON_DECODE_ANY, NULL);
        assert_true(json_number_value(number) == json_number_value(again));
    }
}

/* ---- waiting ---- */

/* Counts the sleeps of a wait of 400 ms with more ranks than cores. 63 ranks that wait for the last
 * one must leave it a core: with sleeps of at most 1 ms they kept two cores busy, and the last rank
 * never ran. Each back-off counts for at most EPA_WAIT_BACKOFF_MAX_NS, so that load on the machine
 * does not shorten the wait. */
TEST(a_long_wait_wakes_up_rarely)
{
    struct rusage before, after;
    uint64_t waited = 0;

    getrusage(RUSAGE_THREAD, &before);
    while (waited < 400000000) {
        uint64_t begin = epa_now_ns(), ns;

        epa_backoff(waited, 0);
        ns = epa_now_ns() - begin;
        waited += ns < EPA_WAIT_BACKOFF_MAX_NS ? ns : EPA_WAIT_BACKOFF_MAX_NS;
    }
    getrusage(RUSAGE_THREAD, &after);
    assert_in_range(after.ru_nvcsw - before.ru_nvcsw, 1, 300);
}

static long sleeps_of(uint64_t waited_ns, uint64_t spin_ns)
{
    struct rusage before, after;

    getrusage(RUSAGE_THREAD, &before);
    epa_backoff(waited_ns, spin_ns);
    getrusage(RUSAGE_THREAD, &after);
    return after.ru_nvcsw - before.ru_nvcsw;
}

/* A longer time of yielding would keep other threads from the core: see epa_backoff(). */
TEST(a_wait_sleeps_after_200_us)
{
    assert_int_equal(sleeps_of(100000, 0), 0);
    assert_int_equal(sleeps_of(200000, 0), 1);
    assert_int_equal(sleeps_of(500000, UINT64_MAX), 0); /* spins */
}
