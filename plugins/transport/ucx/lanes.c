/* See lanes.h. Example of the text of UCX 1.13 to 1.18, in which the numbers name lanes:
 *     #   lane[0]:  1:posix/memory.0 md[1]   -> md[1]/posix/sysdev[255] amo#0 am am_bw#0
 *     #   lane[1]:  2:tcp/eth0.0 md[2]       -> md[2]/tcp/sysdev[255] am_bw#1 wireup
 *     #        put[0]: 0..<short>..4294967296..<bcopy>..(inf)
 * A lane has a line put[] if its transport writes into the memory of peers without the peer's CPU.
 * Protocols that put from GPU memory print no such line; their lanes show rma_bw. */
#include "lanes.h"

#include <inttypes.h>
#include <stdio.h>
#include <string.h>

enum { LANES = 64, NAME = 48 };

struct lane {
    char name[NAME];
    bool there, puts, moves, additions, messages;
};

static void read_lane(const char *line, struct lane *lanes)
{
    const char *at = strstr(line, "lane[");
    char name[NAME], *path;
    unsigned lane;

    if (at == NULL || sscanf(at, "lane[%u]: %*u:%47s", &lane, name) != 2 || lane >= LANES)
        return;
    path = strrchr(name, '.'); /* number of a path over one device; a VLAN name has a dot, too */
    if (path != NULL)
        *path = '\0';
    memcpy(lanes[lane].name, name, NAME);
    lanes[lane].there = true;
    at = strstr(at, "->");
    if (at == NULL)
        return;
    lanes[lane].additions = strstr(at, " amo#") != NULL;
    lanes[lane].moves = strstr(at, " rma_bw#") != NULL;
    for (at = strstr(at, " am"); at != NULL; at = strstr(at + 1, " am")) {
        if (at[3] == '\0' || at[3] == ' ')
            lanes[lane].messages = true;
    }
}

static void read_put(const char *line, struct lane *lanes)
{
    const char *at = strstr(line, " put[");
    unsigned lane;

    if (at != NULL && sscanf(at, " put[%u]:", &lane) == 1 && lane < LANES)
        lanes[lane].puts = true;
}

static void add_name(char *names, const char *name)
{
    size_t n = strlen(names);

    if (strstr(names, name) == NULL)
        snprintf(names + n, LANES_NAMES - n, "%s%s", n > 0 ? ", " : "", name);
}

static bool is_rdma(const char *name)
{
    return strncmp(name, "rc_", 3) == 0 || strncmp(name, "dc_", 3) == 0;
}

struct lanes lanes_read(const char *text)
{
    struct lane lanes[LANES] = {{.there = false}};
    struct lanes out = {.puts = false};
    unsigned movers = 0;

    while (*text != '\0') {
        size_t n = strcspn(text, "\n");
        char line[256];

        snprintf(line, sizeof(line), "%.*s", (int)(n < 255 ? n : 255), text);
        read_lane(line, lanes);
        read_put(line, lanes);
        text += n + (text[n] != '\0');
    }
    for (unsigned i = 0; i < LANES; i++) {
        out.puts |= lanes[i].there && lanes[i].puts;
        if (lanes[i].there && (lanes[i].puts || lanes[i].moves))
            out.rdma = movers++ == 0 && is_rdma(lanes[i].name);
        out.additions |= lanes[i].additions;
    }
    for (unsigned i = 0; i < LANES; i++) {
        if (lanes[i].there && (out.puts ? lanes[i].puts : lanes[i].messages))
            add_name(out.names, lanes[i].name);
    }
    if (out.names[0] == '\0')
        snprintf(out.names, sizeof(out.names), "what this UCX does not tell");
    return out;
}

/* "#      resource 2  :  md 1  dev 2  flags -- tcp/eth0" */
void lanes_choices(const char *text, char *out, size_t room)
{
    size_t bytes = 0;

    out[0] = '\0';
    for (const char *at = strstr(text, "resource "); at != NULL; at = strstr(at, "resource ")) {
        size_t n = strcspn(at, "\n"), end = n;

        while (end > 0 && at[end - 1] == ' ')
            end--;
        n = end;
        while (end > 0 && at[end - 1] != ' ')
            end--;
        n -= end;
        if (n + 2 < room - bytes)
            bytes += (size_t)snprintf(out + bytes, room - bytes, "%s%.*s", bytes > 0 ? ", " : "",
                                      (int)n, at + end);
        at += strcspn(at, "\n");
    }
}

/* ---- cards ---- */

enum epa_status cards_check(const struct card *cards, uint32_t ranks, uint32_t me,
                            struct epa_error *err)
{
    const struct card *mine = &cards[me];

    for (uint32_t r = 0; r < ranks; r++) {
        const struct card *card = &cards[r];

        if (card->heap_bytes != mine->heap_bytes || card->signals != mine->signals)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "ucx: rank %u has a heap of %" PRIu64
                            " bytes and %u signals, rank %u of %" PRIu64 " and %u",
                            r, card->heap_bytes, card->signals, me, mine->heap_bytes,
                            mine->signals);
        if (card->version[0] != mine->version[0] || card->version[1] != mine->version[1])
            return epa_fail(err, EPA_ERR_CONFIG,
                            "ucx: rank %u has UCX %u.%u, rank %u has %u.%u; all hosts need "
                            "the same",
                            r, card->version[0], card->version[1], me, mine->version[0],
                            mine->version[1]);
        /* UCX (1.13 to 1.22) writes a longer segment past the end of its buffer. */
        if (strncmp(card->tcp_segments, mine->tcp_segments, sizeof(card->tcp_segments)) != 0)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "ucx: rank %u has other TCP segments than rank %u; all ranks need the "
                            "same UCX_TCP_TX_SEG_SIZE and UCX_TCP_RX_SEG_SIZE",
                            r, me);
        if (card->address_bytes == 0 || card->address_bytes > CARD_ADDRESS_MOST ||
            card->key_bytes == 0 || card->key_bytes > CARD_KEY_MOST ||
            card->heap_key_bytes > CARD_KEY_MOST ||
            (card->heap_key_bytes == 0) != (mine->heap_key_bytes == 0) ||
            card->region_bytes != mine->region_bytes || card->base % 8 != 0 ||
            card->heap % 8 != 0 || card->heap > UINT64_MAX - card->heap_bytes ||
            card->base > UINT64_MAX - card->region_bytes)
            return epa_fail(err, EPA_ERR_SYSTEM,
                            "ucx: rank %u says that its memory of %" PRIu64 " bytes is at %#" PRIx64
                            ", with an address of %u bytes and a key of %u: that cannot be",
                            r, card->region_bytes, card->base, card->address_bytes,
                            card->key_bytes);
    }
    return EPA_OK;
}

size_t cards_stride(const struct card *cards, uint32_t ranks)
{
    size_t most = 0;

    for (uint32_t r = 0; r < ranks; r++) {
        size_t bytes =
            (size_t)cards[r].address_bytes + cards[r].key_bytes + cards[r].heap_key_bytes;

        most = bytes > most ? bytes : most;
    }
    return (most + 7) / 8 * 8;
}
