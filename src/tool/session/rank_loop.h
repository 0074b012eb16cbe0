/* The loop over warm-up and samples of run and bench. */
#ifndef RANK_LOOP_H
#define RANK_LOOP_H

#include "session/rank.h"

/* Runs warm-up and samples in blocks of up to `block` iterations: take() runs the `n` iterations from
 * `first` on, either all warm-up or all samples, and stores their times. Returns the number of
 * iterations. */
uint64_t rank_loop(struct rank *, uint32_t block,
                   void (*take)(struct rank *, uint64_t first, uint32_t n));

/* Returns the time of iteration `i` in a row; NULL: the iteration is warm-up. */
double *rank_sample(const struct rank *, uint32_t row, uint64_t i);

/* Stores the stage times of iteration `i`, which has just ended. */
void rank_keep_stages(struct rank *, uint64_t i);
/* Publishes the number of complete samples of this rank. */
void rank_keep_samples(struct rank *, uint64_t n);

#endif
