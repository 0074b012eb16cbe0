/* What the parts of `epa2a predict` share: cmd_predict.c measures, predict_world.c predicts. */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include "cli/cli.h"
#include "cli/runs.h"
#include "op/op.h"
#include "report/summary.h"

enum {
    WORLDS_MOST = 8, /* that are measured */
    WORLDS_WANTED = 3,
    CORES_MOST = 16, /* ranks of a measured world, where each has a core */
    SETS_MOST = 8,
    KINDS = 3, /* of runs in a world: all tokens, one, fewer choices */
    ROUNDS = 3,
    COUNTED = 8, /* iterations whose traffic is counted, at most */
    RANKS_MOST = 65536
};
#define CHOICES_MOST 4e6 /* that are looked at for it */
#define SIDE_WEIGHT 0.25 /* of runs with fewer tokens or choices than are asked for */

/* A run that is measured. */
struct measured {
    uint32_t ranks, tokens, copies;
    const char **set; /* [n_sets], and room for how it is measured */
    uint32_t n_sets;
    bool checks; /* it is for --check alone */
    const struct experiment *x;
    struct op_load load[OP_PHASES];
    struct predict_point point[OP_PHASES];
    double total_ns, second_ns; /* the fastest round, and the one after it */
};

struct prediction {
    const struct cli *cli;
    struct arena *arena;
    struct registry *registry;
    json_t *machine;
    struct runs base; /* the file */
    const struct experiment *x;
    const struct operation *op;
    struct op_source *source;
    const char *text; /* YAML of what is measured */
    uint32_t ranks, per_node, low, cores, here;
    struct predict_link link;
    bool has_link;
    struct runs read[WORLDS_MOST * KINDS];
    struct measured run[WORLDS_MOST * KINDS];
    uint32_t n_read, n, world[WORLDS_MOST], n_worlds;
    double signal_ns;                                       /* in a node, measured */
    double cost[WORLDS_MOST + 1][OP_PHASES][PREDICT_TERMS]; /* of all, then without world i */
    double error;                                           /* of what was measured */
    json_t *notes, *document;
    struct epa_error err;
};

/* Whether it has the tokens and choices that are asked for. */
bool prediction_is_whole(const struct prediction *, const struct measured *);
/* What the stages of a phase took, whose names begin with its: "dispatch_send". */
double prediction_phase_ns(const json_t *result, const char *phase);

/* ---- predict_world.c ---- */

double prediction_threads(const struct experiment *);
/* Means over iterations of what a world moves. */
void prediction_count(const struct experiment *, const struct op_source *,
                      struct op_load mean[OP_PHASES]);
struct predict_point prediction_point(const struct prediction *, const struct experiment *,
                                      const struct op_load *, uint32_t cores);
/* Another world of the file, planned; or why there is none. */
const char *prediction_resize(struct prediction *, uint32_t ranks, struct experiment *out,
                              uint32_t *planned);
/* Costs, from all that was measured. */
void prediction_fit(struct prediction *);
/* Fills p->document. */
enum epa_status prediction_make(struct prediction *);

#endif
