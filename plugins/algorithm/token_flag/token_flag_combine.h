/* token_flag on hosts: both stages of combine. */
#ifndef TOKEN_FLAG_COMBINE_H
#define TOKEN_FLAG_COMBINE_H

#include "token_flag_state.h"

enum epa_status tf_combine_send(struct epa_algorithm *, struct epa_problem *);
enum epa_status tf_combine_recv(struct epa_algorithm *, struct epa_problem *);

#endif
