/* token_flag on hosts: a layer in parts of the tokens. */
#ifndef TOKEN_FLAG_LAYER_H
#define TOKEN_FLAG_LAYER_H

#include "token_flag_state.h"

/* The only stage of a layer. */
extern const struct epa_stage tf_layer[1];

/* Creates the experts and completes the algorithm for a layer. The algorithm's destroy() also frees
 * them after a failure. */
enum epa_status tf_layer_create(struct tf_host *, const struct epa_algorithm_params *,
                                struct epa_error *);

/* Returns the bytes of host memory that the experts take with this number of workers; 0: the experts
 * are synthetic. */
uint64_t tf_layer_bytes(const struct epa_moe *, const struct tf_layout *, uint32_t workers);

#endif
