/* GPU memory that all near ranks map: signal words, then the heap. */
#ifndef MEMORY_H
#define MEMORY_H

#include "../../common/segments.h"
#include "../../common/transport_wait.h"
#include "exchange.h"
#include "nvlink_kernels.h"

#include <cudaTypedefs.h>

enum memory_kind { MEMORY_AUTO, MEMORY_VMM, MEMORY_IPC };

/* Functions of the CUDA driver API. */
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

enum region_kind {
    REGION_NONE,
    REGION_VMM,    /* mapped by this rank; the driver counts its users */
    REGION_OWNED,  /* allocated by this rank; the last user in the process frees it */
    REGION_SHARED, /* region of a rank of this process, at its owner's address */
    REGION_OPENED, /* opened through CUDA IPC */
};

struct region {
    enum region_kind kind;
    char *base;
    uint64_t bytes;
};

struct memory_params {
    struct epa_bootstrap *boot;
    const bool *near; /* [size]: ranks whose memory this rank maps */
    bool far;         /* some ranks are not near; a NIC may use the region, too */
    const struct driver *driver;
    const struct gpu *gpu; /* [size] */
    int device;
    enum memory_kind kind; /* equal on all ranks, and not auto */
    uint64_t heap_bytes;
    uint32_t signals;    /* number of signals of the experiment */
    cudaStream_t stream; /* stream that zeroes the own region */
};

struct memory {
    struct memory_params params;
    struct segments pages; /* host memory for barriers and for counts of users of GPU memory */
    struct epa_wait_config wait;
    uint64_t barriers; /* number of barriers that this rank has entered */
    uint32_t rank, size;
    uint64_t bytes, heap_at; /* of a region; where the heap begins in it */
    uint64_t handle;         /* VMM: handle of the own region until all ranks have mapped it */
    bool has_handle;
    int fd; /* VMM: descriptor of the handle for other processes, until then */
    struct region region[EPA_DEVICE_RANKS];
};

/* Collective. Zeroes words and heap. After a failure `out` is finished. */
enum epa_status memory_init(struct memory *out, const struct memory_params *, struct epa_error *);
/* The caller guarantees that no kernel and no copy of this rank uses the memory. */
void memory_finish(struct memory *);

#endif
