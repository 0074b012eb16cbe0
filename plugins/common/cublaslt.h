/* C = A * B^T + bias by cuBLASLt, on the stream of a rank's GPU. The library is loaded on first
 * use; programs that do not use it do not need it. */
#ifndef CUBLASLT_H
#define CUBLASLT_H

#include <epa2a/backend.h>
#include <epa2a/status.h>

enum { CUBLASLT_WORKSPACE = 32 << 20 }; /* bytes of device memory */

struct cublaslt_product {
    int dtype;         /* of A and B: EPA_BF16, EPA_F16 or EPA_FP8_E4M3. C is BF16 with FP8, else of
                        * this type */
    uint32_t m, n, k;  /* A [m][k], B [n][k], C [m][n] */
    const void *a, *b; /* device addresses; a: rows that the timing of candidates reads */
    const float *bias; /* [n], device address; NULL: no bias */
    /* FP8, device addresses: scales of the rows that the timing reads, by columns: [k / 128][m]; of B,
     * [n / 128][k / 128]. Quotients are rounded up. */
    const float *a_scale, *b_scale;
};

struct cublaslt;

/* Chooses the fastest of the first candidates. EPA_ERR_UNSUPPORTED, with a message: the build
 * lacked the header, the library is not installed, or it does not support the product. */
enum epa_status cublaslt_create(const struct cublaslt_product *, struct epa_backend *,
                                struct cublaslt **out, struct epa_error *);
void cublaslt_destroy(struct cublaslt *);           /* accepts NULL; queued work must have ended */
const char *cublaslt_name(const struct cublaslt *); /* "cuBLASLt 13.0.2" */

/* Queues the product of all m rows; a graph may record the call. `a`, `c`: multiples of 16. FP8:
 * a_scale as in struct cublaslt_product; otherwise NULL. */
enum epa_status cublaslt_multiply(struct cublaslt *, const void *a, const float *a_scale, void *c,
                                  struct epa_error *);

#endif
