/* The kernel of fused on GPUs: N ranks make E calls without a barrier. A kernel of a call has
 * warps that send and add up, and warps that multiply; the next kernel of a rank begins when both
 * have ended.
 *
 * The key idea: memory holds epoch numbers in place of data. A write takes two steps, with 0 in
 * between, so that a read beside a write is detected. A packet, which carries its epoch, is a
 * single write. Steps of one process that no other process can see are one step. In a call a rank has a row for each rank, including
 * itself, or none, as spin chooses.
 *
 * FEW 0: ranks exchange counts, in two sets. A row goes to a place that follows from the counts of
 * all ranks, and a counter of the receiver counts it; the receiver clears the counter before it
 * announces its counts. Rows, sums and flags of sums have one set.
 *
 * FEW 1: places are fixed, and choices replace counts. A row leaves before anything has arrived, so
 * rows have two sets. Flags of rows hold the epoch, and sums return as packets.
 *
 * ONCE: a row has a reference, a second row of the receiver that names the first. Warps of the tail
 * copy the row there. The rows are in different blocks, with a counter each.
 *
 * Parameters by -D: N, E, FEW, ONCE (with FEW 0), and at most one MUTANT_*. */

#include "common.pml"

#define AT(to, from) ((to) * N + (from))
#define SET(e) (MUTANT_ONE_SET -> 0 : (e) % 2)
#define IN_SET(to, from, set) (((to) * N + (from)) * 2 + (set))
#define PACKET(to, from, e) announced[IN_SET(to, from, SET(e))]
#define ROW(to, from, e) row[IN_SET(to, from, (FEW && !MUTANT_ONE_ROW_SET -> (e) % 2 : 0))]
#define HAS_ROW(e, to, from) (PACKET(to, from, e) == (e) * 2 + 1)
#if N == 2
#define FOR_RANKS(of) of(0) of(1)
#else
#define FOR_RANKS(of) of(0) of(1) of(2)
#endif

/* Written by peers. `announced`: packets, epoch * 2 + number of rows. */
byte announced[N * N * 2], row[N * N * 2], reference[N * N], sum[N * N];
byte row_flag[N * N], sum_flag[N * N];
byte arrived[N * 2]; /* counters of a block of rows, and of the block of references */

/* Memory of the own rank. */
byte prepared[N], multiplied[N]; /* calls that have reached this point */
byte expected[N], copied[N], copy[N * N];
bool has[N * N]; /* rows that a rank sends in this call */

inline clear_counters()
{
    arrived[r * 2] = 0;
    arrived[r * 2 + 1] = 0;
    copied[r] = 0
}

inline begin_call()
{
    atomic {
        EACH(p, N,
            if
            :: has[AT(p, r)] = true
            :: has[AT(p, r)] = false
            fi);
        IF(!MUTANT_CLEAR_LATE, clear_counters())
    }
}

/* Announces the rows of this rank to rank p. */
#define ANNOUNCE(p) PACKET(p, r, e) = e * 2 + has[AT(p, r)];

#define ANNOUNCED(s) \
    (MUTANT_ALL_BUT_ONE && s == N - 1 || PACKET(r, s, e) / 2 >= e - MUTANT_CALL_BEFORE)
#define THIS_CALL(s) assert(PACKET(r, s, e) / 2 == e);
#define EXPECT(s) expected[r] = expected[r] + HAS_ROW(e, r, s);

inline prepare()
{
    d_step {
        OF_ALL(ANNOUNCED) ->
        FOR_RANKS(THIS_CALL)
        expected[r] = 0;
        FOR_RANKS(EXPECT)
        IF(MUTANT_CLEAR_LATE, clear_counters());
        prepared[r] = e
    }
}

/* Counts the row at p in the counter of a block, or sets its flag. */
#define COUNT_ROW(p, block) \
    d_step { \
        IF(FEW, row_flag[AT(p, r)] = e); \
        IF(!FEW, arrived[(p) * 2 + block]++) \
    }
#define PUT_ROW(p) \
    IF(MUTANT_COUNT_FIRST, COUNT_ROW(p, 0)); \
    ROW(p, r, e) = 0; \
    ROW(p, r, e) = e; \
    IF(!MUTANT_COUNT_FIRST, COUNT_ROW(p, 0))
#define REFER(p) \
    reference[AT(p, r)] = 0; \
    reference[AT(p, r)] = e; \
    COUNT_ROW(p, 1)
/* Different warps send a row and its reference, in any order. */
#if ONCE
#define SEND_BOTH(p) \
    if \
    :: PUT_ROW(p); REFER(p) \
    :: REFER(p); PUT_ROW(p) \
    fi
#else
#define SEND_BOTH(p) PUT_ROW(p)
#endif
#define SEND_ROW(p) \
    if \
    :: has[AT(p, r)] -> SEND_BOTH(p) \
    :: else \
    fi;

#define SUM_CALL(s) (FEW -> sum[AT(r, s)] : sum_flag[AT(r, s)])
#define SUM_ARRIVED(s) \
    (!has[AT(s, r)] || MUTANT_NO_SUM_WAIT || SUM_CALL(s) >= e - MUTANT_SUM_OF_CALL_BEFORE)
#define READ_SUM(s) assert(!has[AT(s, r)] || sum[AT(r, s)] == e);

/* Layout, dispatch, and the sums of this rank's tokens. */
proctype sender(byte r)
{
    byte e = 0, p = 0;

    do
    :: e < E ->
        e++;
        begin_call();
        FOR_RANKS(ANNOUNCE)
#if FEW || MUTANT_ROWS_FIRST
        FOR_RANKS(SEND_ROW)
        prepare();
#else
        prepare();
        FOR_RANKS(SEND_ROW)
#endif
        d_step { OF_ALL(SUM_ARRIVED) -> FOR_RANKS(READ_SUM) };
        (MUTANT_KERNELS_OVERLAP || multiplied[r] == e)
    :: else -> break
    od
}

/* Two-stage dispatch: copies rows to their references. */
#define COPY(s) \
    if \
    :: HAS_ROW(e, r, s) -> \
        d_step { \
            assert(reference[AT(r, s)] == e); \
            assert(ROW(r, s, e) == e); \
            copy[AT(r, s)] = e; \
            copied[r]++ \
        } \
    :: else \
    fi;

proctype tail(byte r)
{
    byte e = 0;

    do
    :: e < E ->
        e++;
        prepared[r] == e;
        arrived[r * 2 + 1] >= expected[r];
        (MUTANT_COPY_EARLY || arrived[r * 2] >= expected[r]);
        FOR_RANKS(COPY)
        multiplied[r] == e
    :: else -> break
    od
}

#define FLAG_SET(s) \
    (!HAS_ROW(e, r, s) || row_flag[AT(r, s)] >= e - MUTANT_ROW_OF_CALL_BEFORE)
#define ROWS_ARRIVED \
    (MUTANT_NO_ROW_WAIT || \
     (FEW -> OF_ALL(FLAG_SET) : (ONCE -> copied[r] : arrived[r * 2]) >= expected[r]))
#define READ_ROW(s) \
    assert(!HAS_ROW(e, r, s) || ROW(r, s, e) == e && (!ONCE || copy[AT(r, s)] == e));
#define RETURN_SUM(s) \
    if \
    :: HAS_ROW(e, r, s) && FEW -> sum[AT(s, r)] = e \
    :: HAS_ROW(e, r, s) && !FEW -> \
        IF(MUTANT_FLAG_FIRST, sum_flag[AT(s, r)] = e); \
        sum[AT(s, r)] = 0; \
        sum[AT(s, r)] = e; \
        IF(!MUTANT_FLAG_FIRST, sum_flag[AT(s, r)] = e) \
    :: else \
    fi;

/* Tiles, and the sums of their outputs. */
proctype multiplier(byte r)
{
    byte e = 0;

    do
    :: e < E ->
        e++;
        prepared[r] >= e;
        ROWS_ARRIVED;
        FOR_RANKS(READ_ROW)
        FOR_RANKS(RETURN_SUM)
        multiplied[r] = e
    :: else -> break
    od
}

init {
    byte r = 0;

    atomic {
        do
        :: r < N ->
            run sender(r);
            run multiplier(r);
#if ONCE
            run tail(r);
#endif
            r++
        :: else -> break
        od
    }
}
