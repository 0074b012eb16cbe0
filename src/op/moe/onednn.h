/* Products of matrices by oneDNN 2 or 3, for experts of bfloat16. The library is loaded when it is
 * wanted, so that the program starts without it.
 *
 * There are two matrices of weights, by enum weights_matrix, packed in blocks of ONEDNN_COLUMNS
 * rows of W. A worker calls with its own number only, on one thread. */
#ifndef ONEDNN_H
#define ONEDNN_H

#include <epa2a/status.h>
#include <stddef.h>
#include <stdint.h>

struct onednn;

enum { ONEDNN_MATRICES = 2, ONEDNN_ROWS = 256, ONEDNN_COLUMNS = 128 };

struct onednn_shape {
    uint32_t k;   /* elements of a row of W; a multiple of 128 */
    uint32_t ldc; /* floats from a row of C to the next */
};

/* EPA_ERR_UNSUPPORTED: built without, or the library is not there. */
enum epa_status onednn_create(const struct onednn_shape shape[ONEDNN_MATRICES], uint32_t workers,
                              struct onednn **out, struct epa_error *);
void onednn_destroy(struct onednn *);           /* takes NULL */
const char *onednn_name(const struct onednn *); /* "oneDNN 2.6.3" */

/* The rows of a block, [ONEDNN_COLUMNS][k], to as many bytes at `out`. */
enum epa_status onednn_pack(struct onednn *, uint32_t worker, uint32_t matrix, const void *w,
                            void *out);

/* C = A * B^T: m rows of A, [m][k], by a packed block; m up to ONEDNN_ROWS. Reads and writes rows
 * up to the next multiple of 32. */
enum epa_status onednn_multiply(struct onednn *, uint32_t worker, uint32_t matrix, const void *a,
                                uint32_t m, const void *b, float *c);

#endif
