/* Copies results of runs of this process into struct results. Times are whole nanoseconds, as in files,
 * so comparisons do not depend on the origin of a result. */
#include "report/process_results.h"

#include <math.h>
#include <string.h>

#include "base/memory.h"
#include "config/experiment.h"
#include "op/op.h"
#include "report/result_values.h"

/* ---- keys ---- */

/* Keys with a prefix. */
struct prefixed {
    struct key_list *list;
    const char *before;
};

static void add_prefixed_value(void *arg, const struct result_value *v)
{
    const struct prefixed *to = arg;
    text_auto path = {0};

    text_add(&path, "%s%s", to->before, v->path);
    switch (v->kind) {
    case VALUE_NONE:
        key_list_add_null(to->list, path.data);
        break;
    case VALUE_TEXT:
        key_list_add_text(to->list, path.data, v->text);
        break;
    case VALUE_COUNT:
        key_list_add_count(to->list, path.data, v->count);
        break;
    case VALUE_REAL:
        key_list_add_real(to->list, path.data, v->real);
        break;
    case VALUE_FLAG:
        key_list_add(to->list, path.data, v->count != 0 ? "true" : "false",
                     v->count != 0 ? "true" : "false");
        break;
    case VALUE_GROUP: /* its values follow */
        break;
    }
}

static void add_links(struct key_list *list, const struct run_figures *f)
{
    if (!run_has_links(f)) {
        key_list_add_null(list, "links");
        return;
    }
    key_list_add_real(list, "links.rate", f->links.bytes_per_ns > 0 ? f->links.bytes_per_ns : NAN);
    key_list_add_real(list, "links.latency_ns",
                      f->links.latency_ns > 0 ? f->links.latency_ns : NAN);
}

static void copy_facts(struct results_run *to, struct arena *arena, const struct run_figures *f,
                       const struct facts *facts)
{
    struct key_list list = {.arena = arena};
    const struct experiment *x = f->facts.experiment;
    uint32_t before;

    machine_visit(facts->machine, add_prefixed_value, &(struct prefixed){&list, ""});
    device_keys_add(&list, f->facts.rank[0].device);
    add_links(&list, f);
    before = list.n;
    timing_visit(f, add_prefixed_value, &(struct prefixed){&list, "timing."});
    if (list.n == before)
        key_list_add_null(&list, "timing");
    plugins_visit(x, add_prefixed_value, &(struct prefixed){&list, "plugins."});
    key_list_add_text(&list, "world.launcher", x->launcher.plugin->name);
    if (f->facts.started_by[0] != '\0')
        key_list_add_text(&list, "world.started_by", f->facts.started_by);
    else
        key_list_add_null(&list, "world.started_by");
    to->fact = list.key;
    to->n_facts = list.n;
}

/* ---- parts ---- */

static const char *copy_context(struct arena *arena, const struct facts *facts)
{
    text_auto out = {0};

    for (uint32_t i = 0; i < facts->n_context; i++)
        text_add(&out, "%s%s", i > 0 ? ", " : "", facts->context[i]);
    if (facts->n_context == 0)
        text_add(&out, "none");
    return key_text(arena, text_clean(out.data));
}

static void copy_delivers(struct results_run *to, struct arena *arena, const struct run_facts *s)
{
    struct op_property *list = arena_alloc(arena, OP_PROPERTIES * sizeof(*list));

    to->has_delivers = s->operation->delivers != NULL;
    to->delivers = list;
    if (to->has_delivers)
        to->n_delivers = s->operation->delivers(&s->experiment->problem, &s->footprint, list);
    for (uint32_t i = 0; i < to->n_delivers; i++)
        if (list[i].value != NULL)
            list[i].value = key_text(arena, list[i].value);
}

/* Returns the stages, with samples and times of ranks. */
static struct run_stage *copy_stages(struct arena *arena, const struct run_figures *f)
{
    struct run_stage *out = arena_alloc(arena, f->n_stages * sizeof(*out));

    for (uint32_t i = 0; i < f->n_stages; i++) {
        const struct run_stage *from = &f->stage[i];
        struct run_stage *to = &out[i];

        *to = *from;
        to->name = arena_printf(arena, "%s", from->name);
        to->sample = arena_alloc(arena, from->n * sizeof(*to->sample));
        for (uint64_t k = 0; k < from->n; k++)
            to->sample[k] = round(from->sample[k]);
        to->n_ranks = f->ranks;
        to->rank = arena_alloc(arena, f->ranks * sizeof(*to->rank));
        for (uint32_t r = 0; r < f->ranks; r++)
            to->rank[r] = (struct stats){.min = round(from->rank[r].min),
                                         .median = round(from->rank[r].median),
                                         .p95 = round(from->rank[r].p95),
                                         .max = round(from->rank[r].max)};
    }
    return out;
}

/* Returns the figures of the whole run that results of files have, too. */
static struct run_figures copy_figures(const struct results_run *to, const struct run_figures *f)
{
    struct run_figures out = {.operation = to->operation,
                              .stage = to->stage,
                              .n_stages = to->n_stages,
                              .partial = f->partial,
                              .status = to->status,
                              .exit_code = f->exit_code,
                              .stop = f->stop,
                              .verify.iterations = f->verify.iterations,
                              .verify.compared = f->verify.compared,
                              .verify.wrong = f->verify.wrong};

    out.compute.flops = fmax(f->compute.flops, 0);
    out.compute.flops_ns = out.compute.flops > 0 ? f->compute.flops_ns : NAN;
    return out;
}

/* ---- runs ---- */

void results_add_process(struct results *results, const struct result *result,
                         const struct facts *facts)
{
    const struct run_figures *f = result->figures;
    const struct experiment *x = f->facts.experiment;
    struct arena *arena = results->arena;
    struct results_run *to = results_append(results);
    struct results_key *key;

    to->file = key_text(arena, x->file);
    to->id = x->id != NULL ? key_text(arena, x->id) : "";
    to->name = key_text(arena, x->name);
    to->label = x->label != NULL && x->label[0] != '\0' ? key_text(arena, x->label) : to->name;
    to->named = x->run_name != NULL ? key_text(arena, x->run_name) : "";
    to->verb = session_verb_name(f->facts.verb);
    to->status = arena_printf(arena, "%s", f->status);
    to->context = copy_context(arena, facts);
    to->started = to->program = to->clock = "";
    to->ok = strcmp(to->status, "ok") == 0 || strcmp(to->status, "missed") == 0;
    to->fault = f->fault.text != NULL;
    to->n_keys = experiment_keys(x, arena, &key);
    to->key = key;
    copy_facts(to, arena, f, facts);
    results_find_operation(to, f->operation->name);
    to->machine = (struct results_machine){.host = key_text(arena, facts->machine->host),
                                           .version = facts->machine->build.version};
    to->ranks = x->problem.ranks;
    copy_delivers(to, arena, &f->facts);
    to->stage = copy_stages(arena, f);
    to->n_stages = f->n_stages;
    to->figures = copy_figures(to, f);
    to->iterations = f->facts.iterations;
    to->elapsed_s = result->elapsed_s;
    for (uint32_t i = 0; i < ROW_TIMES; i++)
        to->time_ns[i] = NAN; /* a summary of its document does not exist yet */
}
