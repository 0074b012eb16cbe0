/* fused called by itself: experts whose weights are small integers, mostly 0, so that every sum is
 * exact in float32 whatever its order, in FP8 as well, and each element of each call is compared to
 * the bit. Each call has routes, counts and tokens of its own, and ranks drift apart. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include <epa2a/gemm.h>

#include "../../../plugins/algorithm/fused/fused.h"
#include "../../../src/base/dtype.h"
#include "../ranks.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum { RANKS = 3, TOKENS = 40, TOPK = 4, LOCAL = 3, EXPERTS = RANKS * LOCAL, HIDDEN = 256 };
enum { FFN = 128, CALLS = 12, MOST_TOPK = 8, NONZERO = 5 };

struct way {
    const char *name;
    struct fused_config c;
    uint32_t workers;
    bool fp8; /* weights */
};

static const struct fused_config usual = {
    .dedup = true, .sort = true, .block_rows = 32, .dispatch_dtype = ALGO_DTYPE_NATIVE, .lag = 4};

static uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 31) * 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
    return v ^ v >> 32;
}

static uint32_t tokens_of(uint64_t call, uint32_t rank)
{
    uint64_t v = mix(call * RANKS + rank);

    return v % 5 == 0 ? 0 : (uint32_t)(v / 5 % (TOKENS + 1));
}

/* Distinct in a token; some are dropped, and some experts are not chosen in some calls. */
static void choose(uint64_t call, uint32_t rank, uint32_t token, int32_t *expert)
{
    uint64_t v = mix((call * RANKS + rank) * TOKENS + token), first = v % EXPERTS;
    uint64_t step = 1 + 3 * (v / EXPERTS % 2); /* neighbours are of one rank, or of all */

    for (uint32_t k = 0; k < TOPK; k++) {
        expert[k] = (int32_t)((first + k * step) % EXPERTS);
        if (mix(v + k) % 6 == 0 || (uint64_t)expert[k] == call % EXPERTS)
            expert[k] = -1;
    }
}

/* 1/2 to 2 */
static float weight_of(uint64_t call, uint32_t rank, uint32_t token, uint32_t k)
{
    return (float)(1 + mix(((call * RANKS + rank) * TOKENS + token) * TOPK + k) % 4) * 0.5f;
}

/* -1 to 1; the first of each 128 is 448, so that scales are powers of two and FP8 is exact. */
static int x_of(uint64_t call, uint32_t rank, uint32_t token, uint32_t h)
{
    if (h % 128 == 0)
        return 448;
    return (int)(mix(((call * RANKS + rank) * TOKENS + token) * HIDDEN + h) % 3) - 1;
}

/* A row of a matrix: NONZERO elements of it are not 0. Row 0 of W_up has one, for the 448, which
 * makes that of the intermediate; nothing else multiplies either. */
static int element_of(uint32_t expert, uint32_t matrix, uint32_t row, uint32_t i, uint32_t columns,
                      uint32_t *column)
{
    uint64_t v = mix(((expert * 2ull + matrix) * 4096 + row) * NONZERO + i);

    *column = (uint32_t)(i * (columns / NONZERO) + v % (columns / NONZERO));
    if (matrix == 0 && row == 0)
        *column = i; /* the rest of the first five are 0 */
    if (*column % 128 == 0 || (matrix == 0 && row == 0))
        return matrix == 0 && row == 0 && i == 0;
    return (v >> 40) % 2 == 0 ? 1 : -1;
}

struct layer {
    struct rank *r;
    const struct way *way;
    struct epa_problem problem;
    char *up, *down;
    float up_scale[LOCAL * (HIDDEN / 128)], down_scale[LOCAL * (HIDDEN / 128)];
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
};

static void write_element(const struct way *way, char *matrix, size_t at, int value)
{
    if (way->fp8)
        ((uint8_t *)matrix)[at] = e4m3_of_float((float)value);
    else
        ((uint16_t *)(void *)matrix)[at] = bf16_of_float((float)value);
}

/* Block scales are powers of two, and differ between neighbours. */
static float block_scale(uint32_t expert, uint32_t matrix, uint32_t block)
{
    return (mix(expert * 2 + matrix) + block) % 2 == 0 ? 1.0f : 2.0f;
}

static void make_weights(struct layer *y)
{
    y->up = calloc((size_t)LOCAL * FFN * HIDDEN, 2);
    y->down = calloc((size_t)LOCAL * FFN * HIDDEN, 2);
    for (uint32_t e = 0; e < LOCAL; e++) {
        uint32_t expert = y->r->me * LOCAL + e, column;

        for (uint32_t i = 0; i < FFN * NONZERO; i++) {
            int v = element_of(expert, 0, i / NONZERO, i % NONZERO, HIDDEN, &column);

            write_element(y->way, y->up, ((size_t)e * FFN + i / NONZERO) * HIDDEN + column, v);
        }
        for (uint32_t i = 0; i < HIDDEN * NONZERO; i++) {
            int v = element_of(expert, 1, i / NONZERO, i % NONZERO, FFN, &column);

            write_element(y->way, y->down, ((size_t)e * HIDDEN + i / NONZERO) * FFN + column, v);
        }
        for (uint32_t b = 0; b < HIDDEN / 128; b++) {
            y->up_scale[e * (HIDDEN / 128) + b] = block_scale(expert, 0, b);
            y->down_scale[e * (HIDDEN / 128) + b] = block_scale(expert, 1, b);
        }
    }
}

/* The row as the GEMM gets it. In FP8 the inputs and intermediates are quantised by their scale. */
static void expert_output(const struct way *way, uint32_t expert, const uint16_t *x, float *out)
{
    float row[HIDDEN], a[FFN];
    uint8_t q[HIDDEN];
    uint32_t column;
    bool fp8 = way->fp8 || way->c.dispatch_dtype == ALGO_DTYPE_FP8;

    for (uint32_t h = 0; h < HIDDEN; h += 128) {
        float scale = e4m3_group(x + h, 128, q + h);

        for (uint32_t i = h; i < h + 128; i++) {
            row[i] = fp8 ? float_of_e4m3(q[i]) * scale : float_of_bf16(x[i]);
            if (!way->fp8)
                row[i] = float_of_bf16(bf16_of_float(row[i]));
        }
    }
    for (uint32_t f = 0; f < FFN; f++) {
        a[f] = 0;
        for (uint32_t i = 0; i < NONZERO; i++) {
            int v = element_of(expert, 0, f, i, HIDDEN, &column);

            a[f] +=
                (float)v * row[column] * (way->fp8 ? block_scale(expert, 0, column / 128) : 1.0f);
        }
    }
    if (way->fp8) {
        float amax = 0, scale;

        for (uint32_t f = 0; f < FFN; f++)
            amax = fabsf(a[f]) > amax ? fabsf(a[f]) : amax;
        scale = amax > 0 ? amax * (1.0f / 448.0f) : 1.0f;
        for (uint32_t f = 0; f < FFN; f++)
            a[f] = float_of_e4m3(e4m3_of_float(a[f] / scale)) * scale;
    } else {
        for (uint32_t f = 0; f < FFN; f++)
            a[f] = float_of_bf16(bf16_of_float(a[f]));
    }
    for (uint32_t h = 0; h < HIDDEN; h++) {
        out[h] = 0;
        for (uint32_t i = 0; i < NONZERO; i++) {
            int v = element_of(expert, 1, h, i, FFN, &column);

            out[h] += (float)v * a[column] * (way->fp8 ? block_scale(expert, 1, h / 128) : 1.0f);
        }
    }
}

/* By rank: choices of a rank in ascending k, rounded, and then ranks. Else all choices, each
 * rounded. */
static void token_output(const struct layer *y, uint32_t t, float *sum)
{
    const struct way *way = y->way;
    float output[HIDDEN], part[HIDDEN];

    memset(sum, 0, HIDDEN * sizeof(*sum));
    for (uint32_t rank = 0; rank < (way->c.dedup ? RANKS : 1); rank++) {
        bool any = false;

        memset(part, 0, sizeof(part));
        for (uint32_t k = 0; k < TOPK; k++) {
            int32_t e = y->expert[t * TOPK + k];

            if (e < 0 || (way->c.dedup && (uint32_t)e / LOCAL != rank))
                continue;
            expert_output(way, (uint32_t)e, y->x + (size_t)t * HIDDEN, output);
            any = true;
            for (uint32_t h = 0; h < HIDDEN; h++)
                part[h] = fmaf(y->weight[t * TOPK + k],
                               way->c.dedup ? output[h] : float_of_bf16(bf16_of_float(output[h])),
                               part[h]);
        }
        for (uint32_t h = 0; any && h < HIDDEN; h++)
            sum[h] += way->c.dedup ? float_of_bf16(bf16_of_float(part[h])) : part[h];
    }
}

static bool call_layer(struct layer *y, struct epa_algorithm *a, uint64_t call)
{
    struct epa_moe *m = &y->problem.u.moe;
    struct epa_error err = {EPA_OK, ""};
    float want[HIDDEN];
    enum epa_status status;

    m->tokens = tokens_of(call, y->r->me);
    for (uint32_t t = 0; t < m->tokens; t++) {
        choose(call, y->r->me, t, y->expert + t * TOPK);
        for (uint32_t k = 0; k < TOPK; k++)
            y->weight[t * TOPK + k] = weight_of(call, y->r->me, t, k);
        for (uint32_t h = 0; h < HIDDEN; h++)
            y->x[t * HIDDEN + h] = bf16_of_float((float)x_of(call, y->r->me, t, h));
    }
    memset(y->out, 0xff, sizeof(y->out));
    m->x = y->x;
    m->expert = y->expert;
    m->weight = y->weight;
    m->out = y->out;
    status = a->stages[0].run(a, &y->problem);
    if (status != EPA_OK)
        a->explain(a, &err);
    if (!claim(y->r, status == EPA_OK, "%s, call %llu: %s", y->way->name, (unsigned long long)call,
               err.text))
        return false;
    for (uint32_t t = 0; t < m->tokens; t++) {
        token_output(y, t, want);
        for (uint32_t h = 0; h < HIDDEN; h++) {
            float got = float_of_bf16(y->out[t * HIDDEN + h]);
            float right = float_of_bf16(bf16_of_float(want[h]));
            if (!claim(y->r, got == right, "%s, call %llu: token %u, channel %u is %g, not %g",
                       y->way->name, (unsigned long long)call, t, h, got, right))
                return false;
        }
    }
    return true;
}

static struct epa_problem problem_of(const struct way *way)
{
    return (struct epa_problem){
        .op = EPA_OP_MOE,
        .u.moe = {.max_tokens = TOKENS,
                  .hidden = HIDDEN,
                  .experts = EXPERTS,
                  .topk = TOPK,
                  .fp8_group_size = 128,
                  .dtype = EPA_BF16,
                  .x_dtype = EPA_BF16,
                  .mlp = {.ffn = FFN,
                          .activation = EPA_ACTIVATION_NONE,
                          .dtype = way->fp8 ? EPA_FP8_E4M3 : EPA_BF16,
                          .fp8_group_size = 128}},
    };
}

static const struct way *the_way; /* of the launch that runs */

/* Now and then each half alone, as bench calls them: the calls that follow must not notice. */
static bool call_halves(struct layer *y, struct epa_algorithm *a, uint64_t call)
{
    struct epa_error err = {EPA_OK, ""};

    if (call % 3 != 0)
        return true;
    for (uint32_t i = 0; i < a->n_parts * 2; i++) {
        if (a->parts[i % a->n_parts].run(a, &y->problem) == EPA_OK)
            continue;
        a->explain(a, &err);
        return claim(y->r, false, "%s, %s after call %llu: %s", y->way->name,
                     a->parts[i % a->n_parts].name, (unsigned long long)call, err.text);
    }
    return claim(y->r, a->n_parts == 2, "%u halves", a->n_parts);
}

/* ---- memory ---- */

/* Bytes that this thread was given; tests/contract/algorithm/meson.build puts these in place. */
static _Thread_local uint64_t given;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
    given += n * size;
    return __real_calloc(n, size);
}

static _Thread_local enum epa_status (*backend_alloc)(struct epa_backend *, size_t, void **);

static enum epa_status count_alloc(struct epa_backend *b, size_t bytes, void **out)
{
    given += bytes;
    return backend_alloc(b, bytes, out);
}

/* What plan() said that this way takes beside the heap; of the launch that runs. */
static uint64_t the_bytes;

static bool takes_what_was_planned(struct rank *r, uint64_t bytes)
{
    return claim(r, bytes <= the_bytes && the_bytes <= bytes + bytes / 16 + 8192,
                 "%s: %llu bytes were allocated, and %llu planned", the_way->name,
                 (unsigned long long)bytes, (unsigned long long)the_bytes);
}

static enum epa_status create_counted(struct rank *r, const struct epa_algorithm_params *p,
                                      struct epa_algorithm **out, struct epa_error *err)
{
    struct epa_backend_ops ops = *r->backend->ops;
    const struct epa_backend_ops *before = r->backend->ops;
    enum epa_status status;

    backend_alloc = ops.alloc;
    ops.alloc = count_alloc;
    r->backend->ops = &ops;
    given = 0;
    status = epa_plugin.create(p, out, err);
    r->backend->ops = before;
    return status;
}

static void run_layers(struct rank *r)
{
    struct layer *y = calloc(1, sizeof(*y));
    struct epa_algorithm *a = NULL;
    struct epa_error err = {EPA_OK, ""};
    struct epa_algorithm_params params = {.problem = &y->problem,
                                          .world = r->boot->world,
                                          .transport = r->t,
                                          .backend = r->backend,
                                          .config = &the_way->c,
                                          .transport_flags = r->subject->plugin->flags,
                                          .timeout_ns = DEFAULT_TIMEOUT_NS};

    y->r = r;
    y->way = the_way;
    y->problem = problem_of(the_way);
    make_weights(y);
    y->problem.u.moe.mlp.up = y->up;
    y->problem.u.moe.mlp.down = y->down;
    y->problem.u.moe.mlp.up_scale = y->up_scale;
    y->problem.u.moe.mlp.down_scale = y->down_scale;
    if (claim(r, create_counted(r, &params, &a, &err) == EPA_OK, "%s: %s", the_way->name,
              err.text) &&
        takes_what_was_planned(r, given)) {
        for (uint64_t call = 0; call < CALLS && call_layer(y, a, call) && call_halves(y, a, call);
             call++) {
            for (uint64_t wait = draw(r, 4); wait > 0; wait--)
                sched_yield();
        }
        a->destroy(a);
    }
    free(y->up);
    free(y->down);
    free(y);
    meet(r);
}

/* Sets an option of a number in a copy of a plugin's defaults. */
static void *with_number(const struct epa_plugin *plugin, const char *name, uint32_t value)
{
    char *config = malloc(plugin->options.size);
    const struct epa_option *o = plugin->options.table;

    memcpy(config, plugin->options.defaults, plugin->options.size);
    while (strcmp(o->name, name) != 0)
        o++;
    memcpy(config + o->offset, &value, sizeof(value));
    return config;
}

static void run_way(const struct subject *subject, const struct way *way)
{
    struct subject mine = *subject;
    struct epa_problem p = problem_of(way);
    struct epa_world world = {.size = RANKS, .local_size = RANKS, .local_cores = 1};
    struct epa_footprint need;
    struct epa_error err = {EPA_OK, ""};
    void *config = with_number(&subject->backend->plugin, "workers", way->workers);

    mine.backend_config = config;
    the_way = way;
    assert_int_equal(epa_plugin.plan(&p, &world, subject->plugin->flags, &way->c, &need, &err),
                     EPA_OK);
    the_bytes = need.private_bytes + (way->workers - 1) * need.worker_bytes;
    ranks_run(&mine, &(struct ranks){.ranks = RANKS,
                                     .signals = need.signals,
                                     .heap_bytes = need.heap_bytes,
                                     .body = run_layers});
    free(config);
}

static void every_option_gives_the_same_sums(void **state)
{
    struct way way[24];
    uint32_t n = 0;

    for (uint32_t i = 0; i < 24; i++)
        way[i] = (struct way){.c = usual, .workers = 1};
    way[n++].name = "as usual";
    way[n].workers = 3;
    way[n++].name = "three workers";
    way[n].c.dedup = false;
    way[n++].name = "no dedup";
    way[n].c.sort = false;
    way[n++].name = "no sort";
    way[n].c.ready = FUSED_READY_EXPERT;
    way[n++].name = "ready by expert";
    way[n].c.ready = FUSED_READY_EXPERT;
    way[n].c.sort = false;
    way[n].workers = 3;
    way[n++].name = "ready by expert, no sort, three workers";
    way[n].c.recv_layout = FUSED_PACKED;
    way[n++].name = "packed";
    way[n].c.recv_layout = FUSED_PACKED;
    way[n].c.dedup = false;
    way[n].workers = 2;
    way[n++].name = "packed, no dedup, two workers";
    way[n].c.combine_mode = FUSED_GATHER;
    way[n++].name = "gather";
    way[n].c.combine_mode = FUSED_SERIAL;
    way[n].workers = 2;
    way[n++].name = "serial, two workers";
    way[n].c.combine_mode = FUSED_GATHER;
    way[n].c.dedup = false;
    way[n].workers = 2;
    way[n++].name = "gather, no dedup, two workers";
    way[n].c.launches = FUSED_TWO;
    way[n].workers = 2;
    way[n++].name = "two launches, two workers";
    way[n].c.launches = FUSED_TWO;
    way[n].c.combine_mode = FUSED_SERIAL;
    way[n++].name = "two launches, serial";
    way[n].c.queue = FUSED_STATIC;
    way[n].workers = 3;
    way[n++].name = "static, three workers";
    way[n].c.tail = true;
    way[n++].name = "tail";
    way[n].c.tail = true;
    way[n].c.queue = FUSED_STATIC;
    way[n].c.dispatch_workers = 1;
    way[n].c.tail_workers = 1;
    way[n].c.combine_workers = 1;
    way[n].workers = 4;
    way[n++].name = "static, a worker for each role";
    way[n].c.tail = true;
    way[n].c.dispatch_workers = 1;
    way[n].c.tail_workers = 1;
    way[n].c.combine_workers = 1;
    way[n].workers = 5;
    way[n++].name = "dynamic, a worker for each role";
    way[n].c.combine_workers = 1;
    way[n].workers = 2;
    way[n++].name = "worker 0 combines";
    way[n].c.column_splits = 3;
    way[n].workers = 2;
    way[n++].name = "columns split, two workers";
    way[n].c.dispatch_dtype = ALGO_DTYPE_FP8;
    way[n++].name = "FP8 rows";
    way[n].fp8 = true;
    way[n++].name = "FP8 weights";
    way[n].fp8 = true;
    way[n].c.dispatch_dtype = ALGO_DTYPE_FP8;
    way[n].c.tail = true;
    way[n].workers = 2;
    way[n++].name = "FP8 weights and rows, tail, two workers";
    way[n].c.capacity = 2.5;
    way[n].c.recv_layout = FUSED_PACKED;
    way[n++].name = "room for 2.5 times the even share";
    for (uint32_t i = 0; i < n; i++)
        run_way(*state, &way[i]);
}

/* What plan() says of a problem and options that it refuses. */
static void refuses(const struct epa_problem *p, const struct fused_config *c, const char *word)
{
    struct epa_world world = {.size = RANKS, .local_size = RANKS, .local_cores = 1};
    struct epa_footprint need;
    struct epa_error err = {EPA_OK, ""};

    assert_int_equal(epa_plugin.plan(p, &world, EPA_TRANSPORT_LOAD_STORE, c, &need, &err),
                     EPA_ERR_CONFIG);
    assert_non_null(strstr(err.text, word));
}

static void what_it_cannot_do_is_refused(void **state)
{
    const struct way plain = {.c = usual}, fp8 = {.c = usual, .fp8 = true};
    struct fused_config c = usual;
    struct epa_problem p = problem_of(&plain);

    (void)state;
    p.u.moe.mlp.ffn = 0;
    refuses(&p, &usual, "kind: mlp");
    p = problem_of(&plain);
    p.u.moe.mlp.ffn = FFN + 64;
    refuses(&p, &usual, "multiples of 128");
    p = problem_of(&fp8);
    p.u.moe.mlp.fp8_group_size = 64;
    refuses(&p, &usual, "128 channels");
    p = problem_of(&fp8);
    p.u.moe.fp8_group_size = 64;
    c.dispatch_dtype = ALGO_DTYPE_FP8;
    refuses(&p, &c, "moe.fp8_group_size");
    p = problem_of(&plain);
    c = usual;
    c.tail_workers = 1;
    refuses(&p, &c, "tail: true");
    c = usual;
    c.lag = 5;
    refuses(&p, &c, "lag is for GPUs");
    c = usual;
    c.blocks = 3;
    refuses(&p, &c, "blocks is for GPUs");
    c = usual;
    c.profile = "trace";
    refuses(&p, &c, "profile is for GPUs");
}

/* As many roles as workers would leave nobody to the GEMMs, who would be waited for. */
static void roles_leave_a_worker_to_the_gemms(void **state)
{
    const struct subject *subject = *state;
    struct epa_problem p = problem_of(&(struct way){.c = usual});
    struct epa_world world = {.size = RANKS, .local_size = RANKS, .local_cores = 1};
    struct fused_config roles = usual;
    struct epa_footprint need;
    struct epa_error err = {EPA_OK, ""};

    roles.dispatch_workers = 2;
    roles.combine_workers = 1;
    assert_int_equal(epa_plugin.plan(&p, &world, subject->plugin->flags, &roles, &need, &err),
                     EPA_OK);
    assert_int_equal(need.least_workers, 4);
    assert_int_equal(epa_plugin.plan(&p, &world, subject->plugin->flags, &usual, &need, &err),
                     EPA_OK);
    assert_int_equal(need.least_workers, 0);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(every_option_gives_the_same_sums, &subject),
        cmocka_unit_test(what_it_cannot_do_is_refused),
        cmocka_unit_test_prestate(roles_leave_a_worker_to_the_gemms, &subject),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
