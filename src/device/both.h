/* For functions that kernels and hosts share, so that tests on hosts see what kernels do. */
#ifndef DEVICE_BOTH_H
#define DEVICE_BOTH_H

#ifdef __CUDACC__
#define DEV_BOTH static __host__ __device__ __forceinline__
#else
#define DEV_BOTH static inline
#endif

#endif
