/* The protocol of ll_v2: N ranks exchange counts, rows and answers for E epochs with B buffer
 * sets and no barrier.
 *
 * The idea needed to read it: memory holds epoch numbers in place of data, and a put is a span
 * of time. It may write from the moment when it is issued, and is known to be in place only
 * when a signal has come that transport.h orders after it. In between its slot is torn: to read
 * it, to put into it again, or to change what the put reads from, is an error. So each put is
 * checked against arriving as early and as late as the contract allows, which is more than
 * interleaving alone would show, and stands for late stores of a weak memory as well as for
 * networks that reorder. Signals wait on links between ranks and come in any order that is
 * allowed: a put_signal's after its own payload, any after what was issued before a fence.
 *
 * A rank issues to all peers in one step and reads from all sources in one step. Nothing is
 * lost by that: signals stay on their links, and a rank before its next step, as long as they
 * like.
 *
 * Given by -D: N, E, B (buffer sets), PULL (1: peers load answers from y; 0: they are put into
 * the source's `answers`), ORDER (below), and at most one MUTANT_*. */

#ifndef N
#define N 2
#endif
#ifndef E
#define E 4
#endif
#ifndef B
#define B 2
#endif
#ifndef PULL
#define PULL 1
#endif

/* Which dispatch (D) and combine (C) come when; the same on every rank.
 *   0  D1 C1 D2 C2 ...
 *   1  D1 D2 C1 D3 C2 ... C(E-1) CE
 *   2  every order with at most two dispatches open; spin chooses */
#ifndef ORDER
#define ORDER 2
#endif

#define PUT_COUNTS 1
#define PUT_ROWS 2
#define PUT_ANSWERS 3
#define SIGNAL_COUNT 4
#define SIGNAL_DATA 5
#define SIGNAL_ANSWER 6
#define FENCE 7
#define IS_PUT(kind) ((kind) <= PUT_ANSWERS)
#define IS_SIGNAL(kind) ((kind) >= SIGNAL_COUNT && (kind) <= SIGNAL_ANSWER)

#define OP(kind, epoch) ((kind) * 16 + (epoch))
#define KIND(op) ((op) / 16)
#define EPOCH(op) ((op) % 16)

/* What is issued from one rank to another and has not come: put, fence, signal, in order. */
#define ROOM 12
typedef Link {
    byte n;
    byte op[ROOM];
    short ready; /* bit i: op[i] is a signal that may come now */
};
Link link[N * N]; /* [from * N + to] */

/* Signals: the word of source s at rank p is [p * N + s]. */
byte count_at[N * N], data_at[N * N], answer_at[N * N];

/* Memory, as epochs; TORN is added while a put may be writing. */
#define TORN 16
#define SLOT(p, e, s) (((p) * B + set[e]) * N + (s))
byte counts[N * B * N], recv[N * B * N], answers[N * B * N];

/* The last epoch that their owner has read for the last time. */
byte counts_read[N], recv_read[N], answers_read[N];

bool dispatch_next[2 * E]; /* the order: step i is a dispatch, or else a combine */
byte set[E + 1];           /* of each epoch: the first that no open dispatch has */
byte had[E + 1];           /* the epoch that had its set before; 0: none */
bool ordered;

#define BEGIN(memory, read) \
    assert(read[to] >= had[epoch]); /* the owner is done with what stands there */ \
    assert(memory[SLOT(to, epoch, from)] < TORN); /* and so is the network */ \
    memory[SLOT(to, epoch, from)] = TORN + epoch

#define RAISE(word) \
    assert(word[to * N + from] < epoch); /* signals never go back */ \
    word[to * N + from] = epoch

inline begin(kind, epoch)
{
    if
    :: kind == PUT_COUNTS -> BEGIN(counts, counts_read)
    :: kind == PUT_ROWS -> BEGIN(recv, recv_read)
    :: kind == PUT_ANSWERS -> BEGIN(answers, answers_read)
    :: else
    fi
}

inline come(kind, epoch)
{
    if
    :: kind == PUT_COUNTS -> counts[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_ROWS -> recv[SLOT(to, epoch, from)] = epoch
    :: kind == PUT_ANSWERS -> answers[SLOT(to, epoch, from)] = epoch
    :: kind == SIGNAL_COUNT -> RAISE(count_at)
    :: kind == SIGNAL_DATA -> RAISE(data_at)
    :: kind == SIGNAL_ANSWER -> RAISE(answer_at)
    :: else
    fi
}

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

/* Issues to all. What a rank sends itself is in place at once. */
inline issue(kind, epoch)
{
    to = 0;
    do
    :: to < N ->
        begin(kind, epoch);
        if
        :: to == from -> come(kind, epoch)
        :: to != from && kind == FENCE && link[from * N + to].n == 0
        :: else ->
            assert(link[from * N + to].n < ROOM);
            link[from * N + to].op[link[from * N + to].n] = OP(kind, epoch);
            link[from * N + to].n++;
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
    (KIND(signal) == SIGNAL_COUNT && (put) == OP(PUT_COUNTS, EPOCH(signal)))
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
    :: (link[from * N + to].ready & (1 << at)) != 0 -> \
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

/* Every word of this rank has come to `epoch`; that of rank `but` is not looked at. */
#define CAME_OF(word, s, cmp, epoch, but) (s == but || word[from * N + s] cmp epoch)
#if N == 2
#define CAME(word, cmp, epoch, but) \
    (CAME_OF(word, 0, cmp, epoch, but) && CAME_OF(word, 1, cmp, epoch, but))
#else
#define CAME(word, cmp, epoch, but) \
    (CAME_OF(word, 0, cmp, epoch, but) && CAME_OF(word, 1, cmp, epoch, but) && \
     CAME_OF(word, 2, cmp, epoch, but))
#endif
#define NOBODY N

#if defined(MUTANT_COUNT_EQ)
#define COUNTS_CAME(epoch) CAME(count_at, ==, epoch, NOBODY)
#elif defined(MUTANT_NO_COUNT_WAIT)
#define COUNTS_CAME(epoch) true
#elif defined(MUTANT_COUNT_OF_ALL_BUT_ONE)
#define COUNTS_CAME(epoch) CAME(count_at, >=, epoch, 0)
#else
#define COUNTS_CAME(epoch) CAME(count_at, >=, epoch, NOBODY)
#endif

#if defined(MUTANT_DATA_EQ)
#define DATA_CAME(epoch) CAME(data_at, ==, epoch, NOBODY)
#elif defined(MUTANT_DATA_OF_ALL_BUT_ONE)
#define DATA_CAME(epoch) CAME(data_at, >=, epoch, 0)
#elif defined(MUTANT_DATA_OF_LAST_EPOCH)
#define DATA_CAME(epoch) CAME(data_at, >=, epoch - 1, NOBODY)
#else
#define DATA_CAME(epoch) CAME(data_at, >=, epoch, NOBODY)
#endif

#if defined(MUTANT_ANSWER_EQ)
#define ANSWERS_CAME(epoch) CAME(answer_at, ==, epoch, NOBODY)
#elif defined(MUTANT_ANSWER_OF_ALL_BUT_ONE)
#define ANSWERS_CAME(epoch) CAME(answer_at, >=, epoch, 0)
#else
#define ANSWERS_CAME(epoch) CAME(answer_at, >=, epoch, NOBODY)
#endif

/* Every source's slot at this rank is in place and of `epoch`. */
#define READ_ALL(memory, epoch) \
    i = 0; \
    do \
    :: i < N -> \
        assert(memory[SLOT(from, epoch, i)] == epoch); \
        i++ \
    :: else -> break \
    od; \
    i = 0

/* What this rank put from its buffers of `epoch` before has come: they may be written. */
#define SOURCE_FREE(memory, epoch) \
    i = 0; \
    do \
    :: i < N -> \
        assert(memory[SLOT(i, epoch, from)] < TORN); \
        i++ \
    :: else -> break \
    od; \
    i = 0

#ifdef MUTANT_NO_DATA_FENCE
#define DATA_FENCE
#else
#define DATA_FENCE issue(FENCE, 0);
#endif
#ifdef MUTANT_NO_ANSWER_FENCE
#define ANSWER_FENCE
#else
#define ANSWER_FENCE issue(FENCE, 0);
#endif

inline send_counts(epoch)
{
    SOURCE_FREE(counts, epoch);
    issue(PUT_COUNTS, epoch);
    issue(SIGNAL_COUNT, epoch)
}

inline send_rows(epoch)
{
    SOURCE_FREE(recv, epoch);
#ifdef MUTANT_DATA_BEFORE_ROWS
    issue(FENCE, 0);
    issue(SIGNAL_DATA, epoch);
    issue(PUT_ROWS, epoch)
#else
    issue(PUT_ROWS, epoch);
    DATA_FENCE
    issue(SIGNAL_DATA, epoch)
#endif
}

/* Experts store into y. Where peers load from y these stores are what they wait for, and they
 * become visible to each on their own: puts into what each sees. What ll_v2 keeps apart has the
 * same owners at the same times: rows that cross once and arrive apart are `recv` here; answers
 * that are added up or quantised before they leave are y, stored later, at the start of the
 * combine, which asks for less. */
inline store_y(epoch)
{
    SOURCE_FREE(answers, epoch);
#if PULL
    issue(PUT_ANSWERS, epoch);
#endif
}

inline send_answers(epoch)
{
#if !PULL
    issue(PUT_ANSWERS, epoch);
#endif
    ANSWER_FENCE
    issue(SIGNAL_ANSWER, epoch)
}

proctype rank(byte from)
{
    byte step, opened, closed; /* epochs: dispatched, combined */
    byte to, i, before, since;

    ordered;
    do
    :: step < 2 * E && dispatch_next[step] ->
        d_step {
            opened++;
#ifdef MUTANT_Y_BEFORE_COUNTS
            store_y(opened);
#endif
            send_counts(opened);
#ifdef MUTANT_ROWS_BEFORE_COUNTS
            send_rows(opened)
#endif
        }
        d_step {
            COUNTS_CAME(opened) ->
            READ_ALL(counts, opened); /* the copy from which places are computed */
            counts_read[from] = opened;
#ifndef MUTANT_ROWS_BEFORE_COUNTS
            send_rows(opened);
#endif
#ifdef MUTANT_EXPERTS_BEFORE_DATA
            READ_ALL(recv, opened);
#endif
        }
        d_step {
            DATA_CAME(opened) ->
            READ_ALL(recv, opened); /* experts */
#ifndef MUTANT_Y_BEFORE_COUNTS
            store_y(opened);
#endif
            step++
        }
    :: step < 2 * E && !dispatch_next[step] ->
        d_step {
            closed++;
            send_answers(closed)
        }
        d_step {
            ANSWERS_CAME(closed) ->
            READ_ALL(answers, closed);
            answers_read[from] = closed;
            READ_ALL(recv, closed); /* views are good until now */
            recv_read[from] = closed;
            step++
        }
    :: step == 2 * E -> break
    od
}

init
{
    byte a, b, open, opened;
    bool taken[2];
    byte last[2]; /* epoch of each set */

    atomic {
        do
        :: a < 2 * E && opened < E && open <= (ORDER != 0) ->
            dispatch_next[a] = true;
            opened++;
            open++;
#ifndef MUTANT_ONE_SET
            b = (taken[0] -> 1 : 0);
            assert(b < B);
#endif
            set[opened] = b;
            taken[b] = true;
            had[opened] = last[b];
            last[b] = opened;
            b = 0;
            a++
        :: a < 2 * E && open > 0 && (ORDER != 1 || open == 2 || opened == E) ->
            open--;
            taken[set[opened - open]] = false; /* combines come in the order of dispatches */
            a++
        :: a == 2 * E -> break
        od;
        a = 0;
        do
        :: a < N ->
            b = 0;
            do
            :: b < N ->
                if
                :: a != b -> run carrier(a, b)
                :: else
                fi;
                b++
            :: else -> break
            od;
            run rank(a);
            a++
        :: else -> break
        od;
        a = 0;
        b = 0;
        open = 0;
        opened = 0;
        taken[0] = false;
        taken[1] = false;
        last[0] = 0;
        last[1] = 0;
        ordered = true
    }
}
