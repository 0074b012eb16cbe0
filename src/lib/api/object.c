/* An algorithm of a comm. */
#include "api/object.h"

#include <stdlib.h>
#include <string.h>

#include "api/error.h"
#include "ep/ep_explain.h"

/* Values that must be equal on all ranks, exchanged before the transport opens. */
struct digest {
    uint64_t hash, heap_bytes;
};

/* FNV-1a. */
static uint64_t hash_bytes(uint64_t hash, const void *bytes, size_t n)
{
    const unsigned char *byte = bytes;

    for (size_t i = 0; i < n; i++)
        hash = (hash ^ byte[i]) * UINT64_C(0x100000001b3);
    return hash;
}

static uint64_t hash_number(uint64_t hash, uint64_t number)
{
    return hash_bytes(hash, &number, sizeof(number));
}

static uint64_t hash_moe(uint64_t hash, const struct epa_moe *m)
{
    const uint64_t moe[] = {
        m->max_tokens,         m->hidden,          m->experts, m->topk,
        m->fp8_group_size,     (uint64_t)m->dtype, m->mlp.ffn, (uint64_t)m->mlp.activation,
        (uint64_t)m->mlp.dtype};

    return hash_bytes(hash, moe, sizeof(moe));
}

static uint64_t hash_ag_gemm(uint64_t hash, const struct epa_ag_gemm *g)
{
    const uint64_t gemm[] = {g->max_rows, g->max_n, g->k, (uint64_t)g->dtype, g->bias, g->out_fp8};

    return hash_bytes(hash, gemm, sizeof(gemm));
}

/* Hashes the shape of the problem and the name of the algorithm. */
static uint64_t hash_problem(const struct object *o, const struct epa_problem *p)
{
    const char *name = o->choice.algorithm.plugin->name;
    uint64_t hash = hash_number(UINT64_C(0xcbf29ce484222325), p->op);

    hash = hash_bytes(hash, name, strlen(name));
    hash = p->op == EPA_OP_MOE ? hash_moe(hash, &p->u.moe) : hash_ag_gemm(hash, &p->u.ag_gemm);
    return hash_number(hash, o->footprint.signals);
}

static enum epa_status compare_ranks(const struct object *o, const struct epa_problem *problem,
                                     struct epa_error *err)
{
    struct epa_bootstrap *boot = o->comm->boot;
    struct digest mine = {hash_problem(o, problem), o->footprint.heap_bytes};
    struct digest *all = calloc(boot->world.size, sizeof(*all));
    enum epa_status status;

    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory to compare the shapes of the ranks");
    status = ep_explain_boot(&o->comm->ep, boot->allgather(boot, &mine, sizeof(mine), all), err);
    for (uint32_t r = 0; r < boot->world.size && status == EPA_OK; r++)
        if (memcmp(&all[r], &all[0], sizeof(all[r])) != 0)
            status = epa_fail(err, EPA_ERR_CONFIG,
                              "rank %u passed another shape or other options than rank 0", r);
    free(all);
    return status;
}

enum epa_status object_plan(struct object *o, struct epa2a_comm *comm,
                            const struct object_params *p, const struct epa_problem *problem,
                            struct epa_error *err)
{
    struct selection selection;
    enum epa_status status =
        comm_choose(comm, p->op, p->layer, p->options, p->preset, &o->choice, err);

    o->comm = comm;
    if (status != EPA_OK)
        return status;
    selection = choice_selection(&o->choice);
    o->transport_flags = selection_flags(&selection);
    status = ep_plan(&o->choice.algorithm, problem, &comm->boot->world, o->transport_flags,
                     &o->footprint, err);
    if (status != EPA_OK)
        return status;
    return selection_check_workers(&selection, comm->choice.backend.config, &o->footprint, err);
}

enum epa_status object_open(struct object *o, const struct epa_problem *problem,
                            struct epa_error *err)
{
    struct ep_transport_params t = {.transport = o->choice.transport,
                                    .between = o->choice.between,
                                    .heap_bytes = o->footprint.heap_bytes,
                                    .signals = o->footprint.signals};
    enum epa_status status = compare_ranks(o, problem, err);

    if (status == EPA_OK)
        status = comm_take_heap(o->comm, t.heap_bytes, &t.heap, err);
    if (status != EPA_OK)
        return status;
    o->heap = t.heap;
    o->heap_bytes = t.heap_bytes;
    if (t.heap != NULL) { /* the transport clears only memory that it allocates */
        struct epa_backend *b = o->comm->ep.backend;

        status = b->ops->fill(b, t.heap, 0, t.heap_bytes);
        if (status != EPA_OK)
            b->ops->explain(b, err);
    }
    if (status == EPA_OK)
        status = ep_open(&o->ep, &o->comm->ep, &t, err);
    if (status != EPA_OK)
        return status;
    status = ep_create(&o->ep,
                       &(struct ep_algorithm_params){.algorithm = o->choice.algorithm,
                                                     .problem = problem,
                                                     .transport_flags = o->transport_flags,
                                                     .footprint = &o->footprint},
                       err);
    if (o->ep.algorithm != NULL)
        ep_add_algorithm(o->ep.comm, o->ep.algorithm);
    return status;
}

void object_free(struct object *o)
{
    if (o->ep.algorithm != NULL)
        ep_remove_algorithm(o->ep.comm, o->ep.algorithm);
    ep_destroy(&o->ep);
    ep_close(&o->ep);
    if (o->heap_bytes != 0)
        comm_give_heap(o->comm, o->heap, o->heap_bytes);
    choice_free(&o->choice);
    *o = (struct object){0};
}

void object_destroy(struct object *o, const char *call, void (*free_owner)(void *), void *owner)
{
    struct epa2a_comm *comm = o->comm;
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status = comm_enter(comm, call, &err);
    bool entered = status == EPA_OK;

    if (!entered && status != EPA_ERR_ABORTED) {
        (void)api_fail(&err);
        return;
    }
    /* Kernels of this rank may still access the heaps of the other ranks. */
    if (entered)
        status = comm_agree(comm, ep_comm_finish(&comm->ep, &err), &err);
    if (status != EPA_OK)
        comm_stop(comm);
    free_owner(owner);
    if (entered)
        (void)comm_leave(comm, status, &err);
    else
        ep_comm_end(&comm->ep);
}

enum epa_status object_stage_status(enum epa_status status, struct epa_error *err)
{
    switch (status) {
    case EPA_ERR_CONFIG:
    case EPA_ERR_UNSUPPORTED:
    case EPA_ERR_NOMEM:
    case EPA_ERR_MISMATCH:
        return err->status = EPA_ERR_SYSTEM;
    default:
        return status;
    }
}

enum epa_status object_call(struct object *o, const struct epa_stage *stage,
                            struct epa_problem *problem, struct epa_error *err)
{
    return object_stage_status(ep_call(&o->ep, stage, problem, err), err);
}
