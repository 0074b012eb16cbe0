/* What AllGather-GEMM plugins share on hosts: weights packed once, rows of A packed with k padded
 * to what the kernels take, and a tile of C from panels of A. And what those of GPUs share with
 * them: which rank is where. */
#ifndef GEMM_HOST_H
#define GEMM_HOST_H

#include <epa2a/algorithm.h>
#include <epa2a/backend.h>
#include <epa2a/gemm.h>
#include <epa2a/quant.h>
#include <epa2a/status.h>

enum { GEMM_K_UNIT = 128 };

/* B of a problem in the kernels' layout: n padded to whole panels and k to whole groups of 128,
 * with zeros. bias and b_scale are the problem's own. */
struct gemm_weights {
    const struct epa_gemm *kernels;
    struct epa_backend *backend; /* of whose memory b is: in huge pages */
    uint32_t n, k;               /* of the problem */
    uint32_t padded_n, padded_k; /* what is multiplied */
    void *b;
    const float *b_scale, *bias;
    const struct epa_kernels *rounding; /* to C */
};

static inline uint32_t gemm_round_up(uint32_t n, uint32_t to)
{
    return (n + to - 1) / to * to;
}

static inline uint32_t gemm_padded_k(uint32_t k)
{
    return gemm_round_up(k, GEMM_K_UNIT);
}

/* Bytes of the packed weights of a rank. */
uint64_t gemm_weights_bytes(const struct epa_ag_gemm *);

enum epa_status gemm_weights_create(const struct epa_ag_gemm *, struct epa_backend *,
                                    struct gemm_weights *out, struct epa_error *);
void gemm_weights_destroy(struct gemm_weights *); /* all 0: nothing to do */

/* Bytes of a row of A as the problem has it. */
static inline size_t gemm_row_bytes(const struct epa_ag_gemm *g)
{
    return (size_t)g->k * (g->dtype == EPA_FP8_E4M3 ? 1 : 2);
}

/* Row `row` of the panels at `panels`. line: padded_k * 2 bytes for rows that are padded, which
 * begin zero; NULL where k is not padded. */
void gemm_pack_row(const struct gemm_weights *, const void *x, void *panels, uint32_t row,
                   void *line);

/* Rows of C, columns from `column` (a multiple of EPA_GEMM_COLS) on, `columns` of them (the same,
 * or up to padded_n). */
struct gemm_tile {
    const void *a;        /* a panel's start */
    const float *a_scale; /* FP8: [rows][padded_k / 128] */
    uint32_t rows, column, columns;
    uint16_t *c; /* [rows][n], the first element of its first row */
};

/* scratch: [rows][columns] floats, at the start of a line. */
void gemm_tile_run(const struct gemm_weights *, const struct gemm_tile *, float *scratch);

/* ---- ranks and nodes ---- */

enum { GEMM_PLACES = 64 };

struct gemm_places {
    uint32_t node[GEMM_PLACES], place[GEMM_PLACES]; /* of each rank; place: in its node */
    uint32_t size, nodes;
};

/* Refuses nodes of different sizes where rows go in two levels, in words that begin with `name`. */
enum epa_status gemm_find_places(const char *name, const struct epa_world *, bool two_level,
                                 struct gemm_places *out, struct epa_error *);

uint32_t gemm_rank_at(const struct gemm_places *, uint32_t node, uint32_t place);

/* Whose tiles come first: own rows, then those of the ranks after this one in its node, then of the
 * nodes after it. As the ranks after this one push to it first, their rows are the first to
 * arrive. */
static inline uint32_t gemm_turn_of(const struct gemm_places *p, uint32_t me, uint32_t rank)
{
    uint32_t node = (p->node[rank] + p->nodes - p->node[me]) % p->nodes;

    return node * p->size + (p->place[rank] + p->size - p->place[me]) % p->size;
}

#endif
