/* Exit codes of the program. */
#ifndef EXIT_CODE_H
#define EXIT_CODE_H

#include <epa2a/status.h>

enum epa_exit {
    EXIT_OK = 0,
    EXIT_WRONG = 1,    /* wrong data; expectations that were missed */
    EXIT_USAGE = 2,    /* usage or configuration */
    EXIT_RESOURCE = 3, /* a resource is missing */
    EXIT_TIMEOUT = 4,
    EXIT_DIED = 5, /* a rank died */
    EXIT_INTERNAL = 6,
    EXIT_SLOWER = 10,  /* compare: something is slower */
    EXIT_SKIPPED = 77, /* every run of a batch */
    EXIT_SIGINT = 130,
    EXIT_SIGTERM = 143,
};

/* What each means, for help and the man page. */
struct exit_meaning {
    enum epa_exit code;
    const char *help; /* NULL ends the list */
};
extern const struct exit_meaning exit_meanings[];

/* The one of a status; `signal` says who asked to stop (SIGINT or SIGTERM). */
int exit_code(enum epa_status, int signal);

/* "ok", "mismatch", "timeout", "died", "interrupted", ...: what ended something, for reports. */
const char *status_name(enum epa_status);

#endif
