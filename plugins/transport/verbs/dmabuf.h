/* GPU memory, which the driver exports to the device. */
#ifndef VERBS_DMABUF_H
#define VERBS_DMABUF_H

#include "state.h"

enum epa_status dmabuf_init(struct dmabuf *out, struct epa_error *);
enum epa_status dmabuf_check(const struct device *, struct epa_error *);
void dmabuf_find(const struct dmabuf *, const void *at, struct dmabuf_range *out);
/* Registers GPU memory. */
enum epa_status dmabuf_register(const struct dmabuf *, const struct device *,
                                const struct dmabuf_range *, int access, struct ibv_mr **out,
                                struct epa_error *);

#endif
