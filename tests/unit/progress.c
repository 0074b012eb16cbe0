/* The progress line: what it says, and that it never is wider than it may be. */
#include <math.h>
#include "test.h"
#include <unistd.h>

#include "base/text.h"
#include "cli/live.h"

static const struct progress_facts facts = {.verb = "bench",
                                            .label = "topk=8",
                                            .number = 3,
                                            .of = 12,
                                            .done = 1334,
                                            .warmup = 100,
                                            .iterations = 5000,
                                            .median_ns = 12340,
                                            .left_s = 80};

static void line_is(const struct progress_facts *f, uint32_t columns, const char *want)
{
    struct text text = {0};

    text_add(&text, "%s", "");
    progress_line(f, columns, &text);
    assert_string_equal(text.data, want);
    text_free(&text);
}

TEST(says_run_iteration_median_and_time_left)
{
    line_is(&facts, 100,
            "bench 3/12 topk=8: iteration 1234/5000, median 12.34 us, 1 min 20 s left");
}

TEST(says_what_is_known_and_no_more)
{
    struct progress_facts f = facts;

    f.median_ns = f.left_s = NAN;
    line_is(&f, 100, "bench 3/12 topk=8: iteration 1234/5000");
    f.done = 7;
    line_is(&f, 100, "bench 3/12 topk=8: warm-up 7/100");
    f.set_up = true;
    line_is(&f, 100, "bench 3/12 topk=8: set-up");
}

TEST(a_rule_that_may_end_it_sooner_makes_it_at_most)
{
    struct progress_facts f = facts;

    f.at_most = true;
    f.left_s = 7300;
    f.median_ns = 2.5e6;
    line_is(&f, 100,
            "bench 3/12 topk=8: iteration 1234/5000, median 2.50 ms, at most 2 h 01 min left");
}

TEST(the_last_iteration_is_not_passed)
{
    struct progress_facts f = facts;

    f.done = 5101; /* the one that is checked, behind the last */
    f.median_ns = f.left_s = NAN;
    line_is(&f, 100, "bench 3/12 topk=8: iteration 5000/5000");
}

TEST(the_label_gives_way_to_numbers)
{
    struct progress_facts f = facts;

    f.label = "a label that is longer than there is room for";
    line_is(&f, 70, "bench 3/12 a la: iteration 1234/5000, median 12.34 us, 1 min 20 s left");
    line_is(&f, 60, "iteration 1234/5000, median 12.34 us, 1 min 20 s left");
    line_is(&f, 20, "iteration 1234/5000,");
    line_is(&f, 1, "i");
    line_is(&f, 0, "");
}

TEST(characters_are_whole_and_count_as_wide_as_they_may_be)
{
    struct progress_facts f = facts;

    f.median_ns = f.left_s = NAN;
    f.label = "\xc3\xa9\xe4\xb8\xad\xe6\x96\x87"; /* one column, and two of two */
    line_is(&f, 37, "bench 3/12 \xc3\xa9\xe4\xb8\xad\xe6\x96\x87: iteration 1234/5000");
    line_is(&f, 36, "bench 3/12 \xc3\xa9\xe4\xb8\xad: iteration 1234/5000");
    line_is(&f, 34, "bench 3/12 \xc3\xa9: iteration 1234/5000");
}

TEST(nothing_in_a_label_moves_the_cursor)
{
    struct progress_facts f = facts;

    f.median_ns = f.left_s = NAN;
    f.label = "a\033[2J\r\n\xc2\x9b\xe2\x80\xae\xff\xc0\x80z";
    line_is(&f, 100, "bench 3/12 a?[2J??????z: iteration 1234/5000");
}

TEST(only_standard_streams_are_coloured)
{
    char *text = NULL;
    size_t bytes = 0;
    FILE *file = open_memstream(&text, &bytes);

    colour_choose(COLOUR_ALWAYS);
    assert_string_equal(colour_on(file, COLOUR_ERROR), "");
    assert_string_equal(colour_on(stderr, COLOUR_ERROR), "\033[1;31m");
    assert_string_equal(colour_off(stderr), "\033[0m");
    colour_choose(COLOUR_NEVER);
    assert_string_equal(colour_on(stderr, COLOUR_ERROR), "");
    assert_string_equal(colour_off(stderr), "");
    fclose(file);
    free(text);
}
