/* Tests of the choice of a GPU for a rank, and of every reason to refuse one. This file defines the
 * queried functions of the CUDA runtime, so that the machine is simulated and no GPU is needed. */
#include "../unit/test.h"

#include "../../plugins/backend/cuda/choose.h"

static struct {
    int driver, devices, capability, mode;
    cudaError_t count, set;
} machine;

#define MADE_UP(type, name, parameters, result, ...) \
    type name parameters \
    { \
        __VA_ARGS__; \
        return result; \
    }
MADE_UP(cudaError_t, cudaDriverGetVersion, (int *out), cudaSuccess, *out = machine.driver)
MADE_UP(cudaError_t, cudaRuntimeGetVersion, (int *out), cudaSuccess, *out = 13000)
MADE_UP(cudaError_t, cudaGetDeviceCount, (int *out), machine.count, *out = machine.devices)
MADE_UP(cudaError_t, cudaDeviceGetAttribute, (int *out, enum cudaDeviceAttr attribute, int device),
        cudaSuccess,
        *out = attribute == cudaDevAttrComputeMode              ? machine.mode
               : attribute == cudaDevAttrComputeCapabilityMajor ? machine.capability / 10
                                                                : machine.capability % 10)
/* Numbers count from 1 on this machine, as with CUDA_VISIBLE_DEVICES. */
MADE_UP(cudaError_t, cudaDeviceGetPCIBusId, (char *out, int bytes, int device), cudaSuccess,
        snprintf(out, (size_t)bytes, "0000:%02x:00.0", device + 1))
MADE_UP(cudaError_t, cudaSetDevice, (int device), machine.set, )
MADE_UP(cudaError_t, cudaFree, (void *memory), cudaSuccess, )
MADE_UP(cudaError_t, cudaGetLastError, (void), cudaSuccess, )
MADE_UP(const char *, cudaGetErrorString, (cudaError_t why), "it is so", )
MADE_UP(const char *, cudaGetErrorName, (cudaError_t why),
        why == cudaErrorInsufficientDriver ? "cudaErrorInsufficientDriver" : "cudaErrorX", )

static int of_devices(void **state)
{
    memset(&machine, 0, sizeof(machine));
    machine.driver = 13000;
    machine.devices = 4;
    machine.capability = 90;
    unsetenv("CUDA_VISIBLE_DEVICES");
    return 0;
}

static enum epa_status choose(const struct cuda_config *config, uint32_t rank, uint32_t ranks,
                              struct cuda_place *out)
{
    struct epa_world world = {
        .rank = rank, .size = ranks, .local_rank = rank, .local_size = ranks, .local_cores = 1};

    *out = (struct cuda_place){0};
    return cuda_choose(config, &world, out, test_error());
}

static void assert_refused(const struct cuda_config *config, uint32_t ranks, enum epa_status status,
                           const char *text)
{
    struct cuda_place place;

    assert_status(choose(config, 0, ranks, &place), status, text);
}

static void assert_place(const struct cuda_config *config, uint32_t rank, uint32_t ranks,
                         int device, uint32_t sharers)
{
    struct cuda_place place;

    assert_status(choose(config, rank, ranks, &place), EPA_OK, "");
    assert_int_equal(place.device, device);
    assert_int_equal(place.sharers, sharers);
}

static const struct cuda_config plain = {.device = CUDA_ANY_DEVICE},
                                sharing = {.share = true, .device = CUDA_ANY_DEVICE};

TEST_IN(of_devices, NULL, each_rank_gets_the_gpu_of_its_place_on_the_node)
{
    for (uint32_t rank = 0; rank < 4; rank++)
        assert_place(&plain, rank, 4, (int)rank, 1);
}

/* Nodes simulated on one host share its GPUs; on several hosts a rank counts the GPUs of its own
 * host. */
TEST_IN(of_devices, NULL, ranks_of_several_nodes_of_a_host_have_gpus_of_their_own)
{
    static const uint32_t node[] = {0, 0, 1, 1};

    for (uint32_t rank = 0; rank < 4; rank++) {
        struct epa_world world = {.rank = rank,
                                  .size = 4,
                                  .local_rank = rank % 2,
                                  .local_size = 2,
                                  .node = node,
                                  .local_cores = 1};
        struct cuda_place place;

        assert_int_equal(cuda_choose(&plain, &world, &place, NULL), EPA_OK);
        assert_int_equal(place.device, rank);
        assert_int_equal(place.sharers, 1);
        world.interface = "eth0";
        assert_int_equal(cuda_choose(&plain, &world, &place, NULL), EPA_OK);
        assert_int_equal(place.device, rank % 2);
    }
    machine.devices = 2;
    assert_refused(&plain, 4, EPA_ERR_UNSUPPORTED, "4 ranks on this host and 2 GPUs");
}

TEST_IN(of_devices, NULL, shared_gpus_are_dealt_in_turns)
{
    assert_place(&sharing, 0, 6, 0, 2);
    assert_place(&sharing, 3, 6, 3, 1);
    assert_place(&sharing, 5, 6, 1, 2);
    assert_place(&sharing, 1, 2, 1, 1);
}

TEST_IN(of_devices, NULL, the_list_says_which_gpus)
{
    static const uint32_t items[] = {3, 1}, twice[] = {2, 2};
    struct cuda_config config = {.devices = {items, 2}, .device = CUDA_ANY_DEVICE};

    assert_place(&config, 0, 2, 3, 1);
    assert_place(&config, 1, 2, 1, 1);
    assert_refused(&config, 3, EPA_ERR_UNSUPPORTED, "3 .. 2 .. backend.devices .. backend.share");
    config.share = true;
    assert_place(&config, 4, 5, 3, 3);
    config = (struct cuda_config){.devices = {twice, 2}, .device = CUDA_ANY_DEVICE};
    assert_refused(&config, 2, EPA_ERR_CONFIG, "backend.devices .. GPU .. 2 .. backend.share");
    config.share = true;
    assert_place(&config, 1, 2, 2, 2);
    machine.devices = 2;
    assert_refused(&config, 2, EPA_ERR_UNSUPPORTED, "backend.devices .. GPU .. 2 .. 0");
}

/* All ranks give the bus id of this rank. The last rank is on another host if the world has an
 * interface. */
static enum epa_status give_mine(struct epa_bootstrap *boot, const void *mine, size_t bytes,
                                 void *all)
{
    for (uint32_t r = 0; r < boot->world.size; r++)
        memcpy((char *)all + r * bytes, mine, bytes);
    if (boot->world.interface != NULL)
        *((char *)all + 2 * bytes) ^= 1;
    return EPA_OK;
}

TEST_IN(of_devices, NULL, a_rank_selects_its_gpu)
{
    static const uint32_t node[] = {0, 0, 1};
    struct epa_bootstrap boot = {.world = {.rank = 1, .size = 3, .node = node, .interface = "eth0"},
                                 .allgather = give_mine};
    struct cuda_config config = {.device = 2};
    struct cuda_place place;

    assert_place(&config, 0, 8, 2, 1);
    assert_status(choose(&config, 0, 8, &place), EPA_OK, "");
    assert_status(cuda_share(&config, &boot, &place, test_error()), EPA_ERR_CONFIG,
                  "ranks 0 and 1 .. same GPU .. 0000:03:00.0 .. backend.share");
    config.share = true;
    assert_status(cuda_share(&config, &boot, &place, test_error()), EPA_OK, "");
    assert_int_equal(place.sharers, 2);
    boot.world.interface = NULL; /* the nodes are parts of one host */
    assert_status(cuda_share(&config, &boot, &place, test_error()), EPA_OK, "");
    assert_int_equal(place.sharers, 3);
    config.device = 4;
    assert_refused(&config, 1, EPA_ERR_CONFIG, "selects GPU 4 .. 4, from 0");
}

TEST_IN(of_devices, NULL, more_ranks_than_gpus_are_refused)
{
    machine.devices = 1;
    assert_refused(&plain, 2, EPA_ERR_UNSUPPORTED, "2 .. 1 .. GPU .. backend.share");
}

TEST_IN(of_devices, NULL, no_driver_and_an_old_one_are_reported_apart)
{
    machine.driver = 0;
    machine.count = cudaErrorInsufficientDriver;
    assert_refused(&plain, 1, EPA_ERR_UNSUPPORTED, "NVIDIA .. libcuda.so.1 .. CUDA .. 13.0");
    machine.driver = 12040;
    assert_refused(&plain, 1, EPA_ERR_UNSUPPORTED,
                   "NVIDIA .. CUDA .. 12.4 .. 13.0 .. CUDA .. 12.4");
    machine.count = cudaErrorSystemDriverMismatch;
    assert_refused(&plain, 1, EPA_ERR_SYSTEM, "NVIDIA .. CUDA .. 12.4");
}

TEST_IN(of_devices, NULL, a_driver_without_gpus_is_refused)
{
    machine.devices = 0;
    machine.count = cudaErrorNoDevice;
    assert_refused(&plain, 1, EPA_ERR_UNSUPPORTED,
                   "cuda: there is a driver, but no GPU; use backend: {name: host}");
    setenv("CUDA_VISIBLE_DEVICES", "9", 1);
    assert_refused(&plain, 1, EPA_ERR_UNSUPPORTED, "GPU .. CUDA_VISIBLE_DEVICES .. 9");
}

static void assert_not_taken(enum epa_status status, const char *text)
{
    assert_status(cuda_take(1, test_error()), status, text);
}

TEST_IN(of_devices, NULL, a_gpu_that_cannot_be_used_is_refused)
{
    assert_not_taken(EPA_OK, "");
    machine.set = cudaErrorDevicesUnavailable;
    assert_not_taken(EPA_ERR_SYSTEM, "cuda: GPU 1 cannot be used: cudaErrorX: it is so");
    machine.mode = cudaComputeModeExclusiveProcess;
    assert_not_taken(EPA_ERR_SYSTEM, "GPU .. 1");
    machine.mode = cudaComputeModeProhibited;
    assert_not_taken(EPA_ERR_SYSTEM, "GPU .. 1");
    machine.capability = 80;
    assert_not_taken(EPA_ERR_UNSUPPORTED, "GPU .. 1 .. 8.0 .. 9.0");
}
