/* A made-up CUDA, for tests of what a plugin does around it: what is open, and which call
 * fails. The plugin built over it exports that as FAKE_CUDA_SYMBOL. */
#ifndef FAKE_CUDA_H
#define FAKE_CUDA_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#define FAKE_CUDA_SYMBOL "fake_cuda"

struct fake_cuda {
    int64_t live;       /* allocations, handles, mappings, streams, ... of this process */
    uint64_t calls;     /* that could fail, so far */
    uint64_t fail_at;   /* the call that fails; 0: none */
    int unreachable;    /* the GPU that no other reaches; -1: none */
    int no_descriptors; /* not 0: GPUs cannot pass memory by descriptors */
};

/* For the fake alone. A call that can fail asks whether it is the one; files are its
 * memory. */
extern __attribute__((visibility("default"))) struct fake_cuda fake_cuda;
bool fake_fails(void);
void fake_count(int by);
int fake_file(size_t bytes);

#endif
