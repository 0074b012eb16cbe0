/* Which run is fastest. Runs that answer one question are a group; of one size they are a contest,
 * and those of one name in it are one candidate that was repeated. The question, the names and the
 * sizes come from results.c, medians and their bounds from stats.c. */
#include "report/best.h"

#include <math.h>
#include <stdlib.h>
#include <string.h>

#include "base/text.h"
#include "base/json.h"
#include "base/stats.h"
#include "op/op.h"

enum { NAME_LEAST = 24, NAME_MOST = 52, LOSERS = 5 /* that a table shows of a contest */ };

static const char *const across_keys[] = {"layout", "rows", "outputs", "fused", NULL};

const char *best_across(uint32_t i)
{
    return across_keys[i];
}

/* A run that takes part. */
struct entry {
    const struct results_run *run;
    const struct results_stage *stage;
    const char *question, *name;
    uint32_t group;
    double size;
};

/* A setting at one size. */
struct candidate {
    const struct entry *first; /* of n that are alike */
    uint32_t n;
    struct spread spread;
    double loss;      /* against the fastest of the contest: 0.1 is 10 % */
    bool best, close; /* close: the loss is small, or the bounds of both meet */
};

/* Candidates of one size, the fastest first. */
struct contest {
    double size;
    struct candidate *candidate;
    uint32_t n;
};

/* How a setting does over all sizes. */
struct overall {
    const char *name;
    double mean, worst; /* geometric mean, and the most, of its time over that of the best */
};

struct group {
    const char *title, *delivers, *note; /* note: in what it differs from an earlier title; or "" */
    const struct entry *first;
    struct contest *contest;
    uint32_t n;
    struct overall overall; /* name NULL: one size, or no setting has all of them */
    bool one_run;           /* a candidate has a single run */
};

struct best {
    const struct best_wish *wish;
    struct arena *arena;
    struct entry *entry;
    uint32_t n_entries;
    struct group *group;
    uint32_t n_groups;
};

/* ---- who takes part ---- */

static void collect(struct best *b, const struct results *results, uint32_t n)
{
    uint32_t runs = 0;

    for (uint32_t i = 0; i < n; i++)
        runs += results[i].n;
    b->entry = arena_alloc(b->arena, (runs + 1) * sizeof(*b->entry));
    for (uint32_t i = 0; i < n; i++) {
        for (uint32_t k = 0; k < results[i].n; k++) {
            const struct results_run *run = &results[i].run[k];
            struct entry *e = &b->entry[b->n_entries];
            const struct operation *operation;
            struct text question = {0};

            e->run = run;
            e->stage =
                b->wish->stage != NULL ? results_stage(run, b->wish->stage) : results_total(run);
            if (!run->ok || run->fault || e->stage == NULL ||
                !results_picked(run, b->wish->only, b->wish->n_only))
                continue;
            e->size = results_size(run, &operation);
            b->n_entries++;
            results_question(run, b->wish->across, b->wish->n_across, &question);
            e->question = arena_strndup(b->arena, question.data, question.bytes);
            text_free(&question);
        }
    }
}

/* Numbers groups in the order in which their first runs stand. */
static void number_groups(struct best *b)
{
    json_t *known = json_object();

    for (uint32_t i = 0; i < b->n_entries; i++) {
        struct entry *e = &b->entry[i];
        const json_t *at = json_object_get(known, e->question);

        e->group = at != NULL ? (uint32_t)json_integer_value(at) : b->n_groups++;
        if (at == NULL)
            json_object_set_new(known, e->question, json_integer(e->group));
    }
    json_decref(known);
}

/* What is delivered, in words: without `across`, or only that. */
static void describe_delivery(const struct best *b, const struct results_run *run, bool across,
                              struct text *out)
{
    const json_t *delivers = json_object_get(run->json, "delivers");
    const char *key;
    json_t *value;

    json_object_foreach((json_t *)delivers, key, value)
    {
        bool asked = false;

        for (uint32_t i = 0; i < b->wish->n_across; i++)
            asked = asked || strcmp(b->wish->across[i], key) == 0;
        if (asked != across || json_is_null(value))
            continue;
        text_add(out, "%s", out->bytes > 0 ? ", " : "");
        if (strcmp(key, "fused") == 0)
            text_add(out, "%sfused", json_is_true(value) ? "" : "not ");
        else if (strcmp(key, "layout") == 0)
            text_add(out, "a row per %s", json_string_value(value));
        else
            text_add(out, "%s %s", key, json_string_value(value));
    }
}

static void name_entries(struct best *b)
{
    struct results_names *names = calloc(b->n_groups + 1, sizeof(*names));

    if (names == NULL)
        abort();
    for (uint32_t i = 0; i < b->n_entries; i++)
        results_names_add(&names[b->entry[i].group], b->entry[i].run);
    for (uint32_t i = 0; i < b->n_entries; i++) {
        struct text name = {0}, extra = {0};

        results_name(&names[b->entry[i].group], b->entry[i].run, &name);
        describe_delivery(b, b->entry[i].run, true, &extra);
        if (extra.data != NULL)
            text_add(&name, " [%s]", extra.data);
        b->entry[i].name = arena_strndup(b->arena, name.data, name.bytes);
        text_free(&name);
        text_free(&extra);
    }
    for (uint32_t i = 0; i < b->n_groups; i++)
        results_names_free(&names[i]);
    free(names);
}

static int by_contest(const void *x, const void *y)
{
    const struct entry *a = x, *b = y;

    if (a->group != b->group)
        return a->group < b->group ? -1 : 1;
    if (a->size < b->size || a->size > b->size)
        return a->size < b->size ? -1 : 1;
    return strcmp(a->name, b->name);
}

/* ---- contests ---- */

static int by_median(const void *x, const void *y)
{
    const struct candidate *a = x, *b = y;

    return (a->spread.median > b->spread.median) - (a->spread.median < b->spread.median);
}

static enum epa_status judge(const struct best *b, struct contest *c, struct epa_error *err)
{
    for (uint32_t i = 0; i < c->n; i++) {
        struct candidate *one = &c->candidate[i];
        struct compare_run *run = arena_alloc(b->arena, one->n * sizeof(*run));

        for (uint32_t k = 0; k < one->n; k++)
            run[k] = (struct compare_run){one->first[k].stage->sample, one->first[k].stage->n};
        if (spread_of_side(&(struct compare_side){run, one->n}, &one->spread) != EPA_OK)
            return epa_fail(err, EPA_ERR_NOMEM, "no memory for samples of '%s'", one->first->name);
    }
    qsort(c->candidate, c->n, sizeof(*c->candidate), by_median);
    for (uint32_t i = 0; i < c->n; i++) {
        struct candidate *one = &c->candidate[i];

        one->best = i == 0;
        one->loss = one->spread.median / c->candidate[0].spread.median - 1;
        one->close = i > 0 && (one->loss <= b->wish->close ||
                               one->spread.low <= c->candidate[0].spread.high);
    }
    return EPA_OK;
}

/* Entries `from` to `end` are of one contest, those of one name beside each other. */
static enum epa_status add_contest(struct best *b, uint32_t from, uint32_t end, struct group *g,
                                   struct epa_error *err)
{
    struct contest *c = &g->contest[g->n++];

    c->size = b->entry[from].size;
    c->candidate = arena_alloc(b->arena, (end - from) * sizeof(*c->candidate));
    for (uint32_t i = from; i < end; i++) {
        if (i == from || strcmp(b->entry[i].name, b->entry[i - 1].name) != 0)
            c->candidate[c->n++] = (struct candidate){.first = &b->entry[i]};
        c->candidate[c->n - 1].n++;
    }
    for (uint32_t i = 0; i < c->n; i++)
        g->one_run = g->one_run || c->candidate[i].n == 1;
    return judge(b, c, err);
}

static const struct candidate *find_candidate(const struct contest *c, const char *name)
{
    for (uint32_t i = 0; i < c->n; i++)
        if (strcmp(c->candidate[i].first->name, name) == 0)
            return &c->candidate[i];
    return NULL;
}

/* The setting to take if it must be one for all sizes. */
static void find_overall(struct group *g)
{
    for (uint32_t i = 0; i < g->contest[0].n && g->n > 1; i++) {
        const char *name = g->contest[0].candidate[i].first->name;
        double logs = 0, worst = 0;
        uint32_t found = 0;

        for (uint32_t k = 0; k < g->n; k++) {
            const struct candidate *one = find_candidate(&g->contest[k], name);

            if (one == NULL)
                break;
            found++;
            logs += log1p(one->loss);
            worst = fmax(worst, one->loss);
        }
        if (found == g->n && (g->overall.name == NULL || exp(logs / found) < g->overall.mean))
            g->overall = (struct overall){name, exp(logs / found), 1 + worst};
    }
}

/* ---- titles ---- */

static void add_section(struct text *out, const json_t *x, const char *name, const char *size_key)
{
    const json_t *section = json_object_get(x, name);
    const char *key, *kind = json_text_at(section, "kind");
    json_t *value;
    bool first = true;

    if (section == NULL)
        return;
    text_add(out, "; %s%s%s", name, kind[0] != '\0' ? " " : "", kind);
    json_object_foreach((json_t *)section, key, value)
    {
        char path[128], *dump = json_dumps(value, JSON_ENCODE_ANY | JSON_COMPACT);

        snprintf(path, sizeof(path), "%s.%s", name, key);
        if (strcmp(path, size_key) != 0 && strcmp(key, "kind") != 0) {
            text_add(out, "%s %s %s", first ? "" : ",", key,
                     json_is_string(value) ? json_string_value(value) : dump);
            first = false;
        }
        free(dump);
    }
    text_clean(out->data);
}

static void describe_group(struct best *b, struct group *g)
{
    const struct results_run *run = g->first->run;
    const json_t *x = json_object_get(run->json, "experiment");
    const struct operation *operation;
    struct text title = {0}, delivers = {0};
    char note[300] = "";

    (void)results_size(run, &operation);
    text_add(&title, "%lld ranks", (long long)json_integer_value(json_object_get(x, "ranks")));
    for (const char *const *line = operation->head; *line != NULL; line++)
        for (; *line != NULL; line++)
            add_section(&title, x, *line, operation->size_key);
    add_section(&title, x, "expert", "");
    describe_delivery(b, run, false, &delivers);
    g->title = arena_strndup(b->arena, title.data, title.bytes);
    g->delivers =
        delivers.data != NULL ? arena_strndup(b->arena, delivers.data, delivers.bytes) : "";
    for (const struct group *other = b->group; other < g && note[0] == '\0'; other++)
        if (strcmp(other->title, g->title) == 0 && strcmp(other->delivers, g->delivers) == 0 &&
            !results_differ(run, other->first->run, RESULTS_SHAPE, note, sizeof(note)) &&
            !results_differ(run, other->first->run, RESULTS_MACHINE, note, sizeof(note)))
            snprintf(note, sizeof(note), "timed in another way");
    g->note = arena_strndup(b->arena, note, strlen(note));
    text_free(&title);
    text_free(&delivers);
}

static enum epa_status make_groups(struct best *b, struct epa_error *err)
{
    enum epa_status status = EPA_OK;

    b->group = arena_alloc(b->arena, (b->n_groups + 1) * sizeof(*b->group));
    for (uint32_t i = 0, end; i < b->n_entries && status == EPA_OK; i = end) {
        struct group *g = &b->group[b->entry[i].group];

        for (end = i + 1; end < b->n_entries; end++)
            if (b->entry[end].group != b->entry[i].group || b->entry[end].size > b->entry[i].size)
                break;
        if (g->contest == NULL) {
            g->contest = arena_alloc(b->arena, b->n_entries * sizeof(*g->contest));
            g->first = &b->entry[i];
        }
        status = add_contest(b, i, end, g, err);
    }
    for (uint32_t i = 0; i < b->n_groups && status == EPA_OK; i++) {
        describe_group(b, &b->group[i]);
        find_overall(&b->group[i]);
    }
    return status;
}

enum epa_status best_create(const struct results *results, uint32_t n, const struct best_wish *wish,
                            struct best **out, struct epa_error *err)
{
    struct arena *arena = arena_create();
    struct best *b = arena_alloc(arena, sizeof(*b));
    enum epa_status status;

    *b = (struct best){.wish = wish, .arena = arena};
    collect(b, results, n);
    number_groups(b);
    if (b->n_entries == 0) {
        status = epa_fail(err, EPA_ERR_CONFIG,
                          "%s: no run%s that ended well has samples of %s; bench takes them",
                          results[0].path, wish->n_only > 0 ? " of --only" : "",
                          wish->stage != NULL ? wish->stage : "whole iterations");
    } else {
        name_entries(b);
        qsort(b->entry, b->n_entries, sizeof(*b->entry), by_contest);
        status = make_groups(b, err);
    }
    if (status == EPA_OK)
        *out = b;
    else
        arena_destroy(arena);
    return status;
}

void best_destroy(struct best *b)
{
    if (b != NULL)
        arena_destroy(b->arena);
}

/* ---- text and Markdown ---- */

/* How many candidates of a contest a table has: those that are close, and some losers. */
static uint32_t shown(const struct contest *c)
{
    uint32_t n = 0, losers = 0;

    for (; n < c->n && losers < LOSERS; n++)
        losers += !c->candidate[n].best && !c->candidate[n].close;
    return n + 1 == c->n ? c->n : n; /* a line for one more says no less than the one itself */
}

static const char *size_word(const struct group *g)
{
    const struct operation *operation;

    (void)results_size(g->first->run, &operation);
    return operation->unit;
}

static void add_loss(struct text *out, const struct candidate *one)
{
    if (one->best)
        text_add(out, "best");
    else
        text_add(out, "+%.1f %%%s", 100 * one->loss, one->close ? " close" : "");
}

static void add_overall(struct text *out, const struct group *g)
{
    if (g->overall.name != NULL)
        text_add(out,
                 "one for all sizes: %s, %.1f %% behind the best of each on average, "
                 "%.1f %% at worst",
                 g->overall.name, 100 * (g->overall.mean - 1), 100 * (g->overall.worst - 1));
}

static int width_of_names(const struct group *g)
{
    int width = NAME_LEAST;

    for (uint32_t k = 0; k < g->n; k++)
        for (uint32_t i = 0; i < shown(&g->contest[k]); i++)
            width = (int)fmax(width, (double)strlen(g->contest[k].candidate[i].first->name));
    return width > NAME_MOST ? NAME_MOST : width;
}

static void print_contest(FILE *file, const struct contest *c, int width)
{
    for (uint32_t i = 0; i < shown(c); i++) {
        const struct candidate *one = &c->candidate[i];
        const char *name = one->first->name;
        bool folded = (int)strlen(name) > width;
        char size[32] = "";
        struct text loss = {0};

        add_loss(&loss, one);
        if (i == 0)
            snprintf(size, sizeof(size), "%.0f", c->size);
        fprintf(file, "%8s  ", size);
        if (folded)
            fprintf(file, "%s\n%10s", name, "");
        fprintf(file, "%-*s %5u %10.2f %10.2f %10.2f  %s\n", width, folded ? "" : name, one->n,
                one->spread.median / 1e3, one->spread.low / 1e3, one->spread.high / 1e3, loss.data);
        text_free(&loss);
    }
    if (shown(c) < c->n)
        fprintf(file, "%8s  and %u more, +%.1f %% to +%.1f %%\n", "", c->n - shown(c),
                100 * c->candidate[shown(c)].loss, 100 * c->candidate[c->n - 1].loss);
}

/* What the figures are, for both forms. */
static void add_legend(struct text *out, const struct best *b)
{
    bool one_run = false;

    for (uint32_t i = 0; i < b->n_groups; i++)
        one_run = one_run || b->group[i].one_run;
    text_add(out,
             "medians of %s, and between which bounds they would be found again (95 %%);\n"
             "close: up to %g %% behind the best, or within the bounds of both\n",
             b->entry[0].stage->name, 100 * b->wish->close);
    if (one_run)
        text_add(out, "some ran once: how runs differ from each other is not in their bounds "
                      "(bench with --set repeat=3)\n");
    if (b->n_groups > 1)
        text_add(out, "runs of different groups are not alike: problem, machine or what is "
                      "delivered differs (--across)\n");
}

void best_text(FILE *file, const struct best *b)
{
    struct text legend = {0};

    text_comment(file, "epa2a best: %u runs, %u group%s", b->n_entries, b->n_groups,
                 b->n_groups == 1 ? "" : "s");
    add_legend(&legend, b);
    for (char *at = strtok(legend.data, "\n"); at != NULL; at = strtok(NULL, "\n"))
        text_comment(file, "%s", at);
    text_free(&legend);
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const struct group *g = &b->group[i];
        int width = width_of_names(g);
        struct text overall = {0};

        fprintf(file, "#\n");
        text_comment(file, "%s", g->title);
        if (g->delivers[0] != '\0')
            text_comment(file, "delivers: %s", g->delivers);
        if (g->note[0] != '\0')
            text_comment(file, "differs from a group above: %s", g->note);
        fprintf(file, "# %6s  %-*s %5s %10s %10s %10s\n", size_word(g), width, "run", "runs",
                "[us]", "from", "to");
        for (uint32_t k = 0; k < g->n; k++)
            print_contest(file, &g->contest[k], width);
        add_overall(&overall, g);
        if (overall.data != NULL)
            text_comment(file, "%s", overall.data);
        text_free(&overall);
    }
}

void best_markdown(struct text *out, const struct best *b)
{
    for (uint32_t i = 0; i < b->n_groups; i++) {
        const struct group *g = &b->group[i];

        text_add(out, "%s", i > 0 ? "\n" : "");
        text_add_markdown(out, g->title);
        text_add(out, "%s", g->delivers[0] != '\0' ? "; delivers: " : "");
        text_add_markdown(out, g->delivers);
        text_add(out, "%s", g->note[0] != '\0' ? "; " : "");
        text_add_markdown(out, g->note);
        text_add(out,
                 "\n\n| %s | run | runs | median [us] | from | to | |\n"
                 "|---:|---|---:|---:|---:|---:|---|\n",
                 size_word(g));
        for (uint32_t k = 0; k < g->n; k++) {
            const struct contest *c = &g->contest[k];

            for (uint32_t n = 0; n < shown(c); n++) {
                const struct candidate *one = &c->candidate[n];

                text_add(out, "| %.0f | ", c->size);
                text_add_markdown(out, one->first->name);
                text_add(out, " | %u | %.2f | %.2f | %.2f | ", one->n, one->spread.median / 1e3,
                         one->spread.low / 1e3, one->spread.high / 1e3);
                add_loss(out, one);
                text_add(out, " |\n");
            }
        }
        if (g->overall.name != NULL) {
            struct text overall = {0};

            add_overall(&overall, g);
            text_add(out, "\n");
            text_add_markdown(out, overall.data);
            text_add(out, "\n");
            text_free(&overall);
        }
    }
    text_add(out, "\n");
    add_legend(out, b);
}

/* ---- JSON ---- */

static json_t *candidate_json(const struct candidate *one)
{
    json_t *labels = json_array(), *id = json_text_or_null(one->first->run->id);

    for (uint32_t i = 0; i < one->n; i++)
        json_add(&labels, json_text(one->first[i].run->label));
    return json_object_of(
        "name", json_text(one->first->name), "id", id, "labels", labels, "verdict",
        json_text(one->best    ? "best"
                  : one->close ? "close"
                               : "slower"),
        "loss", json_number(one->loss), "median_ns", json_whole(one->spread.median), "low_ns",
        json_whole(one->spread.low), "high_ns", json_whole(one->spread.high), NULL);
}

static json_t *group_json(const struct group *g)
{
    const json_t *delivers = json_object_get(g->first->run->json, "delivers");
    json_t *contests = json_array(), *overall = json_null();

    for (uint32_t k = 0; k < g->n; k++) {
        json_t *candidates = json_array();

        for (uint32_t i = 0; i < g->contest[k].n; i++)
            json_add(&candidates, candidate_json(&g->contest[k].candidate[i]));
        json_add(&contests,
                 json_object_of("size", json_number(g->contest[k].size), "runs", candidates, NULL));
    }
    if (g->overall.name != NULL)
        overall = json_object_of("name", json_text(g->overall.name), "mean_ratio",
                                 json_number(g->overall.mean), "worst_ratio",
                                 json_number(g->overall.worst), NULL);
    return json_object_of("title", json_text(g->title), "delivers",
                          delivers != NULL ? json_deep_copy(delivers) : json_null(), "differs",
                          json_text_or_null(g->note), "question",
                          json_loads(g->first->question, 0, NULL), "contests", contests, "overall",
                          overall, NULL);
}

enum epa_status best_json(struct text *out, const struct best *b, struct epa_error *err)
{
    json_t *groups = json_array();

    for (uint32_t i = 0; i < b->n_groups; i++)
        json_add(&groups, group_json(&b->group[i]));
    if (!json_write(out,
                    json_object_of("schema", json_integer(1), "program", json_text("epa2a"),
                                   "stage", json_text(b->entry[0].stage->name), "close",
                                   json_number(b->wish->close), "best", groups, NULL),
                    JSON_INDENT(1)))
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for %u runs as JSON", b->n_entries);
    text_add(out, "\n");
    return EPA_OK;
}
