/* Registers GPU memory with the RDMA device: the driver exports a range as a dma-buf, libibverbs
 * registers the dma-buf, and this file closes the descriptor. The code loads libcuda.so.1 and looks
 * up ibv_reg_dmabuf_mr() (rdma-core 34) only when a caller asks for GPU memory. The plugin is
 * therefore built without CUDA and loads on machines without either. */
#include "dmabuf.h"

#include "state.h"

#include <dlfcn.h>
#include <errno.h>
#include <inttypes.h>
#include <stdint.h>
#include <string.h>
#include <unistd.h>

enum { PAGE = 4096 }; /* exported ranges consist of host pages */

/* Values of cuda.h. */
enum {
    DEVICE_DMA_BUF_SUPPORTED = 124,
    POINTER_MEMORY_TYPE = 2,
    POINTER_BUFFER_ID = 7,
    POINTER_DEVICE_ORDINAL = 9,
    POINTER_RANGE_START_ADDR = 11,
    POINTER_RANGE_SIZE = 12,
    MEMORY_TYPE_DEVICE = 2,
    HANDLE_DMA_BUF_FD = 1,
};

static const char *said(const struct dmabuf *d, int error)
{
    const char *text = NULL;

    return d->error_string(error, &text) == 0 && text != NULL ? text : "an error without a name";
}

enum epa_status dmabuf_init(struct dmabuf *out, struct epa_error *err)
{
    struct dmabuf d;
    const struct {
        const char *name;
        void *to;
    } function[] = {
        {"cuInit", &d.init},
        {"cuGetErrorString", &d.error_string},
        {"cuDeviceGetCount", &d.count},
        {"cuDeviceGetAttribute", &d.device_attribute},
        {"cuDevicePrimaryCtxRetain", &d.retain},
        {"cuDevicePrimaryCtxRelease_v2", &d.release},
        {"cuCtxPushCurrent_v2", &d.push},
        {"cuCtxPopCurrent_v2", &d.pop},
        {"cuPointerGetAttributes", &d.pointer_attributes},
        {"cuMemGetHandleForAddressRange", &d.export_range},
    };
    void *library, *at = dlsym(RTLD_DEFAULT, "ibv_reg_dmabuf_mr");
    int error;

    if (at == NULL)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "verbs: libibverbs has no ibv_reg_dmabuf_mr() for memory of GPUs; rdma-core "
            "has it from version 34 on");
    memcpy(&d.reg, &at, sizeof(at));
    /* The library stays loaded: an initialised driver cannot be unloaded safely. */
    library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    if (library == NULL)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verbs: no driver that exports memory of GPUs: %s", dlerror());
    for (size_t i = 0; i < sizeof(function) / sizeof(*function); i++) {
        at = dlsym(library, function[i].name);
        if (at == NULL)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "verbs: the NVIDIA driver has no %s() to export memory of GPUs; CUDA "
                            "11.7 brought it",
                            function[i].name);
        memcpy(function[i].to, &at, sizeof(at));
    }
    error = d.init(0);
    if (error != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "verbs: cuInit: %s", said(&d, error));
    *out = d;
    return EPA_OK;
}

/* Checks that libibverbs, the driver of the RDMA device and the driver of each GPU support
 * dma-buf. */
enum epa_status dmabuf_check(const struct device *device, struct epa_error *err)
{
    struct dmabuf d;
    struct ibv_mr *mr;
    int n = 0, has;
    enum epa_status status;

    if (device->software)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "verbs: %s is a software device, which cannot reach GPU memory",
                        device->port.device);
    status = dmabuf_init(&d, err);
    if (status != EPA_OK)
        return status;
    /* Descriptor -1: a driver with support returns EBADF, a driver without it EOPNOTSUPP. */
    mr = d.reg(device->pd, 0, PAGE, 0, -1, 0);
    if (mr != NULL)
        ibv_dereg_mr(mr);
    else if (errno == EOPNOTSUPP || errno == EPROTONOSUPPORT)
        return epa_fail(
            err, EPA_ERR_UNSUPPORTED,
            "verbs: the driver of %s cannot register a dma-buf, which GPU memory requires",
            device->port.device);
    if (d.count(&n) != 0 || n == 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "verbs: this machine has no GPU");
    for (int i = 0; i < n; i++) /* a device number is also its handle */
        if (d.device_attribute(&has, DEVICE_DMA_BUF_SUPPORTED, i) != 0 || has == 0)
            return epa_fail(err, EPA_ERR_UNSUPPORTED,
                            "verbs: the driver does not export memory of GPU %d as a dma-buf", i);
    return EPA_OK;
}

void dmabuf_find(const struct dmabuf *d, const void *at, struct dmabuf_range *out)
{
    unsigned type = 0;
    int attribute[] = {POINTER_MEMORY_TYPE, POINTER_BUFFER_ID, POINTER_DEVICE_ORDINAL,
                       POINTER_RANGE_START_ADDR, POINTER_RANGE_SIZE};
    struct dmabuf_range range = {.device = 0};
    void *value[] = {&type, &range.id, &range.device, &range.start, &range.bytes};

    *out = (struct dmabuf_range){.id = 0};
    /* The driver returns zeros for unknown memory. */
    if (d->pointer_attributes(sizeof(value) / sizeof(*value), attribute, value, (uintptr_t)at) !=
            0 ||
        type == 0)
        return;
    range.on_gpu = type == MEMORY_TYPE_DEVICE;
    *out = range;
}

/* Exporting may require the context of the GPU, which the proxy's thread lacks. */
static int export_range(const struct dmabuf *d, int device, uint64_t at, uint64_t bytes, int *fd)
{
    void *context = NULL;
    int error = d->retain(&context, device);

    if (error != 0)
        return error;
    error = d->push(context);
    if (error == 0) {
        error = d->export_range(fd, at, bytes, HANDLE_DMA_BUF_FD, 0);
        (void)d->pop(&context);
    }
    (void)d->release(device);
    return error;
}

enum epa_status dmabuf_register(const struct dmabuf *d, const struct device *device,
                                const struct dmabuf_range *range, int access, struct ibv_mr **out,
                                struct epa_error *err)
{
    uint64_t at = range->start / PAGE * PAGE;
    uint64_t bytes = (range->start + range->bytes - at + PAGE - 1) / PAGE * PAGE;
    int fd = -1, error = export_range(d, range->device, at, bytes, &fd);
    struct ibv_mr *mr;

    if (error != 0)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "verbs: GPU %d does not export %" PRIu64 " bytes as a dma-buf: %s",
                        range->device, bytes, said(d, error));
    mr = d->reg(device->pd, 0, bytes, at, fd, access);
    error = errno;
    close(fd); /* the registration keeps the memory alive */
    if (mr == NULL)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, error,
                              "verbs: %s refuses to register %" PRIu64 " bytes of GPU %d: %s",
                              device->port.device, bytes, range->device, strerror(error));
    *out = mr;
    return EPA_OK;
}
