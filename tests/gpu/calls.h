/* Layers for calls.c: one ll_v2 each, all over the same transport, with inputs that change and
 * the answers they must have. */
#ifndef CALLS_H
#define CALLS_H

#include "../../plugins/algorithm/ll_v2/ll_v2.h"
#include "../contract/ranks.h"

/* As much as a shape may have. */
enum { TOKENS = 16, HIDDEN = 512, TOPK = 6, LAYERS = 3, SLOTS = 4 };

struct shape {
    const char *name;
    uint32_t max_tokens, hidden, experts, topk, buffers;
    int layout, dispatch_dtype, split_phase; /* as in struct ll_config */
    bool dedup;
    bool apart; /* experts answer elsewhere than in the heap */
};

/* Inputs of one call, where its output goes, and what must be there. */
struct slot {
    struct epa_problem problem;
    uint32_t inputs; /* sets made so far */
    void *x, *expert, *weight, *out, *y;
    uint16_t host_x[TOKENS * HIDDEN], got[TOKENS * HIDDEN], want[TOKENS * HIDDEN];
    int32_t host_expert[TOKENS * TOPK];
    float host_weight[TOKENS * TOPK];
};

struct layer {
    struct rank *r;
    const struct shape *shape;
    struct ll_config config;
    struct epa_algorithm *a;
    struct slot slot[SLOTS];
};

/* All of them side by side in one heap. */
struct scene {
    struct rank *r;
    uint64_t common; /* random numbers that all ranks draw alike */
    struct layer layer[LAYERS];
    struct layer *recorded; /* whose pair is in the graph */
};

extern const struct epa_algorithm_plugin *calls_plugin; /* set once, by main() */

/* What a transport must have for all layers. */
void scene_plan(const struct subject *, uint32_t ranks, uint64_t *heap_bytes, uint32_t *signals);
/* False, and the reason claimed, if it cannot be; to be closed in any case. */
bool scene_open(struct rank *, struct scene **out);
void scene_close(struct scene *);
uint64_t scene_draw(struct scene *, uint64_t n); /* 0 to n - 1, the same on all ranks */

/* False once something has failed, which is claimed, and the other ranks are told. */
bool layer_works(struct layer *, enum epa_status, const char *what);
/* New inputs, and an output that is spoilt; `as_many`: tokens as before. */
bool layer_inputs(struct layer *, uint32_t slot, bool as_many);
bool layer_spoil(struct layer *, uint32_t slot);
bool layer_dispatch(struct layer *, uint32_t slot);
bool layer_output(struct layer *, uint32_t slot);
bool layer_combine(struct layer *, uint32_t slot);
/* The stages alone, to see what they return. */
enum epa_status layer_try_dispatch(struct layer *, struct epa_problem *);
enum epa_status layer_try_combine(struct layer *, struct epa_problem *);
bool layer_pair(struct layer *, uint32_t slot); /* all three of the above */
bool layer_sync(struct layer *);
bool layer_check(struct layer *, uint32_t slot, const char *when);
/* A pair from new inputs to an output that is right. */
bool layer_round(struct layer *, uint32_t slot, const char *when);

#endif
