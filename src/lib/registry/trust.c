/* Owner and mode of a plugin's file and of the folders above it. */
#include "registry/trust.h"

#include <errno.h>
#include <grp.h>
#include <inttypes.h>
#include <limits.h>
#include <pwd.h>
#include <stdbool.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/xattr.h>
#include <unistd.h>

#include "base/object_path.h"
#include "base/sysfile.h"

enum {
    USERS = 3,
    ID_BYTES = 64,
    NAME_BYTES = 256,
    ENTRY_BYTES = 1 << 14, /* of a user, or of a group with its members */
};

struct trusted {
    uid_t user[USERS]; /* root, this user, the owner of program or library */
    uint32_t n;
    uint64_t
        /* Overflow id: stands for all users without an id in this user namespace; UINT64_MAX:
         * none. */
        nameless;
};

/* ---- user namespaces ---- */

/* Returns true if /proc/self/uid_map, or gid_map, maps the id to a user of the host. */
static bool is_mapped(const char *map, uint64_t id)
{
    FILE *file = fopen(map, "re");
    uint64_t first, outside, n;
    bool mapped = file == NULL; /* the kernel has no namespaces */

    while (file != NULL &&
           fscanf(file, "%" SCNu64 "%" SCNu64 "%" SCNu64, &first, &outside, &n) == 3)
        mapped = mapped || (id >= first && id - first < n);
    if (file != NULL)
        fclose(file);
    return mapped;
}

/* Returns the id that the kernel shows for all ids outside the namespace. If the namespace maps
 * this id to a user, that user cannot be distinguished from others. */
static uint64_t nameless_id(const char *overflow, const char *map)
{
    uint64_t id = sysfile_number("", overflow);

    return id == 0 || is_mapped(map, id) ? UINT64_MAX : id;
}

static void find_trusted(struct trusted *out)
{
    struct stat object;
    char path[PATH_MAX];

    *out = (struct trusted){.user = {0, geteuid()}, .n = 2};
    if (object_path(path, sizeof(path)) && stat(path, &object) == 0)
        out->user[out->n++] = object.st_uid;
    out->nameless = nameless_id("/proc/sys/kernel/overflowuid", "/proc/self/uid_map");
}

static bool is_trusted(const struct trusted *t, uid_t user)
{
    for (uint32_t i = 0; i < t->n; i++)
        if (t->user[i] == user)
            return true;
    return false;
}

/* ---- private groups ---- */

/* Writes the name of a user, "" without one. Other threads may ask for users, too. */
static void find_user_name(uid_t user, char out[NAME_BYTES])
{
    char room[ENTRY_BYTES];
    struct passwd entry, *found = NULL;

    out[0] = '\0';
    if (getpwuid_r(user, &entry, room, sizeof(room), &found) == 0 && found != NULL)
        snprintf(out, NAME_BYTES, "%s", found->pw_name);
}

/* Returns true if no other user has the group as primary group. */
static bool is_first_group_of_none_but(uid_t user, gid_t group)
{
    const struct passwd *other;
    bool alone = true;

    setpwent();
    while (alone && (other = getpwent()) != NULL)
        alone = other->pw_gid != group || other->pw_uid == user;
    endpwent();
    return alone;
}

/* Returns true for a group with the user's name or number and without other members, the private
 * group that useradd and adduser create. In containers neither may have a name. */
static bool is_private_group(uid_t user, gid_t group)
{
    char name[NAME_BYTES], room[ENTRY_BYTES];
    struct group entry, *g = NULL;

    find_user_name(user, name);
    if (getgrgid_r(group, &entry, room, sizeof(room), &g) == ERANGE)
        return false; /* a group with many members */
    if (group != user && (g == NULL || strcmp(g->gr_name, name) != 0))
        return false;
    for (char **member = g == NULL ? NULL : g->gr_mem; member != NULL && *member != NULL; member++)
        if (strcmp(*member, name) != 0)
            return false;
    return is_first_group_of_none_but(user, group);
}

static bool is_private_group_of_trusted(const struct trusted *t, gid_t group)
{
    if (nameless_id("/proc/sys/kernel/overflowgid", "/proc/self/gid_map") == group)
        return false;
    for (uint32_t i = 0; i < t->n; i++)
        if (t->user[i] != t->nameless && is_private_group(t->user[i], group))
            return true;
    return false;
}

/* Returns true if the path has an access control list. Its mask is shown in the group bits of the
 * mode. */
static bool has_list(const char *path)
{
    return lgetxattr(path, "system.posix_acl_access", NULL, 0) > 0;
}

/* ---- files ---- */

/* Writes "user 2000 (spack)". */
static void name_user(uid_t user, char out[ID_BYTES])
{
    char name[NAME_BYTES];

    find_user_name(user, name);
    snprintf(out, ID_BYTES, name[0] == '\0' ? "user %u" : "user %u (%.40s)", (unsigned)user, name);
}

/* Checks the owner. `what` begins the message. */
static enum epa_status check_owner(const struct trusted *t, const char *path,
                                   const struct stat *stat, const char *what, bool is_above,
                                   struct epa_error *err)
{
    bool sticky = (stat->st_mode & S_ISVTX) != 0 && is_above;
    unsigned mode = (unsigned)(stat->st_mode & 07777);
    char user[ID_BYTES];

    if (!is_trusted(t, stat->st_uid) && !(is_above && stat->st_uid == t->nameless)) {
        name_user(stat->st_uid, user);
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s belongs to %s, not to root, you or the owner of this program; copy "
                        "the plugins into a folder of yours, and name it by --plugin-path",
                        what, user);
    }
    if (sticky)
        return EPA_OK;
    if ((stat->st_mode & S_IWOTH) != 0)
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s can be written by others (mode %04o); chmod o-w forbids it", what,
                        mode);
    if ((stat->st_mode & S_IWGRP) != 0 && has_list(path))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s can be written by others (mode %04o, by an access control list); "
                        "setfacl -b removes the list",
                        what, mode);
    if ((stat->st_mode & S_IWGRP) != 0 && !is_private_group_of_trusted(t, stat->st_gid))
        return epa_fail(err, EPA_ERR_UNSUPPORTED,
                        "%s can be written by others (mode %04o: group %u is not the private group "
                        "of a trusted user); chmod g-w forbids it",
                        what, mode, (unsigned)stat->st_gid);
    return EPA_OK;
}

static const char *describe_type(mode_t mode)
{
    switch (mode & S_IFMT) {
    case S_IFDIR:
        return "a folder";
    case S_IFLNK:
        return "a symbolic link";
    case S_IFIFO:
        return "a pipe";
    case S_IFSOCK:
        return "a socket";
    default:
        return "a device";
    }
}

static enum epa_status check_folder(const struct trusted *t, const char *folder, bool is_above,
                                    struct epa_error *err)
{
    char what[320];
    struct stat stat;

    snprintf(what, sizeof(what), "the folder %.300s", folder);
    if (lstat(folder, &stat) != 0)
        return epa_fail_errno(err, EPA_ERR_UNSUPPORTED, errno, "%s: %s", what, strerror(errno));
    return check_owner(t, folder, &stat, what, is_above, err);
}

/* Checks from / downwards: once a folder is trusted, no other user can replace the next one. */
enum epa_status plugin_trust(const char *folder, const char *base, char *out, size_t room,
                             struct epa_error *err)
{
    char real[PATH_MAX]; /* realpath() needs no memory then */
    struct trusted trusted;
    enum epa_status status;
    struct stat stat;
    int n;

    if (realpath(folder, real) == NULL)
        return epa_fail_errno(err, EPA_ERR_UNSUPPORTED, errno, "the folder %s: %s", folder,
                              strerror(errno));
    find_trusted(&trusted);
    n = snprintf(out, room, "%s/%s", strcmp(real, "/") == 0 ? "" : real, base);
    status = n < 0 || (size_t)n >= room ? epa_fail(err, EPA_ERR_UNSUPPORTED, "its path is too long")
                                        : check_folder(&trusted, "/", real[1] != '\0', err);
    for (char *at = real + 1; status == EPA_OK && *at != '\0';) {
        char *end = at + strcspn(at, "/"), was = *end;

        *end = '\0';
        status = check_folder(&trusted, real, was != '\0', err);
        *end = was;
        at = end + (was != '\0');
    }
    if (status != EPA_OK)
        return status;
    if (lstat(out, &stat) != 0)
        return epa_fail_errno(err, EPA_ERR_UNSUPPORTED, errno, "the file cannot be opened: %s",
                              strerror(errno));
    if (!S_ISREG(stat.st_mode))
        return epa_fail(err, EPA_ERR_UNSUPPORTED, "the file is %s", describe_type(stat.st_mode));
    return check_owner(&trusted, out, &stat, "the file", false, err);
}
