/* Writes a status page. The chunks of the page are allocated one after the other and freed together
 * with the last one: sessions follow each other, or all exist before the first one runs. */
#include "session/status_page.h"
#include "base/memory.h"

#include <errno.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <unistd.h>

#include <epa2a/wait.h>

struct status_page {
    int file;
    size_t page, used, head_bytes;
    uint32_t chunks; /* number of allocated chunks */
    struct status_page_head *head;
};

static size_t whole_pages(const struct status_page *b, size_t bytes)
{
    return (bytes + b->page - 1) / b->page * b->page;
}

/* Returns true if the limit of file sizes permits the size: the kernel kills a process that exceeds
 * the limit. */
static bool may_grow_to(size_t bytes)
{
    struct rlimit most;

    return getrlimit(RLIMIT_FSIZE, &most) != 0 || most.rlim_cur == RLIM_INFINITY ||
           bytes <= most.rlim_cur;
}

int status_page_file(const struct status_page *b)
{
    return b->file;
}

void *status_page_map(struct status_page *b, size_t bytes, uint64_t *out_at)
{
    size_t at = b->used, end = at + whole_pages(b, bytes);
    void *p;

    if (!may_grow_to(end) || ftruncate(b->file, (off_t)end) != 0)
        return NULL;
    p = mmap(NULL, bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, (off_t)at);
    if (p == MAP_FAILED)
        return NULL;
    b->used = end;
    b->chunks++;
    *out_at = at;
    return p;
}

void status_page_unmap(struct status_page *b, void *p, size_t bytes)
{
    munmap(p, bytes);
    if (--b->chunks > 0)
        return;
    b->used = b->head_bytes;
    /* The next chunk must contain zeros. Shortening a memfd cannot fail. */
    if (ftruncate(b->file, (off_t)b->used) != 0)
        b->used = b->head_bytes;
}

void status_page_destroy(struct status_page *b)
{
    if (b == NULL)
        return;
    if (b->head != NULL)
        munmap(b->head, b->head_bytes);
    if (b->file >= 0)
        close(b->file);
    free(b);
}

enum epa_status status_page_create(struct status_page **out, struct epa_error *err)
{
    struct status_page *b = memory_alloc(1, sizeof(*b));
    struct status_page_head *head = MAP_FAILED;

    b->page = (size_t)sysconf(_SC_PAGESIZE);
    b->head_bytes = b->used = whole_pages(b, sizeof(*b->head));
    b->file = memfd_create(STATUS_PAGE_NAME, MFD_CLOEXEC);
    if (b->file >= 0 && may_grow_to(b->head_bytes) && ftruncate(b->file, (off_t)b->head_bytes) == 0)
        head = mmap(NULL, b->head_bytes, PROT_READ | PROT_WRITE, MAP_SHARED, b->file, 0);
    if (head == MAP_FAILED) {
        status_page_destroy(b);
        return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "no memfd for a status page: %s",
                              strerror(errno));
    }
    b->head = head;
    snprintf(head->version, sizeof(head->version), "%s", EPA2A_RELEASE);
    head->rank_bytes = sizeof(struct session_rank);
    head->notes_bytes = sizeof(struct session_notes);
    head->pid = (int32_t)getpid();
    head->began_ns = epa_now_ns();
    memcpy(head->magic, STATUS_PAGE_MAGIC, sizeof(head->magic));
    *out = b;
    return EPA_OK;
}

void status_page_show(struct status_page *b, const struct status_page_run *run)
{
    struct status_page_head *head = b->head;

    /* Release, and again below: pairs with read_head() in status.c. A reader that finds the same
     * even number before and after has read one consistent run. */
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_ACQ_REL);
    if (run == NULL)
        head->run.began_ns = 0;
    else
        head->run = *run;
    __atomic_add_fetch(&head->turn, 1, __ATOMIC_RELEASE);
}
