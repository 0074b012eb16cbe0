/* C = A * B^T + bias by cuBLASLt, on the stream of a rank's GPU. The library is loaded when it is
 * first wanted: no program that goes without needs it. */
#ifndef CUBLASLT_H
#define CUBLASLT_H

#include <epa2a/backend.h>
#include <epa2a/status.h>

enum { CUBLASLT_WORKSPACE = 32 << 20 }; /* bytes of the device */

struct cublaslt_product {
    int dtype;         /* of A, B and C: EPA_BF16 or EPA_F16 */
    uint32_t m, n, k;  /* A [m][k], B [n][k], C [m][n] */
    const void *a, *b; /* of the device; a: read while candidates are timed */
    const float *bias; /* [n], of the device; NULL: none */
};

struct cublaslt;

/* Takes the fastest of the first candidates. EPA_ERR_UNSUPPORTED, with a sentence: built
 * without its header, the library is not there, or it cannot do this. The rest are failures. */
enum epa_status cublaslt_create(const struct cublaslt_product *, struct epa_backend *,
                                struct cublaslt **out, struct epa_error *);
void cublaslt_destroy(struct cublaslt *);           /* takes NULL; queued work is done */
const char *cublaslt_name(const struct cublaslt *); /* "cuBLASLt 13.0.2" */

/* Queues the product of all m rows; may be recorded into a graph. `a`, `c`: multiples of 16. */
enum epa_status cublaslt_multiply(struct cublaslt *, const void *a, void *c, struct epa_error *);

#endif
