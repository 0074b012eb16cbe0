/* Status codes, and the error message that belongs to a status. All functions are inline, so that a
 * plugin needs no symbol of the program that loads it. */
#ifndef EPA2A_STATUS_H
#define EPA2A_STATUS_H

#include <errno.h>
#include <stdarg.h>
#include <stdio.h>

#ifdef __cplusplus
extern "C" {
#endif

#define EPA_CHECKED __attribute__((warn_unused_result))
#define EPA_PRINTF(fmt, args) __attribute__((format(printf, fmt, args)))

enum epa_status {
    EPA_OK = 0,
    EPA_AGAIN = 1,            /* queue full: call progress() and try again */
    EPA_ERR_CONFIG = -1,      /* the experiment requests an impossible setting */
    EPA_ERR_UNSUPPORTED = -2, /* this plugin or machine lacks the feature */
    EPA_ERR_NOMEM = -3,
    EPA_ERR_SYSTEM = -4,      /* a system, driver or library call failed */
    EPA_ERR_TIMEOUT = -5,     /* a wait exceeded the time limit of the experiment */
    EPA_ERR_ABORTED = -6,     /* another rank failed first */
    EPA_ERR_MISMATCH = -7,    /* the received or computed data are wrong */
    EPA_ERR_DIED = -8,        /* a rank was killed, or exited without a status */
    EPA_ERR_INTERRUPTED = -9, /* the user stops the run */
};

/* `key`: option that the user must change, as in an experiment: "ranks", "moe.hidden",
 * "algorithm.capacity". Several keys, separated by blanks, begin with the most likely one. Empty: no
 * option is at fault. An exhausted limit, EPA_LIMIT_..., takes the place of an option.
 * `stage`: name of the stage with which the text begins, see epa_fail_stage(). Empty: the text names
 * no stage.
 * `awaited`: [n_awaited] ranks for which the failed wait waited, see epa_awaits(). The text names them,
 * too. */
struct epa_error {
    enum epa_status status;
    char text[512];
    char key[128];
    char stage[32];
    unsigned n_awaited, awaited[2];
};

/* Exhausted limits. The program names the remedy behind the message. EPA_ERR_NOMEM without a key is a
 * failed allocation: the same as EPA_LIMIT_MEMORY. */
#define EPA_LIMIT_FILES "limit.files"
#define EPA_LIMIT_PROCESSES "limit.processes"
#define EPA_LIMIT_MEMORY "limit.memory"
#define EPA_LIMIT_NAMED "limit.named" /* the message names the limit, or no limit matters */

/* Records a failure unless `err` has one already, and returns `status`. */
EPA_PRINTF(4, 0)
static inline enum epa_status epa_fail_args(struct epa_error *err, enum epa_status status,
                                            const char *key, const char *fmt, va_list args)
{
    if (err != NULL && err->status == EPA_OK) {
        err->status = status;
        snprintf(err->key, sizeof(err->key), "%s", key);
        err->stage[0] = '\0';
        vsnprintf(err->text, sizeof(err->text), fmt, args);
    }
    return status;
}

/* Records the reason of a failure and returns `status`, so that a failure is one statement:
 *     return epa_fail(err, EPA_ERR_SYSTEM, "mmap of %zu bytes: %s", n, strerror(errno));
 * The first message stays; outer callers only pass the status on. */
EPA_PRINTF(3, 4)
static inline enum epa_status epa_fail(struct epa_error *err, enum epa_status status,
                                       const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    status = epa_fail_args(err, status, "", fmt, args);
    va_end(args);
    return status;
}

/* Returns the limit that a system call with this `errno` has exhausted, or "". pthread_create() and
 * fork() fail with EAGAIN. */
static inline const char *epa_limit_of(int error)
{
    return error == EMFILE   ? EPA_LIMIT_FILES
           : error == EAGAIN ? EPA_LIMIT_PROCESSES
           : error == ENOMEM ? EPA_LIMIT_MEMORY
                             : "";
}

/* The same as epa_fail() for a system call that failed with the errno `error`:
 *     return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "memfd_create: %s", strerror(errno)); */
EPA_PRINTF(4, 5)
static inline enum epa_status epa_fail_errno(struct epa_error *err, enum epa_status status,
                                             int error, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    status = epa_fail_args(err, status, epa_limit_of(error), fmt, args);
    va_end(args);
    return status;
}

/* The same for an option that the user must change. The program reports the location of the first
 * key that the user has set:
 *     return epa_fail_key(err, EPA_ERR_CONFIG, "moe.topk", "x takes moe.topk up to %u", most); */
EPA_PRINTF(4, 5)
static inline enum epa_status epa_fail_key(struct epa_error *err, enum epa_status status,
                                           const char *key, const char *fmt, ...)
{
    va_list args;

    va_start(args, fmt);
    status = epa_fail_args(err, status, key, fmt, args);
    va_end(args);
    return status;
}

/* The same as epa_fail_key() for an algorithm that knows the stage of the failure, and the phase of
 * the stage ("": none). The text is "dispatch/wait: counts of rank 1: ...":
 *     epa_fail_stage(err, status, "", "dispatch", "wait", "counts of rank %u: %s", peer, reason); */
EPA_PRINTF(6, 7)
static inline enum epa_status epa_fail_stage(struct epa_error *err, enum epa_status status,
                                             const char *key, const char *stage, const char *phase,
                                             const char *fmt, ...)
{
    char text[sizeof(((struct epa_error *)0)->text)];
    va_list args;

    if (err == NULL || err->status != EPA_OK)
        return status;
    va_start(args, fmt);
    vsnprintf(text, sizeof(text), fmt, args);
    va_end(args);
    (void)epa_fail_key(err, status, key, "%s%s%s: %s", stage, phase[0] != '\0' ? "/" : "", phase,
                       text);
    snprintf(err->stage, sizeof(err->stage), "%s", stage);
    return status;
}

/* Names a rank for which the wait that fails now has waited, unless `err` has a failure already;
 * UINT32_MAX: unknown rank. Returns `err`, for the call that records the failure:
 *     return epa_fail(epa_awaits(err, peer), EPA_ERR_TIMEOUT, "no counts of rank %u", peer); */
static inline struct epa_error *epa_awaits(struct epa_error *err, unsigned rank)
{
    const unsigned most = sizeof(err->awaited) / sizeof(err->awaited[0]);

    if (err != NULL && err->status == EPA_OK && rank != ~0u && err->n_awaited < most)
        err->awaited[err->n_awaited++] = rank;
    return err;
}

/* Names the awaited ranks of an inner failure, for a call that records its text with more words. */
static inline struct epa_error *epa_awaits_as(struct epa_error *err, const struct epa_error *from)
{
    for (unsigned i = 0; i < from->n_awaited; i++)
        (void)epa_awaits(err, from->awaited[i]);
    return err;
}

/* Records the failure of an inner call, with its key, stage and awaited ranks, unless `err` has one
 * already. Returns `status`. */
static inline enum epa_status epa_fail_copy(struct epa_error *err, enum epa_status status,
                                            const struct epa_error *from)
{
    if (err != NULL && err->status == EPA_OK) {
        *err = *from;
        err->status = status;
    }
    return status;
}

/* Adds the key to an error without one, for a caller that knows the option: a file that the option
 * names, or the plugin that it selects. Returns the status of the error. */
static inline enum epa_status epa_fail_at(struct epa_error *err, const char *key)
{
    if (err->status != EPA_OK && err->key[0] == '\0')
        snprintf(err->key, sizeof(err->key), "%s", key);
    return err->status;
}

#ifdef __cplusplus
}
#endif
#endif
