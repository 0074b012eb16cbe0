/* What fuzzers share. A target is a function that takes any bytes; what it demands must hold. */
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

/* A file of these bytes in memory, whose path is by its descriptor, so that no two fuzzers meet on
 * one. The next call of the thread ends it. */
const char *fuzz_file(const void *data, size_t bytes);

#endif
