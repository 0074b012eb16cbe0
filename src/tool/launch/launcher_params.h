/* Parameters of launchers: contact data, options, and the way to the other ranks. */
#ifndef LAUNCHER_PARAMS_H
#define LAUNCHER_PARAMS_H

#include <stdbool.h>
#include <stdint.h>

#include <epa2a/world.h>
#include "boot/contact.h"
#include "host/pin.h"

/* Options that the launchers env and mpi share. */
struct launcher_settings {
    int pin;               /* enum pin */
    uint64_t start_ns;     /* time limit for all ranks to connect */
    uint64_t heartbeat_ns; /* silence after which a rank counts as lost */
};

#define LAUNCHER_DEFAULTS \
    { \
        .pin = PIN_CORE, .start_ns = 60000000000, .heartbeat_ns = 5000000000 \
    }

/* Rows of these options for a struct config with a member `launcher`. */
#define LAUNCHER_OPTIONS \
    {.name = "start", \
     EPA_DURATION(struct config, launcher.start_ns), \
     .min = 100000000, \
     .max = 3600000000000, \
     .help = "longest wait at the start for all ranks to connect"}, \
        {.name = "heartbeat", \
         EPA_DURATION(struct config, launcher.heartbeat_ns), \
         .min = 1000000000, \
         .max = 600000000000, \
         .help = "time without a message after which a rank counts as lost"}, \
    { \
        .name = "pin", EPA_CHOICE(struct config, launcher.pin), .choices = pin_choices, \
        .help = "cores of the ranks, of those that were assigned to them at the start" \
    }

struct launcher_params {
    struct epa_process_id process_id;
    /* Interface on which rank 0 listens; NULL: the address of `contact`, or any address without
     * contact. */
    const char *interface;
    /* Known contact data of the rendezvous. NULL: rank 0 listens at a free port and makes a token, and
     * meet() transfers both to the other ranks. */
    const struct contact *contact;
    /* Optional. Runs in the thread of the rank before its first launch. On rank 0 `contact` is input; on
     * other ranks meet() fills it with the same bytes. The launch fails if meet() does not return within
     * start_ns. */
    enum epa_status (*meet)(void *arg, struct contact *contact, struct epa_error *);
    void (*leave)(void *arg); /* runs in the thread before it ends; or NULL */
    void *arg;
};

#endif
