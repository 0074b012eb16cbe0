/* verify --thorough: each run as it is written, and in these variants of it. What one lays over a
 * run is keys that anybody can set, so that one that fails is run again, alone, by --set.
 *
 * Where a variant is not possible it is skipped, and the reason printed. */
#include "experiment/batch.h"

enum { MOE = 1u << EPA_OP_MOE, GATHER = 1u << EPA_OP_ALLGATHER, GEMM = 1u << EPA_OP_AG_GEMM };

/* Tokens that change with the iteration, 0 at times: what a full rank hides. */
#define CHANGING "tokens={kind: random, min: 0}", "verify.guard=true"

const struct variant thorough_variants[] = {
    {"guards", 0, {"verify.guard=true"}},
    {"changing counts", 0, {CHANGING}},
    {"odd room", MOE, {CHANGING, "moe.max_tokens=7"}},
    {"odd room", GATHER, {CHANGING, "allgather.max_rows=7"}},
    {"odd room", GEMM, {CHANGING, "gemm.m=131"}},
    {"dropped choices", MOE, {CHANGING, "routing={kind: masked, share: 0.5}"}},
    {"one expert gets most", MOE, {CHANGING, "routing={kind: hot, share: 0.9}"}},
    {"uniform weights", MOE, {CHANGING, "routing={kind: uniform, weights: uniform}"}},
    {"factors by rank", MOE, {CHANGING, "expert.kind=rank"}},
    {"f16", MOE, {CHANGING, "moe.dtype=f16"}},
    {"outputs elsewhere", MOE, {CHANGING, "expert.output=separate"}},
    {"pipelined", MOE, {CHANGING, "verify.order=pipelined"}},
    {"discarded dispatches", MOE, {CHANGING, "verify.order=discard"}},
    {"combines again", MOE, {CHANGING, "verify.order=again"}},
    {"late ranks", 0, {CHANGING, "verify.straggle=2ms"}},
    {"threads", 0, {CHANGING, "launcher=thread"}},
    {"reorder", 0, {CHANGING, "transport=reorder"}},
    {"reorder to half", 0, {CHANGING, "transport={name: reorder, peers: pair}"}},
    {"reorder, pipelined", MOE, {CHANGING, "transport=reorder", "verify.order=pipelined"}},
    {"reorder, late ranks", 0, {CHANGING, "transport=reorder", "verify.straggle=2ms"}},
    {"epochs pass 2^31", 0, {CHANGING, "verify.epoch=2147483645"}},
    {"epochs pass 2^32", 0, {CHANGING, "verify.epoch=4294967293"}},
    {0},
};
