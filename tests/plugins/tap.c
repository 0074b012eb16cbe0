/* An algorithm that is another one, by its path and with its defaults (but for dispatch_dtype, if
 * fp8_rows). With a folder it writes what each rank was given and what it made of it to files, for
 * a test that works it out again; with delays it is slow, and with `wrong` it computes nothing: for
 * tests of tune. Arrays as they are in memory: FOLDER/RANK.up, .down, .up_scale, .down_scale of an
 * algorithm that computes experts; FOLDER/RANK-CALL.x, .expert, .weight, .out of each call. On
 * hosts and GPUs. */
#include <epa2a/algorithm.h>

#include <dlfcn.h>
#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>

enum { STAGES = 4 };

struct config {
    const char *plugin, *folder;
    uint32_t delay_us, also_us;
    bool fp8_rows, wrong;
    uint32_t claims;
};

struct tap {
    struct epa_algorithm base; /* first */
    struct epa_algorithm *inner;
    struct epa_backend *backend;
    const char *folder;
    uint32_t rank, calls, delay_us;
    bool wrong;
    struct epa_stage stage[STAGES];
};

static struct tap *tap_of(struct epa_algorithm *a)
{
    return (struct tap *)a;
}

static const struct epa_algorithm_plugin *inner_of(const struct config *c, struct epa_error *err)
{
    void *file = c->plugin != NULL ? dlopen(c->plugin, RTLD_NOW | RTLD_LOCAL) : NULL;

    if (file == NULL)
        (void)epa_fail(err, EPA_ERR_CONFIG, "tap needs algorithm.plugin: %s",
                       c->plugin != NULL ? dlerror() : "");
    return file != NULL ? dlsym(file, EPA_PLUGIN_SYMBOL) : NULL;
}

/* The defaults of the other algorithm, to be freed. */
static void *config_of(const struct epa_algorithm_plugin *inner, const struct config *c)
{
    const struct epa_options *of = &inner->plugin.options;
    void *out = malloc(of->size);

    if (out == NULL)
        return NULL;
    memcpy(out, of->defaults, of->size);
    for (const struct epa_option *o = of->table; c->fp8_rows && o->name != NULL; o++)
        for (const struct epa_choice *choice = o->choices; choice != NULL && choice->name != NULL;
             choice++)
            if (strcmp(o->name, "dispatch_dtype") == 0 && strcmp(choice->name, "fp8") == 0)
                memcpy((char *)out + o->offset, &choice->value, sizeof(int));
    return out;
}

static bool write_file(const struct tap *t, bool of_call, const char *what, const void *data,
                       size_t bytes)
{
    char path[4096], call[16] = "";
    void *copy;
    FILE *file;
    bool done;

    if (data == NULL || t->folder == NULL)
        return true;
    copy = malloc(bytes + 1);
    done = copy != NULL && t->backend->ops->sync(t->backend) == EPA_OK &&
           (bytes == 0 || t->backend->ops->read(t->backend, copy, data, bytes) == EPA_OK);
    if (of_call)
        snprintf(call, sizeof(call), "-%u", t->calls);
    snprintf(path, sizeof(path), "%s/%u%s.%s", t->folder, t->rank, call, what);
    file = fopen(path, "wb");
    done = done && file != NULL && fwrite(copy, 1, bytes, file) == bytes;
    if (file != NULL && fclose(file) != 0)
        done = false;
    free(copy);
    if (!done)
        fprintf(stderr, "tap: %s: %s\n", path, strerror(errno));
    return done;
}

static enum epa_status run(struct epa_algorithm *a, struct epa_problem *problem, uint32_t stage)
{
    struct tap *t = tap_of(a);
    const struct epa_moe *m = &problem->u.moe;
    size_t rows = m->tokens;
    enum epa_status status;

    nanosleep(&(struct timespec){.tv_nsec = t->delay_us * 1000L}, NULL);
    status = t->inner->stages[stage].run(t->inner, problem);
    if (t->wrong && stage + 1 == t->base.n_stages)
        memset(m->out, 0, rows * m->hidden * 2);
    if (status != EPA_OK || stage + 1 < t->base.n_stages)
        return status;
    if (!write_file(t, true, "x", m->x, rows * m->hidden * 2) ||
        !write_file(t, true, "expert", m->expert, rows * m->topk * sizeof(*m->expert)) ||
        !write_file(t, true, "weight", m->weight, rows * m->topk * sizeof(*m->weight)) ||
        !write_file(t, true, "out", m->out, rows * m->hidden * 2))
        return EPA_ERR_SYSTEM;
    t->calls++;
    return EPA_OK;
}

static enum epa_status first(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run(a, problem, 0);
}

static enum epa_status second(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run(a, problem, 1);
}

static enum epa_status third(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run(a, problem, 2);
}

static enum epa_status fourth(struct epa_algorithm *a, struct epa_problem *problem)
{
    return run(a, problem, 3);
}

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    tap_of(a)->inner->explain(tap_of(a)->inner, err);
}

static void destroy(struct epa_algorithm *a)
{
    struct tap *t = tap_of(a);

    t->inner->destroy(t->inner);
    free(t);
}

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_algorithm_plugin *inner = inner_of(config, err);
    void *with = inner != NULL ? config_of(inner, config) : NULL;
    enum epa_status status = inner == NULL ? err->status : EPA_ERR_NOMEM;

    if (with != NULL)
        status = inner->plan(problem, world, transport_flags, with, out, err);
    if (status == EPA_OK && ((const struct config *)config)->claims != 0)
        out->u.moe.dispatch_row_bytes = ((const struct config *)config)->claims;
    free(with);
    return status;
}

static bool write_weights(const struct tap *t, const struct epa_moe *m, uint32_t experts)
{
    const struct epa_mlp *w = &m->mlp;
    size_t up = (size_t)experts * epa_mlp_up_rows(w) * m->hidden;
    size_t down = (size_t)experts * m->hidden * w->ffn, n = w->dtype == EPA_FP8_E4M3 ? 1 : 2;

    return write_file(t, false, "up", w->up, up * n) &&
           write_file(t, false, "down", w->down, down * n) &&
           write_file(t, false, "up_scale", w->up_scale, up / (128 * 128) * sizeof(float)) &&
           write_file(t, false, "down_scale", w->down_scale, down / (128 * 128) * sizeof(float));
}

static enum epa_status create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                              struct epa_error *err)
{
    const struct config *c = p->config;
    const struct epa_algorithm_plugin *inner = inner_of(c, err);
    const struct epa_moe *m = &p->problem->u.moe;
    struct epa_algorithm_params params = *p;
    enum epa_status (*const runs[STAGES])(struct epa_algorithm *,
                                          struct epa_problem *) = {first, second, third, fourth};
    struct tap *t = calloc(1, sizeof(*t));
    void *with = inner != NULL ? config_of(inner, c) : NULL;
    enum epa_status status = inner == NULL ? err->status : EPA_ERR_NOMEM;

    if (t != NULL && with != NULL) {
        params.config = with;
        status = inner->create(&params, &t->inner, err);
    }
    free(with);
    if (status != EPA_OK) {
        free(t);
        return status;
    }
    t->backend = p->backend;
    t->folder = c->folder;
    t->delay_us = c->wrong ? 0 : (c->delay_us + c->also_us) / 2;
    t->wrong = c->wrong;
    t->rank = p->world.rank;
    for (uint32_t i = 0; i < t->inner->n_stages && i < STAGES; i++) {
        t->stage[i] = t->inner->stages[i];
        t->stage[i].run = runs[i];
    }
    t->base = (struct epa_algorithm){
        .stages = t->stage, .n_stages = t->inner->n_stages, .explain = explain, .destroy = destroy};
    if (t->base.n_stages > STAGES || !write_weights(t, m, m->experts / p->world.size)) {
        destroy(&t->base);
        return epa_fail(err, EPA_ERR_SYSTEM, "tap: more than %d stages, or no weights", STAGES);
    }
    *out = &t->base;
    return EPA_OK;
}

static const struct config defaults = {0};

static const struct epa_option options[] = {
    {.name = "plugin", EPA_STRING(struct config, plugin), .help = "path of the algorithm"},
    {.name = "folder", EPA_STRING(struct config, folder), .help = "where files go"},
    {.name = "fp8_rows",
     EPA_BOOL(struct config, fp8_rows),
     .help = "dispatch_dtype: fp8",
     .tune = "*"},
    {.name = "delay_us",
     EPA_U32(struct config, delay_us),
     .max = 100000,
     .help = "what an iteration takes longer",
     .tune = "30000 5000 0"},
    {.name = "also_us",
     EPA_U32(struct config, also_us),
     .max = 100000,
     .help = "and longer",
     .tune = "10000 0"},
    {.name = "claims",
     EPA_U32(struct config, claims),
     .help = "bytes of a row of dispatch that plan() claims; 0: those of the other algorithm"},
    {.name = "wrong",
     EPA_BOOL(struct config, wrong),
     .help = "no delay, and no output",
     .tune = "*"},
    {0},
};

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin), .name = "tap",
               .summary = "another algorithm, whose inputs and outputs go to files",
               .options = {options, sizeof(struct config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | EPA_MEMORY_CUDA,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE | EPA_TRANSPORT_LOAD_STORE,
    .plan = plan,
    .create = create,
};
