/* token_flag on hosts: dispatch_send. */
#ifndef TOKEN_FLAG_SEND_H
#define TOKEN_FLAG_SEND_H

#include "token_flag_state.h"

enum epa_status tf_dispatch_send(struct epa_algorithm *, struct epa_problem *);

#endif
