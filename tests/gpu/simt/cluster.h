/* A cluster: blocks that run at one time, on OS threads of their own, and reach each other's shared
 * memory. A block without others is a cluster, too. */
#ifndef SIMT_CLUSTER_H
#define SIMT_CLUSTER_H

#include <pthread.h>

#include "simt.h"

#ifdef __cplusplus
extern "C" {
#endif

/* For kernels. */
SIMT_EXPORT uint32_t simt_cluster_rank(void);
SIMT_EXPORT void simt_cluster_arrive(void);
SIMT_EXPORT void simt_cluster_wait(void);

#ifdef __cplusplus
}
#else

enum { SIMT_CLUSTER = 16 };

struct cluster {
    pthread_mutex_t lock;
    uint32_t blocks;
    struct worker *worker[SIMT_CLUSTER]; /* NULL: has not begun, or has ended */
    uint32_t phase;                      /* of its barrier */
    uint32_t here, left;                 /* threads that arrived in the phase; that ended */
    uint32_t stuck;                      /* blocks of which no thread can go on, as bits */
};

void simt_cluster_init(struct cluster *, uint32_t blocks);
void simt_cluster_begin(struct worker *);
void simt_cluster_end(struct worker *);
void simt_cluster_leave(struct worker *); /* a thread that ends */
/* What others did lets threads of this block go on. */
bool simt_cluster_news(struct worker *);
/* No thread of this block can go on, nor, as it seems, one of the others. */
bool simt_cluster_is_stuck(struct worker *);
/* Block `rank` of this one's cluster; ends the program if it does not run. */
struct worker *simt_cluster_peer(struct worker *, uint32_t rank);

#endif
#endif
