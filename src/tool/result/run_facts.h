/* Facts of a session that reports read: copies, so a result outlives its session. */
#ifndef RUN_FACTS_H
#define RUN_FACTS_H

#include "op/op.h"
#include "session/session.h"

struct arena;

/* A rank at the end of the run. */
struct run_rank {
    int32_t pid, core; /* pid 0: the record of the rank is lost; core -1: not pinned */
    uint32_t node;
    const char *host; /* "": unknown */
    uint64_t samples;
    double first_ns; /* time of the very first iteration; 0: not complete */
    enum epa_status status;
    const char *text; /* message of a failure */
    const struct session_facts *device, *transport;
};

/* All texts are in the arena of the figures. */
struct run_facts {
    const struct experiment *experiment; /* with expert.values resolved */
    const struct operation *operation;
    enum verb verb;
    uint32_t warmup, iterations; /* requested */
    uint32_t calls;              /* of each stage in a launch of a graph */
    bool open;                   /* bench with an open loop */
    const char *started_by;      /* "": this process started all ranks */
    const char *uncounted;       /* reason why puts are not counted; "": they are counted */
    struct epa_footprint footprint;
    const struct session_notes *notes;
    const struct run_rank *rank; /* [ranks of the experiment] */
    const char *input_lines;     /* statistics of inputs for the table; "": none */
    struct op_statistic input[OP_STATISTICS];
    uint32_t n_inputs;
};

void run_facts_copy(const struct session *, struct arena *, struct run_facts *out);

#endif
