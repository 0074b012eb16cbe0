/* Copies public structs between callers and the library, whose versions of a struct may have
 * different sizes. The first field of each struct is a size_t, the size that the caller knows. */
#ifndef API_STRUCT_SIZE_H
#define API_STRUCT_SIZE_H

#include <epa2a/status.h>

#include <stddef.h>

/* Copies the struct of the caller at `from` to the struct of the library at `to`, which has `bytes`
 * bytes. Fields that the caller does not know become 0. EPA_ERR_CONFIG: `from` is NULL, its size is
 * 0 or exceeds a page, or a field that the library does not know is not 0. `name` is the name of
 * the struct in messages. */
EPA_CHECKED enum epa_status struct_read(void *to, size_t bytes, const void *from, const char *name,
                                        struct epa_error *);

/* Copies the fields that the caller knows from the struct of the library at `from` back to the
 * struct of the caller at `to`, which struct_read() has accepted. The size of the caller and all
 * bytes beyond `bytes` stay. */
void struct_write(void *to, const void *from, size_t bytes);

#endif
