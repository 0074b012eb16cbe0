#!/usr/bin/env python3
"""Prints the matrix file of an algorithm: runs in which any two settings of different axes occur together at least
once. This finds the same faults as a full product with a fiftieth of the runs, except faults that need three
settings.

    pairs.py NAME BASE      NAME: one of FILES of axes.py or gpu_axes.py; BASE: base experiment of the runs"""

import collections
import itertools
import re
import sys

import axes
import gpu_axes

FILES = axes.FILES | gpu_axes.FILES


class Family:
    """The axes of a file; a run is a tuple with a value of each axis."""

    def __init__(self, name, rules):
        self.name, self.rules = name, rules
        self.axes = [list(axis) for axis in rules["axes"]]
        self.axis_of = {value: i for i, axis in enumerate(self.axes) for value in axis}
        assert len(self.axis_of) == sum(map(len, self.axes)), f"{name}: two values of one name"
        self.apart = set()
        for some, others in rules.get("never", []):
            for a, b in itertools.product(some, others):
                self.apart.add(self.pair(a, b))

    def pair(self, a, b):
        return (a, b) if self.axis_of[a] < self.axis_of[b] else (b, a)

    def fits(self, value, run):
        return all(v is None or self.pair(value, v) not in self.apart for v in run)

    def pairs(self):
        """All pairs of values that go together."""
        return {pair for one, two in itertools.combinations(self.axes, 2)
                for pair in itertools.product(one, two)} - self.apart

    def complete(self, values, left):
        """A run with these values; on the other axes those that add most pairs of `left`."""
        run, counts = [None] * len(self.axes), collections.Counter(itertools.chain(*left))
        for value in values:
            assert run[self.axis_of[value]] is None and self.fits(value, run), values
            run[self.axis_of[value]] = value
        for i, axis in enumerate(self.axes):
            if run[i] is None:
                chosen = [v for v in run if v is not None]
                run[i] = max((v for v in axis if self.fits(v, run)), key=lambda v: (
                    sum(self.pair(v, other) in left for other in chosen), counts[v]))
        return tuple(run)

    def runs(self):
        left, runs = self.pairs(), []
        always = [[axis[0] for axis in self.axes], *self.rules.get("always", [])]
        while always or left:
            counts = collections.Counter(itertools.chain(*left))
            values = always.pop(0) if always else max(
                sorted(left), key=lambda pair: (max(counts[v] for v in pair), counts[pair[0]]))
            runs.append(self.complete(values, left))
            left.difference_update(itertools.combinations(runs[-1], 2))
        return runs

    def named(self):
        """Returns the settings of each run by its name, which consists of the promise and the unusual settings."""
        settings = {value: text for axis in self.rules["axes"] for value, text in axis.items()}
        named = {}
        for run in self.runs():
            unusual = [v for v, axis in zip(run[1:], self.axes[1:]) if v != axis[0]]
            named[", ".join([run[0], *unusual])] = ", ".join(filter(None, map(settings.get, run)))
        named.update(self.rules.get("also", {}))
        return named

    def text(self, base):
        lines = ["# Made by tests/contract/algorithm/pairs.py. A label is a promise and what it is kept with.",
                 "version: 1", f"include: {base}", *self.rules["base"], "runs:"]
        for name, settings in self.named().items():
            if self.rules.get("by_ranks"):
                name = f"{(re.findall('(?:^|, )ranks: ([0-9]+)', settings) or [4])[0]} ranks: {name}"
            lines.append(f'  "{name}": {{{settings}}}')
        return "\n".join(lines)


if __name__ == "__main__":
    print(Family(sys.argv[1], FILES[sys.argv[1]]).text(sys.argv[2]))
