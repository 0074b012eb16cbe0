/* Cores for pinning, from the affinity mask of this process, and the size of L2. hwloc, if the build
 * found it, tells the SMT threads of a physical core; without hwloc ranks take cores in numeric order.
 * The size of L2 comes from hwloc or the C library; in virtual machines it is often unknown to both. */
#include "host/pin.h"

#include <errno.h>
#include <sched.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <unistd.h>

/* More cores than any kernel supports. The kernel sets the rest of a mask to 0. */
enum { MOST_CORES = 1 << 16, LINE_BYTES = 64 };

struct mask {
    cpu_set_t set[MOST_CORES / CPU_SETSIZE];
};

static const uint64_t unknown_l2_bytes = 4u << 20;

const struct epa_choice pin_choices[] = {
    {"core", PIN_CORE, "separate cores for each rank, if there are enough"},
    {"none", PIN_NONE, "no affinity: the kernel's choice"},
    {0},
};

/* Moves core `id` from the mask to the end of the order if the mask contains it. */
static void take_core(struct pin_plan *plan, struct mask *mask, int id)
{
    if (id < 0 || id >= MOST_CORES || !CPU_ISSET_S((size_t)id, sizeof(*mask), mask->set))
        return;
    CPU_CLR_S((size_t)id, sizeof(*mask), mask->set);
    plan->order[plan->cores++] = id;
}

#ifdef EPA2A_HWLOC
#include <hwloc.h>

static bool load_topology(hwloc_topology_t *out)
{
    if (hwloc_topology_init(out) != 0)
        return false;
    hwloc_topology_set_cache_types_filter(*out, HWLOC_TYPE_FILTER_KEEP_ALL);
    if (hwloc_topology_load(*out) == 0)
        return true;
    hwloc_topology_destroy(*out);
    return false;
}

/* Takes one thread of each physical core, in order of the topology. */
static void take_physical(struct pin_plan *plan, struct mask *mask)
{
    hwloc_topology_t topology;
    hwloc_obj_t core = NULL;

    if (!load_topology(&topology))
        return;
    while ((core = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_CORE, core)) != NULL) {
        uint32_t before = plan->cores;
        int id = hwloc_bitmap_first(core->cpuset);

        for (; id >= 0 && plan->cores == before; id = hwloc_bitmap_next(core->cpuset, id))
            take_core(plan, mask, id);
    }
    hwloc_topology_destroy(topology);
}

static uint64_t largest_l2(void)
{
    hwloc_topology_t topology;
    hwloc_obj_t cache = NULL;
    uint64_t most = 0;

    if (!load_topology(&topology))
        return 0;
    while ((cache = hwloc_get_next_obj_by_type(topology, HWLOC_OBJ_L2CACHE, cache)) != NULL)
        most = cache->attr->cache.size > most ? cache->attr->cache.size : most;
    hwloc_topology_destroy(topology);
    return most;
}
#else
static void take_physical(struct pin_plan *plan, struct mask *mask)
{
    (void)plan, (void)mask;
}

static uint64_t largest_l2(void)
{
    return 0;
}
#endif

enum epa_status pin_plan_init(struct pin_plan *out, enum pin pin, uint32_t ranks, uint32_t threads,
                              struct epa_error *err)
{
    struct pin_plan plan = {.pin = pin, .ranks = ranks, .threads = threads > 0 ? threads : 1};
    struct mask mask;

    if (sched_getaffinity(0, sizeof(mask), mask.set) != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "sched_getaffinity: %s", strerror(errno));
    plan.order = calloc((size_t)CPU_COUNT_S(sizeof(mask), mask.set), sizeof(*plan.order));
    if (plan.order == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "no memory for the numbers of %d cores",
                        CPU_COUNT_S(sizeof(mask), mask.set));
    if (pin == PIN_CORE)
        take_physical(&plan, &mask);
    for (int id = 0; id < MOST_CORES; id++)
        take_core(&plan, &mask, id);
    *out = plan;
    return EPA_OK;
}

void pin_plan_finish(struct pin_plan *plan)
{
    free(plan->order);
    plan->order = NULL;
}

uint32_t pin_plan_rank(const struct pin_plan *plan, uint32_t rank, const int32_t **core)
{
    uint32_t each = plan->cores / plan->ranks;

    *core = NULL;
    if (plan->pin == PIN_NONE || plan->cores == 0)
        return 0;
    if (each == 0) {
        *core = plan->order + rank % plan->cores;
        return 1;
    }
    if (each > plan->threads)
        each = plan->threads;
    *core = plan->order + (size_t)rank * each;
    return each;
}

bool pin_self(const int32_t *core, uint32_t n)
{
    struct mask mask;

    CPU_ZERO_S(sizeof(mask), mask.set);
    for (uint32_t i = 0; i < n; i++)
        CPU_SET_S((size_t)core[i], sizeof(mask), mask.set);
    return sched_setaffinity(0, sizeof(mask), mask.set) == 0;
}

void pin_rank(struct epa_world *world)
{
    if (world->cores > 0 && !pin_self(world->core, 1)) {
        world->core = NULL;
        world->cores = 0;
    }
}

size_t pin_mask(unsigned char *out, size_t room)
{
    size_t bytes = sched_getaffinity(0, room, (cpu_set_t *)(void *)out) == 0 ? room : 0;

    while (bytes > 0 && out[bytes - 1] == 0)
        bytes--;
    return bytes;
}

/* Returns the bytes of the largest L2 of this host; if unknown, an upper bound for most machines. */
static uint64_t cache_l2_bytes(void)
{
    uint64_t bytes = largest_l2();
    long said = sysconf(_SC_LEVEL2_CACHE_SIZE);

    if (bytes == 0 && said > 0)
        bytes = (uint64_t)said;
    return bytes != 0 ? bytes : unknown_l2_bytes;
}

uint64_t cache_flush_bytes(void)
{
    return (2 * cache_l2_bytes() + LINE_BYTES - 1) / LINE_BYTES * LINE_BYTES;
}
