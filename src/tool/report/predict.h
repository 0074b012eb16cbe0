/* Prediction of the time of more ranks. */
#ifndef REPORT_PREDICT_H
#define REPORT_PREDICT_H

#include "base/text.h"
#include "op/op.h"

/* Predicts the time of more ranks: a model of each phase, fitted to short runs with few ranks,
 * and its report. */

/* Additive costs of a rank: of a call, of each peer, of each row and each choice that it sends or
 * receives. A row costs less if there are few rows, which fit into caches. If ranks share a core,
 * another rank must run before a waiting rank continues, and leaves a cold cache: a call and a row
 * then cost more, in addition to the share of the core. */
enum {
    PREDICT_CALL,
    PREDICT_PEER,
    PREDICT_ROW,
    PREDICT_CHOICE,
    PREDICT_FEW_ROW,
    PREDICT_SHARED_CALL,
    PREDICT_SHARED_ROW,
    PREDICT_TERMS
};

struct predict_point {
    double term[PREDICT_TERMS]; /* number of units of each cost */
    double share;               /* threads that share a core: factor of all costs */
    double ns;                  /* measured time */
    double weight;              /* of its relative error */
};

/* Link between nodes; one for each rank, or one shared by all ranks of a node. */
struct predict_link {
    double bytes_per_ns, latency_ns, message_ns; /* message_ns: least time between two messages */
    bool node;
};

enum predict_bound { PREDICT_LOCAL, PREDICT_BYTES, PREDICT_MESSAGES, PREDICT_LATENCY };

struct predict_time {
    double ns, local_ns, bytes_ns, messages_ns, latency_ns;
    enum predict_bound bound; /* the largest of them */
};

/* A phase: the work of the rank, the traffic of its link and the time between two messages overlap,
 * and the longest counts. Latencies are added, except the latencies of signals within a node, which
 * `local_ns` contains: a rank sees the barrier before the phase up to one latency late, and its
 * rows take another. Without a link the phase stays within a node. */
enum { PREDICT_LATENCIES = 2 };

/* Fits costs in ns, at least 0, with the least sum of squared relative errors. With fewer distinct
 * points than terms, some costs are 0. */
void predict_fit(const struct predict_point *, uint32_t n, double cost[PREDICT_TERMS]);
double predict_local(const double cost[PREDICT_TERMS], const struct predict_point *);

/* Parses "50GB/s,2us", then optionally ",10ns" and ",node". */
enum epa_status predict_link_read(const char *text, struct predict_link *, struct epa_error *);

struct predict_time predict_time(double local_ns, const struct op_load *,
                                 const struct predict_link *, double signal_ns);

/* A predicted phase, or the sum of all. Times are whole nanoseconds, as in JSON. */
struct predict_stage {
    const char *name;
    struct predict_time time;
    double low_ns, high_ns, link_bytes;
    struct op_load load; /* of a phase */
};

struct predict_world {
    uint32_t ranks, nodes;
    const char *why;        /* reason why the world is not possible; NULL: it is, and has */
    uint32_t planned_ranks; /* ranks of the plan that memory and messages are from */
    uint64_t heap_bytes, memory_bytes; /* of a rank */
    double tokens_per_s;
    struct predict_stage stage[OP_PHASES], total;
    uint32_t n_stages;
    double times; /* time relative to the smallest world; NaN: unknown */
};

/* A row of predicted and measured time. */
struct predict_check {
    const char *name;
    double predicted_ns, measured_ns, ratio;
};

/* A prediction; the texts belong to the caller. */
struct predict_report {
    const char *file;
    bool sweep;
    const struct predict_link *link; /* NULL: one node */
    struct predict_world *world;     /* [n_worlds]: the requested one, or the worlds of a sweep */
    uint32_t n_worlds;
    uint32_t scales_to, scales_from; /* ranks; scales_to 0: the first step takes twice the time */
    const char *scales;              /* in words */
    const char *measured, *error;    /* in words */
    double error_part;
    const char *const *note; /* [n_notes] */
    uint32_t n_notes;
    struct predict_check check[2 * (OP_PHASES + 1)];
    uint32_t n_checks;
};

/* Prints a prediction: the answer, then a table with a row for each stage, or for each world of a
 * sweep. */
void predict_text(FILE *, const struct predict_report *);
void predict_markdown(struct text *, const struct predict_report *);
void predict_csv(struct text *, const struct predict_report *);

/* Returns the display name of a row of "worlds". */
const char *predict_bound_name(enum predict_bound);

#endif
