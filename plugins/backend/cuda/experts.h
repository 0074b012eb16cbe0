/* Products of real experts on GPUs. */
#ifndef CUDA_EXPERTS_H
#define CUDA_EXPERTS_H

#include "state.h"

enum epa_status cuda_experts_create(struct epa_backend *, const struct epa_experts_params *,
                                    struct epa_experts **out, struct epa_error *);
enum epa_status cuda_experts_run(struct epa_experts *, const struct epa_moe *, void *y);
const char *cuda_experts_name(const struct epa_experts *);
void cuda_experts_destroy(struct epa_experts *);

#endif
