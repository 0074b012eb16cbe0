/* Any bytes over four connections into a hub of two ranks, in turns: a byte that says which,
 * one that says how many, and these. Whatever comes, the hub goes on, and no block is
 * written beyond its end. */
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/socket.h>
#include <unistd.h>

#include "launch/rendezvous.h"

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes);

enum { CONNECTIONS = 4, RANKS = 2, BLOCK = 100, POLLS = 128 };

static void turn(struct rendezvous *rendezvous)
{
    struct pollfd fds[POLLS];
    uint32_t n = rendezvous_polls(rendezvous, fds);

    if (n > POLLS || poll(fds, n, 0) < 0)
        abort();
    rendezvous_turn(rendezvous, fds, n);
}

/* What the hub says is read and of no interest. */
static void drain(int fd)
{
    char data[4096];

    while (recv(fd, data, sizeof(data), MSG_DONTWAIT) > 0)
        continue;
}

int LLVMFuzzerTestOneInput(const uint8_t *data, size_t bytes)
{
    struct epa_launch asked = {.ranks = RANKS,
                               .fingerprint = "a: 1\n",
                               .timeout_ns = 1000000000,
                               .block = malloc(RANKS * BLOCK),
                               .block_bytes = BLOCK};
    struct rendezvous_params params = {
        .asked = &asked, .token = "token", .start_ns = 1000000000, .heartbeat_ns = 1000000000};
    int end[CONNECTIONS], ends[2];
    struct rendezvous *rendezvous;

    if (asked.block == NULL || rendezvous_create(&params, &rendezvous, NULL) != EPA_OK)
        abort();
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        if (socketpair(AF_UNIX, SOCK_STREAM | SOCK_NONBLOCK, 0, ends) != 0)
            abort();
        rendezvous_adopt(rendezvous, ends[0]);
        end[i] = ends[1];
    }
    while (bytes >= 2) {
        size_t n = data[1] < bytes - 2 ? data[1] : bytes - 2;
        int fd = end[data[0] % CONNECTIONS];

        if (n > 0)
            (void)!send(fd, data + 2, n, MSG_NOSIGNAL | MSG_DONTWAIT);
        data += 2 + n;
        bytes -= 2 + n;
        turn(rendezvous);
        drain(fd);
    }
    for (uint32_t i = 0; i < CONNECTIONS; i++) {
        close(end[i]);
        turn(rendezvous);
    }
    rendezvous_destroy(rendezvous);
    free(asked.block);
    return 0;
}
