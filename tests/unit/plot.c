/* Charts that are made by hand: what is drawn with characters, and the script for gnuplot. */
#include <math.h>
#include "test.h"

#include "report/plot.h"

static struct plot_point points[] = {{1, 10, NAN, NAN}, {4, 20, 15, 40}};
static struct plot_series series[] = {{"it's `a` name\n", points, 2}, {"two", points, 1}};
static const struct plot lines = {.kind = PLOT_TOKENS,
                                  .title = "A title",
                                  .caption = "A machine",
                                  .note = "A note",
                                  .x = {"tokens", 2, 1, 4},
                                  .y = {"time", 10, 10, 100},
                                  .series = series,
                                  .n_series = 2};

static void assert_contains(const struct text *text, const char *what)
{
    if (strstr(text->data, what) == NULL)
        fail_msg("there is no '%s' in\n%s", what, text->data);
}

TEST(lines_have_points_whiskers_and_what_is_between)
{
    struct text text = {0};

    plot_text(&lines, false, &text);
    assert_memory_equal(text.data, "A title\n\ntime\n", 14);
    assert_contains(&text, "    100 |\n");
    /* The whisker of the last point, from 15 to 40: the mark is in it. */
    assert_contains(&text, "                |\n");
    assert_contains(&text, "..*\n");
    assert_contains(&text, "     10 |o..");
    assert_contains(
        &text, "\n         1                               2                              4\n");
    assert_contains(&text, "           4       20.0       15.0       40.0\n");
    assert_contains(&text, "\nA note\nA machine\n");
    text_free(&text);
}

TEST(names_cannot_be_commands_of_gnuplot)
{
    struct text script = {0};

    plot_script(&lines, PLOT_SVG, &script);
    assert_contains(&script, "title 'it''s ?a? name?'");
    assert_null(strchr(script.data, '`'));
    assert_contains(&script, "set terminal svg noenhanced ");
    assert_contains(&script, "set logscale x 2\n");
    assert_contains(&script, "$s0 << EOD\n 1 10 NaN NaN\n 4 20 15 40\nEOD\n");
    text_free(&script);
}

TEST(a_histogram_shows_even_one_sample)
{
    static struct plot_point bins[] = {{5, 1000, 0, 10}, {15, 1, 10, 20}, {25, 0, 20, 30}};
    static struct plot_series one[] = {{"one", bins, 3}};
    const struct plot plot = {.kind = PLOT_DISTRIBUTION,
                              .title = "t",
                              .caption = "c",
                              .note = "n",
                              .x = {"time [us]", 0, 0, 30},
                              .y = {"samples", 0, 0, 1000},
                              .series = one,
                              .n_series = 1,
                              .bars = true,
                              .open = true};
    struct text text = {0};

    plot_text(&plot, false, &text);
    assert_contains(&text, "       10  to        20 |# 1\n");
    assert_contains(&text, "       20 and     above | 0\n");
    assert_contains(&text, "################################################ 1000\n");
    text_free(&text);
}

TEST(stacks_end_where_their_sums_do_and_count_characters)
{
    static double first[] = {1, 1, 1}, second[] = {NAN, 2, NAN};
    static struct plot_row rows[] = {{"\xc3\xbc", first, NAN}, {"b", second, 1}};
    static const char *columns[] = {"x", "y", "z"};
    const struct plot plot = {.kind = PLOT_STAGES,
                              .title = "t",
                              .caption = "c",
                              .note = "n",
                              .x = {"time [us]", 0, 0, 4},
                              .column = columns,
                              .n_columns = 3,
                              .row = rows,
                              .n_rows = 2};
    struct text text = {0};

    plot_text(&plot, false, &text);
    assert_contains(&text, "  \xc3\xbc        |################================++++++++++++++++"
                           "                        3.0 us\n");
    assert_contains(&text, "  b        |================|===============");
    assert_contains(&text, "2.0 us, limit 50 %\n");
    text_free(&text);
    plot_script(&plot, PLOT_PNG, &text);
    assert_contains(&text, "set terminal pngcairo noenhanced ");
    assert_contains(&text, "$s1 << EOD\n1 1 2 NaN\n0 0 2 1\nEOD\n");
    text_free(&text);
}

TEST(many_ranks_are_shades)
{
    static double value[20];
    static const char *columns[20];
    static struct plot_row rows[] = {{"total", value, 100}};
    const struct plot plot = {.kind = PLOT_SKEW,
                              .title = "t",
                              .caption = "c",
                              .note = "n",
                              .x = {.label = "rank"},
                              .y = {.label = "off"},
                              .column = columns,
                              .n_columns = 20,
                              .row = rows,
                              .n_rows = 1};
    struct text text = {0};

    for (int i = 0; i < 20; i++) {
        value[i] = 100;
        columns[i] = "rank";
    }
    value[0] = 90;
    value[7] = NAN;
    value[18] = 104;
    value[19] = 200;
    plot_text(&plot, false, &text);
    assert_contains(&text, ".------ ----------=#  slowest: rank (+100.0 %)\n");
    text_free(&text);
    plot_script(&plot, PLOT_SVG, &text);
    assert_contains(&text, "set cbrange [-100:100]\n");
    text_free(&text);
}
