/* Chooses the device of a rank, or reports why no device fits. The runtime returns the same error
 * for a missing driver and for an old driver; this file distinguishes them. */
#include "choose.h"

#include "state.h"

#include <stdio.h>
#include <stdlib.h>
#include <string.h>

/* Kernels contain code for capability 9.0, and PTX that the driver translates for later devices. */
enum { LEAST_CAPABILITY = 90 };

static int major_of(int version)
{
    return version / 1000;
}

static int minor_of(int version)
{
    return version % 1000 / 10;
}

static enum epa_status refuse_driver(cudaError_t why, struct epa_error *err)
{
    int driver = 0, runtime = 0;

    (void)cudaDriverGetVersion(&driver); /* 0 without a driver */
    (void)cudaRuntimeGetVersion(&runtime);
    if (driver == 0)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "backend.name",
                            "cuda: no NVIDIA driver: libcuda.so.1 cannot be loaded (%s); install a "
                            "driver for CUDA %d.%d or later, or use backend: {name: host}",
                            cudaGetErrorName(why), major_of(runtime), minor_of(runtime));
    if (why == cudaErrorInsufficientDriver)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "cuda: the NVIDIA driver is for CUDA %d.%d, and this program was built "
                        "with %d.%d; install a newer driver, or build with CUDA %d.%d or older",
                        major_of(driver), minor_of(driver), major_of(runtime), minor_of(runtime),
                        major_of(driver), minor_of(driver));
    return epa_fail(err, EPA_ERR_SYSTEM, "cuda: the NVIDIA driver (CUDA %d.%d) fails: %s: %s",
                    major_of(driver), minor_of(driver), cudaGetErrorName(why),
                    cudaGetErrorString(why));
}

static enum epa_status count_devices(int *out, struct epa_error *err)
{
    const char *visible = getenv("CUDA_VISIBLE_DEVICES");
    int n = 0;
    cudaError_t status = cudaGetDeviceCount(&n);

    (void)cudaGetLastError(); /* clears the error, which this function reports */
    if (status != cudaSuccess && status != cudaErrorNoDevice)
        return refuse_driver(status, err);
    if (status == cudaErrorNoDevice || n == 0)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "backend.name",
                            "cuda: there is a driver, but no GPU%s%s%s; use backend: {name: host}",
                            visible == NULL ? "" : " that CUDA_VISIBLE_DEVICES (",
                            visible == NULL ? "" : visible, visible == NULL ? "" : ") shows");
    *out = n;
    return EPA_OK;
}

static int device_of(const struct cuda_config *c, int n, uint32_t local_rank)
{
    return c->devices.n > 0 ? (int)c->devices.item[local_rank % c->devices.n]
                            : (int)(local_rank % (uint32_t)n);
}

static enum epa_status check_list(const struct cuda_config *c, int n, struct epa_error *err)
{
    for (uint32_t i = 0; i < c->devices.n; i++) {
        if (c->devices.item[i] >= (uint32_t)n)
            return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "backend.devices",
                                "cuda: backend.devices names GPU %u, and there are %d, from 0 on",
                                c->devices.item[i], n);
    }
    return EPA_OK;
}

enum epa_status cuda_choose(const struct cuda_config *c, const struct epa_world *world,
                            struct cuda_place *out, struct epa_error *err)
{
    /* Nodes that are parts of one host (ranks_per_node) share its GPUs. */
    bool one_host = world->interface == NULL;
    uint32_t rank = one_host ? world->rank : world->local_rank;
    uint32_t ranks = one_host ? world->size : world->local_size;
    struct cuda_place place = {0};
    int n = 0;
    uint32_t have;
    enum epa_status status = count_devices(&n, err);

    if (status == EPA_OK)
        status = check_list(c, n, err);
    if (status != EPA_OK)
        return status;
    if (c->device != CUDA_ANY_DEVICE) {
        if (c->device >= (uint32_t)n)
            return epa_fail_key(err, EPA_ERR_CONFIG, "backend.device",
                                "cuda: this rank selects GPU %u, and its process sees %d, from 0 "
                                "on",
                                c->device, n);
        *out = (struct cuda_place){.device = (int)c->device, .sharers = 1};
        return EPA_OK;
    }
    have = c->devices.n > 0 ? c->devices.n : (uint32_t)n;
    if (have < ranks && !c->share)
        return epa_fail_key(
            err, EPA_ERR_UNSUPPORTED, "backend.devices ranks",
            "cuda: %u ranks on this host and %u GPU%s%s: each rank wants its own; "
            "use fewer ranks, or backend.share: true, which is for checking and not "
            "for measuring",
            ranks, have, have == 1 ? "" : "s", c->devices.n > 0 ? " in backend.devices" : "");
    place.device = device_of(c, n, rank);
    for (uint32_t r = 0; r < ranks; r++)
        place.sharers += device_of(c, n, r) == place.device;
    if (place.sharers > 1 && !c->share)
        return epa_fail_key(err, EPA_ERR_CONFIG, "backend.devices",
                            "cuda: backend.devices gives GPU %d to %u ranks; name each once, or "
                            "set backend.share: true",
                            place.device, place.sharers);
    *out = place;
    return EPA_OK;
}

/* A GPU of the cluster. Device numbers differ between processes, and several nodes of the world may be
 * parts of one host (ranks_per_node). The boot id distinguishes hosts. */
struct gpu_name {
    char boot_id[40];
    char pci[NVML_PCI_ID];
};

static enum epa_status read_boot_id(char *out, size_t room, struct epa_error *err)
{
    static const char path[] = "/proc/sys/kernel/random/boot_id";
    FILE *file = fopen(path, "re");
    bool read = file != NULL && fgets(out, (int)room, file) != NULL;

    if (file != NULL)
        (void)fclose(file);
    return read ? EPA_OK : epa_fail(err, EPA_ERR_SYSTEM, "cuda: cannot read %s", path);
}

enum epa_status cuda_share(const struct cuda_config *c, struct epa_bootstrap *boot,
                           struct cuda_place *place, struct epa_error *err)
{
    const struct epa_world *w = &boot->world;
    struct gpu_name mine = {.pci = ""}, *all;
    enum epa_status status;
    uint32_t other = w->rank;

    if (c->device == CUDA_ANY_DEVICE)
        return EPA_OK;
    if (cudaDeviceGetPCIBusId(mine.pci, sizeof(mine.pci), place->device) != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM, "cuda: GPU %d does not tell its PCI bus id",
                        place->device);
    status = read_boot_id(mine.boot_id, sizeof(mine.boot_id), err);
    if (status != EPA_OK)
        return status;
    all = calloc(w->size, sizeof(*all));
    if (all == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "cuda: no memory for the GPUs of %u ranks", w->size);
    status = boot->allgather(boot, &mine, sizeof(mine), all);
    place->sharers = 0;
    for (uint32_t r = 0; r < w->size && status == EPA_OK; r++)
        if (memcmp(&all[r], &mine, sizeof(mine)) == 0) {
            place->sharers++;
            other = r != w->rank ? r : other;
        }
    free(all);
    if (status == EPA_OK && place->sharers > 1 && !c->share)
        return epa_fail_key(err, EPA_ERR_CONFIG, "backend.device",
                            "cuda: ranks %u and %u selected the same GPU (%s); give each rank its "
                            "own, or set backend.share to true, for checks only",
                            w->rank < other ? w->rank : other, w->rank < other ? other : w->rank,
                            mine.pci);
    return status;
}

static enum epa_status check_capability(int device, struct epa_error *err)
{
    int major = 0, minor = 0;
    cudaError_t status = cudaDeviceGetAttribute(&major, cudaDevAttrComputeCapabilityMajor, device);

    if (status == cudaSuccess)
        status = cudaDeviceGetAttribute(&minor, cudaDevAttrComputeCapabilityMinor, device);
    if (status != cudaSuccess)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "cuda: GPU %d does not tell its compute capability: %s", device,
                        cudaGetErrorString(status));
    if (major * 10 + minor < LEAST_CAPABILITY)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "cuda: GPU %d has compute capability %d.%d, and kernels of this build "
                        "need %d.%d or later",
                        device, major, minor, LEAST_CAPABILITY / 10, LEAST_CAPABILITY % 10);
    return EPA_OK;
}

static const char *mode_of(int device)
{
    int mode = cudaComputeModeDefault;

    (void)cudaDeviceGetAttribute(&mode, cudaDevAttrComputeMode, device);
    return mode == cudaComputeModeProhibited         ? "; its compute mode lets no program use it"
           : mode == cudaComputeModeExclusiveProcess ? "; its compute mode lets one process at a "
                                                       "time use it"
                                                     : "";
}

enum epa_status cuda_take(int device, struct epa_error *err)
{
    enum epa_status status = check_capability(device, err);
    cudaError_t why;

    if (status != EPA_OK)
        return status;
    why = cudaSetDevice(device); /* also creates the device's context */
    if (why == cudaSuccess)
        why = cudaFree(NULL);
    (void)cudaGetLastError();
    if (why == cudaSuccess)
        return EPA_OK;
    return epa_fail_key(err, why == cudaErrorMemoryAllocation ? EPA_ERR_NOMEM : EPA_ERR_SYSTEM,
                        EPA_LIMIT_NAMED, "cuda: GPU %d cannot be used: %s: %s%s", device,
                        cudaGetErrorName(why), cudaGetErrorString(why), mode_of(device));
}
