/* An algorithm that wraps another one, given by path, with its defaults (except dispatch_dtype with
 * fp8_rows, and layout with by_rank). Options add side effects for tests:
 *
 *   folder: writes the inputs and outputs of each rank to files, for tests that recompute them
 *   delays: make calls slow; `wrong` computes nothing, for tests of tune
 *   harm: breaks one detail, for tests of the reports of `verify` (tests/cli/harms.case)
 *
 * With EPA2A_TEST_PRINT it prints to standard output wherever it runs, as libraries of plugins may.
 * The files contain arrays as in memory: FOLDER/RANK.up, .down, .up_scale, .down_scale of an
 * algorithm with experts; FOLDER/RANK-CALL.x, .expert, .weight, .out of each call. It runs on hosts
 * and GPUs. */
#include <epa2a/algorithm.h>

#include <dlfcn.h>
#include <errno.h>
#include <math.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <time.h>
#include <unistd.h>

enum { STAGES = 4 };

struct config {
    const char *plugin, *folder, *harm;
    uint32_t delay_us, also_us;
    bool fp8_rows, by_rank, wrong;
    uint32_t claims;
};

struct tap {
    struct epa_algorithm base; /* first member */
    struct epa_algorithm *inner;
    struct epa_backend *backend;
    const char *folder, *harm;
    void *row; /* row of the previous call, for `harm` */
    uint32_t rank, calls, delay_us;
    bool wrong;
    struct epa_stage stage[STAGES];
};

static void print_if_asked(void)
{
    static const char line[] = "printed by a plugin\n";

    if (getenv("EPA2A_TEST_PRINT") == NULL)
        return;
    printf("%s", line); /* stays in the buffer of stdio */
    (void)!write(STDOUT_FILENO, line, sizeof(line) - 1);
}

__attribute__((constructor)) static void load(void)
{
    print_if_asked();
}

__attribute__((destructor)) static void unload(void)
{
    print_if_asked();
}

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

static void choose(const struct epa_options *of, void *out, const char *option, const char *value)
{
    for (const struct epa_option *o = of->table; o->name != NULL; o++)
        for (const struct epa_choice *choice = o->choices; choice != NULL && choice->name != NULL;
             choice++)
            if (strcmp(o->name, option) == 0 && strcmp(choice->name, value) == 0)
                memcpy((char *)out + o->offset, &choice->value, sizeof(int));
}

/* Returns a copy of the defaults of the wrapped algorithm. The caller frees it. */
static void *config_of(const struct epa_algorithm_plugin *inner, const struct config *c)
{
    const struct epa_options *of = &inner->plugin.options;
    void *out = malloc(of->size);

    if (out == NULL)
        return NULL;
    memcpy(out, of->defaults, of->size);
    if (c->fp8_rows)
        choose(of, out, "dispatch_dtype", "fp8");
    if (c->by_rank)
        choose(of, out, "layout", "rank");
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

/* ---- harm: applies to the second call of rank 1 ---- */

/* Returns the row of entry i of local expert e; functions for its parts follow. */
static uint64_t row_of(const struct epa_moe *m, uint32_t e, uint32_t i)
{
    uint64_t entry = m->recv_start[e] + i;

    return m->recv_row != NULL ? m->recv_row[entry] : entry;
}

static uint8_t *data_of(const struct epa_moe *m, uint64_t row)
{
    return (uint8_t *)(uintptr_t)m->recv + row * m->recv_stride;
}

static float *scale_of(const struct epa_moe *m, uint64_t row)
{
    return (float *)(void *)((char *)(uintptr_t)m->recv_scale + row * m->scale_stride);
}

static struct epa_origin *origin_of(const struct epa_moe *m, uint64_t row)
{
    return (struct epa_origin *)(void *)((char *)(uintptr_t)m->origin + row * m->origin_stride);
}

static size_t row_bytes(const struct epa_moe *m)
{
    return (size_t)m->hidden * (m->recv_scale != NULL ? 1 : 2);
}

static void copy_row(const struct epa_moe *m, uint64_t to, uint64_t from)
{
    memcpy(data_of(m, to), data_of(m, from), row_bytes(m));
    *origin_of(m, to) = *origin_of(m, from);
    if (m->recv_scale != NULL)
        memcpy(scale_of(m, to), scale_of(m, from), m->hidden / m->fp8_group_size * sizeof(float));
}

#define HARM(name, what) \
    if (strcmp(harm, name) == 0) { \
        what; \
    }

static void harm_lists(const char *harm, struct epa_moe *m)
{
    uint32_t *count = (uint32_t *)(uintptr_t)m->recv_count;
    uint64_t *start = (uint64_t *)(uintptr_t)m->recv_start;
    uint32_t *row = (uint32_t *)(uintptr_t)m->recv_row;
    float *weight = (float *)(uintptr_t)m->recv_weight;
    uint8_t *choice = (uint8_t *)(uintptr_t)m->recv_k;
    uint32_t *source = (uint32_t *)(uintptr_t)m->recv_source;
    uint64_t first = start[0];

    HARM("count_too_high", count[0]++)
    HARM("count_too_low", count[1]--)
    HARM("start_off_by_one", start[0]++)
    HARM("starts_overlap", start[1] = start[0])
    HARM("start_far_out", start[1] = UINT64_MAX - 1)
    HARM("source_count_too_low", source[0]--)
    HARM("source_count_too_high", source[0] += 100)
    HARM("no_rows", m->recv = NULL)
    HARM("no_counts", m->recv_count = NULL)
    HARM("no_origins", m->origin = NULL)
    HARM("no_scales", m->recv_scale = NULL)
    HARM("too_many_rows", m->recv_rows += 1000000)
    HARM("too_few_entries", m->recv_entries = 1)
    HARM("rows_unlike_entries", m->recv_rows--)
    HARM("crooked_scales", m->recv_scale = (const void *)((const char *)m->recv_scale + 2))
    HARM("crooked_rows", m->recv = (const char *)m->recv + 1)
    HARM("strides_forgotten", m->recv_stride = m->scale_stride = m->origin_stride = 0)
    HARM("weight_of_neighbour", weight[first] = weight[first + 1])
    HARM("another_choice", choice[first] ^= 1)
    HARM("row_far_out", row[first + 1] = UINT32_MAX)
    HARM("row_of_neighbour", row[first] = row[first + 1])
    for (uint32_t i = 0; strcmp(harm, "all_in_one_row") == 0 && i < count[0]; i++)
        row[first + i] = row[first];
    for (uint32_t i = 0; strcmp(harm, "token_in_two_rows") == 0 && i < count[0]; i++)
        for (uint32_t k = 0; k < count[1]; k++)
            if (row[start[1] + k] == row[first + i]) {
                copy_row(m, m->recv_rows, row[first + i]);
                row[first + i] = (uint32_t)m->recv_rows++;
                return;
            }
}

static void harm_rows(struct tap *t, struct epa_moe *m)
{
    const char *harm = t->harm;
    uint64_t a = row_of(m, 0, 0), b = row_of(m, 0, 1), last = row_of(m, 1, m->recv_count[1] - 1);
    struct epa_origin origin = *origin_of(m, a);

    HARM("origins_swapped", *origin_of(m, a) = *origin_of(m, b); *origin_of(m, b) = origin)
    HARM("row_twice", copy_row(m, b, a))
    HARM("row_of_another_expert", copy_row(m, a, last))
    HARM("token_off_by_one", origin_of(m, b)->token++)
    HARM("unknown_rank", origin_of(m, b)->rank = 99)
    HARM("unknown_token", origin_of(m, b)->token = 99)
    HARM("scale_off_by_an_ulp", scale_of(m, b)[1] = nextafterf(scale_of(m, b)[1], 1e9f))
    HARM("scale_of_neighbour", scale_of(m, b)[0] = scale_of(m, a)[0])
    HARM("last_bit", data_of(m, b)[row_bytes(m) - 1] ^= 1)
    HARM("half_a_row", memset(data_of(m, b) + row_bytes(m) / 2, 0, row_bytes(m) / 2))
    HARM("stale_row", memcpy(data_of(m, a), t->row, row_bytes(m)))
    HARM("nothing_there", memset(origin_of(m, a), 0xa5, sizeof(origin)))
}

static void harm_out(const char *harm, const struct epa_moe *m)
{
    uint16_t *out = m->out, was;

    HARM("out_not_written", memset(out + 2 * m->hidden, 0xff, m->hidden * 2))
    HARM("out_last_bit", out[3 * m->hidden - 1] ^= 1)
    for (uint32_t h = 0; strcmp(harm, "out_tokens_swapped") == 0 && h < m->hidden; h++) {
        was = out[h];
        out[h] = out[m->hidden + h];
        out[m->hidden + h] = was;
    }
}

static enum epa_status do_harm(struct tap *t, uint32_t stage, struct epa_moe *m)
{
    bool dispatched = t->inner->stages[stage].kind == EPA_STAGE_DISPATCH;
    uint8_t *before = t->row;

    if (t->harm == NULL || t->rank != 1)
        return EPA_OK;
    if (t->backend->ops->sync(t->backend) != EPA_OK)
        return EPA_ERR_SYSTEM;
    if (t->calls == 1 && dispatched) {
        harm_rows(t, m);
        harm_lists(t->harm, m);
    } else if (t->calls == 1) {
        harm_out(t->harm, m);
    } else if (dispatched) {
        t->row = malloc(row_bytes(m));
        memcpy(t->row, data_of(m, row_of(m, 0, 0)), row_bytes(m));
        free(before);
    }
    return EPA_OK;
}

static enum epa_status run(struct epa_algorithm *a, struct epa_problem *problem, uint32_t stage)
{
    struct tap *t = tap_of(a);
    struct epa_moe *m = &problem->u.moe;
    size_t rows = m->tokens;
    enum epa_status status;

    nanosleep(&(struct timespec){.tv_nsec = t->delay_us * 1000L}, NULL);
    status = t->inner->stages[stage].run(t->inner, problem);
    if (t->wrong && stage + 1 == t->base.n_stages)
        memset(m->out, 0, rows * m->hidden * 2);
    if (status == EPA_OK)
        status = do_harm(t, stage, m);
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

#define RUN(i) \
    static enum epa_status run_##i(struct epa_algorithm *a, struct epa_problem *problem) \
    { \
        return run(a, problem, i); \
    }

RUN(0)
RUN(1)
RUN(2)
RUN(3)

static void explain(struct epa_algorithm *a, struct epa_error *err)
{
    tap_of(a)->inner->explain(tap_of(a)->inner, err);
}

static void destroy(struct epa_algorithm *a)
{
    struct tap *t = tap_of(a);

    t->inner->destroy(t->inner);
    free(t->row);
    free(t);
}

static enum epa_status plan(const struct epa_problem *problem, const struct epa_world *world,
                            uint32_t transport_flags, const void *config, struct epa_footprint *out,
                            struct epa_error *err)
{
    const struct epa_algorithm_plugin *inner = inner_of(config, err);
    void *with = inner != NULL ? config_of(inner, config) : NULL;
    enum epa_status status = inner == NULL ? err->status : EPA_ERR_NOMEM;

    print_if_asked();
    if (with != NULL)
        status = inner->plan(problem, world, transport_flags, with, out, err);
    if (status == EPA_OK)
        out->discards = out->combines_again = false;
    if (status == EPA_OK && ((const struct config *)config)->claims != 0)
        out->u.moe.dispatch_row_bytes = ((const struct config *)config)->claims;
    free(with);
    return status;
}

static bool write_weights(const struct tap *t, const struct epa_moe *m, uint32_t experts)
{
    const struct epa_mlp *w = &m->mlp;
    size_t up = (size_t)experts * epa_mlp_up_rows(w) * m->hidden;
    size_t down = (size_t)experts * m->hidden * w->ffn, n = w->up_scale != NULL ? 1 : 2;
    size_t up_scales = up / (128 * 128), down_scales = down / (128 * 128);

    if (w->dtype == EPA_INT8) {
        up_scales = up / m->hidden;
        down_scales = down / w->ffn;
    }

    return write_file(t, false, "up", w->up, up * n) &&
           write_file(t, false, "down", w->down, down * n) &&
           write_file(t, false, "up_scale", w->up_scale, up_scales * sizeof(float)) &&
           write_file(t, false, "down_scale", w->down_scale, down_scales * sizeof(float));
}

static enum epa_status create(const struct epa_algorithm_params *p, struct epa_algorithm **out,
                              struct epa_error *err)
{
    const struct config *c = p->config;
    const struct epa_algorithm_plugin *inner = inner_of(c, err);
    const struct epa_moe *m = &p->problem->u.moe;
    struct epa_algorithm_params params = *p;
    enum epa_status (*const runs[STAGES])(struct epa_algorithm *,
                                          struct epa_problem *) = {run_0, run_1, run_2, run_3};
    struct tap *t = calloc(1, sizeof(*t));
    void *with = inner != NULL ? config_of(inner, c) : NULL;
    enum epa_status status = inner == NULL ? err->status : EPA_ERR_NOMEM;

    print_if_asked();
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
    t->harm = c->harm;
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
    {.name = "by_rank", EPA_BOOL(struct config, by_rank), .help = "layout: rank"},
    {.name = "harm",
     EPA_STRING(struct config, harm),
     .help = "what is broken on rank 1, by its name in tap.c"},
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
    .needs_cuda = EPA_TRANSPORT_LOAD_STORE,
    .plan = plan,
    .create = create,
};
