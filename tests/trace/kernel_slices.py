"""Prints, for each rank, the different arguments of the kernel slices with one name, sorted.

kernel_slices.py FILE NAME ARGUMENT..."""
import json
import sys


def main(path, name, *wanted):
    with open(path, encoding='utf-8') as file:
        slices = [event for event in json.load(file)['traceEvents'] if (event.get('cat'), event['name']) == ('kernel', name)]
    for rank in sorted({event['pid'] for event in slices}):
        values = sorted({tuple(event['args'][key] for key in wanted) for event in slices if event['pid'] == rank})
        print(f'{rank}:', ', '.join(' '.join(map(str, of)) for of in values))


main(*sys.argv[1:])
