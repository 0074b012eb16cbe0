/* ll_v1 in every order of calls that its contract allows, which the program itself does not make
 * on hosts: dispatches that are given up, combines that are called again, two dispatches open or
 * not, as drawn. Rows, origins and sums are compared in each call, and each call has inputs of
 * its own. */
#include <sched.h>
#include <setjmp.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <cmocka.h>

#include "../../../plugins/algorithm/ll_v1/ll_v1.h"
#include "../ranks.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum {
    RANKS = 3,
    TOKENS = 6,
    TOPK = 3,
    EXPERTS = 9,
    LOCAL = 3,
    HIDDEN = 64,
    CALLS = 400,
    HEAP = 1 << 18
};

struct open {
    uint64_t call; /* of its dispatch; 0: it is not open */
    struct epa_problem problem;
    int32_t expert[TOKENS * TOPK];
    uint16_t x[TOKENS * HIDDEN], out[TOKENS * HIDDEN];
};

struct run {
    struct rank *r;
    struct epa_algorithm *a;
    uint64_t order; /* a random number that is the same on all ranks */
    uint64_t calls; /* dispatches */
    struct open open[2];
    struct open *again; /* may be combined once more */
};

static uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 31) * 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
    return v ^ v >> 32;
}

static uint32_t tokens_of(uint64_t call, uint32_t rank)
{
    return (uint32_t)(mix(call * RANKS + rank) % (TOKENS + 1));
}

/* A choice of a token, or -1; those of a token are distinct, as each is of a third of the
 * experts, which are the experts of a rank or not. */
static int32_t expert_of(uint64_t call, uint32_t rank, uint32_t token, uint32_t k)
{
    uint64_t v = mix(((call * RANKS + rank) * TOKENS + token) * TOPK + k);
    bool within = mix(call) % 2 == 0;

    if (v % 5 == 0)
        return -1;
    v = v / 5 % LOCAL;
    return (int32_t)(within ? k * LOCAL + v : v * LOCAL + k);
}

static uint16_t word_of(uint64_t call, uint32_t rank, uint32_t token, uint32_t channel)
{
    return (uint16_t)mix(((call * RANKS + rank) * TOKENS + token) * HIDDEN + channel);
}

/* A small whole number, so that sums are exact. */
static uint32_t output_of(uint64_t call, uint32_t rank, uint32_t token, int32_t expert)
{
    return 1 +
           (uint32_t)(mix(((call * RANKS + rank) * TOKENS + token) * EXPERTS + (uint32_t)expert) %
                      60);
}

static uint16_t bf16(uint32_t whole)
{
    float f = (float)whole;
    uint32_t bits;

    memcpy(&bits, &f, sizeof(bits));
    return (uint16_t)(bits >> 16);
}

static void fill_inputs(struct run *run, struct open *o)
{
    static const float ones[TOKENS * TOPK] = {1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1, 1};
    struct epa_moe *m = &o->problem.u.moe;

    for (uint32_t t = 0; t < TOKENS; t++) {
        for (uint32_t k = 0; k < TOPK; k++)
            o->expert[t * TOPK + k] = expert_of(o->call, run->r->me, t, k);
        for (uint32_t h = 0; h < HIDDEN; h++)
            o->x[t * HIDDEN + h] = word_of(o->call, run->r->me, t, h);
    }
    m->tokens = tokens_of(o->call, run->r->me);
    m->x = o->x;
    m->expert = o->expert;
    m->weight = ones;
    m->out = o->out;
}

/* A row is what its origin says, and its experts want it; then it is answered. */
static void take_row(struct run *run, const struct epa_moe *m, uint64_t call, uint64_t i,
                     uint32_t local)
{
    const struct epa_origin *origin = &m->origin[i];
    const uint16_t *row =
        (const uint16_t *)(const void *)((const char *)m->recv + i * m->recv_stride);
    int32_t expert = (int32_t)(run->r->me * LOCAL + local);
    uint16_t *y = (uint16_t *)m->y_space + i * HIDDEN;
    bool wanted = false, same = true;

    for (uint32_t k = 0; k < TOPK; k++)
        wanted = wanted || expert_of(call, origin->rank, origin->token, k) == expert;
    for (uint32_t h = 0; h < HIDDEN; h++)
        same = same && row[h] == word_of(call, origin->rank, origin->token, h);
    claim(run->r, wanted && same, "dispatch %llu, entry %llu: token %u of rank %u",
          (unsigned long long)call, (unsigned long long)i, origin->token, origin->rank);
    for (uint32_t h = 0; h < HIDDEN; h++)
        y[h] = bf16(output_of(call, origin->rank, origin->token, expert));
}

static uint32_t rows_for(uint64_t call, int32_t expert)
{
    uint32_t rows = 0;

    for (uint32_t r = 0; r < RANKS; r++) {
        for (uint32_t t = 0; t < tokens_of(call, r); t++) {
            for (uint32_t k = 0; k < TOPK; k++)
                rows += expert_of(call, r, t, k) == expert;
        }
    }
    return rows;
}

static bool ends_well(struct run *run, enum epa_status status)
{
    struct epa_error err = {EPA_OK, ""};

    if (status != EPA_OK)
        run->a->explain(run->a, &err);
    return claim(run->r, status == EPA_OK, "status %d: %s", status, err.text);
}

static bool dispatch(struct run *run, struct open *o)
{
    struct epa_moe *m = &o->problem.u.moe;

    o->call = ++run->calls;
    run->again = NULL;
    fill_inputs(run, o);
    if (!ends_well(run, run->a->stages[0].run(run->a, &o->problem)))
        return false;
    for (uint32_t j = 0; j < LOCAL; j++) {
        uint32_t rows = rows_for(o->call, (int32_t)(run->r->me * LOCAL + j));

        if (!claim(run->r, m->recv_count[j] == rows, "dispatch %llu: %u rows, not %u",
                   (unsigned long long)o->call, m->recv_count[j], rows))
            return false;
        for (uint32_t i = 0; i < rows; i++)
            take_row(run, m, o->call, m->recv_start[j] + i, j);
    }
    m->y = m->y_space;
    return true;
}

static bool combine(struct run *run, struct open *o)
{
    memset(o->out, 0xff, sizeof(o->out));
    if (!ends_well(run, run->a->stages[1].run(run->a, &o->problem)))
        return false;
    for (uint32_t t = 0; t < o->problem.u.moe.tokens; t++) {
        uint32_t sum = 0;

        for (uint32_t k = 0; k < TOPK; k++) {
            int32_t expert = o->expert[t * TOPK + k];

            if (expert >= 0)
                sum += output_of(o->call, run->r->me, t, expert);
        }
        for (uint32_t h = 0; h < HIDDEN; h++) {
            if (!claim(run->r, o->out[t * HIDDEN + h] == bf16(sum),
                       "combine of %llu: token %u, channel %u is 0x%04x, not %u",
                       (unsigned long long)o->call, t, h, o->out[t * HIDDEN + h], sum))
                return false;
        }
    }
    run->again = o;
    return true;
}

/* One call of those that are allowed now. */
static bool step(struct run *run)
{
    struct open *first = NULL, *last = NULL, *next = NULL;
    uint64_t draw = run->order = mix(run->order + 1);
    bool good = true;

    for (uint32_t i = 0; i < 2; i++) {
        struct open *o = &run->open[i];

        if (o->call == 0) {
            if (o != run->again || next == NULL)
                next = o;
            continue;
        }
        first = first == NULL || o->call < first->call ? o : first;
        last = last == NULL || o->call > last->call ? o : last;
    }
    if (run->again != NULL && run->again->call == 0 && draw % 4 == 0) {
        run->again->call = run->again->problem.u.moe.epoch;
        good = combine(run, run->again);
        run->again->call = 0;
    } else if (last != NULL && last->call == run->calls && run->again == NULL && draw % 4 == 1) {
        good = ends_well(run, run->a->discard(run->a, &last->problem));
        last->call = 0;
    } else if (next != NULL && (first == NULL || draw % 2 == 0)) {
        good = dispatch(run, next);
    } else {
        good = combine(run, first);
        first->call = 0;
    }
    return good;
}

static void make_calls(struct rank *r)
{
    struct run run = {.r = r, .order = 7};
    const struct v1_config c = {.pdl = true,
                                .dispatch_dtype = ALGO_DTYPE_NATIVE,
                                .exchange = (int)r->promise->value,
                                .buffers = 2,
                                .nontemporal = ALGO_NONTEMPORAL_OFF};
    const struct epa_problem p = {.op = EPA_OP_MOE,
                                  .u.moe = {.max_tokens = TOKENS,
                                            .hidden = HIDDEN,
                                            .experts = EXPERTS,
                                            .topk = TOPK,
                                            .fp8_group_size = HIDDEN,
                                            .dtype = EPA_BF16,
                                            .x_dtype = EPA_BF16}};
    struct v1_layout l;
    struct epa_error err = {EPA_OK, ""};
    const struct epa_algorithm_params params = {.problem = &p,
                                                .world = r->boot->world,
                                                .transport = r->t,
                                                .backend = r->backend,
                                                .config = &c,
                                                .transport_flags = r->subject->plugin->flags,
                                                .timeout_ns = DEFAULT_TIMEOUT_NS};

    if (!claim(r,
               v1_layout_make(&p.u.moe, &params.world, params.transport_flags, &c, &l, &err) ==
                       EPA_OK &&
                   l.heap_bytes <= HEAP && epa_plugin.create(&params, &run.a, &err) == EPA_OK,
               "%s", err.text))
        return;
    run.open[0].problem = run.open[1].problem = p;
    for (uint32_t i = 0; i < CALLS && step(&run); i++) {
        for (uint64_t wait = draw(r, 4); wait > 0; wait--)
            sched_yield(); /* ranks drift apart */
    }
    run.a->destroy(run.a);
    meet(r);
}

int main(int argc, char **argv)
{
    static const struct promise promises[] = {
        {"calls come in any order, and outputs are pulled",
         make_calls,
         {RANKS},
         .value = V1_EXCHANGE_PULL},
        {"calls come in any order, and outputs are pushed",
         make_calls,
         {RANKS},
         .value = V1_EXCHANGE_PUSH},
    };

    return promises_main(
        argc, argv, (struct ranks){.signals = V1_MODES * V1_POSITIONS * RANKS, .heap_bytes = HEAP},
        promises, 2);
}
