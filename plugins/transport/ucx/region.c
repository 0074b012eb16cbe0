/* A rank's memory: UCX makes it, so that peers of the same host can map it, and registers it
 * with every device it may use. */
#include "ucx.h"

#include <errno.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif

enum {
    PAGE = 4096,
    PREFAULT_STEP = 64 << 20, /* between two looks at `aborted` */
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Owned by the caller; NULL: cannot be. An option counts where it is given, else UCX_* of
 * the environment does, else what UCX chooses. */
static ucp_config_t *read_config(const struct config *config, struct epa_error *err)
{
    const struct {
        const char *name, *value;
        bool must;
    } set[] = {
        {"TLS", config->tls, true},
        {"NET_DEVICES", config->devices, true},
        /* Additions must be atomic with those of ranks that map this memory. */
        {"ATOMIC_MODE", "cpu", true},
        /* Else no endpoint that tells of dead peers could use shared memory. */
        {"MM_ERROR_HANDLING", "y", false},
    };
    ucp_config_t *out;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &out);

    if (ucs != UCS_OK) {
        (void)epa_fail(err, EPA_ERR_SYSTEM, "ucx: ucp_config_read: %s",
                       ucs_status_string(ucs));
        return NULL;
    }
    for (size_t i = 0; i < sizeof(set) / sizeof(*set); i++) {
        if (set[i].value == NULL || set[i].value[0] == '\0')
            continue;
        ucs = ucp_config_modify(out, set[i].name, set[i].value);
        if (ucs != UCS_OK && set[i].must) {
            (void)epa_fail(err, EPA_ERR_CONFIG, "ucx: UCX does not take %s=%s: %s",
                           set[i].name, set[i].value, ucs_status_string(ucs));
            ucp_config_release(out);
            return NULL;
        }
    }
    return out;
}

static enum epa_status create_context(struct ucx *u, struct epa_error *err)
{
    const ucp_params_t params = {
        .field_mask = UCP_PARAM_FIELD_FEATURES | UCP_PARAM_FIELD_ESTIMATED_NUM_EPS |
                      UCP_PARAM_FIELD_ESTIMATED_NUM_PPN | UCP_PARAM_FIELD_NAME,
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AMO64,
        .estimated_num_eps = u->base.size,
        .estimated_num_ppn = u->boot->world.local_size,
        .name = "epa2a",
    };
    ucp_config_t *config = read_config(&u->config, err);
    ucs_status_t ucs;

    if (config == NULL)
        return EPA_ERR_CONFIG;
    ucs = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    if (ucs != UCS_OK)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "ucx: ucp_init (tls \"%s\", devices \"%s\"; \"\" leaves it to UCX_* "
            "and UCX): %s; `ucx_info -d` lists what there is",
            u->config.tls, u->config.devices, ucs_status_string(ucs));
    return EPA_OK;
}

static enum epa_status create_worker(struct ucx *u, struct epa_error *err)
{
    /* The helper comes in, too, but never while this rank is in. */
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t ucs = ucp_worker_create(u->context, &params, &u->worker);

    if (ucs != UCS_OK)
        return epa_fail(err, EPA_ERR_SYSTEM, "ucx: ucp_worker_create: %s",
                        ucs_status_string(ucs));
    return EPA_OK;
}

static enum epa_status explain_map(const struct ucx *u, ucs_status_t ucs,
                                   struct epa_error *err)
{
    struct rlimit locked = {.rlim_cur = RLIM_INFINITY};
    char hint[128] = "";

    if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur < u->region.bytes)
        snprintf(hint, sizeof(hint),
                 "; a network device would have to lock it, and `ulimit -l` allows %" PRIu64
                 " KiB",
                 (uint64_t)locked.rlim_cur / 1024);
    return epa_fail(err, EPA_ERR_NOMEM,
                    "ucx: ucp_mem_map of %" PRIu64 " bytes (heap and %u signals): %s%s",
                    u->region.bytes, u->signals, ucs_status_string(ucs), hint);
}

static enum epa_status map(struct ucx *u, struct epa_error *err)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_LENGTH | UCP_MEM_MAP_PARAM_FIELD_FLAGS,
        .length = u->region.bytes,
        .flags = UCP_MEM_MAP_ALLOCATE,
    };
    ucp_mem_attr_t attr = {.field_mask = UCP_MEM_ATTR_FIELD_ADDRESS};
    ucs_status_t ucs = ucp_mem_map(u->context, &params, &u->region.mem);

    if (ucs == UCS_OK)
        ucs = ucp_mem_query(u->region.mem, &attr);
    if (ucs != UCS_OK)
        return explain_map(u, ucs, err);
    u->region.base = attr.address;
    return EPA_OK;
}

/* First touch by the owner: memory of its own NUMA node, and no page faults later. */
static enum epa_status touch(const struct ucx *u, struct epa_error *err)
{
    char *base = u->region.base;
    uint64_t bytes = u->region.bytes;

    for (uint64_t at = 0; at < bytes; at += PREFAULT_STEP) {
        size_t n = bytes - at < PREFAULT_STEP ? bytes - at : PREFAULT_STEP;

        if (epa_aborted(u->boot))
            return EPA_ERR_ABORTED;
        if (madvise(base + at, n, MADV_POPULATE_WRITE) == 0)
            continue;
        if (errno != EINVAL) /* not just an old kernel */
            return epa_fail(err, EPA_ERR_NOMEM,
                            "ucx: no memory for %" PRIu64 " bytes of heap and signals "
                            "after %" PRIu64 " of them: %s",
                            bytes, at, strerror(errno));
        memset(base + at, 0, n);
    }
    memset(base, 0, u->region.heap_at);
    return EPA_OK;
}

enum epa_status region_init(struct ucx *u, uint64_t heap_bytes, struct epa_error *err)
{
    enum epa_status status;

    if (heap_bytes > INT64_MAX / 2)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "ucx: a heap of %" PRIu64 " bytes is too large", heap_bytes);
    u->region.signals_at = u->base.size * sizeof(struct line);
    u->region.heap_at =
        round_up(u->region.signals_at + u->signals * sizeof(struct line), PAGE);
    u->region.bytes = u->region.heap_at + round_up(heap_bytes, PAGE);
    status = create_context(u, err);
    if (status == EPA_OK)
        status = create_worker(u, err);
    if (status == EPA_OK)
        status = map(u, err);
    return status == EPA_OK ? touch(u, err) : status;
}

void region_finish(struct ucx *u)
{
    if (u->region.mem != NULL)
        (void)ucp_mem_unmap(u->context, u->region.mem);
    if (u->worker != NULL)
        ucp_worker_destroy(u->worker);
    if (u->context != NULL)
        ucp_cleanup(u->context);
}
