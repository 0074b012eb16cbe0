/* Trust in the file of a plugin, before any of its code runs. */
#ifndef TRUST_H
#define TRUST_H

#include <epa2a/status.h>

/* Checks that only trusted users can change the regular file `base` of `folder`: the file, the
 * folder, and all folders above belong to them, and no other user can write to one of these. A
 * sticky folder such as /tmp may be above, because others can neither rename nor remove our files
 * in it. It must not be `folder` itself, where others could add files. Trusted users are
 *
 * - root and this user;
 * - the owner of the program or library that loads the plugin: such a user can change this code,
 *   and needs no plugin. Two examples are an account for software, and the user whose tree root
 *   runs;
 * - in a user namespace, for folders above: the owner that stands for all users without an id in
 *   the namespace, root of the host among them. The namespace does not distinguish them.
 *
 * A group may write if it is the private group of a trusted user: with umask 002 all new files are
 * group-writable.
 *
 * `out` receives the path to load, resolved and free of links. */
EPA_CHECKED enum epa_status plugin_trust(const char *folder, const char *base, char *out,
                                         size_t room, struct epa_error *);

#endif
