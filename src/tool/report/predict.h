/* Prediction of the time of more ranks. */
#ifndef REPORT_PREDICT_H
#define REPORT_PREDICT_H

#include "base/json.h"
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

/* Prints a prediction. Keys: "file", "link" (null), "cores", "worlds" (the requested one, or the
 * worlds of a sweep), "scales", "measured", "error", "check" (null), "machine"; `epa2a help
 * predicting` describes them. The prediction comes first; then a table with a row for each stage,
 * or for each world of a sweep. */
void predict_text(FILE *, const json_t *);
void predict_markdown(struct text *, const json_t *);
void predict_csv(struct text *, const json_t *);

/* Returns the display name of a row of "worlds". */
const char *predict_bound_name(enum predict_bound);

#endif
