/* Writes received rows and lists of a dispatch to memory of the caller or of the moe. */
#ifndef API_MOE_DELIVER_H
#define API_MOE_DELIVER_H

#include "api/moe_form.h"
#include "api/moe_places.h"

/* Writes the rows of the view to x, and their scales to x_scale, at the places of the layout. x and
 * x_scale are dense. NULL: not written; x is not NULL if the receiver quantises. `work` has room
 * for the scales of two rows. EPA_ERR_SYSTEM: a scale is not a power of two although the form has
 * exponents. */
EPA_CHECKED enum epa_status moe_deliver_rows(const struct moe_places *, const struct moe_form *,
                                             const struct epa_moe *view, void *x, void *x_scale,
                                             float *work, struct epa_error *);

/* Lists of struct epa2a_received; NULL: not written. row, topk_idx and topk_weight are not NULL in the
 * layouts RANK. */
struct moe_lists {
    uint32_t *count;
    uint64_t *start;
    uint32_t *row;
    int32_t *topk_idx;
    float *topk_weight;
    int32_t *source_token;
    int64_t *source_range;
    uint32_t *host_count;
    int32_t *seen;
};
void moe_deliver_lists(const struct moe_places *, const struct moe_form *,
                       const struct epa_moe *view, const struct moe_lists *);

/* Copies expert outputs, [rows of the layout][hidden] of 16 bits, to the order of the view. */
void moe_gather_outputs(const struct moe_places *, uint32_t hidden, const void *y, void *to);

#endif
