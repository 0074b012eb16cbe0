/* Which device, port, GID and P_Key to use, and whether memory may be pinned: what libibverbs
 * said elsewhere, decided here. */
#ifndef CHOOSE_H
#define CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

enum { GID_BYTES = 16, DEVICE_NAME = 64, PORTS_MOST = 64 };

enum link_layer { LINK_NONE, LINK_INFINIBAND, LINK_ETHERNET };
enum gid_kind { GID_INFINIBAND, GID_ROCE_V1, GID_ROCE_V2 };

/* One port of one device; a device that cannot be opened counts as a port that says why. */
struct port {
    char device[DEVICE_NAME];
    char refused[128]; /* why it cannot be opened or asked; "": it can */
    const char *state; /* "ACTIVE", "DOWN" */
    uint32_t number;
    bool active;
    enum link_layer link;
    uint32_t lid, gids, pkeys;
    uint32_t mtu;          /* bytes, as active */
    uint64_t most_message; /* bytes of one work request */
    double gbit_per_s;
    bool needs_grh;
};

struct gid {
    uint32_t index;
    enum gid_kind kind;
    uint8_t raw[GID_BYTES];
};

/* The port that is wanted; NULL and 0: any. */
struct port_wish {
    const char *device;
    uint32_t number;
};

/* The first active port that fits. */
enum epa_status choose_port(const struct port *, uint32_t n, const struct port_wish *,
                            const struct port **out, struct epa_error *);

/* `wish` is NULL or "auto", an index, or an address. Of RoCE, auto prefers v2 on an IPv4
 * address, which routers and switches know how to treat; of InfiniBand the first. */
enum epa_status choose_gid(const struct gid *, uint32_t n, const struct port *, const char *wish,
                           struct gid *out, struct epa_error *);

/* `wish` is NULL or "auto" (the first), or a P_Key in hexadecimal; the bit that says "full
 * member" is not compared. */
enum epa_status choose_pkey(const uint16_t *pkey, uint32_t n, const struct port *, const char *wish,
                            uint32_t *out, struct epa_error *);

/* The first packet sequence number of each queue pair is random (24 bits): packets of an earlier
 * pair with the same number are not accepted, and an attacker cannot guess it. */
enum epa_status choose_psn(uint32_t *out, struct epa_error *);

/* "::ffff:10.0.0.1" */
const char *gid_text(const uint8_t raw[GID_BYTES], char *out, uint32_t room);

/* Whether packets need a global header: always on Ethernet; on InfiniBand where the port says
 * so, where there is no local address, and between subnets. */
bool needs_grh(const struct port *, const uint8_t mine[GID_BYTES], uint32_t peer_lid,
               const uint8_t peers[GID_BYTES]);

/* Bytes that a rank pins against what its process may (`limit`; UINT64_MAX: all). What is
 * refused here would be refused by the kernel, without a reason. */
enum epa_status check_memlock(uint64_t bytes, uint64_t limit, bool privileged, struct epa_error *);
enum epa_status refuse_memlock(uint64_t bytes, uint64_t limit, const char *why, struct epa_error *);

#endif
