/* Sequences of allgather calls that the program does not make: rows already in place, outputs read
 * until the next call begins, and signals per chunk. Row counts and bytes change from call to
 * call. */
#include <unistd.h>

#include "../../../../plugins/algorithm/allgather/allgather_layout.h"
#include "../../ranks.h"

extern const struct epa_algorithm_plugin epa_plugin;

enum { RANKS = 3, ROWS = 9, ROW_BYTES = 112, CHUNKS = 4, CALLS = 300 };

struct run {
    struct rank *r;
    struct epa_algorithm *a;
    struct epa_problem problem;
    uint32_t rows[RANKS];
    char in[ROWS * ROW_BYTES];
};

static uint64_t mix(uint64_t v)
{
    v = (v ^ v >> 31) * 0x9e3779b97f4a7c15u;
    v = (v ^ v >> 29) * 0xbf58476d1ce4e5b9u;
    return v ^ v >> 32;
}

static uint32_t rows_of(uint64_t call, uint32_t rank)
{
    return (uint32_t)(mix(call * RANKS + rank) % (ROWS + 1));
}

static char byte_of(uint64_t call, uint32_t rank, uint32_t i)
{
    return (char)mix((call * RANKS + rank) * ROWS * ROW_BYTES + i);
}

static bool has_rows_of(struct run *run, uint64_t call)
{
    const char *out = run->problem.u.allgather.out;

    for (uint32_t s = 0; s < run->r->size; s++) {
        uint32_t bytes = rows_of(call, s) * ROW_BYTES;

        for (uint32_t i = 0; i < bytes; i++, out++)
            if (!claim(run->r, *out == byte_of(call, s, i),
                       "call %llu: byte %u of rank %u is 0x%02x, should be 0x%02x",
                       (unsigned long long)call, i, s, (unsigned char)*out,
                       (unsigned char)byte_of(call, s, i)))
                return false;
    }
    return true;
}

/* Makes the own rows, in place if the previous call announced the address and the random draw
 * permits it. */
static void make_rows(struct run *run, uint64_t call)
{
    struct epa_allgather *g = &run->problem.u.allgather;
    bool in_place = call > 1 && draw(run->r, 2) == 0;
    char *to = run->in;

    for (uint32_t s = 0; s < RANKS; s++)
        run->rows[s] = rows_of(call, s);
    if (in_place) {
        to = g->next_out;
        for (uint32_t s = 0; s < run->r->me; s++)
            to += run->rows[s] * ROW_BYTES;
    }
    for (uint32_t i = 0; i < run->rows[run->r->me] * ROW_BYTES; i++)
        to[i] = byte_of(call, run->r->me, i);
    g->rows = run->rows;
    g->in = in_place ? NULL : run->in;
}

static bool gather(struct run *run, uint64_t call)
{
    const struct epa_allgather *g = &run->problem.u.allgather;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = run->a->stages[0].run(run->a, &run->problem);

    if (status != EPA_OK)
        run->a->explain(run->a, &err);
    if (!claim(run->r, status == EPA_OK, "status %d: %s", status, err.text))
        return false;
    if (!claim(run->r, g->epoch == call, "call %llu counts as %llu", (unsigned long long)call,
               (unsigned long long)g->epoch))
        return false;
    for (uint32_t s = 0; s < run->r->size; s++)
        for (uint32_t c = 0; c < g->chunks && s != run->r->me; c++) {
            uint64_t word = run->r->t->ops->read(run->r->t, g->signal + s * g->chunks + c);

            if (!claim(run->r, word >= call, "chunk %u of rank %u is signalled %llu", c, s,
                       (unsigned long long)word))
                return false;
        }
    return true;
}

static void make_calls(struct rank *r)
{
    int mode = (int)r->promise->value;
    static const struct epa_allgather shape = {.max_rows = ROWS, .row_bytes = ROW_BYTES};
    struct run run = {.r = r, .problem = {EPA_OP_ALLGATHER, {.allgather = shape}}};
    struct ag_config config = {.mode = mode, .chunks = CHUNKS};
    struct epa_algorithm_params p = {.problem = &run.problem,
                                     .world = r->boot->world,
                                     .transport = r->t,
                                     .backend = r->backend,
                                     .config = &config,
                                     .transport_flags = r->t->flags,
                                     .timeout_ns = DEFAULT_TIMEOUT_NS};
    struct epa_error err = {EPA_OK, ""};
    uint64_t calls = rounds(r, CALLS);

    if (mode == AG_PULL && (r->t->flags & EPA_TRANSPORT_LOAD_STORE) == 0)
        return;
    if (!claim(r, epa_plugin.create(&p, &run.a, &err) == EPA_OK, "%s", err.text))
        return;
    if (!meet(r))
        return;
    for (uint64_t call = 1; call <= calls; call++) {
        make_rows(&run, call); /* the previous output is still readable here: */
        if (call > 1 && !has_rows_of(&run, call - 1))
            break;
        if (!gather(&run, call) || !has_rows_of(&run, call))
            break;
        if (draw(r, 8) == 0)
            usleep(200); /* lets peers advance as far as they can */
    }
    meet(r);
    run.a->destroy(run.a);
}

static const struct promise promises[] = {
    {"outputs stay until the next call, pushed", make_calls, {RANKS}, .value = AG_PUSH},
    {"outputs stay until the next call, pulled", make_calls, {RANKS}, .value = AG_PULL},
};

PROMISES_MAIN(RANKS *CHUNKS, 2 * 4096)
