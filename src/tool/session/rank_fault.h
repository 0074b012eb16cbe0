/* Planted faults. */
#ifndef RANK_FAULT_H
#define RANK_FAULT_H

#include "session/rank.h"

/* Fails with EPA_ERR_CONFIG if the algorithm does not have the stage of `fault`, or if graphs make a
 * fault impossible. */
void rank_fault_check(struct rank *);

/* Executes the planted fault if it is due before this stage. A fault of kind kill does not return. */
void rank_fault(struct rank *, uint32_t stage);

#endif
