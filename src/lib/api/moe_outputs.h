/* Memory for outputs of dispatch. */
#ifndef API_MOE_OUTPUTS_H
#define API_MOE_OUTPUTS_H

#include "api/moe_state.h"

/* Returns the bytes of an array at full capacity. */
size_t moe_outputs_bytes(const struct moe_plan *, enum moe_array);

/* Allocates the arrays that the caller did not provide. `got` is the struct of the caller; arrays
 * of this moe count as not provided. Called before any data are sent. */
EPA_CHECKED enum epa_status moe_outputs_prepare(struct epa2a_moe *, const struct moe_form *,
                                                struct moe_record *, struct epa2a_received *got,
                                                struct epa_error *);
/* Fills the arrays from the view of the record, and sets pointers and strides. */
EPA_CHECKED enum epa_status moe_outputs_fill(struct epa2a_moe *, const struct moe_input *,
                                             struct moe_record *, struct epa2a_received *got,
                                             struct epa_error *);
void moe_outputs_free(struct moe_record *);

#endif
