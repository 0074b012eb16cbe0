/* Nodes of ranks. Name, boot and namespaces identify a host. A rank maps the memory of another rank over
 * /proc/PID/fd, so both must be in one PID namespace and in one user namespace. Containers of one machine
 * may have the same name, and they share its cores. */
#include "boot/nodes.h"

#include <stdbool.h>
#include <stdio.h>
#include <string.h>
#include <unistd.h>

#include "base/sysfile.h"

static void read_space(const char *path, char *out, size_t room)
{
    ssize_t n = readlink(path, out, room - 1);

    out[n > 0 ? n : 0] = 0;
}

void nodes_host(struct nodes_host *out)
{
    char net[32], pid[32], user[32];

    if (gethostname(out->name, sizeof(out->name)) != 0)
        snprintf(out->name, sizeof(out->name), "unknown");
    out->name[sizeof(out->name) - 1] = 0;
    if (!sysfile_line("", "/proc/sys/kernel/random/boot_id", out->machine, sizeof(out->machine)))
        /* without /proc the name identifies the machine */
        memcpy(out->machine, out->name, sizeof(out->machine));
    read_space("/proc/self/ns/net", net, sizeof(net));
    read_space("/proc/self/ns/pid", pid, sizeof(pid));
    read_space("/proc/self/ns/user", user, sizeof(user));
    snprintf(out->network, sizeof(out->network), "%s %s", out->machine, net);
    snprintf(out->identity, sizeof(out->identity), "%s %s %s %s", out->name, out->network, pid,
             user);
}

static bool same_cores(const struct nodes_rank *a, const struct nodes_rank *b)
{
    return strcmp(a->machine, b->machine) == 0 && a->mask_bytes == b->mask_bytes &&
           (a->mask_bytes == 0 || memcmp(a->mask, b->mask, a->mask_bytes) == 0);
}

/* Returns the node of rank r: a node of an earlier rank, or a new one. */
static uint32_t node_of(const struct nodes_rank *rank, uint32_t r, uint32_t per_node,
                        uint32_t nodes)
{
    uint32_t before = 0, node = nodes;

    for (uint32_t p = 0; p < r; p++) {
        if (strcmp(rank[p].identity, rank[r].identity) != 0)
            continue;
        before++;
        node = rank[p].node; /* only the last node of a host can have room */
    }
    return per_node != 0 && before % per_node == 0 ? nodes : node;
}

/* Returns the number of cores that the ranks of the machine may use. */
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

/* Counts the ranks on the machine and on the node of rank r. */
static void count_ranks(const struct nodes_rank *rank, uint32_t n, uint32_t r, uint32_t *machine,
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
        count_ranks(rank, n, r, &on_machine, &on_node);
        /* Each node of a machine gets its share of the cores. A rank compares the share with
         * local_size and thus yields exactly if the machine has more ranks than cores. */
        rank[r].local_cores = (uint32_t)((uint64_t)cores * on_node / on_machine);
        if (rank[r].local_cores == 0)
            rank[r].local_cores = 1;
    }
}
