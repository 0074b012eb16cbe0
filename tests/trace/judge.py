"""Judges Chrome traces by rules of its own, from what the format says and not from the program that
wrote them: python3 judge.py FILE...; a line for each fault, exit code 1 if there is any."""
import json
import sys
from collections import defaultdict
from decimal import Decimal


def no_constant(word):
    raise ValueError(f'{word} is not JSON')


def read(path):
    with open(path, 'rb') as file:
        return json.loads(file.read().decode('utf-8'), parse_float=Decimal,
                          parse_constant=no_constant)


def is_time(value):
    return isinstance(value, (int, Decimal)) and not isinstance(value, bool) and value >= 0


def judge_fields(event):
    need = {'M': ('name', 'args'), 'X': ('name', 'ts', 'dur', 'args'), 'C': ('name', 'ts', 'args'),
            's': ('name', 'ts', 'id', 'cat'), 'f': ('name', 'ts', 'id', 'cat', 'bp')}
    ph = event.get('ph')
    if ph not in need:
        yield f'ph {ph!r}'
        return
    for key in ('pid', 'tid', *need[ph]):
        if key not in event:
            yield f'{ph} without {key}'
    for key in ('ts', 'dur'):
        if key in event and not is_time(event[key]):
            yield f'{key} {event[key]!r}'
    if ph == 'C' and not all(is_time(v) for v in event['args'].values()):
        yield f'counter {event["args"]!r}'


def judge_lane(lane, events):
    """Sweeps over begins and ends: whatever ends must be what began last."""
    slices = [e for e in events if e['ph'] == 'X']
    marks = sorted(
        [(e['ts'], 1, -e['dur'], n) for n, e in enumerate(slices) if e['dur'] > 0] +
        [(e['ts'] + e['dur'], 0, e['dur'], n) for n, e in enumerate(slices) if e['dur'] > 0],
        key=lambda m: (m[0], m[1], m[2]))
    stack = []
    for _, begins, _, n in marks:
        if begins:
            stack.append(n)
        elif stack and stack[-1] == n:
            stack.pop()
        else:
            same = [k for k in stack if slices[k]['ts'] + slices[k]['dur'] ==
                    slices[n]['ts'] + slices[n]['dur']]
            if not same or len(same) != len(stack) - stack.index(same[0]):
                yield f'{lane}: {slices[n]["name"]} at {slices[n]["ts"]} crosses another'
            stack = [k for k in stack if k != n]
    times = [e['ts'] for e in events if e['ph'] != 'M']
    if times != sorted(times):
        yield f'{lane}: times go back'
    for e in events:
        if e['ph'] in 'sf' and not any(x['ts'] <= e['ts'] <= x['ts'] + x['dur'] for x in slices):
            yield f'{lane}: flow {e["id"]} in no slice'


def judge_flows(events, pids, error_us):
    ends = defaultdict(lambda: defaultdict(list))
    for e in events:
        if e['ph'] in 'sf':
            ends[e['cat'], e['name'], e['id']][e['ph']].append(e)
    for key, end in ends.items():
        gives, takes = end['s'], end['f']
        if len(gives) > 1 or len(takes) > 1:
            yield f'flow {key[2]} more than once'
            continue
        args = (gives or takes)[0]['args']
        if (gives and args['from'] != gives[0]['pid']) or (takes and args['to'] != takes[0]['pid']):
            yield f'flow {key[2]} at another rank'
        for side, there in (('from', gives), ('to', takes)):
            if not there and args[side] in pids:
                yield f'flow {key[2]} has one end, and rank {args[side]} is here'
        if gives and takes and takes[0]['ts'] + error_us < gives[0]['ts']:
            yield f'flow {key[2]} goes back in time'
        if takes and takes[0]['bp'] != 'e':
            yield f'flow {key[2]} is not bound to the slice around its end'


def judge(document):
    other, events = document['otherData'], document['traceEvents']
    for n, e in enumerate(events):
        for fault in judge_fields(e):
            yield f'event {n}: {fault}'
    lanes, named, ranks = defaultdict(list), set(), set()
    for e in events:
        if e['ph'] == 'M':
            if e['name'] == 'thread_name':
                named.add((e['pid'], e['tid']))
            if e['name'] == 'process_name':
                ranks.add(e['pid'])
        else:
            lanes[e['pid'], e['tid']].append(e)
    pids = {pid for pid, _ in lanes}
    for lane, inside in lanes.items():
        if lane not in named or lane[0] not in ranks:
            yield f'{lane} has no name'
        yield from judge_lane(lane, inside)
    errors = [c['error_ns'] for c in other['clocks']]
    if None in errors:
        yield 'a clock of unknown error'
    yield from judge_flows(events, pids, 2 * Decimal(max([0, *errors])) / 1000)
    if other['dropped'] != 0:
        yield f'{other["dropped"]} events dropped'
    first, last = other['iterations'] or (0, -1)
    said = {e['args']['iteration'] for e in events if e['ph'] == 'X'}
    if said and (min(said) < first or max(said) > last):
        yield f'iterations {min(said)} to {max(said)}, not within {first} to {last}'


def main(paths):
    faults = 0
    for path in paths:
        try:
            found = list(judge(read(path)))
        except (OSError, ValueError, KeyError, TypeError, AttributeError) as why:
            found = [f'not a trace: {why!r}']
        for fault in found[:20]:
            print(f'{path}: {fault}')
        faults += len(found)
    return 1 if faults else 0


if __name__ == '__main__':
    sys.exit(main(sys.argv[1:]))
