/* C = A * B^T + bias by cuBLASLt, on the stream of a rank's GPU. The library is loaded on first
 * use; programs that do not use it do not need it. */
#ifndef CUBLASLT_H
#define CUBLASLT_H

#include <epa2a/backend.h>
#include <epa2a/status.h>

enum { CUBLASLT_WORKSPACE = 32 << 20 }; /* bytes of device memory */

struct cublaslt_product {
    int dtype;         /* type of A, B and C: EPA_BF16 or EPA_F16 */
    uint32_t m, n, k;  /* A [m][k], B [n][k], C [m][n] */
    const void *a, *b; /* device addresses; a: rows that the timing of candidates reads */
    const float *bias; /* [n], device address; NULL: no bias */
};

struct cublaslt;

/* Chooses the fastest of the first candidates. EPA_ERR_UNSUPPORTED, with a message: the build
 * lacked the header, the library is not installed, or it does not support the product. */
enum epa_status cublaslt_create(const struct cublaslt_product *, struct epa_backend *,
                                struct cublaslt **out, struct epa_error *);
void cublaslt_destroy(struct cublaslt *);           /* accepts NULL; queued work must have ended */
const char *cublaslt_name(const struct cublaslt *); /* "cuBLASLt 13.0.2" */

/* Queues the product of all m rows; a graph may record the call. `a`, `c`: multiples of 16. */
enum epa_status cublaslt_multiply(struct cublaslt *, const void *a, void *c, struct epa_error *);

#endif
