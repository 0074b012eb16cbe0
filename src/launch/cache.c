/* How large L2 is: hwloc, where the build found it, then the C library; virtual machines may
 * say nothing to either. */
#include "launch/cache.h"

#include <unistd.h>

static const uint64_t unknown_l2_bytes = 4u << 20;

#ifdef EPA2A_HWLOC
#include <hwloc.h>

static uint64_t largest_l2(void)
{
    hwloc_topology_t topology;
    hwloc_obj_t cache = NULL;
    uint64_t most = 0;

    if (hwloc_topology_init(&topology) != 0)
        return 0;
    hwloc_topology_set_cache_types_filter(topology, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(topology) == 0) {
        while ((cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L2CACHE, cache)) != NULL)
            most = cache->attr->cache.size > most ? cache->attr->cache.size : most;
    }
    hwloc_topology_destroy(topology);
    return most;
}
#else
static uint64_t largest_l2(void)
{
    return 0;
}
#endif

uint64_t cache_l2_bytes(void)
{
    uint64_t bytes = largest_l2();
    long said = sysconf(_SC_LEVEL2_CACHE_SIZE);

    if (bytes == 0 && said > 0)
        bytes = (uint64_t)said;
    return bytes != 0 ? bytes : unknown_l2_bytes;
}

uint64_t cache_flush_bytes(void)
{
    enum { LINE_BYTES = 64 };

    return (2 * cache_l2_bytes() + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}
