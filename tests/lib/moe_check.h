/* Calls of dispatch and combine on a rank of a test, with checks of all results against
 * moe_model.h. */
#ifndef LIB_MOE_CHECK_H
#define LIB_MOE_CHECK_H

#include "group.h"
#include "moe_model.h"

struct rank {
    struct group_rank *of;
    uint32_t rank;
    const struct setting *arg;
    const char *transport;
    uint64_t heap_bytes; /* of the comms of this rank; 0: no limit */
    bool failed;
    void *stream;
};

/* A moe of a test with the buffers of this rank. */
struct subject {
    struct rank *r;
    const struct setting *s;
    struct epa2a_comm *comm;
    struct epa2a_moe *moe;
    struct epa2a_need need;
    /* [max_tokens] inputs and outputs of the last dispatch */
    uint16_t *x, *out, *bias;
    uint8_t *codes;
    float *code_scale, *weight;
    int32_t *expert;
    int64_t *wide;
    /* On a device: copies of the arrays above. */
    struct {
        void *x, *out, *y, *bias, *codes, *code_scale, *weight, *expert;
    } there;
};

/* Memory of a dispatch. */
struct slot {
    struct epa2a_received got;
    /* What the checks read: the arrays of `got`, or copies of them in host memory. */
    struct epa2a_received host;
    uint64_t iteration, route; /* route: iteration of the choices */
    uint32_t tokens;
    bool own;                    /* memory of the caller */
    struct epa2a_received mine;  /* this memory */
    void *room;                  /* routing */
    int32_t *seen, *seen_before; /* host memory */
    int32_t *seen_there;         /* on a device: of the calls; NULL: unused */
    uint32_t *host_count;
};

/* Ways of the calls of an iteration. */
struct way {
    bool own;     /* memory of the caller for all outputs */
    bool halves;  /* send and recv */
    bool wide;    /* indices of 8 bytes */
    bool strided; /* rows of x have a gap */
    bool codes;   /* x is FP8 */
    bool late;    /* weights at combine only */
    bool routing;
    bool bias;
    bool mask;    /* combine drops a choice */
    bool weights; /* combine returns weights */
    /* This rank makes no call after a whole call, or between halves that overlap, until all other
     * ranks have ended the same call. */
    bool pauses;
};

/* Records the first failure of the rank. Returns `holds`. */
__attribute__((format(printf, 3, 4))) bool claim(struct rank *, bool holds, const char *fmt, ...);
/* Claims that a call returned EPA2A_OK. */
bool works(struct rank *, int status);
/* Claims the status of a call, and that its message contains the words between " .. ", in order. */
void fails(struct rank *, int status, int wanted, const char *words);

struct epa2a_comm *create_comm(struct rank *);

void subject_begin(struct subject *, struct rank *, const struct setting *, struct epa2a_comm *);
void subject_end(struct subject *);
void slot_begin(const struct subject *, struct slot *, const struct way *);
void slot_end(struct slot *);

/* Makes the inputs of the iteration of the slot. */
void fill_inputs(struct subject *, const struct slot *, const struct way *, struct epa2a_tokens *);

/* Dispatches the tokens of an iteration and checks the received rows. */
void dispatch(struct subject *, struct slot *, const struct way *, uint64_t iteration);
/* Dispatches the tokens of an iteration along the routes of the slot. */
void dispatch_again(struct subject *, struct slot *, const struct way *, uint64_t iteration);
/* Computes expert outputs, `elsewhere` or in memory of the dispatch, combines, checks the sums. */
void combine(struct subject *, struct slot *, const struct way *, bool elsewhere);

#endif
