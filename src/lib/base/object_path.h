/* Path of the program or shared library that contains this code, and folders next to it. An
 * installation may thus be moved, and libepa2a finds its plugins in any process. */
#ifndef OBJECT_PATH_H
#define OBJECT_PATH_H

#include <stdbool.h>
#include <stddef.h>

/* Writes the absolute path, free of links. Returns false with errno if the path is unknown or too
 * long. */
bool object_path(char *out, size_t room);

/* Returns true if this code is in the main program, false if it is in a shared library. */
bool object_is_program(void);

/* Writes the top of meson's build tree that contains the object, such as <top>/src/epa2a. Returns
 * false if the object is not in a build tree. */
bool object_build_tree(char *top, size_t room);

/* Writes a folder that is absolute or relative to the folder of the object. */
void object_folder(const char *folder, char *out, size_t room);

#endif
