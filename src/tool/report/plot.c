/* Charts of results. Runs become one script for gnuplot: numbers in a data block $d with an index
 * for each line, their names in an array T. Runs with one label are one experiment: their samples
 * are pooled. */
#include "report/plot.h"

#include "report/results.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/stats.h"
#include "base/text.h"
#include "op/operations.h"

enum {
    LINES_MOST = 24, /* a reader cannot distinguish more */
    ROWS_MOST = 64,
    FEW = 20,         /* samples; with fewer, p5 and p95 are minimum and maximum */
    ECDF_STEPS = 200, /* of a line */
    BINS = 24,        /* of a histogram */
    COLUMNS_LEAST = 40,
};

struct plot {
    const struct plot_wish *wish;
    struct arena *arena;
    struct text *out;
    struct results_run *run; /* [n] runs of the chart; `title` is the name of the line */
    uint32_t n;
    const struct machine_facts *machine; /* of a prediction, which has no runs; or NULL */
    struct text data;                    /* contents of $d */
    struct text below;                   /* lines that text prints below the chart */
    const char *name[LINES_MOST];
    uint32_t names;
};

static enum epa_status too_many(uint32_t most, const char *what, struct epa_error *err)
{
    return epa_fail(err, EPA_ERR_CONFIG,
                    "more than %u %s cannot be distinguished; --only selects runs", most, what);
}

/* ---- selection of runs ---- */

static enum epa_status collect(struct plot *p, struct results *results, struct epa_error *err)
{
    const struct results_wish *wish = &p->wish->which;
    uint32_t without = results_choose(results, wish);

    if (results->n == 0 && without > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "%s: no run has samples of stage %s; bench and run take them, verify "
                        "does not",
                        results->path, wish->stage != NULL ? wish->stage : "total");
    if (results->n == 0 && wish->n_only > 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "--only '%s': no run that ended well has that label or id", wish->only[0]);
    if (results->n == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run in it that ended well", results->path);
    p->n = results->n;
    p->run = results->run;
    return EPA_OK;
}

/* Gives one label in two files two lines, so that files A and B can be compared. */
static void add_files(struct plot *p)
{
    bool several = false;

    for (uint32_t i = 1; i < p->n; i++)
        for (uint32_t k = 0; k < i && !several; k++)
            several = strcmp(p->run[i].path, p->run[k].path) != 0 &&
                      strcmp(p->run[i].title, p->run[k].title) == 0;
    for (uint32_t i = 0; i < p->n && several; i++)
        p->run[i].title = arena_printf(p->arena, "%s (%s)", p->run[i].title, p->run[i].path);
}

static void label_runs(struct plot *p)
{
    for (uint32_t i = 0; i < p->n; i++)
        p->run[i].title = p->run[i].label;
    add_files(p);
}

static void label_lines(struct plot *p)
{
    struct results_names names = {0};

    for (uint32_t i = 0; i < p->n; i++)
        results_names_add(&names, &p->run[i]);
    for (uint32_t i = 0; i < p->n; i++) {
        text_auto label = {0};

        results_name(&names, &p->run[i], &label);
        p->run[i].title = arena_strndup(p->arena, label.data, label.bytes);
    }
    results_names_free(&names);
    add_files(p);
}

/* ---- parts of a script ---- */

/* Use of a text in gnuplot. A tic is a number format: 5% is written as 5%%. */
enum place { PLACE_TEXT, PLACE_TIC };

/* Adds text of results. All of it passes this function: no byte of `text` ends the string or the
 * line, or acts as a command, a variable or a format. */
static void add_text(struct text *out, const char *text, enum place place)
{
    text_add(out, "'");
    for (; *text != '\0'; text++) {
        if (*text == '\'')
            text_add(out, "''");
        else if (*text == '%' && place == PLACE_TIC)
            text_add(out, "%%%%");
        else if ((unsigned char)*text < ' ' || *text == 0x7f || *text == '`')
            text_add(out, "?");
        else
            text_add_bytes(out, text, 1);
    }
    text_add(out, "'\n");
}

/* Adds "set title 'NAME'". */
static void add_setting(struct text *out, const char *setting, const char *name)
{
    text_add(out, "%s ", setting);
    add_text(out, name, PLACE_TEXT);
}

static void add_names(struct text *out, const char *array, const char *const *name, uint32_t n,
                      enum place place)
{
    text_add(out, "array %s[%u]\n", array, n);
    for (uint32_t i = 0; i < n; i++) {
        text_add(out, "%s[%u] = ", array, i + 1);
        add_text(out, name[i], place);
    }
}

/* Begins the next line; returns false if there are too many. */
static bool begin_line(struct plot *p, const char *name)
{
    if (p->names == LINES_MOST)
        return false;
    text_add(&p->data, "%s", p->names > 0 ? "\n\n" : "");
    p->name[p->names++] = name;
    return true;
}

static void add_point(struct text *out, uint32_t n, const double *value)
{
    for (uint32_t i = 0; i < n; i++) {
        if (isnan(value[i]))
            text_add(out, " %10s", "NaN");
        else
            text_add(out, " %10.6g", value[i]);
    }
    text_add(out, "\n");
}

/* Clamps microseconds from a file to a range that can be drawn. */
static double clamp_us(double ns)
{
    return fmin(fmax(ns / 1e3, 1e-9), 1e15);
}

/* Names the machine of the first run, and notes runs of other machines. */
static const char *describe_machine(const struct plot *p)
{
    const struct machine_facts *m = p->machine;
    const struct results_run *run = p->run;
    const char *device;
    bool others = false;

    if (m != NULL)
        return arena_printf(p->arena, "%s, %u cores, on %s; epa2a %s", m->cpu, m->cores, m->host,
                            m->build.version);
    if (run->imported)
        return "imported from another program, on an unknown machine";
    for (uint32_t i = 1; i < p->n; i++)
        others =
            others ||
            strcmp(results_text(run, "machine.host"), results_text(&run[i], "machine.host")) != 0 ||
            strcmp(results_text(run, "machine.cpu"), results_text(&run[i], "machine.cpu")) != 0;
    device = results_text(run, "machine.device.device");
    return arena_printf(p->arena, "%s, %.0f cores%s%s, on %s%s; epa2a %s",
                        results_text(run, "machine.cpu"), results_number(run, "machine.cores"),
                        *device != '\0' ? ", " : "", device, results_text(run, "machine.host"),
                        others ? " and other machines" : "",
                        results_text(run, "machine.build.version"));
}

static uint32_t text_columns(const struct plot *p)
{
    return p->wish->columns < COLUMNS_LEAST ? COLUMNS_LEAST : p->wish->columns;
}

/* Begins the script: the terminal, with the height of `rows` rows, and titles. */
static void begin_script(struct plot *p, const char *title, const char *x, const char *y,
                         uint32_t rows)
{
    int high = rows > 12 ? 300 + 24 * (int)rows : 600;

    if (p->wish->form == PLOT_TEXT)
        text_add(p->out, "set terminal dumb nofeed noenhanced size %u,%u\n", text_columns(p) - 1,
                 30 + rows); /* gnuplot writes one more column */
    else if (p->wish->form == PLOT_SVG)
        text_add(p->out,
                 "set terminal svg noenhanced size 960,%d font 'sans,13' background rgb 'white'\n"
                 "set grid\n",
                 high);
    else
        text_add(p->out, "set terminal pngcairo noenhanced size 1280,%d font 'sans,13'\nset grid\n",
                 high * 4 / 3);
    text_add(p->out, "set encoding utf8\n");
    add_setting(p->out, "set title", title);
    add_setting(p->out, "set xlabel", x);
    add_setting(p->out, "set ylabel", y);
}

/* Prints a line below the chart, folded at blanks to the width of the chart. */
static void add_folded(const struct plot *p, const char *line)
{
    uint32_t room = text_columns(p);

    do {
        size_t cut = 0, blank = 0;
        char *part;

        for (uint32_t n = 0; line[cut] != '\0' && n < room; n++) {
            uint32_t point;
            size_t bytes = text_decode(line + cut, &point);

            blank = line[cut] == ' ' && n > 0 ? cut : blank;
            cut += bytes > 0 ? bytes : 1;
        }
        if (line[cut] != '\0' && line[cut] != ' ' && blank > 0)
            cut = blank;
        part = arena_strndup(p->arena, line, cut);
        add_setting(p->out, "print", part);
        line += cut;
        line += *line == ' ';
    } while (*line != '\0');
}

/* Ends the script: the data, `note` on how to read it, and the plot, which names lines with T[k].
 * In text, which has no margin, the lines below the chart follow. */
static void end_script(struct plot *p, const char *note, const char *plot)
{
    const char *line[] = {note, describe_machine(p)};
    bool text = p->wish->form == PLOT_TEXT;

    if (!text) {
        text_add(p->out, "set bmargin 7\n");
        add_setting(p->out, "set label 1 at screen 0.02, screen 0.06 font ',10'", line[0]);
        add_setting(p->out, "set label 2 at screen 0.02, screen 0.025 font ',10'", line[1]);
    }
    add_names(p->out, "T", p->name, p->names, PLACE_TEXT);
    text_add(p->out, "$d << EOD\n%sEOD\nplot %s\n", p->data.data, plot);
    if (text) {
        text_add(p->out, "set print '-'\nprint ''\n");
        for (char *at = p->below.data; at != NULL && *at != '\0';) {
            size_t n = strcspn(at, "\n");

            at[n] = '\0';
            add_folded(p, at);
            at += n + 1;
        }
        add_folded(p, line[0]);
        add_folded(p, line[1]);
    }
}

/* Draws points with bounds on a line for each name, both axes logarithmic. */
static void end_whiskers(struct plot *p, const char *note)
{
    text_add(p->out, "set logscale xy 2\nset key left top\nset offsets graph 0.05, graph 0.05\n");
    end_script(
        p, note,
        "for [k=1:|T|] $d index k-1 using 1:2:3:4 with yerrorbars linetype k pointtype 0 notitle, "
        "for [k=1:|T|] $d index k-1 using 1:2 with linespoints linetype k linewidth 2 title T[k]");
}

/* ---- samples ---- */

static int by_label(const void *a, const void *b)
{
    const struct results_run *x = a, *y = b;
    int order = strcmp(x->title, y->title);

    return order != 0 ? order : (x->size > y->size) - (x->size < y->size);
}

/* Pools the sorted samples of the runs from `at` on that are one experiment; with `sized` of one
 * size. */
static double *pool_samples(const struct plot *p, uint32_t at, bool sized, uint32_t *end,
                            uint64_t *n)
{
    double *all;

    *n = 0;
    for (*end = at; *end < p->n && (sized ? by_label(&p->run[at], &p->run[*end]) == 0
                                          : strcmp(p->run[at].title, p->run[*end].title) == 0);
         (*end)++)
        *n += p->run[*end].timed->n;
    all = arena_alloc(p->arena, *n * sizeof(*all));
    *n = 0;
    for (uint32_t i = at; i < *end; i++)
        for (uint64_t k = 0; k < p->run[i].timed->n; k++)
            all[(*n)++] = clamp_us(p->run[i].timed->sample[k]);
    stats_sort(all, *n);
    return all;
}

static enum epa_status draw_tokens(struct plot *p, struct epa_error *err)
{
    const struct operation *op = p->run[0].operation;

    for (uint32_t i = 0; i < p->n; i++)
        if (!(p->run[i].size > 0))
            return epa_fail(err, EPA_ERR_CONFIG, "%s: '%s' has no %s", p->run[i].path,
                            p->run[i].label, operation_at(0)->size_key);
    label_lines(p);
    qsort(p->run, p->n, sizeof(*p->run), by_label);
    for (uint32_t i = 0, next; i < p->n; i = next) {
        const struct results_run *s = &p->run[i];
        uint64_t n;
        const double *all = pool_samples(p, i, true, &next, &n);
        double point[] = {s->size, stats_percentile(all, n, 500),
                          stats_percentile(all, n, n < FEW ? 0 : 50),
                          stats_percentile(all, n, n < FEW ? 1000 : 950)};

        if (i == 0 || strcmp(s->title, s[-1].title) != 0) {
            if (!begin_line(p, s->title))
                return too_many(LINES_MOST, "lines", err);
            text_add(&p->below, "%s\n%11s %10s %10s %10s\n", s->title, op->unit, "median", "low",
                     "high");
        }
        add_point(&p->data, 4, point);
        add_point(&p->below, 4, point); /* not visible in characters */
    }
    begin_script(p,
                 arena_printf(p->arena, "Latency against %s: %s", op->unit, p->run[0].timed->name),
                 arena_printf(p->arena, "%s (%s)", op->size_label, op->size_key), "time [us]", 0);
    end_whiskers(p,
                 "medians; whiskers: 5 % to 95 % of samples, all of them where they are under 20");
    return EPA_OK;
}

static void draw_histogram(struct plot *p, const double *all, uint64_t n)
{
    uint32_t bins = (uint32_t)fmin(fmax(2 * cbrt((double)n), 5), BINS);
    double quarter = stats_percentile(all, n, 250), three = stats_percentile(all, n, 750);
    double fence = three + 4 * (three - quarter), largest = all[n - 1], low = all[0];
    bool open =
        /* Far outliers must not compress the others into one bin. */
        three > quarter && largest > fence;
    double high = open ? fence : largest, width = (high - low) / bins;
    uint64_t count[BINS];

    stats_histogram(all, n, low, high, count, bins);
    width = width > 0 ? width : low / 100;
    (void)begin_line(p, "");
    for (uint32_t i = 0; i < bins; i++)
        add_point(&p->data, 3, (double[]){low + (i + 0.5) * width, (double)count[i], width});
    begin_script(p,
                 arena_printf(p->arena, "Distribution of samples: %s, %s", p->run[0].timed->name,
                              p->run[0].title),
                 "time [us]", "samples", 0);
    text_add(p->out, "set yrange [0:*]\nset style fill solid 0.6\n");
    end_script(p,
               arena_printf(p->arena, "%llu samples, median %.4g us, largest %.4g us%s",
                            (unsigned long long)n, stats_percentile(all, n, 500), largest,
                            open ? "; the last bin has all above it, too" : ""),
               "$d using 1:2:3 with boxes linetype 1 notitle");
}

static enum epa_status draw_distribution(struct plot *p, struct epa_error *err)
{
    uint32_t next;
    uint64_t n;
    const double *all;

    label_runs(p);
    qsort(p->run, p->n, sizeof(*p->run), by_label);
    all = pool_samples(p, 0, false, &next, &n);
    if (next == p->n) {
        draw_histogram(p, all, n);
        return EPA_OK;
    }
    for (uint32_t i = 0; i < p->n; i = next) {
        all = pool_samples(p, i, false, &next, &n);
        if (!begin_line(p, p->run[i].title))
            return too_many(LINES_MOST, "lines", err);
        for (uint64_t k = 0; k <= ECDF_STEPS; k++) {
            uint64_t rank = (n - 1) * k / ECDF_STEPS;

            add_point(&p->data, 2, (double[]){all[rank], 100.0 * (double)(rank + 1) / (double)n});
        }
    }
    begin_script(p, arena_printf(p->arena, "Distribution of samples: %s", p->run[0].timed->name),
                 "time [us]", "samples up to that time [%]", 0);
    text_add(p->out, "set yrange [0:100]\nset key right bottom\n");
    end_script(p, "a line that is further left is faster, one that is steeper is steadier",
               "for [k=1:|T|] $d index k-1 with steps linetype k linewidth 2 title T[k]");
    return EPA_OK;
}

/* ---- skew of ranks, and stacked stages ---- */

/* Returns microseconds; NaN: unknown. */
static double us_or_nan(double ns)
{
    return isnan(ns) ? NAN : clamp_us(ns);
}

/* Computes the distance of each rank from the median of all, in percent; returns false if
 * fewer than two have times. */
static bool ranks_off(struct plot *p, const struct run_stage *stage, double *off)
{
    uint32_t n = stage->n_ranks;
    double *known = arena_alloc(p->arena, (n + 1) * sizeof(*known)), median;
    uint32_t have = 0;

    for (uint32_t i = 0; i < n; i++) {
        off[i] = us_or_nan(stage->rank[i].median);
        if (!isnan(off[i]))
            known[have++] = off[i];
    }
    if (have < 2)
        return false;
    median = stats_quantile(known, have, 500);
    if (!(median > 0)) /* below one step of the clock */
        return false;
    for (size_t i = 0; i < n; i++)
        off[i] = 100 * (off[i] / median - 1);
    return true;
}

/* Draws a line for each run, or for each stage of a single run. */
static enum epa_status draw_skew(struct plot *p, struct epa_error *err)
{
    const struct results_run *one = &p->run[0];
    uint32_t all = p->n > 1 ? p->n : one->n_stages;
    size_t most = 0;

    label_runs(p);
    for (uint32_t i = 0; i < all; i++) {
        const struct results_run *s = &p->run[p->n > 1 ? i : 0];
        const struct run_stage *stage = p->n > 1 ? s->timed : &one->stage[i];
        size_t n = stage->n_ranks, slowest = 0;
        double *off = arena_alloc(p->arena, (n + 1) * sizeof(*off));

        if ((p->n == 1 && stage->n == 0) || !ranks_off(p, stage, off))
            continue;
        for (size_t r = 0; r < n; r++)
            slowest = off[r] > off[slowest] || isnan(off[slowest]) ? r : slowest;
        most = n > most ? n : most;
        if (!begin_line(p, arena_printf(p->arena, "%s, slowest: rank %zu (%+.1f %%)",
                                        p->n > 1 ? s->title : stage->name, slowest, off[slowest])))
            return too_many(LINES_MOST, "runs", err);
        for (size_t r = 0; r < n; r++)
            add_point(&p->data, 2, (double[]){(double)r, off[r]});
    }
    if (p->names == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has times of two ranks or more to compare",
                        p->run[0].path);
    begin_script(
        p, arena_printf(p->arena, "Ranks: %s", p->n == 1 ? p->run[0].title : p->run[0].timed->name),
        "rank", "off the median of its line [%]", p->names);
    text_add(p->out, "set xrange [-0.5:%zu.5]\nset xtics 0,%zu\nset key above\n", most - 1,
             most / 16 + 1);
    end_script(p, "each rank's median against the median of the ranks of its line",
               "for [k=1:|T|] $d index k-1 with linespoints linetype k title T[k]");
    return EPA_OK;
}

static enum epa_status draw_stages(struct plot *p, struct epa_error *err)
{
    const char *row[ROWS_MOST];
    double sum[ROWS_MOST] = {0}, mark[ROWS_MOST], longest = 0;
    struct text ends = {0};
    bool limits = false;

    if (p->n > ROWS_MOST)
        return too_many(ROWS_MOST, "runs", err);
    label_runs(p);
    for (uint32_t i = 0; i < p->n; i++) {
        row[i] = p->run[i].title;
        mark[i] = us_or_nan(p->run[i].timed->figures.peak_ns);
        limits = limits || !isnan(mark[i]);
    }
    for (uint32_t i = 0; i < p->n; i++) {
        const struct results_run *run = &p->run[i];

        for (uint32_t k = 0; k < run->n_stages; k++) {
            const char *stage = run->stage[k].name;
            bool known = strcmp(stage, "total") == 0 || run->stage[k].n == 0;

            for (uint32_t c = 0; c < p->names && !known; c++)
                known = strcmp(p->name[c], stage) == 0;
            if (known || !begin_line(p, stage))
                continue;
            for (uint32_t r = 0; r < p->n; r++) {
                const struct run_stage *of = results_stage(&p->run[r], stage);
                double took = of != NULL ? us_or_nan(of->figures.ns.median) : NAN;

                if (of != NULL && p->run[r].imported) /* one mean */
                    took = clamp_us(of->sample[0]);
                add_point(&p->data, 4,
                          (double[]){p->n - r, sum[r], sum[r] + (isnan(took) ? 0 : took), mark[r]});
                sum[r] += isnan(took) ? 0 : took;
                longest = fmax(longest, fmax(sum[r], mark[r]));
            }
        }
    }
    if (p->names == 0)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: no run has stages beside the total",
                        p->run[0].path);
    begin_script(p, "Stages", "time [us]", "", p->n);
    add_names(p->out, "R", row, p->n, PLACE_TIC);
    text_add(p->out,
             "set yrange [0.4:%u.6]\nset ytics ()\nset for [i=1:|R|] ytics add (R[i] %u-i)\n"
             "set xrange [0:%.9g]\nset key outside above\nset style fill solid 0.7\n$t << EOD\n",
             p->n, p->n + 1, longest * 1.4); /* room for the sums */
    for (uint32_t r = 0; r < p->n; r++) {
        if (!isnan(mark[r]))
            text_add(&ends, ", limit %.0f %%", 100 * mark[r] / sum[r]);
        text_add(p->out, "%u %.9g \"%.1f us%s\"\n", p->n - r, sum[r], sum[r],
                 ends.data != NULL ? ends.data : "");
        text_free(&ends);
    }
    text_add(p->out, "EOD\n");
    end_script(
        p, "medians of stages, one after the other; limit: the least time the links allow",
        arena_printf(
            p->arena,
            "for [k=1:|T|] $d index k-1 using 2:1:2:3:($1-0.35):($1+0.35) with boxxyerror "
            "linetype k title T[k], $t using 2:1:3 with labels left offset 1,0 notitle%s",
            limits ? ", $d index 0 using 4:($1-0.42):(0):(0.84) with vectors nohead linewidth 3 "
                     "linecolor 'black' title 'limit'"
                   : ""));
    return EPA_OK;
}

/* ---- the script ---- */

static enum plot_kind choose_kind(const struct plot *p)
{
    for (uint32_t i = 1; i < p->n; i++) {
        double a = p->run[0].size, b = p->run[i].size;

        if (a > 0 && b > 0 && (a < b || a > b))
            return PLOT_TOKENS;
    }
    return p->n == 1 ? PLOT_DISTRIBUTION : PLOT_STAGES;
}

enum epa_status plot_script(struct results *results, const struct plot_wish *wish, struct text *out,
                            struct epa_error *err)
{
    static enum epa_status (*const draw[])(struct plot *, struct epa_error *) = {
        [PLOT_TOKENS] = draw_tokens,
        [PLOT_DISTRIBUTION] = draw_distribution,
        [PLOT_SKEW] = draw_skew,
        [PLOT_STAGES] = draw_stages};
    struct plot p = {.wish = wish, .arena = arena_create(), .out = out};
    enum epa_status status = collect(&p, results, err);

    if (status == EPA_OK)
        status = draw[wish->kind == PLOT_AUTO ? choose_kind(&p) : wish->kind](&p, err);
    text_free(&p.data);
    text_free(&p.below);
    arena_destroy(p.arena);
    return status;
}

/* Adds ranks, and a time with its bounds (NaN: none), for a stage; stage OP_PHASES: the total. */
static void add_prediction(struct plot *p, const struct predict_report *d, const char *name,
                           uint32_t stage)
{
    (void)begin_line(p, name);
    text_add(&p->below, "%s\n%11s %10s %10s %10s\n", name, "ranks", "time", "from", "to");
    for (uint32_t i = 0; i < d->n_worlds; i++) {
        const struct predict_world *world = &d->world[i];
        const struct predict_stage *at = stage < OP_PHASES ? &world->stage[stage] : &world->total;
        double point[] = {world->ranks, us_or_nan(at->time.ns), us_or_nan(at->low_ns),
                          us_or_nan(at->high_ns)};

        if (world->why != NULL)
            continue;
        add_point(&p->data, 4, point);
        add_point(&p->below, 4, point);
    }
}

enum epa_status plot_prediction(const struct predict_report *d, const struct machine_facts *machine,
                                enum plot_form form, uint32_t columns, struct text *out,
                                struct epa_error *err)
{
    const struct plot_wish wish = {.form = form, .columns = columns};
    struct plot p = {.wish = &wish, .arena = arena_create(), .out = out, .machine = machine};
    const struct predict_world *first = NULL;

    for (uint32_t i = 0; i < d->n_worlds && first == NULL; i++)
        first = d->world[i].why == NULL ? &d->world[i] : NULL;
    for (uint32_t i = 0; first != NULL && first->n_stages > 1 && i < first->n_stages; i++)
        add_prediction(&p, d, first->stage[i].name, i);
    add_prediction(&p, d, "total", OP_PHASES);
    if (first == NULL)
        epa_fail(err, EPA_ERR_CONFIG,
                 "no world of the sweep is possible: there is nothing to draw");
    begin_script(&p, arena_printf(p.arena, "Predicted: %s", d->file), "ranks", "time [us]", 0);
    end_whiskers(&p, "whiskers: predictions without one measured world, and their error");
    text_free(&p.data);
    text_free(&p.below);
    arena_destroy(p.arena);
    return err->status;
}
