/* Reads blocks by /proc/PID/fd. The file of a process is a memfd, whose numbers of device and inode
 * distinguish it from a file of a process with the same number in another namespace. */
#include "launch/block_file.h"

#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <unistd.h>

struct conn_block_file block_file_describe(const struct epa_launch *asked)
{
    struct conn_block_file out = {.fd = asked->block_file, .at = asked->block_at};
    struct stat stat;

    if (out.at == 0 || fstat(asked->block_file, &stat) != 0)
        return (struct conn_block_file){.at = 0};
    out.device = stat.st_dev;
    out.inode = stat.st_ino;
    return out;
}

int block_file_open(int32_t pid, const struct conn_block_file *file)
{
    char path[48];
    struct stat stat;
    int fd;

    if (file->at == 0)
        return -1;
    snprintf(path, sizeof(path), "/proc/%d/fd/%d", (int)pid, (int)file->fd);
    fd = open(path, O_RDONLY | O_NONBLOCK | O_CLOEXEC);
    if (fd >= 0 && fstat(fd, &stat) == 0 && stat.st_dev == file->device &&
        stat.st_ino == file->inode)
        return fd;
    if (fd >= 0)
        close(fd);
    return -1;
}

/* Copies the bytes from..end of the file, which begin at `to`. */
static void copy_bytes(int fd, off_t from, off_t end, char *to)
{
    while (from < end) {
        ssize_t n = pread(fd, to, (size_t)(end - from), from);

        if (n <= 0)
            return;
        from += n;
        to += n;
    }
}

void block_file_copy(int fd, const struct conn_block_file *file, const struct epa_launch *asked,
                     uint32_t rank)
{
    uint64_t begin = file->at + rank * asked->block_bytes;
    off_t end = (off_t)(begin + asked->block_bytes), from, to;
    char *block = asked->block + rank * asked->block_bytes;

    if (fd < 0 || asked->block == NULL || begin > INT64_MAX - asked->block_bytes)
        return;
    for (from = (off_t)begin; from < end; from = to) {
        from = lseek(fd, from, SEEK_DATA);
        if (from < 0 || from >= end)
            return;
        to = lseek(fd, from, SEEK_HOLE);
        if (to < 0 || to > end)
            to = end;
        copy_bytes(fd, from, to, block + (from - (off_t)begin));
    }
}

void block_file_find_data(const struct epa_launch *asked, uint32_t rank, size_t at, size_t *begin,
                          size_t *end)
{
    size_t bytes = asked->block_bytes;
    off_t first = (off_t)(asked->block_at + rank * bytes), from, to;

    *begin = at;
    *end = bytes;
    if (asked->block_at == 0 || at >= bytes)
        return;
    from = lseek(asked->block_file, first + (off_t)at, SEEK_DATA);
    if (from < 0 && errno != ENXIO) /* a file system without holes */
        return;
    if (from < 0 || from >= first + (off_t)bytes) {
        *begin = bytes;
        return;
    }
    to = lseek(asked->block_file, from, SEEK_HOLE);
    *begin = (size_t)(from - first);
    if (to > from && to < first + (off_t)bytes)
        *end = (size_t)(to - first);
}
