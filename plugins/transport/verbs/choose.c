/* See choose.h. */
#include "choose.h"

#include <arpa/inet.h>
#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/random.h>

enum { SUBNET_BYTES = 8, PKEY_MASK = 0x7fff, PSN_MASK = 0xffffff };

/* ---- ports ---- */

static bool fits(const struct port *p, const struct port_wish *wish)
{
    return (wish->device == NULL || strcmp(p->device, wish->device) == 0) &&
           (wish->number == 0 || p->number == wish->number || p->refused[0] != '\0');
}

static const char *link_name(enum link_layer link)
{
    static const char *const name[] = {[LINK_NONE] = "neither InfiniBand nor Ethernet",
                                       [LINK_INFINIBAND] = "InfiniBand",
                                       [LINK_ETHERNET] = "Ethernet"};

    return name[link];
}

/* Lists the ports: "mlx5_0 port 1 is DOWN (Ethernet), mlx5_1 cannot be opened: Permission denied" */
static void say_ports(const struct port *port, uint32_t n, const struct port_wish *wish, char *out,
                      size_t room)
{
    size_t at = 0;

    out[0] = '\0';
    for (uint32_t i = 0; i < n && at < room; i++) {
        const struct port *p = &port[i];
        const char *comma = at > 0 ? ", " : "";

        if (wish != NULL && !fits(p, wish))
            continue;
        if (p->refused[0] != '\0')
            at += (size_t)snprintf(out + at, room - at, "%s%s %s", comma, p->device, p->refused);
        else
            at += (size_t)snprintf(out + at, room - at, "%s%s port %u is %s (%s)", comma, p->device,
                                   p->number, p->state, link_name(p->link));
    }
}

static enum epa_status refuse_port(const struct port *port, uint32_t n,
                                   const struct port_wish *wish, struct epa_error *err)
{
    char what[DEVICE_NAME + 32] = "", there[256];
    bool known = false;

    for (uint32_t i = 0; i < n; i++)
        known = known || fits(&port[i], wish);
    if (wish->device != NULL)
        snprintf(what, sizeof(what), " %.64s", wish->device);
    if (wish->number != 0)
        snprintf(what + strlen(what), sizeof(what) - strlen(what), " port %u", wish->number);
    say_ports(port, n, known ? wish : NULL, there, sizeof(there));
    if (!known)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.device",
                            "verbs: this machine has no RDMA device%s; it has: %s", what, there);
    return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.device transport.port",
                        "verbs: no port is active of RDMA device%s: %s; see `ibv_devinfo` and "
                        "`rdma link`, bring the link up, or set transport.device and "
                        "transport.port",
                        what[0] != '\0' ? what : "s here", there);
}

enum epa_status choose_port(const struct port *port, uint32_t n, const struct port_wish *wish,
                            const struct port **out, struct epa_error *err)
{
    if (n == 0)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.name",
                            "verbs: this machine has no RDMA device (`ibv_devices` lists "
                            "none); take transport ucx or shm");
    for (uint32_t i = 0; i < n; i++) {
        if (fits(&port[i], wish) && port[i].active && port[i].link != LINK_NONE) {
            *out = &port[i];
            return EPA_OK;
        }
    }
    return refuse_port(port, n, wish, err);
}

/* ---- GIDs ---- */

enum epa_status choose_psn(uint32_t *out, struct epa_error *err)
{
    uint32_t psn;

    if (getrandom(&psn, sizeof(psn), 0) != (ssize_t)sizeof(psn))
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "verbs: getrandom: %s", strerror(errno));
    *out = psn & PSN_MASK;
    return EPA_OK;
}

const char *gid_text(const uint8_t raw[GID_BYTES], char *out, uint32_t room)
{
    if (inet_ntop(AF_INET6, raw, out, room) == NULL)
        snprintf(out, room, "?");
    return out;
}

static bool is_ipv4(const struct gid *g)
{
    static const uint8_t mapped[12] = {[10] = 0xff, [11] = 0xff};

    return memcmp(g->raw, mapped, sizeof(mapped)) == 0;
}

static bool is_link_local(const struct gid *g)
{
    return g->raw[0] == 0xfe && (g->raw[1] & 0xc0) == 0x80;
}

/* Returns the preference of a GID, higher is better; 0: unusable on this link. */
static uint32_t rank_gid(const struct gid *g, enum link_layer link)
{
    if (link == LINK_INFINIBAND)
        return g->kind == GID_INFINIBAND;
    if (g->kind == GID_ROCE_V2)
        return is_ipv4(g) ? 4 : is_link_local(g) ? 2 : 3;
    return g->kind == GID_ROCE_V1;
}

static enum epa_status refuse_gid(const struct gid *gid, uint32_t n, const struct port *p,
                                  const char *wish, struct epa_error *err)
{
    static const char *const kind[] = {
        [GID_INFINIBAND] = "InfiniBand", [GID_ROCE_V1] = "RoCE v1", [GID_ROCE_V2] = "RoCE v2"};
    char there[320] = "none", text[INET6_ADDRSTRLEN];
    size_t at = 0;

    for (uint32_t i = 0; i < n && at < sizeof(there); i++)
        at += (size_t)snprintf(there + at, sizeof(there) - at, "%s%u is %s (%s)",
                               at > 0 ? ", " : "", gid[i].index,
                               gid_text(gid[i].raw, text, sizeof(text)), kind[gid[i].kind]);
    if (wish == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verbs: %s port %u has no GID; give its network interface an "
                        "address (`ip address add`)",
                        p->device, p->number);
    return epa_fail_key(err, EPA_ERR_CONFIG, "transport.gid",
                        "verbs: %s port %u has no GID '%.64s'; it has: %s", p->device, p->number,
                        wish, there);
}

static bool is_index(const char *text, uint32_t *out)
{
    char *end;
    unsigned long value = strtoul(text, &end, 10);

    *out = (uint32_t)value;
    return text[0] >= '0' && text[0] <= '9' && *end == '\0' && value < UINT32_MAX;
}

/* Parses an IPv6 address, or an IPv4 address as the GID that maps it. */
static bool is_address(const char *text, uint8_t out[GID_BYTES])
{
    memset(out, 0, GID_BYTES);
    if (inet_pton(AF_INET6, text, out) == 1)
        return true;
    memset(out, 0, GID_BYTES);
    out[10] = out[11] = 0xff;
    return inet_pton(AF_INET, text, out + 12) == 1;
}

enum epa_status choose_gid(const struct gid *gid, uint32_t n, const struct port *p,
                           const char *wish, struct gid *out, struct epa_error *err)
{
    const struct gid *best = NULL;
    uint8_t address[GID_BYTES];
    uint32_t index = 0, good = 0;
    bool any = wish == NULL || strcmp(wish, "auto") == 0;
    bool by_index = !any && is_index(wish, &index);

    if (!any && !by_index && !is_address(wish, address))
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.gid",
                            "verbs: transport.gid '%.64s' is no index and no address; write "
                            "auto, a number, or an address as `ibv_devinfo -v` shows it",
                            wish);
    for (uint32_t i = 0; i < n; i++) {
        uint32_t rank = rank_gid(&gid[i], p->link);

        if (by_index && gid[i].index != index)
            continue;
        if (!any && !by_index && memcmp(gid[i].raw, address, GID_BYTES) != 0)
            continue;
        if (rank > good) {
            best = &gid[i];
            good = rank;
        }
    }
    if (best == NULL)
        return refuse_gid(gid, n, p, any ? NULL : wish, err);
    *out = *best;
    return EPA_OK;
}

bool needs_grh(const struct port *p, const uint8_t mine[GID_BYTES], uint32_t peer_lid,
               const uint8_t peers[GID_BYTES])
{
    return p->link == LINK_ETHERNET || p->needs_grh || peer_lid == 0 ||
           memcmp(mine, peers, SUBNET_BYTES) != 0;
}

/* ---- P_Keys ---- */

enum epa_status choose_pkey(const uint16_t *pkey, uint32_t n, const struct port *p,
                            const char *wish, uint32_t *out, struct epa_error *err)
{
    char there[128] = "none", *end;
    unsigned long want;
    size_t at = 0;

    if (wish == NULL || strcmp(wish, "auto") == 0) {
        *out = 0;
        return EPA_OK;
    }
    want = strtoul(wish, &end, 16);
    if (end == wish || *end != '\0' || want == 0 || want > UINT16_MAX)
        return epa_fail_key(err, EPA_ERR_CONFIG, "transport.pkey",
                            "verbs: transport.pkey '%.64s' is no P_Key; write it as in 0x8001",
                            wish);
    for (uint32_t i = 0; i < n; i++) {
        if (pkey[i] != 0 && (pkey[i] & PKEY_MASK) == (want & PKEY_MASK)) {
            *out = i;
            return EPA_OK;
        }
        if (pkey[i] != 0 && at < sizeof(there))
            at += (size_t)snprintf(there + at, sizeof(there) - at, "%s0x%04x", at > 0 ? ", " : "",
                                   pkey[i]);
    }
    return epa_fail_key(err, EPA_ERR_CONFIG, "transport.pkey",
                        "verbs: %s port %u has no P_Key 0x%04lx; it has: %s", p->device, p->number,
                        want, there);
}

/* ---- pinned memory ---- */

enum epa_status refuse_memlock(uint64_t bytes, uint64_t limit, const char *why,
                               struct epa_error *err)
{
    char may[64] = "all it likes";

    if (limit != UINT64_MAX)
        snprintf(may, sizeof(may), "%" PRIu64 " KiB", limit / 1024);
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "verbs: the device needs %" PRIu64 " KiB of this rank's memory pinned, "
                    "and its process may pin %s%s%s; raise RLIMIT_MEMLOCK: `ulimit -l "
                    "unlimited`, 'memlock unlimited' in /etc/security/limits.conf, "
                    "LimitMEMLOCK=infinity for a service, --ulimit memlock=-1 for a container",
                    (bytes + 1023) / 1024, may, why != NULL ? ": " : "", why != NULL ? why : "");
}

enum epa_status check_memlock(uint64_t bytes, uint64_t limit, bool privileged,
                              struct epa_error *err)
{
    if (privileged || bytes <= limit)
        return EPA_OK;
    return refuse_memlock(bytes, limit, NULL, err);
}
