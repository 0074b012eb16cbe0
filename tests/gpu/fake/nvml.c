/* A libnvidia-ml.so.1 of four GPUs that no machine needs to have: 0 and 2 have NVLink to
 * each other through switches, 1 and 3 have none. FAKE_NVML=FUNCTION makes that function
 * fail. */
#pragma GCC diagnostic ignored "-Wunused-parameter"
#pragma GCC diagnostic ignored "-Wmissing-prototypes"
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#define FAKE __attribute__((visibility("default")))

enum { FAILURE = 999, LINKS = 6 };

struct nvmlDevice_st {
    int index;
};

static struct nvmlDevice_st device[4] = {{0}, {1}, {2}, {3}};

static int result(const char *function)
{
    const char *failing = getenv("FAKE_NVML");

    return failing != NULL && strcmp(failing, function) == 0 ? FAILURE : 0;
}

FAKE int nvmlInit_v2(void)
{
    return result("nvmlInit_v2");
}

FAKE int nvmlShutdown(void)
{
    return 0;
}

FAKE const char *nvmlErrorString(int status)
{
    return status == FAILURE ? "Unknown Error" : "Success";
}

FAKE int nvmlSystemGetDriverVersion(char *out, unsigned room)
{
    snprintf(out, room, "580.1.2");
    return result("nvmlSystemGetDriverVersion");
}

FAKE int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct nvmlDevice_st **out)
{
    unsigned bus = 0;

    if (sscanf(pci, "0000:%x:00.0", &bus) != 1 || bus >= 4)
        return FAILURE;
    *out = &device[bus];
    return result("nvmlDeviceGetHandleByPciBusId_v2");
}

FAKE int nvmlDeviceGetClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out)
{
    *out = kind == 1 ? 1755 : 2619;
    return result("nvmlDeviceGetClockInfo");
}

FAKE int nvmlDeviceGetMaxClockInfo(struct nvmlDevice_st *d, int kind, unsigned *out)
{
    *out = kind == 1 ? 1980 : 3201;
    return result("nvmlDeviceGetMaxClockInfo");
}

/* The name of old drivers; the newer one is missing here. */
FAKE int nvmlDeviceGetCurrentClocksThrottleReasons(struct nvmlDevice_st *d, unsigned long long *out)
{
    *out = d->index == 0 ? 0x24 : 0;
    return result("nvmlDeviceGetCurrentClocksThrottleReasons");
}

FAKE int nvmlDeviceGetPowerUsage(struct nvmlDevice_st *d, unsigned *out)
{
    *out = 123456;
    return result("nvmlDeviceGetPowerUsage");
}

FAKE int nvmlDeviceGetEnforcedPowerLimit(struct nvmlDevice_st *d, unsigned *out)
{
    *out = 700000;
    return 0;
}

FAKE int nvmlDeviceGetTemperature(struct nvmlDevice_st *d, int sensor, unsigned *out)
{
    *out = 41;
    return sensor;
}

FAKE int nvmlDeviceGetMigMode(struct nvmlDevice_st *d, unsigned *now, unsigned *pending)
{
    *now = d->index == 3;
    *pending = 0;
    return 0;
}

FAKE int nvmlDeviceGetNvLinkState(struct nvmlDevice_st *d, unsigned link, int *out)
{
    *out = link < LINKS;
    return d->index % 2 == 1 ? FAILURE : 0;
}

FAKE int nvmlDeviceGetNvLinkRemoteDeviceType(struct nvmlDevice_st *d, unsigned link, int *out)
{
    *out = 2;
    return result("nvmlDeviceGetNvLinkRemoteDeviceType");
}

FAKE int nvmlDeviceGetP2PStatus(struct nvmlDevice_st *a, struct nvmlDevice_st *b, int kind,
                                int *out)
{
    *out = kind == 2 && a->index % 2 == 0 && b->index % 2 == 0 ? 0 : 4;
    return 0;
}
