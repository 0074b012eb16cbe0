/* calloc() that fails at a chosen call; the program is linked with --wrap=calloc. */
#ifndef FAILING_CALLOC_H
#define FAILING_CALLOC_H

extern long calloc_calls;   /* number of calls so far */
extern long calloc_allowed; /* calls that succeed before one fails; negative: all succeed */

#endif
