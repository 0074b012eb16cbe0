/* The RDMA device of a rank: find, open, close. */
#ifndef VERBS_DEVICE_H
#define VERBS_DEVICE_H

#include "state.h"

/* Checks for a usable port without side effects. */
enum epa_status device_check(const struct config *, struct epa_error *);

/* After a failure `out` is closed. */
enum epa_status device_open(const struct config *, struct device *out, struct epa_error *);
void device_close(struct device *);

/* Writes the present state of the port: "port 1 of mlx5_0 is ACTIVE". */
void device_state(const struct device *, char *out, size_t room);

/* Pins and registers memory. An error names `in_all`, the total of bytes that this rank pins. */
enum epa_status device_register(const struct device *, void *at, uint64_t bytes, int access,
                                uint64_t in_all, struct ibv_mr **out, struct epa_error *);

/* Checks in advance whether the process may pin `bytes`. */
enum epa_status device_may_pin(uint64_t bytes, struct epa_error *);

#endif
