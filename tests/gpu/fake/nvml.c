/* A libnvidia-ml.so.1 with four simulated GPUs: 0 and 2 have NVLink to each other through switches,
 * 1 and 3 have no links. FAKE_NVML=FUNCTION makes this function fail. */
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

/* Defines a function of NVML that fails if FAKE_NVML names it. */
#define ANSWER(name, parameters, ...) \
    FAKE int name parameters \
    { \
        __VA_ARGS__; \
        return result(#name); \
    }

FAKE const char *nvmlErrorString(int status)
{
    return status == FAILURE ? "Unknown Error" : "Success";
}

FAKE int nvmlDeviceGetHandleByPciBusId_v2(const char *pci, struct nvmlDevice_st **out)
{
    unsigned bus = 0;

    if (sscanf(pci, "0000:%x:00.0", &bus) != 1 || bus >= 4)
        return FAILURE;
    *out = &device[bus];
    return result("nvmlDeviceGetHandleByPciBusId_v2");
}

FAKE int nvmlDeviceGetNvLinkState(struct nvmlDevice_st *d, unsigned link, int *out)
{
    *out = link < LINKS;
    return d->index % 2 == 1 ? FAILURE : 0;
}

#define OF struct nvmlDevice_st *d
ANSWER(nvmlInit_v2, (void), )
ANSWER(nvmlShutdown, (void), )
ANSWER(nvmlSystemGetDriverVersion, (char *out, unsigned room), snprintf(out, room, "580.1.2"))
ANSWER(nvmlDeviceGetClockInfo, (OF, int kind, unsigned *out), *out = kind == 1 ? 1755 : 2619)
ANSWER(nvmlDeviceGetMaxClockInfo, (OF, int kind, unsigned *out), *out = kind == 1 ? 1980 : 3201)
/* Name in old drivers; the newer name is missing here. */
ANSWER(nvmlDeviceGetCurrentClocksThrottleReasons, (OF, unsigned long long *out),
       *out = d->index == 0 ? 0x24 : 0)
ANSWER(nvmlDeviceGetPowerUsage, (OF, unsigned *out), *out = 123456)
ANSWER(nvmlDeviceGetEnforcedPowerLimit, (OF, unsigned *out), *out = 700000)
ANSWER(nvmlDeviceGetTemperature, (OF, int sensor, unsigned *out), *out = 41 + (unsigned)sensor)
ANSWER(nvmlDeviceGetMigMode, (OF, unsigned *now, unsigned *pending), *now = d->index == 3;
       *pending = 0)
ANSWER(nvmlDeviceGetNvLinkRemoteDeviceType, (OF, unsigned link, int *out), *out = 2)
ANSWER(nvmlDeviceGetP2PStatus, (OF, struct nvmlDevice_st *to, int kind, int *out),
       *out = kind == 2 && d->index % 2 == 0 && to->index % 2 == 0 ? 0 : 4)
