/* epa2a.h: public C interface of libepa2a, the expert-parallel all-to-all of mixture-of-experts
 * (MoE) models.
 *
 * Objects
 *   comm      A group of ranks with one kind of memory (host memory, or the memory of one CUDA
 *             device per rank) and one transport.
 *   moe       Dispatch and combine of one shape, by one algorithm, over a comm.
 *   layer     A complete MoE layer in one call: dispatch, both expert GEMMs, combine.
 *   ag_gemm   AllGather followed by a matrix product.
 *
 * Collective calls
 *   All ranks of the comm must make a collective call, in the same order. The calls that move data
 *   (dispatch, combine, a layer, an ag_gemm) are collective. A rank without tokens must make the
 *   call, too.
 *
 * Memory
 *   Every data pointer refers to memory of the comm: host memory or memory of the CUDA device. On
 *   hosts a data call is complete on return. On CUDA a data call is complete when the stream has
 *   executed all work that the call enqueued. Input buffers must remain valid and unmodified until
 *   the call is complete. Output buffers contain the results after the call is complete. The
 *   library reads parameter structs before the call returns.
 *
 * Alignment
 *   The address of a tensor must be a multiple of the size of an element. On CUDA the addresses of x,
 *   y, out, up, down, a, b and c must be multiples of 16; an x with gaps between its rows is an
 *   exception. On CUDA the addresses of the biases of combine must be multiples of 4. The address of
 *   `routing` must be a multiple of 8. Memory of epa2a_comm_alloc() and cudaMalloc() begins at such
 *   addresses. A call with another address returns EPA2A_ERR_CONFIG with the name of the tensor, and
 *   sends no data.
 *
 * Streams
 *   The argument `stream` is a cudaStream_t. On hosts the library ignores the argument. NULL is the
 *   stream of the comm, which does not synchronise with the default stream of CUDA; pass
 *   cudaStreamLegacy or cudaStreamPerThread for a default stream. The data calls of an object must
 *   execute in the order of the calls: with several streams, the caller orders the streams by
 *   events. A data call only enqueues work and never waits for the device, unless its comment
 *   states otherwise. A CUDA graph can capture data calls. A replay of the graph may receive a
 *   different number of rows. A CUDA graph cannot capture create and destroy calls: a create call
 *   fails during a capture. A destroy call waits until the device has executed all enqueued work.
 *
 * Threads
 *   Only one thread at a time may use a comm and the objects that were created from it. A call
 *   fails if another thread is inside a call of the same comm. Two comms are independent. Any
 *   thread may abort and check a comm at any time. A child process after fork() cannot use the
 *   comms of its parent: all calls fail.
 *
 * Process state
 *   The library never prints, exits or forks, and never changes signal handlers, the locale or the
 *   environment. An option sets the number of threads that the library starts. A comm of a CUDA
 *   device and a comm of several hosts start one thread more, which sleeps and receives no signals.
 *   The library pins threads only if an option requests it. The current CUDA device of the calling
 *   thread does not change. A plugin may load other libraries, such as UCX, with other rules.
 *
 * Errors
 *   A function of type int returns EPA2A_OK or, on failure, a negative status. After a failure
 *   epa2a_last_error() returns the error message. EPA2A_ERR_TIMEOUT, EPA2A_ERR_ABORTED,
 *   EPA2A_ERR_DIED and EPA2A_ERR_SYSTEM break the comm. On a broken comm every call except check
 *   and destroy returns EPA2A_ERR_ABORTED. On CUDA a kernel that waits for a peer ends after the
 *   time-out, and within milliseconds after another rank has reported a failure, also while the
 *   caller is in a function of CUDA. The next call of this rank returns the failure of the kernel.
 *   epa2a_comm_check() returns the failure without a wait for the device. Results of the calls
 *   after the failure are undefined.
 *
 * Units
 *   Sizes and strides are in bytes, times in nanoseconds, counts in elements.
 *
 * ABI
 *   The first field of each struct is its size. EPA2A_STRUCT() sets the size and sets all other
 *   fields to 0. The value 0 selects the default of a field. New versions of the library add fields
 *   at the end of a struct only, and accept the shorter structs of old versions. A call fails if
 *   the struct of the caller is longer than the struct of the library, unless all additional bytes
 *   are 0. The kernel has the same rule for openat2(). Enumerators keep their values. The symbols
 *   of the library have versions, EPA2A_0.1 and later. The soname changes if a release removes a
 *   symbol. An application needs no other header of the project. The headers of the folder epa2a
 *   are for plugins, and the rules of this paragraph do not cover them. */
#ifndef EPA2A_H
#define EPA2A_H

#include <stddef.h>
#include <stdint.h>

#ifdef __cplusplus
extern "C" {
#endif

/* Version of this interface: major << 16 | minor << 8 | patch. The releases of the project have
 * numbers of their own. */
#define EPA2A_VERSION 0x000100u

/* Exports a symbol of the library. */
#define EPA2A_EXPORT __attribute__((visibility("default")))
/* Exports a function that returns a status. The compiler warns if the caller ignores the status. */
#define EPA2A_API EPA2A_EXPORT __attribute__((warn_unused_result))

/* Defines a struct, sets its size and sets all other fields to 0:
 *     EPA2A_STRUCT(epa2a_tokens, in);
 */
#ifdef __cplusplus
#define EPA2A_STRUCT(type, name) \
    struct type name = {}; \
    name.size = sizeof(struct type)
#else
#define EPA2A_STRUCT(type, name) struct type name = {.size = sizeof(struct type)}
#endif

/* Status of a call. The values equal the values of enum epa_status in the plugin ABI. */
enum epa2a_status {
    EPA2A_OK = 0,
    EPA2A_NOT_YET = 1,          /* result of a test: the operation is not complete */
    EPA2A_ERR_CONFIG = -1,      /* an argument or option is invalid */
    EPA2A_ERR_UNSUPPORTED = -2, /* build, machine, transport or algorithm lacks the feature */
    EPA2A_ERR_NOMEM = -3,       /* a memory allocation failed */
    EPA2A_ERR_SYSTEM = -4,      /* a system, driver or library call, or a callback, failed */
    EPA2A_ERR_TIMEOUT = -5,     /* a wait timed out; the message names the rank and the wait */
    EPA2A_ERR_ABORTED = -6,     /* another rank failed first, or the caller aborted the comm */
    EPA2A_ERR_DIED = -8,        /* the process of a rank terminated */
};

/* Element types. The values equal the values of enum epa_dtype in the plugin ABI. */
enum epa2a_dtype { EPA2A_F32, EPA2A_BF16, EPA2A_FP8_E4M3, EPA2A_F16, EPA2A_INT8 };

/* ---- the library ---- */

/* Returns the EPA2A_VERSION of the library. The major versions of library and header must be
 * equal. */
EPA2A_EXPORT uint32_t epa2a_version(void);

/* Returns the release and the plugins of the library, for example
 * "0.2.0: backends host; transports shm ucx; algorithms ll_v1 ll_v2; verbs: its library
 * libibverbs.so.1 is missing". Plugins that cannot be loaded are last, with the reason. The first
 * call loads all plugins of the library's own folder and of EPA2A_PLUGIN_PATH. The library owns the
 * string. */
EPA2A_EXPORT const char *epa2a_build(void);

/* Returns the error message of the last failed call of the calling thread. Never returns NULL. The
 * string remains valid until the next failed call of this thread. */
EPA2A_EXPORT const char *epa2a_last_error(void);

/* Returns the name of a status, for example "EPA2A_ERR_TIMEOUT", or "unknown status". */
EPA2A_EXPORT const char *epa2a_status_name(int status);

/* ---- comm ---- */

/* A group of ranks. The library owns the struct. */
struct epa2a_comm;

/* Value of epa2a_comm_params.device that selects host memory. */
enum { EPA2A_HOST = -1 };

/* Parameters of a comm. */
struct epa2a_comm_params {
    size_t size;
    uint32_t version;     /* EPA2A_VERSION; the library rejects 0 */
    uint32_t rank, ranks; /* rank of the caller, 0 to ranks - 1; number of ranks */
    /* Bootstrap callback of the caller: a blocking allgather, for example over torch.distributed,
     * MPI or a store. Each rank contributes `bytes` bytes at `mine`. The callback stores the
     * contribution of rank r at `all` + r * bytes. `bytes` is the same on all ranks and at most
     * 64 KiB. The callback returns 0 on success. For any other value the library call returns
     * EPA2A_ERR_SYSTEM, after one more call that reports the failure to the other ranks. The
     * library invokes the callback in create, destroy and other set-up calls, in the thread of the
     * caller. Data calls never invoke the callback. The library has no time-out for the callback.
     * If NULL, the library connects the ranks by the environment variables of torchrun: RANK,
     * WORLD_SIZE, MASTER_ADDR and MASTER_PORT.
     * Ranks of several hosts also connect to a free TCP port of rank 0 and authenticate each other
     * by a random secret. The connections carry failures and replace the callback after create. If a
     * rank cannot connect, the log callback receives the reason, and the comm uses the callback
     * only. */
    int (*allgather)(void *arg, const void *mine, size_t bytes, void *all);
    void *arg; /* first argument of allgather */
    /* EPA2A_HOST, or a device number of the CUDA runtime in this process. All ranks have host
     * memory, or each rank has a device of its own. With the option backend.share=true ranks may
     * share a device, for tests. */
    int32_t device;
    /* Size of the symmetric heap for all objects that will be created from the comm. If 0, the
     * library allocates separate symmetric memory for each moe, layer and ag_gemm. epa2a_need has
     * the size for a shape. */
    uint64_t heap_bytes;
    /* Memory of the caller for the symmetric heap, aligned to 64 KiB. Requires a transport that
     * supports caller memory. The memory must remain valid until the comm is destroyed. If NULL,
     * the library allocates the heap. */
    void *heap;
    uint64_t timeout_ns; /* time-out of each wait for a peer; 0: 30 s; UINT64_MAX: no time-out */
    /* Options as text, for example
     * "transport=nvlink, transport.between_nodes.devices=mlx5_0". Names and values are the
     * names and values of experiment files, and the same tables check them. Commas or newlines
     * separate options. [] encloses a list. "ranks_per_node=4" divides the ranks of a host into
     * nodes, for algorithms that distinguish nodes. If NULL, the library uses the defaults: shm
     * within a host, or nvlink, and ucx or verbs between hosts. The library reads the environment
     * variable EPA2A_OPTIONS after this string. */
    const char *options;
    /* Folders with additional plugins, separated by ':', in the format of the environment variable
     * EPA2A_PLUGIN_PATH. The library always searches its own plugin folder. */
    const char *plugin_path;
    /* Log callback of the caller. `text` is a complete sentence about an event, for example a long
     * wait or the use of a fallback. Level 0 is a notice, level 1 a warning. If NULL, the library
     * logs nothing. */
    void (*log)(void *arg, int level, const char *text);
    void *log_arg; /* first argument of log */
};

/* Creates a comm. Collective call. A failure on one rank makes the call fail on all ranks.
 * epa2a_last_error() then returns the message of the first failed rank on each rank. An invalid
 * pointer or size of the struct is an exception: the call then fails on this rank only. Without a
 * callback the fields `rank` and `ranks` must be 0, or equal the environment variables. One rank
 * needs neither callback nor variables. */
EPA2A_API int epa2a_comm_create(const struct epa2a_comm_params *, struct epa2a_comm **out);

/* Destroys a comm. Collective call. On a broken comm the call is local. The caller must first
 * destroy all objects that were created from the comm. The call ignores NULL. */
EPA2A_EXPORT void epa2a_comm_destroy(struct epa2a_comm *);

/* Ends all waits of all ranks and breaks the comm. The interrupted calls return EPA2A_ERR_ABORTED.
 * The waits of ranks on other hosts end by their time-outs if the ranks cannot connect; see
 * `allgather` of epa2a_comm_params. Local call. Any thread may make the call. */
EPA2A_EXPORT void epa2a_comm_abort(struct epa2a_comm *);

/* Returns EPA2A_OK, or the status of the failure that breaks the comm, for example EPA2A_ERR_DIED
 * after the death of another process, or EPA2A_ERR_TIMEOUT if a kernel of this rank
 * waited too long. The call never waits, and calls no function of CUDA. Local call. Any thread may
 * make the call. */
EPA2A_API int epa2a_comm_check(struct epa2a_comm *);

/* Waits until the stream has executed all enqueued work, and returns the failure of a kernel. A
 * stream in capture is refused. */
EPA2A_API int epa2a_comm_sync(struct epa2a_comm *, void *stream);

/* Executes a barrier of all ranks of the comm, after all enqueued work of the stream. Collective
 * call. If the ranks are on several hosts and cannot connect, the call invokes the callback of the
 * comm. */
EPA2A_API int epa2a_comm_barrier(struct epa2a_comm *, void *stream);

/* Calls `say` with `arg` for each fact about the comm. A fact is a key and a value, for example
 * ("transport", "shm") or ("isa", "avx512"). The number of facts varies. Local call. */
EPA2A_EXPORT void epa2a_comm_describe(const struct epa2a_comm *,
                                      void (*say)(void *arg, const char *key, const char *value),
                                      void *arg);

/* Allocates memory of the comm for tensors of the caller: host memory with large pages, or memory of
 * the device, initially 0. The memory is private to the rank and not a part of the symmetric heap.
 * The calls accept any other memory of the same kind as well, and make the same copies. To save the
 * copy of expert outputs, write them to the memory that epa2a_received.y names. Collective call: if
 * the allocation fails on one rank, the call fails on all ranks. */
EPA2A_API int epa2a_comm_alloc(struct epa2a_comm *, size_t bytes, void **out);
/* Frees the memory. Local call. The call ignores NULL. Memory that was not freed remains allocated
 * after the destruction of the comm. */
EPA2A_EXPORT void epa2a_comm_free(struct epa2a_comm *, void *);

/* ---- dispatch and combine ---- */

/* Dispatch and combine of one shape over one comm. The library owns the struct. */
struct epa2a_moe;

/* Layout of received rows. L = experts / ranks is the number of local experts of a rank. The two
 * EXPERT layouts store one row per token and local expert. The two RANK layouts store one row per
 * token. Comments below use "EXPERT:" and "RANK:" for facts about two layouts. */
enum epa2a_layout {
    /* x [L][ranks * max_tokens][hidden]. The rows of local expert e begin at row
     * e * ranks * max_tokens. The rows of an expert are in the order of source ranks, then in the
     * order of tokens at the source. No rank waits for counts. DeepEP's low-latency mode, NCCL EP
     * ("expert-major") and the batched experts of vLLM use this layout. */
    EPA2A_EXPERT_PADDED,
    /* x [rows][hidden]. Same order as EPA2A_EXPERT_PADDED, without gaps between experts. start[e]
     * is the index of the first row of local expert e. */
    EPA2A_EXPERT_PACKED,
    /* x [rows][hidden]. One row for each source token that selects at least one expert of this
     * rank, in the order of source ranks, then of tokens. topk_idx and topk_weight have an entry
     * for each row. DeepEP's normal mode, FlashInfer and NCCL EP ("flat") use this layout. */
    EPA2A_RANK_PACKED,
    /* Same as EPA2A_RANK_PACKED, except that the rows of source rank r begin at row
     * r * max_tokens. */
    EPA2A_RANK_PADDED,
};

/* Shape of a moe. All fields must have the same values on all ranks. */
struct epa2a_moe_shape {
    size_t size;
    uint32_t max_tokens; /* maximum number of tokens of one rank in one dispatch */
    uint32_t hidden;     /* elements per token; multiple of 16; with FP8 multiple of fp8_group */
    uint32_t experts;    /* of all ranks; rank r holds experts r * L to (r + 1) * L - 1 */
    uint32_t topk;       /* experts per token, 1 to 32 */
    int32_t dtype;       /* tokens, expert outputs and sums: EPA2A_BF16 (default) or EPA2A_F16 */
    int32_t recv_dtype;  /* type of delivered rows: dtype (default) or EPA2A_FP8_E4M3 */
    int32_t layout;      /* enum epa2a_layout */
    uint32_t fp8_group;  /* channels per FP8 scale; 0: 128 */
    uint32_t in_flight;  /* maximum number of dispatches without combine, 1 or 2; 0: 1 */
    /* Algorithm and its options, for example "algorithm=ll_v1, capacity=2". If NULL, the library
     * selects the fastest algorithm for the shape. */
    const char *options;
};

/* Memory requirements of a shape. */
struct epa2a_need {
    size_t size;
    uint64_t heap_bytes;    /* share of epa2a_comm_params.heap_bytes */
    uint64_t private_bytes; /* other memory */
    uint64_t rows, entries; /* maximum that one dispatch delivers to one rank */
    uint64_t routing_bytes; /* size of epa2a_received.routing */
    const char *algorithm;  /* name of the selected algorithm */
    int32_t overlaps;       /* 1: send returns before the data arrives; 0: recv does all work */
};

/* Computes the memory requirements of a shape. Local call without side effects. Before the comm
 * exists, `comm` may be NULL; the call then uses `ranks` and `device`. The caller can thus compute
 * epa2a_comm_params.heap_bytes. */
EPA2A_API int epa2a_moe_need(struct epa2a_comm *comm, uint32_t ranks, int32_t device,
                             const struct epa2a_moe_shape *, struct epa2a_need *out);

/* Creates a moe. Collective call. The caller must destroy the moe with epa2a_moe_destroy(). */
EPA2A_API int epa2a_moe_create(struct epa2a_comm *, const struct epa2a_moe_shape *,
                               struct epa2a_moe **out);

/* Destroys a moe. Collective call. The call ignores NULL. */
EPA2A_EXPORT void epa2a_moe_destroy(struct epa2a_moe *);

/* Bits of epa2a_tokens.flags. All ranks must pass the same flags. A moe with recv_dtype FP8 cannot
 * deliver rows in dtype, since the rows are quantised at their source. A moe with another
 * recv_dtype delivers all forms: the receiver quantises the rows, with the same result. On CUDA, in
 * the EXPERT layouts, a dispatch with EPA2A_RECV_FP8 against recv_dtype needs x and x_scale in memory
 * of the caller, and a dispatch with EPA2A_SCALE_UE8M0 or EPA2A_SCALE_BY_GROUP needs x_scale. */
enum epa2a_dispatch_flag {
    EPA2A_RECV_NATIVE = 1 << 0, /* deliver rows in dtype; overrides recv_dtype */
    EPA2A_RECV_FP8 = 1 << 1,    /* deliver rows in FP8; overrides recv_dtype */
    /* Round scales up to powers of two, at least 2^-126. The codes change accordingly. */
    EPA2A_SCALE_POW2 = 1 << 2,
    /* Deliver power-of-two scales as exponents (UE8M0), one byte each, four per int32. Includes
     * EPA2A_SCALE_POW2. A row has (hidden / group + 3) / 4 words; unused bytes are 0. */
    EPA2A_SCALE_UE8M0 = 1 << 3,
    /* Store scales with the group as a major dimension, as the TMA loads of a GEMM require. The
     * scales of one group are adjacent. EPA2A_EXPERT_PADDED:
     * [L][hidden / group][ranks * max_tokens]. Other layouts: [hidden / group][rows]. With
     * EPA2A_SCALE_UE8M0 a word of four groups takes the place of a group. */
    EPA2A_SCALE_BY_GROUP = 1 << 4,
};

/* Input of dispatch. */
struct epa2a_tokens {
    size_t size;
    uint32_t tokens, flags; /* 0 to max_tokens; bits of enum epa2a_dispatch_flag */
    const void *x;          /* [tokens][hidden] of dtype, or of e4m3 codes if x_scale is set */
    /* [tokens][hidden / fp8_group]; NULL: x is not quantised. With EPA2A_SCALE_POW2 or
     * EPA2A_SCALE_UE8M0 powers of two, which the library does not check on CUDA. */
    const float *x_scale;
    /* Bytes from row to row; 0: dense rows. Other rows cost a copy. A stride on CUDA is less than
     * 2 GiB, and layers on CUDA take dense rows only. */
    size_t x_stride, x_scale_stride;
    /* [tokens][topk] global experts, distinct in a row; -1: no expert. On CUDA the library does not
     * check the values. With 4 bytes per element and without `routing`, topk_idx and topk_weight
     * must there remain valid and unmodified until the combine of the dispatch, unless the combine
     * has arrays of its own. */
    const void *topk_idx;
    int32_t topk_idx_bytes; /* bytes per element of topk_idx, 4 or 8; 8 costs a kernel on CUDA */
    /* [tokens][topk]. With weights at dispatch, an algorithm can send each token once per rank and
     * return each sum once per rank (option `dedup`). With weights at combine only, the traffic
     * equals the traffic of DeepEP's low-latency mode: one row per choice. */
    const float *topk_weight;
    int32_t *seen; /* [L]; dispatch adds the number of received rows per expert; NULL: unused */
};

/* Output of dispatch.
 *
 * If a pointer is NULL before the call, the library sets the pointer to memory of the moe, except
 * source_token and source_range. This memory remains valid until the combine of this dispatch, or until
 * in_flight further dispatches.
 * The caller may use the struct again: pointers to memory of the moe count as NULL.
 * If a pointer is set before the call, the pointer refers to dense memory of the caller with room
 * for epa2a_need.rows rows and epa2a_need.entries entries. The library fills this memory and does
 * not change the pointer. Elements outside all rows and entries do not change, or are undefined in
 * memory of the moe.
 *
 * On CUDA the memory of the moe is the memory of the algorithm, so a dispatch is one kernel. Memory of
 * the caller costs a second kernel; so does epa2a_tokens.seen, and in the RANK layouts another form of
 * rows or scales. The RANK layouts require ll_v2, whose dispatch copies each row from the place of its
 * arrival to the order of the layout. This version of the library has on CUDA: EPA2A_EXPERT_PADDED with
 * ll_v2 only. EPA2A_SCALE_POW2 with FP8 between the ranks costs a kernel.
 * Other calls fail with EPA2A_ERR_UNSUPPORTED. */
struct epa2a_received {
    size_t size;
    uint64_t id;            /* number of this dispatch of the moe: 1, 2 ... */
    uint64_t rows, entries; /* capacity, as in epa2a_need; `count` holds the used part */
    void *x;                /* [rows][hidden] of recv_dtype, or of the type that flags select */
    /* float [rows][hidden / fp8_group], or the form that the flags select. Not written if the rows
     * are not FP8. */
    void *x_scale;
    /* Bytes from row to row; 0 for memory of the caller. With EPA2A_SCALE_BY_GROUP x_scale_stride
     * is the distance of two groups. */
    size_t x_stride, x_scale_stride;
    uint32_t *count;    /* [L] number of rows of each local expert */
    uint64_t *start;    /* [L] index of the first entry of each local expert */
    uint32_t *row;      /* RANK: [entries] row that an entry reads; EXPERT: NULL, entry = row */
    int32_t *topk_idx;  /* RANK: [rows][topk] local expert, or -1 */
    float *topk_weight; /* RANK: [rows][topk] weights that the source passed to dispatch */
    /* [rows] index of the token at its source rank. Only applications that pass memory receive
     * source_token and source_range, since the library then reads the header of each row, or on CUDA
     * launches a second kernel. If a pointer is NULL, the pointer stays NULL. */
    int32_t *source_token;
    /* begin << 32 | count of the rows of each source rank. EXPERT: [L][ranks]; begin is relative to
     * the first row of the expert. RANK: [ranks]; begin is relative to the first row. */
    int64_t *source_range;
    /* Memory for expert outputs, of dtype, in the layout of x. Combine makes no copy of expert
     * outputs in memory of the moe, if the algorithm stores rows in the order of the layout and
     * `routing` is NULL. The caller must not write the memory after the combine. */
    void *y;
    /* Host memory of the caller, [L + 1]: the number of rows of each local expert, then the number
     * of all rows. The call waits until the counts are available. NULL: no host counts. */
    uint32_t *host_count;
    /* Memory of the comm, allocated by the caller, of epa2a_need.routing_bytes. Dispatch stores the
     * routes for combine in this memory. Combine may then follow at any later time, in any order
     * and any number of times. epa2a_dispatch_again() may repeat the dispatch. If NULL, combines
     * must follow in the order of the dispatches, with one combine per dispatch. The caller may
     * repeat such a combine only immediately. All ranks must pass routing, or all must pass NULL.
     * A combine that does not follow its dispatch costs a further dispatch, and requires that all
     * dispatches without routing have their combine. On CUDA the address identifies the routes, so
     * the memory must not be moved; expert outputs for such a combine must be in memory of the
     * caller; and a CUDA graph with a dispatch must contain its combine. */
    void *routing;
};

/* Sends the tokens of each rank to the ranks of their experts. Collective calls. epa2a_dispatch()
 * performs a complete dispatch. epa2a_dispatch_send() begins a dispatch and epa2a_dispatch_recv()
 * completes the dispatch. Between the two halves the caller may compute. The caller must call the
 * second half before any other call for the same moe except epa2a_test(). Inputs must remain valid
 * until the second half returns.
 *
 * EPA2A_ERR_CONFIG, EPA2A_ERR_UNSUPPORTED and EPA2A_ERR_NOMEM refuse the call before any data are
 * sent; the caller may correct the arguments or free memory, and repeat the call while the other
 * ranks wait. */
EPA2A_API int epa2a_dispatch(struct epa2a_moe *, const struct epa2a_tokens *,
                             struct epa2a_received *, void *stream);
EPA2A_API int epa2a_dispatch_send(struct epa2a_moe *, const struct epa2a_tokens *,
                                  struct epa2a_received *, void *stream);
EPA2A_API int epa2a_dispatch_recv(struct epa2a_moe *, struct epa2a_received *, void *stream);

/* Dispatches other tokens along the routes in epa2a_received.routing. Collective call. The number
 * of tokens equals the number of the first dispatch. The library does not read topk_idx and
 * topk_weight of the tokens. */
EPA2A_API int epa2a_dispatch_again(struct epa2a_moe *, const struct epa2a_tokens *,
                                   struct epa2a_received *, void *stream);

/* Discards the last dispatch, if no combine will follow. Collective call. A dispatch with `routing`
 * does not need this call. */
EPA2A_API int epa2a_discard(struct epa2a_moe *, const struct epa2a_received *);

/* Bits of epa2a_outputs.flags. All ranks must pass the same flags. */
enum epa2a_combine_flag {
    /* Round the expert outputs to LogFMT-10, the values of DeepEP's low-latency combine with
     * use_logfmt. A value has a sign and a code of 9 bits: 0, or one of 511 equal steps of the
     * logarithm, from the least to the largest magnitude of 128 channels, at most 32 octaves. A part
     * of 1024 channels, or of 512 if hidden is no multiple of 1024, keeps its values unless each 128
     * channels have a largest magnitude below 1, at least 2^-90, and larger than the least. Values
     * are rounded to dtype, and the rows between the ranks are in dtype. EXPERT layouts, dtype BF16,
     * hidden a multiple of 512, and y in memory of the caller. The flag costs a copy of the expert
     * outputs, on CUDA by a kernel. */
    EPA2A_COMBINE_LOGFMT = 1 << 0,
};

/* Input and output buffers of combine. */
struct epa2a_outputs {
    size_t size;
    /* Expert outputs, dense, of dtype. EXPERT: one row for each row of epa2a_received.x, in the
     * same order. RANK: [rows][hidden], the weighted sum over the experts of this rank. NULL:
     * epa2a_received.y contains the expert outputs. */
    const void *y;
    /* EXPERT: topk_idx of the dispatch. If set, combine reads the array again and skips choices
     * that the caller set to -1 after the dispatch. Only ll_v1 can skip choices. */
    const void *topk_idx;
    int32_t topk_idx_bytes; /* bytes per element of topk_idx, 4 or 8 */
    /* EXPERT: [tokens][topk] weights of the sum; NULL: the weights of the dispatch. RANK:
     * [rows][topk] weights that combine returns in out_weight and does not use in the sum. */
    const float *topk_weight;
    /* Each [tokens][hidden] of dtype; NULL: no bias. The sum is rounded to dtype; then the biases
     * are added in float32 and the result is rounded again. */
    const void *bias[2];
    void *out; /* [tokens][hidden] of dtype */
    /* RANK: [tokens][topk] weights of topk_weight, of the rows of the token on the ranks of its
     * experts; 0 for the choice -1. All ranks must set the pointer, or none. The weights cost a
     * further dispatch and combine, and without `routing` the combine cannot be repeated. NULL:
     * unused. */
    float *out_weight;
    uint32_t flags; /* bits of enum epa2a_combine_flag */
};

/* Returns expert outputs to the source ranks and sums these per token. Collective calls.
 * epa2a_combine() performs a complete combine. epa2a_combine_send() begins a combine and
 * epa2a_combine_recv() completes the combine. The rules of epa2a_dispatch_send() apply. */
EPA2A_API int epa2a_combine(struct epa2a_moe *, const struct epa2a_received *,
                            const struct epa2a_outputs *, void *stream);
EPA2A_API int epa2a_combine_send(struct epa2a_moe *, const struct epa2a_received *,
                                 const struct epa2a_outputs *, void *stream);
EPA2A_API int epa2a_combine_recv(struct epa2a_moe *, const struct epa2a_received *, void *stream);

/* Makes progress on the half call that is open. Returns EPA2A_NOT_YET if a wait of the recv call is
 * certain, else EPA2A_OK. On hosts the library does not know and returns EPA2A_OK. */
EPA2A_API int epa2a_test(struct epa2a_moe *);

/* ---- a complete layer ---- */

/* A complete MoE layer over one comm. The library owns the struct. */
struct epa2a_layer;

/* Weights of the L experts of this rank: y = down * act(up * x). The weights and scales must remain
 * valid and unmodified until epa2a_layer_destroy() returns. On CUDA they must be complete before
 * the create call, which reads them outside of the streams of the caller. */
struct epa2a_experts {
    size_t size;
    /* Intermediate size. ffn and hidden must be multiples of 32; with FP8 weights of 128. */
    uint32_t ffn;
    int32_t activation; /* 0: none; 1: SwiGLU, gate rows before up rows */
    /* Type of the weights: dtype of the shape (default), EPA2A_FP8_E4M3, or on hosts EPA2A_INT8. */
    int32_t dtype;
    const void *up;   /* [L][ffn, with SwiGLU 2 * ffn][hidden] */
    const void *down; /* [L][hidden][ffn] */
    /* FP8: one scale for each block of 128 x 128 weights, [L][blocks of rows][blocks of columns].
     * The last block of hidden or ffn may be smaller. INT8: one scale for each row, [L][rows of up] and
     * [L][hidden]; the library quantises tokens and intermediates with one scale for each row. */
    const float *up_scale, *down_scale;
};

/* Creates a layer. Collective call. The options of the shape select the algorithm, for example
 * "algorithm=fused" or "algorithm=ll_v2". A layer has one call in flight and delivers no rows, so
 * layout and in_flight of the shape have no effect; recv_dtype is the type of the rows between the
 * ranks. The caller must destroy the layer with epa2a_layer_destroy(). */
EPA2A_API int epa2a_layer_create(struct epa2a_comm *, const struct epa2a_moe_shape *,
                                 const struct epa2a_experts *, struct epa2a_layer **out);

/* Runs the layer: dispatch, experts, combine. Collective call. `out` is [tokens][hidden] of dtype.
 * topk_weight of the tokens must be set; flags must be 0; `seen` is not used. On CUDA rows must be
 * dense. */
EPA2A_API int epa2a_layer_run(struct epa2a_layer *, const struct epa2a_tokens *, void *out,
                              void *stream);

/* Destroys a layer. Collective call. The call ignores NULL. */
EPA2A_EXPORT void epa2a_layer_destroy(struct epa2a_layer *);

/* ---- AllGather and matrix product: C [rows of all ranks][n] = A of all ranks * B^T ---- */

/* An AllGather with a matrix product over one comm. The library owns the struct. */
struct epa2a_ag_gemm;

/* Parameters of an ag_gemm. All fields except n and the arrays must have the same values on all
 * ranks. The ranks may have different numbers of columns n. A rank with n of 0 receives no output,
 * but its rows are input of the other ranks. b, b_scale and bias must remain valid and unmodified
 * until epa2a_ag_gemm_destroy() returns, and on CUDA must be complete before the create call. */
struct epa2a_ag_gemm_params {
    size_t size;
    uint32_t max_rows;    /* maximum number of rows of A of one rank */
    uint32_t n, k;        /* columns of C of this rank; columns of A and B, a multiple of 8 */
    int32_t dtype;        /* of A and B: EPA2A_BF16 (default), EPA2A_F16 or EPA2A_FP8_E4M3 */
    const void *b;        /* [n][k]; NULL if n is 0 */
    const float *b_scale; /* FP8: [n / 128][k / 128], both rounded up */
    const float *bias;    /* [n], added to each row of C; NULL: no bias */
    const char *options;  /* for example "algorithm=ag_gemm_2d"; NULL: defaults */
    /* Data type of C. 0: F16 if dtype is F16, else BF16. EPA2A_FP8_E4M3: C has one scale for each row
     * and 128 columns, and epa2a_ag_gemm_run_fp8() computes C. */
    int32_t out_dtype;
    uint32_t zero; /* 0 */
};

/* Creates an ag_gemm. Collective call. The caller must destroy the ag_gemm with
 * epa2a_ag_gemm_destroy(). */
EPA2A_API int epa2a_ag_gemm_create(struct epa2a_comm *, const struct epa2a_ag_gemm_params *,
                                   struct epa2a_ag_gemm **out);

/* Computes C. Collective call. `rows` is [ranks], in memory of the comm, and has the same values on
 * all ranks. `a` is [rows[rank]][k], `a_scale` with FP8 [rows[rank]][k / 128, rounded up]. `c` is
 * BF16, or F16 if dtype is F16, and has room for [ranks * max_rows][n]. The rows of rank 0 are the
 * first rows of C. On CUDA the rows behind the last row of C are undefined. */
EPA2A_API int epa2a_ag_gemm_run(struct epa2a_ag_gemm *, const uint32_t *rows, const void *a,
                                const float *a_scale, void *c, void *stream);

/* Same as epa2a_ag_gemm_run(), for an out_dtype of EPA2A_FP8_E4M3. `c` has elements of one byte.
 * `c_scale` has room for [ranks * max_rows][n / 128, rounded up]. A value of C is its element times
 * the scale of its row and columns. The scale is the largest magnitude of these columns / 448, or 1
 * if the columns are 0. */
EPA2A_API int epa2a_ag_gemm_run_fp8(struct epa2a_ag_gemm *, const uint32_t *rows, const void *a,
                                    const float *a_scale, void *c, float *c_scale, void *stream);

/* Destroys an ag_gemm. Collective call. The call ignores NULL. */
EPA2A_EXPORT void epa2a_ag_gemm_destroy(struct epa2a_ag_gemm *);

#ifdef __cplusplus
}
#endif
#endif
