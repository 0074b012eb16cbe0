/* Options that several MoE algorithms share: their values, and rows of an option table. Each row is
 * a macro, since the table is a constant. `config` is the algorithm's struct, which has a field of
 * the option's name. */
#ifndef ALGO_OPTIONS_H
#define ALGO_OPTIONS_H

#include <epa2a/plugin.h>

/* dispatch_dtype, combine_dtype */
enum algo_dtype { ALGO_DTYPE_FP8, ALGO_DTYPE_NATIVE };
/* nontemporal */
enum algo_nontemporal { ALGO_NONTEMPORAL_AUTO, ALGO_NONTEMPORAL_OFF, ALGO_NONTEMPORAL_ON };

extern const struct epa_choice algo_dtype_choices[], algo_nontemporal_choices[];
/* Choices without auto; they have the values of enum epa_store. */
extern const struct epa_choice algo_plain_nontemporal_choices[];

#define ALGO_OPTION_DISPATCH_DTYPE(config) \
    { \
        .name = "dispatch_dtype", EPA_CHOICE(config, dispatch_dtype), \
        .choices = algo_dtype_choices, .help = "data type of rows in dispatch", .tune = "*" \
    }

#define ALGO_OPTION_NONTEMPORAL(config, values, what) \
    { \
        .name = "nontemporal", EPA_CHOICE(config, nontemporal), .choices = values, .help = what, \
        .tune = "*" \
    }

#define ALGO_OPTION_BUFFERS(config) \
    { \
        .name = "buffers", EPA_U32(config, buffers), .min = 1, .max = 2, \
        .help = "number of buffer sets; 2 allow a dispatch before the previous combine; 1 " \
                "takes half the memory" \
    }

#define ALGO_OPTION_CAPACITY(config, room) \
    { \
        .name = "capacity", EPA_REAL(config, capacity), .least = 0, .most = 1024, \
        .help = "room for " room " as a multiple of the even share; 0 holds the worst case; " \
                "an iteration that needs more ends the run" \
    }

#define ALGO_OPTION_PDL(config) \
    { \
        .name = "pdl", EPA_BOOL(config, pdl), \
        .help = "on GPUs, programmatic dependent launch: set up a kernel while the " \
                "previous one runs", \
        .tune = "cuda: *" \
    }

#define ALGO_OPTION_BLOCKS(config) \
    { \
        .name = "blocks", EPA_U32(config, blocks), .max = 65535, \
        .help = "on GPUs, maximum number of thread blocks of a kernel; 0: two per " \
                "multiprocessor", \
        .tune = "cuda: 0 16 32 64 128" \
    }

#endif
