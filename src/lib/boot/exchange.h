/* Allgather with error reports: each contribution carries the status of its rank. If one rank fails,
 * the call fails on all ranks with the message of the first failed rank.
 *
 * The data travel in frames of one fixed size, so a rank that failed between two calls can report its
 * failure in the next call of the other ranks, whatever these ranks gather there. */
#ifndef EXCHANGE_H
#define EXCHANGE_H

#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

#include <epa2a/status.h>

enum { EXCHANGE_FRAME = 1024 }; /* minimum bytes of a frame */

struct exchange_params {
    uint32_t rank, ranks;
    uint32_t version;   /* equal on all ranks; major << 16 | minor << 8 | patch */
    size_t frame_bytes; /* EXCHANGE_FRAME or more */
    /* Gathers one frame of each rank. The first `bytes` bytes of `mine` are in use, up to
     * frame_bytes. Frame of rank r: at `all` + r * frame_bytes. */
    enum epa_status (*gather)(void *arg, const void *mine, size_t bytes, void *all,
                              struct epa_error *);
    void *arg;
};

struct exchange {
    struct exchange_params params;
    uint32_t calls; /* number of calls of gather() */
    bool agreed;    /* all ranks know the last failure; exchange_agree() returns it */
    struct epa_error failure;
    size_t bytes;
    char *frames; /* the frame of this rank, then the frames of all ranks; own mapping */
};

/* The memory is a mapping, so that a rank without heap memory can report its failure. */
enum epa_status exchange_init(struct exchange *out, const struct exchange_params *,
                              struct epa_error *);
void exchange_finish(struct exchange *); /* accepts a zeroed struct */

/* Collective: gathers `bytes` bytes of each rank at `all` + r * bytes. With `status` other than EPA_OK
 * this rank reports the failure in *err. If a rank fails, *err receives the message of the first failed
 * rank on all ranks. `last`: no call follows, so a rank whose callback fails makes no further call. */
enum epa_status exchange_call(struct exchange *, enum epa_status status, const void *mine,
                              size_t bytes, void *all, bool last, struct epa_error *err);

/* Collective: returns EPA_OK if `status` is EPA_OK on all ranks. A call of exchange_call() that has
 * failed since on all ranks decides without communication. */
enum epa_status exchange_agree(struct exchange *, enum epa_status status, bool last,
                               struct epa_error *err);

#endif
