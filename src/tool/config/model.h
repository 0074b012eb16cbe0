/* Models by name: files of share/models that give the shape of a model's MoE layers. */
#ifndef MODEL_H
#define MODEL_H

#include "base/text.h"
#include "config/node.h"

struct diag;

/* `include: model/NAME` names a model, even if a file of that name exists. */
#define MODEL_PREFIX "model/"

/* Returns the names of all models, sorted, in the arena. */
uint32_t model_names(struct arena *, const char ***names);

/* Writes the path of a model's file. Returns false if no model has that name; `hint` suggests
 * one. */
bool model_find(const char *name, char *path, size_t room, char hint[2 * NEAREST_ROOM]);

/* Reads the model that a scalar names. Its nodes are marked `from_model`. NULL: an error was
 * reported at `name`. */
struct node *model_read(struct arena *, const struct node *name, struct diag *);

#endif
