/* Trust in the file of a plugin, before any of its code runs. */
#ifndef TRUST_H
#define TRUST_H

#include <epa2a/status.h>

/* Whether only trusted users can change the regular file `base` of `folder`: the file, the folder,
 * and every folder above belong to them, and no other user can write to one of these. A sticky
 * folder like /tmp may be above, because others can neither rename nor remove our files in it; it
 * may not be `folder` itself, where others could add files. Trusted users are
 *
 *  - root and this user;
 *  - the owner of the running program: such a user can change the program, and needs no plugin. Two
 *    examples are an account for software, and the user whose tree root runs;
 *  - in a user namespace, for folders above: the owner that stands for all users without an id in
 *    the namespace, root of the host among them. Their ids cannot be told apart there.
 *
 * A group may write if it is the private group of a trusted user: umask 002 makes all new files so.
 *
 * `out` gets the path to load, resolved and free of links. */
EPA_CHECKED enum epa_status plugin_trust(const char *folder, const char *base, char *out,
                                         size_t room, struct epa_error *);

#endif
