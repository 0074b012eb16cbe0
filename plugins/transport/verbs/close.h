/* Closes the verbs transport. */
#ifndef VERBS_CLOSE_H
#define VERBS_CLOSE_H

#include "state.h"

void verbs_close(struct epa_transport *);

#endif
