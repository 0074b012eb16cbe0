/* Finds the fastest run. A group holds runs of the same problem, measured in the same way; a
 * contest, those runs of a group that have the same size; a candidate, the repetitions of one run
 * in a contest. results.c provides groups, names and sizes; stats.c provides medians and their
 * bounds. */
#include "report/best.h"

#include "report/figure_column.h"
#include "report/results.h"
#include "report/results_names.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/text.h"
#include "op/op.h"
#include "result/figures.h"
#include "report/table.h"
#include "report/lines.h"

enum { LOSERS = 5 /* slower candidates in the table of a contest */ };

/* ---- compared runs ---- */

bool best_is_by_samples(const struct best *b)
{
    return b->wish->figure == figure_default();
}

static void collect(struct best *b, const struct results *results)
{
    b->entry = arena_alloc(b->arena, (results->n + 1) * sizeof(*b->entry));
    for (uint32_t i = 0; i < results->n; i++) {
        const struct results_run *run = &results->run[i];
        struct best_entry *e = &b->entry[b->n_entries];

        if (run->fault ||
            (!best_is_by_samples(b) && isnan(figure_value(b->wish->figure, &run->timed->figures))))
            continue;
        *e = (struct best_entry){.run = run, .size = run->size};
        results_ask(run, b->wish->across, b->wish->n_across, b->arena, &e->question);
        b->n_entries++;
    }
}

static bool is_across(const struct best *b, const char *what)
{
    for (uint32_t i = 0; i < b->wish->n_across; i++)
        if (strcmp(b->wish->across[i], what) == 0)
            return true;
    return false;
}

/* Numbers groups in the order of their first runs. Imported runs come last: with --across unknown,
 * each joins the first group that agrees with it in all keys known for both. */
static void number_groups(struct best *b)
{
    const struct results_question **known =
        arena_alloc(b->arena, (b->n_entries + 1) * sizeof(*known));
    bool joins = is_across(b, "unknown");

    for (uint32_t k = 0; k < 2 * b->n_entries; k++) {
        struct best_entry *e = &b->entry[k % b->n_entries];
        uint32_t group = 0;

        if (e->run->imported != (k >= b->n_entries))
            continue;
        while (group < b->n_groups && !results_same_question(known[group], &e->question))
            group++;
        for (uint32_t i = 0; i < b->n_groups && group == b->n_groups && joins; i++)
            if (e->run->imported && results_agree(&e->question, known[i]))
                group = i;
        e->group = group;
        if (group == b->n_groups)
            known[b->n_groups++] = &e->question;
    }
}

/* Describes the output of a run (layout, dtype of rows): either only the keys of `across`, or all
 * others. */
static void describe_delivery(const struct best *b, const struct results_run *run, bool across,
                              struct text *out)
{
    for (uint32_t i = 0; i < run->n_delivers; i++) {
        const char *name = run->delivers[i].name, *value = run->delivers[i].value;

        if (is_across(b, name) != across || value == NULL)
            continue;
        text_add(out, "%s", out->bytes > 0 ? ", " : "");
        if (strcmp(name, "fused") == 0)
            text_add(out, "%sfused", strcmp(value, "true") == 0 ? "" : "not ");
        else if (strcmp(name, "layout") != 0)
            text_add(out, "%s %s", name, value);
        else if (strcmp(value, "expert") == 0 || strcmp(value, "rank") == 0)
            text_add(out, "a row per %s", value);
        else
            text_add(out, "layout %s", value);
    }
}

static void name_entries(struct best *b)
{
    struct results_names *names = memory_alloc(b->n_groups, sizeof(*names));

    for (uint32_t i = 0; i < b->n_entries; i++)
        results_names_add(&names[b->entry[i].group], b->entry[i].run);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        text_auto name = {0}, extra = {0};

        results_name(&names[b->entry[i].group], b->entry[i].run, &name);
        if (b->entry[i].run->imported)
            text_add(&name, " (imported)");
        describe_delivery(b, b->entry[i].run, true, &extra);
        if (extra.data != NULL)
            text_add(&name, " [%s]", extra.data);
        b->entry[i].name = arena_strndup(b->arena, name.data, name.bytes);
    }
    for (uint32_t i = 0; i < b->n_groups; i++)
        results_names_free(&names[i]);
    free(names);
}

static int by_contest(const void *x, const void *y)
{
    const struct best_entry *a = x, *b = y;

    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->size < b->size || a->size > b->size)
        return a->size < b->size ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* ---- contests ---- */

static int by_median(const void *x, const void *y)
{
    const struct best_candidate *a = x, *b = y;

    return (a->spread.median > b->spread.median) - (a->spread.median < b->spread.median);
}

static int by_larger_median(const void *x, const void *y)
{
    return by_median(y, x);
}

/* Computes the spread of a candidate over its samples, or over the figures of its runs. A single run
 * does not show how much a figure varies: its bounds are unknown. */
static struct spread find_spread(const struct best *b, const struct best_candidate *one)
{
    struct compare_run *run = arena_alloc(b->arena, one->n * sizeof(*run));
    double *value = arena_alloc(b->arena, one->n * sizeof(*value));
    struct spread spread;

    for (uint32_t k = 0; k < one->n; k++) {
        const struct run_stage *timed = one->first[k].run->timed;

        value[k] = figure_value(b->wish->figure, &timed->figures);
        run[k] = best_is_by_samples(b) ? (struct compare_run){timed->sample, timed->n}
                                       : (struct compare_run){&value[k], 1};
    }
    spread = spread_of_side(&(struct compare_side){run, one->n});
    if (!best_is_by_samples(b) && one->n == 1)
        spread.low = spread.high = NAN;
    return spread;
}

/* Returns how many times worse `one` is than `best`: larger is worse, also for rates. */
static double worse_ratio(const struct best *b, double best, double one)
{
    return b->wish->figure->better == FIGURE_LARGER ? compare_ratio(one, best)
                                                    : compare_ratio(best, one);
}

static void compare_candidates(const struct best *b, struct best_contest *c)
{
    bool larger = b->wish->figure->better == FIGURE_LARGER;

    for (uint32_t i = 0; i < c->n; i++)
        c->candidate[i].spread = find_spread(b, &c->candidate[i]);
    qsort(c->candidate, c->n, sizeof(*c->candidate), larger ? by_larger_median : by_median);
    for (uint32_t i = 0; i < c->n; i++) {
        struct best_candidate *one = &c->candidate[i];
        const struct spread *best = &c->candidate[0].spread;
        double low = larger ? worse_ratio(b, best->low, one->spread.high)
                            : worse_ratio(b, best->high, one->spread.low);
        double high = larger ? worse_ratio(b, best->high, one->spread.low)
                             : worse_ratio(b, best->low, one->spread.high);
        double ratio = worse_ratio(b, best->median, one->spread.median);

        one->best = i == 0;
        one->loss = ratio - 1;
        one->loss_low = low - 1;
        one->loss_high = high - 1;
        one->verdict = compare_interval(ratio, low, high, b->wish->close);
        one->few =
            one->verdict == COMPARE_SLOWER && !stats_are_separable(best->units, one->spread.units);
        if (one->few)
            one->verdict = COMPARE_UNCLEAR;
    }
}

const char *best_verdict_word(const struct best_candidate *one)
{
    static const char *const word[] = {[COMPARE_SAME] = "close",
                                       [COMPARE_SLOWER] = "slower",
                                       [COMPARE_FASTER] = "faster",
                                       [COMPARE_UNCLEAR] = "unclear"};

    return one->best ? "best" : word[one->verdict];
}

const char *best_loss_text(const struct best *b, const struct best_candidate *one)
{
    double loss = 100 * one->loss;

    if (one->best)
        return "best";
    if (one->verdict == COMPARE_UNCLEAR && isnan(one->loss_low))
        return arena_printf(b->arena, "%+.1f %% unclear (a single run)", loss);
    if (one->verdict == COMPARE_UNCLEAR)
        return arena_printf(b->arena, "%+.1f %% unclear (%+.1f %% to %+.1f %%)%s", loss,
                            100 * one->loss_low, 100 * one->loss_high,
                            one->few ? ", too few runs" : "");
    return arena_printf(b->arena, "%+.1f %%%s", loss, one->verdict == COMPARE_SAME ? " close" : "");
}

/* Adds the contest of entries `from` to `end`; repetitions of one run are adjacent. */
static void add_contest(struct best *b, uint32_t from, uint32_t end, struct best_group *g)
{
    struct best_contest *c = &g->contest[g->n++];

    c->size = b->entry[from].size;
    c->candidate = arena_alloc(b->arena, (end - from) * sizeof(*c->candidate));
    for (uint32_t i = from; i < end; i++) {
        if (i == from || strcmp(b->entry[i].name, b->entry[i - 1].name) != 0)
            c->candidate[c->n++] = (struct best_candidate){.first = &b->entry[i]};
        c->candidate[c->n - 1].n++;
    }
    for (uint32_t i = 0; i < c->n; i++)
        g->one_run = g->one_run || c->candidate[i].n == 1;
    compare_candidates(b, c);
}

static const struct best_candidate *find_candidate(const struct best_contest *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->candidate[i].first->name, name) == 0)
            return &c->candidate[i];
    return NULL;
}

/* Finds the setting with the least geometric mean of losses over all sizes. */
static void find_overall(struct best_group *g)
{
    for (uint32_t i = 0; i < g->contest[0].n && g->n > 1; i++) {
        const char *name = g->contest[0].candidate[i].first->name;
        double logs = 0, worst = 0;
        uint32_t found = 0;

        for (uint32_t k = 0; k < g->n; k++) {
            const struct best_candidate *one = find_candidate(&g->contest[k], name);

            if (one == NULL)
                break;
            found++;
            logs += log1p(one->loss);
            worst = fmax(worst, one->loss);
        }
        if (found == g->n && (g->overall.name == NULL || exp(logs / found) < g->overall.mean))
            g->overall = (struct best_overall){name, exp(logs / found), 1 + worst};
    }
}

/* ---- titles ---- */

/* Returns the key below a section, or NULL. */
static const char *key_in_section(const struct results_key *key, const char *section)
{
    size_t bytes = strlen(section);

    return strncmp(key->path, section, bytes) == 0 && key->path[bytes] == '.'
               ? key->path + bytes + 1
               : NULL;
}

/* Adds "; moe hidden 7168, topk 8"; nothing if the experiment has no such section. */
static void add_section(struct text *out, const struct results_run *run, const char *name,
                        const char *size_key)
{
    const char *kind = results_value(run, name, "kind");
    bool any = false, first = true;

    for (uint32_t i = 0; i < run->n_keys; i++)
        any = any || key_in_section(&run->key[i], name) != NULL;
    if (!any)
        return;
    text_add(out, "; %s%s%s", name, kind != NULL ? " " : "", kind != NULL ? kind : "");
    for (uint32_t i = 0; i < run->n_keys; i++) {
        const char *key = key_in_section(&run->key[i], name);

        if (key == NULL || strcmp(run->key[i].path, size_key) == 0 || strcmp(key, "kind") == 0)
            continue;
        text_add(out, "%s %s %s", first ? "" : ",", key, run->key[i].value);
        first = false;
    }
    text_clean(out->data);
}

static void describe_group(struct best *b, struct best_group *g)
{
    const struct results_run *run = g->first->run;
    const char *ranks = results_value(run, NULL, "ranks");
    const char *model = results_value(run, "model", "name");
    const struct operation *operation = run->operation;
    text_auto title = {0}, delivers = {0};
    char note[300] = "";

    if (ranks != NULL)
        text_add(&title, "%s ranks", ranks);
    else
        text_add(&title, "ranks unknown");
    if (model != NULL)
        text_add(&title, "; model %s", model);
    for (const char *const *line = operation->head; *line != NULL; line++)
        for (; *line != NULL; line++)
            add_section(&title, run, *line, operation->size_key);
    add_section(&title, run, "expert", "");
    describe_delivery(b, run, false, &delivers);
    g->title = arena_strndup(b->arena, title.data, title.bytes);
    g->delivers =
        delivers.data != NULL ? arena_strndup(b->arena, delivers.data, delivers.bytes) : "";
    for (const struct best_group *other = b->group; other < g && note[0] == '\0'; other++)
        if (strcmp(other->title, g->title) == 0 && strcmp(other->delivers, g->delivers) == 0 &&
            !results_differ(run, other->first->run, RESULTS_SHAPE, note, sizeof(note)) &&
            !results_differ(run, other->first->run, RESULTS_MACHINE, note, sizeof(note)))
            snprintf(note, sizeof(note), "timed in another way");
    g->note = arena_strndup(b->arena, note, strlen(note));
}

static void make_groups(struct best *b)
{
    b->group = arena_alloc(b->arena, (b->n_groups + 1) * sizeof(*b->group));
    for (uint32_t i = 0, end; i < b->n_entries; i = end) {
        struct best_group *g = &b->group[b->entry[i].group];

        for (end = i + 1; end < b->n_entries; end++)
            if (b->entry[end].group != b->entry[i].group || b->entry[end].size > b->entry[i].size)
                break;
        if (g->contest == NULL)
            g->contest = arena_alloc(b->arena, b->n_entries * sizeof(*g->contest));
        for (uint32_t k = i; k < end;
             k++) /* an own run describes the group better than an imported one */
            if (g->first == NULL || (g->first->run->imported && !b->entry[k].run->imported))
                g->first = &b->entry[k];
        add_contest(b, i, end, g);
    }
    for (uint32_t i = 0; i < b->n_groups; i++) {
        describe_group(b, &b->group[i]);
        find_overall(&b->group[i]);
    }
}

enum epa_status best_create(struct results *results, const struct best_wish *wish,
                            struct best **out, struct epa_error *err)
{
    struct arena *arena = arena_create();
    struct best *b = arena_alloc(arena, sizeof(*b));
    bool samples;

    *b = (struct best){.wish = wish, .arena = arena};
    samples = best_is_by_samples(b);
    results_choose(results, &wish->which);
    collect(b, results);
    if (b->n_entries == 0) {
        arena_destroy(arena);
        return epa_fail(
            err, EPA_ERR_CONFIG, "%s: no run%s that ended well has %s%s of %s; bench takes them",
            results->path, wish->which.n_only > 0 ? " of --only" : "",
            samples ? "samples" : "the figure ", samples ? "" : figure_name(wish->figure),
            wish->which.stage != NULL ? wish->which.stage : "whole iterations");
    }
    number_groups(b);
    name_entries(b);
    qsort(b->entry, b->n_entries, sizeof(*b->entry), by_contest);
    make_groups(b);
    *out = b;
    return EPA_OK;
}

void best_destroy(struct best *b)
{
    if (b != NULL)
        arena_destroy(b->arena);
}

/* ---- output ---- */

enum { COLUMNS = 7 };

/* The rows of a table and their cells; in the arena. */
struct best_table {
    struct table_row *row;
    uint32_t n;
};

static struct table_cell *append_row(const struct best *b, struct best_table *t)
{
    struct table_cell *cell = arena_alloc(b->arena, COLUMNS * sizeof(*cell));

    t->row[t->n++].cell = cell;
    return cell;
}

static void append_candidate(const struct best *b, const char *size,
                             const struct best_candidate *one, struct best_table *t)
{
    struct table_cell *cell = append_row(b, t);

    cell[0].text = size;
    cell[1].text = one->first->name;
    cell[2].number = one->n;
    cell[3].number = one->spread.median;
    cell[4].number = one->spread.low;
    cell[5].number = one->spread.high;
    cell[6].text = best_loss_text(b, one);
}

/* Appends the line of the candidates from `i` on. */
static void append_others(const struct best *b, const struct best_contest *c, uint32_t i,
                          struct best_table *t)
{
    struct table_cell *cell = append_row(b, t);

    for (uint32_t k = 0; k < COLUMNS; k++)
        cell[k].text = "";
    cell[1].text = arena_printf(b->arena, "and %u more, +%.1f %% to +%.1f %%", c->n - i,
                                100 * c->candidate[i].loss, 100 * c->candidate[c->n - 1].loss);
}

/* Returns the rows of the table: for each contest all candidates that are close or unclear, and the
 * first few of the others. Text has the size in the first line of a contest alone, and a line for
 * the other candidates. */
static struct best_table table_of(const struct best *b, const struct best_group *g, bool is_text)
{
    struct best_table t = {.n = 0};
    uint32_t room = 0;

    for (uint32_t k = 0; k < g->n; k++)
        room += g->contest[k].n + 1;
    t.row = arena_alloc(b->arena, room * sizeof(*t.row));
    for (uint32_t k = 0; k < g->n; k++) {
        const struct best_contest *c = &g->contest[k];
        const char *size = arena_printf(b->arena, "%.0f", c->size);
        uint32_t losers = 0, i = 0;

        /* A line "and 1 more" would take as much space as the candidate itself. */
        for (; i < c->n && (losers < LOSERS || i + 1 == c->n); i++) {
            append_candidate(b, is_text && i > 0 ? "" : size, &c->candidate[i], &t);
            losers += c->candidate[i].verdict == COMPARE_SLOWER;
        }
        if (i < c->n && is_text)
            append_others(b, c, i, &t);
    }
    return t;
}

/* Columns, with the operation's word for a size, and the unit of the figure. */
struct best_columns {
    struct table_column column[8];
};
static struct best_columns columns_of(const struct best *b, const struct best_group *g)
{
    const struct figure *figure = b->wish->figure;
    struct best_columns out = {{{"size", g->first->run->operation->unit, .width = 6},
                                {"name", "run", .width = 0},
                                {"runs", "runs", NULL, 0, 0, 5},
                                figure_column(figure, "value", 10),
                                figure_column(figure, "low", 10),
                                figure_column(figure, "high", 10),
                                {"loss", "", .width = 0}}};

    out.column[4].name = "from";
    out.column[5].name = "to";
    for (uint32_t i = 3; i < 6 && figure->kind == FIGURE_NS; i++)
        out.column[i].digits = 2;
    return out;
}

/* Adds the run that is best for all sizes together; without such a run adds nothing. */
static void add_overall(struct text *out, const struct best_group *g)
{
    if (g->overall.name != NULL && isfinite(g->overall.mean) && isfinite(g->overall.worst))
        text_add(
            out,
            "one for all sizes: %s, %.1f %% behind the best of each on average, %.1f %% at worst",
            g->overall.name, (g->overall.mean - 1) / .01, (g->overall.worst - 1) / .01);
}

static bool is_given(const char *text)
{
    return text != NULL && text[0] != '\0';
}

/* Explains the figures, for text and Markdown. */
static void add_legend(struct text *out, const struct best *b)
{
    bool one_run = false, imported = false;

    for (uint32_t i = 0; i < b->n_groups; i++)
        one_run = one_run || b->group[i].one_run;
    for (uint32_t i = 0; i < b->n_entries; i++)
        imported = imported || b->entry[i].run->imported;
    if (best_is_by_samples(b))
        text_add(out,
                 "medians of %s, and between which bounds they would be found again (95 %%);\n",
                 b->entry[0].run->timed->name);
    else
        text_add(out,
                 "%s of %s, %s is better: the median of runs, and the range of runs or, of %d runs "
                 "or more, the bounds of that median (95 %%);\n",
                 figure_name(b->wish->figure), b->entry[0].run->timed->name,
                 b->wish->figure->better == FIGURE_LARGER ? "larger" : "smaller", INTERVAL_LEAST);
    text_add(
        out,
        "close: up to %g %% behind the best; unclear: behind by more, but the bounds of both "
        "medians meet, or fewer than 4 runs of each (a longer bench, or --set repeat=7, decides)\n",
        100 * b->wish->close);
    if (one_run)
        text_add(out, "some ran once: their bounds do not include differences between runs "
                      "(bench with --set repeat=4)\n");
    if (imported)
        text_add(out, "imported: a mean by another program's clock, on an unknown machine; "
                      "--across unknown compares it with runs that agree in all known keys\n");
    if (b->n_groups > 1)
        text_add(out, "groups are not comparable: problem, machine or output differs "
                      "(--across)\n");
}

void best_text(FILE *file, const struct best *b)
{
    text_auto legend = {0};

    text_comment(file, "epa2a best: %u runs, %u group%s", b->n_entries, b->n_groups,
                 b->n_groups == 1 ? "" : "s");
    add_legend(&legend, b);
    for (char *at = strtok(legend.data, "\n"); at != NULL; at = strtok(NULL, "\n"))
        text_comment(file, "%s", at);
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const struct best_group *g = &b->group[i];
        struct best_table table = table_of(b, g, true);
        text_auto overall = {0};

        fprintf(file, "#\n");
        if (is_given(g->title))
            text_comment(file, "%s", g->title);
        if (is_given(g->delivers))
            text_comment(file, "delivers: %s", g->delivers);
        if (is_given(g->note))
            text_comment(file, "differs from a group above: %s", g->note);
        table_text(file, columns_of(b, g).column, table.row, table.n);
        add_overall(&overall, g);
        if (overall.bytes > 0)
            text_comment(file, "%s", overall.data);
    }
}

void best_markdown(struct text *out, const struct best *b)
{
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const struct best_group *g = &b->group[i];
        struct best_table table = table_of(b, g, false);
        text_auto overall = {0};

        text_add(out, "%s", i > 0 ? "\n" : "");
        if (is_given(g->title)) {
            text_add_markdown(out, g->title);
            text_add(out, "%s", is_given(g->delivers) ? "; delivers: " : "");
            text_add_markdown(out, is_given(g->delivers) ? g->delivers : "");
            text_add(out, "%s", is_given(g->note) ? "; " : "");
            text_add_markdown(out, is_given(g->note) ? g->note : "");
            text_add(out, "\n\n");
        }
        table_add(out, TABLE_MARKDOWN, columns_of(b, g).column, table.row, table.n);
        add_overall(&overall, g);
        if (overall.bytes > 0) {
            text_add(out, "\n");
            text_add_markdown(out, overall.data);
            text_add(out, "\n");
        }
    }
    text_add(out, "\n");
    add_legend(out, b);
}
