"""Checks the rules of Chrome traces that `profile:` wrote; prints each violation and exits with 1 if there is one.

check.py FILE...

Each event has the members of its kind. Slices of a lane nest. Both ends of a flow exist and are within slices; its end
does not precede its begin by more than the errors of both clocks. Each lane has a name and its events are in order of
time. No event was dropped. The file of one rank has one end of a flow to another rank."""
import json
import sys


def check_event(event):
    """The violations of one event alone."""
    kind, args = event.get('ph'), event.get('args', {})
    if kind not in ('M', 'X', 'C', 's', 'f'):
        yield f'ph {kind!r} is unknown'
        return
    for key in ('pid', 'tid') if kind not in 'CM' or 'tid' in event else ('pid',):
        if not isinstance(event.get(key), int) or not 0 <= event[key] < 2 ** 32:
            yield f'{key} is not a whole number'
    for key in {'M': (), 'X': ('ts', 'dur')}.get(kind, ('ts',)):
        if not isinstance(event.get(key), (int, float)) or event[key] < 0:
            yield f'{key} is not a time'
    if not event.get('name'):
        yield 'name is missing'
    if kind == 'C' and (not args or not all(isinstance(value, (int, float)) for value in args.values())):
        yield 'a counter needs numbers'
    if kind in 'sf' and not event.get('id'):
        yield 'a flow needs an id'
    if kind == 'f' and event.get('bp') != 'e':
        yield 'the end of a flow needs bp: e'
    if kind in 'sf' and args.get('from' if kind == 's' else 'to') != event.get('pid'):
        yield 'the flow and its slice belong to different ranks'


def ns(us):
    return round(us * 1000)


def check_lane(lane):
    """Violations of nesting and order in one lane; `lane` is in the order of the file."""
    if 'thread_name' not in [event['name'] for event in lane if event['ph'] == 'M']:
        yield 'the lane has no thread_name'
    timed = [event for event in lane if event['ph'] != 'M']
    begins = [ns(event['ts']) for event in timed]
    if begins != sorted(begins):
        yield 'events are not in order of time'
    opened = []
    for event in sorted(timed, key=lambda event: (ns(event['ts']), -ns(event.get('dur', 0)))):
        begin = ns(event['ts'])
        # A slice may begin where another ends. A flow at the end of a slice belongs to this slice.
        while opened and opened[-1][0] < begin + (event['ph'] == 'X'):
            opened.pop()
        if event['ph'] in 'sf' and not opened:
            yield f'flow {event["id"]} is in no slice'
        if event['ph'] == 'X':
            end = begin + ns(event['dur'])
            if opened and end > opened[-1][0]:
                yield f'slice {event["name"]} ends after {opened[-1][1]}, in which it began'
            opened.append((end, event['name']))


def check_flow(ends, ranks, error_ns):
    """Violations of the ends of one flow."""
    kinds = sorted(event['ph'] for event in ends)
    if kinds == ['f', 's']:
        end, begin = sorted(ends, key=lambda event: event['ph'])
        if ns(begin['ts']) - ns(end['ts']) > error_ns.get(begin['pid'], 0) + error_ns.get(end['pid'], 0):
            yield 'arrives before it leaves'
    elif len(ends) > 1:
        yield f'occurs {len(ends)} times'
    elif ends[0]['args']['to' if kinds == ['s'] else 'from'] in ranks:
        yield 'has one end only'


def check(document):
    """Yields each violation of a document."""
    events, other, lanes, flows = document['traceEvents'], document['otherData'], {}, {}
    if other.get('program') != 'epa2a' or other.get('trace') != 1:
        yield 'otherData.program and otherData.trace must be epa2a and 1'
    if other.get('dropped') != 0:
        yield f'{other.get("dropped")} events were dropped'
    bad = [f'event {n}: {flaw}' for n, event in enumerate(events) for flaw in check_event(event)]
    yield from bad
    if bad:
        return
    for event in events:
        lanes.setdefault((event['pid'], event.get('tid', 0)), []).append(event)
        if event['ph'] in 'sf':
            flows.setdefault((event['id'], event.get('cat'), event['name']), []).append(event)
    ranks = {event['pid'] for event in events if event['ph'] != 'M'}
    error_ns = {clock['rank']: clock['error_ns'] for clock in other.get('clocks', [])}
    for name, lane in lanes.items():
        yield from (f'lane {name[0]}.{name[1]}: {flaw}' for flaw in check_lane(lane))
    for name, ends in flows.items():
        yield from (f'flow {name[0]}: {flaw}' for flaw in check_flow(ends, ranks, error_ns))


def main():
    found = 0
    for path in sys.argv[1:]:
        with open(path, encoding='utf-8') as file:
            flaws = list(check(json.load(file)))
        print(*(f'{path}: {flaw}' for flaw in flaws), f'{path}: {len(flaws)} findings', sep='\n')
        found += len(flaws)
    return found > 0


if __name__ == '__main__':
    sys.exit(main())
