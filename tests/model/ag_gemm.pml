/* The ready words of ag_gemm_2d on hosts, and of allgather: N ranks, P of them on each node (maybe
 * fewer on the last), make E calls with B buffer sets and no barrier. The rows of a rank form C
 * chunks. Chunk x of source s reaches each rank from one other rank, its sender: s itself, or, with
 * TWO and from another node, the rank of the receiver's node with the same local index as s.
 * Senders store to ranks of their node, or, with PULL, these load; to other nodes, and with FAR
 * within nodes as well, rows and scales are put.
 *
 * Memory holds the number of the call in place of rows. A store, a load and a tile are spans of
 * time: two reads, and TORN during a store, so that a read beside a write is detected. A put
 * arrives at any time while its rank is in a call (a transport may delay it outside): first the
 * scales, which a fence keeps ahead of rows, then the rows, then their word. A word without rows
 * arrives at once, since its reader may read it late. The chunks of a rank are placed one at a
 * time, as its workers may do; one worker forwards placed chunks, and one tile reads the rows of
 * all ranks.
 *
 * In allgather (GATHER) the set is the output: puts go directly to it from the own part of the
 * sender's output, where own rows are before the call begins; tiles read it until the next call
 * begins.
 *
 * Parameters by -D: N, P, E, B, C, TWO, PULL, FAR, SCALES (0: rows have no scales), ROWS (a bit for
 * each rank with rows), GATHER, SLOW (1: the work of rank 0 between two calls takes until all
 * others have ended the first), and at most one MUTANT_*. */

#include "common.pml"

#define K (N * C) /* chunks of all ranks */
#define SOURCE(x) ((x) / C)
#define HAS_ROWS(x) ((ROWS >> SOURCE(x)) % 2 == 1)
#define NODE(r) ((r) / P)
#define PLACE(r) ((r) % P)
#define FROM(s, to) \
    (TWO && NODE(s) != NODE(to) && PLACE(s) != PLACE(to) -> NODE(to) * P + PLACE(s) : s)
#define SENDS(from, to, x) (from != to && FROM(SOURCE(x), to) == from)
#define IN_REACH(p, q) (NODE(p) == NODE(q) && !FAR)
#define SIGNALS(from, to, x) (SENDS(from, to, x) && IN_REACH(from, to))
#define PUTS(from, to, x) (SENDS(from, to, x) && !IN_REACH(from, to))
#define OWN(p, x) (SOURCE(x) == p)
#define IS_PLACED(p, x) (GATHER && OWN(p, x)) /* in place before the call */
#define ARRIVES_BY_PUT(p, x) (!GATHER && !OWN(p, x) && !IN_REACH(FROM(SOURCE(x), p), p))
#define ARRIVES_BY_STORES(p, x) (!OWN(p, x) && !PULL && !ARRIVES_BY_PUT(p, x))

#define TORN 32
#define AT(owner, e, x) (((owner) * B + (e) % B) * K + (x))
#define WORD(owner, x) word[(owner) * K + (x)]
#define STATE(x) state[p * K + (x)]
#define PUT(p, q, x) (((p) * N + (q)) * K + (x))

#define AWAITED 0
#define TAKEN 1
#define PLACED 2
#define DONE 3

byte panel[N * B * K]; /* values that tiles read */
#if GATHER
#define raw panel
#define A(p, e, x) panel[AT(p, e, x)]
#else
byte raw[N * B * K]; /* destination of puts */
#define A(p, e, x) a[p]
#endif
byte raw_scales[N * B * K];
byte a[N]; /* own rows of a rank, the source of its puts */
byte word[N * K], state[N * K];
byte rows_put[N * N * K], scales_put[N * N * K]; /* call number of each put in flight */
byte on_way[N];          /* number of puts in flight */
byte placed[N], done[N]; /* chunks */
byte ended[N]; /* calls */
bool inside[N];

#define SEEN(x) \
    (MUTANT_EQ -> (WORD(p, x) == e) : \
     (MUTANT_CALL_BEFORE -> (WORD(p, x) + 1 >= e) : \
     (MUTANT_ROWS_ALONE -> (WORD(p, x) >= e || !HAS_ROWS(x)) : \
     (MUTANT_PASS_WITHOUT_WAIT -> (WORD(p, x) >= e || ARRIVES_BY_PUT(p, x)) : \
     (MUTANT_LOAD_WITHOUT_WAIT -> (WORD(p, x) >= e || PULL) : \
     (WORD(p, x) >= e))))))

#define TILE_HAS_ITS_ROWS \
    (MUTANT_LAST_ALONE -> (STATE(K - 1) >= PLACED) : \
     (MUTANT_FIRST_ALONE -> (STATE(0) >= PLACED) : \
     (placed[p] == K)))

#define BEFORE_ROWS(put) (MUTANT_NO_FENCE -> true : (scales_put[put] == 0))

inline raise(q, x)
{
    assert(WORD(q, x) < e); /* words only increase */
    WORD(q, x) = e
}

/* A put of chunk x from rank p to rank q arrives. */
proctype Network(byte p; byte q; byte x)
{
    byte e;
end:
    do
    :: atomic {
        inside[p] && scales_put[PUT(p, q, x)] != 0 ->
        e = scales_put[PUT(p, q, x)];
        raw_scales[AT(q, e, x)] = e;
        scales_put[PUT(p, q, x)] = 0;
        on_way[p]--;
        e = 0
    }
    :: atomic {
        inside[p] && rows_put[PUT(p, q, x)] != 0 && BEFORE_ROWS(PUT(p, q, x)) ->
        e = rows_put[PUT(p, q, x)];
        /* The source of the put is unchanged. */
        assert((OWN(p, x) -> A(p, e, x) : raw[AT(p, e, x)]) == e);
        raw[AT(q, e, x)] = e;
        raise(q, x);
        rows_put[PUT(p, q, x)] = 0;
        on_way[p]--;
        e = 0
    }
    od
}

#define HAS_ENDED(q) (ended[q] >= e)

#define EACH_RANK(...) EACH(q, N, __VA_ARGS__)

inline put_to(x, q)
{
    if
    :: PUTS(p, q, x) && HAS_ROWS(x) ->
        assert(rows_put[PUT(p, q, x)] == 0); /* words of two calls would have no order */
        rows_put[PUT(p, q, x)] = e;
        scales_put[PUT(p, q, x)] = e * SCALES;
        on_way[p] = on_way[p] + 1 + SCALES;
        IF(MUTANT_PUT_EARLY, raise(q, x))
    :: PUTS(p, q, x) && !HAS_ROWS(x) -> raise(q, x)
    :: else
    fi
}

inline store_to(x, q, value)
{
    IF((q == p && !IS_PLACED(p, x)) || (SIGNALS(p, q, x) && !PULL), panel[AT(q, e, x)] = value)
}

inline signal_to(x, q)
{
    IF(SIGNALS(p, q, x), raise(q, x))
}

/* Checks the source of the rows of a chunk. */
inline look(x)
{
    if
    :: OWN(p, x) -> assert(A(p, e, x) == e)
    :: ARRIVES_BY_PUT(p, x) ->
        assert(raw[AT(p, e, x)] == e);
        assert(!SCALES || raw_scales[AT(p, e, x)] == e)
    :: else -> assert(panel[AT(FROM(SOURCE(x), p), e, x)] == e)
    fi
}

inline pass_on(x)
{
    IF(!MUTANT_PASS_EARLY, EACH_RANK(signal_to(x, q)));
    STATE(x) = DONE;
    done[p]++
}

inline end_placing(x)
{
    look(x);
    EACH_RANK(store_to(x, q, e));
    STATE(x) = PLACED;
    placed[p]++
}

inline begin_placing(x)
{
    if
    :: !OWN(p, x) -> EACH_RANK(put_to(x, q)) /* own rows are put when the call begins */
    :: else
    fi;
    IF(MUTANT_PASS_EARLY, EACH_RANK(signal_to(x, q)));
    if
    :: HAS_ROWS(x) && !ARRIVES_BY_STORES(p, x) ->
        look(x);
        if
        :: OWN(p, x) && P == 1 -> /* only this rank reads it, and not before end_placing() */
            end_placing(x)
        :: else ->
            EACH_RANK(store_to(x, q, TORN + e));
            STATE(x) = TAKEN
        fi
    :: else ->
        placed[p]++;
        pass_on(x)
    fi
}

#define CHUNK(x) \
    :: atomic { STATE(x) == AWAITED && (OWN(p, x) || SEEN(x)) -> begin_placing(x) } \
    :: atomic { STATE(x) == TAKEN -> end_placing(x) } \
    :: atomic { STATE(x) == PLACED -> pass_on(x) }

inline read_rows()
{
    EACH(x, K, assert(!HAS_ROWS(x) || panel[AT(p, e, x)] == e))
}

inline begin_call()
{
    IF(GATHER && e > 1, e--; read_rows(); e++);
    a[p] = e;
    EACH(x, K,
        STATE(x) = AWAITED;
        IF(OWN(p, x), EACH_RANK(put_to(x, q))));
    placed[p] = 0;
    done[p] = 0;
    tile = 0;
    inside[p] = true
}

proctype Rank(byte p)
{
    byte e, q, x, tile;

    do
    :: e < E ->
        atomic {
            e++;
#if GATHER
            EACH(x, K, IF(IS_PLACED(p, x), A(p, e, x) = e))
        };
        atomic {
#endif
            begin_call()
        };
        do
        CHUNK(0)
        CHUNK(1)
#if N * C > 2
        CHUNK(2)
#endif
#if N * C > 3
        CHUNK(3)
#endif
        :: atomic { tile == 0 && TILE_HAS_ITS_ROWS -> read_rows(); tile = 1 }
        :: atomic { tile == 1 -> read_rows(); tile = 2 }
        :: atomic { tile == 2 && done[p] == K -> break }
        od;
        (MUTANT_NO_QUIET || on_way[p] == 0);
        atomic {
            inside[p] = (MUTANT_NO_QUIET && !GATHER && e == E);
            ended[p] = e * SLOW
        };
        IF(SLOW && p == 0, OF_ALL(HAS_ENDED))
    :: else -> break
    od
}

init {
    byte p, q, x;

    atomic {
        do
        :: p < N ->
            run Rank(p);
            EACH(q, N, EACH(x, K, IF(PUTS(p, q, x) && HAS_ROWS(x), run Network(p, q, x))));
            p++
        :: else -> break
        od
    }
}
