/* Memory of the ranks of a test: of the host, or of a CUDA device. room_host.c and room_cuda.c
 * implement the functions. */
#ifndef LIB_ROOM_H
#define LIB_ROOM_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

bool room_is_device(void);
/* Returns true after a message if the machine lacks the memory. */
bool room_missing(void);
/* epa2a_comm_params.device of a rank, and options of its comm. Ranks share a device if there are too
 * few. */
int32_t room_device(uint32_t rank);
const char *room_options(void);
/* Current device of the calling thread; 0 on the host. */
int room_current_device(void);
/* Backend and transport of an experiment whose plan equals the plan of the comm. */
const char *room_experiment(void);

/* Initially garbage on a device, 0 on the host. Errors end the process. A rank frees after its last call
 * with a moe, layer or ag_gemm. */
void *room_alloc(size_t bytes);
void room_free(void *);

/* Makes the device of a rank current, and creates a stream that does not wait for the default stream.
 * NULL on the host. */
void *room_stream(uint32_t rank);
void room_stream_end(void *stream);
/* Returns host memory itself on the host, else a copy on the device that the rank gives up by room_drop().
 * The next room_free() or room_stream_end() frees it. NULL of NULL. */
void *room_put(const void *host, size_t bytes, void *stream);
void room_drop(void *);
/* Copies between any memories, in the order of the stream; returns when the copy has ended. */
void room_copy(void *to, const void *from, size_t bytes, void *stream);

/* In the emulator of CUDA: denies the allocation of device memory or pinned memory with this number,
 * from 0, counted from the call on. room_allow() denies no further allocation, room_allocations()
 * returns the number since room_deny(), and room_resources() the number of allocations, streams and
 * so on that exist. No effect and 0 elsewhere. */
void room_deny(uint64_t number);
void room_allow(void);
uint64_t room_allocations(void);
int64_t room_resources(void);

#endif
