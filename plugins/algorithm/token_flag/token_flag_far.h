/* The kernel for ranks of other nodes of token_flag. */
#ifndef TOKEN_FLAG_FAR_H
#define TOKEN_FLAG_FAR_H

#include "token_flag_device.h"

#ifdef __cplusplus
extern "C" {
#endif
/* For a sending stage: puts the data that its kernel has stored for other nodes. For a receiving
 * stage: waits for the data of other nodes. */
struct device_far tf_far(void);
#ifdef __cplusplus
}
#endif

#endif
