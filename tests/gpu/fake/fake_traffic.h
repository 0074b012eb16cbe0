/* Count of the bytes that a rank stores in and loads from memory of other ranks. */
#ifndef FAKE_TRAFFIC_H
#define FAKE_TRAFFIC_H

#include <pthread.h>
#include <stddef.h>
#include <stdint.h>

/* FAKE_ADD: an atomic addition. FAKE_COPY: a store by a copy engine. FAKE_FAR: a put to another
 * node, by a descriptor. */
enum fake_access { FAKE_LOAD, FAKE_STORE, FAKE_ADD, FAKE_COPY, FAKE_FAR };

/* Returns the count of the rank with this thread, or NULL. */
struct kernel_traffic *fake_traffic_of(pthread_t rank);
/* Adds an access to the count, if another rank owns the memory. NULL: no count. FAKE_FAR has no
 * address. */
void fake_traffic_add(struct kernel_traffic *, const void *at, size_t bytes, enum fake_access);
/* Not 0 while any rank counts. */
extern __attribute__((visibility("default"))) int fake_traffic_counts;

#endif
