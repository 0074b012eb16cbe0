/* The plan of `epa2a predict`: the runs to measure on this machine, and the traffic of the predicted worlds.
 * A world is a job of a given number of ranks. predict_runs.c chooses the runs, predict_worlds.c counts the
 * traffic, and the Python package measures, fits and predicts. */
#ifndef PREDICT_PLAN_H
#define PREDICT_PLAN_H

#include "cli/cli.h"
#include "cli/runs.h"
#include "op/op.h"

enum {
    WORLDS_MOST = 8,   /* maximum number of measured worlds */
    WORLDS_WANTED = 3, /* worlds to measure even if their ranks share cores */
    CORES_MOST = 16,   /* maximum number of ranks of a measured world */
    SETS_MOST = 8,     /* maximum number of settings of a measured run */
    KINDS = 3,         /* runs of a world: all tokens, one token, fewer choices */
    COUNTED_MOST =
        34, /* maximum number of counted worlds: twice the ranks each, from two numbers */
    RANKS_MOST = 65536
};

/* A run to measure. */
struct predict_run {
    uint32_t ranks, tokens, copies;
    const char *set[SETS_MOST]; /* [n_sets]: settings of the plan's experiment */
    uint32_t n_sets;
    bool checks;  /* the run serves --check only and is not fitted */
    double share; /* threads that share a core, at least 1 */
    struct op_load load[OP_PHASES];
};

/* The traffic of a world. */
struct predict_world {
    uint32_t ranks, nodes;
    const char *why;        /* reason why the world is not possible; NULL: it is, and has */
    uint32_t planned_ranks; /* ranks of the plan that memory and messages are from */
    uint64_t heap_bytes, memory_bytes; /* of a rank */
    struct op_load load[OP_PHASES];
};

struct predict_plan {
    const struct cli *cli;
    struct arena *arena;
    struct registry *registry;
    struct machine_facts machine;
    struct runs base; /* the run of the file */
    const struct experiment *x;
    const struct operation *op;
    struct op_source *source;
    const char *text;    /* YAML of the measured experiment */
    uint32_t low, ranks; /* the smallest and the largest requested world */
    uint32_t per_node, cores;
    struct predict_run run[WORLDS_MOST * KINDS];
    uint32_t n_runs;
    uint32_t measured[WORLDS_MOST], n_measured; /* ranks of the worlds that are fitted */
    struct predict_world world[COUNTED_MOST];
    uint32_t n_worlds;
    struct epa_error err;
};

#endif
