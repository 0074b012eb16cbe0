/* Exchange of one card per rank, then of data with different lengths: affinity masks and, if hashes of
 * fingerprints differ, the fingerprints. */
#include "boot/world.h"

#include <net/if.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

#include "boot/conn.h"
#include "boot/contact.h"
#include "boot/net.h"
#include "boot/nodes.h"
#include "host/pin.h"

_Static_assert(sizeof(((struct world_facts *)NULL)->interface) >= IF_NAMESIZE, "room for a name");

struct card {
    struct nodes_host host;
    uint64_t hash; /* of the fingerprint */
    uint32_t text_bytes, mask_bytes;
    int32_t pid;
    uint32_t zero;
};

static uint64_t hash_text(const char *text)
{
    uint64_t h = 14695981039346656037u; /* FNV-1a */

    for (; *text != 0; text++)
        h = (h ^ (unsigned char)*text) * 1099511628211u;
    return h;
}

/* Gathers texts of different lengths, padded with zeros to the longest. *all is owned by the caller. */
static enum epa_status gather_padded(struct exchange *x, const void *mine, size_t bytes,
                                     size_t most, char **all, struct epa_error *err)
{
    char *padded = calloc(1, most + 1);
    enum epa_status status = EPA_OK;

    *all = calloc(x->params.ranks, most + 1);
    if (padded == NULL || *all == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %zu bytes of %u ranks",
                          most, x->params.ranks);
    if (padded != NULL)
        memcpy(padded, mine, bytes);
    status = exchange_call(x, status, padded, most + 1, *all, false, err);
    free(padded);
    return status;
}

/* All ranks compare the same texts and fail with the same message. */
static enum epa_status compare_fingerprints(struct exchange *x, const struct card *card,
                                            const char *mine, struct epa_error *err)
{
    uint32_t ranks = x->params.ranks, differs = 0;
    enum epa_status status;
    size_t most = 0;
    char line[300] = "", *all = NULL;

    for (uint32_t r = 0; r < ranks; r++) {
        most = card[r].text_bytes > most ? card[r].text_bytes : most;
        if (differs == 0 && card[r].hash != card[0].hash)
            differs = r;
    }
    if (differs == 0)
        return EPA_OK;
    status = gather_padded(x, mine, strlen(mine), most, &all, err);
    if (status == EPA_OK) {
        (void)conn_find_difference(all + differs * (most + 1), all, line, sizeof(line));
        status = epa_fail(err, EPA_ERR_CONFIG, "rank %u (there) and rank 0 (here) differ: %s",
                          differs, line);
    }
    free(all);
    return status;
}

/* Writes nodes, number of local ranks and cores. */
static void find_nodes(const struct card *card, const char *mask, size_t mask_room,
                       struct nodes_rank *rank, struct epa_world *world, struct world_facts *facts)
{
    uint32_t me = world->rank;

    for (uint32_t r = 0; r < world->size; r++)
        rank[r] = (struct nodes_rank){.machine = card[r].host.machine,
                                      .identity = card[r].host.identity,
                                      .mask = (const unsigned char *)mask + r * mask_room,
                                      .mask_bytes = card[r].mask_bytes};
    nodes_find(rank, world->size, 0);
    facts->leader = UINT32_MAX;
    for (uint32_t r = 0; r < world->size; r++) {
        facts->node[r] = rank[r].node;
        facts->nodes = rank[r].node >= facts->nodes ? rank[r].node + 1 : facts->nodes;
        if (rank[r].node != rank[me].node)
            continue;
        facts->pid[r] = card[r].pid;
        facts->leader = facts->leader == UINT32_MAX ? r : facts->leader;
        facts->in_leader += card[r].pid == card[facts->leader].pid;
        world->local_rank += r < me;
        world->local_size++;
    }
    world->node = facts->nodes > 1 ? facts->node : NULL;
    world->local_cores = rank[me].local_cores;
}

/* Collective, with several nodes. Finds the interface on the route to rank 0; on the host of rank 0, to
 * the first rank of another host. Containers of one machine with one network reach each other by the
 * loopback interface. */
static enum epa_status find_interface(struct exchange *x, const struct card *card,
                                      struct epa_world *world, struct world_facts *facts,
                                      struct epa_error *err)
{
    char(*all)[CONTACT_ADDRESS] = calloc(world->size, sizeof(*all)), own[CONTACT_ADDRESS] = "";
    enum epa_status status = EPA_OK;
    uint32_t me = world->rank, to = 0;
    bool one_network = true;

    for (uint32_t r = 0; r < world->size; r++) {
        one_network = one_network && strcmp(card[r].host.network, card[0].host.network) == 0;
        if (to == 0 && facts->node[me] == facts->node[0] && facts->node[r] != facts->node[0])
            to = r;
    }
    if (all == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", world->size);
    if (status == EPA_OK && !one_network)
        net_own_address(own);
    status = exchange_call(x, status, own, sizeof(own), all, false, err);
    world->interface = facts->interface;
    if (one_network)
        memcpy(facts->interface, "lo", sizeof("lo"));
    else if (status == EPA_OK)
        net_route_interface(all[to], facts->interface);
    free(all);
    return status;
}

enum epa_status world_find(struct exchange *x, const char *fingerprint, struct epa_world *out,
                           struct world_facts *facts, struct epa_error *err)
{
    uint32_t ranks = x->params.ranks;
    struct card mine = {.hash = hash_text(fingerprint),
                        .text_bytes = (uint32_t)strlen(fingerprint),
                        .pid = (int32_t)getpid()};
    struct card *card = calloc(ranks, sizeof(*card));
    struct nodes_rank *rank = calloc(ranks, sizeof(*rank));
    unsigned char *mask = calloc(1, CONN_MASK_MAX);
    enum epa_status status = EPA_OK;
    char *masks = NULL;
    size_t most = 0;

    *out = (struct epa_world){.rank = x->params.rank, .size = ranks};
    facts->pid = calloc(ranks, sizeof(*facts->pid));
    facts->node = calloc(ranks, sizeof(*facts->node));
    if (card == NULL || rank == NULL || mask == NULL || facts->pid == NULL || facts->node == NULL)
        status = epa_fail(err, EPA_ERR_NOMEM, "bootstrap: no memory for %u ranks", ranks);
    if (status == EPA_OK) {
        nodes_host(&mine.host);
        mine.mask_bytes = (uint32_t)pin_mask(mask, CONN_MASK_MAX);
    }
    status = exchange_call(x, status, &mine, sizeof(mine), card, false, err);
    if (status == EPA_OK)
        status = compare_fingerprints(x, card, fingerprint, err);
    for (uint32_t r = 0; status == EPA_OK && r < ranks; r++)
        most = card[r].mask_bytes > most ? card[r].mask_bytes : most;
    if (status == EPA_OK)
        status = gather_padded(x, mask, mine.mask_bytes, most, &masks, err);
    if (status == EPA_OK) {
        find_nodes(card, masks, most + 1, rank, out, facts);
        if (facts->nodes > 1)
            status = find_interface(x, card, out, facts, err);
    }
    free(card);
    free(rank);
    free(mask);
    free(masks);
    return status;
}

void world_facts_finish(struct world_facts *facts)
{
    free(facts->pid);
    free(facts->node);
    *facts = (struct world_facts){.pid = NULL};
}
