/* The UCX context and the memory of a rank: allowed transports, the interface of the listener, and
 * memory registration. UCX allocates the memory, so that peers of the same host can map it, unless
 * the caller passes a heap. */
#include "region.h"

#include "messages.h"
#include "state.h"

#include <glob.h>
#include <inttypes.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <sys/statvfs.h>

#include "../../common/transport_wait.h"

enum { PAGE = 4096 };

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* ---- interface of the listener ----
 *
 * UCX executes messages of any sender. A TCP listener accepts every user of every host that reaches
 * it, and System V segments, UCX's first choice for memory, are open to the user's group. Ranks of
 * one host therefore use neither, and ranks of several hosts listen on one interface only. RDMA
 * devices have no listener, so ranks use every device. */

enum { DEVICES = 512 };

static void add_device(char *list, const char *name)
{
    size_t n = strlen(list);

    snprintf(list + n, DEVICES - n, "%s%s", n > 0 ? "," : "", name);
}

/* Appends the ports that are up: "mlx5_0:1,mlx5_1:1". */
static void add_rdma_ports(char *list)
{
    static const char up[] = "/sys/class/infiniband/*/ports/*/state";
    glob_t found;

    if (glob(up, 0, NULL, &found) != 0)
        return;
    for (size_t i = 0; i < found.gl_pathc; i++) {
        char device[64], port[16], state[32] = "", name[96];
        FILE *file = fopen(found.gl_pathv[i], "re");

        if (file != NULL && fgets(state, sizeof(state), file) != NULL &&
            strstr(state, "ACTIVE") != NULL &&
            sscanf(found.gl_pathv[i], "/sys/class/infiniband/%63[^/]/ports/%15[^/]", device,
                   port) == 2) {
            snprintf(name, sizeof(name), "%s:%s", device, port);
            add_device(list, name);
        }
        if (file != NULL)
            fclose(file);
    }
    globfree(&found);
}

/* Settings that the user left open. `tls` and `devices` are "" if UCX_* in the environment
 * decides. */
struct choice {
    const char *tls, *send, *receive; /* send, receive: TCP segment sizes; NULL: UCX's defaults */
    char devices[DEVICES];
};

/* UCX cuts a put over TCP into segments. A segment costs one system call here and two at the peer,
 * which reads and acknowledges it. With UCX's default of 8 KiB these calls take most of the time.
 * Receivers read two segments at a time. */
static const char tcp_send[] = "128k", tcp_receive[] = "256k";

void region_segments(const char **send, const char **receive)
{
    *send = getenv("UCX_TCP_TX_SEG_SIZE");
    *receive = getenv("UCX_TCP_RX_SEG_SIZE");
    if (*send == NULL && *receive == NULL) {
        *send = tcp_send;
        *receive = tcp_receive;
    }
}

static enum epa_status choose(const struct config *config, const char *interface, bool on_gpu,
                              struct choice *out, struct epa_error *err)
{
    *out = (struct choice){.tls = config->tls};
    region_segments(&out->send, &out->receive);
    if (config->tls[0] == '\0' && getenv("UCX_TLS") == NULL)
        /* lo: namespaces separate ranks of one machine, and shared memory of UCX fails there. */
        out->tls = interface == NULL              ? "posix,cma,self"
                   : on_gpu                       ? "^sysv,cuda_ipc"
                   : strcmp(interface, "lo") == 0 ? "tcp,self"
                                                  : "^sysv";
    snprintf(out->devices, DEVICES, "%s", config->devices);
    if (config->devices[0] != '\0' || getenv("UCX_NET_DEVICES") != NULL)
        return EPA_OK;
    if (interface != NULL && interface[0] == '\0')
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.devices",
                            "ucx: cannot find the network interface that leads to rank 0; UCX must "
                            "listen on this interface only; name it: --set transport.devices=eth0");
    add_device(out->devices, interface == NULL ? "lo" : interface);
    add_rdma_ports(out->devices);
    return EPA_OK;
}

bool region_segments_are_long(void)
{
    const char *send, *receive;
    char *unit;
    uint64_t bytes;

    region_segments(&send, &receive);
    bytes = send != NULL ? strtoull(send, &unit, 10) : 0;
    if (bytes > 0 && *unit != '\0')
        bytes = strchr("kK", *unit) != NULL     ? bytes << 10
                : strchr("mMgG", *unit) != NULL ? UINT32_MAX
                                                : 0;
    return bytes >= 128 << 10;
}

/* Returns the configuration, which the caller releases, or NULL with an error. Priority: an option
 * of the experiment, then UCX_* in the environment, then choose(). */
static ucp_config_t *read_config(const struct choice *config, bool on_gpu, struct epa_error *err)
{
    const struct {
        const char *name, *value;
        bool must;
    } set[] = {
        {"TLS", config->tls, true},
        {"NET_DEVICES", config->devices, true},
        /* Additions must be atomic with the CPU additions of ranks that map this memory. */
        {"ATOMIC_MODE", "cpu", true},
        /* UCX 1.16 and later use the new protocols (PROTO_ENABLE) by default. These protocols have
         * no additions by the peer's CPU over endpoints that report dead peers. Their fence, and a
         * fence with FENCE_MODE strong, is a flush without a time limit: a stopped peer would block
         * it forever. UCX 1.13 has no FENCE_MODE and needs none. Puts from GPU memory require the
         * new protocols: the old ones let the CPU read short sources. */
        {"PROTO_ENABLE", on_gpu ? "y" : "n", true},
        {"FENCE_MODE", "weak", false},
        /* One lane carries data and the following signal, so that a weak fence orders both. */
        {"MAX_RMA_RAILS", on_gpu ? "1" : NULL, false},
        {"MAX_RNDV_RAILS", on_gpu ? "1" : NULL, false},
        /* Without this setting, endpoints that report dead peers cannot use shared memory. */
        {"MM_ERROR_HANDLING", "y", false},
        /* UCX before 1.17 has these names without a prefix; only TCP uses them. */
        {"TX_SEG_SIZE", config->send, false},
        {"RX_SEG_SIZE", config->receive, false},
        {"TCP_TX_SEG_SIZE", config->send, false},
        {"TCP_RX_SEG_SIZE", config->receive, false},
    };
    ucp_config_t *out;
    ucs_status_t ucs = ucp_config_read(NULL, NULL, &out);

    if (ucs != UCS_OK) {
        (void)epa_fail(err, EPA_ERR_SYSTEM, "ucx: ucp_config_read: %s", ucs_status_string(ucs));
        return NULL;
    }
    for (size_t i = 0; i < sizeof(set) / sizeof(*set); i++) {
        if (set[i].value == NULL || set[i].value[0] == '\0')
            continue;
        ucs = ucp_config_modify(out, set[i].name, set[i].value);
        if (ucs != UCS_OK && set[i].must) {
            (void)epa_fail(err, EPA_ERR_CONFIG, "ucx: UCX rejects %s=%s: %s", set[i].name,
                           set[i].value, ucs_status_string(ucs));
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
        .features = UCP_FEATURE_RMA | UCP_FEATURE_AM | (u->region.on_gpu ? 0 : UCP_FEATURE_AMO64),
        .estimated_num_eps = u->base.size,
        .estimated_num_ppn = u->boot->world.local_size,
        .name = "epa2a",
    };
    struct choice choice;
    enum epa_status status =
        choose(&u->config, u->boot->world.interface, u->region.on_gpu, &choice, err);
    ucp_config_t *config = status == EPA_OK ? read_config(&choice, u->region.on_gpu, err) : NULL;
    ucs_status_t ucs;

    if (config == NULL)
        return status == EPA_OK ? EPA_ERR_CONFIG : status;
    ucs = ucp_init(&params, config, &u->context);
    ucp_config_release(config);
    if (ucs != UCS_OK)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.tls transport.devices",
                            "ucx: ucp_init (tls \"%s\", devices \"%s\"; \"\" leaves it to UCX_* "
                            "and UCX): %s; `ucx_info -d` lists transports and devices",
                            choice.tls, choice.devices, ucs_status_string(ucs));
    return EPA_OK;
}

static enum epa_status create_worker(struct ucx *u, struct epa_error *err)
{
    /* The helper thread uses the worker, too, but never at the same time as this rank. */
    const ucp_worker_params_t params = {.field_mask = UCP_WORKER_PARAM_FIELD_THREAD_MODE,
                                        .thread_mode = UCS_THREAD_MODE_SERIALIZED};
    ucs_status_t ucs = ucp_worker_create(u->context, &params, &u->worker);

    if (ucs == UCS_OK)
        ucs = ucx_take_messages(u);
    if (ucs != UCS_OK)
        return epa_fail(err, EPA_ERR_SYSTEM, "ucx: ucp_worker_create: %s", ucs_status_string(ucs));
    return EPA_OK;
}

static enum epa_status explain_map(const struct ucx *u, ucs_status_t ucs, struct epa_error *err)
{
    struct rlimit locked = {.rlim_cur = RLIM_INFINITY};
    struct statvfs shm;
    char hint[128] = "";

    if (statvfs("/dev/shm", &shm) == 0 && (uint64_t)shm.f_bavail * shm.f_frsize < u->region.bytes)
        snprintf(hint, sizeof(hint), "; /dev/shm, where posix memory is, has %" PRIu64 " KiB free",
                 (uint64_t)shm.f_bavail * shm.f_frsize / 1024);
    else if (getrlimit(RLIMIT_MEMLOCK, &locked) == 0 && locked.rlim_cur < u->region.bytes)
        snprintf(hint, sizeof(hint),
                 "; a network device would have to lock it, and `ulimit -l` allows %" PRIu64 " KiB",
                 (uint64_t)locked.rlim_cur / 1024);
    return epa_fail_key(err, EPA_ERR_NOMEM, hint[0] != '\0' ? EPA_LIMIT_NAMED : "",
                        "ucx: ucp_mem_map of %" PRIu64 " bytes (heap and %u signals): %s%s",
                        u->region.bytes, u->signals, ucs_status_string(ucs), hint);
}

/* Registers memory of the caller. */
static ucs_status_t map_given(struct ucx *u, void *at, uint64_t bytes, bool on_gpu, ucp_mem_h *out)
{
    const ucp_mem_map_params_t params = {
        .field_mask = UCP_MEM_MAP_PARAM_FIELD_ADDRESS | UCP_MEM_MAP_PARAM_FIELD_LENGTH |
                      UCP_MEM_MAP_PARAM_FIELD_MEMORY_TYPE,
        .address = at,
        .length = bytes,
        .memory_type = on_gpu ? UCS_MEMORY_TYPE_CUDA : UCS_MEMORY_TYPE_HOST,
    };

    return ucp_mem_map(u->context, &params, out);
}

/* Maps signals and heap, so that one lane reaches both and orders puts with signals. */
static enum epa_status map_with_heap(struct ucx *u, void *heap, struct epa_error *err)
{
    ucs_status_t ucs;

    u->region.heap = heap;
    u->region.base = aligned_alloc(PAGE, u->region.heap_at);
    if (u->region.base == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "ucx: no memory for %u signals", u->signals);
    ucs = map_given(u, u->region.base, u->region.heap_at, false, &u->region.mem);
    if (ucs == UCS_OK)
        ucs = map_given(u, heap, u->base.heap_bytes, u->region.on_gpu, &u->region.heap_mem);
    return ucs == UCS_OK ? EPA_OK : explain_map(u, ucs, err);
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
    u->region.heap = u->region.base + u->region.heap_at;
    return EPA_OK;
}

enum epa_status region_init(struct ucx *u, const struct epa_transport_params *p,
                            struct epa_error *err)
{
    uint64_t heap_bytes = p->heap_bytes;
    enum epa_status status;

    u->region.given = p->heap != NULL;
    u->region.on_gpu = u->region.given && p->backend->memory == EPA_MEMORY_CUDA;
    if (heap_bytes > INT64_MAX / 2)
        return epa_fail(err, EPA_ERR_CONFIG, "ucx: a heap of %" PRIu64 " bytes is too large",
                        heap_bytes);
    u->region.signals_at = u->base.size * sizeof(struct line);
    u->region.heap_at = round_up(u->region.signals_at + u->signals * sizeof(struct line), PAGE);
    u->region.bytes = u->region.heap_at + round_up(heap_bytes, PAGE);
    status = create_context(u, err);
    if (status == EPA_OK)
        status = create_worker(u, err);
    if (status == EPA_OK)
        status = u->region.given ? map_with_heap(u, p->heap, err) : map(u, err);
    if (status == EPA_OK && !u->region.given)
        status = touch_memory("ucx", u->boot, u->region.base, u->region.bytes, false, err);
    if (status == EPA_OK)
        memset(u->region.base, 0, u->region.heap_at);
    return status;
}

void region_finish(struct ucx *u)
{
    if (u->region.mem != NULL)
        (void)ucp_mem_unmap(u->context, u->region.mem);
    if (u->region.heap_mem != NULL)
        (void)ucp_mem_unmap(u->context, u->region.heap_mem);
    if (u->region.given)
        free(u->region.base);
    if (u->worker != NULL)
        ucp_worker_destroy(u->worker);
    if (u->context != NULL)
        ucp_cleanup(u->context);
}

/* Returns true if UCX has a device with RDMA writes: rc or dc over InfiniBand or RoCE. */
static bool has_rdma(ucp_context_h context)
{
    char *text = NULL, choices[1024];
    size_t n;
    FILE *stream = open_memstream(&text, &n);

    if (stream != NULL) {
        ucp_context_print_info(context, stream);
        fclose(stream);
    }
    lanes_choices(text != NULL ? text : "", choices, sizeof(choices));
    free(text);
    return strstr(choices, "rc_") != NULL || strstr(choices, "dc_") != NULL;
}

/* Puts into GPU memory require RDMA. Over other transports UCX lets the peer's CPU copy the data,
 * and a polling kernel would see such copies out of order. */
enum epa_status region_takes(struct epa_bootstrap *boot, const void *config, enum epa_memory memory,
                             struct epa_error *err)
{
    enum { PUTS_OF_GPUS = 16 }; /* UCX 1.16: first version whose protocols put from GPU memory */
    unsigned major, minor, release;
    /* A world of several hosts, so that UCX examines all its devices. */
    struct epa_bootstrap none = {.world = {.size = 1, .local_size = 1, .interface = "lo"}};
    struct ucx u = {.boot = boot != NULL ? boot : &none, .config = *(const struct config *)config};
    ucp_context_attr_t attr = {.field_mask = UCP_ATTR_FIELD_MEMORY_TYPES};
    enum epa_status status;

    if (memory == EPA_MEMORY_HOST)
        return EPA_OK;
    u.base.size = u.boot->world.size;
    status = create_context(&u, err);
    if (status != EPA_OK)
        return status;
    ucp_get_version(&major, &minor, &release);
    if (ucp_context_query(u.context, &attr) != UCS_OK ||
        (attr.memory_types & UCS_BIT(UCS_MEMORY_TYPE_CUDA)) == 0)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "UCX %s takes no memory of GPUs here: it was built without CUDA, or may "
                          "not use it",
                          ucp_get_version_string());
    else if (major == 1 && minor < PUTS_OF_GPUS)
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "UCX %s does not put from memory of GPUs, from 1.%d on it does",
                          ucp_get_version_string(), PUTS_OF_GPUS);
    else if (!has_rdma(u.context))
        status = epa_fail(err, EPA_ERR_UNSUPPORTED,
                          "UCX %s has no RDMA device here that could write to memory of GPUs",
                          ucp_get_version_string());
    ucp_cleanup(u.context);
    return status;
}
