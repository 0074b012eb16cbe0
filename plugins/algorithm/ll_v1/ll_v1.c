/* ll_v1: descriptor, options and footprint, for hosts and GPUs. */
#include "ll_v1_cuda.h"
#include "ll_v1_host.h"
#include "ll_v1_layout.h"

#include "../../common/algo_host.h"

static const struct v1_config defaults = {
    .dispatch_dtype = ALGO_DTYPE_FP8,
    .exchange = V1_EXCHANGE_AUTO,
    .buffers = 2,
    .nontemporal = ALGO_NONTEMPORAL_AUTO,
    .pdl = true,
};

static const struct epa_choice exchanges[] = {
    {"auto", V1_EXCHANGE_AUTO, "hosts pull; GPUs push if there are few tokens"},
    {"pull", V1_EXCHANGE_PULL,
     "the receiver loads rows and expert outputs to their "
     "final position"},
    {"push", V1_EXCHANGE_PUSH, "the sender stores blocks in the receiver's buffers"},
    {0},
};

static const struct epa_option options[] = {
    ALGO_OPTION_DISPATCH_DTYPE(struct v1_config),
    {.name = "exchange",
     EPA_CHOICE(struct v1_config, exchange),
     .choices = exchanges,
     .help = "direction of transfers between ranks in load/store reach; GPUs always push "
             "rows",
     .tune = "*"},
    ALGO_OPTION_BUFFERS(struct v1_config),
    ALGO_OPTION_CAPACITY(struct v1_config, "rows from one rank to another"),
    ALGO_OPTION_NONTEMPORAL(struct v1_config, algo_nontemporal_choices,
                            "stores that write received rows and sums"),
    ALGO_OPTION_PDL(struct v1_config),
    ALGO_OPTION_BLOCKS(struct v1_config),
    {0},
};

/* Channels of the last part of a row. */
static uint32_t last_part(const struct v1_layout *l)
{
    return l->hidden - (l->units - 1) * l->unit_channels;
}

static const char *const stage_names[] = {"dispatch", "combine", NULL};

static enum epa_status plan_ll_v1(const struct epa_problem *problem, const struct epa_world *world,
                                  uint32_t transport_flags, const void *config,
                                  struct epa_footprint *out, struct epa_error *err)
{
    const struct epa_moe *m = &problem->u.moe;
    struct v1_layout l;
    enum epa_status status = v1_layout_make(m, world, transport_flags, config, &l, err);

    if (status != EPA_OK)
        return status;
    *out = (struct epa_footprint){
        .heap_bytes = l.heap_bytes,
        .device_bytes =
            V1_CUDA_MEMORY != 0 && l.device
                ? v1_cuda_bytes(&l) +
                      (l.puts ? algo_mirrors_bytes(l.heap_bytes, V1_MODES * V1_POSITIONS * l.size,
                                                   world->size - world->local_size)
                              : 0)
                : 0,
        .signals = (V1_MODES * V1_POSITIONS + (l.device ? 0 : ALGO_WAYS)) * l.size,
        .stages = stage_names,
        .u.moe.recv_rows = l.rows,
        .u.moe.recv_entries = l.rows,
        .u.moe.layout = EPA_LAYOUT_EXPERT,
        .u.moe.recv_dtype = l.fp8 ? EPA_FP8_E4M3 : (enum epa_dtype)m->dtype,
        .u.moe.sum = EPA_SUM_ORDERED,
        .u.moe.output_dtype = (enum epa_dtype)m->dtype,
        .u.moe.late_choices = !l.device,
        .in_flight = l.buffers,
        .discards = true,
        .combines_again = true,
        .u.moe.dispatch_row_bytes =
            l.row_bytes + l.scales_bytes + 4, /* and the index of its token */
        .u.moe.dispatch_token_bytes = l.token_bytes,
        .u.moe.combine_row_bytes = l.output_bytes,
        .u.moe.combine_token_bytes = l.output_bytes,
        .u.moe.control_bytes = (l.local + 1) * 4 + V1_MODES * 8,
    };
    if (l.device) {
        out->u.moe.dispatch_staged = true;
        out->u.moe.combine_staged = !l.pull;
        out->u.moe.dispatch_row_bytes =
            (uint64_t)(l.units - 1) * l.unit_bytes + part_bytes(&l, last_part(&l));
        out->u.moe.control_bytes =
            l.split_words * 4 + 8 + (l.pull ? l.local * sizeof(uint32_t) : 0); /* starts */
    }
    if (l.device && !l.pull)
        out->u.moe.combine_row_bytes = l.sent_bytes;
    return EPA_OK;
}

static enum epa_status create_ll_v1(const struct epa_algorithm_params *p,
                                    struct epa_algorithm **out, struct epa_error *err)
{
    struct v1_layout l;
    enum epa_status status =
        v1_layout_make(&p->problem->u.moe, &p->world, p->transport_flags, p->config, &l, err);

    if (status != EPA_OK)
        return status;
    /* v1_cuda_create() exists only in builds with nvcc. */
    return V1_CUDA_MEMORY != 0 && p->backend->memory == EPA_MEMORY_CUDA
               ? v1_cuda_create(p, &l, out, err)
               : v1_host_create(p, &l, out, err);
}

EPA_PLUGIN_EXPORT
const struct epa_algorithm_plugin epa_plugin = {
    .plugin = {EPA_PLUGIN_HEADER(EPA_PLUGIN_ALGORITHM, struct epa_algorithm_plugin),
               .name = "ll_v1",
               .summary = "low-latency all-to-all: tokens sorted by expert, a block to each "
                          "rank",
               .options = {options, sizeof(struct v1_config), &defaults}},
    .op = EPA_OP_MOE,
    .memory = EPA_MEMORY_HOST | V1_CUDA_MEMORY,
    .needs_host = EPA_TRANSPORT_HOST,
    .needs_cuda = EPA_TRANSPORT_DEVICE,
    .plan = plan_ll_v1,
    .create = create_ll_v1,
};
