/* Implements device_sets.h: buffer sets of dispatches on GPUs. */
#include "device_sets.h"

enum epa_status device_open_set_at(struct device *d, uint32_t set, const char *stage,
                                   struct epa_moe *m)
{
    struct device_set *s = &d->set[set];

    if (s->open)
        return device_fail(d, EPA_ERR_CONFIG, stage,
                           "%u dispatches are open, one per buffer set; combine one first",
                           d->sets);
    s->open = true;
    s->epoch = m->epoch = ++d->epoch;
    /* The addresses of the counts are known; the values exist after the kernel. */
    m->recv_count = s->recv_count;
    m->recv_start = s->recv_start;
    m->recv_row = NULL;
    m->recv_weight = NULL;
    m->recv_k = NULL;
    return EPA_OK;
}
