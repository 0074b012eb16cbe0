/* The header of a .npy file (versions 1.0 to 3.0): what kind of numbers, in which shape,
 * and where they begin. Nothing that the header says is believed before it has been held
 * against the size of the file. */
#ifndef NPY_H
#define NPY_H

#include <epa2a/status.h>
#include <stddef.h>
#include <stdint.h>

enum { NPY_DIMENSIONS = 3 };

struct npy {
    char kind; /* 'i', 'u' or 'f' */
    uint32_t item_bytes;
    uint32_t dimensions;
    uint64_t shape[NPY_DIMENSIONS];
    uint64_t items; /* product of shape; not 0 */
    size_t offset;  /* of the first item; items * item_bytes follow and nothing else */
};

/* Little endian, C order, 1 to NPY_DIMENSIONS dimensions; all else is refused with
 * "name: offset N: what, and what to do". */
enum epa_status npy_parse(const char *name, const void *data, size_t bytes, struct npy *out,
                          struct epa_error *);

/* Whether a file begins like one. */
int npy_is(const void *data, size_t bytes);

#endif
