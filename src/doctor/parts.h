/* The parts of machine_collect() that have files of their own. */
#ifndef PARTS_H
#define PARTS_H

#include "doctor/machine.h"

void devices_collect(const char *root, struct machine *out);
void programs_collect(struct machine *out);

#endif
