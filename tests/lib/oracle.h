/* The program as the oracle of the library: experiments from YAML, and operations that make inputs and
 * check outputs of calls of epa2a.h. */
#ifndef ORACLE_H
#define ORACLE_H

#include "config/experiment.h"
#include "op/op.h"

/* Reads an experiment; fails the test after an error. The experiment stays until the process ends. */
const struct experiment *oracle_read(const char *yaml);

/* Creates the operation of the experiment for one rank, in host memory. `footprint`: plan of the
 * algorithm that computes the outputs. Returns NULL after a failure, with a message in `err`. */
struct op_rank *oracle_create(const struct experiment *, uint32_t rank, struct epa_error *err);

/* Prepares the inputs of an iteration in slot 0 and overwrites the outputs. */
struct epa_problem *oracle_inputs(struct op_rank *, uint64_t iteration);

/* Compares the outputs in slot 0 of a stage of this kind. */
enum epa_status oracle_check(struct op_rank *, enum epa_stage_kind, struct epa_error *err);

#endif
