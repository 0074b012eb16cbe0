/* An experiment in another world than its own, by arithmetic alone. */
#include <math.h>

#include "experiment/batch.h"
#include "op/op.h"

/* Plans for fewer ranks, half as many each time, until the algorithm takes them, and for half of
 * those; what a rank needs grows on from there in a line. False: it takes none. */
static bool plan_beyond(struct experiment *x, uint32_t flags, uint32_t *planned)
{
    struct experiment most = *x, half;
    struct epa_footprint *f = &x->footprint;
    struct epa_error ignored = {EPA_OK, ""};
    double steps;

    for (most.ranks = x->ranks / 2; most.ranks >= 4; most.ranks /= 2) {
        if (most.ranks_per_node > most.ranks)
            most.ranks_per_node = 0;
        half = most;
        half.ranks /= 2;
        if (half.ranks_per_node > half.ranks)
            half.ranks_per_node = 0;
        if (experiment_plan(&most, flags, &ignored) == EPA_OK &&
            experiment_plan(&half, flags, &ignored) == EPA_OK)
            break;
    }
    if (most.ranks < 4)
        return false;
    steps = (double)(x->ranks - most.ranks) / (most.ranks - half.ranks);
    *f = most.footprint;
    f->heap_bytes +=
        (uint64_t)(steps * fmax(0, (double)f->heap_bytes - (double)half.footprint.heap_bytes));
    f->private_bytes += (uint64_t)(steps * fmax(0, (double)f->private_bytes -
                                                       (double)half.footprint.private_bytes));
    f->device_bytes +=
        (uint64_t)(steps * fmax(0, (double)f->device_bytes - (double)half.footprint.device_bytes));
    *planned = most.ranks;
    return true;
}

enum epa_status experiment_resize(const struct experiment *from, uint32_t ranks,
                                  uint32_t ranks_per_node, struct diag *diag,
                                  struct experiment *out, uint32_t *planned)
{
    struct experiment x = *from;
    const struct config_check c = {&x, diag};
    const struct operation *op = operation_of_experiment(&x);
    const struct source_location nowhere = {.file = x.file};
    uint32_t flags = experiment_transport_flags(&x), before = diag_errors(diag);
    struct epa_error err = {EPA_OK, ""};

    *planned = x.ranks = ranks;
    x.ranks_per_node = ranks_per_node < ranks ? ranks_per_node : 0;
    if (x.ranks_per_node != 0 && (flags & EPA_TRANSPORT_NODES) == 0)
        flags = (flags & ~(uint32_t)EPA_TRANSPORT_LOAD_STORE) | EPA_TRANSPORT_NODES;
    if (x.ranks_per_node != 0 && ranks % ranks_per_node != 0)
        diag_error(diag, &nowhere, NULL, "ranks_per_node (%u) does not divide ranks (%u)",
                   ranks_per_node, ranks);
    op->check_options(&c);
    if (diag_errors(diag) == before && experiment_plan(&x, flags, &err) != EPA_OK &&
        !plan_beyond(&x, flags, planned))
        diag_error(diag, &nowhere, NULL, "%s", err.text);
    if (diag_errors(diag) != before)
        return EPA_ERR_CONFIG;
    *out = x;
    return EPA_OK;
}
