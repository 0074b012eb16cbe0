/* Tests of the progress line: its text, and its width limit. */
#include "test.h"

#include <math.h>

#include "base/memory.h"
#include "base/text.h"
#include "cli/progress_line.h"

TEST(a_line_shows_the_known_figures_and_fits_its_width)
{
    static const struct {
        const char *label;
        uint64_t done;
        double median_ns, left_s;
        uint32_t columns;
        bool set_up, at_most;
        const char *want;
    } c[] = {
        {"topk=8", 1334, 12340, 80, 100, false, false,
         "bench 3/12 topk=8: iteration 1234/5000, median 12.34 us, 1 min 20 s left"},
        {"topk=8", 1334, 2.5e6, 7300, 100, false, true,
         "bench 3/12 topk=8: iteration 1234/5000, median 2.50 ms, at most 2 h 01 min left"},
        {"topk=8", 1334, NAN, NAN, 100, false, false, "bench 3/12 topk=8: iteration 1234/5000"},
        {"topk=8", 7, NAN, NAN, 100, false, false, "bench 3/12 topk=8: warm-up 7/100"},
        {"topk=8", 7, NAN, NAN, 100, true, false, "bench 3/12 topk=8: set-up"},
        /* the checked iteration after the last timed one */
        {"topk=8", 5101, NAN, NAN, 100, false, false, "bench 3/12 topk=8: iteration 5000/5000"},
        {"a label that is longer than there is room for", 1334, 12340, 80, 70, false, false,
         "bench 3/12 a la: iteration 1234/5000, median 12.34 us, 1 min 20 s left"},
        {"a label", 1334, 12340, 80, 60, false, false,
         "iteration 1234/5000, median 12.34 us, 1 min 20 s left"},
        {"a label", 1334, 12340, 80, 20, false, false, "iteration 1234/5000,"},
        {"a label", 1334, 12340, 80, 0, false, false, ""},
        /* characters are kept whole; they have one and two columns */
        {"\xc3\xa9\xe4\xb8\xad\xe6\x96\x87", 1334, NAN, NAN, 37, false, false,
         "bench 3/12 \xc3\xa9\xe4\xb8\xad\xe6\x96\x87: iteration 1234/5000"},
        {"\xc3\xa9\xe4\xb8\xad\xe6\x96\x87", 1334, NAN, NAN, 36, false, false,
         "bench 3/12 \xc3\xa9\xe4\xb8\xad: iteration 1234/5000"},
        {"a\033[2J\r\n\xc2\x9b\xe2\x80\xae\xff\xc0\x80z", 1334, NAN, NAN, 100, false, false,
         "bench 3/12 a?[2J??????z: iteration 1234/5000"},
    };

    for (size_t i = 0; i < LENGTH(c); i++) {
        const struct progress_facts facts = {.verb = "bench",
                                             .label = c[i].label,
                                             .number = 3,
                                             .of = 12,
                                             .done = c[i].done,
                                             .warmup = 100,
                                             .iterations = 5000,
                                             .median_ns = c[i].median_ns,
                                             .left_s = c[i].left_s,
                                             .set_up = c[i].set_up,
                                             .at_most = c[i].at_most};
        struct text text = {0};

        text_add(&text, "%s", "");
        progress_line(&facts, c[i].columns, &text);
        assert_string_equal(text.data, c[i].want);
        text_free(&text);
    }
}
