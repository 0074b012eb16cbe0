/* Kernels with what each tool of compute-sanitizer is there to find. */
#ifndef SANITIZER_PROBE_H
#define SANITIZER_PROBE_H

#ifdef __cplusplus
extern "C" {
#endif
void probe_memcheck(void);  /* writes behind its memory */
void probe_racecheck(void); /* two warps write one word of shared memory */
void probe_initcheck(void); /* reads what nobody wrote */
#ifdef __cplusplus
}
#endif

#endif
