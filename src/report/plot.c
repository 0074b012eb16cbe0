/* Charts of results. Runs become one script for gnuplot: numbers in data blocks $s0, $s1, ..., names in
 * single quotes. Runs of one label are one experiment: their samples are taken together. */
#include "report/plot.h"

#include <jansson.h>
#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/json.h"
#include "base/stats.h"
#include "op/op.h"
#include "report/gnuplot.h"

enum {
    LINES_MOST = 24, /* more nobody can tell apart */
    ROWS_MOST = 64,
    FEW = 20,         /* samples; with fewer, p5 and p95 are the least and the most */
    ECDF_STEPS = 200, /* of a line */
    BINS = 24,        /* of a histogram */
};

/* A run that is drawn. */
struct source {
    const struct results_run *run;
    const char *path; /* of its file */
    const struct results_stage *stage;
    const struct operation *operation;
    double size; /* of a rank's inputs, by the operation's size_key; 0: not known */
    const char *label;
};

struct plot {
    const struct plot_wish *wish;
    struct arena *arena;
    struct text *out;
    struct source *source;
    uint32_t n, without;         /* runs that are drawn; that have no such samples */
    const char *note;            /* how to read it */
    const char *name[ROWS_MOST]; /* of data blocks, or of rows */
    uint32_t names;
};

static enum epa_status too_many(uint32_t most, const char *what, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_CONFIG,
                    "more than %u %s cannot be distinguished; --only selects runs", most, what);
}

/* ---- which runs ---- */

static const char *word_at(const json_t *object, const char *key)
{
    const char *word = json_text_at(object, key);

    return *word != '\0' ? word : "?";
}

static void collect(struct plot *p, const struct results *results, uint32_t n)
{
    uint32_t runs = 0;

    for (uint32_t i = 0; i < n; i++)
        runs += results[i].n;
    p->source = arena_alloc(p->arena, (runs + 1) * sizeof(*p->source));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < results[i].n; k++) {
            const struct results_run *run = &results[i].run[k];
            struct source *s = &p->source[p->n];

            if (!run->ok || !results_picked(run, p->wish->only, p->wish->n_only))
                continue;
            *s =
                (struct source){.run = run,
                                .path = results[i].path,
                                .stage = p->wish->stage != NULL ? results_stage(run, p->wish->stage)
                                                                : results_total(run)};
            s->size = results_size(run, &s->operation);
            p->n += s->stage != NULL;
            p->without += s->stage == NULL;
        }
    }
}

static enum epa_status explain_none(const struct plot *p, const struct results *results, uint32_t n,
                                    struct epa_error *err)
{
    if (p->without > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: no run has samples of stage %s; bench and run take them, verify "
                        "does not",
                        results[0].path, p->wish->stage != NULL ? p->wish->stage : "total");
    if (p->wish->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--only '%s': no run that ended well has that label or id",
                        p->wish->only[0]);
    return epa_fail(err, EPA_ERR_CONFIG, "%s%s: no run in it that ended well", results[0].path,
                    n > 1 ? " and others" : "");
}

/* One label in two files is two lines: A and B are there to be seen side by side. */
static void add_files(struct plot *p)
{
    bool several = false;

    for (uint32_t i = 1; i < p->n; i++)
        for (uint32_t k = 0; k < i && !several; k++)
            several = strcmp(p->source[i].path, p->source[k].path) != 0 &&
                      strcmp(p->source[i].label, p->source[k].label) == 0;
    for (uint32_t i = 0; i < p->n && several; i++)
        p->source[i].label =
            arena_printf(p->arena, "%s (%s)", p->source[i].label, p->source[i].path);
}

static void label_runs(struct plot *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        p->source[i].label = p->source[i].run->label;
    add_files(p);
}

static void label_lines(struct plot *p)
{
    struct results_names names = {0};

    for (uint32_t i = 0; i < p->n; i++)
        results_names_add(&names, p->source[i].run);
    for (uint32_t i = 0; i < p->n; i++) {
        struct text label = {0};

        results_name(&names, p->source[i].run, &label);
        p->source[i].label = arena_strndup(p->arena, label.data, label.bytes);
        text_free(&label);
    }
    results_names_free(&names);
    add_files(p);
}

/* ---- parts of a script ---- */

/* The data block of a line; false: there are too many. */
static bool begin_data(struct plot *p, const char *name)
{
    if (p->names == LINES_MOST)
        return false;
    text_add(p->out, "$s%u << EOD\n", p->names);
    p->name[p->names++] = name;
    return true;
}

static bool is_first_of_label(const struct plot *p, uint32_t i)
{
    return i == 0 || strcmp(p->source[i].label, p->source[i - 1].label) != 0;
}

static void begin(struct plot *p, const char *title, const char *x, const char *y, uint32_t rows)
{
    gnuplot_terminal(p->out, p->wish->form, rows);
    gnuplot_setting(p->out, "set title", title);
    gnuplot_setting(p->out, "set xlabel", x);
    gnuplot_setting(p->out, "set ylabel", y);
}

/* The machine, and that there are others. */
static const char *caption(const struct plot *p)
{
    const json_t *machine = json_object_get(p->source[0].run->json, "machine");
    const char *device = json_text_at(json_object_get(machine, "device"), "device");
    bool others = false;

    for (uint32_t i = 1; i < p->n; i++) {
        const json_t *other = json_object_get(p->source[i].run->json, "machine");

        others = others || strcmp(word_at(machine, "host"), word_at(other, "host")) != 0 ||
                 strcmp(word_at(machine, "cpu"), word_at(other, "cpu")) != 0;
    }
    return arena_printf(p->arena, "%s, %lld cores%s%s, on %s%s; epa2a %s", word_at(machine, "cpu"),
                        (long long)json_integer_value(json_object_get(machine, "cores")),
                        *device != '\0' ? ", " : "", device, word_at(machine, "host"),
                        others ? " and other machines" : "",
                        word_at(json_object_get(machine, "build"), "version"));
}

/* Text has them below the chart, and no margin to put them into. */
static void add_captions(struct plot *p, bool before)
{
    const char *line[] = {p->note, caption(p)};

    if (p->wish->form == PLOT_TEXT && !before) {
        text_add(p->out, "set print '-'\nprint ''\n");
        for (int i = 0; i < 2; i++)
            gnuplot_setting(p->out, "print", line[i]);
    } else if (p->wish->form != PLOT_TEXT && before) {
        text_add(p->out, "set bmargin 7\n");
        gnuplot_setting(p->out, "set label 1 at screen 0.02, screen 0.06 font ',10'", line[0]);
        gnuplot_setting(p->out, "set label 2 at screen 0.02, screen 0.025 font ',10'", line[1]);
    }
}

/* ---- samples ---- */

static int by_label(const void *a, const void *b)
{
    const struct source *x = a, *y = b;
    int order = strcmp(x->label, y->label);

    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

/* Samples of the runs from `at` on that are one experiment, sorted; with `sized` of one size. */
static double *pool(const struct plot *p, uint32_t at, bool sized, uint32_t *end, uint64_t *n)
{
    double *all;

    *n = 0;
    for (*end = at;
         *end < p->n && (sized ? by_label(&p->source[at], &p->source[*end]) == 0
                               : strcmp(p->source[at].label, p->source[*end].label) == 0);
         (*end)++)
        *n += p->source[*end].stage->n;
    all = arena_alloc(p->arena, *n * sizeof(*all));
    *n = 0;
    for (uint32_t i = at; i < *end; i++)
        for (uint64_t k = 0; k < p->source[i].stage->n; k++)
            all[(*n)++] = gnuplot_us(p->source[i].stage->sample[k]);
    stats_sort(all, *n);
    return all;
}

static enum epa_status draw_tokens(struct plot *p, struct epa_error *err)
{
    const struct operation *op = p->source[0].operation;
    double lowest = INFINITY, highest = 0, smallest = INFINITY, largest = 0;

    for (uint32_t i = 0; i < p->n; i++)
        if (!(p->source[i].size > 0))
            return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' has no %s", p->source[i].path,
                            p->source[i].run->label, operation_at(0)->size_key);
    label_lines(p);
    qsort(p->source, p->n, sizeof(*p->source), by_label);
    begin(p, arena_printf(p->arena, "Latency against %s: %s", op->unit, p->source[0].stage->name),
          arena_printf(p->arena, "%s (%s)", op->size_label, op->size_key), "time [us]", 0);
    p->note = "medians; whiskers: 5 % to 95 % of samples, all of them where they are under 20";
    add_captions(p, true);
    for (uint32_t i = 0, end; i < p->n; i = end) {
        uint64_t n;
        const double *all = pool(p, i, true, &end, &n);
        double low = stats_percentile(all, n, n < FEW ? 0 : 50);
        double high = stats_percentile(all, n, n < FEW ? 1000 : 950);

        if (is_first_of_label(p, i) && !begin_data(p, p->source[i].label))
            return too_many(LINES_MOST, "lines", err);
        gnuplot_numbers(p->out, 4,
                        (double[]){p->source[i].size, stats_percentile(all, n, 500), low, high});
        if (end == p->n || is_first_of_label(p, end))
            text_add(p->out, "EOD\n");
        lowest = fmin(lowest, low);
        highest = fmax(highest, high);
        smallest = fmin(smallest, p->source[i].size);
        largest = fmax(largest, p->source[i].size);
    }
    text_add(p->out, "set logscale x 2\nset xrange [%.9g:%.9g]\nset key left top\n",
             smallest / 1.15, largest * 1.15);
    gnuplot_log_axis(p->out, lowest, highest);
    for (uint32_t k = 0; k < p->names; k++) {
        text_add(p->out,
                 "%s$s%u using 1:2:3:4 with yerrorbars linetype %u pointtype 0 notitle, "
                 "$s%u using 1:2 with linespoints linetype %u linewidth 2 pointtype %u title ",
                 k == 0 ? "plot " : ", \\\n", k, k + 1, k, k + 1,
                 p->wish->form == PLOT_TEXT ? k + 1 : 7);
        gnuplot_name(p->out, p->name[k]);
    }
    text_add(p->out, "\n");
    /* The numbers that lines stand for: what characters cannot show. */
    for (uint32_t k = 0; k < p->names && p->wish->form == PLOT_TEXT; k++) {
        gnuplot_setting(p->out, "set print '-'\nprint ''\nprint", p->name[k]);
        text_add(p->out, "print '%11s %10s %10s %10s'\nprint $s%u\n", op->unit, "median", "low",
                 "high", k);
    }
    return EPA_OK;
}

static void draw_histogram(struct plot *p, const double *all, uint64_t n)
{
    uint32_t bins = (uint32_t)fmin(fmax(2 * cbrt((double)n), 5), BINS);
    double quarter = stats_percentile(all, n, 250), three = stats_percentile(all, n, 750);
    double fence = three + 4 * (three - quarter), largest = all[n - 1], low = all[0];
    bool open =
        three > quarter && largest > fence; /* far outliers are not to press the others into one */
    double high = open ? fence : largest, width = (high - low) / bins;
    uint64_t count[BINS];

    p->note = arena_printf(p->arena, "%llu samples, median %.4g us, largest %.4g us%s",
                           (unsigned long long)n, stats_percentile(all, n, 500), largest,
                           open ? "; the last bin has all above it, too" : "");
    stats_histogram(all, n, low, high, count, bins);
    width = width > 0 ? width : low / 100;
    begin(p,
          arena_printf(p->arena, "Distribution of samples: %s, %s", p->source[0].stage->name,
                       p->source[0].label),
          "time [us]", "samples", 0);
    add_captions(p, true);
    text_add(p->out, "$s0 << EOD\n");
    for (uint32_t i = 0; i < bins; i++)
        gnuplot_numbers(p->out, 3, (double[]){low + (i + 0.5) * width, (double)count[i], width});
    text_add(p->out, "EOD\nset yrange [0:*]\nset style fill solid 0.6\n"
                     "plot $s0 using 1:2:3 with boxes linetype 1 notitle\n");
}

static enum epa_status draw_distribution(struct plot *p, struct epa_error *err)
{
    uint32_t end;
    uint64_t n;
    const double *all;

    label_runs(p);
    qsort(p->source, p->n, sizeof(*p->source), by_label);
    all = pool(p, 0, false, &end, &n);
    if (end == p->n) {
        draw_histogram(p, all, n);
        return EPA_OK;
    }
    begin(p, arena_printf(p->arena, "Distribution of samples: %s", p->source[0].stage->name),
          "time [us]", "samples up to that time [%]", 0);
    p->note = "a line that is further left is faster, one that is steeper is steadier";
    add_captions(p, true);
    text_add(p->out, "set yrange [0:100]\nset key right bottom\n");
    for (uint32_t i = 0; i < p->n; i = end) {
        all = pool(p, i, false, &end, &n);
        if (!begin_data(p, p->source[i].label))
            return too_many(LINES_MOST, "lines", err);
        for (uint64_t k = 0; k <= ECDF_STEPS; k++) {
            uint64_t rank = (n - 1) * k / ECDF_STEPS;

            gnuplot_numbers(p->out, 2,
                            (double[]){all[rank], 100.0 * (double)(rank + 1) / (double)n});
        }
        text_add(p->out, "EOD\n");
    }
    for (uint32_t k = 0; k < p->names; k++) {
        text_add(p->out, "%s$s%u using 1:2 with steps linetype %u linewidth 2 title ",
                 k == 0 ? "plot " : ", \\\n", k, k + 1);
        gnuplot_name(p->out, p->name[k]);
    }
    text_add(p->out, "\n");
    return EPA_OK;
}

/* ---- rows: ranks against each other, and stages on top of each other ---- */

static const json_t *stage_json(const struct source *s, const char *name)
{
    const json_t *stages = json_object_get(s->run->json, "stages"), *stage = NULL;

    for (size_t i = 0; i < json_array_size(stages); i++) {
        stage = json_array_get(stages, i);
        if (strcmp(json_text_at(stage, "name"), name) == 0)
            return stage;
    }
    return NULL;
}

/* NaN: it has no such number. */
static double us_at(const json_t *object, const char *key)
{
    const json_t *ns = json_object_get(object, key);

    return json_is_number(ns) ? gnuplot_us(json_number_value(ns)) : NAN;
}

/* The first one is on top. */
static void add_row_names(struct plot *p)
{
    text_add(p->out, "set yrange [-0.6:%u.6]\nset ytics (", p->names - 1);
    for (uint32_t i = 0; i < p->names; i++) {
        text_add(p->out, i == 0 ? "" : ", ");
        gnuplot_name(p->out, p->name[i]);
        text_add(p->out, " %u", p->names - 1 - i);
    }
    text_add(p->out, ")\n");
}

/* How far each rank is off the median of all, in percent; false: a rank alone is nobody's equal. */
static bool ranks_off(struct plot *p, const struct source *s, const char *stage, double *off,
                      uint32_t n)
{
    const json_t *ranks = json_object_get(stage_json(s, stage), "ranks");
    double *known = arena_alloc(p->arena, (n + 1) * sizeof(*known)), median;
    uint32_t have = 0;

    for (uint32_t i = 0; i < n; i++) {
        off[i] = us_at(json_array_get(ranks, i), "median_ns");
        if (!isnan(off[i]))
            known[have++] = off[i];
    }
    if (have < 2)
        return false;
    stats_sort(known, have);
    median = stats_percentile(known, have, 500);
    for (uint32_t i = 0; i < n; i++)
        off[i] = 100 * (off[i] / median - 1);
    return true;
}

/* Rows are runs, or the stages of the only run. Text has a line for each, as it has no shades. */
static enum epa_status draw_skew(struct plot *p, struct epa_error *err)
{
    const struct results_run *one = p->source[0].run;
    bool text = p->wish->form == PLOT_TEXT;
    uint32_t ranks = 0, all = p->n > 1 ? p->n : one->n_stages;
    double *off, most = 5; /* noise is not to look like a finding */

    if (p->n > ROWS_MOST)
        return too_many(ROWS_MOST, "runs", err);
    label_runs(p);
    for (uint32_t i = 0; i < p->n; i++) {
        const json_t *stage = stage_json(&p->source[i], p->source[i].stage->name);
        size_t n = json_array_size(json_object_get(stage, "ranks"));

        ranks = n > ranks ? (uint32_t)n : ranks;
    }
    off = arena_alloc(p->arena, (size_t)(ranks + 1) * ROWS_MOST * sizeof(*off));
    for (uint32_t i = 0; i < all && p->names < ROWS_MOST; i++) {
        const struct source *s = &p->source[p->n > 1 ? i : 0];
        const char *stage = p->n > 1 ? s->stage->name : one->stage[i].name;
        double *mine = off + (size_t)p->names * ranks;
        uint32_t slowest = 0;

        if ((p->n == 1 && one->stage[i].n == 0) || !ranks_off(p, s, stage, mine, ranks))
            continue;
        for (uint32_t r = 0; r < ranks; r++)
            slowest = mine[r] > mine[slowest] || isnan(mine[slowest]) ? r : slowest;
        p->name[p->names] = p->n > 1 ? s->label : stage;
        if (text)
            p->name[p->names] = arena_printf(p->arena, "%s, slowest: rank %u (%+.1f %%)",
                                             p->name[p->names], slowest, mine[slowest]);
        p->names++;
    }
    if (p->names == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has times of two ranks or more to compare",
                        p->source[0].path);
    begin(p,
          arena_printf(p->arena, "Ranks: %s",
                       p->n == 1 ? p->source[0].label : p->source[0].stage->name),
          "rank", text ? "off the median of its row [%]" : "", p->names);
    p->note = "each rank's median against the median of the ranks of its row";
    add_captions(p, true);
    text_add(p->out, "set xrange [-0.5:%u.5]\nset xtics 0,%u\n", ranks - 1, ranks / 16 + 1);
    for (uint32_t i = 0; i < p->names; i++) {
        text_add(p->out, "$s%u << EOD\n", i);
        for (uint32_t r = 0; r < ranks; r++) {
            double at = off[(size_t)i * ranks + r];

            if (isnan(at))
                continue;
            most = fmax(most, fabs(at));
            gnuplot_numbers(p->out, 3, (double[]){r, p->names - 1 - i, at});
        }
        text_add(p->out, "EOD\n");
    }
    if (!text) {
        add_row_names(p);
        text_add(
            p->out,
            "set cblabel 'off the median of its row [%%]'\nunset grid\nset cbrange [%.9g:%.9g]\n"
            "set palette defined (-1 '#2166ac', 0 '#f7f7f7', 1 '#b2182b')\n"
            "set style fill solid 1 noborder\n",
            -most, most);
    } else {
        text_add(p->out, "set key above\n");
    }
    for (uint32_t i = 0; i < p->names; i++) {
        text_add(p->out,
                 text ? "%s$s%u using 1:3 with linespoints title "
                      : "%s$s%u using 1:2:($1-0.5):($1+0.5):($2-0.45):($2+0.45):3 with "
                        "boxxyerror linecolor palette title ",
                 i == 0 ? "plot " : ", \\\n", i);
        gnuplot_name(p->out, text ? p->name[i] : "");
    }
    text_add(p->out, "\n");
    return EPA_OK;
}

static enum epa_status draw_stages(struct plot *p, struct epa_error *err)
{
    const char *column[LINES_MOST];
    double sum[ROWS_MOST] = {0}, mark[ROWS_MOST], longest = 0;
    uint32_t columns = 0;
    bool limits = false;

    if (p->n > ROWS_MOST)
        return too_many(ROWS_MOST, "runs", err);
    label_runs(p);
    for (uint32_t i = 0; i < p->n; i++) {
        const struct source *s = &p->source[i];

        p->name[p->names++] = s->label;
        mark[i] = us_at(stage_json(s, s->stage->name), "peak_ns");
        limits = limits || !isnan(mark[i]);
        for (uint32_t k = 0; k < s->run->n_stages; k++) {
            bool known = strcmp(s->run->stage[k].name, "total") == 0 || s->run->stage[k].n == 0;

            for (uint32_t c = 0; c < columns && !known; c++)
                known = strcmp(column[c], s->run->stage[k].name) == 0;
            if (!known && columns < LINES_MOST)
                column[columns++] = s->run->stage[k].name;
        }
    }
    if (columns == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has stages beside the total",
                        p->source[0].path);
    begin(p, "Stages", "time [us]", "", p->n);
    p->note = "medians of stages, one after the other; limit: the least time the links allow";
    add_captions(p, true);
    add_row_names(p);
    text_add(p->out, "set key outside above\nset style fill solid 0.7\n");
    for (uint32_t c = 0; c < columns; c++) {
        text_add(p->out, "$s%u << EOD\n", c);
        for (uint32_t i = 0; i < p->n; i++) {
            double ns =
                us_at(json_object_get(stage_json(&p->source[i], column[c]), "ns"), "median");
            double before = sum[i];

            sum[i] += isnan(ns) ? 0 : ns;
            longest = fmax(longest, fmax(sum[i], mark[i]));
            gnuplot_numbers(p->out, 4, (double[]){p->n - 1 - i, before, sum[i], mark[i]});
        }
        text_add(p->out, "EOD\n");
    }
    text_add(p->out, "set xrange [0:%.9g]\n$t << EOD\n", longest * 1.4); /* for the sums */
    for (uint32_t i = 0; i < p->n; i++) {
        text_add(p->out, "%u %.9g \"%.1f us", p->n - 1 - i, sum[i], sum[i]);
        if (!isnan(mark[i]))
            text_add(p->out, ", limit %.0f %%", 100 * mark[i] / sum[i]);
        text_add(p->out, "\"\n");
    }
    text_add(p->out, "EOD\n");
    for (uint32_t c = 0; c < columns; c++) {
        text_add(p->out,
                 "%s$s%u using 2:1:2:3:($1-0.35):($1+0.35) with boxxyerror linetype %u title ",
                 c == 0 ? "plot " : ", \\\n", c, c + 1);
        gnuplot_name(p->out, column[c]);
    }
    text_add(p->out, ", \\\n$t using 2:1:3 with labels left offset 1,0 notitle");
    for (int up = 1; up >= -1 && limits; up -= 2)
        text_add(p->out,
                 ", \\\n$s0 using 4:1:(0):(%.2f) with vectors nohead linewidth 3 linecolor 'black' "
                 "%s",
                 up * 0.42, up > 0 ? "title 'limit'" : "notitle");
    text_add(p->out, "\n");
    return EPA_OK;
}

/* ---- all of it ---- */

static enum plot_kind choose(const struct plot *p)
{
    for (uint32_t i = 1; i < p->n; i++) {
        double a = p->source[0].size, b = p->source[i].size;

        if (a > 0 && b > 0 && (a < b || a > b))
            return PLOT_TOKENS;
    }
    return p->n == 1 ? PLOT_DISTRIBUTION : PLOT_STAGES;
}

enum epa_status plot_script(const struct results *results, uint32_t n, const struct plot_wish *wish,
                            struct text *out, struct epa_error *err)
{
    static enum epa_status (*const draw[])(struct plot *, struct epa_error *) = {
        [PLOT_TOKENS] = draw_tokens,
        [PLOT_DISTRIBUTION] = draw_distribution,
        [PLOT_SKEW] = draw_skew,
        [PLOT_STAGES] = draw_stages};
    struct plot p = {.wish = wish, .arena = arena_create(), .out = out};
    enum epa_status status;

    collect(&p, results, n);
    if (p.n == 0)
        status = explain_none(&p, results, n, err);
    else
        status = draw[wish->kind == PLOT_AUTO ? choose(&p) : wish->kind](&p, err);
    if (status == EPA_OK)
        add_captions(&p, false);
    arena_destroy(p.arena);
    return status;
}
