/* Third-party libraries that multiply matrices. They are loaded at first use: a program that does
 * not use them does not need them. */
#ifndef KERNELS_LIBRARIES_H
#define KERNELS_LIBRARIES_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum library_id { LIBRARY_ID_CUBLASLT, LIBRARY_ID_ONEDNN, LIBRARY_IDS };

struct library_function {
    const char *name;
    size_t offset; /* offset of its pointer in `out` of library_load() */
};

/* Fills pointers to functions. Returns NULL, with a message, if the library is missing or lacks one
 * of them. An open library is never closed: a driver, or a thread, may still run its code. */
void *library_load(enum library_id, const struct library_function *, size_t n, void *out,
                   struct epa_error *);

struct library_found {
    const char *name, *file, *use;
    char version[24]; /* "13.1.0" */
};

/* Returns false if the library is missing or the program was built without it. */
bool library_find(enum library_id, struct library_found *out);

/* ---- oneDNN: products of bf16, for experts of hosts and for ag_then_gemm ---- */

enum { ONEDNN_PRODUCTS = 2 };

/* C = A * B^T + bias: rows of A, [k], and of B, [n][k]. */
struct onednn_product {
    uint32_t n, k, ldc; /* ldc: elements from one row of C to the next */
    uint32_t rows;      /* number of rows for which B is packed */
    uint32_t step;      /* the library accesses rows up to the next multiple of it */
    bool f32;           /* C is float32; otherwise bf16 */
    const float *bias;  /* [n]; NULL: none */
};

struct onednn;

/* Returns true if the library exists and multiplies bf16 on this CPU. */
bool onednn_knows(const struct onednn_product *);

/* Creates `products` products. EPA_ERR_UNSUPPORTED: the program was built without the library, or
 * the library lacks the operation. */
enum epa_status onednn_create(const struct onednn_product *, uint32_t products, uint32_t workers,
                              struct onednn **out, struct epa_error *);
void onednn_destroy(struct onednn *);           /* accepts NULL */
const char *onednn_name(const struct onednn *); /* "oneDNN 2.6.3" */

/* Returns the bytes of packed B, and packs B at `out`. */
size_t onednn_packed_bytes(const struct onednn *, uint32_t product);
enum epa_status onednn_pack(struct onednn *, uint32_t worker, uint32_t product, const void *b,
                            void *out);

/* Multiplies m rows, on the thread of that worker. */
enum epa_status onednn_multiply(struct onednn *, uint32_t worker, uint32_t product, const void *a,
                                uint32_t m, const void *packed, void *c);

#endif
