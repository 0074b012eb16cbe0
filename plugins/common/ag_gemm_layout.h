/* AllGather and GEMM on GPUs: set-up without a GPU. */
#ifndef AG_GEMM_LAYOUT_H
#define AG_GEMM_LAYOUT_H

#include "ag_gemm.h"

/* Implements epa_algorithm_plugin.plan for the algorithm `name`. It rejects settings that need
 * other options, with messages that suit both plugins, before any work begins. */
enum epa_status ag_gemm_cuda_plan(const char *name, const struct epa_ag_gemm *,
                                  const struct epa_world *, const struct ag_gemm_config *,
                                  struct epa_footprint *out, struct epa_error *);

struct ag_gemm_args; /* ag_gemm_device.h */

/* Layout of the heap, identical on all ranks. */
struct ag_gemm_layout {
    uint32_t size, max_rows, groups, chunks, chunk_rows, panels;
    uint64_t row_bytes, scales_at, set_bytes;
    const char *refused; /* reason why cuBLASLt does not multiply; NULL: none */
    bool two_level;
    bool engines;  /* copy engines push own rows, unless mover: auto finds ranks that share a GPU */
    bool forwards; /* copy engines forward rows of other nodes */
    bool parts;    /* cuBLASLt multiplies the rows of each rank, if it is available */
    bool padded;   /* the rows of a rank begin at a fixed place: copies have a fixed extent */
};

/* Computes the layout. Rejects settings that need other options; `name` begins the message. */
enum epa_status ag_gemm_layout_make(const char *name, const struct epa_ag_gemm *,
                                    const struct epa_world *, const struct ag_gemm_config *,
                                    struct ag_gemm_layout *out, struct epa_error *);

/* Describes the rule of product: auto with the values of the problem, for reports. */
void ag_gemm_describe_rule(const struct epa_ag_gemm *, const struct ag_gemm_layout *, char *out,
                           size_t bytes);

/* Places the rank's private memory: sets pointers in `out` and next_call[AG_GEMM_SETS]. notes:
 * intervals of the profile. With memory NULL it only counts. Returns the number of bytes. */
uint64_t ag_gemm_place_private(const struct ag_gemm_layout *, uint32_t blocks, uint64_t notes,
                               char *memory, struct ag_gemm_args *out, uint64_t **next_call);

/* Writes the routes between ranks and the order of ranks' tiles into `out`, which must be 0 in
 * these fields. With two levels it rejects nodes of different sizes. */
enum epa_status ag_gemm_find_routes(const char *name, const struct ag_gemm_layout *,
                                    const struct ag_gemm_config *, const struct epa_world *,
                                    struct ag_gemm_args *out, struct epa_error *);

/* Explains the time-out of a kernel. */
void ag_gemm_explain_fault(const struct ag_gemm_layout *, const struct ag_gemm_args *,
                           const struct epa_fault *, struct epa_error *);

#endif
