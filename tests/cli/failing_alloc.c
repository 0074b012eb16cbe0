/* LD_PRELOAD library: allocation number FAIL_AT of the ranks fails, counted from 1. Counts the
 * calls of the program and its plugins outside the main thread; with the launcher `thread` these
 * are the calls of the ranks. A thread counts as an allocation, since its stack needs memory. Other
 * libraries keep their memory. */
#include <dlfcn.h>
#include <errno.h>
#include <pthread.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

void *__libc_malloc(size_t bytes);
void *__libc_calloc(size_t n, size_t size);
void *__libc_realloc(void *memory, size_t bytes);
void *__libc_memalign(size_t align, size_t bytes);

static bool is_ours(const void *caller)
{
    Dl_info object;

    return dladdr(caller, &object) != 0 && strstr(object.dli_fname, "epa2a") != NULL;
}

static bool fails(const void *caller)
{
    static __thread bool inside; /* dladdr() and getenv() may allocate */
    static unsigned long calls;
    const char *at;
    bool now = false;

    if (inside || gettid() == getpid())
        return false;
    inside = true;
    at = getenv("FAIL_AT");
    if (at != NULL && is_ours(caller))
        now = __atomic_add_fetch(&calls, 1, __ATOMIC_RELAXED) == strtoul(at, NULL, 10);
    inside = false;
    if (now)
        errno = ENOMEM;
    return now;
}

void *malloc(size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_malloc(bytes);
}

void *calloc(size_t n, size_t size)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_calloc(n, size);
}

void *realloc(void *memory, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_realloc(memory, bytes);
}

void *aligned_alloc(size_t align, size_t bytes)
{
    return fails(__builtin_return_address(0)) ? NULL : __libc_memalign(align, bytes);
}

int pthread_create(pthread_t *thread, const pthread_attr_t *attr, void *(*start)(void *), void *arg)
{
    static int (*create)(pthread_t *, const pthread_attr_t *, void *(*)(void *), void *);

    if (create == NULL)
        *(void **)&create = dlsym(RTLD_NEXT, "pthread_create");
    if (fails(__builtin_return_address(0)))
        return EAGAIN;
    return create(thread, attr, start, arg);
}
