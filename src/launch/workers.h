/* The threads of one rank that run a function together. */
#ifndef WORKERS_H
#define WORKERS_H

#include <epa2a/world.h>

struct workers;

/* `n` in all: the caller is worker 0, n - 1 threads are made, pinned as the world says. */
enum epa_status workers_create(uint32_t n, const struct epa_world *, struct workers **out,
                               struct epa_error *);
void workers_destroy(struct workers *);

/* Runs fn(arg, worker, n) once on each and returns when all are done. One thread calls. */
void workers_run(struct workers *, void (*fn)(void *arg, uint32_t worker, uint32_t n), void *arg);

#endif
