/* Clocks, links and other facts that only NVML knows. The driver includes NVML, and this file loads
 * it for the time of a query. The file declares the prototypes itself, since some toolkits lack the
 * header. Facts that NVML does not report are left out. */
#include "nvml.h"

#include "state.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

struct nvmlDevice_st; /* NVML's handle of a GPU */

enum {
    SM_CLOCK = 1,  /* nvmlClockType_t */
    MEM_CLOCK = 2, /* same */
    LINKS = 18,    /* NVML_NVLINK_MAX_LINKS */
    TO_GPU = 0,    /* nvmlIntNvLinkDeviceType_t */
    TO_SWITCH = 2, /* same */
    P2P_NVLINK = 2 /* nvmlGpuP2PCapsIndex_t */
};

/* All functions return nvmlReturn_t; 0 is success. */
struct nvml {
    int (*init)(void);
    int (*shutdown)(void);
    const char *(*error_string)(int);
    int (*driver_version)(char *, unsigned);
    int (*by_pci)(const char *, struct nvmlDevice_st **);
    int (*clock)(struct nvmlDevice_st *, int, unsigned *);
    int (*max_clock)(struct nvmlDevice_st *, int, unsigned *);
    int (*throttle)(struct nvmlDevice_st *, unsigned long long *);
    int (*power)(struct nvmlDevice_st *, unsigned *);
    int (*power_limit)(struct nvmlDevice_st *, unsigned *);
    int (*temperature)(struct nvmlDevice_st *, int, unsigned *);
    int (*mig)(struct nvmlDevice_st *, unsigned *now, unsigned *pending);
    int (*link_state)(struct nvmlDevice_st *, unsigned link, int *);
    int (*link_remote)(struct nvmlDevice_st *, unsigned link, int *);
    int (*p2p)(struct nvmlDevice_st *, struct nvmlDevice_st *, int, int *);
};

static const struct {
    size_t offset;
    const char *name, *older; /* older: earlier name of the function, or NULL */
} functions[] = {
    {offsetof(struct nvml, init), "nvmlInit_v2", NULL},
    {offsetof(struct nvml, shutdown), "nvmlShutdown", NULL},
    {offsetof(struct nvml, error_string), "nvmlErrorString", NULL},
    {offsetof(struct nvml, driver_version), "nvmlSystemGetDriverVersion", NULL},
    {offsetof(struct nvml, by_pci), "nvmlDeviceGetHandleByPciBusId_v2", NULL},
    {offsetof(struct nvml, clock), "nvmlDeviceGetClockInfo", NULL},
    {offsetof(struct nvml, max_clock), "nvmlDeviceGetMaxClockInfo", NULL},
    {offsetof(struct nvml, throttle), "nvmlDeviceGetCurrentClocksEventReasons",
     "nvmlDeviceGetCurrentClocksThrottleReasons"},
    {offsetof(struct nvml, power), "nvmlDeviceGetPowerUsage", NULL},
    {offsetof(struct nvml, power_limit), "nvmlDeviceGetEnforcedPowerLimit", NULL},
    {offsetof(struct nvml, temperature), "nvmlDeviceGetTemperature", NULL},
    {offsetof(struct nvml, mig), "nvmlDeviceGetMigMode", NULL},
    {offsetof(struct nvml, link_state), "nvmlDeviceGetNvLinkState", NULL},
    {offsetof(struct nvml, link_remote), "nvmlDeviceGetNvLinkRemoteDeviceType", NULL},
    {offsetof(struct nvml, p2p), "nvmlDeviceGetP2PStatus", NULL},
};

/* Reasons for clocks below the maximum (nvmlClocksEventReasons), except idle GPUs and clocks set by
 * the user, for which the clock is sufficient. */
static const struct {
    unsigned long long bit;
    const char *word;
} reasons[] = {
    {0x001, "idle"},           {0x002, "clocks were set"}, {0x004, "power cap"},
    {0x008, "hardware"},       {0x010, "sync boost"},      {0x020, "heat"},
    {0x040, "heat, hardware"}, {0x080, "power, hardware"}, {0x100, "display"},
};

static bool load(void *library, struct nvml *out)
{
    for (size_t i = 0; i < sizeof(functions) / sizeof(functions[0]); i++) {
        void *function = dlsym(library, functions[i].name);

        if (function == NULL && functions[i].older != NULL)
            function = dlsym(library, functions[i].older);
        if (function == NULL)
            return false;
        memcpy((char *)out + functions[i].offset, &function, sizeof(function));
    }
    return true;
}

EPA_PRINTF(3, 4)
static void tell(const struct nvml_question *q, const char *key, const char *fmt, ...)
{
    char value[512];
    va_list args;

    va_start(args, fmt);
    vsnprintf(value, sizeof(value), fmt, args);
    va_end(args);
    q->say(q->arg, key, value);
}

/* Appends a word to a list "a, b" in a buffer; drops the word if the buffer is full. */
static void add_word(char *list, size_t room, const char *word)
{
    size_t n = strlen(list);

    snprintf(list + n, room - n, "%s%s", n > 0 ? ", " : "", word);
}

static void tell_clock(const struct nvml *nvml, const struct nvml_question *q,
                       struct nvmlDevice_st *device, int kind, const char *key)
{
    unsigned now = 0, max = 0;

    if (nvml->clock(device, kind, &now) == 0 && nvml->max_clock(device, kind, &max) == 0)
        tell(q, key, "%u of %u MHz", now, max);
}

static void tell_throttle(const struct nvml *nvml, const struct nvml_question *q,
                          struct nvmlDevice_st *device)
{
    unsigned long long bits = 0;
    char list[256] = "";

    if (nvml->throttle(device, &bits) != 0)
        return;
    for (size_t i = 0; i < sizeof(reasons) / sizeof(reasons[0]); i++) {
        if ((bits & reasons[i].bit) != 0)
            add_word(list, sizeof(list), reasons[i].word);
    }
    tell(q, "throttle", "%s", list[0] == '\0' ? "none" : list);
}

static void tell_power(const struct nvml *nvml, const struct nvml_question *q,
                       struct nvmlDevice_st *device)
{
    unsigned milliwatts = 0, limit = 0, celsius = 0, mig = 0, pending = 0;

    if (nvml->power(device, &milliwatts) == 0 && nvml->power_limit(device, &limit) == 0)
        tell(q, "power", "%u of %u W", milliwatts / 1000, limit / 1000);
    if (nvml->temperature(device, 0, &celsius) == 0)
        tell(q, "temperature", "%u C", celsius);
    if (nvml->mig(device, &mig, &pending) == 0)
        tell(q, "mig", "%s", mig != 0 ? "on" : "off");
}

static void tell_links(const struct nvml *nvml, const struct nvml_question *q,
                       struct nvmlDevice_st *device)
{
    unsigned active = 0, to_switch = 0, to_gpu = 0;

    for (unsigned link = 0; link < LINKS; link++) {
        int on = 0, remote = -1;

        if (nvml->link_state(device, link, &on) != 0 || on == 0)
            continue;
        active++;
        if (nvml->link_remote(device, link, &remote) != 0)
            continue;
        to_switch += remote == TO_SWITCH;
        to_gpu += remote == TO_GPU;
    }
    if (active == 0)
        tell(q, "links", "none");
    else
        tell(q, "links", "%u active%s", active,
             to_switch == active ? ", to switches"
             : to_gpu == active  ? ", to GPUs"
                                 : "");
}

/* Reports the visible devices that the GPU reaches over NVLink. */
static void tell_peers(const struct nvml *nvml, const struct nvml_question *q,
                       struct nvmlDevice_st *device)
{
    char list[256] = "", word[16];

    for (int i = 0; i < q->n; i++) {
        struct nvmlDevice_st *peer = NULL;
        int status = -1;

        if (i == q->device)
            continue;
        if (q->pci[i][0] == '\0' || nvml->by_pci(q->pci[i], &peer) != 0 ||
            nvml->p2p(device, peer, P2P_NVLINK, &status) != 0 || status != 0)
            continue;
        snprintf(word, sizeof(word), "%d", i);
        add_word(list, sizeof(list), word);
    }
    if (q->n > 1)
        tell(q, "peers", "%s%s over NVLink", list[0] == '\0' ? "none" : "GPU ", list);
}

static void tell_all(const struct nvml *nvml, const struct nvml_question *q)
{
    char version[96] = "";
    struct nvmlDevice_st *device = NULL;
    int status;

    if (nvml->driver_version(version, sizeof(version)) == 0)
        tell(q, "driver", "%s", version);
    status = nvml->by_pci(q->pci[q->device], &device);
    if (status != 0) {
        tell(q, "nvml", "does not know the GPU: %s", nvml->error_string(status));
        return;
    }
    tell_clock(nvml, q, device, SM_CLOCK, "clock");
    tell_clock(nvml, q, device, MEM_CLOCK, "memory_clock");
    tell_throttle(nvml, q, device);
    tell_power(nvml, q, device);
    tell_links(nvml, q, device);
    tell_peers(nvml, q, device);
}

void nvml_describe(const struct nvml_question *q)
{
    void *library = dlopen("libnvidia-ml.so.1", RTLD_NOW | RTLD_LOCAL);
    struct nvml nvml = {0};
    int status;

    if (library == NULL) {
        tell(q, "nvml", "libnvidia-ml.so.1 is not there: no clocks and links");
        return;
    }
    if (!load(library, &nvml)) {
        tell(q, "nvml", "too old: no clocks and links");
    } else if ((status = nvml.init()) != 0) {
        tell(q, "nvml", "does not start: %s", nvml.error_string(status));
    } else {
        tell_all(&nvml, q);
        (void)nvml.shutdown();
    }
    dlclose(library);
}
