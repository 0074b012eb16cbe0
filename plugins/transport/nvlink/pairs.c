/* See pairs.h. */
#include "pairs.h"

#include <string.h>

int pairs_find(const struct gpu *seen, int n, const struct gpu *gpu)
{
    for (int i = 0; i < n; i++) {
        if (memcmp(seen[i].uuid, gpu->uuid, sizeof(gpu->uuid)) == 0)
            return i;
    }
    return -1;
}

static enum epa_status refuse(const struct gpu *gpu, enum reach how, uint32_t i, uint32_t j,
                              struct epa_error *err)
{
    char from[64], to[64];

    snprintf(from, sizeof(from), "GPU %d (rank %u, %s)", gpu[i].number, i, gpu[i].bus);
    snprintf(to, sizeof(to), "GPU %d (rank %u, %s)", gpu[j].number, j, gpu[j].bus);
    if (how == REACH_UNSEEN)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: %s and %s do not see each other; let each rank see all GPUs, "
                        "with one CUDA_VISIBLE_DEVICES for all or none",
                        from, to);
    if (how == REACH_NO_ATOMICS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "nvlink: %s accesses %s without atomics, so not over NVLink; take "
                        "GPUs that NVLink joins (nvidia-smi topo -m shows them)",
                        from, to);
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "nvlink: %s cannot access %s directly; take GPUs that NVLink joins "
                    "(nvidia-smi topo -m shows them)",
                    from, to);
}

enum epa_status pairs_check(const struct gpu *gpu, const unsigned char *reach, uint32_t size,
                            struct epa_error *err)
{
    for (uint32_t i = 0; i < size; i++) {
        for (uint32_t j = 0; j < size; j++) {
            enum reach how = reach[i * size + j];

            if (how == REACH_UNSEEN)
                how = reach[j * size + i];
            if (how != REACH_SELF && how != REACH_DIRECT)
                return refuse(gpu, how, i, j, err);
        }
    }
    return EPA_OK;
}
