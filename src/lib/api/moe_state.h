/* State of a moe, and the functions that its files share.
 *
 *   moe.c            the functions of epa2a.h: checks of structs, and the comm
 *   moe_plan.c       shape to problem, options of the algorithm, and memory requirements
 *   moe_create.c     creation and destruction
 *   moe_dispatch.c   dispatch and its halves
 *   moe_combine.c    combine and its halves
 *   moe_weights.c    weights that combine returns
 *   moe_device.c     dispatch and combine in memory of a CUDA device
 *   moe_open.c       open dispatches, the order of combines, and repeated dispatches
 *   moe_outputs.c    memory for outputs of dispatch
 *   moe_routing.h    routes in memory of the caller
 *   moe_routes.h     list of routes in memory of a device
 *
 * Open dispatches. An algorithm holds a buffer set from a dispatch to its combine, and combines
 * must follow the order of dispatches. A record describes each open dispatch. A dispatch with
 * `routing` may remain open after its last use: it lingers. The library closes it when the
 * algorithm needs its buffer set, or when a later dispatch is combined. A discarded dispatch
 * lingers, too. These decisions depend only on the sequence of calls, so they are equal on all
 * ranks.
 *
 * Routes. A combine for a dispatch that is no longer open repeats the dispatch with the stored
 * choices and arbitrary tokens. The order of rows depends only on the choices, so the expert
 * outputs of the caller fit the repeated dispatch. */
#ifndef API_MOE_STATE_H
#define API_MOE_STATE_H

#include "api/moe_deliver.h"
#include "api/moe_routes.h"
#include "api/tokens.h"
#include "ep/ep.h"
#include "options/choose.h"

#include <epa2a/backend.h>

/* Outputs of dispatch that may be in memory of the moe. Each array is allocated at its first use. */
enum moe_array {
    MOE_X,
    MOE_X_SCALE,
    MOE_COUNT,
    MOE_START,
    MOE_ROW,
    MOE_TOPK_IDX,
    MOE_TOPK_WEIGHT,
    MOE_Y,
    MOE_ARRAYS
};

enum moe_record_state {
    MOE_FREE,
    MOE_OPEN,   /* the caller owes a combine or a discard */
    MOE_LINGERS /* the library may close the dispatch */
};

/* A dispatch and its received rows. */
struct moe_record {
    enum moe_record_state state;
    uint64_t id;    /* number of the dispatch of the moe; 0: none */
    uint64_t route; /* number of the routes in memory of the caller; 0: without `routing` */
    bool weighted;  /* the source passed weights to dispatch */
    struct epa_problem problem;
    struct moe_places places; /* on hosts */
    /* RANK, on a device: memory for rows and scales in another form than the rows of the algorithm */
    void *formed, *formed_scale;
    /* [max_tokens][topk] Copies of the choices. On a device only for dispatches with `routing` and
     * for choices of 8 bytes. */
    int32_t *expert;
    float *weight;
    struct epa_choices_copy keep; /* copies that the dispatch makes itself */
    /* [tokens][topk] The copies, or the arrays of the caller. */
    const int32_t *sent_expert;
    const float *sent_weight;
    /* Memory of the moe. On a device: views that the caller has. */
    void *array[MOE_ARRAYS];
};

/* Input of a dispatch that is checked and converted, before the dispatch has a record. */
struct moe_input {
    struct epa_moe m; /* inputs for the algorithm */
    /* On a device, or NULL: choices of 8 bytes and tokens of 16 bits, which kernels have to convert. */
    const void *wide, *native;
    bool weighted;
    struct moe_form form;
    int32_t *expert; /* [max_tokens][topk] */
    float *weight;   /* [max_tokens][topk] */
    uint64_t route;  /* 0: without `routing` */
    int32_t *seen;   /* of the caller; or NULL */
};

/* A dispatch that a combine belongs to. */
struct moe_target {
    struct moe_record *record; /* NULL: not open; the combine repeats the dispatch */
    uint64_t id;
    uint32_t tokens;
    bool weighted;
    const int32_t *expert; /* [tokens][topk] */
    const float *weight;   /* [tokens][topk] */
};

/* The half call that is open. */
enum moe_half { MOE_WHOLE, MOE_DISPATCH_SENT, MOE_COMBINE_SENT };

enum { MOE_SETS = 2 };

/* Plan of a moe for a shape. */
struct moe_plan {
    struct epa2a_moe_shape shape; /* of shape_read(); options NULL */
    struct ep_choice algorithm;
    struct epa_problem problem;
    struct moe_layout layout;
    struct epa_footprint footprint;
    uint32_t transport_flags;
};

struct epa2a_moe {
    struct epa2a_comm *comm; /* for moe.c only */
    struct choice choice;    /* owns the options of the plugins */
    void *heap;              /* memory of the caller for the heap; NULL: none */
    struct ep ep;
    struct moe_plan plan;
    struct epa_backend *device; /* NULL: host memory */
    float *no_weight;           /* on the device: [max_tokens][topk] of 0 */
    const char *name;           /* of the algorithm */
    uint64_t owner;             /* distinguishes routes of this moe from routes of other moes */
    struct epa_stage send[2];   /* of dispatch and of combine; run NULL: recv does all work */
    struct epa_stage recv[2];
    struct moe_record record[MOE_SETS];
    uint32_t sets;          /* buffer sets of the algorithm */
    struct moe_record lane; /* a repeated dispatch, closed in the same call */
    struct moe_input input;
    uint64_t dispatches;    /* number of dispatches of the caller */
    uint64_t routes;        /* number of routes */
    struct moe_routes list; /* of a device */
    uint64_t last_epoch;    /* of the last dispatch of the algorithm */
    /* Record of the last combined dispatch; NULL once the caller began another dispatch. The
     * combine may be repeated. */
    struct moe_record *combined;
    enum moe_half half;
    struct moe_record *halved;    /* record of the half call; NULL: recv does all work */
    void *routing;                /* memory of the caller for the routes of a dispatch; or NULL */
    struct moe_target target;     /* of the combine */
    struct epa2a_outputs outputs; /* of the combine */
    /* Work space. */
    struct tokens tokens;
    int32_t *masked; /* [max_tokens][topk]: choices of a combine, in memory of the comm */
    float *scales;   /* scales of two rows */
    /* [max_tokens][hidden] of 16 bits, in memory of the comm: inputs and outputs without meaning; on a
     * device also dense copies of tokens */
    void *scratch;
    /* [max_tokens][hidden], [max_tokens][groups], in memory of the comm: tokens that the library
     * quantises. On a device only with FP8 between the ranks. */
    uint8_t *codes;
    float *code_scales;
};

#endif
