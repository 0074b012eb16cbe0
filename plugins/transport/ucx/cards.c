/* See cards.h. */
#include "cards.h"

#include <inttypes.h>

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
        if (card->address_bytes == 0 || card->address_bytes > CARD_ADDRESS_MOST ||
            card->key_bytes == 0 || card->key_bytes > CARD_KEY_MOST ||
            card->region_bytes != mine->region_bytes || card->base % 8 != 0 ||
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

    for (uint32_t r = 0; r < ranks; r++)
        if ((size_t)cards[r].address_bytes + cards[r].key_bytes > most)
            most = (size_t)cards[r].address_bytes + cards[r].key_bytes;
    return (most + 7) / 8 * 8;
}
