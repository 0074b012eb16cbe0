/* random.h: values look like what they say. That a place has one value all checks of `verify` need. */
#include "test.h"

#include <math.h>

#include "base/random.h"

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
