/* Each file is laid over the one that it includes, the last one first. A file that is being
 * read already must not be included again; files are known by device and inode, so that no
 * link hides that. */
#include "config/include.h"

#include <errno.h>
#include <string.h>
#include <sys/stat.h>
#include <unistd.h>

#include "base/arena.h"
#include "config/tree.h"

enum { DEPTH = 16 };

/* A file that is being read, and who includes it. */
struct reading {
    const struct reading *by;
    const char *file;
    dev_t device;
    ino_t inode;
    uint32_t depth;
};

/* Relative to the folder of the file that names it. */
static const char *beside(struct arena *arena, const char *file, const char *path)
{
    const char *slash = strrchr(file, '/');

    if (*path == '/' || slash == NULL)
        return path;
    return arena_printf(arena, "%.*s%s", (int)(slash - file) + 1, file, path);
}

static bool is_file_name(struct diag *diag, struct node *value)
{
    if (value->refused)
        return false;
    if (value->kind == NODE_SCALAR && *value->text != 0)
        return true;
    value->refused = true;
    diag_error(diag, &value->location, "such as include: base.yaml",
               "include: the name of a file is expected");
    return false;
}

/* Asked here, so that it is said at the include and not of a file that nobody named. */
static bool may_include(struct reading *next, const struct node *value, struct diag *diag)
{
    struct stat at;

    if (stat(next->file, &at) != 0 || access(next->file, R_OK) != 0) {
        diag_error(diag, &value->location, NULL, "include: cannot read %s: %s", next->file,
                   strerror(errno));
        return false;
    }
    if (!S_ISREG(at.st_mode)) {
        diag_error(diag, &value->location, NULL, "include: %s is not a file", next->file);
        return false;
    }
    next->device = at.st_dev;
    next->inode = at.st_ino;
    for (const struct reading *r = next->by; r != NULL; r = r->by) {
        if (r->device != at.st_dev || r->inode != at.st_ino)
            continue;
        diag_error(diag, &value->location, NULL, "include: %s includes itself%s%s", r->file,
                   r == next->by ? "" : ", by way of ", r == next->by ? "" : next->by->file);
        return false;
    }
    if (next->depth <= DEPTH)
        return true;
    diag_error(diag, &value->location, NULL, "files include each other more than %d deep", DEPTH);
    return false;
}

static enum epa_status read_below(struct arena *arena, const struct reading *reading,
                                  struct diag *diag, struct node **out)
{
    enum epa_status status = yaml_read(arena, reading->file, diag, out), below;
    struct node *value = node_find(*out, "include");
    struct tree tree = {.arena = arena, .diag = diag};
    struct reading next = {.by = reading, .depth = reading->depth + 1};

    if (value == NULL)
        return status;
    if (!is_file_name(diag, value))
        return EPA_ERR_CONFIG;
    next.file = beside(arena, reading->file, value->text);
    if (!may_include(&next, value, diag))
        return EPA_ERR_CONFIG;
    below = read_below(arena, &next, diag, &tree.root);
    if (tree.root == NULL)
        return below;
    if (tree.root->kind != NODE_MAP) {
        diag_error(diag, &tree.root->location, "such as ranks: 2",
                   "an experiment is a map of keys");
        return EPA_ERR_CONFIG;
    }
    node_drop(tree.root, "include");
    node_drop(*out, "include");
    tree_lay(&tree, *out, false);
    tree.root->location = (*out)->location;
    *out = tree.root;
    return below != EPA_OK ? below : status;
}

enum epa_status include_read(struct arena *arena, const char *file, struct diag *diag,
                             struct node **out)
{
    struct reading reading = {.file = file};
    struct stat at;

    if (stat(file, &at) == 0) {
        reading.device = at.st_dev;
        reading.inode = at.st_ino;
    }
    return read_below(arena, &reading, diag, out);
}
