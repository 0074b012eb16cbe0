"""Lines of other programs, read by forms: text with {fields} for values.

A blank stands for any number of blanks, {} for an ignored word, {name%s} for a word and {name} for a
number. A repeated {name+} is a sum and a repeated {name} a product; {name*1000} multiplies the number.
A final * stands for any text.

A line may have a prefix of a launcher or a log collector. A prefix ends with a bracket, a colon, a bar,
a dash, a word that contains a digit, or the name of a log level: "[1,0]<stdout>:", "0: ", "web-1  | ",
"2025-11-06 12:34:56 INFO ".
"""

import re
from dataclasses import dataclass

PREFIX_MOST = 300  # characters
_levels = ("TRACE", "DEBUG", "INFO", "WARN", "WARNING", "ERROR", "STDOUT", "STDERR")
_number = re.compile(r"[0-9]+(?:\.[0-9]+)?(?![0-9.eE]|,[0-9])")
_float = re.compile(r"[0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?")


def parse_number(word):
    """Returns the number that fills the whole word, or None: 21,40 is not 21."""
    return float(word) if _float.fullmatch(word) and len(word) <= 24 else None


def is_prefix(text):
    """Returns True if the text before a position can be a prefix."""
    words = text.split()
    if not words:
        return True
    last = words[-1]
    return last in ("-", "--") or last[-1] in "])>:|" or any(c.isdigit() for c in last) or last.upper() in _levels


@dataclass
class Mismatch:
    """Position at which a line stops to match, and the text that the form expects there."""

    at: int
    wanted: str


class Form:
    """A form. `variant` names the runs with its times; "" begins a new set of runs, and None adds to
    all open runs. `layout` is the layout of the output of these runs."""

    def __init__(self, text, variant=None, layout=None):
        self.text, self.variant, self.layout = text, variant, layout
        self._parts = [part for part in re.split(r"(\{[^}]*\}| +|\*$)", text.strip()) if part]
        self.head = self._parts[0]

    def match(self, line, at):
        """Returns the fields, a Mismatch, or None if the line is of another kind."""
        # A line is surely of this form after a value, or "*", if letters of the form precede it.
        # "[rank" alone is a prefix of torchrun.
        fields, begun, literal = {}, False, ""
        for place, part in enumerate(self._parts):
            if part == "*" and place == len(self._parts) - 1:
                return fields
            if part[0] == " ":
                at = _skip_blanks(line, at)
                continue
            if part[0] != "{":
                same = _common(part, line, at)
                if same < len(part):
                    return Mismatch(at + same, part[same:]) if begun else None
                at += same
                literal += part
                continue
            begun = sum(c.isalpha() for c in literal.replace("[rank", "")) >= 4
            at = _skip_blanks(line, at)
            after = self._parts[place + 1][:1] if place + 1 < len(self._parts) else ""
            end = _read_field(part[1:-1], line, at, after, fields)
            if end is None:
                return Mismatch(at, part) if begun else None
            at = end
        at = _skip_blanks(line, at)
        return fields if at == len(line) else Mismatch(at, "the end of the line")


def _skip_blanks(line, at):
    while at < len(line) and line[at] in " \t\r":
        at += 1
    return at


def _common(part, line, at):
    n = 0
    while n < len(part) and at + n < len(line) and line[at + n] == part[n]:
        n += 1
    return n


def _read_field(name, line, at, after, fields):
    """Reads the value of a field; returns its end, or None."""
    if name == "" or name.endswith("%s"):
        end = at
        while end < len(line) and line[end] not in " \t\r" and line[end] != after:
            end += 1
        if name and end > at:
            fields[name[:-2]] = line[at:end]
        return end if end > at else None
    found = _number.match(line, at)
    if found is None or found.end() - at > 20:
        return None
    name, _, factor = name.partition("*")
    number = float(found[0]) * (float(factor) if factor else 1)
    is_sum = name.endswith("+")
    name = name.rstrip("+")
    if name in fields:
        number = fields[name] + number if is_sum else fields[name] * number
    fields[name] = number
    return found.end()


def find_starts(line, heads):
    """Yields the positions at which a line of a program may begin: one of the heads, after a prefix."""
    for found in heads.finditer(line, 0, min(len(line), PREFIX_MOST + 64)):
        if found.start() <= PREFIX_MOST and is_prefix(line[: found.start()]):
            yield found.start()
