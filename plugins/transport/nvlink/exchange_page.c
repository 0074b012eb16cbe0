/* The pages of board.h: sealed memfds, whose descriptors the exchange passes on.
 *
 * Barriers between ranks go through host memory: a rank that meets the others has nothing
 * to do on its GPU then, a look costs nanoseconds and not a copy, and it is known who is
 * late. */
#include "exchange.h"

#include <errno.h>
#include <fcntl.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

enum {
    PAGE = 4096,
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
};

enum epa_status exchange_page_map(struct exchange_page *b, uint32_t r, int fd,
                                  struct epa_error *err)
{
    int seals = fcntl(fd, F_GET_SEALS);
    struct stat st;
    void *page;

    /* Else who owns it could cut it short, and a look at it would be a SIGBUS. */
    if (fstat(fd, &st) != 0 || st.st_size != PAGE || seals < 0 || (seals & SEALS) != SEALS)
        return epa_fail(err, EPA_ERR_SYSTEM,
                        "nvlink: what rank %u sent is not a sealed page of memory", r);
    page = mmap(NULL, PAGE, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    if (page == MAP_FAILED)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: mmap of the page of rank %u: %s", r,
                        strerror(errno));
    b->page[r] = page;
    return EPA_OK;
}

static enum epa_status create_own(struct exchange_page *b, struct epa_error *err)
{
    /* vm.memfd_noexec may insist on the flag; kernels before 6.3 do not know it. */
    b->fd = memfd_create("epa2a-nvlink", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (b->fd < 0 && errno == EINVAL)
        b->fd = memfd_create("epa2a-nvlink", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (b->fd < 0 || ftruncate(b->fd, PAGE) != 0 || fcntl(b->fd, F_ADD_SEALS, SEALS) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "nvlink: a memfd of %d bytes: %s", PAGE,
                        strerror(errno));
    return exchange_page_map(b, b->rank, b->fd, err);
}

enum epa_status exchange_page_init(struct exchange_page *out, const struct epa_bootstrap *boot,
                                   struct epa_error *err)
{
    const struct epa_world *world = &boot->world;
    struct exchange_page b = {.wait = wait_configure(boot, WAIT_AUTO),
                              .rank = world->rank,
                              .size = world->size,
                              .fd = -1};
    enum epa_status status;

    b.page = calloc(b.size, sizeof(*b.page));
    if (b.page == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "nvlink: no memory for %u ranks", b.size);
    status = create_own(&b, err);
    if (status != EPA_OK)
        exchange_page_finish(&b);
    *out = b;
    return status;
}

void exchange_page_close_fd(struct exchange_page *b)
{
    if (b->fd >= 0)
        close(b->fd);
    b->fd = -1;
}

void exchange_page_finish(struct exchange_page *b)
{
    if (b->page == NULL)
        return;
    for (uint32_t r = 0; r < b->size; r++) {
        if (b->page[r] != NULL)
            munmap(b->page[r], PAGE);
    }
    exchange_page_close_fd(b);
    free(b->page);
    b->page = NULL;
}

enum epa_status exchange_page_barrier(struct exchange_page *b, uint64_t timeout_ns,
                                      struct failure *f)
{
    uint64_t epoch = ++b->barriers, begun = epa_now_ns();

    *f = (struct failure){.at = FAILED_BARRIER, .compare = EPA_GE, .want = epoch};
    /* Release: pairs with the acquire in wait_for_word(); what this rank has done comes
     * first. */
    __atomic_store_n(&b->page[b->rank]->arrived.word, epoch, __ATOMIC_RELEASE);
    for (uint32_t i = 1; i < b->size && f->status == EPA_OK; i++) {
        uint64_t waited = i == 1 ? 0 : epa_now_ns() - begun;

        f->peer = (b->rank + i) % b->size; /* not all at the same line at once */
        (void)wait_for_word(&b->wait, &b->page[f->peer]->arrived.word,
                            timeout_ns > waited ? timeout_ns - waited : 0, f);
    }
    for (uint32_t r = 0; r < b->size && f->status != EPA_OK; r++) {
        if (__atomic_load_n(&b->page[r]->arrived.word, __ATOMIC_RELAXED) < epoch)
            wait_note_missing(f, r);
    }
    return f->status;
}

bool exchange_page_share(struct page *page)
{
    uint64_t n = __atomic_load_n(&page->users.word, __ATOMIC_RELAXED);

    while (n > 0 && !__atomic_compare_exchange_n(&page->users.word, &n, n + 1, false,
                                                 __ATOMIC_ACQ_REL, __ATOMIC_RELAXED)) {
    }
    return n > 0;
}

bool exchange_page_leave(struct page *page)
{
    /* Acquire and release: all that the others did with it comes before the end of it. */
    return __atomic_sub_fetch(&page->users.word, 1, __ATOMIC_ACQ_REL) == 0;
}

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
