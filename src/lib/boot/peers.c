/* A pidfd stays valid after the end of the process and is readable then. Without pidfds (an old kernel,
 * a sandbox, no free descriptor) the number of the process must do. */
#include "boot/peers.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/syscall.h>
#include <unistd.h>

#include "boot/close_open.h"

static bool is_listed(const struct peers *peers, int32_t pid)
{
    for (uint32_t i = 0; i < peers->n; i++)
        if (peers->process[i].pid == pid)
            return true;
    return false;
}

enum epa_status peers_open(struct peers *out, uint32_t rank, uint32_t ranks, const int32_t *pid,
                           struct epa_error *err)
{
    struct peers peers = {.process = calloc(ranks, sizeof(*peers.process)),
                          .poll = calloc(ranks, sizeof(*peers.poll))};
    enum epa_status status = EPA_OK;

    if (peers.process == NULL || peers.poll == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", ranks);
    for (uint32_t r = 0; status == EPA_OK && r < ranks; r++) {
        int fd;

        if (pid[r] == 0 || pid[r] == pid[rank] || is_listed(&peers, pid[r]))
            continue;
        fd = (int)syscall(SYS_pidfd_open, pid[r], 0);
        if (fd < 0 && errno == ESRCH)
            status = epa_fail(err, EPA_ERR_DIED, "rank %u (pid %d) died", r, pid[r]);
        peers.process[peers.n] = (struct peer_process){.rank = r, .pid = pid[r]};
        peers.poll[peers.n++] = (struct pollfd){.fd = fd, .events = POLLIN};
    }
    if (status != EPA_OK)
        peers_close(&peers);
    else
        *out = peers;
    return status;
}

void peers_close(struct peers *peers)
{
    for (uint32_t i = 0; i < peers->n; i++)
        close_open(peers->poll[i].fd);
    free(peers->process);
    free(peers->poll);
    *peers = (struct peers){.n = 0};
}

static bool has_ended(const struct peers *peers, uint32_t i)
{
    char path[32];

    if (peers->poll[i].fd >= 0)
        return (peers->poll[i].revents & POLLIN) != 0;
    snprintf(path, sizeof(path), "/proc/%d", peers->process[i].pid);
    return access(path, F_OK) != 0 && errno == ENOENT;
}

const struct peer_process *peers_find_dead(struct peers *peers, int wait_ms,
                                           bool (*has_left)(void *arg, const struct peer_process *),
                                           void *arg)
{
    if (peers->n == 0 || poll(peers->poll, peers->n, wait_ms) < 0)
        return NULL;
    for (uint32_t i = 0; i < peers->n; i++)
        if (has_ended(peers, i) && !has_left(arg, &peers->process[i]))
            return &peers->process[i];
    return NULL;
}
