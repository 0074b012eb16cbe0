/* calloc() that fails at a chosen call. */
#include "failing_calloc.h"

#include <stddef.h>

long calloc_calls, calloc_allowed = -1;

void *__real_calloc(size_t n, size_t size);
void *__wrap_calloc(size_t n, size_t size);

void *__wrap_calloc(size_t n, size_t size)
{
    calloc_calls++;
    return calloc_allowed >= 0 && calloc_allowed-- == 0 ? NULL : __real_calloc(n, size);
}
