/* The kernels of ll_v1: N ranks make S calls with two positions per mode, without barrier and
 * quiet. Links are modelled as in ll_v2.pml. A block that carries the count of its call is a signal
 * with its own payload here: splits, rows, pushed expert outputs. These arrive on their own in any
 * order. Pulled expert outputs are puts completed by a fence and BEGUN: outputs of experts, and
 * starts.
 *
 * Not every rank has rows for every other: WANTS() selects the pairs, alternating by call.
 *
 * Parameters by -D: N, S, PULL, ORDER as in ll_v1.pml, BARE (1: no rank has rows: the words that
 * all ranks wait for must suffice to keep calls apart), and at most one MUTANT_*. */

#define SPLITS 10
#define ROWS 11
#define LINES 12 /* pushed expert outputs */
#define BEGUN 13
#define IS_PUT(kind) ((kind) == PUT_OUTPUTS)
#define IS_SIGNAL(kind) ((kind) >= SPLITS)

#include "links.pml"

byte act[S], epoch_of[S]; /* the order: kind of each step, and its dispatch */
byte set[S + 1], had[S + 1];
#define DISPATCH 1
#define COMBINE 2
#define AGAIN 3
#define DISCARD 4

#define POSITION(call) (MUTANT_ONE_POSITION -> 0 : ((call) % 2))
#define BEFORE(call) (MUTANT_ONE_POSITION -> ((call) - 1) : ((call) > 2 -> (call) - 2 : 0))

/* Value that s has stored at p in a call, as its count. */
#define SLOT(p, call, s) (((p) * 2 + POSITION(call)) * N + (s))
byte splits[2 * N * N], rows[2 * N * N], lines[2 * N * N], begun[2 * N * N];

#define Y_SLOT(p, epoch, s) (((p) * 2 + set[epoch]) * N + (s))
byte y[2 * N * N];

/* True if s has rows for p in dispatch m, and expert outputs in combine m. */
#if BARE
#define WANTS(s, p, m) false
#else
#define WANTS(s, p, m) (((s) + 2 * (p) + (m)) % 3 != 0)
#endif

/* The last calls whose data the owner has finished reading. */
byte rows_read[N], outputs_read[N], y_read[N];

/* The owner no longer reads this slot, and earlier stores have arrived. */
#define BEGIN_LINE(memory, read) \
    assert(read[to] >= BEFORE(epoch)); \
    assert(memory[SLOT(to, epoch, from)] <= BEFORE(epoch))
#define LINE_COMES(memory) \
    assert(memory[SLOT(to, epoch, from)] < epoch); \
    memory[SLOT(to, epoch, from)] = epoch

inline begin(kind, epoch)
{
    if
    :: kind == SPLITS -> BEGIN_LINE(splits, rows_read)
    :: kind == ROWS && WANTS(from, to, epoch) -> BEGIN_LINE(rows, rows_read)
    :: kind == LINES && WANTS(from, to, epoch) -> BEGIN_LINE(lines, outputs_read)
    :: kind == PUT_OUTPUTS ->
        assert(y_read[to] >= had[epoch]);
        y[Y_SLOT(to, epoch, from)] = TORN + epoch
    :: else
    fi
}

inline come(kind, epoch)
{
    if
    :: kind == SPLITS -> LINE_COMES(splits)
    :: kind == ROWS && WANTS(from, to, epoch) -> LINE_COMES(rows)
    :: kind == LINES && WANTS(from, to, epoch) -> LINE_COMES(lines)
    :: kind == BEGUN -> LINE_COMES(begun)
    /* The store of a discarded dispatch may still be in flight when the slot has newer contents. It
     * has no effect then: stores of one rank to one word keep their order. */
    :: kind == PUT_OUTPUTS && y[Y_SLOT(to, epoch, from)] == TORN + epoch ->
        y[Y_SLOT(to, epoch, from)] = epoch
    :: else
    fi
}

CARRIER

#define IS_AT(memory, s, call) (memory[SLOT(from, call, s)] >= call)
#define MAY_LACK(s, call) (!WANTS(s, from, call))
#define SPLIT_CAME(s, call) IS_AT(splits, s, call)
#define ROW_CAME(s, call) (MAY_LACK(s, call) || IS_AT(rows, s, call))
#define LINE_CAME(s, call) (MAY_LACK(s, call) || IS_AT(lines, s, call))
#define HAS_BEGUN(s, call) IS_AT(begun, s, call)
/* Only from senders with data for this rank. */
#define WANTED_SPLIT_CAME(s, call) (MAY_LACK(s, call) || SPLIT_CAME(s, call))
#define WANTED_HAS_BEGUN(s, call) (MAY_LACK(s, call) || HAS_BEGUN(s, call))

#define SPLITS_CAME(call) \
    (MUTANT_SPLITS_OF_SOME -> OF_ALL(WANTED_SPLIT_CAME, call) : \
     OF_ALL(SPLIT_CAME, call))
#define ROWS_CAME(call) (MUTANT_NO_ROW_WAIT -> true : OF_ALL(ROW_CAME, call))
#define ALL_BEGUN(call) \
    (MUTANT_NO_BEGUN_WAIT -> true : \
     (MUTANT_BEGUN_OF_SOME -> OF_ALL(WANTED_HAS_BEGUN, call) : \
     OF_ALL(HAS_BEGUN, call)))
#define LINES_CAME(call) (PULL || MUTANT_NO_LINE_WAIT -> true : OF_ALL(LINE_CAME, call))

#define READ_WANTED(memory, call) \
    EACH(i, N, assert(MAY_LACK(i, call) || memory[SLOT(from, call, i)] == call))

inline read_y(epoch)
{
    EACH(i, N, assert(y[Y_SLOT(from, epoch, i)] == epoch));
    y_read[from] = epoch
}

inline begin_combine(call)
{
    IF(!MUTANT_NO_FENCE, issue(FENCE, 0));
    issue(BEGUN, call);
    IF(!PULL && !BARE, issue(LINES, call))
}

proctype rank(byte from)
{
    byte step, opened, combined; /* number of calls per mode */
    byte to, i, before, since;

    ordered;
    do
    :: step < S && act[step] == DISPATCH ->
        d_step {
            opened++;
            issue(SPLITS, opened);
            IF(!BARE, issue(ROWS, opened));
            IF(MUTANT_STARTS_BEFORE_SPLITS, issue(PUT_OUTPUTS, opened))
        }
        d_step {
            SPLITS_CAME(opened) && ROWS_CAME(opened) ->
            READ_WANTED(rows, opened);
            rows_read[from] = opened;
            /* starts, and the outputs of experts */
            IF(PULL && !MUTANT_STARTS_BEFORE_SPLITS, issue(PUT_OUTPUTS, opened));
            step++
        }
    :: step < S && (act[step] == COMBINE || act[step] == AGAIN) ->
        d_step {
            combined++;
            begin_combine(combined)
        }
        d_step {
            ALL_BEGUN(combined) && LINES_CAME(combined) ->
            IF(PULL, read_y(epoch_of[step]));
            IF(!PULL, READ_WANTED(lines, combined));
            outputs_read[from] = combined;
            step++
        }
    :: step < S && act[step] == DISCARD ->
        step++
    :: step == S -> break
    od
}

/* Sets alternate; the next one must be free. */
#define NEXT_SET (opened % 2)
#define SET_IS_FREE (open == 0 || set[first] != NEXT_SET)
#define MAY_REPEAT (opened == first)
#define STORES_COME_BY_THEMSELVES
#include "ll_v1_calls.pml"

