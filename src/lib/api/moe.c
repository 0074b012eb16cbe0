/* The functions of epa2a.h for dispatch and combine: checks of structs and of the order of half
 * calls, creation with the plugins that options select, and the status of the comm. */
#include <epa2a.h>

#include <stdlib.h>
#include <string.h>

#include "api/alignment.h"
#include "api/comm.h"
#include "api/error.h"
#include "api/moe_combine.h"
#include "api/moe_create.h"
#include "api/moe_device.h"
#include "api/moe_dispatch.h"
#include "api/moe_open.h"
#include "api/moe_plan.h"
#include "api/shape.h"
#include "api/struct_size.h"
#include "ep/ep_explain.h"

/* ---- plan ---- */

/* Selects the plugins for a shape and plans the algorithm. The caller frees the choice, also after
 * a failure. */
static enum epa_status plan_moe(struct epa2a_comm *comm, const struct epa2a_moe_shape *from,
                                struct choice *choice, struct moe_plan *out, struct epa_error *err)
{
    const struct epa_world *world = &comm->boot->world;
    char preset[MOE_PRESET_ROOM];
    struct epa2a_moe_shape shape;
    struct selection selection;
    struct epa_moe moe;
    enum epa_status status = shape_read(from, world->size, &shape, &moe, err);

    if (status != EPA_OK)
        return status;
    moe_plan_preset(&shape, comm_is_cuda(comm), preset, sizeof(preset));
    status = comm_choose(comm, EPA_OP_MOE, false, shape.options, preset, choice, err);
    if (status != EPA_OK)
        return status;
    selection = choice_selection(choice);
    return moe_plan_make(&shape, &moe, &choice->algorithm, world, selection_flags(&selection), out,
                         err);
}

/* The same before a comm exists: for ranks of one host. */
static enum epa_status plan_alone(struct registry *registry, uint32_t ranks, int32_t device,
                                  const struct epa2a_moe_shape *from, struct choice *choice,
                                  struct moe_plan *out, struct epa_error *err)
{
    const struct epa_world world = {.size = ranks, .local_size = ranks, .local_cores = ranks};
    char preset[MOE_PRESET_ROOM];
    struct epa2a_moe_shape shape;
    struct selection selection;
    struct epa_moe moe;
    enum epa_status status;

    if (ranks == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "epa2a_moe_need without comm: ranks is 0; pass the number of ranks");
    status = shape_read(from, ranks, &shape, &moe, err);
    if (status != EPA_OK)
        return status;
    moe_plan_preset(&shape, device != EPA2A_HOST, preset, sizeof(preset));
    status = choose(
        registry,
        &(struct choose_params){
            .cuda = device != EPA2A_HOST,
            .device = (uint32_t)device,
            .op = EPA_OP_MOE,
            .source = (const struct choose_source[]){{.name = "options", .text = shape.options},
                                                     {.name = "EPA2A_OPTIONS",
                                                      .text = secure_getenv("EPA2A_OPTIONS"),
                                                      .shared = true}},
            .sources = 2,
            .preset = preset},
        choice, err);
    if (status != EPA_OK)
        return status;
    selection = choice_selection(choice);
    return moe_plan_make(&shape, &moe, &choice->algorithm, &world, selection_flags(&selection), out,
                         err);
}

/* Fills the struct of the caller. The name of the algorithm may belong to a plugin that is unloaded
 * before the caller reads it, so each thread keeps a copy. */
static enum epa_status write_need(const struct moe_plan *plan, bool cuda, struct epa2a_need *to,
                                  struct epa_error *err)
{
    static _Thread_local char name[64];
    struct epa2a_need need;
    enum epa_status status = struct_read(&need, sizeof(need), to, "epa2a_need", err);

    if (status != EPA_OK)
        return status;
    moe_plan_need(plan, cuda, &need);
    snprintf(name, sizeof(name), "%s", need.algorithm);
    need.algorithm = name;
    struct_write(to, &need, sizeof(need));
    return EPA_OK;
}

int epa2a_moe_need(struct epa2a_comm *comm, uint32_t ranks, int32_t device,
                   const struct epa2a_moe_shape *shape, struct epa2a_need *out)
{
    struct epa_error err = {EPA_OK, ""};
    struct registry *registry = NULL;
    struct choice choice = {.threads = 0};
    struct moe_plan plan;
    bool cuda;
    enum epa_status status =
        comm != NULL
            ? comm_enter(comm, "epa2a_moe_need", &err)
            : registry_create(&(struct registry_params){.plugin_path = NULL}, &registry, &err);

    if (status != EPA_OK)
        return api_fail(&err);
    cuda = comm != NULL ? comm_is_cuda(comm) : device != EPA2A_HOST;
    status = comm != NULL ? plan_moe(comm, shape, &choice, &plan, &err)
                          : plan_alone(registry, ranks, device, shape, &choice, &plan, &err);
    if (status == EPA_OK && cuda)
        status = moe_device_check(&plan, &err);
    if (status == EPA_OK)
        status = write_need(&plan, cuda, out, &err);
    choice_free(&choice);
    if (comm != NULL)
        return comm_leave(comm, status, &err);
    registry_destroy(registry);
    return status == EPA_OK ? EPA2A_OK : api_fail(&err);
}

/* ---- creation ---- */

/* Numbers of a shape that must be equal on all ranks. */
enum { SHAPE_NUMBERS = 10 };
static const char *const number_names[SHAPE_NUMBERS] = {
    "max_tokens", "hidden", "experts",   "topk",      "dtype",
    "recv_dtype", "layout", "fp8_group", "in_flight", "the plan of the options",
};

static void list_numbers(const struct moe_plan *p, uint64_t out[SHAPE_NUMBERS])
{
    const struct epa2a_moe_shape *s = &p->shape;
    const struct epa_footprint *f = &p->footprint;
    const uint64_t list[SHAPE_NUMBERS] = {
        s->max_tokens,       s->hidden,
        s->experts,          s->topk,
        (uint64_t)s->dtype,  (uint64_t)s->recv_dtype,
        (uint64_t)s->layout, s->fp8_group,
        s->in_flight,        f->heap_bytes ^ (uint64_t)f->signals << 48,
    };

    memcpy(out, list, sizeof(list));
}

/* Checks that all ranks pass the same shape. Collective. */
static enum epa_status compare_shapes(struct epa2a_comm *comm, const struct moe_plan *plan,
                                      struct epa_error *err)
{
    struct epa_bootstrap *boot = comm->boot;
    uint32_t ranks = boot->world.size;
    uint64_t mine[SHAPE_NUMBERS], *all = calloc(ranks, sizeof(mine));
    enum epa_status status = comm_agree(
        comm, all != NULL ? EPA_OK : epa_fail(err, EPA_ERR_NOMEM, "no memory for shapes"), err);

    if (status == EPA_OK) {
        list_numbers(plan, mine);
        status = ep_explain_boot(&comm->ep, boot->allgather(boot, mine, sizeof(mine), all), err);
    }
    for (uint32_t i = 0; status == EPA_OK && i < ranks * SHAPE_NUMBERS; i++) {
        uint32_t n = i % SHAPE_NUMBERS;

        if (all[i] != all[n])
            status =
                epa_fail(err, EPA_ERR_CONFIG,
                         "the shapes of the ranks differ: %s is %llu on rank 0 and %llu on rank "
                         "%u; pass the same shape and options on all ranks",
                         number_names[n], (unsigned long long)all[n], (unsigned long long)all[i],
                         i / SHAPE_NUMBERS);
    }
    free(all);
    return status;
}

static enum epa_status create_moe(struct epa2a_comm *comm, const struct epa2a_moe_shape *shape,
                                  struct epa2a_moe **out, struct epa_error *err)
{
    struct choice choice = {.threads = 0};
    struct epa2a_moe *moe = NULL;
    struct moe_plan plan;
    enum epa_status status = plan_moe(comm, shape, &choice, &plan, err);

    if (status == EPA_OK && comm_is_cuda(comm))
        status = moe_device_check(&plan, err);
    if (status == EPA_OK)
        status = moe_make(&plan, comm->ep.backend, &moe, err);
    status = comm_agree(comm, status, err);
    if (status == EPA_OK)
        status = compare_shapes(comm, &plan, err);
    if (status == EPA_OK)
        status = comm_take_heap(comm, plan.footprint.heap_bytes, &moe->heap, err);
    status = comm_agree(comm, status, err);
    if (status != EPA_OK) {
        moe_free(moe);
        choice_free(&choice);
        return status;
    }
    moe->comm = comm;
    moe->choice = choice;
    *out = moe;
    return moe_open(moe, &comm->ep,
                    &(struct ep_transport_params){.transport = choice.transport,
                                                  .between = choice.between,
                                                  .heap = moe->heap},
                    err);
}

static void destroy_moe(struct epa2a_moe *moe)
{
    struct epa2a_comm *comm = moe->comm;
    struct choice choice = moe->choice;
    uint64_t bytes = moe->plan.footprint.heap_bytes;
    void *heap = moe->heap;

    moe_free(moe);
    choice_free(&choice);
    comm_give_heap(comm, heap, bytes);
}

int epa2a_moe_create(struct epa2a_comm *comm, const struct epa2a_moe_shape *shape,
                     struct epa2a_moe **out)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_moe *moe = NULL;
    enum epa_status status = comm_enter(comm, "epa2a_moe_create", &err);

    if (status != EPA_OK)
        return api_fail(&err);
    if (comm_is_cuda(comm))
        status = comm_agree(comm, comm_check_capture(comm, &err), &err);
    if (status == EPA_OK)
        status = create_moe(comm, shape, &moe, &err);
    /* No rank may dispatch before all ranks have cleared their flags. */
    status = comm_agree(comm, status, &err);
    if (status == EPA_OK)
        *out = moe;
    else if (moe != NULL)
        destroy_moe(moe);
    return comm_leave(comm, status, &err);
}

void epa2a_moe_destroy(struct epa2a_moe *moe)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_comm *comm;
    enum epa_status status;
    bool entered;

    if (moe == NULL)
        return;
    comm = moe->comm;
    status = comm_enter(comm, "epa2a_moe_destroy", &err);
    if (status != EPA_OK && status != EPA_ERR_ABORTED) { /* another thread is in a call */
        (void)api_fail(&err);
        return;
    }
    entered = status == EPA_OK;
    if (entered) /* other ranks may still read the heap of this rank, and its kernels theirs */
        status = comm_agree(comm, ep_comm_finish(&comm->ep, &err), &err);
    if (status != EPA_OK)
        comm_stop(comm);
    destroy_moe(moe);
    if (entered)
        (void)comm_leave(comm, status, &err);
    else
        ep_comm_end(&comm->ep);
}

/* ---- half calls ---- */

static const char *const half_names[] = {
    [MOE_WHOLE] = "", [MOE_DISPATCH_SENT] = "dispatch", [MOE_COMBINE_SENT] = "combine"};

/* Checks that the open half call is `half`, or that none is open for MOE_WHOLE. */
static enum epa_status check_half(const struct epa2a_moe *moe, enum moe_half half,
                                  struct epa_error *err)
{
    if (moe->half == half)
        return EPA_OK;
    if (moe->half == MOE_WHOLE)
        return epa_fail(err, EPA_ERR_CONFIG, "no %s is open; call epa2a_%s_send() first",
                        half_names[half], half_names[half]);
    return epa_fail(err, EPA_ERR_CONFIG, "a %s is open; call epa2a_%s_recv() first",
                    half_names[moe->half], half_names[moe->half]);
}

/* Begins a call of a moe with the open half call `half`. */
static enum epa_status enter(struct epa2a_moe *moe, const char *call, enum moe_half half,
                             void *stream, struct epa_error *err)
{
    enum epa_status status;

    if (moe == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: the moe is NULL", call);
    status = comm_enter_stream(moe->comm, call, stream, err);
    if (status != EPA_OK)
        return status;
    status = check_half(moe, half, err);
    if (status != EPA_OK)
        (void)comm_leave(moe->comm, status, err);
    return status;
}

/* ---- dispatch ---- */

/* Runs the halves of a dispatch that `which` has: bit 0 send, bit 1 recv. */
enum { SEND = 1, RECV = 2 };

static int run_dispatch(struct epa2a_moe *moe, const char *call, int which, bool again,
                        const struct epa2a_tokens *tokens, struct epa2a_received *to, void *stream)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_received got;
    enum epa_status status =
        enter(moe, call, (which & SEND) != 0 ? MOE_WHOLE : MOE_DISPATCH_SENT, stream, &err);

    if (status != EPA_OK)
        return api_fail(&err);
    status = struct_read(&got, sizeof(got), to, "epa2a_received", &err);
    if (status == EPA_OK)
        status = alignment_check_received(&got, moe->device != NULL, &err);
    if (status == EPA_OK && (which & SEND) != 0)
        status = moe->device != NULL ? moe_device_dispatch_send(moe, tokens, &got, again, &err)
                                     : moe_dispatch_send(moe, tokens, &got, again, &err);
    if (status == EPA_OK && (which & RECV) != 0)
        status = moe->device != NULL ? moe_device_dispatch_recv(moe, &got, &err)
                                     : moe_dispatch_recv(moe, &got, &err);
    if (status == EPA_OK)
        struct_write(to, &got, sizeof(got));
    return comm_leave(moe->comm, status, &err);
}

int epa2a_dispatch(struct epa2a_moe *moe, const struct epa2a_tokens *tokens,
                   struct epa2a_received *got, void *stream)
{
    return run_dispatch(moe, "epa2a_dispatch", SEND | RECV, false, tokens, got, stream);
}

int epa2a_dispatch_send(struct epa2a_moe *moe, const struct epa2a_tokens *tokens,
                        struct epa2a_received *got, void *stream)
{
    return run_dispatch(moe, "epa2a_dispatch_send", SEND, false, tokens, got, stream);
}

int epa2a_dispatch_recv(struct epa2a_moe *moe, struct epa2a_received *got, void *stream)
{
    return run_dispatch(moe, "epa2a_dispatch_recv", RECV, false, NULL, got, stream);
}

int epa2a_dispatch_again(struct epa2a_moe *moe, const struct epa2a_tokens *tokens,
                         struct epa2a_received *got, void *stream)
{
    return run_dispatch(moe, "epa2a_dispatch_again", SEND | RECV, true, tokens, got, stream);
}

int epa2a_discard(struct epa2a_moe *moe, const struct epa2a_received *from)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_received got;
    enum epa_status status = enter(moe, "epa2a_discard", MOE_WHOLE, NULL, &err);

    if (status != EPA_OK)
        return api_fail(&err);
    status = struct_read(&got, sizeof(got), from, "epa2a_received", &err);
    if (status == EPA_OK)
        status = moe->device != NULL ? moe_device_discard(moe, &got, &err)
                                     : moe_open_discard(moe, &got, &err);
    return comm_leave(moe->comm, status, &err);
}

/* ---- combine ---- */

static int run_combine(struct epa2a_moe *moe, const char *call, int which,
                       const struct epa2a_received *from, const struct epa2a_outputs *outputs,
                       void *stream)
{
    struct epa_error err = {EPA_OK, ""};
    struct epa2a_received got;
    struct epa2a_outputs o;
    enum epa_status status =
        enter(moe, call, (which & SEND) != 0 ? MOE_WHOLE : MOE_COMBINE_SENT, stream, &err);

    if (status != EPA_OK)
        return api_fail(&err);
    status = struct_read(&got, sizeof(got), from, "epa2a_received", &err);
    if (status == EPA_OK && (which & SEND) != 0)
        status = struct_read(&o, sizeof(o), outputs, "epa2a_outputs", &err);
    if (status == EPA_OK && (which & SEND) != 0)
        status = alignment_check_outputs(&o, o.y != NULL ? o.y : got.y, moe->device != NULL, &err);
    if (status == EPA_OK && (which & SEND) != 0)
        status = moe->device != NULL ? moe_device_combine_send(moe, &got, &o, &err)
                                     : moe_combine_send(moe, &got, &o, &err);
    if (status == EPA_OK && (which & RECV) != 0)
        status =
            moe->device != NULL ? moe_device_combine_recv(moe, &err) : moe_combine_recv(moe, &err);
    return comm_leave(moe->comm, status, &err);
}

int epa2a_combine(struct epa2a_moe *moe, const struct epa2a_received *got,
                  const struct epa2a_outputs *outputs, void *stream)
{
    return run_combine(moe, "epa2a_combine", SEND | RECV, got, outputs, stream);
}

int epa2a_combine_send(struct epa2a_moe *moe, const struct epa2a_received *got,
                       const struct epa2a_outputs *outputs, void *stream)
{
    return run_combine(moe, "epa2a_combine_send", SEND, got, outputs, stream);
}

int epa2a_combine_recv(struct epa2a_moe *moe, const struct epa2a_received *got, void *stream)
{
    return run_combine(moe, "epa2a_combine_recv", RECV, got, NULL, stream);
}

int epa2a_test(struct epa2a_moe *moe)
{
    struct epa_error err = {EPA_OK, ""};
    enum epa_status status =
        enter(moe, "epa2a_test", moe != NULL ? moe->half : MOE_WHOLE, NULL, &err);

    if (status != EPA_OK)
        return api_fail(&err);
    if (moe->half == MOE_WHOLE)
        status = epa_fail(&err, EPA_ERR_CONFIG,
                          "no half call is open; call epa2a_dispatch_send() or "
                          "epa2a_combine_send() first");
    else
        status = moe_progress(moe, &err);
    return comm_leave(moe->comm, status, &err);
}
