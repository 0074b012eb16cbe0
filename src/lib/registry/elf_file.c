/* Compares the tables and segments that an ELF header names with the size of the file. The section
 * header table is not mapped, but linkers write it last, so it shows most truncated files. */
#include "registry/elf_file.h"

#include <errno.h>
#include <fcntl.h>
#include <link.h>
#include <stdbool.h>
#include <stdint.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Refuses bytes of the file that lie beyond its end. */
static enum epa_status check_extent(uint64_t file_bytes, uint64_t offset, uint64_t bytes,
                                    const char *part, struct epa_error *err)
{
    if (offset <= file_bytes && bytes <= file_bytes - offset)
        return EPA_OK;
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "the file is truncated: it has %llu bytes, and its %s needs %llu bytes from "
                    "offset %llu; build or copy it again",
                    (unsigned long long)file_bytes, part, (unsigned long long)bytes,
                    (unsigned long long)offset);
}

static enum epa_status fail_read(struct epa_error *err)
{
    return epa_fail_errno(err, EPA_ERR_SYSTEM, errno, "the file cannot be read: %s",
                          errno != 0 ? strerror(errno) : "it became shorter");
}

static enum epa_status check_segments(int fd, uint64_t file_bytes, const ElfW(Ehdr) * header,
                                      struct epa_error *err)
{
    enum epa_status status =
        check_extent(file_bytes, header->e_phoff, (uint64_t)header->e_phnum * sizeof(ElfW(Phdr)),
                     "program header table", err);

    for (uint32_t i = 0; i < header->e_phnum && status == EPA_OK; i++) {
        ElfW(Phdr) segment;
        char part[32];
        off_t at = (off_t)(header->e_phoff + i * sizeof(segment));

        errno = 0;
        if (pread(fd, &segment, sizeof(segment), at) != (ssize_t)sizeof(segment))
            return fail_read(err);
        snprintf(part, sizeof(part), "segment %u", i);
        if (segment.p_type != PT_NULL && segment.p_filesz > 0)
            status = check_extent(file_bytes, segment.p_offset, segment.p_filesz, part, err);
    }
    return status;
}

static enum epa_status check_sections(uint64_t file_bytes, const ElfW(Ehdr) * header,
                                      struct epa_error *err)
{
    /* With more than 65279 sections, e_shnum is 0 and the first entry has the number. */
    uint64_t sections = header->e_shnum == 0 ? 1 : header->e_shnum;

    if (header->e_shoff == 0)
        return EPA_OK;
    return check_extent(file_bytes, header->e_shoff, sections * header->e_shentsize,
                        "section header table", err);
}

static enum epa_status check_open_file(int fd, struct epa_error *err)
{
    ElfW(Ehdr) header;
    struct stat file;
    enum epa_status status;
    ssize_t n = pread(fd, &header, sizeof(header), 0);

    if (n < 0 || fstat(fd, &file) != 0)
        return fail_read(err);
    if (memcmp(&header, ELFMAG, n < SELFMAG ? (size_t)n : SELFMAG) != 0)
        return EPA_OK; /* dlopen() refuses a file of another format */
    status = check_extent((uint64_t)file.st_size, 0, sizeof(header), "ELF header", err);
    if (status != EPA_OK)
        return status;
    if (n < (ssize_t)sizeof(header)) {
        errno = 0;
        return fail_read(err);
    }
    if (header.e_ident[EI_CLASS] != (sizeof(void *) == 8 ? ELFCLASS64 : ELFCLASS32) ||
        header.e_phentsize != sizeof(ElfW(Phdr)))
        return EPA_OK; /* dlopen() refuses a file for other processors */
    status = check_segments(fd, (uint64_t)file.st_size, &header, err);
    return status != EPA_OK ? status : check_sections((uint64_t)file.st_size, &header, err);
}

enum epa_status elf_file_check(const char *path, struct epa_error *err)
{
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    enum epa_status status;

    if (fd < 0)
        return fail_read(err);
    status = check_open_file(fd, err);
    close(fd);
    return status;
}
