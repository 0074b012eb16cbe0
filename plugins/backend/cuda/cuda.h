/* The state of the CUDA backend: one device, one stream, one rank. Only the rank's thread uses the
 * backend. */
#ifndef EPA2A_BACKEND_CUDA_H
#define EPA2A_BACKEND_CUDA_H

#include <cuda_runtime_api.h>
#include <stdint.h>
#include <stdbool.h>
#include <epa2a/backend.h>

enum { CUDA_MARKS = 64 };

struct cuda_config {
    bool share;
    struct epa_u32_list devices;
};

struct cuda {
    struct epa_backend base; /* first */
    struct epa_bootstrap *boot;
    cudaStream_t stream;
    cudaEvent_t mark[CUDA_MARKS];
    uint64_t marked;         /* bit mask of the recorded marks */
    uint32_t *stop;          /* pinned, mapped: base.stop is its device address */
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

/* Chooses a device. Errors: no driver, an old driver, fewer devices than ranks. Creates no
 * context. */
enum epa_status cuda_choose(const struct cuda_config *, const struct epa_world *,
                            struct cuda_place *out, struct epa_error *);

/* Makes the device current for the thread. Errors: the device cannot run the kernels of this build,
 * or another program uses it exclusively. */
enum epa_status cuda_take(int device, struct epa_error *);

/* Returns the backend after clearing its last failure. */
struct cuda *cuda_fresh(struct epa_backend *);

/* Records the failed call and its error. Device errors are sticky: an earlier call may be the
 * cause. */
enum epa_status cuda_fail(struct cuda *, cudaError_t why, const char *call);
enum epa_status cuda_check(struct cuda *, cudaError_t why, const char *call);

/* First call of each function that uses the runtime: makes the rank's device current. The eager
 * variant is for functions that a graph cannot record: it fails between capture_begin and
 * capture_end. */
enum epa_status cuda_enter(struct cuda *);
enum epa_status cuda_enter_eager(struct cuda *, const char *what);

/* Waits until the stream is done. After the failure of a rank, or at once with `stop`, asks kernels
 * to end and allows a few seconds; a device that takes longer is `lost`. */
enum epa_status cuda_drain(struct cuda *, bool stop);

enum epa_status cuda_sync(struct epa_backend *);
enum epa_status cuda_mark(struct epa_backend *, uint32_t i);
enum epa_status cuda_elapsed(struct epa_backend *, uint32_t i, uint32_t j, double *ns);
enum epa_status cuda_capture_begin(struct epa_backend *);
enum epa_status cuda_capture_end(struct epa_backend *, struct epa_graph **out);
enum epa_status cuda_graph_launch(struct epa_backend *, struct epa_graph *);
enum epa_status cuda_clock(struct epa_backend *, int64_t *low_ns, int64_t *high_ns);
enum epa_status cuda_peaks(struct epa_backend *, enum epa_dtype, double *flops_per_ns,
                           double *bytes_per_ns);
void cuda_graph_destroy(struct epa_backend *, struct epa_graph *);
void cuda_describe(struct epa_backend *, void (*say)(void *arg, const char *key, const char *value),
                   void *arg);

enum epa_status cuda_experts_create(struct epa_backend *, const struct epa_experts_params *,
                                    struct epa_experts **out, struct epa_error *);
enum epa_status cuda_experts_run(struct epa_experts *, const struct epa_moe *, void *y);
const char *cuda_experts_name(const struct epa_experts *);
void cuda_experts_destroy(struct epa_experts *);

/* Facts of NVML about a device, for describe(). PCI bus ids name devices. */
enum { NVML_PCI_ID = 32 };

struct nvml_question {
    char (*pci)[NVML_PCI_ID]; /* [n]: bus ids of all devices that the program sees */
    int n, device;            /* pci[device] is the device of the question */
    void (*say)(void *arg, const char *key, const char *value);
    void *arg;
};

void nvml_describe(const struct nvml_question *);

/* The kernel of cuda_clock(). */

#ifdef __cplusplus
extern "C" {
#endif

#define CLOCK_WAITS_NS 2000000000u /* time limit of the kernel for the host's next request */

/* In pinned memory that host and kernel share. */
struct clock_words {
    uint64_t asked;    /* round that the host requests; the host stores with release */
    uint64_t time_ns;  /* device time in round `answered` */
    uint64_t answered; /* round of the reply; the kernel stores with release */
};

/* Queues the kernel that replies in `rounds` rounds. `words` is a device address. */
cudaError_t clock_queue(struct clock_words *words, uint32_t rounds, cudaStream_t);

#ifdef __cplusplus
}
#endif

/* Kernels of cuda_peaks(). */

#ifdef __cplusplus
extern "C" {
#endif

struct peak_run {
    enum epa_dtype dtype; /* EPA_BF16, EPA_F16 or EPA_FP8_E4M3 */
    uint32_t blocks;      /* one per multiprocessor */
    uint32_t rounds;      /* number of products per warpgroup */
    void *memory;         /* zeroed memory for the reading kernel */
    uint64_t bytes;
};

double peak_flops(const struct peak_run *);
cudaError_t peak_queue_multiply(const struct peak_run *, cudaStream_t);
cudaError_t peak_queue_read(const struct peak_run *, cudaStream_t);

#ifdef __cplusplus
}
#endif

/* Kernels around the products of real experts (experts.c). They gather, quantise or dequantise rows
 * that the products cannot read directly, and add up a row's outputs. */

#ifdef __cplusplus
extern "C" {
#endif

/* Received entries in the layout of dispatch (struct epa_moe), and the same entries "packed": one
 * expert after the other. */
struct rows_args {
    uint32_t experts, hidden;
    uint32_t entries;         /* maximum of packed entries */
    uint64_t recv_entries;    /* capacity of the received lists */
    const uint32_t *count;    /* [experts] */
    const uint64_t *start;    /* [experts] */
    const uint32_t *recv_row; /* [entries] or NULL */
    const char *recv;
    size_t recv_stride;
    const char *recv_scale; /* FP8 */
    size_t scale_stride;
    uint32_t group; /* FP8: channels per scale, received or packed; packed rows: 64 or 128 */
    bool f16, in_fp8, out_fp8;
    const float *factor; /* [experts]: factors of synthetic experts */
    char *packed;        /* [entries][hidden] */
    float *packed_scale;
    /* Layout rank. */
    const float *recv_weight; /* [entries] */
    char *outputs;            /* [entries][hidden]: packed outputs of 16 bits per channel */
    uint32_t *row_entries;    /* [rows]: number of entries of the row */
    uint32_t *row_entry;      /* [rows][most]: packed indices, in any order */
    float *row_weight;        /* [rows][most]: their weights */
    uint32_t most, rows;
    char *y; /* [rows][hidden] */
};

/* Queues kernels of at most `blocks` blocks. */
cudaError_t rows_pack(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* Multiplies rows by the factors of their experts; writes to y or, with recv_row, packed rows to
 * `outputs`. */
cudaError_t rows_multiply(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* Adds up the weighted outputs of each row's entries, by ascending expert, in y. */
cudaError_t rows_add_up(const struct rows_args *, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
