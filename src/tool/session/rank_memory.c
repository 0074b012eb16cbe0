/* verify: checks that memory does not grow with the calls of an algorithm. The check compares the
 * resident anonymous memory of the process after 1,000 and 2,000 iterations and after the last one.
 * With random numbers of tokens the buffers of the checks grow, so there is no check. */
#include "session/rank_memory.h"

#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "session/rank_status.h"

enum { FIRST_CALL = 1000, SECOND_CALL = 2000 };

/* 1 KiB per call between the first two measurements. */
static const uint64_t most_growth = UINT64_C(1) << 20;

/* A sanitizer keeps freed memory. */
#if defined(__SANITIZE_ADDRESS__) || defined(__SANITIZE_THREAD__)
static const bool frees_memory = false;
#else
static const bool frees_memory = true;
#endif

/* Returns the bytes; 0: the kernel does not report them. */
static uint64_t anonymous_bytes(void)
{
    static const char key[] = "Anonymous:";
    char text[4096];
    int file = open("/proc/self/smaps_rollup", O_RDONLY | O_CLOEXEC);
    ssize_t n = file >= 0 ? read(file, text, sizeof(text) - 1) : -1;
    const char *at;

    if (file >= 0)
        close(file);
    if (n < 0)
        return 0;
    text[n] = '\0';
    at = strstr(text, key);
    return at != NULL ? strtoull(at + strlen(key), NULL, 10) * 1024 : 0;
}

void rank_memory_check(struct rank *r, uint64_t iterations)
{
    uint64_t bytes;

    if (!rank_good(r) || !frees_memory || experiment_of(r)->problem.tokens.kind == TOKENS_RANDOM ||
        (iterations != FIRST_CALL && iterations != SECOND_CALL &&
         (iterations != r->session->iterations || r->memory_bytes == 0)))
        return;
    bytes = anonymous_bytes();
    if (iterations == FIRST_CALL)
        r->memory_bytes = bytes;
    else if (r->memory_bytes != 0 && bytes > r->memory_bytes + most_growth)
        rank_fail(r, EPA_ERR_MISMATCH,
                  "memory of the process grew by %llu bytes between iterations %d and %llu, %llu "
                  "bytes a call: stages must not allocate memory that they do not free",
                  (unsigned long long)(bytes - r->memory_bytes), FIRST_CALL,
                  (unsigned long long)iterations,
                  (unsigned long long)((bytes - r->memory_bytes) / (iterations - FIRST_CALL)));
}
