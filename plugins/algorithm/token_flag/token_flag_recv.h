/* token_flag on hosts: dispatch_recv. */
#ifndef TOKEN_FLAG_RECV_H
#define TOKEN_FLAG_RECV_H

#include "token_flag_state.h"

/* Copies rows of the current dispatch that have arrived, without a wait. */
enum epa_status tf_take_some(struct tf_host *, struct algo_set *, struct epa_moe *);

enum epa_status tf_dispatch_recv(struct epa_algorithm *, struct epa_problem *);

#endif
