/* The kernels of combine of token_flag. */
#ifndef TOKEN_FLAG_COMBINE_KERNELS_H
#define TOKEN_FLAG_COMBINE_KERNELS_H

#include "token_flag_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Return kernels that take a struct tf_args. */
const void *tf_combine_send_kernel(enum tf_output, bool f16, bool profile);
const void *tf_combine_recv_kernel(bool f16, bool profile);
#ifdef __cplusplus
}
#endif

#endif
