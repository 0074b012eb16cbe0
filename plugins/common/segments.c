/* Shared memory between the ranks of a node: each rank creates one segment and maps the segments of
 * the other ranks of its node.
 *
 * A segment is a sealed memfd that peers open through /proc. A memfd has no name, so a crash leaves
 * no file behind, and the seals prevent that another process truncates it. The heap begins on a 2
 * MiB boundary in the file and in memory, so that huge pages fit. A peer in the same process (ranks
 * as threads) is accessed at its owner's address, which keeps the protocol visible to
 * ThreadSanitizer. */
#include "segments.h"
#include "transport_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/stat.h>
#include <time.h>
#include <unistd.h>

#ifndef MFD_NOEXEC_SEAL
#define MFD_NOEXEC_SEAL 0x0008u /* Linux 6.3 */
#endif

enum {
    HUGE_PAGE = 2 << 20,
    SEALS = F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL,
};

static uint64_t round_up(uint64_t n, uint64_t to)
{
    return (n + to - 1) / to * to;
}

/* Fails if the kernel never gives huge pages for shared memory, since madvise() succeeds even then
 * and the user requested them explicitly. */
static enum epa_status check_huge_pages(const char *name, struct epa_error *err)
{
    static const char path[] = "/sys/kernel/mm/transparent_hugepage/shmem_enabled";
    char text[128] = "";
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    ssize_t n = fd < 0 ? -1 : read(fd, text, sizeof(text) - 1);

    if (n < 0)
        (void)epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.huge_pages",
                           "%s: huge_pages is on, but %s: %s", name, path, strerror(errno));
    if (fd >= 0)
        close(fd);
    if (n < 0)
        return EPA_ERR_UNSUPPORTED;
    if (strstr(text, "[never]") != NULL || strstr(text, "[deny]") != NULL)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.huge_pages",
                            "%s: huge_pages is on, but %s forbids them: %.*s", name, path,
                            (int)strcspn(text, "\n"), text);
    return EPA_OK;
}

static enum epa_status check_params(const struct segments_params *p, struct epa_error *err)
{
    if (p->heap_bytes > INT64_MAX / 2)
        return epa_fail(err, EPA_ERR_CONFIG, "%s: a heap of %" PRIu64 " bytes is too large",
                        p->name, p->heap_bytes);
    return p->huge_pages == HUGE_ON ? check_huge_pages(p->name, err) : EPA_OK;
}

/* Returns the text of an error, with the limit of files that may be its cause. */
static const char *explain_errno(int error)
{
    return error == EFBIG ? "File too large (RLIMIT_FSIZE: ulimit -f)" : strerror(error);
}

/* Creates a memfd of the size of a segment and seals its size. */
static enum epa_status create_file(struct segments *s, struct epa_error *err)
{
    /* vm.memfd_noexec may require the flag; kernels before 6.3 reject it. */
    s->fd = memfd_create("epa2a", MFD_CLOEXEC | MFD_ALLOW_SEALING | MFD_NOEXEC_SEAL);
    if (s->fd < 0 && errno == EINVAL)
        s->fd = memfd_create("epa2a", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    if (s->fd < 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: memfd_create: %s", s->params.name,
                              strerror(errno));
    if (fchmod(s->fd, 0600) != 0 || ftruncate(s->fd, (off_t)s->bytes) != 0)
        return epa_fail_errno(
            err, EPA_ERR_SYSTEM, errno,
            "%s: a segment of %" PRIu64 " bytes (heap %" PRIu64 ", %u signals): %s", s->params.name,
            s->bytes, s->params.heap_bytes, s->params.signals, explain_errno(errno));
    if (fcntl(s->fd, F_ADD_SEALS, SEALS) != 0)
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: sealing a memfd: %s", s->params.name,
                              strerror(errno));
    return EPA_OK;
}

static bool wants_huge_pages(const struct segments *s)
{
    return s->params.huge_pages == HUGE_ON ||
           (s->params.huge_pages == HUGE_AUTO && s->params.heap_bytes >= HUGE_PAGE);
}

static enum epa_status advise_huge_pages(const struct segments *s, char *heap,
                                         struct epa_error *err)
{
    uint64_t bytes = s->bytes - s->heap_at;
    bool on = s->params.huge_pages == HUGE_ON;

    if (bytes == 0 || !wants_huge_pages(s))
        return EPA_OK;
    if (madvise(heap, bytes, MADV_HUGEPAGE) != 0 && on)
        return epa_fail_key(err, EPA_ERR_UNSUPPORTED, "transport.huge_pages",
                            "%s: huge_pages is on, but the kernel rejects them: %s", s->params.name,
                            strerror(errno));
    return EPA_OK;
}

/* Maps the segment of rank `owner` on a 2 MiB boundary: reserves a larger range, maps over the
 * aligned part, unmaps the rest. */
static enum epa_status map_segment(const struct segments *s, int fd, uint32_t owner,
                                   struct epa_error *err)
{
    struct peer *peer = &s->peer[owner];
    char *room = mmap(NULL, s->bytes + HUGE_PAGE, PROT_NONE,
                      MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
    char *at;

    if (room == MAP_FAILED)
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno,
                              "%s: no addresses for the %" PRIu64 " bytes of rank %u: %s",
                              s->params.name, s->bytes, owner, explain_errno(errno));
    at = room + (round_up((uintptr_t)room, HUGE_PAGE) - (uintptr_t)room);
    if (mmap(at, s->bytes, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_FIXED, fd, 0) == MAP_FAILED) {
        (void)epa_fail_errno(err, EPA_ERR_NOMEM, errno,
                             "%s: mmap of the %" PRIu64 " bytes of rank %u: %s", s->params.name,
                             s->bytes, owner, explain_errno(errno));
        munmap(room, s->bytes + HUGE_PAGE);
        return EPA_ERR_NOMEM;
    }
    if (at != room)
        munmap(room, (size_t)(at - room));
    munmap(at + s->bytes, (size_t)(room + HUGE_PAGE - at));
    *peer = (struct peer){
        .segment = (struct segment *)(void *)at, .heap = at + s->heap_at, .mapped = true};
    return advise_huge_pages(s, peer->heap, err);
}

/* Checks the identity and the size of the file: a read beyond the end of a shorter file would kill
 * the process. */
static bool is_file_of(const struct segments *s, int fd, const struct segment_card *card)
{
    struct stat st;

    return fstat(fd, &st) == 0 && st.st_dev == card->dev && st.st_ino == card->ino &&
           (uint64_t)st.st_size == s->bytes;
}

/* Waits up to 0.5 s for the report of a failed rank. A rank whose memory has vanished may just have
 * died, and its launcher detects that no earlier than this rank. */
static bool has_failed(const struct segments *s)
{
    const struct timespec pause = {0, 1000000};

    for (int ms = 0; ms < 500 && !epa_aborted(s->params.boot); ms++)
        nanosleep(&pause, NULL);
    return epa_aborted(s->params.boot);
}

/* Opens, verifies and maps the segment of a rank in another process. */
static enum epa_status attach_segment(const struct segments *s, const struct segment_card *card,
                                      uint32_t r, struct epa_error *err)
{
    enum epa_status status;
    char path[64];
    int fd, seals;

    snprintf(path, sizeof(path), "/proc/%d/fd/%d", card->pid, card->fd);
    fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) {
        int failed = errno;

        if (has_failed(s))
            return EPA_ERR_ABORTED;
        return epa_fail_errno(
            err, EPA_ERR_SYSTEM, failed,
            "%s: rank %u cannot open the memory of rank %u, %s: %s; all ranks of "
            "a node must run as one user, in one PID and user namespace with /proc mounted",
            s->params.name, s->rank, r, path, strerror(failed));
    }
    seals = fcntl(fd, F_GET_SEALS);
    if (!is_file_of(s, fd, card) || seals < 0 || (seals & SEALS) != SEALS)
        status = epa_fail(err, EPA_ERR_SYSTEM,
                          "%s: %s is not the sealed memory of %" PRIu64
                          " bytes that rank %u made; are all ranks in one PID namespace?",
                          s->params.name, path, s->bytes, r);
    else
        status = map_segment(s, fd, r, err);
    close(fd);
    return status;
}

static enum epa_status compare_cards(const struct segments *s, const struct segment_card *cards,
                                     struct epa_error *err)
{
    const struct segment_card *mine = &cards[s->rank];

    for (uint32_t r = 0; r < s->size; r++) {
        if (cards[r].heap_bytes != mine->heap_bytes || cards[r].signals != mine->signals)
            return epa_fail(err, EPA_ERR_CONFIG,
                            "%s: rank %u has a heap of %" PRIu64
                            " bytes and %u signals, rank %u of %" PRIu64 " and %u",
                            s->params.name, r, cards[r].heap_bytes, cards[r].signals, s->rank,
                            mine->heap_bytes, mine->signals);
    }
    return EPA_OK;
}

/* Returns true if this rank may open the file of rank `r`: on another host, the same file numbers
 * denote other files. */
static bool reaches_rank(const struct segments *s, uint32_t r)
{
    return r == s->rank || s->params.reach == REACH_HOST ||
           (s->params.reach == REACH_NODE && epa_same_node(&s->params.boot->world, r));
}

/* The loop over ranks of the same process runs first and never ends early: the count in `users`
 * must be exact even if a step fails. */
static enum epa_status attach_all(struct segments *s, const struct segment_card *cards,
                                  struct epa_error *err)
{
    struct segment *own = s->peer[s->rank].segment;
    enum epa_status status = EPA_OK;

    for (uint32_t r = 0; r < s->size; r++) {
        bool near = reaches_rank(s, r), here = near && cards[r].pid == cards[s->rank].pid;

        /* Accepts the address without opening the file by number: a failing rank of this process
         * closes the descriptor. */
        if (here && maps_hold(cards[r].segment, s->bytes, cards[r].dev, cards[r].ino)) {
            s->peer[r].segment = cards[r].segment;
            s->peer[r].heap = (char *)cards[r].segment + s->heap_at;
        } else if (here) {
            status = epa_fail(err, EPA_ERR_SYSTEM,
                              "%s: rank %u reports its memory at %p of this process, but "
                              "/proc/self/maps shows another mapping there; are all ranks in "
                              "one PID namespace?",
                              s->params.name, r, (void *)cards[r].segment);
        } else { /* no user, since in another process; `users` still counts this rank */
            __atomic_sub_fetch(&own->users.word, 1, __ATOMIC_RELAXED);
        }
    }
    for (uint32_t r = 0; status == EPA_OK && r < s->size; r++) {
        if (s->peer[r].segment == NULL && reaches_rank(s, r))
            status = attach_segment(s, &cards[r], r, err);
    }
    return status;
}

static enum epa_status exchange_cards(struct segments *s, struct epa_error *err)
{
    struct epa_bootstrap *boot = s->params.boot;
    struct segment_card mine = {.heap_bytes = s->params.heap_bytes,
                                .signals = s->params.signals,
                                .pid = (int32_t)getpid(),
                                .fd = s->fd,
                                .segment = s->peer[s->rank].segment};
    struct segment_card *cards = calloc(s->size, sizeof(*cards));
    enum epa_status status;
    struct stat st;

    if (cards == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %u ranks", s->params.name, s->size);
    if (fstat(s->fd, &st) != 0) {
        free(cards);
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "%s: fstat of a memfd: %s",
                              s->params.name, strerror(errno));
    }
    mine.dev = st.st_dev;
    mine.ino = st.st_ino;
    status = boot->allgather(boot, &mine, sizeof(mine), cards);
    if (status == EPA_OK)
        status = compare_cards(s, cards, err);
    if (status == EPA_OK)
        status = attach_all(s, cards, err);
    free(cards);
    if (status == EPA_OK)
        status = boot->barrier(boot); /* all ranks have mapped all segments */
    if (status != EPA_OK)
        boot->explain(boot, err);
    return status;
}

static enum epa_status open_all(struct segments *s, struct epa_error *err)
{
    enum epa_status status = create_file(s, err);

    if (status == EPA_OK)
        status = map_segment(s, s->fd, s->rank, err);
    if (status == EPA_OK && s->params.prefault)
        status = touch_memory(s->params.name, s->params.boot, s->peer[s->rank].heap,
                              s->params.heap_bytes, wants_huge_pages(s), err);
    if (status != EPA_OK)
        return status;
    /* Begin with the maximum; attach_all() subtracts the ranks of other processes. If the allgather
     * fails, the set of ranks with the address is unknown, and the segment stays until the process
     * ends. Relaxed: the allgather orders the store. */
    __atomic_store_n(&s->peer[s->rank].segment->users.word, s->size, __ATOMIC_RELAXED);
    s->peer[s->rank].mapped = false;
    status = exchange_cards(s, err);
    if (status == EPA_OK) {
        close(s->fd); /* no other process can open the segment any more */
        s->fd = -1;
    }
    return status;
}

void segments_finish(struct segments *s)
{
    if (s->peer == NULL)
        return;
    for (uint32_t r = 0; r < s->size; r++) {
        struct peer *peer = &s->peer[r];

        if (peer->segment == NULL)
            continue;
        /* The last rank of this process unmaps a segment: a failing rank leaves while its peers
         * still write to its heap. Acquire and release: all accesses precede the unmapping. */
        if (peer->mapped ||
            __atomic_sub_fetch(&peer->segment->users.word, 1, __ATOMIC_ACQ_REL) == 0)
            munmap(peer->segment, s->bytes);
    }
    if (s->fd >= 0)
        close(s->fd);
    free(s->peer);
    s->peer = NULL;
}

static uint64_t heap_offset(const struct segments_params *p)
{
    uint64_t lines = (uint64_t)p->signals + p->own_lines;

    return round_up(sizeof(struct segment) + lines * LINE, HUGE_PAGE);
}

uint64_t segments_bytes(const struct segments_params *p)
{
    return heap_offset(p) + round_up(p->heap_bytes, HUGE_PAGE);
}

enum epa_status segments_init(struct segments *out, const struct segments_params *p,
                              struct epa_error *err)
{
    struct segments s = {
        .params = *p, .rank = p->boot->world.rank, .size = p->boot->world.size, .fd = -1};
    enum epa_status status = check_params(p, err);

    if (status != EPA_OK)
        return status;
    s.heap_at = heap_offset(p);
    s.bytes = segments_bytes(p);
    s.peer = calloc(s.size, sizeof(*s.peer));
    if (s.peer == NULL)
        return epa_fail(err, EPA_ERR_NOMEM, "%s: no memory for %u ranks", p->name, s.size);
    status = open_all(&s, err);
    if (status != EPA_OK) {
        segments_finish(&s);
        return status;
    }
    *out = s;
    return EPA_OK;
}

/* Each rank counts its arrivals in its own segment and polls the counters of the other ranks: it
 * writes one line and reads one line per other rank, and every rank knows the late ranks. */
enum epa_status segments_barrier(const struct segments *s, const struct epa_wait_config *wait,
                                 uint64_t epoch, uint64_t timeout_ns, struct failure *f)
{
    uint64_t all_ns = 0;

    *f = (struct failure){.at = FAILED_BARRIER, .compare = EPA_GE, .want = epoch};
    /* Release: pairs with the acquire in wait_for_word(). Earlier stores of this rank precede its
     * arrival. */
    __atomic_store_n(&s->peer[s->rank].segment->arrived.word, epoch, __ATOMIC_RELEASE);
    for (uint32_t i = 1; i < s->size && f->status == EPA_OK; i++) {
        f->peer = (s->rank + i) % s->size; /* ranks begin at different lines */
        f->waited_ns = 0;
        if (s->peer[f->peer].segment == NULL)
            continue;
        (void)wait_for_word(wait, &s->peer[f->peer].segment->arrived.word,
                            timeout_ns > all_ns ? timeout_ns - all_ns : 0, f);
        all_ns += f->waited_ns;
    }
    f->waited_ns = all_ns;
    for (uint32_t r = 0; r < s->size && f->status != EPA_OK; r++) {
        if (s->peer[r].segment != NULL &&
            __atomic_load_n(&s->peer[r].segment->arrived.word, __ATOMIC_RELAXED) < epoch)
            wait_note_missing(f, r);
    }
    return f->status;
}
