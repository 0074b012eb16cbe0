/* What one writes without intrinsics and leaves to the compiler, at -Ofast: the bar for the
 * quantiser. Multiplies by a reciprocal, so some codes differ from the definition. */
#ifndef PLAIN_H
#define PLAIN_H

#include <stdint.h>

void plain_quantise(const uint16_t *x, uint32_t hidden, uint8_t *q, float *scale);

/* Reads and does nothing with it: the limit for what reads. */
uint64_t plain_read(const void *from, uint64_t bytes);

#endif
