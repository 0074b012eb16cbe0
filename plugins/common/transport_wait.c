/* See transport_wait.h. */
#include "transport_wait.h"

#include <errno.h>
#include <fcntl.h>
#include <inttypes.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/sysmacros.h>
#include <unistd.h>

#ifndef MADV_POPULATE_WRITE
#define MADV_POPULATE_WRITE 23 /* Linux 5.14 */
#endif
#ifndef MADV_COLLAPSE
#define MADV_COLLAPSE 25 /* Linux 6.1 */
#endif

enum {
    HUGE_PAGE = 2 << 20,
    TOUCH_STEP = 64 << 20, /* bytes between two checks of `aborted` */
};

/* plugins/transport/shm/notes.md lists the measurements that justify these numbers. */
struct epa_wait_config wait_configure(const struct epa_bootstrap *boot, enum wait_kind kind)
{
    bool crowded = boot->world.local_size > boot->world.local_cores;
    struct epa_wait_config config = {
        .burst = 64, .spin_ns = UINT64_MAX, .aborted = boot->aborted, .observer = boot->observer};

    if (kind == WAIT_AUTO && !crowded) {
        config.spin_ns = 20000;
    } else if (kind != WAIT_SPIN) {
        config.burst = 1;
        config.spin_ns = 0;
    }
    return config;
}

enum epa_status wait_reset(struct epa_bootstrap *boot, void *words, uint32_t n, size_t stride,
                           struct failure *out)
{
    enum epa_status status = boot->barrier(boot); /* the last signal has arrived */

    if (status == EPA_OK) {
        for (uint32_t i = 0; i < n; i++)
            __atomic_store_n((uint64_t *)(void *)((char *)words + i * stride), 0, __ATOMIC_RELAXED);
        status = boot->barrier(boot); /* no rank signals before all are reset */
    }
    if (status != EPA_OK)
        *out = (struct failure){.at = FAILED_SET_UP, .status = status};
    return status;
}

const char *wait_why(const struct failure *f)
{
    return f->status == EPA_ERR_ABORTED ? ", when another rank had failed" : "";
}

static void explain_barrier(const char *how, uint32_t ranks, const struct failure *f,
                            struct epa_error *err)
{
    char late[64] = ", which all ranks had reached by then";

    if (f->missing != 0)
        snprintf(late, sizeof(late), " for rank %u%s (%u of %u missing)", f->first_missing,
                 f->missing > 1 ? " and others" : "", f->missing, ranks);
    (void)epa_fail(epa_awaits(err, f->missing != 0 ? f->first_missing : UINT32_MAX), f->status,
                   "%s after %.3f s at barrier %" PRIu64 "%s%s", how, (double)f->waited_ns * 1e-9,
                   f->want, late, wait_why(f));
}

void wait_explain(const char *name, const struct epa_transport *t, struct epa_bootstrap *boot,
                  const struct failure *f, struct epa_error *err)
{
    const char *how = f->status == EPA_ERR_TIMEOUT ? "timeout" : "end of the wait";

    switch (f->at) {
    case FAILED_SIGNAL:
        (void)epa_fail(err, f->status,
                       "%s after %.3f s (signal %u is %" PRIu64 ", wants %s%" PRIu64 ")%s", how,
                       (double)f->waited_ns * 1e-9, f->signal, f->seen,
                       f->compare == EPA_EQ ? "just " : "", f->want, wait_why(f));
        break;
    case FAILED_BARRIER:
        explain_barrier(how, t->size, f, err);
        break;
    case FAILED_SET_UP:
        boot->explain(boot, err);
        (void)epa_fail(err, f->status, "%s: rank %u could not reset its signals%s", name, t->rank,
                       wait_why(f));
        break;
    case FAILED_PROGRESS:
        (void)epa_fail(err, f->status, "%s: rank %u stopped its wait%s", name, t->rank,
                       wait_why(f));
        break;
    default:
        (void)epa_fail(err, EPA_ERR_SYSTEM, "%s: nothing has failed on rank %u", name, t->rank);
        break;
    }
}

/* Lines of a file, read without heap memory. */
struct lines {
    int fd;
    size_t at, n; /* next byte of `data`; bytes in `data` */
    char data[4096];
};

/* Reads the next line without its end; cuts a longer line to `room`. Returns false at the end of the
 * file. */
static bool read_line(struct lines *lines, char *out, size_t room)
{
    size_t n = 0;
    bool any = false;

    for (;;) {
        if (lines->at == lines->n) {
            ssize_t got = read(lines->fd, lines->data, sizeof(lines->data));

            if (got <= 0)
                break;
            lines->at = 0;
            lines->n = (size_t)got;
        }
        any = true;
        if (lines->data[lines->at++] == '\n')
            break;
        if (n + 1 < room)
            out[n++] = lines->data[lines->at - 1];
    }
    out[n] = '\0';
    return any;
}

/* Example of a line of /proc/self/maps: "7f00-7f80 rw-s 00001000 00:01 4711  /memfd:x
 * (deleted)". */
bool maps_hold(const void *at, uint64_t bytes, uint64_t dev, uint64_t ino)
{
    struct lines maps = {.fd = open("/proc/self/maps", O_RDONLY | O_CLOEXEC)};
    uint64_t next = (uintptr_t)at, end = next + bytes;
    bool any = ino == 0;
    char line[512];

    if (maps.fd < 0 || end < next)
        bytes = end = next = UINT64_MAX; /* an empty or wrapping range matches no line */
    while (maps.fd >= 0 && next < end && read_line(&maps, line, sizeof(line))) {
        uint64_t from, to, offset, inode;
        unsigned major, minor;
        char may[5];

        if (sscanf(line, "%" SCNx64 "-%" SCNx64 " %4s %" SCNx64 " %x:%x %" SCNu64, &from, &to, may,
                   &offset, &major, &minor, &inode) != 7 ||
            to <= next)
            continue;
        if (from > next || may[0] != 'r' || may[1] != 'w' || may[3] != 's' ||
            (!any && (inode != ino || makedev(major, minor) != dev)))
            break;
        any = false;
        ino = inode;
        dev = makedev(major, minor);
        next = to;
    }
    if (maps.fd >= 0)
        close(maps.fd);
    return next != UINT64_MAX && next >= end;
}

/* Collapses small pages into huge pages, even if shmem_enabled is "never" and madvise() alone has
 * no effect. The caller has touched one small page per huge page: the kernel requires at least one
 * and copies each existing page. After a failure the pages stay small. */
static void collapse(char *at, size_t bytes)
{
    for (size_t i = 0; i < bytes; i += HUGE_PAGE)
        if (madvise(at + i, 1, MADV_POPULATE_WRITE) != 0)
            return;
    (void)madvise(at, (bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE, MADV_COLLAPSE);
}

enum epa_status touch_memory(const char *name, const struct epa_bootstrap *boot, char *memory,
                             uint64_t bytes, bool huge, struct epa_error *err)
{
    for (uint64_t at = 0; at < bytes; at += TOUCH_STEP) {
        size_t n = bytes - at < TOUCH_STEP ? bytes - at : TOUCH_STEP;

        if (epa_aborted(boot))
            return EPA_ERR_ABORTED;
        if (huge)
            collapse(memory + at, n);
        if (madvise(memory + at, n, MADV_POPULATE_WRITE) == 0)
            continue;
        if (errno != EINVAL) /* EINVAL: the kernel is older than the flag */
            return epa_fail_errno(err, EPA_ERR_NOMEM, errno,
                                  "%s: no memory for a heap of %" PRIu64 " bytes after %" PRIu64
                                  " of them: %s",
                                  name, bytes, at, strerror(errno));
        memset(memory + at, 0, n);
    }
    return EPA_OK;
}
