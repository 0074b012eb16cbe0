/* Who plays with whom while link peak is measured. */
#include "test.h"

#include "session/peak.h"

enum { MOST = 17 };

TEST(each_rank_meets_each_other_once)
{
    for (uint32_t size = 1; size <= MOST; size++) {
        uint32_t met[MOST][MOST];

        memset(met, 0, sizeof(met));
        for (uint32_t round = 0; round < size + size % 2 - 1; round++) {
            for (uint32_t rank = 0; rank < size; rank++) {
                uint32_t partner = peak_partner(size, round, rank);

                assert_true(partner != rank);
                if (partner >= size)
                    continue;
                assert_int_equal(peak_partner(size, round, partner), rank);
                met[rank][partner]++;
            }
        }
        for (uint32_t i = 0; i < size; i++)
            for (uint32_t j = 0; j < size; j++)
                assert_int_equal(met[i][j], i == j ? 0 : 1);
    }
}
