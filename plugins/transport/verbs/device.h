/* The RDMA device of a rank: found, opened, closed. */
#ifndef DEVICE_H
#define DEVICE_H

#include <infiniband/verbs.h>

#include "choose.h"

/* The options of the plugin. */
struct config {
    const char *device, *gid, *pkey; /* NULL: chosen here */
    uint32_t port;                   /* 0: the first that is active */
    int mtu;                         /* bytes; 0: the port's */
    uint32_t service_level, traffic_class, timeout, retries;
    uint32_t depth, batch, inline_bytes;
    bool direct;
    int wait; /* enum wait_kind */
};

struct device {
    struct ibv_context *context;
    struct ibv_pd *pd;
    struct ibv_device_attr attr;
    struct port port;
    struct gid gid;
    uint32_t pkey;
    bool software; /* needs this machine's cores to do its work */
};

/* Whether there is a port to use, without a trace. */
enum epa_status device_check(const struct config *, struct epa_error *);

/* On failure `out` is closed already. */
enum epa_status device_open(const struct config *, struct device *out, struct epa_error *);
void device_close(struct device *);

/* Of that port, now: "port 1 of mlx5_0 is ACTIVE". */
void device_state(const struct device *, char *out, size_t room);

/* Pins and registers; what the kernel refuses is told with `in_all`, the bytes that this rank
 * pins. */
enum epa_status device_register(const struct device *, void *at, uint64_t bytes, int access,
                                uint64_t in_all, struct ibv_mr **out, struct epa_error *);

/* Before anything is made: whether `bytes` can be pinned. */
enum epa_status device_may_pin(uint64_t bytes, struct epa_error *);

#endif
