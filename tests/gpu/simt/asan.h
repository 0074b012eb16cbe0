/* Annotations for AddressSanitizer about memory and stacks that it does not know; empty without
 * it. */
#ifndef SIMT_ASAN_H
#define SIMT_ASAN_H

#ifdef __has_feature
#if __has_feature(address_sanitizer)
#define SIMT_ASAN 1
#endif
#endif
#ifdef __SANITIZE_ADDRESS__
#define SIMT_ASAN 1
#endif

#ifdef SIMT_ASAN
#include <sanitizer/asan_interface.h>
#include <sanitizer/common_interface_defs.h>

#define SIMT_POISON(at, bytes) __asan_poison_memory_region(at, bytes)
#define SIMT_UNPOISON(at, bytes) __asan_unpoison_memory_region(at, bytes)
#define SIMT_LEAVE(keep, bottom, bytes) __sanitizer_start_switch_fiber(keep, bottom, bytes)
#define SIMT_ENTER(kept, bottom, bytes) __sanitizer_finish_switch_fiber(kept, bottom, bytes)
#else
#define SIMT_POISON(at, bytes) ((void)(at), (void)(bytes))
#define SIMT_UNPOISON(at, bytes) ((void)(at), (void)(bytes))
#define SIMT_LEAVE(keep, bottom, bytes) ((void)(keep), (void)(bottom), (void)(bytes))
#define SIMT_ENTER(kept, bottom, bytes) ((void)(kept), (void)(bottom), (void)(bytes))
#endif

#endif
