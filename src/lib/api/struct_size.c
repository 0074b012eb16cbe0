/* The size rule of openat2(): the first bytes of all versions of a struct are equal, so a shorter
 * struct is a prefix of a longer one, and 0 in an unknown field requests nothing. */
#include "api/struct_size.h"

#include <stdbool.h>
#include <stdint.h>
#include <string.h>

enum { SIZE_MOST = 4096 }; /* a larger size is not initialised memory of a struct */

static bool has_zeros_only(const unsigned char *bytes, size_t from, size_t to)
{
    for (size_t i = from; i < to; i++)
        if (bytes[i] != 0)
            return false;
    return true;
}

enum epa_status struct_read(void *to, size_t bytes, const void *from, const char *name,
                            struct epa_error *err)
{
    size_t size = 0;

    if (from == NULL)
        return epa_fail(err, EPA_ERR_CONFIG, "the pointer to struct %s is NULL", name);
    memcpy(&size, from, sizeof(size));
    if (size == 0)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "struct %s has size 0; define the struct with EPA2A_STRUCT()", name);
    if (size < sizeof(size) || size > SIZE_MOST)
        return epa_fail(err, EPA_ERR_CONFIG,
                        "struct %s has size %zu, outside %zu to %d; define the struct with "
                        "EPA2A_STRUCT()",
                        name, size, sizeof(size), SIZE_MOST);
    if (size > bytes && !has_zeros_only(from, bytes, size))
        return epa_fail(err, EPA_ERR_CONFIG,
                        "struct %s has a value in a field behind the %zu bytes that this library "
                        "knows; set the field to 0 or update libepa2a",
                        name, bytes);
    memset(to, 0, bytes);
    memcpy(to, from, size < bytes ? size : bytes);
    memcpy(to, &bytes, sizeof(bytes));
    return EPA_OK;
}

void struct_write(void *to, const void *from, size_t bytes)
{
    size_t size;

    memcpy(&size, to, sizeof(size));
    if (size > bytes)
        size = bytes;
    if (size > sizeof(size))
        memcpy((char *)to + sizeof(size), (const char *)from + sizeof(size), size - sizeof(size));
}
