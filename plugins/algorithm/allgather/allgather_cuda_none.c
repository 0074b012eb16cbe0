/* allgather where no compiler for CUDA was found: its descriptor names no CUDA memory, and
 * this says so to whoever asks all the same. */
#include "allgather.h"

enum epa_status ag_cuda_create(const struct epa_algorithm_params *p, const struct ag_layout *l,
                               struct epa_algorithm **out, struct epa_error *err)
{
    (void)p, (void)l, (void)out;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "allgather was built without CUDA; build where nvcc is found, or set "
                    "backend.name: host");
}
