/* The GPU memory that ranks have of each other: signal words, then the heap. */
#ifndef MEMORY_H
#define MEMORY_H

#include "../../common/segments.h"
#include "../../common/transport_wait.h"
#include "exchange.h"
#include "kernels.h"

#include <cudaTypedefs.h>

enum memory_kind { MEMORY_AUTO, MEMORY_VMM, MEMORY_IPC };

/* What is called of the driver itself. */
struct driver {
    PFN_cuGetErrorString_v6000 error_string;
    PFN_cuDeviceGet_v2000 device_get;
    PFN_cuDeviceGetUuid_v11040 device_uuid;
    PFN_cuDeviceGetAttribute_v2000 device_attribute;
    PFN_cuPointerGetAttribute_v4000 pointer_attribute;
    PFN_cuMemGetAllocationGranularity_v10020 granularity;
    PFN_cuMemCreate_v10020 create;
    PFN_cuMemRelease_v10020 release;
    PFN_cuMemExportToShareableHandle_v10020 export_handle;
    PFN_cuMemImportFromShareableHandle_v10020 import_handle;
    PFN_cuMemAddressReserve_v10020 reserve;
    PFN_cuMemAddressFree_v10020 address_free;
    PFN_cuMemMap_v10020 map;
    PFN_cuMemUnmap_v10020 unmap;
    PFN_cuMemSetAccess_v10020 set_access;
    PFN_cuStreamBatchMemOp_v11070 batch_words;
};

enum epa_status driver_init(struct driver *out, struct epa_error *);

/* Collective: who has which GPU, out[size]. Refuses, alike on all ranks, where one of them
 * does not reach another that is near. */
enum epa_status gpus_meet(struct epa_bootstrap *, const bool *near, const struct driver *,
                          int device, struct gpu *out, struct epa_error *);

enum region_kind {
    REGION_NONE,
    REGION_VMM,    /* mapped by this rank for itself; the driver counts who uses it */
    REGION_OWNED,  /* allocated here; with REGION_SHARED the last of the process frees it */
    REGION_SHARED, /* of a rank of this process, at its owner's address */
    REGION_OPENED, /* through CUDA IPC */
};

struct region {
    enum region_kind kind;
    char *base;
    uint64_t bytes;
};

struct memory_params {
    struct epa_bootstrap *boot;
    const bool *near; /* [size] whose memory is mapped */
    bool far;         /* they are the node's, else all; a NIC may be given it, too */
    const struct driver *driver;
    const struct gpu *gpu; /* [size] */
    int device;
    enum memory_kind kind; /* not auto, the same on all ranks */
    uint64_t heap_bytes;
    uint32_t signals;    /* that the experiment asked for */
    cudaStream_t stream; /* zeroes the own region */
};

struct memory {
    struct memory_params params;
    struct segments pages; /* of host memory: barriers, and who uses GPU memory */
    struct epa_wait_config wait;
    uint64_t barriers; /* begun by this rank */
    uint32_t rank, size;
    uint64_t bytes, heap_at; /* of a region; where the heap begins in it */
    uint64_t handle;         /* VMM: of the own region, until all have mapped it */
    bool has_handle;
    int fd; /* VMM: that names it to other processes, until then */
    struct region region[EPA_DEVICE_RANKS];
};

/* Collective; words and heap are 0. On failure `out` is finished already. */
enum epa_status memory_init(struct memory *out, const struct memory_params *, struct epa_error *);
/* No kernel and no copy of this rank may use any of it any more. */
void memory_finish(struct memory *);

#endif
