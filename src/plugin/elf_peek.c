/* Reads one symbol's bytes out of a shared object. The idea: follow what the dynamic
 * loader follows (program headers, dynamic section, hash table, symbol), because section
 * headers may be stripped; and take every byte through read_file() or read_memory(), which
 * check its place against the file's size, so that no corrupt number leads outside. */
#include "plugin/elf_peek.h"

#include <errno.h>
#include <link.h>
#include <stdbool.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

/* Of this program, from the linker: a plugin must be for the same machine. */
extern const ElfW(Ehdr) __ehdr_start __attribute__((visibility("hidden")));

enum { MAX_HEADERS = 64, MAX_DYNAMIC = 1024, MAX_CHAIN = 4096 };

struct image {
    int fd;
    uint64_t bytes;
    ElfW(Phdr) header[MAX_HEADERS];
    uint32_t n_headers;
    uint64_t strings, string_bytes, symbols, gnu_hash, sysv_hash; /* addresses; 0: none */
};

static enum epa_status read_file(const struct image *image, uint64_t offset, void *out,
                                 size_t bytes, struct epa_error *err)
{
    size_t done = 0;

    if (bytes > image->bytes || offset > image->bytes - bytes)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the file is cut short: it has %ju bytes and refers to byte %ju",
                        (uintmax_t)image->bytes, (uintmax_t)offset);
    while (done < bytes) {
        ssize_t n = pread(image->fd, (char *)out + done, bytes - done, (off_t)(offset + done));

        if (n < 0 && errno == EINTR)
            continue;
        if (n <= 0)
            return epa_fail(err, EPA_ERR_SYSTEM, "the file cannot be read: %s",
                            n < 0 ? strerror(errno) : "it shrank");
        done += (size_t)n;
    }
    return EPA_OK;
}

/* `address` is one of the loaded image; finds the segment that the file gives it from. */
static enum epa_status read_memory(const struct image *image, uint64_t address, void *out,
                                   size_t bytes, struct epa_error *err)
{
    for (uint32_t i = 0; i < image->n_headers; i++) {
        const ElfW(Phdr) *header = &image->header[i];

        if (header->p_type == PT_LOAD && address >= header->p_vaddr && bytes <= header->p_filesz &&
            address - header->p_vaddr <= header->p_filesz - bytes)
            return read_file(image, header->p_offset + (address - header->p_vaddr), out, bytes,
                             err);
    }
    return epa_fail(err, EPA_ERR_UNSUPPORTED,
                    "the file is corrupt: address 0x%jx is in none of its segments",
                    (uintmax_t)address);
}

static enum epa_status read_header(const struct image *image, ElfW(Ehdr) * out,
                                   struct epa_error *err)
{
    enum epa_status status;

    if (image->bytes < sizeof(*out))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is not a shared object");
    status = read_file(image, 0, out, sizeof(*out), err);
    if (status != EPA_OK)
        return status;
    if (memcmp(out->e_ident, ELFMAG, SELFMAG) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is not a shared object");
    if (out->e_ident[EI_CLASS] != __ehdr_start.e_ident[EI_CLASS] ||
        out->e_ident[EI_DATA] != __ehdr_start.e_ident[EI_DATA] ||
        out->e_machine != __ehdr_start.e_machine)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is for another kind of machine");
    if (out->e_type != ET_DYN)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is not a shared object (ELF type %u)",
                        out->e_type);
    if (out->e_phentsize != sizeof(ElfW(Phdr)) || out->e_phnum == 0 || out->e_phnum > MAX_HEADERS)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the file is corrupt: %u program headers of %u bytes", out->e_phnum,
                        out->e_phentsize);
    return EPA_OK;
}

/* The loader maps segments without a look at the file's end and is killed by SIGBUS
 * there. */
static enum epa_status check_complete(const struct image *image, const ElfW(Ehdr) * file,
                                      struct epa_error *err)
{
    uint64_t end = (uint64_t)file->e_shnum * file->e_shentsize;
    bool whole = end <= image->bytes && file->e_shoff <= image->bytes - end;

    for (uint32_t i = 0; i < image->n_headers && whole; i++) {
        const ElfW(Phdr) *header = &image->header[i];

        whole = header->p_type != PT_LOAD || (header->p_filesz <= image->bytes &&
                                              header->p_offset <= image->bytes - header->p_filesz);
    }
    if (!whole)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "the file is cut short: parts of it are beyond its %ju bytes",
                        (uintmax_t)image->bytes);
    return EPA_OK;
}

static enum epa_status image_open(int fd, struct image *out, struct epa_error *err)
{
    ElfW(Ehdr) file;
    struct stat stat;
    enum epa_status status;

    memset(out, 0, sizeof(*out));
    if (fstat(fd, &stat) != 0)
        return epa_fail(err, EPA_ERR_SYSTEM, "fstat: %s", strerror(errno));
    out->fd = fd;
    out->bytes = stat.st_size > 0 ? (uint64_t)stat.st_size : 0;
    status = read_header(out, &file, err);
    if (status != EPA_OK)
        return status;
    out->n_headers = file.e_phnum;
    status = read_file(out, file.e_phoff, out->header, out->n_headers * sizeof(ElfW(Phdr)), err);
    if (status != EPA_OK)
        return status;
    return check_complete(out, &file, err);
}

static enum epa_status read_dynamic(struct image *image, struct epa_error *err)
{
    const ElfW(Phdr) *header = image->header, *end = header + image->n_headers;
    ElfW(Dyn) entry = {0};

    while (header < end && header->p_type != PT_DYNAMIC)
        header++;
    for (uint32_t i = 0; header < end && i < MAX_DYNAMIC; i++) {
        enum epa_status status =
            read_file(image, header->p_offset + i * sizeof(entry), &entry, sizeof(entry), err);

        if (status != EPA_OK)
            return status;
        if (entry.d_tag == DT_NULL)
            break;
        if (entry.d_tag == DT_STRTAB)
            image->strings = entry.d_un.d_ptr;
        if (entry.d_tag == DT_STRSZ)
            image->string_bytes = entry.d_un.d_val;
        if (entry.d_tag == DT_SYMTAB)
            image->symbols = entry.d_un.d_ptr;
        if (entry.d_tag == DT_GNU_HASH)
            image->gnu_hash = entry.d_un.d_ptr;
        if (entry.d_tag == DT_HASH)
            image->sysv_hash = entry.d_un.d_ptr;
    }
    if (image->strings == 0 || image->symbols == 0 ||
        (image->gnu_hash == 0 && image->sysv_hash == 0))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file has no table of symbols");
    return EPA_OK;
}

/* Whether symbol `index` is a definition of `name`; if so it is copied to *out. */
static enum epa_status symbol_is(const struct image *image, uint32_t index, const char *name,
                                 bool *yes, ElfW(Sym) * out, struct epa_error *err)
{
    char have[64];
    size_t bytes = strlen(name) + 1;
    ElfW(Sym) symbol;
    enum epa_status status = read_memory(image, image->symbols + (uint64_t)index * sizeof(symbol),
                                         &symbol, sizeof(symbol), err);

    *yes = false;
    if (status != EPA_OK || symbol.st_shndx == SHN_UNDEF || bytes > sizeof(have) ||
        image->string_bytes < bytes || symbol.st_name > image->string_bytes - bytes)
        return status;
    status = read_memory(image, image->strings + symbol.st_name, have, bytes, err);
    *yes = status == EPA_OK && memcmp(have, name, bytes) == 0;
    if (*yes)
        *out = symbol;
    return status;
}

static enum epa_status find_gnu(const struct image *image, const char *name, bool *found,
                                ElfW(Sym) * out, struct epa_error *err)
{
    struct {
        uint32_t buckets, first, bloom_words, bloom_shift;
    } table;
    uint32_t hash = 5381, index, link = 0;
    uint64_t buckets;
    enum epa_status status = read_memory(image, image->gnu_hash, &table, sizeof(table), err);

    *found = false;
    if (status != EPA_OK || table.buckets == 0)
        return status;
    for (const char *c = name; *c != '\0'; c++)
        hash = hash * 33 + (unsigned char)*c;
    buckets = image->gnu_hash + sizeof(table) + table.bloom_words * (uint64_t)sizeof(ElfW(Addr));
    status = read_memory(image, buckets + UINT64_C(4) * (hash % table.buckets), &index,
                         sizeof(index), err);
    if (status != EPA_OK || index < table.first)
        return status; /* index 0: the bucket is empty */
    for (uint32_t i = 0; i < MAX_CHAIN && !*found && (link & 1) == 0; i++, index++) {
        status = read_memory(
            image, buckets + UINT64_C(4) * table.buckets + UINT64_C(4) * (index - table.first),
            &link, sizeof(link), err);
        if (status == EPA_OK && (link | 1) == (hash | 1))
            status = symbol_is(image, index, name, found, out, err);
        if (status != EPA_OK)
            return status;
    }
    return EPA_OK;
}

static uint32_t sysv_hash(const char *name)
{
    uint32_t hash = 0;

    for (const char *c = name; *c != '\0'; c++) {
        hash = (hash << 4) + (unsigned char)*c;
        hash = (hash ^ (hash >> 24 & 0xf0)) & 0x0fffffff;
    }
    return hash;
}

static enum epa_status find_sysv(const struct image *image, const char *name, bool *found,
                                 ElfW(Sym) * out, struct epa_error *err)
{
    uint32_t table[2], index; /* numbers of buckets and of chain links */
    uint64_t at = image->sysv_hash + sizeof(table);
    enum epa_status status = read_memory(image, image->sysv_hash, table, sizeof(table), err);

    *found = false;
    if (status != EPA_OK || table[0] == 0)
        return status;
    status = read_memory(image, at + UINT64_C(4) * (sysv_hash(name) % table[0]), &index,
                         sizeof(index), err);
    for (uint32_t i = 0; status == EPA_OK && i < MAX_CHAIN && index != 0; i++) {
        status = symbol_is(image, index, name, found, out, err);
        if (status != EPA_OK || *found)
            return status;
        status = read_memory(image, at + UINT64_C(4) * table[0] + UINT64_C(4) * index, &index,
                             sizeof(index), err);
    }
    return status;
}

enum epa_status elf_peek(int fd, const char *symbol, void *out, size_t bytes, struct epa_error *err)
{
    struct image image;
    ElfW(Sym) found = {0};
    bool yes = false;
    enum epa_status status = image_open(fd, &image, err);

    if (status == EPA_OK)
        status = read_dynamic(&image, err);
    if (status == EPA_OK)
        status = image.gnu_hash != 0 ? find_gnu(&image, symbol, &yes, &found, err)
                                     : find_sysv(&image, symbol, &yes, &found, err);
    if (status != EPA_OK)
        return status;
    if (!yes)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "it exports no %s", symbol);
    /* st_info has the same layout in both ELF classes. */
    if (ELF64_ST_TYPE(found.st_info) != STT_OBJECT)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its %s is not a variable", symbol);
    if (found.st_size < bytes)
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "its %s has %ju bytes, too few", symbol,
                        (uintmax_t)found.st_size);
    return read_memory(&image, found.st_value, out, bytes, err);
}
