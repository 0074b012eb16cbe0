/* Selects backend, transport and algorithm, and reads their options, from texts of options and
 * defaults.
 *
 * A key without prefix is one of transport, algorithm, backend, timeout, threads and ranks_per_node,
 * or else an option of the algorithm. "transport.x", "backend.x" and "algorithm.x" are options of
 * these plugins; x = "name" is the plugin. "transport.between_nodes" names the transport that carries
 * data between nodes for another one, and "transport.between_nodes.x" is an option of the named
 * transport. A later text overrides an earlier text. If a later text
 * names a plugin, options of this plugin in earlier texts do not count, as in a YAML file.
 *
 * Defaults: backend host, or cuda with a device of the caller. Transport shm, or nvlink on cuda.
 * Between hosts: ucx, or verbs if ucx cannot be loaded; nvlink then carries data between nodes over
 * ucx or verbs. Algorithm: the first that the selection supports of
 *   - dispatch and combine: ll_v2, ll_v1. With one core per rank ll_v2 has the least time for every
 *     measured shape of hosts, and on GPUs for all shapes but few and narrow rows
 *     (plugins/algorithm/ll_v1/notes.md, "Side by side"). It supports both layouts of rows.
 *   - complete layers: fused, ll_v2. fused overlaps communication and products
 *     (plugins/algorithm/fused/notes.md).
 *   - AllGather and product: ag_gemm_2d, ag_then_gemm. AllGather: allgather.
 *
 * timeout is a duration, threads the number of workers of a rank on hosts ("backend.workers").
 * ranks_per_node divides the ranks of a host into nodes. */
#ifndef OPTIONS_CHOOSE_H
#define OPTIONS_CHOOSE_H

#include "ep/ep.h"
#include "options/options_from_text.h"
#include "options/requirements.h"
#include "registry/registry.h"

/* A text of options. A shared text serves objects of several operations: an algorithm of another
 * operation does not count. Without an algorithm its options belong to dispatch and combine; other
 * operations read those that their algorithm has. Other texts belong to one object, and options of
 * the comm (timeout, threads, ranks_per_node, backend) are rejected there. */
struct choose_source {
    const char *name; /* for messages: "options", "EPA2A_OPTIONS" */
    const char *text; /* NULL: none */
    bool shared;
};

struct choose_params {
    const struct epa_world *world; /* NULL: all ranks are on one node */
    bool cuda;                     /* the caller has a CUDA device */
    uint32_t device;               /* number of this device */
    enum epa_op op;
    bool layer; /* op is MoE: a complete layer with experts */
    /* In order; the last text has priority. The last one is usually the value of EPA2A_OPTIONS
     * (secure_getenv). */
    const struct choose_source *source;
    uint32_t sources;
    /* Options of the algorithm with less priority than all sources, such as "layout=rank". Options
     * that the algorithm lacks are ignored. NULL: none. */
    const char *preset;
};

struct choice {
    struct ep_choice backend, transport, algorithm;
    struct ep_choice between; /* transport to other nodes; plugin NULL: none */
    uint64_t timeout_ns;      /* 0: not set */
    uint32_t threads;         /* workers of a rank; on devices as the backend says */
    uint32_t ranks_per_node;  /* 0: the ranks of a host are a node */
    struct options_memory memory; /* owns the configs */
};

/* EPA_ERR_CONFIG: wrong options, or plugins that do not fit together. EPA_ERR_UNSUPPORTED: a plugin
 * cannot be loaded. The plugins belong to the registry. */
enum epa_status choose(struct registry *, const struct choose_params *, struct choice *out,
                       struct epa_error *);
void choice_free(struct choice *); /* accepts {0} */

/* Returns the selected plugins. */
struct selection choice_selection(const struct choice *);

#endif
