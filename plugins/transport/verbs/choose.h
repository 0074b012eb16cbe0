/* Selects device, port, GID and P_Key, and checks the limit of pinned memory. These functions
 * decide from values that device.c read with libibverbs. */
#ifndef CHOOSE_H
#define CHOOSE_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/status.h>

enum { GID_BYTES = 16, DEVICE_NAME = 64, PORTS_MOST = 64 };

enum link_layer { LINK_NONE, LINK_INFINIBAND, LINK_ETHERNET };
enum gid_kind { GID_INFINIBAND, GID_ROCE_V1, GID_ROCE_V2 };

/* One port of one device. A device that cannot be opened has one entry with the reason. */
struct port {
    char device[DEVICE_NAME];
    char refused[128]; /* reason why the device cannot be opened or queried; "": usable */
    const char *state; /* "ACTIVE", "DOWN" */
    uint32_t number;
    bool active;
    enum link_layer link;
    uint32_t lid, gids, pkeys;
    uint32_t mtu;          /* active MTU in bytes */
    uint64_t most_message; /* bytes of one work request */
    double gbit_per_s;
    bool needs_grh;
};

struct gid {
    uint32_t index;
    enum gid_kind kind;
    uint8_t raw[GID_BYTES];
};

/* The requested port; NULL and 0: any. */
struct port_wish {
    const char *device;
    uint32_t number;
};

/* Selects the first active port that matches. */
enum epa_status choose_port(const struct port *, uint32_t n, const struct port_wish *,
                            const struct port **out, struct epa_error *);

/* Selects a GID. `wish` is NULL or "auto", an index, or an address. On RoCE, auto prefers v2 with
 * an IPv4 address, which routers and switches can forward; on InfiniBand the first GID. */
enum epa_status choose_gid(const struct gid *, uint32_t n, const struct port *, const char *wish,
                           struct gid *out, struct epa_error *);

/* Selects a P_Key. `wish` is NULL or "auto" (the first), or a P_Key in hexadecimal. The comparison
 * ignores the full-member bit. */
enum epa_status choose_pkey(const uint16_t *pkey, uint32_t n, const struct port *, const char *wish,
                            uint32_t *out, struct epa_error *);

/* Draws the first packet sequence number of a queue pair (24 random bits): the pair rejects packets
 * of an earlier pair with the same number, and an attacker cannot guess the sequence. */
enum epa_status choose_psn(uint32_t *out, struct epa_error *);

/* Formats a GID: "::ffff:10.0.0.1". */
const char *gid_text(const uint8_t raw[GID_BYTES], char *out, uint32_t room);

/* Returns true if packets need a global header: always on Ethernet; on InfiniBand if the port
 * requires it, if the port has no LID, and between subnets. */
bool needs_grh(const struct port *, const uint8_t mine[GID_BYTES], uint32_t peer_lid,
               const uint8_t peers[GID_BYTES]);

/* Checks the bytes that a rank pins against the process limit (`limit`; UINT64_MAX: none). The
 * kernel would refuse the same bytes without a reason. */
enum epa_status check_memlock(uint64_t bytes, uint64_t limit, bool privileged, struct epa_error *);
enum epa_status refuse_memlock(uint64_t bytes, uint64_t limit, const char *why, struct epa_error *);

#endif
