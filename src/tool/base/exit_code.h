/* Exit codes of the program and their meanings. */
#ifndef EXIT_CODE_H
#define EXIT_CODE_H

#include <epa2a/status.h>

enum epa_exit {
    EXIT_OK = 0,
    EXIT_WRONG = 1,    /* wrong data, or missed expectations */
    EXIT_USAGE = 2,    /* usage or configuration */
    EXIT_RESOURCE = 3, /* a resource is missing */
    EXIT_TIMEOUT = 4,
    EXIT_DIED = 5, /* a rank died */
    EXIT_INTERNAL = 6,
    EXIT_SLOWER = 10,  /* compare: a run is slower */
    EXIT_SKIPPED = 77, /* all runs of a batch were skipped */
    EXIT_SIGINT = 130,
    EXIT_SIGPIPE = 141, /* same as SIGPIPE: the reader of standard output closed it */
    EXIT_SIGTERM = 143,
};

/* Exit codes and their meanings, for help and the man page. */
struct exit_meaning {
    enum epa_exit code;
    const char *help; /* NULL ends the list */
};
extern const struct exit_meaning exit_meanings[];

/* Returns the exit code of a status; `signal` is the signal that requested the end (SIGINT or
 * SIGTERM). */
int exit_code(enum epa_status, int signal);

#endif
