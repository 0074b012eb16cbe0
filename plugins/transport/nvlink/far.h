/* Ranks of other nodes, for the transport over NVLink: the rings that kernels and the host write,
 * their proxy, and copies by CUDA for it. */
#ifndef FAR_H
#define FAR_H

#include "memory.h"
#include "proxy.h"

/* Some ranks of a bootstrap as if they were all, on one node. Others take part in its collectives,
 * and only those of this rank's kind are looked at. */
struct far_boot {
    struct epa_bootstrap base; /* first */
    struct epa_bootstrap *real;
    struct epa_wait_observer observer; /* names real ranks */
    uint32_t members, member[EPA_DEVICE_RANKS];
};

/* Ranks of this rank's node. */
void far_boot_node(struct epa_bootstrap *real, struct far_boot *out);

struct far_params {
    struct epa_bootstrap *boot; /* of all ranks */
    struct epa_backend *backend;
    const struct driver *driver;
    const struct epa_transport_plugin *net;
    bool one_host; /* nodes are parts of one host: to the transport between them there is one */
    char *heap;
    uint64_t *signal;
    uint64_t heap_bytes;
    uint32_t signals;
    struct epa_trace *trace; /* NULL: no profile */
};

struct far;

/* Collective. */
enum epa_status far_open(const struct far_params *, struct far **out, struct epa_error *);
/* False: copies may still be under way, to and from the memory that it was given. Takes NULL. */
bool far_close(struct far *);
/* For kernels; as long as it is open. */
const struct epa_device_ring *far_ring(const struct far *);

/* As the transport's functions, for ranks of other nodes. */
enum epa_status far_ask(struct far *, struct epa_descriptor);
void far_fence(struct far *, uint32_t peer);
/* f: of a failure that is not the proxy's. */
enum epa_status far_quiet(struct far *, uint64_t timeout_ns, struct failure *f);
/* Until all of them have come; arrive before, on all ranks. */
enum epa_status far_arrive(struct far *, uint64_t timeout_ns, struct failure *f);
enum epa_status far_await(struct far *, uint64_t timeout_ns, struct failure *f);

enum epa_status far_status(const struct far *);
void far_explain(const struct far *, struct epa_error *);
void far_describe(const struct far *, void (*say)(void *arg, const char *key, const char *value),
                  void *arg);

#endif
