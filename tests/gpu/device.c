/* What algorithms on GPUs share on the host (src/device): what is asked of a device, counted,
 * taken and launched, and what is said where it fails. The functions of the CUDA runtime that
 * are called stand here: no GPU is needed. */
#include "../unit/test.h"

#include <cuda_runtime_api.h>

#include "device/setup.h"

/* The device, and which of its functions fails. */
static struct {
    int major, multiprocessors, fits; /* blocks, on a multiprocessor */
    const char *fails;
    int shared_bytes;            /* that a kernel may have */
    cudaLaunchConfig_t launched; /* last */
    uint32_t early;
} gpu;

static cudaError_t run(const char *function)
{
    return gpu.fails != NULL && strcmp(gpu.fails, function) == 0 ? cudaErrorUnknown
                                                                 : cudaSuccess;
}

cudaError_t cudaSetDevice(int device)
{
    (void)device;
    return run("set device");
}

cudaError_t cudaDeviceGetAttribute(int *out, enum cudaDeviceAttr attribute, int device)
{
    (void)device;
    *out = attribute == cudaDevAttrMultiProcessorCount ? gpu.multiprocessors : gpu.major;
    return cudaSuccess;
}

cudaError_t cudaFuncGetAttributes(struct cudaFuncAttributes *out, const void *kernel)
{
    (void)out, (void)kernel;
    return run("load");
}

cudaError_t cudaFuncSetAttribute(const void *kernel, enum cudaFuncAttribute attribute,
                                 int value)
{
    (void)kernel;
    assert_int_equal(attribute, cudaFuncAttributeMaxDynamicSharedMemorySize);
    gpu.shared_bytes = value;
    return cudaSuccess;
}

cudaError_t cudaOccupancyMaxActiveBlocksPerMultiprocessor(int *out, const void *kernel,
                                                          int threads, size_t shared_bytes)
{
    (void)kernel, (void)threads, (void)shared_bytes;
    *out = gpu.fits;
    return cudaSuccess;
}

cudaError_t cudaLaunchKernelExC(const cudaLaunchConfig_t *config, const void *kernel,
                                void **args)
{
    (void)kernel;
    assert_int_equal(*(const int *)args[0], 7);
    gpu.launched = *config;
    gpu.early = 0;
    for (uint32_t i = 0; i < config->numAttrs; i++)
        if (config->attrs[i].id == cudaLaunchAttributeProgrammaticStreamSerialization)
            gpu.early += config->attrs[i].val.programmaticStreamSerializationAllowed != 0;
    return run("launch");
}

cudaError_t cudaMemcpyAsync(void *to, const void *from, size_t bytes,
                            enum cudaMemcpyKind kind, cudaStream_t stream)
{
    (void)stream;
    assert_int_equal(kind, cudaMemcpyDeviceToDevice);
    memcpy(to, from, bytes);
    return run("copy");
}

const char *cudaGetErrorString(cudaError_t error)
{
    (void)error;
    return "made up";
}

/* ---- a backend and a transport ---- */

static enum epa_status backend_alloc(struct epa_backend *b, size_t bytes, void **out)
{
    (void)b;
    if (run("alloc") != cudaSuccess)
        return EPA_ERR_NOMEM;
    *out = malloc(bytes);
    assert_non_null(*out);
    return EPA_OK;
}

static void backend_free(struct epa_backend *b, void *memory)
{
    (void)b;
    free(memory);
}

static enum epa_status backend_fill(struct epa_backend *b, void *to, int byte, size_t bytes)
{
    (void)b;
    memset(to, byte, bytes);
    return run("fill") == cudaSuccess ? EPA_OK : EPA_ERR_SYSTEM;
}

static enum epa_status backend_sync(struct epa_backend *b)
{
    (void)b;
    return run("sync") == cudaSuccess ? EPA_OK : EPA_ERR_ABORTED;
}

static void backend_explain(struct epa_backend *b, struct epa_error *err)
{
    (void)b;
    (void)epa_fail(err, EPA_ERR_SYSTEM, "cannot %s", gpu.fails);
}

static const struct epa_backend_ops ops = {.alloc = backend_alloc,
                                           .free = backend_free,
                                           .fill = backend_fill,
                                           .sync = backend_sync,
                                           .explain = backend_explain};

struct fixture {
    struct epa_device_view view;
    struct epa_transport t;
    struct epa_backend backend;
    struct epa_algorithm_params p;
    struct device d;
    struct epa_error err;
};

/* An H100 of its own, of which two blocks fit on a multiprocessor. */
static void set_up(struct fixture *f)
{
    memset(&gpu, 0, sizeof(gpu));
    gpu.major = 9;
    gpu.multiprocessors = 132;
    gpu.fits = 2;
    memset(f, 0, sizeof(*f));
    f->t = (struct epa_transport){.size = 2, .heap_bytes = 4096, .view = &f->view};
    f->backend = (struct epa_backend){.ops = &ops, .device = 3, .multiprocessors = 132};
    f->p = (struct epa_algorithm_params){
        .transport = &f->t, .backend = &f->backend, .heap = 1024};
}

static enum epa_status init(struct fixture *f, uint64_t heap_bytes, bool early)
{
    f->err.status = EPA_OK;
    return device_init("made_up", &f->p, heap_bytes, early, &f->d, &f->err);
}

static void assert_refused(struct fixture *f, uint64_t heap_bytes, enum epa_status status,
                           const char *why)
{
    assert_int_equal(init(f, heap_bytes, true), status);
    assert_int_equal(f->err.status, status);
    assert_words(f->err.text, why);
}

TEST(what_will_not_do_is_refused_in_the_name_of_the_algorithm)
{
    struct fixture f;

    set_up(&f);
    assert_int_equal(init(&f, 3072, true), EPA_OK);
    assert_refused(&f, 3073, EPA_ERR_CONFIG,
                   "made_up: the heap of 4096 bytes is too small");
    f.t.view = NULL;
    assert_refused(&f, 0, EPA_ERR_UNSUPPORTED,
                   "made_up: the transport gives kernels no way to other ranks");
    gpu.major = 8;
    assert_refused(&f, 0, EPA_ERR_UNSUPPORTED, "made_up .. GPU .. 3 .. 8.x .. 9.0");
    gpu.fails = "set device";
    assert_refused(&f, 0, EPA_ERR_SYSTEM, "made_up: GPU 3: made up");
}

TEST(kernels_are_set_up_early_where_nobody_shares_the_device)
{
    struct fixture f;
    int args = 7;

    for (uint32_t i = 0; i < 8; i++) {
        bool whole = (i & 1) != 0, asks = (i & 2) != 0, waits = (i & 4) != 0;

        set_up(&f);
        f.backend.multiprocessors = whole ? 132 : 66;
        assert_int_equal(init(&f, 0, asks), EPA_OK);
        assert_int_equal(
            device_launch(&f.d, NULL, &args, (struct device_grid){5, 256, 64, waits}),
            EPA_OK);
        assert_int_equal(gpu.early, whole && asks && !waits);
        assert_int_equal(gpu.launched.gridDim.x, 5);
        assert_int_equal(gpu.launched.blockDim.x, 256);
        assert_int_equal(gpu.launched.dynamicSmemBytes, 64);
    }
}

static void assert_explained(struct fixture *f, const char *why)
{
    struct epa_error err = {EPA_OK, ""};

    device_explain(&f->d, &err);
    assert_int_equal(err.status, EPA_ERR_SYSTEM);
    assert_words(err.text, why);
}

TEST(a_call_that_fails_is_reported_when_it_is_asked_for)
{
    struct fixture f;
    struct epa_error err = {EPA_OK, ""};
    int args = 7, to;

    set_up(&f);
    assert_int_equal(init(&f, 0, true), EPA_OK);
    device_explain(&f.d, &err);
    assert_int_equal(err.status, EPA_OK);
    gpu.fails = "launch";
    assert_int_equal(device_launch(&f.d, NULL, &args, (struct device_grid){.blocks = 1}),
                     EPA_ERR_SYSTEM);
    assert_explained(&f, "launching a kernel on GPU 3: made up");
    gpu.fails = "copy";
    assert_int_equal(device_copy(&f.d, "copying expert outputs", &to, &args, sizeof(to)),
                     EPA_ERR_SYSTEM);
    assert_explained(&f, "copying expert outputs on GPU 3: made up");
}

TEST(a_kernel_has_as_many_blocks_as_are_resident)
{
    static const struct {
        int fits;
        uint32_t most, blocks;
    } of[] = {{1, 0, 132}, {2, 0, 264},   {5, 0, 264},
              {2, 8, 8},   {2, 264, 264}, {1, 200, 132}};
    const struct device_kernel kernel = {"dispatch", NULL, 256, 12345};
    struct fixture f;
    uint32_t blocks = 0;

    set_up(&f);
    assert_int_equal(init(&f, 0, true), EPA_OK);
    for (size_t i = 0; i < LENGTH(of); i++) {
        gpu.fits = of[i].fits;
        assert_int_equal(device_count_blocks(&f.d, kernel, of[i].most, &blocks, &f.err),
                         EPA_OK);
        assert_int_equal(blocks, of[i].blocks);
        assert_int_equal(gpu.shared_bytes, 12345);
    }
    gpu.fits = 0;
    assert_int_equal(device_count_blocks(&f.d, kernel, 0, &blocks, &f.err), EPA_ERR_SYSTEM);
    assert_string_equal(f.err.text,
                        "made_up: no multiprocessor of GPU 3 has room for a block of "
                        "dispatch: 256 threads and 12345 bytes of shared memory");
    f.err.status = EPA_OK;
    gpu.fails = "load";
    assert_int_equal(device_count_blocks(&f.d, kernel, 0, &blocks, &f.err), EPA_ERR_SYSTEM);
    assert_string_equal(f.err.text, "made_up: loading its kernels on GPU 3: made up");
}

TEST(parts_of_memory_follow_each_other_in_packets)
{
    char memory[1];
    uint64_t counted = 0, at = 0;

    for (uint32_t bytes = 0; bytes < 600; bytes += 37) {
        uint64_t begin = at;

        assert_null(device_take(NULL, &counted, bytes));
        assert_ptr_equal(device_take(memory, &at, bytes), memory + begin);
        assert_int_equal(at, counted);
        assert_int_equal(at % 256, 0);
        assert_in_range(at, begin + bytes, begin + bytes + 255);
    }
}

TEST(memory_is_0_and_a_failure_is_the_backends_to_explain)
{
    static const struct {
        const char *fails, *why;
        enum epa_status status;
    } of[] = {{"alloc", "made_up: setting up on GPU 3: cannot alloc", EPA_ERR_NOMEM},
              {"fill", "made_up: setting up on GPU 3: cannot fill", EPA_ERR_SYSTEM},
              {"sync", "made_up: setting up on GPU 3: cannot sync", EPA_ERR_ABORTED}};
    struct fixture f;

    set_up(&f);
    device_finish(&f.d); /* never filled */
    assert_int_equal(init(&f, 0, true), EPA_OK);
    assert_int_equal(device_alloc(&f.d, 1000, &f.err), EPA_OK);
    for (uint32_t i = 0; i < 1000; i++)
        assert_int_equal(((const char *)f.d.memory)[i], 0);
    device_finish(&f.d);
    assert_null(f.d.memory);
    for (size_t i = 0; i < LENGTH(of); i++) {
        gpu.fails = of[i].fails;
        f.err.status = EPA_OK;
        assert_int_equal(device_alloc(&f.d, 1000, &f.err), of[i].status);
        assert_string_equal(f.err.text, of[i].why);
        device_finish(&f.d); /* nothing leaks */
    }
}
