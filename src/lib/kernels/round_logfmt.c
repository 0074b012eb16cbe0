/* Loops that compilers vectorise. ROUND_LOGFMT: the name of the function. */
#include "kernels/round_logfmt.h"

#include "epa2a/logfmt.h"

#include "kernels/sets.h"

enum { GROUP = EPA_LOGFMT_GROUP, MOST_GROUPS = EPA_LOGFMT_PART / GROUP };

/* Magnitudes of a group in bf16. */
struct range {
    uint16_t least, most;
};

INLINED struct range range_of(const uint16_t *x)
{
    struct range r = {0x7fff, 0};

    for (uint32_t i = 0; i < GROUP; i++) {
        uint16_t size = x[i] & 0x7fff;

        r.least = size < r.least ? size : r.least;
        r.most = size > r.most ? size : r.most;
    }
    return r;
}

INLINED void round_group(const uint16_t *x, struct range r, uint16_t *out)
{
    struct epa_logfmt f = epa_logfmt_of(r.least, r.most);

    for (uint32_t i = 0; i < GROUP; i++) {
        uint32_t size = x[i] & 0x7fff;
        uint32_t bits = epa_logfmt_bits(epa_logfmt_round(f, size));

        out[i] = (uint16_t)((bits + 0x7fff + (bits >> 16 & 1)) >> 16 | (x[i] & 0x8000));
    }
}

void ROUND_LOGFMT(const uint16_t *x, uint32_t hidden, uint16_t *out)
{
    uint32_t part = epa_logfmt_part(hidden), groups = part / GROUP;

    for (uint32_t h = 0; h < hidden; h += part) {
        struct range range[MOST_GROUPS];
        bool has_codes = true;

        for (uint32_t g = 0; g < groups; g++) {
            range[g] = range_of(x + h + (size_t)g * GROUP);
            has_codes = has_codes && epa_logfmt_has_codes(range[g].least, range[g].most);
        }
        for (uint32_t g = 0; g < groups && has_codes; g++)
            round_group(x + h + (size_t)g * GROUP, range[g], out + h + (size_t)g * GROUP);
        if (!has_codes)
            memmove(out + h, x + h, part * sizeof(*x));
    }
}
