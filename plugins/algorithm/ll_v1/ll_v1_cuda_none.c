/* ll_v1 where no compiler for CUDA was found: its descriptor names no CUDA memory, and this
 * says so to whoever asks all the same. */
#include "ll_v1.h"

enum epa_status v1_cuda_create(const struct epa_algorithm_params *p,
                               const struct v1_layout *l, struct epa_algorithm **out,
                               struct epa_error *err)
{
    (void)p, (void)l, (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "ll_v1 was built without CUDA; build where nvcc is found, or set "
                    "backend.name: host");
}
