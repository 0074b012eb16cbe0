/* The problems that algorithms solve. The core makes the inputs, the expected outputs and the
 * traffic numbers. An algorithm turns inputs into outputs. */
#ifndef EPA2A_PROBLEM_H
#define EPA2A_PROBLEM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

enum epa_op { EPA_OP_MOE, EPA_OP_AG_GEMM, EPA_OP_ALLGATHER };
enum epa_dtype { EPA_F32, EPA_BF16, EPA_FP8_E4M3, EPA_F16, EPA_INT8 };

/* Layout of the rows that dispatch returns. */
enum epa_layout {
    EPA_LAYOUT_EXPERT, /* a row for each (token, expert of this rank) */
    EPA_LAYOUT_RANK,   /* one row per token, for all of its experts of this rank */
};

/* Order of the rows of layout rank on devices. */
enum epa_row_order {
    EPA_ROWS_ANY,
    EPA_ROWS_PACKED, /* by source rank, then by token, without gaps */
    EPA_ROWS_PADDED, /* the same, except that the rows of rank r begin at row r * max_tokens */
};

/* Order of the sums of combine. The order determines whether outputs can be verified bit by bit. */
enum epa_sum {
    EPA_SUM_ANY, /* in float32, in any order, for example in the order of arrival */
    /* Sums begin with +0 in float32, use fused multiply-add, and are rounded to dtype, nearest
     * even. Layout expert: choices in ascending k, times their weight. Layout rank: ranks
     * ascending, times 1. */
    EPA_SUM_ORDERED,
    /* Layout expert, in two steps, each as above. First, the choices of one rank in ascending k
     * make one expert output in dtype on that rank. Then the expert outputs are added, ranks
     * ascending, times 1. */
    EPA_SUM_BY_RANK,
};

struct epa_origin {
    uint32_t rank, token;
};

struct epa_choices_copy; /* backend.h */
struct epa_delivery;

enum epa_activation {
    EPA_ACTIVATION_NONE,   /* a = W_up x */
    EPA_ACTIVATION_SWIGLU, /* a = g / (1 + exp(-g)) * u, of rows g (gate) and u of W_up x */
};

/* Real experts: y = W_down a(W_up x), for the L experts of this rank. The weights are in the
 * backend's memory and do not change between create() and destroy() of an algorithm: the algorithm
 * may keep a copy in its own layout. The pointers are NULL in plan(), and also where
 * epa_moe_footprint.fused is not set, since the core computes the experts then.
 *
 * Computation for a received row x:
 *   BF16, F16  x in dtype (where dispatch delivers FP8: q * scale, rounded to float32, then to
 *              dtype). Sums of exact products in float32, in any order. a in float32,
 *              rounded to dtype. y is rounded to dtype, or stays float32 where
 *              epa_moe_footprint.output_dtype is EPA_F32.
 *   FP8        x quantised in groups of epa_moe.fp8_group_size channels (64 or 128, a divisor of
 *              hidden), by dispatch or here. For each group p = the sum of products q * w, in
 *              float32; the sum over groups of p * (scale of x * scale of the block), in
 *              float32, in any order. a is quantised from float32 in groups of
 *              epa_mlp.fp8_group_size channels. y as above.
 *   INT8       x in dtype as for BF16 and F16, then quantised: one scale for each row. Each value of
 *              W_up x is float32(s) * (scale of x * scale of the row of W_up), with s the exact sum of
 *              products of codes in int32; the conversion and both products are rounded to float32.
 *              a is rounded to dtype, then quantised like x; W_down follows in the same way. y as
 *              above. Hosts only.
 * INT8 codes are from -127 to 127. scale = amax * (1/127), amax the largest finite magnitude of the row,
 * 1 where this product is below 2^-126; code = x * (1 / scale), limited to +-127, rounded to nearest
 * even; a NaN has code 0. Products and quotients are rounded to float32.
 * Each rounding is to nearest even. (The fused kernel of DeepGEMM and the Triton kernel compute the
 * same values, except that they apply the routing weight elsewhere: here combine applies the
 * weight.) */
struct epa_mlp {
    uint32_t ffn;   /* a multiple of 32, like hidden in this case; 0: experts are synthetic */
    int activation; /* enum epa_activation */
    int dtype;      /* of weights: epa_moe.dtype, EPA_FP8_E4M3 or EPA_INT8 */
    uint32_t fp8_group_size; /* FP8: channels of `a` that share a scale, 128 or 64; divides ffn */
    const void *up;          /* [L][up_rows][hidden]; SwiGLU: ffn gate rows, then ffn up rows */
    const void *down;        /* [L][hidden][ffn] */
    /* FP8: one scale for each 128 x 128 block, [L][up_blocks][blocks of hidden] and [L][blocks of
     * hidden][blocks of ffn]. The last block of hidden or ffn may be smaller. A block of gate rows
     * ends with the gate rows: block 0 of the up rows begins at row ffn. INT8: one scale for each row,
     * [L][up_rows] and [L][hidden]. */
    const float *up_scale, *down_scale;
};

/* Returns the number of rows of W_up. */
static inline uint32_t epa_mlp_up_rows(const struct epa_mlp *m)
{
    return m->activation == EPA_ACTIVATION_SWIGLU ? 2 * m->ffn : m->ffn;
}

/* Returns the number of blocks of 128 channels or rows; the last block may be smaller. */
static inline uint32_t epa_mlp_blocks(uint32_t n)
{
    return (n + 127) / 128;
}

/* Returns the number of row blocks of W_up. The blocks of the gate rows precede the others. */
static inline uint32_t epa_mlp_up_blocks(const struct epa_mlp *m)
{
    return (m->activation == EPA_ACTIVATION_SWIGLU ? 2 : 1) * epa_mlp_blocks(m->ffn);
}

/* Mixture of experts: dispatch sends each token to its topk experts. Combine returns the expert
 * outputs and reduces them by weight. L = experts / world size, the number of experts of a rank.
 * All arrays are row-major, in the backend's memory.
 *
 * A rank receives a list of rows for each of its experts: entries recv_start[e] to recv_start[e] +
 * recv_count[e] - 1 belong to local expert e. An algorithm chooses the starts: at a fixed stride
 * (padded, no wait for counts) or one list after the other (packed, no gaps). plan() returns the
 * maximum number of entries. Two layouts:
 *   expert   entry i is row i of recv: a grouped GEMM reads the rows in sequence
 *   rank     a token has one row of recv for all of its experts of this rank, and entry i
 *            is row recv_row[i]: fewer bytes are sent, and the GEMM gathers
 *
 * FP8 is e4m3fn with one float32 scale for each fp8_group_size channels of a row: scale = amax *
 * (1/448), amax the largest finite magnitude of the group, 1 where this product is 0; q = x / scale
 * rounded to nearest even, saturating at +-448; NaN stays NaN. */
struct epa_moe {
    uint32_t max_tokens, hidden, experts, topk;
    uint32_t fp8_group_size; /* channels of one scale; divides hidden */
    /* EPA_BF16 or EPA_F16: type of x, y, out, and of rows that dispatch does not quantise; int, so
     * that an option can fill the field. */
    int dtype;

    uint32_t tokens;       /* of this rank, <= max_tokens; may be 0 */
    const void *x;         /* [tokens][hidden] */
    const int32_t *expert; /* [tokens][topk], distinct in a row; -1: choice dropped */
    const float *weight;   /* [tokens][topk] */
    /* The next three fields are set only with epa_moe_footprint.direct. wide: `expert` refers to
     * elements of 8 bytes, of which the low halves count. keep, for dispatch, or NULL: the dispatch
     * also makes these copies of the choices. into, for dispatch, or NULL: the dispatch stores rows,
     * sources and lists in these arrays, and leaves recv, recv_scale and origin undefined. */
    bool wide;
    const struct epa_choices_copy *keep;
    const struct epa_delivery *into;
    /* [experts] Factor of each synthetic expert in this call, for algorithms that compute the
     * experts (epa_moe_footprint.fused); NULL for others. The output is the row, dequantised to
     * float32, times the factor, each product rounded, then rounded to dtype, nearest even. */
    const float *expert_factor;
    struct epa_mlp mlp; /* real experts, if mlp.ffn is not 0 */

    /* Quantised input instead of x; x is NULL then. */
    int x_dtype;          /* enum epa_dtype: `dtype`, or FP8 with the next two fields set */
    const uint8_t *x_fp8; /* [tokens][hidden] */
    const float *x_scale; /* [tokens][hidden / fp8_group_size] */

    /* Out of dispatch, into combine: number of this dispatch. Up to epa_footprint.in_flight
     * dispatches may be open, that is, without their combine. Each dispatch has one combine or is
     * discarded. Combines are called in the order of their dispatches. All ranks make the same
     * calls in the same order. */
    uint64_t epoch;

    /* Out of dispatch: views of memory that the algorithm owns, usually its part of the heap, so
     * that experts read rows where peers wrote them. The views are valid until the combine of this
     * dispatch returns. On a device their contents stay until the next dispatch that uses the same
     * buffers (algorithm.h, graphs). Strides are in bytes: row, scales and origin may be parts of
     * one message. Where the counts stay on a device, the next two fields are the capacity, and
     * rows outside all entries are undefined. */
    uint64_t recv_rows, recv_entries; /* number in use, or capacity; equal in layout expert */
    const uint32_t *recv_count;       /* [L] */
    const uint64_t *recv_start;       /* [L] */
    const uint32_t *recv_row;         /* [entries], layout rank only; NULL: entry = row */
    const float *recv_weight;         /* [entries], layout rank only */
    /* [entries], layout rank only: index of the choice in the token's row of `expert`. NULL: the
     * algorithm does not deliver the index. */
    const uint8_t *recv_k;
    /* Number of rows of each source rank: layout expert [size][L], layout rank [size]. The rows of a
     * list (layout rank: all rows) are then ordered by source rank, then by token, and in layout rank
     * begin at row 0. In host memory only. NULL: the counts or the order are unknown. */
    const uint32_t *recv_source;
    /* With epa_moe_footprint.row_order: [rows][topk] local expert of each choice, or -1, and its weight,
     * or 0; [size] first row << 32 | number of rows of each source rank. Otherwise NULL. */
    const int32_t *recv_local;
    const float *recv_local_weight;
    const int64_t *recv_range;
    const void *recv;                /* [rows] of [hidden], every recv_stride bytes */
    const float *recv_scale;         /* FP8 only: [rows] of [hidden / fp8_group_size] */
    const struct epa_origin *origin; /* [rows]: the source token of the row */
    size_t recv_stride, scale_stride, origin_stride;
    /* Like y, in the heap: experts that write their outputs here save combine a copy. */
    void *y_space;

    /* Into combine: y_space, or expert outputs elsewhere. Layout expert: [entries][hidden], the
     * plain expert outputs; combine applies the weights. Layout rank: [rows][hidden], the weighted
     * and reduced outputs of this rank's experts; combine reduces over ranks. */
    const void *y;
    void *out; /* out of combine: [tokens][hidden], like x */
};

/* AllGather: each rank receives the rows of all ranks, packed: rank 0's rows, then rank 1's, in the
 * layout of MPI_Allgatherv. Ranks may have different numbers of rows, 0 included, and the numbers
 * may change with each call. `rows` and `in` are in the backend's memory: kernels read the counts
 * on the device, so that a recorded call uses the current counts.
 *
 * All ranks make the same calls. No barrier is needed between calls. */
struct epa_allgather {
    uint32_t max_rows;    /* largest number of rows of one rank */
    uint32_t row_bytes;   /* a multiple of 16 */
    const uint32_t *rows; /* [size], each <= max_rows; the same on all ranks */
    /* [rows[rank]][row_bytes]. NULL: in place, the rows already are at their position in `out`: in
     * next_out of the previous call, rows[0] + ... + rows[rank - 1] rows from its start. */
    const void *in;

    /* Out of the call. `out` is a view of the algorithm's heap, at the same offset on all ranks.
     * The view is valid until epa_footprint.in_flight further calls have begun on this rank: with
     * 1, until the next call begins. */
    uint64_t epoch;  /* number of this call: 1, 2, ... */
    const void *out; /* [rows[0] + ... + rows[size - 1]][row_bytes] */
    void *next_out;  /* `out` of the next call: this rank may write its own rows there */

    /* Out of the call, for a consumer that runs concurrently and begins with rows that have
     * arrived. Rows are signalled in chunks of chunk_rows (the last chunk of a rank may be
     * shorter): the rows of chunk c of rank r are in `out` once this rank's signal word `signal` +
     * r * chunks + c is >= epoch. Chunks without rows are signalled, too. Own rows have no signal.
     * chunks 0: all rows are in `out` when the call has ended. */
    uint32_t signal, chunks, chunk_rows;
};

/* AllGather, then a matrix product: C = allgather(A) * B^T (+ bias), like the first layer of a
 * tensor-parallel block. Rank r has A, rows[r] rows of k; B, n rows of k (weights in their stored
 * order); and receives C, the product with the rows of all ranks, rank 0's first. Ranks may have
 * different numbers of rows, 0 included, and the numbers may change with each call. Ranks may also
 * have different n, 0 included, which never changes. A rank with n of 0 still sends, receives and
 * forwards rows, and its b, b_scale, bias_of and c are NULL. k is a multiple of 8. All arrays are
 * row-major, in the backend's memory; so is `rows`, like the `rows` of an AllGather.
 *
 * B, its scales and bias exist from create() to destroy() of an algorithm and do not change: the
 * algorithm may keep a copy in its own layout. In plan() pointers are NULL.
 *
 * Computation:
 *   BF16, F16  Sums of exact products in float32, in any order.
 *   FP8        e4m3, with scales as in epa_mlp: for each 128 of k (the last group may be
 *              shorter) p = the sum of products in float32; the sum over groups of
 *              p * (scale of the row of A * scale of the block of B), in float32, in any order.
 *              C is BF16.
 * bias is added in float32; then C is rounded, to nearest even. With out_fp8 C is not rounded to 16
 * bits, but quantised from float32 like a row of epa_moe, in groups of 128 columns: one scale for
 * each row and group. The last group may be shorter.
 *
 * All ranks make the same calls. No barrier is needed between calls. */
struct epa_ag_gemm {
    uint32_t max_rows; /* largest number of rows of A of one rank */
    /* n: columns of C of this rank. max_n: largest n of one rank, at least 1, the same on all
     * ranks. A plan has the same heap and signals on all ranks, so it depends on max_n only. */
    uint32_t n, max_n, k;
    int dtype;    /* of A and B: EPA_BF16, EPA_F16 or EPA_FP8_E4M3 */
    bool bias;    /* true: add bias_of */
    bool out_fp8; /* C is e4m3 with scales */

    const void *b;        /* [n][k] */
    const float *b_scale; /* FP8: [n / 128][k / 128], both rounded up */
    const float *bias_of; /* [n] */

    const uint32_t *rows; /* [size], each <= max_rows; the same on all ranks */
    /* [rows[rank]][k]; read until the call returns. On a device, where only the device knows the
     * number of rows, the algorithm may read up to max_rows rows here and in a_scale; it ignores
     * the rows beyond the actual number. */
    const void *a;
    const float *a_scale; /* FP8: [rows[rank]][k / 128, rounded up] */
    /* Out: [rows[0] + ... + rows[size - 1]][n], of epa_ag_gemm_c_dtype(); capacity [size *
     * max_rows][n]. */
    void *c;
    float *c_scale; /* out with out_fp8: as many rows of [n / 128, rounded up]; else NULL */
};

static inline enum epa_dtype epa_ag_gemm_c_dtype(const struct epa_ag_gemm *g)
{
    return g->out_fp8 ? EPA_FP8_E4M3 : g->dtype == EPA_F16 ? EPA_F16 : EPA_BF16;
}

/* Returns the bytes of an element of C. */
static inline size_t epa_ag_gemm_c_bytes(const struct epa_ag_gemm *g)
{
    return g->out_fp8 ? 1 : 2;
}

/* Returns the number of groups of 128 in n or k. */
static inline uint32_t epa_ag_gemm_groups(uint32_t of)
{
    return (of + 127) / 128;
}

struct epa_problem {
    enum epa_op op;
    union {
        struct epa_moe moe;
        struct epa_ag_gemm ag_gemm;
        struct epa_allgather allgather;
    } u;
};

#endif
