/* Opens folders and files whose content only root and this user can decide. */
#ifndef TRUST_H
#define TRUST_H

#include <epa2a/status.h>
#include <stddef.h>

/* Resolves `path`, then walks from / to it without following any link. Every folder on
 * the way must belong to root or this user and be writable by nobody else. A sticky one
 * like /tmp may be on the way, because what we own in it others can neither rename nor
 * remove; it may not be the folder itself, where others could add files. *out_fd is good
 * for openat() alone; `real` gets the resolved path. err says what is wrong with which
 * folder. */
EPA_CHECKED enum epa_status trust_folder(const char *path, int *out_fd, char *real,
                                         size_t real_bytes, struct epa_error *);

/* Opens `name` in such a folder for reading: a regular file, by the same rule, and no
 * link. */
EPA_CHECKED enum epa_status trust_file(int folder_fd, const char *name, int *out_fd,
                                       struct epa_error *);

#endif
