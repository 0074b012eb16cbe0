/* The variants of each run for `verify --thorough`. A variant overrides keys of the run that --set
 * accepts as well, so --only or --set repeats a failed variant alone. A function adds keys that
 * depend on the run, such as moe.hidden + 16.
 *
 * A variant that an algorithm, a transport or this machine cannot run is skipped, and the reason is
 * printed. Few tokens or few iterations keep each variant below a minute on two cores. */
#include "experiment/variants.h"

#include <stdio.h>
#include <string.h>

#include "base/memory.h"
#include "experiment/operation.h"

enum { MOE = 1u << EPA_OP_MOE, GATHER = 1u << EPA_OP_ALLGATHER, GEMM = 1u << EPA_OP_AG_GEMM };

enum {
    CALLS = 70000,          /* more than 2^16 */
    MANY_TOKENS = 4096,     /* for each rank in an iteration */
    MILLION = 3 << 19,      /* tokens of a rank in total: 1.5 x 2^20 */
    NARROW = 32,            /* channels, for narrow rows */
    NARROW_LEAST = 128,     /* channels for real experts and for GPU kernels */
    THREADS_TIMEOUT_S = 20, /* 64 ranks share a few cores */
    THREADS_ROUNDS = 6,     /* iterations of a variant with many ranks */
    WIDE_ROUNDS = 8,        /* iterations of a variant with 300 tokens or 32 choices */
};

/* Token counts that change with the iteration and are sometimes 0: a full rank hides defects. */
#define GUARD "verify.guard=true"
#define THREADS "launcher=thread"
#define CHANGING "tokens={kind: random, min: 0}", GUARD
#define EVEN "routing={kind: uniform}"

static void add_key(struct arena *arena, const char *set[VARIANT_KEYS], const char *key,
                    uint64_t value, const char *unit)
{
    uint32_t n = 0;

    while (set[n] != NULL)
        n++;
    set[n] = arena_printf(arena, "%s=%llu%s", key, (unsigned long long)value, unit);
}

static uint32_t round_up(uint32_t value, uint32_t of)
{
    return (value + of - 1) / of * of;
}

static bool is_mlp(const struct experiment *x)
{
    return x->problem.expert.kind == EXPERT_MLP;
}

/* Adds a shape for `ranks` ranks that are threads. */
static void add_ranks(struct arena *arena, const struct experiment *x, uint32_t ranks,
                      const char *set[VARIANT_KEYS])
{
    const uint64_t second = 1000000000, limit = THREADS_TIMEOUT_S * second;
    enum epa_op op = operation_of_experiment(x)->op;

    add_key(arena, set, "ranks", ranks, "");
    add_key(arena, set, "timeout", (x->timeout_ns > limit ? x->timeout_ns : limit) / second, "s");
    add_key(arena, set, "verify.iterations",
            x->verify.iterations < THREADS_ROUNDS ? x->verify.iterations : THREADS_ROUNDS, "");
    if (op == EPA_OP_MOE) {
        add_key(arena, set, "moe.experts", round_up(x->problem.moe.experts, ranks), "");
        add_key(arena, set, "moe.max_tokens",
                x->problem.moe.max_tokens < 4 ? x->problem.moe.max_tokens : 4, "");
    } else if (op == EPA_OP_ALLGATHER) {
        add_key(arena, set, "allgather.max_rows",
                x->problem.allgather.max_rows < 16 ? x->problem.allgather.max_rows : 16, "");
    } else {
        add_key(arena, set, "gemm.m", ranks * UINT64_C(8), "");
        add_key(arena, set, "gemm.n", ranks * UINT64_C(16), "");
    }
}

static bool fit_3_ranks(struct arena *arena, const struct experiment *x,
                        const char *set[VARIANT_KEYS])
{
    add_ranks(arena, x, 3, set);
    return true;
}

static bool fit_33_ranks(struct arena *arena, const struct experiment *x,
                         const char *set[VARIANT_KEYS])
{
    add_ranks(arena, x, 33, set);
    return true;
}

static bool fit_64_ranks(struct arena *arena, const struct experiment *x,
                         const char *set[VARIANT_KEYS])
{
    add_ranks(arena, x, 64, set);
    return true;
}

/* Real experts need a multiple of 128. */
static bool fit_hidden(struct arena *arena, const struct experiment *x,
                       const char *set[VARIANT_KEYS])
{
    uint32_t hidden = x->problem.moe.hidden + (is_mlp(x) ? 128 : 16);

    add_key(arena, set, "moe.hidden", hidden, "");
    if (hidden % x->problem.moe.fp8_group_size != 0)
        add_key(arena, set, "moe.fp8_group_size", 16, "");
    return true;
}

static void add_rounds(struct arena *arena, const struct experiment *x, uint32_t most,
                       const char *set[VARIANT_KEYS])
{
    add_key(arena, set, "verify.iterations",
            x->verify.iterations < most ? x->verify.iterations : most, "");
}

static bool fit_300_tokens(struct arena *arena, const struct experiment *x,
                           const char *set[VARIANT_KEYS])
{
    add_rounds(arena, x, WIDE_ROUNDS, set);
    return true;
}

static bool fit_32_choices(struct arena *arena, const struct experiment *x,
                           const char *set[VARIANT_KEYS])
{
    uint32_t experts = x->problem.moe.experts < 32 ? 32 : x->problem.moe.experts;

    add_key(arena, set, "moe.experts", round_up(experts, x->problem.ranks), "");
    add_rounds(arena, x, WIDE_ROUNDS, set);
    return true;
}

/* Makes rows as narrow as the types of the run permit. */
static void add_narrow(struct arena *arena, const struct experiment *x,
                       const char *set[VARIANT_KEYS])
{
    uint32_t hidden = is_mlp(x) || !is_on_hosts(x) ? NARROW_LEAST : NARROW;

    add_key(arena, set, "moe.hidden", hidden, "");
    if (hidden % x->problem.moe.fp8_group_size != 0)
        add_key(arena, set, "moe.fp8_group_size", hidden, "");
    if (is_mlp(x))
        add_key(arena, set, "expert.ffn", hidden, "");
}

static bool fit_calls(struct arena *arena, const struct experiment *x,
                      const char *set[VARIANT_KEYS])
{
    enum epa_op op = operation_of_experiment(x)->op;

    add_key(arena, set, "verify.iterations", CALLS, "");
    if (op == EPA_OP_MOE) {
        add_key(arena, set, "moe.max_tokens", 1, "");
        add_narrow(arena, x, set);
    } else if (op == EPA_OP_ALLGATHER) {
        add_key(arena, set, "allgather.max_rows", 1, "");
        add_key(arena, set, "allgather.row_bytes", 64, "");
    } else {
        add_key(arena, set, "gemm.m", x->problem.ranks, "");
        add_key(arena, set, "gemm.n", x->problem.ranks * UINT64_C(16), "");
        add_key(arena, set, "gemm.k", 16, "");
    }
    return true;
}

static bool fit_million(struct arena *arena, const struct experiment *x,
                        const char *set[VARIANT_KEYS])
{
    add_key(arena, set, "moe.max_tokens", MANY_TOKENS, "");
    add_key(arena, set, "verify.iterations", MILLION / MANY_TOKENS, "");
    add_narrow(arena, x, set);
    return true;
}

static bool fit_real_experts(struct arena *arena, const struct experiment *x,
                             const char *set[VARIANT_KEYS])
{
    (void)arena;
    (void)set;
    return is_mlp(x);
}

static bool fit_synthetic_experts(struct arena *arena, const struct experiment *x,
                                  const char *set[VARIANT_KEYS])
{
    (void)arena;
    (void)set;
    return !is_mlp(x);
}

/* verify.guard is for hosts. A variant with other keys runs without it on a device. */
static void drop_guard(const char *set[VARIANT_KEYS])
{
    uint32_t n = 0, kept = 0;

    while (set[n] != NULL)
        n++;
    for (uint32_t i = 0; n > 1 && i < n; i++)
        if (strcmp(set[i], GUARD) != 0)
            set[kept++] = set[i];
    if (kept > 0)
        set[kept] = NULL;
}

/* Forked processes cannot use GPUs after threads have used them, so a batch does not mix both. */
static bool runs_on_device(const struct experiment *x, const struct variant *v)
{
    const struct epa_plugin *launcher = x->launcher.plugin;
    bool threads = launcher != NULL && strcmp(launcher->name, "thread") == 0;

    for (uint32_t i = 0; i < VARIANT_KEYS && v->set[i] != NULL; i++)
        if (strcmp(v->set[i], THREADS) == 0)
            return threads;
    return true;
}

bool variant_fit(const struct variant *v, struct arena *arena, const struct experiment *x,
                 struct variant *out)
{
    *out = *v;
    if (!is_on_hosts(x) && !runs_on_device(x, v))
        return false;
    if (!is_on_hosts(x))
        drop_guard(out->set);
    return v->fit == NULL || v->fit(arena, x, out->set);
}

const struct variant thorough_variants[] = {
    {"guards", 0, {GUARD}},
    {"changing counts", 0, {CHANGING}},
    {"odd room", MOE, {CHANGING, "moe.max_tokens=7"}},
    {"odd room", GATHER, {CHANGING, "allgather.max_rows=7"}},
    {"odd room", GEMM, {CHANGING, "gemm.m=131", "gemm.n=131"}},
    {"dropped choices", MOE, {CHANGING, "routing={kind: masked, share: 0.5}"}},
    {"one expert gets most", MOE, {CHANGING, "routing={kind: hot, share: 0.9}"}},
    {"uniform weights", MOE, {CHANGING, "routing={kind: uniform, weights: uniform}"}},
    {"signed weights", MOE, {CHANGING, "routing={kind: uniform, weights: signed}"}},
    {"NaN and infinity", MOE, {CHANGING, "verify.nonfinite=true"}, fit_synthetic_experts},
    {"factors by rank", MOE, {CHANGING, "expert.kind=rank"}, fit_synthetic_experts},
    {"random values", MOE, {CHANGING, "expert.values=random"}, fit_real_experts},
    {"f16", MOE, {CHANGING, "moe.dtype=f16"}},
    {"outputs elsewhere", MOE, {CHANGING, "expert.output=separate"}},
    {"pipelined", MOE, {CHANGING, "verify.order=pipelined"}},
    {"discarded dispatches", MOE, {CHANGING, "verify.order=discard"}},
    {"combines again", MOE, {CHANGING, "verify.order=again"}},
    {"late ranks", 0, {CHANGING, "verify.straggle=2ms"}},
    {"threads", 0, {CHANGING, THREADS}},
    {"reorder", 0, {CHANGING, "transport=reorder"}},
    {"reorder to half", 0, {CHANGING, "transport={name: reorder, peers: pair}"}},
    {"reorder, pipelined", MOE, {CHANGING, "transport=reorder", "verify.order=pipelined"}},
    {"reorder, late ranks", 0, {CHANGING, "transport=reorder", "verify.straggle=2ms"}},
    {"epochs pass 2^31", 0, {CHANGING, "verify.epoch=2147483645"}},
    {"epochs pass 2^32", 0, {CHANGING, "verify.epoch=4294967293"}},
    {"hidden + 16", MOE, {CHANGING, EVEN}, fit_hidden},
    {"300 tokens", MOE, {CHANGING, "moe.max_tokens=300"}, fit_300_tokens},
    {"one choice", MOE, {CHANGING, EVEN, "moe.topk=1"}},
    {"32 choices", MOE, {CHANGING, EVEN, "moe.topk=32"}, fit_32_choices},
    {"3 ranks", 0, {CHANGING, THREADS}, fit_3_ranks},
    {"33 ranks", 0, {CHANGING, THREADS, "verify.straggle=20ms"}, fit_33_ranks},
    {"64 ranks", 0, {CHANGING, THREADS, "verify.straggle=20ms"}, fit_64_ranks},
    {"70,000 calls", 0, {"tokens=full", "verify.check_every=1000"}, fit_calls},
    {"a million tokens", MOE, {"tokens=full"}, fit_million},
    {"a stopped rank", 0, {"verify.stop=first"}},
    {"a rank stopped before combine", MOE, {"verify.stop=last"}},
    {0},
};
