/* The state of the CUDA backend: one device, one stream, one rank. Only the rank's thread uses the
 * backend. */
#ifndef CUDA_STATE_H
#define CUDA_STATE_H

#include <cuda_runtime_api.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdint.h>
#include <epa2a/backend.h>

enum { CUDA_MARKS = 64 };

/* Value of cuda_config.device: the rank on its node selects the device. */
#define CUDA_ANY_DEVICE UINT32_MAX

struct cuda_config {
    bool share;
    uint32_t device;
    struct epa_u32_list devices;
};

/* Pinned, mapped memory that kernels read. */
struct cuda_words {
    uint32_t stop, beat;    /* base.stop and base.beat are their device addresses */
    struct epa_fault fault; /* base.device_fault->host is its device address */
};

struct cuda {
    struct epa_backend base; /* first */
    struct epa_bootstrap *boot;
    cudaStream_t stream; /* of the backend; base.stream is the stream in use */
    int before;          /* current device of the thread before open() or begin() */
    enum cudaStreamCaptureMode captures_before; /* of the thread, likewise */
    cudaEvent_t mark[CUDA_MARKS];
    uint64_t marked; /* bit mask of the recorded marks */
    struct cuda_words *words;
    struct {
        pthread_t thread;
        bool started;
        uint32_t stop; /* the rank's own thread writes it */
    } beat;
    struct epa_fault *fault; /* pinned: sync() copies *base.device_fault here */
    void *flush;             /* buffer that flush_cache() writes */
    size_t flush_bytes;
    uint32_t sharers; /* number of ranks on this device, including this one */
    bool capturing;
    bool lost;             /* the device hangs; a call that waits for it may never return */
    struct epa_error last; /* last failure, for explain() */
};

/* The device of a rank. */
struct cuda_place {
    int device;
    uint32_t sharers; /* number of ranks of this host on the device, including this one */
};

/* Facts of NVML about a device, for describe(). PCI bus ids name devices. */
enum { NVML_PCI_ID = 32 };

struct nvml_question {
    char (*pci)[NVML_PCI_ID]; /* [n]: bus ids of all devices that the program sees */
    int n, device;            /* pci[device] is the device of the question */
    void (*say)(void *arg, const char *key, const char *value);
    void *arg;
};

#endif
