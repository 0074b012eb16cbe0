/* Rounding of expert outputs to LogFMT-10 on hosts, compiled once for each instruction set. */
#ifndef KERNELS_ROUND_LOGFMT_H
#define KERNELS_ROUND_LOGFMT_H

#include <stdint.h>

/* Writes a row of bf16 as values of epa2a/logfmt.h. x and out may be equal. */
void kernels_round_logfmt(const uint16_t *x, uint32_t hidden, uint16_t *out);
void kernels_round_logfmt_avx2(const uint16_t *x, uint32_t hidden, uint16_t *out);
void kernels_round_logfmt_avx512(const uint16_t *x, uint32_t hidden, uint16_t *out);

#endif
