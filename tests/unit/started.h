/* Ranks that a test starts one by one, as mpirun would: each a process that calls a launcher
 * by itself. What they find they leave in memory that is mapped before. Include behind
 * cmocka.h. */
#ifndef STARTED_H
#define STARTED_H

#include <sched.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/socket.h>
#include <sys/wait.h>
#include <netinet/in.h>
#include <unistd.h>

#include <epa2a/world.h>

#include "base/clock.h"

enum { STARTED_MOST = 6, STARTED_BLOCK = 200000 };

struct started_rank {
    enum epa_status status; /* of the launcher */
    char text[512];
    uint32_t failed_rank;
    struct epa_world world; /* as the rank saw it; pointers are not good */
    uint32_t node[STARTED_MOST];
    int32_t pid, client_pid;
    enum epa_status barrier;
    uint64_t at_ns;
    uint32_t runs, left;
    char said[512];
};

struct started {
    struct started_rank rank[STARTED_MOST];
    uint32_t size, flag, count;
    char block[STARTED_MOST][STARTED_BLOCK]; /* of rank 0's launcher, and its own of each */
};

static inline struct started *started_create(uint32_t size)
{
    struct started *s =
        mmap(NULL, sizeof(*s), PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);

    assert_ptr_not_equal(s, MAP_FAILED);
    s->size = size;
    return s;
}

static inline void started_destroy(struct started *s)
{
    munmap(s, sizeof(*s));
}

static inline uint32_t started_port(void)
{
    struct sockaddr_in at = {.sin_family = AF_INET, .sin_addr = {htonl(INADDR_LOOPBACK)}};
    socklen_t bytes = sizeof(at);
    int fd = socket(AF_INET, SOCK_STREAM, 0);

    assert_true(fd >= 0);
    assert_int_equal(bind(fd, (struct sockaddr *)&at, bytes), 0);
    assert_int_equal(getsockname(fd, (struct sockaddr *)&at, &bytes), 0);
    close(fd);
    return ntohs(at.sin_port);
}

/* Runs client(s, rank) in a process for each rank and waits for all. */
static inline void started_run(struct started *s, void (*client)(struct started *, uint32_t))
{
    pid_t pid[STARTED_MOST];

    for (uint32_t r = 0; r < s->size; r++) {
        pid[r] = fork();
        assert_true(pid[r] >= 0);
        if (pid[r] == 0) {
            s->rank[r].client_pid = getpid();
            client(s, r);
            _exit(0);
        }
    }
    for (uint32_t r = 0; r < s->size; r++)
        assert_int_equal(waitpid(pid[r], NULL, 0), pid[r]);
}

static inline struct epa_launch
started_launch(struct started *s, enum epa_status (*rank_main)(struct epa_bootstrap *, void *))
{
    return (struct epa_launch){.ranks = s->size,
                               .threads = 1,
                               .stop_fd = -1,
                               .grace_ns = 5000000000,
                               .timeout_ns = 20000000000,
                               .rank_main = rank_main,
                               .arg = s,
                               .fingerprint = "test\n"};
}

static inline void started_note(struct started *s, uint32_t r, enum epa_status status,
                                const struct epa_error *err)
{
    s->rank[r].status = status;
    memcpy(s->rank[r].text, err->text, sizeof(err->text));
}

#endif
