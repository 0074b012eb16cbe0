/* The links between ranks, for ll_v2.pml, ll_v1.pml and ll_v1_cuda.pml: issued operations, their
 * arrival, and their effect on calls. ll_v2.pml describes the modelling. A model may define
 * SKIPPED() and IS_PUT() before it includes this file, and defines begin(), come() and CARRIER
 * afterwards. */
#include "common.pml"

#define PUT_COUNTS 1
#define PUT_ROWS 2
#define PUT_OUTPUTS 3
#define SIGNAL_COUNT 4
#define SIGNAL_DATA 5
#define SIGNAL_OUTPUT 6
#define FENCE 7
#define PUT_LAST_ROWS 8
#define PUT_LAST_OUTPUTS 9
#ifndef IS_PUT
#define IS_PUT(kind) ((kind) <= PUT_OUTPUTS || (kind) >= PUT_LAST_ROWS)
#define IS_SIGNAL(kind) ((kind) >= SIGNAL_COUNT && (kind) <= SIGNAL_OUTPUT)
#endif

#define OP(kind, epoch) ((kind) * 16 + (epoch))
#define KIND(op) ((op) / 16)
#define EPOCH(op) ((op) % 16)

/* Operations in flight from one rank to another, in order: put, fence, signal. */
#define ROOM 12
typedef Link {
    byte n;
    byte op[ROOM];
    byte signals; /* number of signals */
    short ready;  /* bit i: op[i] is a signal that may arrive now */
};
Link link[N * N]; /* [from * N + to] */

#define TORN 16 /* added to an epoch in memory while a put may be writing it */

bool ordered;
bool inside[N]; /* in a stage */
#if SLOW
byte ended[N]; /* number of ended stages */
#define MAY_BEGIN (from != 0 || (ended[1] >= ended[0] && ended[N - 1] >= ended[0]))
#define END_STAGE inside[from] = false; ended[from]++; step++
#else
#define MAY_BEGIN true
#define END_STAGE inside[from] = false; step++
#endif

#define BEGIN_AT(memory, slot, read, before) \
    assert(read[to] >= before); /* the owner no longer reads this slot */ \
    assert(memory[slot] < TORN); /* and the network no longer writes it */ \
    memory[slot] = TORN + epoch
#define RAISE_AT(word, at) \
    assert(word[at] < epoch); /* signals never decrease */ \
    word[at] = epoch

#define DATA_FENCE IF(!MUTANT_NO_DATA_FENCE, issue(FENCE, 0))
#define OUTPUT_FENCE IF(!MUTANT_NO_OUTPUT_FENCE, issue(FENCE, 0))

/* quiet(): all operations of this rank have arrived; puts arrive with the signals after them.
 * Stores into y do not belong to the transport. */
#define QUIET_TO(p) (link[from * N + p].signals == 0)
#define QUIET (MUTANT_NO_QUIET -> true : OF_ALL(QUIET_TO))

/* Finds the signals that may arrive: all except those after a fence with an earlier signal. */
inline find_ready(c)
{
    i = 0;
    before = 0; /* signals before the last fence */
    since = 0;  /* signals after it */
    link[c].ready = 0;
    do
    :: i < link[c].n ->
        if
        :: KIND(link[c].op[i]) == FENCE ->
            before = before + since;
            since = 0
        :: IS_SIGNAL(KIND(link[c].op[i])) ->
            IF(before == 0, link[c].ready = link[c].ready | (1 << i));
            IF(!MUTANT_FENCE_PUTS_ONLY, since++)
        :: else
        fi;
        i++
    :: else -> break
    od;
    i = 0;
    before = 0;
    since = 0
}

inline drop(c, at)
{
    EACH(i, link[c].n - 1, IF(i >= at, link[c].op[i] = link[c].op[i + 1]));
    link[c].n--;
    link[c].op[link[c].n] = 0
}

/* Issues to all ranks, or to the receivers only. Operations to the own rank complete at once. */
#ifndef SKIPPED
#define SKIPPED(kind, epoch) false
#endif
inline issue(kind, epoch)
{
    to = 0;
    do
    :: to < N && SKIPPED(kind, epoch) -> to++
    :: to < N && !SKIPPED(kind, epoch) ->
        begin(kind, epoch);
        if
        :: to == from -> come(kind, epoch)
        :: to != from && kind == FENCE && link[from * N + to].n == 0
        :: else ->
            assert(link[from * N + to].n < ROOM);
            link[from * N + to].op[link[from * N + to].n] = OP(kind, epoch);
            link[from * N + to].n++;
            link[from * N + to].signals = link[from * N + to].signals + IS_SIGNAL(kind);
            find_ready(from * N + to)
        fi;
        to++
    :: else -> break
    od;
    to = 0
}

/* A put_signal consists of two operations on its link, payload first. */
#define IS_PAYLOAD(put, signal) \
    (MUTANT_COUNT_BEFORE_PAYLOAD -> false : \
     ((KIND(signal) == SIGNAL_COUNT && (put) == OP(PUT_COUNTS, EPOCH(signal))) || \
      (KIND(signal) == SIGNAL_DATA && (put) == OP(PUT_LAST_ROWS, EPOCH(signal))) || \
      (KIND(signal) == SIGNAL_OUTPUT && (put) == OP(PUT_LAST_OUTPUTS, EPOCH(signal)))))

/* The signal at op[at] arrives, together with the puts ordered before it. */
inline deliver(c, at)
{
    signal = link[c].op[at];
    last = at; /* earlier ops are ordered before the signal */
    do
    :: last > 0 && KIND(link[c].op[last]) != FENCE -> last--
    :: else -> break
    od;
    drop(c, at);
    j = at;
    do
    :: j > 0 ->
        j--;
        op = link[c].op[j];
        IF(IS_PUT(KIND(op)) && (j < last || IS_PAYLOAD(op, signal)),
            come(KIND(op), EPOCH(op));
            drop(c, j))
    :: else -> break
    od;
    come(KIND(signal), EPOCH(signal));
    link[c].signals--;
    do
    :: link[c].n > 0 && KIND(link[c].op[0]) == FENCE -> drop(c, 0)
    :: else -> break
    od;
    find_ready(c);
    signal = 0;
    last = 0;
    op = 0
}

#define DELIVER(at) \
    :: inside[from] && (link[from * N + to].ready & (1 << at)) != 0 -> \
        d_step { deliver(from * N + to, at) }

#define CARRIER \
proctype carrier(byte from; byte to) \
{ \
    byte i, j, before, since, signal, last, op; \
end: \
    do \
    DELIVER(0) DELIVER(1) DELIVER(2) DELIVER(3) DELIVER(4) DELIVER(5) \
    DELIVER(6) DELIVER(7) DELIVER(8) DELIVER(9) DELIVER(10) DELIVER(11) \
    od \
}
