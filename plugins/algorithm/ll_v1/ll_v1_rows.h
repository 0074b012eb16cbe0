/* ll_v1 on hosts: work inside a rank. */
#ifndef LL_V1_ROWS_H
#define LL_V1_ROWS_H

#include "ll_v1_state.h"

/* Counts the choices of this rank, sorts them by expert, and writes the tokens in the form in which
 * ranks send them. */
enum epa_status v1_sort_and_quantise(struct v1_task *);
/* Copies the rows of all sources to the place from which experts read, and publishes the views. */
enum epa_status v1_regroup(struct v1_task *);
/* Adds up the expert outputs of each token. */
enum epa_status v1_reduce(struct v1_task *);

#endif
