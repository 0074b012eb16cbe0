/* Results in structs: selection, differences, and the problems that runs solve. */
#include "report/results.h"

#include <fnmatch.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "base/memory.h"
#include "base/terminal.h"
#include "config/experiment.h"
#include "op/op.h"
#include "op/operations.h"

/* Collectives of other programs, from imported results. */
static const char *const collective_head[] = {"collective", NULL, NULL};
static const struct operation collective = {.name = "collective",
                                            .size_key = "collective.bytes",
                                            .size_label = "bytes",
                                            .head = collective_head,
                                            .unit = "bytes"};

/* ---- keys of experiments and machines ---- */

/* Returns true if a key is one of those words, or below one. */
static bool is_below_one_of(const char *words, const char *key)
{
    for (size_t bytes; *words != '\0'; words += bytes + (words[bytes] == ' ')) {
        bytes = strcspn(words, " ");
        if (strncmp(key, words, bytes) == 0 && (key[bytes] == '\0' || key[bytes] == '.'))
            return true;
    }
    return false;
}

/* Returns true if a key of the experiment, or of the machine, belongs to the part. */
static bool is_of_part(enum results_part part, const char *key)
{
    switch (part) {
    case RESULTS_SHAPE:
        return key_role_of(key) == KEY_TASK;
    case RESULTS_MEANS:
        return key_role_of(key) == KEY_MEANS;
    case RESULTS_MACHINE: /* clocks, power and heat of a GPU vary during its work */
        return !is_below_one_of(
            "device.clock device.memory_clock device.throttle device.power "
            "device.temperature host kernel load_average timer_ns memory_bytes build.version "
            "build.git build.compiler build.libc build.plugin_abi "
            "build.isa_refused environment links timing plugins world",
            key);
    }
    return true;
}

const char *results_value(const struct results_run *run, const char *section, const char *key)
{
    size_t bytes = section != NULL ? strlen(section) : 0;

    for (uint32_t i = 0; i < run->n_keys; i++) {
        const char *path = run->key[i].path;

        if (section != NULL && strncmp(path, section, bytes) == 0 && path[bytes] == '.' &&
            strcmp(path + bytes + 1, key) == 0)
            return run->key[i].value;
        if (section == NULL && strcmp(path, key) == 0)
            return run->key[i].value;
    }
    return NULL;
}

double results_key_number(const struct results_run *run, const char *path)
{
    const struct results_key *key = key_find(run->key, run->n_keys, path);
    char *end = NULL;
    double number = key != NULL ? strtod(key->shown, &end) : NAN;

    return key != NULL && end != key->shown && *end == '\0' ? number : NAN;
}

/* ---- lists of runs ---- */

void results_begin(struct results *r, const char *path)
{
    r->reading = path;
    if (r->arena != NULL)
        return;
    r->path = path;
    r->arena = arena_create();
}

struct results_run *results_append(struct results *r)
{
    r->run = memory_grow(r->run, (r->n + 1) * sizeof(*r->run));
    r->run[r->n] = (struct results_run){.path = r->reading};
    return &r->run[r->n++];
}

void results_free(struct results *r)
{
    free(r->run);
    arena_destroy(r->arena);
    *r = (struct results){0};
}

void results_find_operation(struct results_run *run, const char *operation)
{
    for (uint32_t o = 0; operation_at(o) != NULL && !(run->size > 0); o++) {
        run->operation = operation_at(o);
        run->size = results_key_number(run, run->operation->size_key);
    }
    for (uint32_t o = 0; operation_at(o) != NULL && !(run->size > 0); o++)
        if (strcmp(operation_at(o)->name, operation) == 0)
            run->operation = operation_at(o);
    for (uint32_t i = 0; i < run->n_keys; i++)
        if (is_below_one_of("collective", run->key[i].path)) {
            run->operation = &collective;
            run->size = results_key_number(run, collective.size_key);
        }
    run->size = run->size > 0 ? run->size : 0;
}

bool results_picked(const struct results_run *run, const struct results_wish *wish)
{
    for (uint32_t i = 0; i < wish->n_only; i++)
        if (fnmatch(wish->only[i], run->label, 0) == 0 || strcmp(wish->only[i], run->label) == 0 ||
            fnmatch(wish->only[i], run->id, 0) == 0)
            return true;
    return wish->n_only == 0;
}

const struct run_stage *results_stage(const struct results_run *run, const char *name)
{
    for (uint32_t i = 0; i < run->n_stages; i++)
        if (strcmp(run->stage[i].name, name) == 0 && run->stage[i].n > 0)
            return &run->stage[i];
    return NULL;
}

/* Names of rows of whole iterations, the usual one first. */
static const char *const totals[] = {"total", "wall", "latency"};
enum { TOTALS = sizeof(totals) / sizeof(totals[0]) };

bool results_is_total(const char *stage)
{
    for (size_t i = 0; i < TOTALS; i++)
        if (strcmp(stage, totals[i]) == 0)
            return true;
    return false;
}

const struct run_stage *results_total(const struct results_run *run)
{
    const struct run_stage *stage = NULL;

    for (size_t i = 0; i < TOTALS && stage == NULL; i++)
        stage = results_stage(run, totals[i]);
    return stage;
}

uint32_t results_choose(struct results *r, const struct results_wish *wish)
{
    uint32_t kept = 0, without = 0;

    for (uint32_t i = 0; i < r->n; i++) {
        struct results_run *run = &r->run[i];

        if (!run->ok || !results_picked(run, wish))
            continue;
        run->timed = wish->stage != NULL ? results_stage(run, wish->stage) : results_total(run);
        without += run->timed == NULL;
        if (run->timed != NULL)
            r->run[kept++] = *run;
    }
    r->n = kept;
    return without;
}

size_t results_label_bytes(const char *label)
{
    const char *hash = strrchr(label, '#');
    bool number =
        hash != NULL && hash[1] != '\0' && strspn(hash + 1, "0123456789") == strlen(hash + 1);
    size_t bytes = number ? (size_t)(hash - label) : strlen(label);

    while (bytes > 0 && label[bytes - 1] == ' ')
        bytes--;
    return bytes;
}

/* Prints one line for all runs with the same end. */
void results_warn_failed(const struct results *r)
{
    for (uint32_t i = 0; i < r->n; i++) {
        const struct results_run *run = &r->run[i];
        uint32_t before = 0, after = 0;

        for (uint32_t k = 0; k < r->n && !run->ok && before == 0; k++)
            if (strcmp(r->run[k].status, run->status) == 0 &&
                strcmp(r->run[k].path, run->path) == 0)
                *(k < i ? &before : &after) += 1;
        if (run->ok || before > 0)
            continue;
        if (after > 1)
            text_warn("%s: '%s' and %u more ended with status %s and are left out", run->path,
                      run->label, after - 1, run->status);
        else
            text_warn("%s: '%s' ended with status %s and is left out", run->path, run->label,
                      run->status);
    }
}

/* ---- differences between runs ---- */

/* Returns the value of a key as `shown`; NULL: absent. */
static const char *shown_of(const struct results_key *key, uint32_t n, const char *path)
{
    const struct results_key *found = key_find(key, n, path);

    return found != NULL ? found->shown : NULL;
}

bool results_differ(const struct results_run *a, const struct results_run *b,
                    enum results_part part, char *what, uint32_t room)
{
    bool machine = part == RESULTS_MACHINE;
    const struct results_key *of_a = machine ? a->fact : a->key, *of_b = machine ? b->fact : b->key;
    uint32_t n_a = machine ? a->n_facts : a->n_keys, n_b = machine ? b->n_facts : b->n_keys;

    for (uint32_t i = 0; i < n_a + n_b; i++) { /* keys of `a`, then keys that only `b` has */
        const struct results_key *key = i < n_a ? &of_a[i] : &of_b[i - n_a];
        const char *in_a = i < n_a ? key->shown : shown_of(of_a, n_a, key->path);
        const char *in_b = i < n_a ? shown_of(of_b, n_b, key->path) : key->shown;

        if (!is_of_part(part, key->path) ||
            (in_a != NULL && in_b != NULL && strcmp(in_a, in_b) == 0))
            continue;
        snprintf(what, room, "%s: %s, and %s", key->path, in_a != NULL ? in_a : "absent",
                 in_b != NULL ? in_b : "absent");
        return true;
    }
    return false;
}

/* ---- the problem of a run ---- */

static void ask(struct results_question *q, const char *group, const char *path, const char *shown)
{
    q->key[q->n++] = (struct question_key){group, path, shown};
}

static int by_group_and_path(const void *x, const void *y)
{
    const struct question_key *a = x, *b = y;
    int order = strcmp(a->group, b->group);

    return order != 0 ? order : strcmp(a->path, b->path);
}

static void ask_text(struct results_question *q, struct arena *arena, const char *group,
                     const char *path, const char *value)
{
    text_auto quoted = {0};

    key_add_quoted(&quoted, value);
    ask(q, group, path, arena_strndup(arena, quoted.data, quoted.bytes));
}

static void ask_delivery(struct results_question *q, const struct results_run *run,
                         const char *const *across, uint32_t n_across, struct arena *arena)
{
    ask(q, "delivers", "", run->has_delivers ? "{}" : "null");
    for (uint32_t i = 0; i < run->n_delivers; i++) {
        const struct op_property *one = &run->delivers[i];
        bool is_across = false;

        for (uint32_t k = 0; k < n_across; k++)
            is_across = is_across || strcmp(across[k], one->name) == 0;
        if (is_across)
            continue;
        if (one->value == NULL || one->is_flag)
            ask(q, "delivers", one->name, one->value != NULL ? one->value : "null");
        else
            ask_text(q, arena, "delivers", one->name, one->value);
    }
}

void results_ask(const struct results_run *run, const char *const *across, uint32_t n_across,
                 struct arena *arena, struct results_question *out)
{
    static const char timing[] = "timing.";
    const char *size_key = run->size > 0 ? run->operation->size_key : "";
    bool timed = false;

    *out = (struct results_question){
        .key = arena_alloc(arena,
                           (run->n_keys + run->n_facts + run->n_delivers + 8) * sizeof(*out->key))};
    ask_text(out, arena, "verb", "", run->verb);
    ask(out, "shape", "", "{}");
    for (uint32_t i = 0; i < run->n_keys; i++)
        if (is_of_part(RESULTS_SHAPE, run->key[i].path) && strcmp(run->key[i].path, size_key) != 0)
            ask(out, "shape", run->key[i].path, run->key[i].shown);
    ask(out, "machine", "", "{}");
    for (uint32_t i = 0; i < run->n_facts; i++) {
        const struct results_key *fact = &run->fact[i];

        if (is_of_part(RESULTS_MACHINE, fact->path))
            ask(out, "machine", fact->path, fact->shown);
        if (strncmp(fact->path, timing, sizeof(timing) - 1) != 0)
            continue;
        timed = true;
        ask(out, "timing", fact->path + sizeof(timing) - 1, fact->shown);
    }
    ask(out, "timing", "", timed ? "{}" : "null");
    ask_delivery(out, run, across, n_across, arena);
    if (run->imported) {
        ask(out, "source", "", "{}");
        ask_text(out, arena, "source", "program", run->program);
        ask_text(out, arena, "source", "clock", run->clock);
    }
    qsort(out->key, out->n, sizeof(*out->key), by_group_and_path);
}

bool results_same_question(const struct results_question *a, const struct results_question *b)
{
    if (a->n != b->n)
        return false;
    for (uint32_t i = 0; i < a->n; i++)
        if (by_group_and_path(&a->key[i], &b->key[i]) != 0 ||
            strcmp(a->key[i].shown, b->key[i].shown) != 0)
            return false;
    return true;
}

bool results_agree(const struct results_question *a, const struct results_question *b)
{
    static const char unknown[] = "\"unknown\"";

    for (uint32_t i = 0; i < a->n; i++) {
        const struct question_key *one = &a->key[i], *same;
        bool is_delivery = strcmp(one->group, "delivers") == 0;

        if (!is_delivery && strcmp(one->group, "shape") != 0)
            continue;
        same = bsearch(one, b->key, b->n, sizeof(*same), by_group_and_path);
        if (same != NULL && strcmp(one->shown, same->shown) != 0 &&
            strcmp(one->shown, unknown) != 0 && strcmp(same->shown, unknown) != 0)
            return false;
    }
    return true;
}

/* ---- copies ---- */

static void copy_text(struct arena *arena, const char **text)
{
    if (*text != NULL)
        *text = arena_printf(arena, "%s", *text);
}

static const struct results_key *copy_keys(struct arena *arena, const struct results_key *key,
                                           uint32_t n)
{
    struct key_list list = {.arena = arena};

    for (uint32_t i = 0; i < n; i++)
        key_list_add(&list, key[i].path, key[i].value, key[i].shown);
    return list.key;
}

static void *copy_bytes(struct arena *arena, const void *from, size_t bytes)
{
    void *out = arena_alloc(arena, bytes);

    if (bytes > 0)
        memcpy(out, from, bytes);
    return out;
}

static struct run_stage *copy_run_stages(struct arena *arena, const struct run_stage *stage,
                                         uint32_t n)
{
    struct run_stage *out = copy_bytes(arena, stage, n * sizeof(*stage));

    for (uint32_t i = 0; i < n; i++) {
        copy_text(arena, &out[i].name);
        out[i].sample = copy_bytes(arena, stage[i].sample, stage[i].n * sizeof(*stage->sample));
        out[i].rank = copy_bytes(arena, stage[i].rank, stage[i].n_ranks * sizeof(*stage->rank));
    }
    return out;
}

void results_add_copy(struct results *results, const struct results_run *run)
{
    struct arena *arena = results->arena;
    struct results_run *to = results_append(results);
    const char **text[] = {
        &to->file,  &to->id,           &to->label,           &to->named,   &to->name,
        &to->verb,  &to->status,       &to->started,         &to->context, &to->program,
        &to->clock, &to->machine.host, &to->machine.version, &to->recorded};
    struct op_property *delivers;

    *to = *run;
    to->path = results->reading;
    for (size_t i = 0; i < sizeof(text) / sizeof(text[0]); i++)
        copy_text(arena, text[i]);
    to->key = copy_keys(arena, run->key, run->n_keys);
    to->fact = copy_keys(arena, run->fact, run->n_facts);
    to->stage = copy_run_stages(arena, run->stage, run->n_stages);
    to->figures.stage = to->stage;
    to->figures.status = to->status;
    delivers = copy_bytes(arena, run->delivers, run->n_delivers * sizeof(*run->delivers));
    for (uint32_t i = 0; i < run->n_delivers; i++) {
        copy_text(arena, &delivers[i].name);
        copy_text(arena, &delivers[i].value);
    }
    to->delivers = delivers;
}
