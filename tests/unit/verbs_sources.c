/* Tests of registrations for puts from memory outside the heap (GPU memory, pinned and other host
 * memory) over a simulated device and a simulated GPU driver. */
#include "test.h"
#include <errno.h>
#include <fcntl.h>
#include <unistd.h>

#include "../../plugins/transport/verbs/state.h"
#include "../../plugins/transport/verbs/sources.h"
#include "../../plugins/transport/verbs/dmabuf.h"

enum { PEERS = 2, INLINE = 64, KIB = 1 << 10, GPU = 3, ALLOCATIONS = 80 };

/* Memory ranges of the simulated driver; addresses are never dereferenced. */
static struct allocation {
    uint64_t start, bytes, id;
    bool on_gpu;
} allocation[ALLOCATIONS];

static struct ibv_mr mr[1000];
static struct {
    uint32_t made, live; /* registrations */
    uint64_t at, bytes;  /* range of the last registration */
    bool by_descriptor;
    int access, fd;     /* fd: descriptor exported last */
    int refuse;         /* errno of the next registration */
    bool no_descriptor; /* the driver exports no descriptor */
    int pushed, retained;
} now;

/* ---- libibverbs ---- */

static struct ibv_mr *registered(uint64_t at, uint64_t bytes, int access, bool by_descriptor)
{
    if (now.refuse != 0) {
        errno = now.refuse;
        return NULL;
    }
    now.at = at;
    now.bytes = bytes;
    now.access = access;
    now.by_descriptor = by_descriptor;
    now.live++;
    mr[now.made].lkey = 100 + now.made;
    return &mr[now.made++];
}

#undef ibv_reg_mr
struct ibv_mr *ibv_reg_mr(struct ibv_pd *pd, void *at, size_t bytes, int access)
{
    (void)pd;
    return registered((uintptr_t)at, bytes, access, false);
}

struct ibv_mr *ibv_reg_mr_iova2(struct ibv_pd *pd, void *at, size_t bytes, uint64_t iova,
                                unsigned access)
{
    (void)pd;
    assert_int_equal(iova, (uintptr_t)at);
    return registered((uintptr_t)at, bytes, (int)access, false);
}

static struct ibv_mr *register_descriptor(struct ibv_pd *pd, uint64_t offset, size_t bytes,
                                          uint64_t iova, int fd, int access)
{
    (void)pd;
    assert_int_equal(offset, 0);
    assert_int_equal(fd, now.fd);
    return registered(iova, bytes, access, true);
}

int ibv_dereg_mr(struct ibv_mr *which)
{
    assert_int_not_equal(which->lkey, 0);
    which->lkey = 0;
    now.live--;
    return 0;
}

/* ---- the driver ---- */

static int error_string(int error, const char **out)
{
    (void)error;
    *out = "it is made up";
    return 0;
}

static int retain(void **context, int device)
{
    assert_int_equal(device, GPU);
    *context = &now;
    now.retained++;
    return 0;
}

static int release(int device)
{
    assert_int_equal(device, GPU);
    now.retained--;
    return 0;
}

static int push(void *context)
{
    assert_ptr_equal(context, &now);
    now.pushed++;
    return 0;
}

static int pop(void **context)
{
    *context = &now;
    now.pushed--;
    return 0;
}

static int pointer_attributes(unsigned n, int *attribute, void **value, unsigned long long at)
{
    struct allocation found = {.id = 0};

    for (size_t i = 0; i < ALLOCATIONS; i++)
        if (at >= allocation[i].start && at - allocation[i].start < allocation[i].bytes)
            found = allocation[i];
    for (unsigned i = 0; i < n; i++) {
        switch (attribute[i]) {
        case 2: /* kind of memory: 1 is host memory */
            *(unsigned *)value[i] = found.bytes == 0 ? 0 : found.on_gpu ? 2 : 1;
            break;
        case 9: /* number of the GPU */
            *(int *)value[i] = GPU;
            break;
        default: /* id, start or size */
            assert_true(attribute[i] == 7 || attribute[i] == 11 || attribute[i] == 12);
            *(uint64_t *)value[i] = attribute[i] == 7    ? found.id
                                    : attribute[i] == 11 ? found.start
                                                         : found.bytes;
        }
    }
    return 0;
}

static int export_range(void *out, unsigned long long at, size_t bytes, int kind,
                        unsigned long long flags)
{
    assert_int_equal(now.pushed, 1); /* a context is current */
    assert_int_equal(at % 4096, 0);
    assert_int_equal(bytes % 4096, 0);
    assert_int_equal(kind, 1);
    assert_int_equal(flags, 0);
    if (now.no_descriptor)
        return 999;
    now.fd = dup(STDERR_FILENO);
    memcpy(out, &now.fd, sizeof(now.fd));
    return 0;
}

static const struct dmabuf dmabuf = {.error_string = error_string,
                                     .retain = retain,
                                     .release = release,
                                     .push = push,
                                     .pop = pop,
                                     .pointer_attributes = pointer_attributes,
                                     .export_range = export_range,
                                     .reg = register_descriptor};

/* ---- sources ---- */

struct fake {
    struct device device;
    struct queue queue[PEERS];
    struct queues queues;
    struct sources sources;
    struct queue_source from;
    struct source *entry;
};

static struct fake *make(const struct dmabuf *driver)
{
    struct fake *f = calloc(1, sizeof(*f));

    assert_non_null(f);
    memset(allocation, 0, sizeof(allocation));
    memset(&now, 0, sizeof(now));
    f->device.port = (struct port){.device = "mlx5_7"};
    f->queues = (struct queues){.queue = f->queue, .n = PEERS};
    for (uint32_t p = 0; p < PEERS; p++)
        f->queue[p] = (struct queue){.peer = p, .inline_bytes = INLINE};
    assert_int_equal(sources_init(&f->sources, &f->device, driver, &f->queues, test_error()),
                     EPA_OK);
    return f;
}

static void finish(struct fake *f)
{
    sources_finish(&f->sources);
    assert_int_equal(now.live, 0);
    assert_int_equal(now.pushed, 0);
    assert_int_equal(now.retained, 0);
    free(f);
}

static enum epa_status find(struct fake *f, uint64_t at, uint64_t bytes, uint32_t peer)
{
    return sources_find(&f->sources, (const void *)(uintptr_t)at, bytes, peer, &f->from, &f->entry,
                        test_error());
}

/* Starts a put, which stays outstanding until done(). Returns its key. */
static uint32_t put(struct fake *f, uint64_t at, uint64_t bytes, uint32_t peer)
{
    assert_int_equal(find(f, at, bytes, peer), EPA_OK);
    assert_ptr_equal(f->from.at, (void *)(uintptr_t)at);
    f->queue[peer].built++;
    if (f->entry != NULL)
        sources_note(&f->sources, f->entry, peer);
    return f->entry != NULL ? f->from.key : 0;
}

static void done(struct fake *f, uint32_t peer)
{
    f->queue[peer].done = f->queue[peer].built;
}

#define TEST_OF_SOURCES(name, driver) TEST_OF(name, struct fake, f, make(driver), finish)

/* The registration covers whole pages, as the driver exports them. All puts from the allocation
 * share it. */
TEST_OF_SOURCES(an_allocation_of_a_gpu_is_registered_once, &dmabuf)
{
    uint32_t key;

    allocation[0] =
        (struct allocation){.start = 0x7001200, .bytes = 10 * KIB, .id = 5, .on_gpu = true};
    key = put(f, 0x7001300, 100, 0);
    assert_true(now.by_descriptor);
    assert_int_equal(now.at, 0x7001000);
    assert_int_equal(now.bytes, 12 * KIB);
    assert_int_equal(now.access, 0);              /* local read access only */
    assert_int_equal(fcntl(now.fd, F_GETFD), -1); /* the descriptor is closed */
    assert_int_equal(put(f, 0x7001200, 10 * KIB, 1), key);
    assert_int_equal(put(f, 0x7003a00 - 1, 1, 1), key);
    assert_int_equal(now.made, 1);
}

/* The CPU reads inline data and cannot read GPU memory. Inline puts from host memory need no
 * registration. */
TEST_OF_SOURCES(short_puts_are_inline_from_memory_of_the_host_alone, &dmabuf)
{
    allocation[0] =
        (struct allocation){.start = 1 << 20, .bytes = 4 * KIB, .id = 5, .on_gpu = true};
    allocation[1] = (struct allocation){.start = 2 << 20, .bytes = 4 * KIB, .id = 6};
    assert_int_not_equal(put(f, 1 << 20, 8, 0), 0);
    assert_false(f->from.readable);
    assert_int_equal(put(f, 2 << 20, INLINE, 0), 0);
    assert_true(f->from.readable);
    assert_int_equal(put(f, 3 << 20, INLINE, 0), 0);
    assert_true(f->from.readable);
    assert_int_equal(now.made, 1);
    assert_int_not_equal(put(f, 2 << 20, INLINE + 1, 0), 0);
    assert_false(now.by_descriptor);
    assert_int_equal(now.at, 2 << 20);
    assert_int_equal(now.bytes, 4 * KIB);
    assert_int_not_equal(put(f, (2 << 20) + 100, 4 * KIB - 100, 0), 0);
    assert_int_equal(now.made, 2);
}

/* Otherwise the device would read the previous memory. */
TEST_OF_SOURCES(reused_addresses_are_registered_again, &dmabuf)
{
    uint32_t key;

    allocation[0] =
        (struct allocation){.start = 1 << 20, .bytes = 64 * KIB, .id = 5, .on_gpu = true};
    key = put(f, 1 << 20, 100, 0);
    done(f, 0);
    allocation[0].id = 6;
    assert_int_not_equal(put(f, 1 << 20, 100, 0), key);
    assert_int_equal(now.made, 2);
    assert_int_equal(now.live, 1); /* the registration of the freed memory is released */
}

/* CUDA does not know this memory, and the address may hold other memory at the next put. */
TEST_OF_SOURCES(other_memory_of_the_host_is_registered_for_each_put, NULL)
{
    uint32_t key = put(f, (1 << 20) + 3, 1000, 0);

    assert_false(now.by_descriptor);
    assert_int_equal(now.at, (1 << 20) + 3);
    assert_int_equal(now.bytes, 1000);
    assert_int_not_equal(put(f, (1 << 20) + 3, 1000, 1), key);
    assert_int_equal(now.live, 2);
    done(f, 1);
    (void)put(f, 4 << 20, 1000, 1);
    /* the completed registration is released, the one of rank 0 is not */
    assert_int_equal(now.live, 2);
    assert_int_equal(now.made, 3);
}

TEST_OF_SOURCES(a_registration_is_evicted_only_without_outstanding_puts, &dmabuf)
{
    uint32_t key[SOURCES_MOST];

    for (uint32_t i = 0; i < ALLOCATIONS; i++)
        allocation[i] = (struct allocation){
            .start = (uint64_t)(i + 1) << 20, .bytes = 4 * KIB, .id = i + 1, .on_gpu = true};
    for (uint32_t i = 0; i < SOURCES_MOST; i++)
        key[i] = put(f, allocation[i].start, 100, i % PEERS);
    assert_int_equal(find(f, allocation[SOURCES_MOST].start, 100, 0), EPA_AGAIN);
    assert_int_equal(now.live, SOURCES_MOST);
    /* used by both peers, and the most recently used */
    assert_int_equal(put(f, allocation[0].start, 100, 1), key[0]);
    done(f, 0);
    /* replaces 2, the oldest unused registration */
    (void)put(f, allocation[SOURCES_MOST].start, 100, 0);
    assert_int_equal(now.live, SOURCES_MOST);
    assert_int_equal(put(f, allocation[0].start, 100, 0), key[0]);
    assert_int_equal(put(f, allocation[1].start, 100, 0), key[1]);
    assert_int_equal(put(f, allocation[4].start, 100, 0), key[4]);
    assert_int_equal(now.made, SOURCES_MOST + 1);
    done(f, 1);
    assert_int_not_equal(put(f, allocation[2].start, 100, 0), key[2]);
}

TEST_OF_SOURCES(a_failed_registration_is_reported_with_its_reason, &dmabuf)
{
    allocation[0] =
        (struct allocation){.start = 1 << 20, .bytes = 4 * KIB, .id = 5, .on_gpu = true};
    assert_status(find(f, (1 << 20) + 100, 4 * KIB, 0), EPA_ERR_CONFIG,
                  "allocation that they begin in there are 4096 bytes");
    now.no_descriptor = true;
    assert_status(find(f, 1 << 20, 100, 0), EPA_ERR_SYSTEM,
                  "GPU 3 does not export 4096 bytes as a dma-buf: it is made up");
    now.no_descriptor = false;
    now.refuse = EFAULT;
    assert_status(find(f, 1 << 20, 100, 0), EPA_ERR_SYSTEM,
                  "mlx5_7 refuses to register 4096 bytes of GPU 3: Bad address");
    assert_int_equal(fcntl(now.fd, F_GETFD), -1);
    assert_status(find(f, 2 << 20, 100, 0), EPA_ERR_SYSTEM,
                  "mlx5_7 refuses to register 100 bytes: Bad address");
    now.refuse = 0;
    assert_int_not_equal(put(f, 1 << 20, 100, 0), 0);
}

/* The check must not need libcuda, which this machine may lack. */
TEST(a_software_device_does_not_reach_gpu_memory)
{
    struct device device = {.port = {.device = "rxe0"}, .software = true};

    assert_status(dmabuf_check(&device, test_error()), EPA_ERR_UNSUPPORTED,
                  "rxe0 is a software device, which cannot reach GPU memory");
}
