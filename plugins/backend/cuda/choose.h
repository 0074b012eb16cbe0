/* Choice of the device of a rank. */
#ifndef CUDA_CHOOSE_H
#define CUDA_CHOOSE_H

#include "state.h"

/* Chooses a device. Errors: no driver, an old driver, fewer devices than ranks. Creates no
 * context. */
enum epa_status cuda_choose(const struct cuda_config *, const struct epa_world *,
                            struct cuda_place *out, struct epa_error *);

/* With `device` set: finds the ranks that selected the same GPU. Collective. Errors: several ranks
 * selected it without `share`. */
enum epa_status cuda_share(const struct cuda_config *, struct epa_bootstrap *, struct cuda_place *,
                           struct epa_error *);

/* Makes the device current for the thread. Errors: the device cannot run the kernels of this build,
 * or another program uses it exclusively. */
enum epa_status cuda_take(int device, struct epa_error *);

#endif
