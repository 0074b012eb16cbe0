/* What gather.h declares. */
#include "op/gather.h"

#include <stdlib.h>

enum epa_status op_gather_alloc(struct op_gather *g, size_t n, void **out, struct epa_error *err)
{
    enum epa_status status;

    if (n == 0)
        return EPA_OK;
    status = g->backend->ops->alloc(g->backend, n, out);
    if (status == EPA_OK)
        return EPA_OK;
    g->backend->ops->explain(g->backend, err);
    return epa_fail(err, status, "no memory for the problem: %zu bytes", n);
}

void op_gather_free(struct op_gather *g, void *memory)
{
    if (memory != NULL)
        g->backend->ops->free(g->backend, memory);
}

void op_gather_destroy(struct op_gather *g)
{
    for (uint32_t i = 0; g->slot != NULL && i < g->n_slots; i++) {
        struct op_slot *s = &g->slot[i];

        if (s->counted != s->rows)
            free(s->counted);
        op_gather_free(g, s->rows);
        op_gather_free(g, s->in);
        op_gather_free(g, s->in_scale);
        op_gather_free(g, s->out);
    }
    free(g->slot);
    free(g->made);
    free(g);
}

enum epa_status op_gather_create(const struct op_params *p, const struct operation *operation,
                                 size_t state_bytes, size_t made_bytes, struct op_gather **out,
                                 struct epa_error *err)
{
    struct op_gather *g = calloc(1, state_bytes);
    size_t counts = p->world->size * sizeof(uint32_t);
    enum epa_status status = EPA_OK;

    if (g == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem");
    g->base.operation = operation;
    g->x = p->x;
    g->world = *p->world;
    g->backend = p->backend;
    g->n_slots = p->slots;
    g->slot = calloc(p->slots, sizeof(*g->slot));
    g->made = op_gather_is_host(g) ? NULL : malloc(made_bytes);
    if (g->slot == NULL || (!op_gather_is_host(g) && g->made == NULL))
        status = epa_fail(err, EPA_ERR_NOMEM, "no memory for the problem: %zu bytes", made_bytes);
    for (uint32_t i = 0; i < p->slots && status == EPA_OK; i++) {
        struct op_slot *s = &g->slot[i];
        void *rows = NULL;

        status = op_gather_alloc(g, counts, &rows, err);
        s->rows = rows;
        s->counted = op_gather_is_host(g) ? s->rows : malloc(counts);
        if (status == EPA_OK && s->counted == NULL)
            status = epa_fail(err, EPA_ERR_NOMEM, "no memory for counts of rows");
    }
    if (status != EPA_OK) {
        op_gather_destroy(g);
        return status;
    }
    *out = g;
    return EPA_OK;
}

enum epa_status op_gather_deliver(struct op_gather *g, void *there, size_t n)
{
    return op_gather_is_host(g) || n == 0 ? EPA_OK
                                          : g->backend->ops->write(g->backend, there, g->made, n);
}

enum epa_status op_gather_count(struct op_gather *g, uint32_t slot, uint64_t iteration,
                                uint32_t (*rows_of)(const struct experiment *, uint32_t rank,
                                                    uint64_t iteration))
{
    struct op_slot *s = &g->slot[slot];

    s->iteration = iteration;
    for (uint32_t r = 0; r < g->world.size; r++)
        s->counted[r] = rows_of(g->x, r, iteration);
    return op_gather_is_host(g) ? EPA_OK
                                : g->backend->ops->write(g->backend, s->rows, s->counted,
                                                         g->world.size * sizeof(*s->rows));
}

uint64_t op_gather_rows(const struct op_gather *g, const struct op_slot *s)
{
    uint64_t sum = 0;

    for (uint32_t r = 0; r < g->world.size; r++)
        sum += s->counted[r];
    return sum;
}

struct epa_problem *op_gather_problem(struct op_rank *rank, uint32_t slot)
{
    return &op_gather_of(rank)->slot[slot].problem;
}

uint32_t op_gather_units(struct op_rank *rank, uint32_t slot)
{
    const struct op_gather *g = op_gather_of(rank);

    return g->slot[slot].counted[g->world.rank];
}
