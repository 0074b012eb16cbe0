/* Puts with signals between nodes: the ring that kernels write (epa2a/ring.h), and the proxies of
 * two ranks with their copy lanes (plugins/transport/nvlink/messages.c).
 *
 * W writers run on rank 0. Each call puts to two cells at rank 1, the second put with a signal; the
 * cells of a writer are reused two calls later. The puts of the first writers are inline, the puts
 * of the others are copied from cells on rank 0. The reader of a writer waits for its signal with
 * >= and must find both cells of that call. Staging belongs to rank 1 and both proxies access it:
 * the network carries only signals. The proxy of rank 1 acknowledges a message at any later time,
 * by a signal or with a message of its own: for rank 0 these are equivalent. */

#include "common.pml"

#define SLOTS 2   /* slots of the ring */
#define STAGES 2  /* messages in flight */
#define RECORDS 2 /* records of a message */
#define LANE 9    /* operations of a lane */

typedef descriptor { byte turn, writer, call, half, payload };
typedef record { byte writer, call, half, data };
typedef message { byte n; record r[RECORDS] };
typedef pair { byte half[2] };
typedef cells { pair at[2] };

descriptor ring[SLOTS];
byte ticket, taken;
message stage[STAGES];
cells src[W], dst[W];
byte signal[W], seen[W];
byte arrived[STAGES], done[STAGES];

/* Lane OUT: copies to staging, with increasing numbers; lane IN: copies from staging, signals. */
typedef operation { byte kind, turn, stage, number, writer, call, half };
#define COPY 1
#define SET 2
typedef operations { byte n; operation op[LANE] };
operations lane[2];
#define OUT 0
#define IN 1
byte out_queued, out_done;  /* counts over all operations */
byte in_queued, in_done;

byte begun, closed, sent, acked; /* counts of rank 0's proxy */
byte copied[STAGES];
byte landed, acknowledged; /* counts of rank 1's proxy */
byte landed_at[STAGES];

inline write_turn() { ring[t % SLOTS].turn = t + 1 }

inline ask(h)
{
    d_step { t = ticket; ticket++ };
    (MUTANT_NO_ROOM || t - taken < SLOTS);
#if MUTANT_TURN_FIRST
    write_turn();
#endif
    d_step {
        ring[t % SLOTS].writer = w;
        ring[t % SLOTS].call = call;
        ring[t % SLOTS].half = h
    };
    ring[t % SLOTS].payload = call;
#if !MUTANT_TURN_FIRST
    write_turn();
#endif
    t = 0
}

proctype kernel_puts(byte w)
{
    byte call = 1, t;

    do
    :: call <= E ->
        seen[w] + 2 >= call; /* its cells of two calls ago have been read */
        d_step { src[w].at[call % 2].half[0] = call; src[w].at[call % 2].half[1] = call };
        ask(0);
        ask(1);
        call++
    :: else -> break
    od
}

proctype kernel_waits(byte w)
{
    byte call = 1;

    do
    :: call <= E ->
        signal[w] >= call;
        assert(dst[w].at[call % 2].half[0] == call);
        assert(dst[w].at[call % 2].half[1] == call);
        seen[w] = call;
        call++
    :: else -> break
    od
}

#define HELD(l, at) lane[l].op[at]
#define OPERATION(l, at, k, t, s, i, w, c, h) \
    HELD(l, at).kind = k; HELD(l, at).turn = t; HELD(l, at).stage = s; HELD(l, at).number = i; \
    HELD(l, at).writer = w; HELD(l, at).call = c; HELD(l, at).half = h

/* Removes held operation `at`. */
inline drop(l)
{
    do
    :: at + 1 < lane[l].n ->
        OPERATION(l, at, HELD(l, at + 1).kind, HELD(l, at + 1).turn, HELD(l, at + 1).stage,
                  HELD(l, at + 1).number, HELD(l, at + 1).writer, HELD(l, at + 1).call,
                  HELD(l, at + 1).half);
        at++
    :: else -> break
    od;
    lane[l].n--;
    at = lane[l].n;
    OPERATION(l, at, 0, 0, 0, 0, 0, 0, 0);
    at = 0
}

#define FROM ring[taken % SLOTS]
#define OPEN stage[begun % STAGES]

/* The descriptor of the slot becomes a record of the open message. */
inline add_record()
{
    OPEN.r[OPEN.n].writer = FROM.writer;
    OPEN.r[OPEN.n].call = FROM.call;
    OPEN.r[OPEN.n].half = FROM.half;
    IF(FROM.writer >= INLINES,
        OPERATION(OUT, lane[OUT].n, COPY, 0, begun % STAGES, OPEN.n, FROM.writer, FROM.call,
                  FROM.half);
        lane[OUT].n++;
        out_queued++;
        copied[begun % STAGES] = out_queued)
}

#define OUT_IS_DONE (MUTANT_NO_MARK_OUT -> true : out_done >= copied[(sent + 1) % STAGES])
#define IN_IS_DONE (MUTANT_ACK_EARLY -> true : in_done >= landed_at[(acknowledged + 1) % STAGES])

proctype sender()
{
    do
    :: FROM.turn == taken + 1 && (begun > closed && OPEN.n < RECORDS || begun == closed && begun - acked < STAGES) ->
        d_step {
            IF(begun == closed, begun++; OPEN.n = 0; copied[begun % STAGES] = 0);
            add_record()
        };
#if MUTANT_TAKE_EARLY
        taken++;
        d_step {
            IF(ring[(taken - 1) % SLOTS].writer < INLINES,
                OPEN.r[OPEN.n].data = ring[(taken - 1) % SLOTS].payload);
            OPEN.n++
        }
#else
        d_step {
            IF(FROM.writer < INLINES, OPEN.r[OPEN.n].data = FROM.payload);
            OPEN.n++;
            taken++
        }
#endif
    :: begun > closed && OPEN.n > 0 -> closed = begun
    :: sent < closed && OUT_IS_DONE -> d_step { sent++; arrived[sent % STAGES] = sent }
    :: acked < sent && done[(acked + 1) % STAGES] == acked + 1 -> acked++
    :: timeout -> break
    od
}

#define NEXT stage[(landed + 1) % STAGES]

proctype receiver()
{
    byte i;

    do
    :: arrived[(landed + 1) % STAGES] == landed + 1 && lane[IN].n + 2 * NEXT.n <= LANE ->
        d_step {
            EACH(i, NEXT.n,
                in_queued++;
                OPERATION(IN, lane[IN].n, COPY, in_queued, (landed + 1) % STAGES, i,
                          NEXT.r[i].writer, NEXT.r[i].call, NEXT.r[i].half);
                lane[IN].n++;
                IF(NEXT.r[i].half == 1,
                    in_queued++;
                    OPERATION(IN, lane[IN].n, SET, in_queued, 0, 0, NEXT.r[i].writer,
                              NEXT.r[i].call, 0);
                    lane[IN].n++));
            landed++;
            landed_at[landed % STAGES] = in_queued
        }
    :: acknowledged < landed && IN_IS_DONE -> d_step { acknowledged++; done[acknowledged % STAGES] = acknowledged }
    :: timeout -> break
    od
}

#define RECORD stage[lane[IN].op[at].stage].r[lane[IN].op[at].number]

/* Runs copies in any order, except across a signal. */
proctype lane_in()
{
    byte at;

    do
    :: lane[IN].n > 0 ->
        atomic {
            at = 0;
            do
            :: at + 1 < lane[IN].n && lane[IN].op[at].kind == COPY && lane[IN].op[at + 1].kind == COPY -> at++
            :: MUTANT_SIGNAL_PASSES && at + 1 < lane[IN].n && lane[IN].op[at].kind == COPY && lane[IN].op[at + 1].kind == SET -> at++
            :: break
            od;
            if
            :: lane[IN].op[at].kind == COPY ->
                dst[lane[IN].op[at].writer].at[lane[IN].op[at].call % 2].half[lane[IN].op[at].half] = RECORD.data
            :: else -> signal[lane[IN].op[at].writer] = lane[IN].op[at].call
            fi;
            drop(IN);
            /* A mark follows all queued operations. */
            in_done = (lane[IN].n == 0 -> in_queued : lane[IN].op[0].turn - 1)
        }
    :: timeout -> break
    od
}

proctype lane_out()
{
    byte at;

    do
    :: lane[OUT].n > 0 ->
        atomic {
            stage[lane[OUT].op[0].stage].r[lane[OUT].op[0].number].data = src[lane[OUT].op[0].writer].at[lane[OUT].op[0].call % 2].half[lane[OUT].op[0].half];
            drop(OUT);
            out_done++
        }
    :: timeout -> break
    od
}

init
{
    byte w;

    atomic {
        do
        :: w < W -> run kernel_puts(w); run kernel_waits(w); w++
        :: else -> break
        od;
        run sender();
        run receiver();
        run lane_in();
        run lane_out()
    }
}
