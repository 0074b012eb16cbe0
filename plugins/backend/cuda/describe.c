/* Facts about the device for reports: this file asks the CUDA runtime, nvml.c asks NVML. All facts
 * are optional. */
#include "describe.h"

#include "nvml.h"
#include "state.h"
#include "stream.h"

#include <stdio.h>
#include <stdlib.h>

enum { VALUE = 128 };

struct telling {
    void (*say)(void *arg, const char *key, const char *value);
    void *arg;
};

EPA_PRINTF(3, 4)
static void tell(const struct telling *t, const char *key, const char *fmt, ...)
{
    char value[VALUE];
    va_list args;

    va_start(args, fmt);
    vsnprintf(value, sizeof(value), fmt, args);
    va_end(args);
    t->say(t->arg, key, value);
}

static void tell_versions(const struct telling *t)
{
    int driver = 0, runtime = 0;

    if (cudaDriverGetVersion(&driver) == cudaSuccess &&
        cudaRuntimeGetVersion(&runtime) == cudaSuccess)
        tell(t, "cuda", "runtime %d.%d, driver for %d.%d", runtime / 1000, runtime % 1000 / 10,
             driver / 1000, driver % 1000 / 10);
}

static void tell_device(const struct telling *t, const struct cuda *c)
{
    struct cudaDeviceProp prop;

    if (cudaGetDeviceProperties(&prop, c->base.device) != cudaSuccess)
        return;
    tell(t, "device", "%s", prop.name);
    tell(t, "capability", "%d.%d", prop.major, prop.minor);
    if (c->sharers > 1)
        tell(t, "multiprocessors", "%d, %u for each of the %u ranks on it",
             prop.multiProcessorCount, c->base.multiprocessors, c->sharers);
    else
        tell(t, "multiprocessors", "%d", prop.multiProcessorCount);
    tell(t, "memory", "%.1f GiB", (double)prop.totalGlobalMem / (1u << 30));
    tell(t, "l2", "%.1f MiB", (double)prop.l2CacheSize / (1u << 20));
}

void cuda_describe(struct epa_backend *base,
                   void (*say)(void *arg, const char *key, const char *value), void *arg)
{
    struct cuda *c = cuda_fresh(base);
    struct telling t = {say, arg};
    char(*pci)[NVML_PCI_ID];
    int n = 0;

    if (cuda_enter_eager(c, "describe") != EPA_OK)
        return;
    tell_device(&t, c);
    tell_versions(&t);
    if (cudaGetDeviceCount(&n) != cudaSuccess || n <= c->base.device)
        return;
    pci = calloc((size_t)n, sizeof(*pci));
    if (pci == NULL)
        return;
    for (int i = 0; i < n; i++)
        (void)cudaDeviceGetPCIBusId(pci[i], NVML_PCI_ID, i); /* "": unknown */
    tell(&t, "pci", "%s", pci[c->base.device]);
    nvml_describe(&(struct nvml_question){pci, n, c->base.device, say, arg});
    free(pci);
    (void)cudaGetLastError();
}
