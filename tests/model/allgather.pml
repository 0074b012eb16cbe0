/* The protocol of allgather: N ranks make E calls, with B buffer sets that calls use in turn and
 * no barrier. Calls are of one chunk: chunks share nothing but the set.
 *
 * Memory holds the number of the call in place of rows. A store, a load and a put are spans of
 * time: a place that is stored to is torn in between, and to read it then, or to write it while
 * its owner's consumer may read it, is an error. What is put lands at any time while its rank is
 * in a call (a transport may hold it back outside), rows first, then their signal; puts of two
 * calls are not ordered.
 *
 * Given by -D: N, E, B, PULL (1: peers load rows; 0: they are stored or put), FAR (0: all peers are
 * in reach; 1: none; 2: those of the same parity), INPLACE (1: rows are written to their place
 * before the call begins), SLOW (1: what rank 0 does between two calls takes until all others
 * have ended the first), and at most one MUTANT_*. */

#include "common.pml"

#if PULL || FAR == 0
#define IS_FAR(p, q) false
#elif FAR == 1
#define IS_FAR(p, q) true
#else
#define IS_FAR(p, q) ((p + q) % 2 == 1)
#endif

#define TORN 32
#define SET(e) ((e) % B)
#define PART(owner, e, source) out[((owner) * B + SET(e)) * N + (source)]
#define WORD(owner, source) word[(owner) * N + (source)]
/* A put: 0, or its call, and whether its rows have landed. Two of a pair may be on the way. */
#define PUT(p, q, e) put[((p) * N + (q)) * 2 + (e) % 2]
#define LANDED 16

byte out[N * B * N], word[N * N], put[N * N * 2];
byte begun[N], ended[N]; /* calls */
byte loads[N * B];       /* peers that load from a rank's own part */
bool inside[N];

#define CAME(p, q, e) \
    (MUTANT_EQ -> (WORD(p, q) == e) : \
     (MUTANT_CALL_BEFORE -> (WORD(p, q) + 1 >= e) : \
     (MUTANT_ALL_BUT_ONE -> (q == 0 || WORD(p, q) >= e) : \
     (WORD(p, q) >= e))))

/* The output of call e - B was valid until the owner began e - 1, for B = 2. */
#define MAY_WRITE(owner, e) ((e) <= B || begun[owner] > (e) - B)

#define RAISE(p, q, e) \
    assert(WORD(q, p) < (e)); /* words only count up */ \
    WORD(q, p) = e

/* What rank p has put for q in odd, or even, calls lands. */
#define LAND(q, odd) \
    :: atomic { \
        inside[p] && PUT(p, q, odd) != 0 -> \
        e = PUT(p, q, odd) % LANDED; \
        if \
        :: PUT(p, q, odd) < LANDED -> \
            assert(PART(p, e, p) == e); /* its source has stayed as it was */ \
            PART(q, e, p) = e; \
            PUT(p, q, odd) = LANDED + e \
        :: else -> \
            RAISE(p, q, e); \
            PUT(p, q, odd) = 0 \
        fi; \
        e = 0 \
    }

proctype Network(byte p)
{
    byte e;
end:
    do
    LAND(0, 0)
    LAND(0, 1)
    LAND(1, 0)
    LAND(1, 1)
#if N == 3
    LAND(2, 0)
    LAND(2, 1)
#endif
    od
}

/* Own rows to their place. Nobody may still load or put from there. */
inline write_own()
{
    assert(loads[p * B + SET(e)] == 0);
    PART(p, e, p) = e
}

inline send_to(q)
{
    if
    :: q == p || PULL
    :: else ->
        assert(MAY_WRITE(q, e));      /* its consumer is done with what stands there */
        assert(PART(q, e, p) < TORN); /* and so is the network */
        PART(q, e, p) = TORN + e
    fi
}

inline signal_to(q)
{
    if
    :: q == p
    :: q != p && !IS_FAR(p, q) -> RAISE(p, q, e)
    :: else ->
        assert(PUT(p, q, e) == 0);
        PUT(p, q, e) = e
    fi
}

inline stored_at(q)
{
    if
    :: q == p || PULL || IS_FAR(p, q)
    :: else -> PART(q, e, p) = e
    fi
}

inline receive_from(q)
{
    if
    :: q == p
    :: else ->
        (MUTANT_NO_WAIT || CAME(p, q, e));
#if PULL
        atomic {
            assert(PART(q, e, q) == e);
            loads[q * B + SET(e)]++;
            PART(p, e, q) = TORN + e
        }
        atomic {
            assert(PART(q, e, q) == e);
            loads[q * B + SET(e)]--;
            PART(p, e, q) = e
        }
#endif
    fi
}

/* A consumer reads all of the output. */
inline consume()
{
    EACH(i, N, assert(PART(p, e, i) == e))
}

#if N == 2
#define ALL_ENDED(e) (ended[1] >= e)
#define QUIET(p) (ON_WAY(p, 0) == 0 && ON_WAY(p, 1) == 0)
#else
#define ALL_ENDED(e) (ended[1] >= e && ended[2] >= e)
#define QUIET(p) (ON_WAY(p, 0) == 0 && ON_WAY(p, 1) == 0 && ON_WAY(p, 2) == 0)
#endif
#define ON_WAY(p, q) (PUT(p, q, 0) + PUT(p, q, 1))

proctype Rank(byte p)
{
    byte e, i;

    e = 1;
    do
    :: e <= E ->
#if INPLACE
        atomic { write_own() }
#endif
        atomic {
            if
            :: e > 1 -> e--; consume(); e++ /* up to here the output before is valid */
            :: else
            fi;
            begun[p] = e;
            inside[p] = true
        }
#if !INPLACE
        atomic { write_own() }
#endif
#if MUTANT_SIGNAL_FIRST
        EACH(i, N, atomic { signal_to(i) });
        atomic { EACH(i, N, send_to(i)) };
        atomic { EACH(i, N, stored_at(i)) };
#else
        atomic { EACH(i, N, send_to(i)) };
        atomic { EACH(i, N, stored_at(i)) };
        EACH(i, N, atomic { signal_to(i) });
#endif
        EACH(i, N, receive_from(i));
        (MUTANT_NO_QUIET || QUIET(p));
        atomic {
            consume();
            ended[p] = e;
            inside[p] = false
        }
#if SLOW
        IF(p == 0, ALL_ENDED(e));
#endif
        e++
    :: else -> break
    od
}

init {
    byte n;

    atomic {
        EACH(n, N,
            run Rank(n);
            run Network(n))
    }
}
