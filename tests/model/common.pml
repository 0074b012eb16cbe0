/* Macros of all models. `run` has the defaults of -D parameters. */

/* For each i < n, with i = 0 before and after; and variants with a condition per element or for the
 * whole loop. */
#define EACH(i, n, ...) \
    i = 0; \
    do \
    :: i < (n) -> __VA_ARGS__; i++ \
    :: else -> break \
    od; \
    i = 0
#define IF(condition, ...) \
    if \
    :: condition -> __VA_ARGS__ \
    :: else \
    fi

/* For all ranks; `of` is a macro of a rank and maybe other arguments. */
#if N == 2
#define OF_ALL(of, ...) (of(0, ##__VA_ARGS__) && of(1, ##__VA_ARGS__))
#else
#define OF_ALL(of, ...) (of(0, ##__VA_ARGS__) && of(1, ##__VA_ARGS__) && of(2, ##__VA_ARGS__))
#endif

/* Starts every rank and the carrier from it to each other rank. */
#define RUN_RANKS(a, b) EACH(a, N, EACH(b, N, IF(a != b, run carrier(a, b))); run rank(a))
