/* Shared declarations of the fuzzers. A target is a function of arbitrary bytes; its demand()
 * conditions must hold for any input. */
#ifndef FUZZ_H
#define FUZZ_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>

void fuzz_yaml(const uint8_t *data, size_t bytes);
void fuzz_options(const uint8_t *data, size_t bytes);
void fuzz_rendezvous(const uint8_t *data, size_t bytes);
void fuzz_messages(const uint8_t *data, size_t bytes);
void fuzz_results(const uint8_t *data, size_t bytes);
void fuzz_trace(const uint8_t *data, size_t bytes);
void fuzz_npy(const uint8_t *data, size_t bytes);
void fuzz_jsonl(const uint8_t *data, size_t bytes);

#define demand(holds) \
    do { \
        if (!(holds)) { \
            fprintf(stderr, "%s:%d: not so: %s\n", __FILE__, __LINE__, #holds); \
            abort(); \
        } \
    } while (0)

/* Returns the path of a memory file with these bytes. The path uses its descriptor, so that fuzzers
 * do not share files. The next call of the thread closes the file. */
const char *fuzz_file(const void *data, size_t bytes);

#endif
