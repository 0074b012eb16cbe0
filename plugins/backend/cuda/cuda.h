/* The state of the CUDA backend: one device, one stream, one rank. All of it belongs to the
 * thread of its rank, which alone calls. */
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
    uint64_t marked;         /* a bit for each mark that was made */
    uint32_t *stop;          /* pinned, mapped: base.stop is its device address */
    struct epa_fault *fault; /* pinned: where a sync copies *base.device_fault */
    void *flush;             /* what flush_cache() writes */
    size_t flush_bytes;
    uint32_t sharers; /* ranks on this device, this one included */
    bool capturing;
    bool lost; /* the device did not finish; a call that waits for it may never return */
    struct epa_error last; /* failure, for explain() */
};

/* Which device a rank gets. */
struct cuda_place {
    int device;
    uint32_t sharers; /* ranks of this host on it, this one included */
};

/* Refuses in words: no driver, one too old, fewer devices than ranks. Makes no context. */
enum epa_status cuda_choose(const struct cuda_config *, const struct epa_world *,
                            struct cuda_place *out, struct epa_error *);

/* Makes the device the thread's own, and refuses one that kernels of this build cannot run
 * on or that another program has. */
enum epa_status cuda_take(int device, struct epa_error *);

/* The backend, its last failure forgotten. */
struct cuda *cuda_fresh(struct epa_backend *);

/* Records the failed call and its error. Errors of a device are sticky: the call that reports
 * one need not have caused it. */
enum epa_status cuda_fail(struct cuda *, cudaError_t why, const char *call);
enum epa_status cuda_check(struct cuda *, cudaError_t why, const char *call);

/* At the start of what calls the runtime: makes the rank's device the thread's. Eager: what
 * cannot be recorded, and is refused between capture_begin and capture_end. */
enum epa_status cuda_enter(struct cuda *);
enum epa_status cuda_enter_eager(struct cuda *, const char *what);

/* Until the stream is done. Once a rank has failed, or with `stop` at once, kernels are
 * asked to leave and have a few seconds for it; a device that takes longer is `lost`. */
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

/* What NVML reports of a device, for describe(): where a device is named, by its PCI bus
 * id. */
enum { NVML_PCI_ID = 32 };

struct nvml_question {
    char (*pci)[NVML_PCI_ID]; /* [n]: of all devices that the program sees */
    int n, device;            /* the one that is asked about is pci[device] */
    void (*say)(void *arg, const char *key, const char *value);
    void *arg;
};

void nvml_describe(const struct nvml_question *);

/* The kernel of cuda_clock(). */

#ifdef __cplusplus
extern "C" {
#endif

#define CLOCK_WAITS_NS 2000000000u /* the kernel, for the host's next question, at most */

/* In pinned memory that both see. */
struct clock_words {
    uint64_t asked;    /* release: the host; a round */
    uint64_t time_ns;  /* of the device, in round `answered` */
    uint64_t answered; /* release: the kernel */
};

/* Queues the kernel that replies in so many rounds. `words`: their address on the device. */
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
    uint32_t blocks;      /* one for each multiprocessor */
    uint32_t rounds;      /* of products */
    void *memory;         /* of zeros, to be read */
    uint64_t bytes;
};

double peak_flops(const struct peak_run *);
cudaError_t peak_queue_multiply(const struct peak_run *, cudaStream_t);
cudaError_t peak_queue_read(const struct peak_run *, cudaStream_t);

#ifdef __cplusplus
}
#endif

/* Kernels around the products of real experts (experts.c), for rows that the products cannot
 * read: they gather, quantise or dequantise rows before, and add up a row's outputs after. */

#ifdef __cplusplus
extern "C" {
#endif

/* Entries as dispatch left them (struct epa_moe), and where they are one expert after the other,
 * "packed". */
struct rows_args {
    uint32_t experts, hidden;
    uint32_t entries;         /* packed, at most */
    uint64_t recv_entries;    /* of the lists, at most */
    const uint32_t *count;    /* [experts] */
    const uint64_t *start;    /* [experts] */
    const uint32_t *recv_row; /* [entries] or NULL */
    const char *recv;
    size_t recv_stride;
    const char *recv_scale; /* FP8 */
    size_t scale_stride;
    uint32_t group; /* FP8: values of a scale of what is received; 128 of what is quantised here */
    bool f16, in_fp8, out_fp8;
    const float *factor; /* [experts], of synthetic ones */
    char *packed;        /* [entries][hidden] */
    float *packed_scale;
    /* Layout rank. */
    const float *recv_weight; /* [entries] */
    char *outputs;            /* [entries][hidden] packed, in 16 bits */
    uint32_t *row_entries;    /* [rows] how many */
    uint32_t *row_entry;      /* [rows][most]: packed, in any order */
    float *row_weight;        /* same */
    uint32_t most, rows;
    char *y; /* [rows][hidden] */
};

/* Queued; `blocks`: how many of a kernel at most. */
cudaError_t rows_pack(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* Rows times their experts' factors, to y, or with recv_row packed to `outputs`. */
cudaError_t rows_multiply(const struct rows_args *, uint32_t blocks, cudaStream_t);
/* The outputs of each row's entries times their weights, experts ascending, to y. */
cudaError_t rows_add_up(const struct rows_args *, uint32_t blocks, cudaStream_t);

#ifdef __cplusplus
}
#endif

#endif
