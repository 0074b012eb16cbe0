/* Count of the bytes that a rank stores in and loads from memory of other ranks: for verify, which
 * compares them with the plan (src/tool/session/rank_puts.c). Several ranks of one process count
 * separately: the thread that created a stream identifies the rank. */
#include "fake_traffic.h"

#include <stdbool.h>
#include <stdlib.h>

#include <epa2a/plugin.h>

#include "session/kernel_traffic.h"

enum { RANKS = 64 };

static struct {
    pthread_mutex_t lock;
    uint32_t n;
    struct {
        pthread_t rank;
        struct kernel_traffic *traffic;
    } count[RANKS];
} counts = {.lock = PTHREAD_MUTEX_INITIALIZER};

int fake_traffic_counts;

EPA_PLUGIN_EXPORT kernel_traffic_function epa2a_count_kernel_traffic;

void epa2a_count_kernel_traffic(struct kernel_traffic *traffic)
{
    uint32_t i = 0;

    pthread_mutex_lock(&counts.lock);
    while (i < counts.n && !pthread_equal(counts.count[i].rank, pthread_self()))
        i++;
    if (traffic == NULL && i < counts.n)
        counts.count[i] = counts.count[--counts.n];
    else if (traffic != NULL && i == RANKS)
        abort();
    else if (traffic != NULL) {
        counts.count[i].rank = pthread_self();
        counts.count[i].traffic = traffic;
        counts.n += i == counts.n;
    }
    __atomic_store_n(&fake_traffic_counts, (int)counts.n, __ATOMIC_RELAXED);
    pthread_mutex_unlock(&counts.lock);
}

struct kernel_traffic *fake_traffic_of(pthread_t rank)
{
    struct kernel_traffic *found = NULL;

    pthread_mutex_lock(&counts.lock);
    for (uint32_t i = 0; i < counts.n; i++)
        if (pthread_equal(counts.count[i].rank, rank))
            found = counts.count[i].traffic;
    pthread_mutex_unlock(&counts.lock);
    return found;
}

void fake_traffic_add(struct kernel_traffic *traffic, const void *at, size_t bytes,
                      enum fake_access access)
{
    uint64_t *sum;

    if (traffic == NULL)
        return;
    if (access == FAKE_FAR) {
        __atomic_fetch_add(&traffic->stored, bytes, __ATOMIC_RELAXED);
        return;
    }
    for (uint32_t i = 0; i < traffic->n; i++) {
        struct kernel_region *region = &traffic->region[i];

        if ((uintptr_t)at - (uintptr_t)region->begin >= region->bytes)
            continue;
        sum = access == FAKE_LOAD    ? &region->loaded
              : access == FAKE_STORE ? &traffic->stored
                                     : &traffic->optional;
        __atomic_fetch_add(sum, bytes, __ATOMIC_RELAXED);
        return;
    }
}
