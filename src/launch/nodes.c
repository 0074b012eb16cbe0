/* Hosts are told apart by name, boot and namespaces: memory is shared by way of /proc, so
 * ranks must see each other's processes, and containers of one machine may have one name.
 * Cores are the machine's, whatever stands between the ranks that use them. */
#include "launch/nodes.h"

#include <fcntl.h>
#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

static void read_line(const char *path, char *out, size_t room)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, out, room - 1);

    if (fd >= 0)
        close(fd);
    out[n > 0 ? n : 0] = 0;
    out[strcspn(out, "\n")] = 0;
}

static void read_space(const char *path, char *out, size_t room)
{
    ssize_t n = readlink(path, out, room - 1);

    out[n > 0 ? n : 0] = 0;
}

void nodes_host(struct nodes_host *out)
{
    char net[64], pid[64];

    if (gethostname(out->name, sizeof(out->name)) != 0)
        snprintf(out->name, sizeof(out->name), "unknown");
    out->name[sizeof(out->name) - 1] = 0;
    read_line("/proc/sys/kernel/random/boot_id", out->machine, sizeof(out->machine));
    if (out->machine[0] == 0) /* no /proc: the name has to do */
        memcpy(out->machine, out->name, sizeof(out->machine));
    read_space("/proc/self/ns/net", net, sizeof(net));
    read_space("/proc/self/ns/pid", pid, sizeof(pid));
    snprintf(out->identity, sizeof(out->identity), "%s %s %s %s", out->name, out->machine, net,
             pid);
}

static bool same_cores(const struct nodes_rank *a, const struct nodes_rank *b)
{
    return strcmp(a->machine, b->machine) == 0 && a->mask_bytes == b->mask_bytes &&
           (a->mask_bytes == 0 || memcmp(a->mask, b->mask, a->mask_bytes) == 0);
}

/* The node that the rank is on, among those of ranks before it; else a new one. */
static uint32_t node_of(const struct nodes_rank *rank, uint32_t r, uint32_t per_node,
                        uint32_t nodes)
{
    uint32_t before = 0, node = nodes;

    for (uint32_t p = 0; p < r; p++) {
        if (strcmp(rank[p].identity, rank[r].identity) != 0)
            continue;
        before++;
        node = rank[p].node; /* the last one: it is the one that may have room */
    }
    return per_node != 0 && before % per_node == 0 ? nodes : node;
}

/* Cores that any of the machine's ranks may use. */
static uint32_t cores_of(const struct nodes_rank *rank, uint32_t n, const char *machine)
{
    uint32_t cores = 0;

    for (size_t i = 0;; i++) {
        unsigned char any = 0;
        bool more = false;

        for (uint32_t r = 0; r < n; r++) {
            if (i >= rank[r].mask_bytes || strcmp(rank[r].machine, machine) != 0)
                continue;
            more = true;
            any |= rank[r].mask[i];
        }
        if (!more)
            return cores;
        cores += (uint32_t)__builtin_popcount(any);
    }
}

/* How many ranks there are on the machine, and on the node, of one. */
static void count(const struct nodes_rank *rank, uint32_t n, uint32_t r, uint32_t *machine,
                  uint32_t *node)
{
    *machine = *node = 0;
    for (uint32_t p = 0; p < n; p++) {
        *machine += strcmp(rank[p].machine, rank[r].machine) == 0;
        *node += rank[p].node == rank[r].node;
    }
}

void nodes_find(struct nodes_rank *rank, uint32_t n, uint32_t per_node)
{
    uint32_t nodes = 0;

    for (uint32_t r = 0; r < n; r++) {
        rank[r].node = node_of(rank, r, per_node, nodes);
        nodes += rank[r].node == nodes;
        rank[r].share = rank[r].shares = 0;
        for (uint32_t p = 0; p < n; p++) {
            rank[r].share += p < r && same_cores(&rank[p], &rank[r]);
            rank[r].shares += same_cores(&rank[p], &rank[r]);
        }
    }
    for (uint32_t r = 0, cores = 0; r < n; r++) {
        uint32_t on_machine, on_node;

        if (r == 0 || strcmp(rank[r].machine, rank[r - 1].machine) != 0)
            cores = cores_of(rank, n, rank[r].machine);
        count(rank, n, r, &on_machine, &on_node);
        /* Its nodes have a part of them each, so that a rank which compares that with
         * local_size yields exactly when all ranks are more than all cores. */
        rank[r].local_cores = (uint32_t)((uint64_t)cores * on_node / on_machine);
        if (rank[r].local_cores == 0)
            rank[r].local_cores = 1;
    }
}
