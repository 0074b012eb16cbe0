/* Kernels fail long after the call that queued them, and name no tensor. So each call checks the
 * addresses before any data are sent. */
#include "api/alignment.h"

#include <stdint.h>

enum { NATIVE = sizeof(uint16_t) }; /* bytes of an element of dtype */

enum epa_status alignment_check(const struct tensor *list, size_t n, struct epa_error *err)
{
    for (size_t i = 0; i < n; i++)
        if (((uintptr_t)list[i].at & (list[i].alignment - 1)) != 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s is at %p; the address must be a multiple of %zu bytes: move the "
                            "tensor, or copy the tensor to memory of epa2a_comm_alloc()",
                            list[i].name, list[i].at, list[i].alignment);
    return EPA_OK;
}

enum epa_status alignment_check_tokens(const struct epa2a_tokens *t, uint32_t hidden, bool cuda,
                                       struct epa_error *err)
{
    size_t element = t->x_scale != NULL ? 1 : NATIVE;
    bool dense = t->x_stride == 0 || t->x_stride == hidden * element;
    const struct tensor list[] = {
        /* Rows with gaps are copied to dense rows first. */
        {"x", t->tokens != 0 ? t->x : NULL, dense ? alignment_of_rows(cuda, element) : element},
        {"x_scale", t->x_scale, sizeof(*t->x_scale)},
        {"topk_idx", t->topk_idx, (size_t)t->topk_idx_bytes},
        {"topk_weight", t->topk_weight, sizeof(*t->topk_weight)},
        {"seen", t->seen, sizeof(*t->seen)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}

enum epa_status alignment_check_choices(const void *topk_idx, struct epa_error *err)
{
    return alignment_check(&(struct tensor){"topk_idx", topk_idx, sizeof(int64_t)}, 1, err);
}

enum epa_status alignment_check_received(const struct epa2a_received *r, bool cuda,
                                         struct epa_error *err)
{
    const struct tensor list[] = {
        {"x", r->x, alignment_of_rows(cuda, 1)}, /* hosts copy bytes */
        {"x_scale", r->x_scale, sizeof(float)},
        {"count", r->count, sizeof(*r->count)},
        {"start", r->start, sizeof(*r->start)},
        {"row", r->row, sizeof(*r->row)},
        {"topk_idx", r->topk_idx, sizeof(*r->topk_idx)},
        {"topk_weight", r->topk_weight, sizeof(*r->topk_weight)},
        {"source_token", r->source_token, sizeof(*r->source_token)},
        {"source_range", r->source_range, sizeof(*r->source_range)},
        {"y", r->y, alignment_of_rows(cuda, NATIVE)},
        {"host_count", r->host_count, sizeof(*r->host_count)},
        {"routing", r->routing, sizeof(uint64_t)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}

enum epa_status alignment_check_outputs(const struct epa2a_outputs *o, const void *y, bool cuda,
                                        struct epa_error *err)
{
    size_t bias = cuda ? 2 * NATIVE : NATIVE; /* a kernel adds two elements at once */
    size_t index = o->topk_idx_bytes == sizeof(int64_t) ? sizeof(int64_t) : sizeof(int32_t);
    const struct tensor list[] = {
        {"y", y, alignment_of_rows(cuda, NATIVE)},
        {"topk_idx", o->topk_idx, index},
        {"topk_weight", o->topk_weight, sizeof(*o->topk_weight)},
        {"bias[0]", o->bias[0], bias},
        {"bias[1]", o->bias[1], bias},
        {"out", o->out, alignment_of_rows(cuda, NATIVE)},
        {"out_weight", o->out_weight, sizeof(*o->out_weight)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}

enum epa_status alignment_check_experts(const struct epa2a_experts *e, bool cuda,
                                        struct epa_error *err)
{
    size_t element = e->dtype == EPA2A_FP8_E4M3 || e->dtype == EPA2A_INT8 ? 1 : NATIVE;
    const struct tensor list[] = {
        {"up", e->up, alignment_of_rows(cuda, element)},
        {"down", e->down, alignment_of_rows(cuda, element)},
        {"up_scale", e->up_scale, sizeof(*e->up_scale)},
        {"down_scale", e->down_scale, sizeof(*e->down_scale)},
    };

    return alignment_check(list, sizeof(list) / sizeof(list[0]), err);
}
