/* Ranks of other nodes: rings, proxy and copies. */
#ifndef NVLINK_FAR_H
#define NVLINK_FAR_H

#include "state.h"

/* Collective. */
enum epa_status far_open(const struct far_params *, struct far **out, struct epa_error *);
/* Returns false if copies to or from the memory may still be in flight. Accepts NULL. */
bool far_close(struct far *);
/* The ring for kernels; valid until far_close(). */
const struct epa_device_ring *far_ring(const struct far *);

/* Returns true if EPA_SIGNAL_ADD works, which requires the staged way. */
bool far_adds(const struct far *);

/* Functions of the transport for ranks of other nodes. */
enum epa_status far_ask(struct far *, struct epa_descriptor);
void far_fence(struct far *, uint32_t peer);
/* f: the failure, unless the proxy failed. */
enum epa_status far_quiet(struct far *, uint64_t timeout_ns, struct failure *f);
/* Waits for the arrival of all ranks of other nodes. Every rank signals its own arrival first. */
enum epa_status far_arrive(struct far *, uint64_t timeout_ns, struct failure *f);
enum epa_status far_await(struct far *, uint64_t timeout_ns, struct failure *f);

enum epa_status far_status(const struct far *);
void far_explain(const struct far *, struct epa_error *);
void far_describe(const struct far *, void (*say)(void *arg, const char *key, const char *value),
                  void *arg);

#endif
