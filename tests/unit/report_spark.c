/* The shape of samples in one line. */
#include "test.h"

#include "report/report_lines.h"

enum { SAMPLES = 100 };

/* What is printed of these samples of the only row. */
static char *print(double *sample, uint64_t n)
{
    static double scratch[SAMPLES];
    struct result result = {.n_stages = 1};
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    result.stage[0] = (struct result_stage){
        .name = "total", .sample = sample, .slowest = stats_of(sample, n, scratch)};
    report_sparks(file, &result);
    fclose(file);
    return text;
}

TEST(height_is_by_the_highest_place)
{
    double sample[SAMPLES];
    char *text;

    /* From 1000 to p99, 3000: twenty places of 100 ns. In the first there are 80, in the second
     * 10, 1 in the eleventh, and in the last those of 3000 and the one above. */
    for (int i = 0; i < SAMPLES; i++)
        sample[i] = i < 80 ? 1000 : i < 90 ? 1150 : i < 91 ? 2050 : i < 99 ? 3000 : 9000;
    setenv("LC_ALL", "C", 1);
    text = print(sample, SAMPLES);
    assert_string_equal(text, "# samples from the shortest to p99; the last place has those above\n"
                              "#   total                |#.        .        .| 1.00 to 3.00 us\n");
    free(text);
    setenv("LC_ALL", "de_DE.utf8", 1);
    text = print(sample, SAMPLES);
    assert_non_null(strstr(text, "|█▁        ▁        ▁|"));
    free(text);
}

TEST(few_samples_and_alike_ones_have_no_shape)
{
    double sample[SAMPLES];
    char *text;

    for (int i = 0; i < SAMPLES; i++)
        sample[i] = i + 1;
    text = print(sample, 49);
    assert_string_equal(text, "");
    free(text);
    for (int i = 0; i < SAMPLES; i++)
        sample[i] = 7;
    text = print(sample, SAMPLES);
    assert_string_equal(text, "");
    free(text);
}
