/* Promises of the shm transport only: sealed memory without a name, alignment for huge pages, and
 * refusals with reasons. */
#include <dirent.h>
#include <fcntl.h>
#include <sched.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/prctl.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include "../../plugins/common/segments.h"
#include "ranks.h"

enum { HEAP = 3 << 20, HUGE_PAGE = 2 << 20 };

/* Returns the number of lines of /proc/self/maps with `what`. `offset` gets the offset of `address`
 * in its mapping. */
static uint32_t count_maps(const char *what, const void *address, uint64_t *offset)
{
    FILE *maps = fopen("/proc/self/maps", "re");
    char line[512];
    uint32_t n = 0;

    while (maps != NULL && fgets(line, sizeof(line), maps) != NULL) {
        unsigned long long from, to, at;

        if (strstr(line, what) == NULL || sscanf(line, "%llx-%llx %*s %llx", &from, &to, &at) != 3)
            continue;
        n++;
        if (from <= (uintptr_t)address && (uintptr_t)address < to)
            *offset = at + ((uintptr_t)address - from);
    }
    if (maps != NULL)
        fclose(maps);
    return n;
}

static void look_at_memory(struct rank *r)
{
    uint64_t offset = 1;

    claim(r, count_maps("/memfd:epa2a", r->t->heap, &offset) >= 1, "no memfd is mapped");
    claim(r, offset != 1, "the heap is in no memfd");
    claim(r, ((uintptr_t)r->t->heap - offset) % HUGE_PAGE == 0,
          "address %p and offset %#llx are not aligned to each other", (void *)r->t->heap,
          (unsigned long long)offset);
    claim(r, (uintptr_t)r->t->heap % HUGE_PAGE == 0, "the heap is not on a 2 MiB boundary");
    claim(r, count_maps("/dev/shm", NULL, &offset) == 0, "/dev/shm contains a segment");
    meet(r);
}

static void look_for_descriptors(struct rank *r)
{
    const struct dirent *entry;
    DIR *fds;

    meet(r); /* threads share descriptors: all ranks have closed theirs now */
    fds = opendir("/proc/self/fd");
    if (!claim(r, fds != NULL, "no /proc/self/fd"))
        return;
    while ((entry = readdir(fds)) != NULL) {
        char target[128] = "";
        ssize_t n = readlinkat(dirfd(fds), entry->d_name, target, sizeof(target) - 1);

        claim(r, n < 0 || strstr(target, "memfd:epa2a") == NULL, "descriptor %s is still open",
              entry->d_name);
    }
    closedir(fds);
    meet(r);
}

static void open_over_two_nodes(struct rank *r)
{
    struct epa_bootstrap boot = *r->boot; /* only `world` of the copy changes */

    boot.world.local_size = 1;
    refuses_to_open(r, &boot, 4096, "the 1 ranks of one node, not all 2");
}

static void open_with_different_heaps(struct rank *r)
{
    refuses_to_open(r, r->boot, r->me == 1 ? 8192 : 4096,
                    r->me == 1 ? "rank 0 has a heap of 4096 bytes"
                               : "rank 1 has a heap of 8192 bytes");
    refuses_to_open(r, r->boot, UINT64_MAX - 5, "too large");
}

static void open_without_address_space(struct rank *r)
{
    refuses_to_open(r, r->boot, (uint64_t)1 << 60, "bytes");
}

/* Rank 0 leaves at once. With threads its heap is still the memory of the others. */
static void write_to_who_has_left(struct rank *r)
{
    for (int i = 0; i < 300 && r->me != 0; i++) {
        memset(r->t->peer_heap[0] + (size_t)r->me * 4096, i, 4096);
        works(r, r->t->ops->signal(r->t, 1, 1, EPA_SIGNAL_ADD, 0));
        sched_yield();
    }
}

/* Changes the card of a peer in the same process: its address is a variable of this rank. */
static void point_elsewhere(struct rank *r, void *at)
{
    struct segment_card *card = at;

    card->segment = (struct segment *)(void *)((uintptr_t)r->shared & ~(uintptr_t)4095);
}

static void open_with_a_wrong_pointer(struct rank *r)
{
    struct epa_error err = {EPA_OK, ""};

    claim(r,
          open_with_lies(r, 4096, sizeof(struct segment_card), point_elsewhere, &err) != EPA_OK ||
              /* the address is not used between processes */
              strcmp(r->subject->launcher->plugin.name, "fork") == 0,
          "an address outside the segments was used");
    claim(r, err.status == EPA_OK || strstr(err.text, "memory") != NULL, "%s", err.text);
}

enum { SHORT_FD = 200 };

/* The file of the peer has the right seals and is too short. A child keeps it open. */
static void name_a_short_file(struct rank *r, void *at)
{
    struct segment_card *card = at;
    int fd = (int)r->shared->word[r->me];
    struct stat st;

    if (fstat(fd, &st) != 0)
        abort();
    card->dev = st.st_dev;
    card->ino = st.st_ino;
    card->fd = SHORT_FD;
    card->pid = (int32_t)r->shared->note[r->me][0];
}

static void open_with_a_short_file(struct rank *r)
{
    int fd = memfd_create("short", MFD_CLOEXEC | MFD_ALLOW_SEALING);
    struct epa_error err = {EPA_OK, ""};
    pid_t child;

    claim(r, ftruncate(fd, 4096) == 0, "ftruncate");
    claim(r, fcntl(fd, F_ADD_SEALS, F_SEAL_SHRINK | F_SEAL_GROW | F_SEAL_SEAL) == 0, "seals");
    child = fork();
    if (child == 0) {
        prctl(PR_SET_PDEATHSIG, SIGKILL);
        if (dup2(fd, SHORT_FD) == SHORT_FD)
            pause();
        _exit(1);
    }
    r->shared->word[r->me] = (uint64_t)fd;
    r->shared->note[r->me][0] = (uint64_t)child;
    for (char path[64]; child > 0;) { /* until the child has it open */
        snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)child, SHORT_FD);
        if (access(path, F_OK) == 0)
            break;
        sched_yield();
    }
    claim(r,
          open_with_lies(r, 4096, sizeof(struct segment_card), name_a_short_file, &err) != EPA_OK,
          "a file that is too short was mapped");
    claim(r, strstr(err.text, "is not the sealed memory of") != NULL, "%s", err.text);
    close(fd);
    kill(child, SIGKILL);
    waitpid(child, NULL, 0);
}

static const struct promise promises[] = {
    {"heaps are nameless and aligned for huge pages", look_at_memory, {3}},
    {"nobody else can open a heap later", look_for_descriptors, {3}},
    {"ranks on several nodes are refused", open_over_two_nodes, {2}},
    {"heaps of different size are refused", open_with_different_heaps, {2}},
    {"an address that is no segment is refused", open_with_a_wrong_pointer, {2}},
    {"a file of another size is refused", open_with_a_short_file, {2}},
    {"a heap that cannot be mapped is refused with its size", open_without_address_space, {1}},
    {"a heap stays while peers may write to it", write_to_who_has_left, {4}, .fails = true},
};

PROMISES_MAIN(4, HEAP)
