/* The kernel clears a page with MADV_WIPEONFORK in each child, so a check costs one load and needs no
 * handler, which would outlive a library that an application unloads. */
#include "api/fork_mark.h"

#include <errno.h>
#include <string.h>
#include <sys/mman.h>
#include <unistd.h>

#ifndef MADV_WIPEONFORK
#define MADV_WIPEONFORK 18 /* Linux 4.14 */
#endif

enum { MARK_BYTES = 4096 };

enum epa_status fork_mark_init(struct fork_mark *out, struct epa_error *err)
{
    void *page = mmap(NULL, MARK_BYTES, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0);

    if (page == MAP_FAILED)
        return epa_fail_errno(err, EPA_ERR_NOMEM, errno, "mmap of a page: %s", strerror(errno));
    *out = (struct fork_mark){.parent = page, .pid = getpid()};
    if (madvise(page, MARK_BYTES, MADV_WIPEONFORK) == 0)
        out->pid = 0;
    *out->parent = 1;
    return EPA_OK;
}

void fork_mark_finish(struct fork_mark *mark)
{
    if (mark->parent != NULL)
        munmap(mark->parent, MARK_BYTES);
    mark->parent = NULL;
}

bool fork_mark_is_child(const struct fork_mark *mark)
{
    return *mark->parent == 0 || (mark->pid != 0 && mark->pid != getpid());
}
