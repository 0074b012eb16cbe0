/* State of `epa2a predict`: predict_measure.c measures small worlds, predict_world.c predicts large
 * ones. A world is a job of a given number of ranks. */
#ifndef CLI_PREDICT_H
#define CLI_PREDICT_H

#include "cli/cli.h"
#include "cli/runs.h"
#include "op/op.h"
#include "report/summary.h"
#include "report/predict.h"

enum {
    WORLDS_MOST = 8,   /* maximum number of measured worlds */
    WORLDS_WANTED = 3, /* worlds to measure even if their ranks share cores */
    CORES_MOST = 16,   /* maximum number of ranks of a measured world */
    SETS_MOST = 8,     /* maximum number of settings of a measured run */
    KINDS = 3,         /* runs of a world: all tokens, one token, fewer choices */
    ROUNDS = 3,
    COUNTED = 8, /* maximum number of iterations whose traffic is counted */
    RANKS_MOST = 65536
};
#define CHOICES_MOST 4e6 /* maximum number of choices in the counted iterations */
#define SIDE_WEIGHT 0.25 /* weight of runs with fewer tokens or choices than the file has */

/* A measured run. */
struct measured {
    uint32_t ranks, tokens, copies;
    const char **set; /* [SETS_MOST]: n_sets settings of the run; bench settings follow */
    uint32_t n_sets;
    bool checks; /* the run serves --check only and is not fitted */
    const struct experiment *x;
    struct op_load load[OP_PHASES];
    struct predict_point point[OP_PHASES];
    double total_ns, second_ns; /* times of the fastest and the second fastest round */
};

struct prediction {
    const struct cli *cli;
    struct arena *arena;
    struct registry *registry;
    struct machine_facts machine;
    struct runs base; /* the run of the file */
    const struct experiment *x;
    const struct operation *op;
    struct op_source *source;
    const char *text; /* YAML of the measured experiment */
    uint32_t ranks, per_node, low, cores, here;
    struct predict_link link;
    bool has_link;
    struct runs read[WORLDS_MOST * KINDS];
    struct measured run[WORLDS_MOST * KINDS];
    uint32_t n_read, n, world[WORLDS_MOST], n_worlds;
    double signal_ns; /* latency of a signal within a node, measured */
    /* Costs fitted to all worlds [0], and to all worlds but world i - 1 [i]. */
    double cost[WORLDS_MOST + 1][OP_PHASES][PREDICT_TERMS];
    double error; /* largest error of the fit, and spread of the rounds, as a logarithm */
    const char *note[WORLDS_MOST + 3]; /* one for each dropped world, and three others */
    uint32_t n_notes;
    struct predict_report report; /* see prediction_make() */
    struct epa_error err;
};

#endif
