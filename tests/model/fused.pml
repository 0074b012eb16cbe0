/* The queue of fused on hosts: N ranks, the first with W workers, the others with one, make E calls
 * with B sets of peer-written memory and no barrier.
 *
 * The key idea: memory holds epoch numbers in place of data. A write takes two steps, with 0 in
 * between, and a read reads twice, so that a read beside a write is detected. In a call a rank has
 * a row for each rank, including itself, or none; both experts of a rank need each row. Its queue
 * is
 *
 *   send to each other rank, index, up 0, down 0, up 1, down 1 (with LAG: up 0, up 1, down 0 ...), combine
 *
 * and the intermediate of a block uses slot `block % RING`. A worker that waits forever is an
 * invalid end state, which reveals a queue whose tasks wait for later ones.
 *
 * Parameters by -D: N, W, E, B, RING, LAG, and at most one MUTANT_*. */

#include "common.pml"

#define BLOCKS 2
#define SET(e) ((e) % B)
#define FIRST_GEMM N
#define WORKERS(r) ((r) == 0 -> W : 1)
#define TASKS (N + 2 * BLOCKS + 1)
#define AT(to, from, e) (((to) * N + (from)) * B + SET(e))
#define PAIR(to, from) ((to) * N + (from))

/* Written by peers: data in sets, flags once. */
bool has[N * B]; /* header: true if there are rows */
byte head[N * N * B], row[N * N * B], out[N * N * B];
byte head_flag[N * N], row_flag[N * N], out_flag[N * N];

/* Memory of the own rank. */
byte go[N], done[N], next[N], indexed[N];
byte up[N * BLOCKS], down[N * BLOCKS], slot[N * BLOCKS], inter[N * RING], left[N * N];

#define WRITE(place, value) place = 0; place = value
#define READ(place, value) assert(place == value); assert(place == value)

inline send(r, p, e)
{
#if MUTANT_FLAG_EARLY
    row_flag[PAIR(p, r)] = e;
    WRITE(row[AT(p, r, e)], e);
#else
    WRITE(row[AT(p, r, e)], e);
    row_flag[PAIR(p, r)] = e;
#endif
}

inline index_rows(r, e)
{
    s = 0;
    do
    :: s < N ->
        if
        :: s != r ->
            (MUTANT_NO_HEADS || head_flag[PAIR(r, s)] >= e);
            READ(head[AT(r, s, e)], e)
        :: else
        fi;
        left[PAIR(r, s)] = (has[s * B + SET(e)] -> BLOCKS : 0);
        s++
    :: else -> break
    od;
    indexed[r] = e
}

inline multiply_up(r, b, e)
{
    (MUTANT_NO_RING || b < RING || down[r * BLOCKS + b - RING] == 1);
    s = 0;
    do
    :: s < N ->
        if
        :: s != r && has[s * B + SET(e)] ->
            row_flag[PAIR(r, s)] >= e - MUTANT_STALE_ROWS;
            READ(row[AT(r, s, e)], e)
        :: else
        fi;
        s++
    :: else -> break
    od;
    WRITE(inter[r * RING + b % RING], e * BLOCKS + b);
    up[r * BLOCKS + b] = 1
}

inline give_back(r, p, e)
{
    READ(slot[r * BLOCKS], e);
    READ(slot[r * BLOCKS + 1], e);
    WRITE(out[AT(p, r, e)], e);
    out_flag[PAIR(p, r)] = e
}

inline multiply_down(r, b, e)
{
    (MUTANT_NO_UP || up[r * BLOCKS + b] == 1);
    READ(inter[r * RING + b % RING], e * BLOCKS + b);
    WRITE(slot[r * BLOCKS + b], e);
    down[r * BLOCKS + b] = 1;
    s = 0;
    do
    :: s < N && !has[s * B + SET(e)] -> s++
    :: s < N && has[s * B + SET(e)] ->
#if MUTANT_COUNT_APART
        c = left[PAIR(r, s)];
        left[PAIR(r, s)] = c - 1;
        c = c - 1;
#else
        atomic {
            left[PAIR(r, s)] = left[PAIR(r, s)] - 1;
            c = left[PAIR(r, s)]
        };
#endif
        if
        :: c == (MUTANT_FIRST_RETURNS -> BLOCKS - 1 : 0) -> give_back(r, s, e)
        :: else
        fi;
        s++
    :: else -> break
    od
}

inline combine(r, e)
{
    s = (has[r * B + SET(e)] -> 0 : N);
    do
    :: s < N ->
        out_flag[PAIR(r, s)] >= e;
        READ(out[AT(r, s, e)], e);
        s++
    :: else -> break
    od
}

/* Steps before the queue: counters of the call, headers. */
inline begin_call(r, e)
{
    d_step {
        next[r] = 0;
        done[r] = 0;
        up[r * BLOCKS] = 0;
        up[r * BLOCKS + 1] = 0;
        down[r * BLOCKS] = 0;
        down[r * BLOCKS + 1] = 0;
    };
    if
    :: has[r * B + SET(e)] = true
    :: has[r * B + SET(e)] = false
    fi;
    EACH(s, N,
        IF(s != r,
            WRITE(head[AT(s, r, e)], e);
            head_flag[PAIR(s, r)] = e));
    go[r] = e
}

inline take(r, t)
{
#if MUTANT_TICKET_APART
    t = next[r];
    next[r] = t + 1
#else
    atomic {
        t = next[r];
        next[r] = t + 1
    }
#endif
}

/* GEMM task `g` of the queue: up if g is even, else down. */
inline gemm(r, g, e)
{
    indexed[r] == e;
    b = (LAG == 0 -> (g) / 2 : (g) % 2);
    up_next = (LAG == 0 -> (g) % 2 == 0 : (g) < BLOCKS);
    if
    :: up_next -> multiply_up(r, b, e)
    :: else -> multiply_down(r, b, e)
    fi
}

proctype worker(byte r; byte w)
{
    byte e = 0, t, b, s, c;
    bool up_next;

    do
    :: e < E ->
        e++;
        if
        :: w == 0 -> begin_call(r, e)
        :: else -> go[r] == e
        fi;
        do
        :: take(r, t);
            if
            :: t < N - 1 && has[r * B + SET(e)] -> send(r, (r + 1 + t) % N, e)
            :: t < N - 1 && !has[r * B + SET(e)]
            :: t == N - 1 -> index_rows(r, e)
            :: t >= FIRST_GEMM && t < TASKS - 1 -> gemm(r, t - FIRST_GEMM, e)
            :: t == TASKS - 1 -> combine(r, e)
            :: t >= TASKS -> break
            fi
        od;
        if
        :: w == 0 -> done[r] == WORKERS(r) - 1
        :: else -> atomic { done[r] = done[r] + 1 }
        fi
    :: else -> break
    od
}

init {
    byte r = 0, w;

    atomic {
        do
        :: r < N ->
            EACH(w, WORKERS(r), run worker(r, w));
            r++
        :: else -> break
        od
    }
}
