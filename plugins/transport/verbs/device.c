/* Finds, opens and closes the RDMA device of a rank. choose.c selects device, port and GID. */
#include "device.h"

#include "state.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum { CAP_IPC_LOCK_BIT = 14 };

/* Vendor id of rdma_rxe; before Linux 5.10 rdma_rxe has no vendor id. */
static const uint32_t no_vendor = 0, rxe_vendor = 0xffffff;

/* Returns Gbit/s. active_speed gives the rate of a lane, active_width the number of lanes; both are
 * bit masks. */
static double speed_of(uint32_t speed, uint32_t width)
{
    static const double lane[] = {2.5, 5, 10, 10, 14, 25, 50, 100, 200};
    static const uint32_t lanes[] = {1, 4, 8, 12, 2};
    uint32_t s = 0, w = 0;

    if (speed == 0 || width == 0)
        return 0;
    while ((speed >> s & 1) == 0)
        s++;
    while ((width >> w & 1) == 0)
        w++;
    if (s >= sizeof(lane) / sizeof(lane[0]) || w >= sizeof(lanes) / sizeof(lanes[0]))
        return 0;
    return lane[s] * lanes[w];
}

static enum link_layer link_of(const struct ibv_port_attr *attr, enum ibv_transport_type t)
{
    if (t != IBV_TRANSPORT_IB) /* iWARP and others lack atomics and this kind of RC */
        return LINK_NONE;
    return attr->link_layer == IBV_LINK_LAYER_ETHERNET ? LINK_ETHERNET : LINK_INFINIBAND;
}

static const char *state_of(enum ibv_port_state state)
{
    static const char *const name[] = {
        [IBV_PORT_NOP] = "not in use", [IBV_PORT_DOWN] = "DOWN",
        [IBV_PORT_INIT] = "INIT",      [IBV_PORT_ARMED] = "ARMED",
        [IBV_PORT_ACTIVE] = "ACTIVE",  [IBV_PORT_ACTIVE_DEFER] = "ACTIVE_DEFER"};

    return (uint32_t)state < sizeof(name) / sizeof(name[0]) ? name[state] : "in no known state";
}

static void describe_port(struct ibv_context *context, uint32_t number, struct port *out)
{
    struct ibv_port_attr attr = {0};
    int error = ibv_query_port(context, (uint8_t)number, &attr);

    if (error != 0) {
        snprintf(out->refused, sizeof(out->refused), "port %u cannot be queried: %s", number,
                 strerror(error));
        return;
    }
    out->number = number;
    out->state = state_of(attr.state);
    out->active = attr.state == IBV_PORT_ACTIVE;
    out->link = link_of(&attr, context->device->transport_type);
    out->lid = attr.lid;
    out->gids = (uint32_t)attr.gid_tbl_len;
    out->pkeys = attr.pkey_tbl_len;
    out->mtu = 128u << attr.active_mtu;
    out->most_message = attr.max_msg_sz;
    out->gbit_per_s = speed_of(attr.active_speed, attr.active_width);
    out->needs_grh = (attr.flags & IBV_QPF_GRH_REQUIRED) != 0;
}

/* Appends the ports of one device to port[n]; returns the new number. */
static uint32_t add_ports(struct ibv_device *device, struct port *port, uint32_t n)
{
    struct ibv_context *context = ibv_open_device(device);
    struct ibv_device_attr attr = {0};
    struct port none = {.state = "unknown"};

    snprintf(none.device, sizeof(none.device), "%s", ibv_get_device_name(device));
    if (context == NULL) {
        snprintf(none.refused, sizeof(none.refused),
                 "cannot be opened: %s (may this user open /dev/infiniband/%s?)", strerror(errno),
                 device->dev_name);
        port[n] = none;
        return n + 1;
    }
    if (ibv_query_device(context, &attr) != 0)
        attr.phys_port_cnt = 1;
    for (uint32_t i = 1; i <= attr.phys_port_cnt && n < PORTS_MOST; i++) {
        port[n] = none;
        describe_port(context, i, &port[n++]);
    }
    ibv_close_device(context);
    return n;
}

static uint32_t list_ports(struct ibv_device **device, struct port *port)
{
    uint32_t n = 0;

    for (uint32_t i = 0; device != NULL && device[i] != NULL && n < PORTS_MOST; i++)
        n = add_ports(device[i], port, n);
    return n;
}

static enum epa_status find_port(const struct config *config, struct ibv_device **device,
                                 struct port *out, struct epa_error *err)
{
    const struct port_wish wish = {.device = config->device, .number = config->port};
    struct port *port = calloc(PORTS_MOST, sizeof(*port));
    const struct port *found = NULL;
    enum epa_status status;

    if (port == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for a list of ports");
    status = choose_port(port, list_ports(device, port), &wish, &found, err);
    if (status == EPA_OK)
        *out = *found;
    free(port);
    return status;
}

enum epa_status device_check(const struct config *config, struct epa_error *err)
{
    struct ibv_device **device = ibv_get_device_list(NULL);
    struct port port;
    enum epa_status status = find_port(config, device, &port, err);

    if (device != NULL)
        ibv_free_device_list(device);
    return status;
}

static struct ibv_context *open_by_name(struct ibv_device **device, const char *name)
{
    for (uint32_t i = 0; device != NULL && device[i] != NULL; i++) {
        if (strcmp(ibv_get_device_name(device[i]), name) == 0)
            return ibv_open_device(device[i]);
    }
    errno = ENODEV;
    return NULL;
}

static enum gid_kind kind_of(const struct ibv_gid_entry *entry)
{
    if (entry->gid_type == IBV_GID_TYPE_ROCE_V2)
        return GID_ROCE_V2;
    return entry->gid_type == IBV_GID_TYPE_ROCE_V1 ? GID_ROCE_V1 : GID_INFINIBAND;
}

static enum epa_status find_gid(const struct config *config, struct device *d,
                                struct epa_error *err)
{
    size_t room = (size_t)d->port.gids * d->attr.phys_port_cnt + 1; /* entries of all ports */
    struct ibv_gid_entry *entry = calloc(room, sizeof(*entry));
    struct gid *gid = calloc(room, sizeof(*gid));
    enum epa_status status;
    ssize_t found = 0;
    uint32_t n = 0;

    if (entry != NULL && gid != NULL)
        found = ibv_query_gid_table(d->context, entry, room, 0);
    for (ssize_t i = 0; i < found; i++) {
        if (entry[i].port_num != d->port.number)
            continue;
        gid[n].index = entry[i].gid_index;
        gid[n].kind = kind_of(&entry[i]);
        memcpy(gid[n++].raw, entry[i].gid.raw, GID_BYTES);
    }
    if (entry == NULL || gid == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "verbs: no memory for %zu GIDs", room);
    else if (found < 0)
        status = epa_fail_errno(err, EPA_ERR_SYSTEM, (int)-found, "verbs: the GIDs of %s: %s",
                                d->port.device, strerror((int)-found));
    else
        status = choose_gid(gid, n, &d->port, config->gid, &d->gid, err);
    free(entry);
    free(gid);
    return status;
}

static enum epa_status find_pkey(const struct config *config, struct device *d,
                                 struct epa_error *err)
{
    uint16_t pkey[128] = {0};
    uint32_t n = d->port.pkeys < 128 ? d->port.pkeys : 128;

    for (uint32_t i = 0; i < n; i++) {
        __be16 raw = 0;

        if (ibv_query_pkey(d->context, (uint8_t)d->port.number, (int)i, &raw) == 0)
            pkey[i] = be16toh(raw);
    }
    return choose_pkey(pkey, n, &d->port, config->pkey, &d->pkey, err);
}

static enum epa_status ask_device(const struct config *config, struct device *d,
                                  struct epa_error *err)
{
    int error = ibv_query_device(d->context, &d->attr);
    enum epa_status status;

    if (error != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, error, "verbs: %s cannot be queried: %s",
                              d->port.device, strerror(error));
    if (d->attr.atomic_cap == IBV_ATOMIC_NONE)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.name",
                            "verbs: %s has no atomic operations, which signals that are added "
                            "to need; take transport ucx",
                            d->port.device);
    d->software = d->attr.vendor_id == no_vendor || d->attr.vendor_id == rxe_vendor;
    status = find_gid(config, d, err);
    if (status == EPA_OK)
        status = find_pkey(config, d, err);
    if (status != EPA_OK)
        return status;
    d->pd = ibv_alloc_pd(d->context);
    if (d->pd == NULL)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "verbs: a protection domain of %s: %s",
                              d->port.device, strerror(errno));
    return EPA_OK;
}

enum epa_status device_open(const struct config *config, struct device *out, struct epa_error *err)
{
    struct ibv_device **device = ibv_get_device_list(NULL);
    struct device d = {0};
    enum epa_status status = find_port(config, device, &d.port, err);

    if (status == EPA_OK) {
        d.context = open_by_name(device, d.port.device);
        if (d.context == NULL)
            status = epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "verbs: %s cannot be opened: %s",
                                    d.port.device, strerror(errno));
    }
    if (device != NULL)
        ibv_free_device_list(device);
    if (status == EPA_OK)
        status = ask_device(config, &d, err);
    if (status != EPA_OK) {
        device_close(&d);
        return status;
    }
    *out = d;
    return EPA_OK;
}

void device_close(struct device *d)
{
    if (d->pd != NULL)
        ibv_dealloc_pd(d->pd);
    if (d->context != NULL)
        ibv_close_device(d->context);
    d->pd = NULL;
    d->context = NULL;
}

void device_state(const struct device *d, char *out, size_t room)
{
    struct port now = d->port;

    describe_port(d->context, d->port.number, &now);
    if (now.refused[0] != '\0')
        snprintf(out, room, "%s %s", now.device, now.refused);
    else
        snprintf(out, room, "port %u of %s is %s", now.number, now.device, now.state);
}

/* ---- memory ---- */

static uint64_t pin_limit(void)
{
    struct rlimit limit;

    if (getrlimit(RLIMIT_MEMLOCK, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY)
        return UINT64_MAX;
    return limit.rlim_cur;
}

/* Returns true if CAP_IPC_LOCK is effective: the kernel then ignores the limit. In a user namespace
 * the capability may have no effect, and the kernel refuses later. */
static bool may_pin_all(void)
{
    FILE *file = fopen("/proc/self/status", "re");
    uint64_t caps = 0;
    char line[256];

    while (file != NULL && fgets(line, sizeof(line), file) != NULL) {
        if (sscanf(line, "CapEff: %" SCNx64, &caps) == 1)
            break;
    }
    if (file != NULL)
        fclose(file);
    return (caps >> CAP_IPC_LOCK_BIT & 1) != 0;
}

enum epa_status device_may_pin(uint64_t bytes, struct epa_error *err)
{
    return check_memlock(bytes, pin_limit(), may_pin_all(), err);
}

enum epa_status device_register(const struct device *d, void *at, uint64_t bytes, int access,
                                uint64_t in_all, struct ibv_mr **out, struct epa_error *err)
{
    struct ibv_mr *mr = ibv_reg_mr(d->pd, at, bytes, access);
    int error = errno;

    if (mr != NULL) {
        *out = mr;
        return EPA_OK;
    }
    if (error == ENOMEM && pin_limit() != UINT64_MAX)
        return refuse_memlock(in_all, pin_limit(), "the kernel refused it", err);
    return epa_fail_errno(err, EPA_ERR_SYSTEM, error,
                          "verbs: %s refuses to register %" PRIu64 " bytes: %s (it takes %" PRIu64
                          " at a time)",
                          d->port.device, bytes, strerror(error), (uint64_t)d->attr.max_mr_size);
}
