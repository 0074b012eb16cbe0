/* The links between ranks, for ll_v2.pml: what is issued on them, and how it comes. */

/* Finds the signals that may come: all but those behind a fence that a signal is before. */
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
            if
            :: before == 0 -> link[c].ready = link[c].ready | (1 << i)
            :: else
            fi;
#ifndef MUTANT_FENCE_PUTS_ONLY
            since++
#endif
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
    i = at;
    do
    :: i + 1 < link[c].n ->
        link[c].op[i] = link[c].op[i + 1];
        i++
    :: else -> break
    od;
    link[c].n--;
    link[c].op[link[c].n] = 0;
    i = 0
}

/* Issues to all, or to those that it is for. What a rank sends itself is in place at once. */
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

/* A put_signal stands on its link as two operations, payload first. */
#ifdef MUTANT_COUNT_BEFORE_PAYLOAD
#define IS_PAYLOAD(put, signal) false
#else
#define IS_PAYLOAD(put, signal) \
    ((KIND(signal) == SIGNAL_COUNT && (put) == OP(PUT_COUNTS, EPOCH(signal))) || \
     (KIND(signal) == SIGNAL_DATA && (put) == OP(PUT_LAST_ROWS, EPOCH(signal))) || \
     (KIND(signal) == SIGNAL_OUTPUT && (put) == OP(PUT_LAST_OUTPUTS, EPOCH(signal))))
#endif

/* The signal at op[at] comes, and with it the puts that it is ordered after. */
inline deliver(c, at)
{
    signal = link[c].op[at];
    last = at; /* ops before here are ordered before the signal */
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
        if
        :: IS_PUT(KIND(op)) && (j < last || IS_PAYLOAD(op, signal)) ->
            come(KIND(op), EPOCH(op));
            drop(c, j)
        :: else
        fi
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

proctype carrier(byte from; byte to)
{
    byte i, j, before, since, signal, last, op;

end:
    do
    DELIVER(0)
    DELIVER(1)
    DELIVER(2)
    DELIVER(3)
    DELIVER(4)
    DELIVER(5)
    DELIVER(6)
    DELIVER(7)
    DELIVER(8)
    DELIVER(9)
    DELIVER(10)
    DELIVER(11)
    od
}
