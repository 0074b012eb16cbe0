/* The life of a rank. */
#ifndef RANK_MAIN_H
#define RANK_MAIN_H

#include <epa2a/world.h>

/* Runs one rank of the session from set-up to teardown: the rank_main of launchers. */
enum epa_status session_rank_main(struct epa_bootstrap *, void *session);

#endif
