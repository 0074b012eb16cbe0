/* Makes one tree for each run: a copy of the base with the overrides of the run merged in. Keys
 * keep their source location, so that an error points to the line of the user. */
#include "experiment/batch.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "base/text.h"
#include "config/options.h"
#include "config/diag.h"
#include "config/experiment_show.h"
#include "config/node.h"
#include "config/yaml.h"
#include "experiment/batch_keys.h"
#include "experiment/points.h"
#include "experiment/read.h"
#include "experiment/variants.h"
#include "experiment/operation.h"

enum { REPEAT_MOST = 100000, LABEL_MOST = 200, LABELS_MOST = 256 };

/* The runs of a file: each named run with each point of matrix and zip, `repeat` times. */
struct plan {
    struct node *runs;                       /* a map of names (none for a single run) to roots */
    struct node *matrix, *zip;               /* lists of points; an empty point without the key */
    struct node *matrix_varies, *zip_varies; /* maps of the keys whose values differ */
    uint32_t repeat;
};

/* State while a file is read. */
struct batch_reading {
    struct tree tree;
    const char *file;
    const char *const *set;
    uint32_t n_sets, max_runs;
    struct registry *registry;
    struct batch *batch;
    const struct batch_pick *pick;
    bool several;         /* runs have labels */
    bool skips;           /* a run with a missing plugin is not an error */
    const char *baseline; /* NULL: the file has no baseline */
};

bool batch_picks(const struct batch_pick *pick, const char *label, const char *id)
{
    for (uint32_t i = 0; i < pick->n; i++)
        if (fnmatch(pick->glob[i], label, 0) == 0 || strcmp(pick->glob[i], label) == 0 ||
            (id != NULL && fnmatch(pick->glob[i], id, 0) == 0))
            return true;
    return pick->n == 0;
}

/* ---- --set ---- */

/* Returns true if the first part of the key is a batch key: "matrix" of matrix.algorithm=[a, b]. */
static bool is_batch_set(const char *set)
{
    return batch_is_key_of(set, strcspn(set, ".="));
}

static bool is_model_set(const char *set)
{
    size_t n = strcspn(set, "=");

    return (n == 5 && strncmp(set, "model", n) == 0) ||
           (n == 10 && strncmp(set, "model.name", n) == 0);
}

/* Returns the key of a list of models in the matrix or zip of the file; --set model=NAME replaces
 * this list. */
static const char *model_list(const struct tree *tree, const char *set)
{
    static const char *const of[] = {"matrix", "zip"};

    for (size_t i = 0; is_model_set(set) && i < 2; i++)
        if (node_find(node_find(tree->root, of[i]), "model") != NULL)
            return arena_printf(tree->arena, "%s.model=[%s]", of[i], strchr(set, '=') + 1);
    return NULL;
}

/* Checks that the file is a map, and applies --set of matrix, zip and repeat to it. */
static void apply_batch_sets(struct tree *tree, const char *const *sets, uint32_t n_sets)
{
    if (tree->root != NULL && tree->root->kind != NODE_MAP) {
        diag_error(tree->diag, &tree->root->location, "such as ranks: 2",
                   "an experiment is a map of keys");
        tree->root = NULL;
    }
    for (uint32_t i = 0; i < n_sets && tree->root != NULL; i++) {
        const char *set = arena_strndup(tree->arena, sets[i], strlen(sets[i]));
        struct source_location location = {"--set", set, 1, 1, (uint32_t)strcspn(set, "=")};

        if (is_batch_set(set) && (strncmp(set, "include", 7) == 0 || strncmp(set, "runs", 4) == 0))
            diag_error(tree->diag, &location, "it is in the file", "'%.*s' cannot be set here",
                       (int)strcspn(set, ".="), set);
        else if (is_batch_set(set))
            tree_set(tree, set);
        else if (model_list(tree, set) != NULL)
            tree_set(tree, model_list(tree, set));
    }
}

void batch_read_tree(struct tree *tree, const char *file, const char *const *sets, uint32_t n_sets)
{
    tree->root = NULL;
    tree_read_file(tree->arena, file, tree->diag, &tree->root);
    apply_batch_sets(tree, sets, n_sets);
}

/* Returns true if `set` overrules `key` of a matrix: `set` is that key, a section of it, or the key
 * that a bare value of the section sets. */
static bool overrules(const char *set, const char *key)
{
    const struct section *section = section_find_path(key);
    const char *main = section != NULL ? section->main : NULL;
    size_t n = strcspn(set, "="), bytes = strlen(key);

    return (strncmp(set, key, n) == 0 && (key[n] == 0 || key[n] == '.')) ||
           (main != NULL && n == bytes + 1 + strlen(main) && strncmp(set, key, bytes) == 0 &&
            set[bytes] == '.' && strncmp(set + bytes + 1, main, strlen(main)) == 0);
}

/* Rejects --set of a key of the points, since labels would show another value than the run uses. */
static void check_sets(const struct batch_reading *r, const struct node *points, const char *of)
{
    const struct node *point = points == NULL || points->n == 0 ? NULL : points->item[0];

    for (uint32_t i = 0; i < r->n_sets && point != NULL; i++) {
        const char *set = r->set[i];
        struct source_location location = {"--set", set, 1, 1, (uint32_t)strcspn(set, "=")};

        for (uint32_t k = 0; k < point->n && !is_batch_set(set) && !is_model_set(set); k++) {
            if (location.width == 0 || !overrules(set, point->key[k]->text))
                continue;
            diag_error(r->tree.diag, &location,
                       "--only picks runs, and matrix.KEY=[...] changes a list",
                       "each run sets %.64s itself, by %s", point->key[k]->text, of);
            diag_note(r->tree.diag, &point->key[k]->location, "it is set here");
        }
    }
}

/* ---- runs ---- */

/* Returns a copy without the keys that define several runs. */
static struct node *copy_without_batch_keys(struct tree *tree, const struct node *from)
{
    struct node *root = tree_copy(tree->arena, from);

    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        node_drop(root, k->name);
    return root;
}

/* Returns the root of the run that `from` names, among the earlier runs; after an error, which is
 * reported, the root of the base. */
static const struct node *find_from(struct batch_reading *r, const struct node *before,
                                    const struct node *runs, const struct node *from)
{
    struct nearest nearest = {.want = from->text};
    char hint[NEAREST_ROOM];

    if (from->kind == NODE_SCALAR && node_find(before, from->text) != NULL)
        return node_find(before, from->text);
    for (uint32_t i = 0; i < before->n; i++)
        nearest_try(&nearest, before->key[i]->text);
    diag_error(r->tree.diag, &from->location,
               nearest_hint(&nearest, hint, "a run builds on one that precedes it"),
               from->kind != NODE_SCALAR             ? "from: the name of a run is expected"
               : node_find(runs, from->text) != NULL ? "from: run '%.64s' does not precede this one"
                                                     : "from: there is no run '%.64s'",
               from->text);
    return r->tree.root;
}

static void read_run(struct batch_reading *r, const struct node *runs, uint32_t i, struct node *out)
{
    struct node *said = runs->item[i];
    const struct node *from;
    struct tree tree = r->tree;

    if (said->kind == NODE_SCALAR && *said->text == 0 && !said->quoted)
        said = node_make(tree.arena, NODE_MAP, &said->location);
    if (said->kind != NODE_MAP) {
        diag_error(tree.diag, &said->location, "such as {moe.max_tokens: 8}",
                   "run '%.64s' must be a map of keys", runs->key[i]->text);
        return;
    }
    from = node_find(said, "from");
    tree.root =
        copy_without_batch_keys(&tree, from == NULL ? tree.root : find_from(r, out, runs, from));
    said = tree_copy(tree.arena, said);
    node_drop(said, "from");
    points_check_overrides(&tree, said, "a run");
    tree_lay(&tree, said, true);
    node_append(tree.arena, out, runs->key[i], tree.root);
}

static const char *how_to_have_more(const struct batch_reading *r)
{
    return r->max_runs < BATCH_RUNS_LIMIT ? "--max-runs raises that"
                                          : "divide them into several files";
}

static void reject_too_many_runs(const struct batch_reading *r, const struct node *runs)
{
    if (runs->kind == NODE_MAP && runs->n > r->max_runs)
        diag_error(r->tree.diag, &runs->location, NULL, "'runs' are more than %u; %s", r->max_runs,
                   how_to_have_more(r));
    else
        diag_error(r->tree.diag, &runs->location, "such as {plain: {}, few: {moe.topk: 2}}",
                   "'runs' must be a map of names");
}

static struct node *read_runs(struct batch_reading *r)
{
    const struct node *runs = node_find(r->tree.root, "runs");
    struct node *out = node_make(r->tree.arena, NODE_MAP, &r->tree.root->location);

    if (runs == NULL)
        node_append(r->tree.arena, out, NULL, copy_without_batch_keys(&r->tree, r->tree.root));
    else if (runs->kind != NODE_MAP || runs->n == 0 || runs->n > r->max_runs)
        reject_too_many_runs(r, runs);
    else
        for (uint32_t i = 0; i < runs->n; i++)
            read_run(r, runs, i, out);
    return out;
}

static void read_plan(struct batch_reading *r, struct plan *plan)
{
    static const struct epa_option repeat = {
        .name = "repeat", .type = EPA_OPTION_U32, .min = 1, .max = REPEAT_MOST};
    static const struct epa_option base = {.name = "baseline", .type = EPA_OPTION_STRING};
    struct node *value = node_find(r->tree.root, repeat.name);
    struct node *baseline = node_find(r->tree.root, base.name);
    const struct node *zip;

    plan->runs = read_runs(r);
    plan->matrix = points_read(&r->tree, "matrix", r->max_runs);
    plan->zip = points_read(&r->tree, "zip", r->max_runs);
    plan->matrix_varies = points_varying(r->tree.arena, plan->matrix);
    plan->zip_varies = points_varying(r->tree.arena, plan->zip);
    plan->repeat = 1;
    if (baseline != NULL)
        option_read(&base, base.name, baseline, r->tree.arena, r->tree.diag, &r->baseline);
    if (value != NULL)
        option_read(&repeat, repeat.name, value, r->tree.arena, r->tree.diag, &plan->repeat);
    /* A key in both would be set twice, and the label would show both values. */
    zip = plan->zip->n > 0 && plan->matrix->n > 0 ? plan->zip->item[0] : NULL;
    for (uint32_t i = 0; zip != NULL && i < zip->n; i++)
        if (node_find(plan->matrix->item[0], zip->key[i]->text) != NULL)
            diag_error(r->tree.diag, &zip->key[i]->location, "keep one of them",
                       "%.64s is in the matrix already", zip->key[i]->text);
    check_sets(r, plan->matrix, "matrix");
    check_sets(r, plan->zip, "zip");
}

/* Returns the number of runs; any number above `most` counts as `most` + 1. */
static uint64_t count_runs(const struct plan *plan, uint32_t most)
{
    uint64_t n = (uint64_t)plan->runs->n * plan->matrix->n; /* each factor is below 2^20 */

    n = n > most ? n : n * plan->zip->n;
    return n > most ? n : n * plan->repeat;
}

/* One run, in the order of the file. */
struct run_of {
    const char *name; /* NULL: no name */
    const struct node *root, *matrix, *zip;
    uint32_t repetition;           /* from 1; 0: no repetitions */
    const struct variant *variant; /* NULL: the run without a variant */
};

static struct run_of find_run(const struct plan *plan, uint64_t i)
{
    uint64_t z = i / plan->repeat, m = z / plan->zip->n, run = m / plan->matrix->n;
    const struct node *key = plan->runs->key[run];

    return (struct run_of){key != NULL ? key->text : NULL, plan->runs->item[run],
                           plan->matrix->item[m % plan->matrix->n],
                           plan->zip->item[z % plan->zip->n],
                           plan->repeat > 1 ? (uint32_t)(i % plan->repeat) + 1 : 0};
}

/* ---- labels: "NAME key=value key=value #2" ---- */

static void add_text(struct text *out, const struct node *node)
{
    if (node->kind == NODE_SCALAR) {
        bool plain = *node->text != 0 && strpbrk(node->text, " ,{}[]:") == NULL;

        text_add(out, plain ? "%s" : "\"%s\"", node->text);
        return;
    }
    text_add(out, node->kind == NODE_LIST ? "[" : "{");
    for (uint32_t i = 0; i < node->n; i++) {
        text_add(out, "%s%s%s", i > 0 ? ", " : "", node->kind == NODE_MAP ? node->key[i]->text : "",
                 node->kind == NODE_MAP ? ": " : "");
        add_text(out, node->item[i]);
    }
    text_add(out, node->kind == NODE_LIST ? "]" : "}");
}

/* Leaves out keys that are not in `varies`; NULL: leaves out none. */
static void add_point(struct text *out, const struct node *varies, const struct node *point)
{
    for (uint32_t i = 0; i < point->n; i++) {
        if (varies != NULL && node_find(varies, point->key[i]->text) == NULL)
            continue;
        text_add(out, "%s%s=", out->bytes == 0 ? "" : " ", point->key[i]->text);
        add_text(out, point->item[i]);
    }
}

/* Returns the label as one line without control characters; NULL: it would be empty, as for the
 * only run of a file. */
static const char *label_of(struct arena *arena, const struct plan *plan, const struct run_of *of)
{
    text_auto text = {0};
    char *label = NULL;

    if (of->name != NULL)
        text_add(&text, "%s", of->name);
    add_point(&text, plan->matrix_varies, of->matrix);
    add_point(&text, plan->zip_varies, of->zip);
    if (text.bytes == 0) { /* the only run of its file */
        add_point(&text, NULL, of->matrix);
        add_point(&text, NULL, of->zip);
    }
    if (of->variant != NULL)
        text_add(&text, "%s%s", text.bytes == 0 ? "" : ", ", of->variant->name);
    if (of->repetition > 0)
        text_add(&text, "%s#%u", text.bytes == 0 ? "" : " ", of->repetition);
    if (text.bytes > 0) {
        size_t n = text.bytes;

        if (n > LABEL_MOST)
            for (n = LABEL_MOST; n > 0 && ((unsigned char)text.data[n] & 0xc0) == 0x80; n--)
                ;
        label = arena_printf(arena, "%.*s%s", (int)n, text.data, n < text.bytes ? "..." : "");
        for (char *c = label; *c != 0; c++)
            *c = (unsigned char)*c < ' ' || *c == 0x7f ? '?' : *c;
    }
    return label;
}

void batch_labels(const char *file, const char *const *sets, uint32_t n_sets,
                  void (*fn)(void *arg, const char *label), void *arg)
{
    struct batch_reading r = {.tree = {.arena = arena_create(), .diag = diag_create()},
                              .file = file,
                              .max_runs = LABELS_MOST};
    struct plan plan;
    uint64_t n = 0;

    batch_read_tree(&r.tree, file, sets, n_sets);
    if (r.tree.root != NULL) {
        read_plan(&r, &plan);
        plan.repeat = 1;
        n = count_runs(&plan, LABELS_MOST);
    }
    for (uint64_t i = 0; i < n && i < LABELS_MOST; i++) {
        struct run_of of = find_run(&plan, i);
        const char *label = label_of(r.tree.arena, &plan, &of);

        if (label != NULL)
            fn(arg, label);
    }
    diag_destroy(r.tree.diag);
    arena_destroy(r.tree.arena);
}

/* ---- building ---- */

static uint64_t n_variants(void)
{
    uint64_t n = 0;

    while (thorough_variants[n].name != NULL)
        n++;
    return n;
}

static bool sets_model(const struct run_of *of)
{
    return node_find(of->matrix, "model") != NULL || node_find(of->zip, "model") != NULL;
}

static enum epa_status build_run(struct batch_reading *r, const struct plan *plan,
                                 const struct run_of *of, bool flawed)
{
    struct batch *batch = r->batch;
    struct batch_run *run = &batch->run[batch->n++];
    struct tree tree = {.arena = arena_create(), .diag = r->tree.diag};
    uint32_t before = diag_errors(tree.diag);
    const char *label = label_of(batch->arena, plan, of), *plain_label;
    struct experiment *x = NULL;
    bool unwanted;
    enum epa_status status;

    run->repetition = of->repetition > 0 ? of->repetition : 1;
    if (r->skips)
        diag_run_begin(tree.diag);
    tree.root = tree_copy(tree.arena, of->root);
    tree_lay(&tree, of->matrix, true);
    tree_lay(&tree, of->zip, true);
    for (uint32_t i = 0; i < r->n_sets; i++) /* other settings override a model */
        if (is_model_set(r->set[i]) && !sets_model(of))
            tree_set(&tree, r->set[i]);
    for (uint32_t i = 0; i < r->n_sets; i++)
        if (!is_batch_set(r->set[i]) && !is_model_set(r->set[i]))
            tree_set(&tree, r->set[i]);
    for (uint32_t i = 0; of->variant != NULL && i < VARIANT_KEYS && of->variant->set[i] != NULL;
         i++)
        tree_set(&tree, of->variant->set[i]);
    flawed = flawed || diag_errors(tree.diag) > before;
    status = experiment_build(r->file, &tree, flawed, r->registry, &run->absent, &x);
    if (flawed) {
        run->absent.status = EPA_OK;
        status = EPA_ERR_CONFIG;
    }
    if (status == EPA_OK) {
        run->x = x;
        x->run_name = of->name != NULL ? arena_printf(x->arena, "%s", of->name) : NULL;
        x->label = label;
        if (r->several && x->profile.file != NULL) /* separate trace files for each run */
            x->profile.file = arena_printf(x->arena, "%s-%u", x->profile.file, batch->n);
    } else {
        arena_destroy(tree.arena);
    }
    if (r->baseline != NULL) {
        const struct batch_pick pick = {&r->baseline, 1};
        struct run_of plain = *of;

        plain.repetition = 0;
        plain_label = label_of(batch->arena, plan, &plain);
        run->baseline = batch_picks(&pick, plain_label != NULL ? plain_label : "", NULL);
    }
    run->label = label != NULL ? label : status == EPA_OK ? x->name : r->file;
    unwanted = r->several && status != EPA_OK && !batch_picks(r->pick, run->label, NULL);
    if (r->skips)
        diag_run_end(tree.diag, r->file, unwanted ? NULL : run->label,
                     run->absent.status == EPA_ERR_UNSUPPORTED);
    return unwanted || (r->skips && run->absent.status != EPA_OK) ? EPA_OK : status;
}

/* Adds the variants of verify --thorough for the operation of the last built run. A rejected
 * variant, for example because of its transport, is skipped with the reason. */
static void build_variants(struct batch_reading *r, const struct plan *plan,
                           const struct run_of *of)
{
    const struct experiment *x = r->batch->run[r->batch->n - 1].x;
    struct diag *diag = r->tree.diag;

    for (const struct variant *v = thorough_variants; x != NULL && v->name != NULL; v++) {
        struct batch_run *run = &r->batch->run[r->batch->n];
        struct variant fitted;
        struct run_of one = *of;
        char *why = NULL;
        size_t bytes;
        FILE *file;

        if (v->ops != 0 && (v->ops >> operation_of_experiment(x)->op & 1) == 0)
            continue;
        if (!variant_fit(v, r->batch->arena, x, &fitted))
            continue;
        one.variant = &fitted;
        r->tree.diag = diag_create();
        if (build_run(r, plan, &one, false) != EPA_OK &&
            (file = open_memstream(&why, &bytes)) != NULL) {
            diag_print_first(r->tree.diag, file);
            fclose(file);
            why[strcspn(why, "\n")] = '\0';
            (void)epa_fail(&run->absent, EPA_ERR_UNSUPPORTED, "%s", why);
            free(why);
        }
        run->variant = true;
        diag_destroy(r->tree.diag);
        r->tree.diag = diag;
    }
}

static int by_hash(const void *a, const void *b)
{
    const struct batch_run *x = *(struct batch_run *const *)a, *y = *(struct batch_run *const *)b;

    return (x->hash > y->hash) - (x->hash < y->hash);
}

/* An id does not depend on the launcher, unless runs of the batch differ only in the launcher. */
static void make_ids(struct batch *batch)
{
    struct batch_run **run = memory_alloc(batch->n, sizeof(*run));
    uint32_t n = 0;

    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->run[i].x != NULL || batch->run[i].passed)
            run[n++] = &batch->run[i];
    qsort(run, n, sizeof(*run), by_hash);
    for (uint32_t i = 0, end; i < n; i = end) {
        bool differ = false;

        for (end = i; end < n && run[end]->hash == run[i]->hash; end++)
            differ = differ || run[end]->launcher != run[i]->launcher;
        for (uint32_t k = i; k < end; k++) {
            run[k]->id = k > i && !differ
                             ? run[i]->id
                             : arena_printf(batch->arena, "%012" PRIx64,
                                            run[k]->hash ^ (differ ? run[k]->launcher : 0));
            if (run[k]->x != NULL)
                run[k]->x->id = run[k]->id;
        }
    }
    free(run);
}

/* Stores the hashes of a run, and releases its experiment if it passes. */
static void finish_run(const struct batch_reading *r, struct batch_run *run)
{
    struct experiment *x = run->x;

    if (x == NULL)
        return;
    run->hash = experiment_hash(x);
    run->launcher = experiment_launcher_hash(x);
    if (r->pick->passes == NULL || !r->several || !r->pick->passes(r->pick->passes_arg, x))
        return;
    run->passed = true;
    run->repeats = x->profile.file == NULL; /* each repetition has a trace file of its own */
    if (run->label == x->name)
        run->label = arena_printf(r->batch->arena, "%s", x->name);
    run->x = NULL;
    arena_destroy(x->arena);
}

/* Adds a repetition of the last run, which has passed. */
static void repeat_run(struct batch_reading *r, const struct plan *plan, const struct run_of *of)
{
    struct batch_run *run = &r->batch->run[r->batch->n++];

    *run = run[-1];
    run->repetition = of->repetition;
    run->label = label_of(r->batch->arena, plan, of);
}

/* The baseline may be an id. A glob without a matching run is an error: ratios would otherwise have
 * an unexpected denominator. */
static enum epa_status check_baseline(struct batch_reading *r)
{
    const struct node *node = node_find(r->tree.root, "baseline");
    const struct batch_pick pick = {&r->baseline, 1};
    bool found = false;

    for (uint32_t i = 0; i < r->batch->n; i++) {
        struct batch_run *run = &r->batch->run[i];

        if (run->id != NULL && batch_picks(&pick, "", run->id))
            run->baseline = true;
        found = found || run->baseline;
    }
    if (found)
        return EPA_OK;
    diag_error(r->tree.diag, &node->location, "`epa2a run --dry-run FILE` lists labels and ids",
               "baseline: there is no run '%.200s'", r->baseline);
    return EPA_ERR_CONFIG;
}

static enum epa_status expand(struct batch_reading *r, bool flawed)
{
    const struct source_location nowhere = {.file = r->file};
    enum epa_status status = EPA_OK;
    uint32_t before = diag_errors(r->tree.diag);
    struct plan plan;
    uint64_t n, each = 1;

    read_plan(r, &plan);
    if (diag_errors(r->tree.diag) != before)
        return EPA_ERR_CONFIG;
    n = count_runs(&plan, r->max_runs);
    if (n > r->max_runs) {
        diag_error(r->tree.diag, &nowhere, NULL, "there are more than %u runs; %s", r->max_runs,
                   how_to_have_more(r));
        return EPA_ERR_CONFIG;
    }
    r->several = n > 1 || r->pick->thorough;
    r->skips = r->several || r->pick->skips;
    if (r->pick->thorough)
        each = 1 + n_variants();
    r->batch->run = arena_alloc(r->batch->arena, n * each * sizeof(*r->batch->run));
    for (uint64_t i = 0; i < n; i++) {
        struct run_of of = find_run(&plan, i);
        uint32_t first = r->batch->n;
        enum epa_status one;

        if (of.repetition > 1 && !r->pick->thorough && r->batch->run[first - 1].repeats) {
            repeat_run(r, &plan, &of);
            continue;
        }
        one = build_run(r, &plan, &of, flawed);
        status = status == EPA_OK || one == EPA_ERR_CONFIG ? one : status;
        if (one == EPA_OK && r->pick->thorough)
            build_variants(r, &plan, &of);
        for (uint32_t k = first; k < r->batch->n; k++)
            finish_run(r, &r->batch->run[k]);
    }
    make_ids(r->batch);
    return status == EPA_OK && r->baseline != NULL ? check_baseline(r) : status;
}

enum epa_status batch_read(const char *file, const char *text, const char *const *sets,
                           uint32_t n_sets, const struct batch_pick *pick, uint32_t max_runs,
                           struct registry *registry, struct diag *diag, struct batch **out)
{
    struct arena *arena = arena_create();
    struct batch *batch = arena_alloc(arena, sizeof(*batch));
    struct batch_reading r = {.tree = {.arena = arena, .diag = diag},
                              .file = arena_strndup(arena, file, strlen(file)),
                              .set = sets,
                              .n_sets = n_sets,
                              .max_runs = max_runs > 0 ? max_runs : 1,
                              .registry = registry,
                              .batch = batch,
                              .pick = pick};
    uint32_t before = diag_errors(diag);
    enum epa_status status = EPA_ERR_CONFIG;
    FILE *own = stdout_lend(); /* plugins print while they plan and search for a launcher */

    batch->arena = arena;
    batch->file = r.file;
    if (text == NULL) {
        batch_read_tree(&r.tree, file, sets, n_sets);
    } else {
        yaml_parse(arena, file, text, strlen(text), 0, false, diag, &r.tree.root);
        tree_expand_model(&r.tree);
        apply_batch_sets(&r.tree, sets, n_sets);
    }
    for (const struct batch_key *k = batch_keys; max_runs == 0 && k->name != NULL; k++)
        if (r.tree.root != NULL)
            node_drop(r.tree.root, k->name);
    if (r.tree.root != NULL)
        status = expand(&r, diag_errors(diag) != before);
    stdout_take_back(own);
    if (status != EPA_OK) {
        batch_destroy(batch);
        return status;
    }
    *out = batch;
    return EPA_OK;
}

void batch_destroy(struct batch *batch)
{
    if (batch == NULL)
        return;
    for (uint32_t i = 0; i < batch->n; i++)
        if (batch->run[i].x != NULL)
            arena_destroy(batch->run[i].x->arena);
    arena_destroy(batch->arena);
}
