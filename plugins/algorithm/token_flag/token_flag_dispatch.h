/* The kernels of dispatch of token_flag. */
#ifndef TOKEN_FLAG_DISPATCH_H
#define TOKEN_FLAG_DISPATCH_H

#include "token_flag_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* Return kernels that take a struct tf_args. */
const void *tf_dispatch_send_kernel(enum device_input, bool profile);
const void *tf_dispatch_recv_kernel(bool profile);
#ifdef __cplusplus
}
#endif

#endif
