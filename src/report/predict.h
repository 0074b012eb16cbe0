/* What a larger world would take: a model of a phase's time, fitted to short runs of small worlds,
 * and what is said of it. */
#ifndef PREDICT_H
#define PREDICT_H

#include <stdio.h>

#include "base/json.h"
#include "base/text.h"
#include "op/op.h"

/* Costs of a rank that add up: of a call, of each peer, of each row and each choice that it sends
 * or receives. */
enum { PREDICT_TERMS = 4 };

struct predict_point {
    double term[PREDICT_TERMS]; /* how many of each; [0] is 1 */
    double share;               /* threads that share a core: all costs are so many times as high */
    double ns;                  /* what was measured */
    double weight;              /* of its relative error */
};

/* Costs in ns, none below 0, with the least sum of squared relative errors. With fewer different
 * points than terms, some are 0. */
void predict_fit(const struct predict_point *, uint32_t n, double cost[PREDICT_TERMS]);
double predict_local(const double cost[PREDICT_TERMS], const struct predict_point *);

/* Between nodes; each rank has one, or all ranks of a node share it. */
struct predict_link {
    double bytes_per_ns, latency_ns, message_ns; /* message_ns: from one to the next, at least */
    bool node;
};

/* "50GB/s,2us", then ",10ns" and ",node" where wanted. */
enum epa_status predict_link_read(const char *text, struct predict_link *, struct epa_error *);

enum predict_bound { PREDICT_LOCAL, PREDICT_BYTES, PREDICT_MESSAGES, PREDICT_LATENCY };

struct predict_time {
    double ns, local_ns, bytes_ns, messages_ns, latency_ns;
    enum predict_bound bound; /* the largest of them */
};

/* A phase: what the rank does, what its link carries and the time between two messages go on at
 * the same time, and the longest counts; the latency, less that of signals in a node, which is in
 * `local_ns`, is added. Without a link the phase stays within a node. */
struct predict_time predict_time(double local_ns, const struct op_load *,
                                 const struct predict_link *, double signal_ns);

/* ---- the document ---- */

/* Keys of a prediction: "file", "link" (null), "cores", "worlds" (the one asked for, or those of a
 * sweep), "scales", "measured", "error", "check" (null), "machine"; help predicting says what they
 * are. The answer first; then a table with a row for each stage, or for each world of a sweep. */
void predict_text(FILE *, const json_t *);
void predict_markdown(struct text *, const json_t *);
void predict_csv(struct text *, const json_t *);

/* A row of "worlds": its name for people. */
const char *predict_bound_name(enum predict_bound);

#endif
