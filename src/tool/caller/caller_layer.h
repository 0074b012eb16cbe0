/* Complete layers of the public interface as an algorithm. */
#ifndef CALLER_LAYER_H
#define CALLER_LAYER_H

#include "caller/caller_state.h"

/* Creates the object. Collective. After a failure *out has the partial object, which its destroy()
 * frees. */
enum epa_status caller_layer_create(struct caller *, const struct op_rank *,
                                    struct caller_object **out, struct epa_error *);

#endif
