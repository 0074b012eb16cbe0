/* A tree becomes many: the base is copied for each run, and what the run says is laid over
 * the copy, by keys that know where they stand. So an error is where the user wrote it, and
 * all after that is as for a file of one run. */
#include "config/batch.h"

#include <fnmatch.h>
#include <inttypes.h>
#include <string.h>

#include "base/arena.h"
#include "base/text.h"
#include "config/experiment_table.h"
#include "config/include.h"
#include "config/options.h"

enum { REPEAT_MOST = 100000, NAMES = 64 };

const struct batch_key batch_keys[] = {
    {"include", "another file, whose keys are the base of this one's"},
    {"runs", "named runs: {plain: {}, wide: {from: plain, moe.hidden: 8192}}"},
    {"matrix", "a run for each combination: {moe.topk: [4, 8], transport: [shm, ucx]}"},
    {"zip", "lists of one length, taken together: {ranks: [2, 4], moe.experts: [8, 16]}"},
    {"repeat", "how often each run runs"},
    {0},
};

/* One named run, or the only one. */
struct named {
    const char *name;  /* NULL: it has none */
    struct node *root; /* the base with what it says laid over */
};

/* What a file asks for. */
struct plan {
    struct named *named;
    uint32_t n_named;
    struct points matrix, zip;
    uint32_t repeat;
};

/* All of it while a file is read. */
struct reading {
    struct tree tree;
    const char *file;
    const char *const *set;
    uint32_t n_sets, max_runs;
    struct registry *registry;
    struct batch *batch;
    const struct batch_pick *pick;
    bool several; /* runs have labels */
};

bool batch_is_key(const char *key)
{
    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        if (strcmp(k->name, key) == 0)
            return true;
    return false;
}

bool batch_picks(const struct batch_pick *pick, const char *label, const char *id)
{
    for (uint32_t i = 0; i < pick->n; i++)
        if (fnmatch(pick->glob[i], label, 0) == 0 || strcmp(pick->glob[i], label) == 0 ||
            (id != NULL && fnmatch(pick->glob[i], id, 0) == 0))
            return true;
    return pick->n == 0;
}

/* ---- --set ---- */

/* The first part of the key: "matrix" of matrix.algorithm=[a, b]. */
static bool is_set_of(const char *set, const char *key)
{
    size_t n = strlen(key);

    return strncmp(set, key, n) == 0 && (set[n] == '.' || set[n] == '=');
}

static bool is_batch_set(const char *set)
{
    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        if (is_set_of(set, k->name))
            return true;
    return false;
}

static void set_batch(struct tree *tree, const char *set)
{
    struct source_location location = {"--set", arena_strndup(tree->arena, set, strlen(set)), 1, 1,
                                       (uint32_t)strcspn(set, "=")};

    if (is_set_of(set, "include") || is_set_of(set, "runs"))
        diag_error(tree->diag, &location, "it is in the file", "'%.*s' cannot be set here",
                   (int)strcspn(set, ".="), set);
    else
        tree_set(tree, set);
}

/* What was read must be a map; settings of matrix, zip and repeat go over it. */
static void take_tree(struct tree *tree, const char *const *sets, uint32_t n_sets)
{
    if (tree->root == NULL)
        return;
    if (tree->root->kind != NODE_MAP) {
        diag_error(tree->diag, &tree->root->location, "such as ranks: 2",
                   "an experiment is a map of keys");
        tree->root = NULL;
        return;
    }
    for (uint32_t i = 0; i < n_sets; i++)
        if (is_batch_set(sets[i]))
            set_batch(tree, sets[i]);
}

void batch_read_tree(struct tree *tree, const char *file, const char *const *sets, uint32_t n_sets)
{
    tree->root = NULL;
    include_read(tree->arena, file, tree->diag, &tree->root);
    take_tree(tree, sets, n_sets);
}

void batch_set_all(struct tree *tree, const char *const *sets, uint32_t n_sets)
{
    for (uint32_t i = 0; i < n_sets; i++)
        if (!is_batch_set(sets[i]))
            tree_set(tree, sets[i]);
}

/* Whether `set` overrules `key` of a matrix: it is that key, a section of it, or what a bare
 * value of it stands for. */
static bool overrules(const char *set, const char *key)
{
    const struct section *section = section_find(key);
    size_t n = strcspn(set, "=");

    if (strncmp(set, key, n) == 0 && (key[n] == 0 || key[n] == '.'))
        return true;
    return section != NULL && section->main != NULL &&
           n == strlen(key) + 1 + strlen(section->main) && strncmp(set, key, strlen(key)) == 0 &&
           set[strlen(key)] == '.' &&
           strncmp(set + strlen(key) + 1, section->main, strlen(section->main)) == 0;
}

/* A label that says one value while another was used would be a lie. */
static void check_sets(const struct reading *r, const struct points *points, const char *of)
{
    const struct node *point = points->n == 0 ? NULL : points->item[0];

    for (uint32_t i = 0; i < r->n_sets && point != NULL; i++) {
        const char *set = r->set[i];
        struct source_location location = {"--set", set, 1, 1, (uint32_t)strcspn(set, "=")};

        for (uint32_t k = 0; k < point->n && !is_batch_set(set); k++) {
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

void batch_check_overrides(struct tree *tree, const struct node *map, const char *of)
{
    for (uint32_t i = 0; i < map->n; i++) {
        const char *key = map->key[i]->text;

        if (batch_is_key(key))
            diag_error(tree->diag, &map->key[i]->location,
                       "it is a key of the top of "
                       "the file",
                       "'%s' cannot be part of %s", key, of);
    }
}

/* The base without the keys that make runs of it. */
static struct node *bare(struct tree *tree)
{
    struct node *root = tree_copy(tree->arena, tree->root);

    for (const struct batch_key *k = batch_keys; k->name != NULL; k++)
        node_drop(root, k->name);
    return root;
}

/* The run that `from` names, of those before; NULL: told. */
static const struct named *find_from(struct reading *r, const struct plan *plan,
                                     const struct node *runs, const struct node *from)
{
    const char *names[NAMES], *nearest;
    struct text hint = {0};
    uint32_t n = plan->n_named < NAMES ? plan->n_named : NAMES;

    for (uint32_t i = 0; i < plan->n_named; i++)
        if (strcmp(plan->named[i].name, from->text) == 0)
            return &plan->named[i];
    for (uint32_t i = 0; i < n; i++)
        names[i] = plan->named[i].name;
    nearest = from->kind == NODE_SCALAR ? text_nearest(from->text, names, n) : NULL;
    if (nearest != NULL)
        text_add(&hint, "did you mean '%s'?", nearest);
    else
        text_add(&hint, "a run builds on one that precedes it");
    diag_error(r->tree.diag, &from->location, hint.data,
               from->kind != NODE_SCALAR             ? "from: the name of a run is expected"
               : node_find(runs, from->text) != NULL ? "from: run '%.64s' does not precede this one"
                                                     : "from: there is no run '%.64s'",
               from->text);
    text_free(&hint);
    return NULL;
}

static void read_run(struct reading *r, const struct node *runs, uint32_t i, struct plan *plan)
{
    struct node *said = runs->item[i];
    const struct node *from;
    const struct named *base = NULL;
    struct tree tree = r->tree;

    if (said->kind == NODE_SCALAR && *said->text == 0 && !said->quoted)
        said = node_make(tree.arena, NODE_MAP, &said->location);
    if (said->kind != NODE_MAP) {
        diag_error(tree.diag, &said->location, "such as {moe.max_tokens: 8}",
                   "run '%.64s' must be a map of keys", runs->key[i]->text);
        return;
    }
    from = node_find(said, "from");
    if (from != NULL)
        base = find_from(r, plan, runs, from);
    tree.root = base != NULL ? tree_copy(tree.arena, base->root) : bare(&tree);
    said = tree_copy(tree.arena, said);
    node_drop(said, "from");
    batch_check_overrides(&tree, said, "a run");
    tree_lay(&tree, said, true);
    plan->named[plan->n_named++] = (struct named){runs->key[i]->text, tree.root};
}

static void read_runs(struct reading *r, struct plan *plan)
{
    const struct node *runs = node_find(r->tree.root, "runs");
    uint32_t n = runs == NULL ? 1 : runs->n;

    if (runs != NULL && (runs->kind != NODE_MAP || n == 0 || n > r->max_runs)) {
        diag_error(r->tree.diag, &runs->location, "such as {plain: {}, few: {moe.topk: 2}}",
                   n > r->max_runs ? "'runs' are more than %u; --max-runs raises that"
                                   : "'runs' must be a map of names",
                   r->max_runs);
        return;
    }
    plan->named = arena_alloc(r->tree.arena, n * sizeof(*plan->named));
    for (uint32_t i = 0; runs != NULL && i < n; i++)
        read_run(r, runs, i, plan);
    if (runs == NULL)
        plan->named[plan->n_named++] = (struct named){NULL, bare(&r->tree)};
}

static void read_repeat(struct reading *r, struct plan *plan)
{
    static const uint32_t once = 1;
    static const struct epa_option option = {
        .name = "repeat", .type = EPA_OPTION_U32, .min = 1, .max = REPEAT_MOST};
    struct node *value = node_find(r->tree.root, "repeat");

    plan->repeat = once;
    if (value != NULL)
        option_read(&option, "repeat", value, r->tree.arena, r->tree.diag, &plan->repeat);
}

/* Points of both say one key twice: the later would win, and the label tell both. */
static void check_keys(const struct reading *r, const struct plan *plan)
{
    for (uint32_t i = 0; plan->zip.n > 0 && i < plan->zip.item[0]->n; i++) {
        const struct node *key = plan->zip.item[0]->key[i];
        const struct node *other =
            plan->matrix.n == 0 ? NULL : node_find(plan->matrix.item[0], key->text);

        if (other == NULL)
            continue;
        diag_error(r->tree.diag, &key->location, "keep one of them",
                   "%.64s is in the matrix already", key->text);
    }
}

static void read_plan(struct reading *r, struct plan *plan)
{
    const struct node *root = r->tree.root;

    read_runs(r, plan);
    points_of_matrix(&r->tree, node_find(root, "matrix"), r->max_runs, &plan->matrix);
    points_of_zip(&r->tree, node_find(root, "zip"), r->max_runs, &plan->zip);
    read_repeat(r, plan);
    check_keys(r, plan);
    check_sets(r, &plan->matrix, "matrix");
    check_sets(r, &plan->zip, "zip");
}

/* ---- building ---- */

struct run_of {
    const struct named *named;
    const struct node *matrix, *zip;
    uint32_t repetition; /* from 1; 0: there is one */
};

static enum epa_status build_run(struct reading *r, const struct run_of *of, bool flawed)
{
    struct batch *batch = r->batch;
    struct batch_run *run = &batch->run[batch->n];
    struct tree tree = {.arena = arena_create()};
    const char *label =
        batch_label(batch->arena, of->named->name, of->matrix, of->zip, of->repetition);
    struct experiment *x = NULL;
    uint32_t before;
    bool unwanted;
    enum epa_status status;

    run->repetition = of->repetition > 0 ? of->repetition : 1;
    tree.diag = r->several ? diag_create() : r->tree.diag;
    before = diag_errors(tree.diag);
    tree.root = tree_copy(tree.arena, of->named->root);
    tree_lay(&tree, of->matrix, true);
    tree_lay(&tree, of->zip, true);
    batch_set_all(&tree, r->set, r->n_sets);
    flawed = flawed || diag_errors(tree.diag) > before;
    status = experiment_build(&(struct experiment_source){r->file, tree.arena, tree.root, flawed},
                              r->registry, tree.diag, &run->absent, &x);
    if (flawed) {
        run->absent.status = EPA_OK;
        status = EPA_ERR_CONFIG;
    }
    if (status == EPA_OK) {
        run->x = x;
        x->label = label;
        x->id = arena_printf(x->arena, "%012" PRIx64, batch_hash(x));
        if (r->several && x->profile.file != NULL) /* each run has traces of its own */
            x->profile.file = arena_printf(x->arena, "%s-%u", x->profile.file, batch->n + 1);
    }
    run->label = label != NULL ? label : status == EPA_OK ? x->name : r->file;
    unwanted = r->several && status != EPA_OK && !batch_picks(r->pick, run->label, NULL);
    if (r->several) {
        if (!unwanted)
            diag_take(r->tree.diag, tree.diag, r->file, run->label);
        diag_destroy(tree.diag);
    }
    if (status != EPA_OK)
        arena_destroy(tree.arena);
    batch->n++;
    if (unwanted)
        return EPA_OK;
    return r->several && run->absent.status != EPA_OK ? EPA_OK : status;
}

static enum epa_status build_all(struct reading *r, const struct plan *plan, bool flawed)
{
    enum epa_status status = EPA_OK;

    for (uint32_t i = 0; i < plan->n_named; i++)
        for (uint32_t m = 0; m < plan->matrix.n; m++)
            for (uint32_t z = 0; z < plan->zip.n; z++)
                for (uint32_t k = 0; k < plan->repeat; k++) {
                    const struct run_of of = {.named = &plan->named[i],
                                              .matrix = plan->matrix.item[m],
                                              .zip = plan->zip.item[z],
                                              .repetition = plan->repeat > 1 ? k + 1 : 0};
                    enum epa_status one = build_run(r, &of, flawed);

                    status = status == EPA_OK || one == EPA_ERR_CONFIG ? one : status;
                }
    return status;
}

static enum epa_status expand(struct reading *r, bool flawed)
{
    const struct source_location nowhere = {.file = r->file};
    struct plan plan = {0};
    uint32_t before = diag_errors(r->tree.diag);
    uint64_t n;

    read_plan(r, &plan);
    if (diag_errors(r->tree.diag) != before)
        return EPA_ERR_CONFIG;
    n = (uint64_t)plan.n_named * plan.matrix.n; /* each is below 2^20 */
    n = n > r->max_runs ? n : n * plan.zip.n;
    n = n > r->max_runs ? n : n * plan.repeat;
    if (n > r->max_runs) {
        diag_error(r->tree.diag, &nowhere, NULL,
                   "there are more than %u runs; --max-runs raises that", r->max_runs);
        return EPA_ERR_CONFIG;
    }
    r->several = n > 1;
    r->batch->run = arena_alloc(r->batch->arena, n * sizeof(*r->batch->run));
    return build_all(r, &plan, flawed);
}

enum epa_status batch_read_some(const char *file, const char *text, const char *const *sets,
                                uint32_t n_sets, const struct batch_pick *pick, uint32_t max_runs,
                                struct registry *registry, struct diag *diag, struct batch **out)
{
    struct arena *arena = arena_create();
    struct batch *batch = arena_alloc(arena, sizeof(*batch));
    struct reading r = {.tree = {.arena = arena, .diag = diag},
                        .file = arena_strndup(arena, file, strlen(file)),
                        .set = sets,
                        .n_sets = n_sets,
                        .max_runs = max_runs,
                        .registry = registry,
                        .batch = batch,
                        .pick = pick};
    uint32_t before = diag_errors(diag);
    enum epa_status status = EPA_ERR_CONFIG;

    batch->arena = arena;
    batch->file = r.file;
    if (text == NULL) {
        batch_read_tree(&r.tree, file, sets, n_sets);
    } else {
        yaml_parse(arena, file, text, strlen(text), diag, &r.tree.root);
        take_tree(&r.tree, sets, n_sets);
    }
    if (r.tree.root != NULL)
        status = expand(&r, diag_errors(diag) != before);
    if (status != EPA_OK) {
        batch_destroy(batch);
        return status;
    }
    *out = batch;
    return EPA_OK;
}

enum epa_status batch_read(const char *file, const char *const *sets, uint32_t n_sets,
                           uint32_t max_runs, struct registry *registry, struct diag *diag,
                           struct batch **out)
{
    static const struct batch_pick all = {NULL, 0};

    return batch_read_some(file, NULL, sets, n_sets, &all, max_runs, registry, diag, out);
}

void batch_destroy(struct batch *batch)
{
    if (batch == NULL)
        return;
    for (uint32_t i = 0; i < batch->n; i++)
        experiment_destroy(batch->run[i].x);
    arena_destroy(batch->arena);
}
