/* fused called by itself, in ways that the program does not call it: half a layer between two calls
 * must change nothing, and create() takes the memory that plan() said. fused_layer.yaml says that
 * the sums are right. Matrices and tokens are small integers, so that every sum is exact in float32
 * whatever its order; in FP8, too. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../../../plugins/algorithm/fused/fused.h"
#include "../../../src/base/dtype.h"
#include "../ranks.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum { RANKS = 3, TOKENS = 40, TOPK = 4, LOCAL = 3, EXPERTS = RANKS * LOCAL, HIDDEN = 256 };
enum { FFN = 128, INPUTS = 3, CALLS = 9, WEIGHTS = LOCAL * FFN * HIDDEN };

#define PLAIN .block_rows = 32, .lag = 4
#define USUAL PLAIN, .dedup = true, .sort = true
#define ROLES .dispatch_workers = 1, .tail_workers = 1, .combine_workers = 1
#define FP8 .dispatch_dtype = ALGO_DTYPE_FP8

static const struct way {
    const char *name;
    struct fused_config c;
    uint32_t workers;
    bool fp8; /* weights */
} ways[] = {
    {"as usual", {USUAL}, 1},
    {"three workers", {USUAL}, 3},
    {"no dedup", {PLAIN, .sort = true}, 1},
    {"no sort", {PLAIN, .dedup = true}, 1},
    {"ready by expert", {USUAL, .ready = FUSED_READY_EXPERT}, 1},
    {"ready by expert, no sort", {PLAIN, .dedup = true, .ready = FUSED_READY_EXPERT}, 3},
    {"packed", {USUAL, .recv_layout = FUSED_PACKED}, 1},
    {"packed, no dedup", {PLAIN, .sort = true, .recv_layout = FUSED_PACKED}, 2},
    {"gather", {USUAL, .combine_mode = FUSED_GATHER}, 1},
    {"serial", {USUAL, .combine_mode = FUSED_SERIAL}, 2},
    {"gather, no dedup", {PLAIN, .sort = true, .combine_mode = FUSED_GATHER}, 2},
    {"two launches", {USUAL, .launches = FUSED_TWO}, 2},
    {"two launches, serial", {USUAL, .launches = FUSED_TWO, .combine_mode = FUSED_SERIAL}, 1},
    {"static", {USUAL, .queue = FUSED_STATIC}, 3},
    {"tail", {USUAL, .tail = true}, 1},
    {"static, a worker for each role", {USUAL, ROLES, .tail = true, .queue = FUSED_STATIC}, 4},
    {"dynamic, a worker for each role", {USUAL, ROLES, .tail = true}, 5},
    {"worker 0 combines", {USUAL, .combine_workers = 1}, 2},
    {"columns split", {USUAL, .column_splits = 3}, 2},
    {"FP8 rows", {USUAL, FP8}, 1},
    {"FP8 weights", {USUAL}, 1, true},
    {"FP8 weights and rows, tail", {USUAL, FP8, .tail = true}, 2, true},
    {"room for 2.5 shares", {USUAL, .capacity = 2.5, .recv_layout = FUSED_PACKED}, 1},
};

struct layer {
    struct rank *r;
    const struct way *way;
    uint64_t planned; /* bytes beside the heap */
    struct epa_problem problem;
    uint16_t up[WEIGHTS], down[WEIGHTS]; /* or bytes, in FP8 */
    float scale[LOCAL * (HIDDEN / 128)];
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN], first[INPUTS][TOKENS * HIDDEN];
    int32_t expert[TOKENS * TOPK];
    float weight[TOKENS * TOPK];
};

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

static bool create_counted(struct layer *y, const struct epa_algorithm_params *p,
                           struct epa_algorithm **out)
{
    struct epa_backend_ops ops = *y->r->backend->ops;
    const struct epa_backend_ops *before = y->r->backend->ops;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status;

    backend_alloc = ops.alloc;
    ops.alloc = count_alloc;
    y->r->backend->ops = &ops;
    given = 0;
    status = epa_plugin.create(p, out, &err);
    y->r->backend->ops = before;
    return claim(y->r, status == EPA_OK, "%s: %s", y->way->name, err.text) &&
           claim(y->r, given <= y->planned && y->planned <= given + given / 16 + 8192,
                 "%s: %llu bytes were allocated, and %llu planned", y->way->name,
                 (unsigned long long)given, (unsigned long long)y->planned);
}

static void make_weights(struct layer *y, uint16_t *matrix)
{
    for (uint32_t i = 0; i < WEIGHTS; i++) {
        float v = (float)draw(y->r, 3) - 1;

        if (y->way->fp8)
            ((uint8_t *)matrix)[i] = e4m3_of_float(v);
        else
            matrix[i] = bf16_of_float(v);
    }
}

/* Routes, counts and tokens are those of one of a few inputs; some choices are dropped. */
static void make_inputs(struct layer *y, uint64_t input)
{
    uint64_t random = y->r->random;

    y->r->random = input * RANKS + y->r->me;
    y->problem.u.moe.tokens = input == 1 && y->r->me == 1 ? 0 : (uint32_t)draw(y->r, TOKENS + 1);
    for (uint32_t i = 0; i < TOKENS * HIDDEN; i++)
        y->x[i] = bf16_of_float((float)draw(y->r, 3) - 1);
    for (uint32_t i = 0; i < TOKENS * TOPK; i++) {
        uint64_t step = i % TOPK, first = (i / TOPK) * 5 + input;

        y->expert[i] = draw(y->r, 6) == 0 ? -1 : (int32_t)((first + step * 4) % EXPERTS);
        y->weight[i] = (float)(1 + draw(y->r, 4)) * 0.5f;
    }
    y->r->random = random;
    memset(y->out, 0xff, sizeof(y->out));
}

static bool ends_well(struct layer *y, struct epa_algorithm *a, enum epa_status status,
                      const char *what)
{
    struct epa_error err = {EPA_OK, ""};

    if (status != EPA_OK)
        a->explain(a, &err);
    return claim(y->r, status == EPA_OK, "%s, %s: %s", y->way->name, what, err.text);
}

/* A layer; now and then each half alone after it, as bench calls them. What comes of inputs that
 * were there before is the same to the bit. */
static bool call_layer(struct layer *y, struct epa_algorithm *a, uint64_t call)
{
    uint64_t input = call % INPUTS;
    size_t bytes;

    make_inputs(y, input);
    bytes = (size_t)y->problem.u.moe.tokens * HIDDEN * 2;
    if (!ends_well(y, a, a->stages[0].run(a, &y->problem), "the layer"))
        return false;
    if (call < INPUTS)
        memcpy(y->first[input], y->out, bytes);
    else if (!claim(y->r, memcmp(y->first[input], y->out, bytes) == 0,
                    "%s: call %llu gives other sums than call %llu", y->way->name,
                    (unsigned long long)call, (unsigned long long)input))
        return false;
    for (uint32_t i = 0; i < a->n_parts * 2 && call % 3 == 0; i++)
        if (!ends_well(y, a, a->parts[i % a->n_parts].run(a, &y->problem), "a half"))
            return false;
    return claim(y->r, a->n_parts == 2, "%u halves", a->n_parts);
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

static enum epa_status plan(const struct way *way, uint32_t flags, struct epa_footprint *need)
{
    const struct epa_world world = {.size = RANKS, .local_size = RANKS, .local_cores = 1};
    struct epa_problem p = problem_of(way);
    struct epa_error err = {EPA_OK, ""};

    return epa_plugin.plan(&p, &world, flags, &way->c, need, &err);
}

static void run_layers(struct rank *r)
{
    struct layer *y = calloc(1, sizeof(*y));
    const struct way *way = &ways[r->promise->value];
    struct epa_moe *m = &y->problem.u.moe;
    struct epa_algorithm *a = NULL;
    struct epa_footprint need;
    struct epa_algorithm_params params = {.problem = &y->problem,
                                          .world = r->boot->world,
                                          .transport = r->t,
                                          .backend = r->backend,
                                          .config = &way->c,
                                          .transport_flags = r->subject->plugin->flags,
                                          .timeout_ns = DEFAULT_TIMEOUT_NS};

    y->r = r;
    y->way = way;
    y->problem = problem_of(way);
    (void)plan(way, r->subject->plugin->flags, &need);
    y->planned = need.private_bytes + (way->workers - 1) * need.worker_bytes;
    make_weights(y, y->up);
    make_weights(y, y->down);
    for (uint32_t i = 0; i < sizeof(y->scale) / sizeof(y->scale[0]); i++)
        y->scale[i] = (float)(1 + i % 2);
    m->mlp.up = y->up;
    m->mlp.down = y->down;
    m->mlp.up_scale = m->mlp.down_scale = y->scale;
    m->x = y->x;
    m->expert = y->expert;
    m->weight = y->weight;
    m->out = y->out;
    if (create_counted(y, &params, &a)) {
        for (uint64_t call = 0; call < CALLS && call_layer(y, a, call); call++)
            for (uint64_t wait = draw(r, 4); wait > 0; wait--)
                sched_yield(); /* ranks drift apart */
        a->destroy(a);
    }
    free(y);
    meet(r);
}

static void halves_and_memory_are_as_planned(void **state)
{
    for (uint32_t i = 0; i < sizeof(ways) / sizeof(ways[0]); i++) {
        struct subject subject = *(const struct subject *)*state;
        const struct promise way = {.value = i};
        struct epa_footprint need;
        char workers[16];
        const char *option = workers;

        snprintf(workers, sizeof(workers), "workers=%u", ways[i].workers);
        subject.backend_config = read_config(&subject.backend->plugin.options, 1, &option);
        assert_int_equal(plan(&ways[i], subject.plugin->flags, &need), EPA_OK);
        ranks_run(&subject, &(struct ranks){.ranks = RANKS,
                                            .signals = need.signals,
                                            .heap_bytes = need.heap_bytes,
                                            .body = run_layers,
                                            .promise = &way});
    }
}

/* As many roles as workers would leave nobody to the GEMMs, who would be waited for. */
static void roles_leave_a_worker_to_the_gemms(void **state)
{
    const struct way usual = {"usual", {USUAL}, 1, false};
    const struct way roles = {"", {USUAL, .dispatch_workers = 2, .combine_workers = 1}, 1, false};
    const struct subject *subject = *state;
    struct epa_footprint need;

    assert_int_equal(plan(&roles, subject->plugin->flags, &need), EPA_OK);
    assert_int_equal(need.least_workers, 4);
    assert_int_equal(plan(&usual, subject->plugin->flags, &need), EPA_OK);
    assert_int_equal(need.least_workers, 0);
}

int main(int argc, char **argv)
{
    struct subject subject = ranks_subject(argc, argv);
    const struct CMUnitTest tests[] = {
        cmocka_unit_test_prestate(halves_and_memory_are_as_planned, &subject),
        cmocka_unit_test_prestate(roles_leave_a_worker_to_the_gemms, &subject),
    };

    return cmocka_run_group_tests(tests, NULL, NULL);
}
