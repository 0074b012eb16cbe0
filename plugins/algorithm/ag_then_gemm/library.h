/* One matrix product of a library: C = A * B^T + bias, A row-major as it was gathered. Only where
 * ONEDNN is 1: there is nothing behind these in a build without. */
#ifndef LIBRARY_H
#define LIBRARY_H

#include <epa2a/problem.h>
#include <epa2a/status.h>

struct library;

/* Whether it knows the problem's data type, on this CPU. */
bool library_knows(const struct epa_ag_gemm *);

/* B is packed here, for products of about `rows` rows a worker. */
enum epa_status library_create(const struct epa_ag_gemm *, uint32_t rows, uint32_t workers,
                               struct library **out, struct epa_error *);
void library_destroy(struct library *); /* takes NULL */

/* On a worker's own thread: `rows` rows at `a` to as many at `c`. */
enum epa_status library_multiply(struct library *, uint32_t worker, const void *a, uint32_t rows,
                                 void *c);

#endif
