/* Python's stable ABI. Py_LIMITED_API of the compiler selects its version. */
#ifndef BINDING_STABLE_ABI_H
#define BINDING_STABLE_ABI_H

#include <Python.h>

#include <structmember.h>

#include <stdbool.h>
#include <string.h>

#include <epa2a.h>

#endif
