"""Reads logs line by line: forms of programs.py, and tables of nccl-tests by column.

A line that begins like one of the forms but does not match it is left out and counted; all other lines
are ignored."""

import re

from .forms import Mismatch, find_starts, is_prefix, parse_number
from .found import Found, is_time
from .programs import NCCL_TESTS, PROGRAMS, STAGES, WORDS

RANKS = 65536
_colors = re.compile(r"\x1b\[[0-9;]*m")
_heads = re.compile(
    "|".join(
        sorted({re.escape(form.head) for program in PROGRAMS for form in program.forms}
               | {re.escape(program.banner) for program in PROGRAMS if program.banner}, key=len, reverse=True)
    )
)  # fmt: skip


class Log:
    """State of reading a log. `runs` from `open` on accept more lines."""

    def __init__(self, path):
        self.path = path
        self.runs, self.unread, self.first_reason = [], 0, None
        self.program, self.section, self.keys, self.open = None, "", {}, 0
        self.line = 0
        self.table = Table(self)

    def skip(self, at, reason):
        """Leaves a line out that cannot be read from a position on."""
        self.unread += 1
        if self.first_reason is None:
            self.first_reason = f"{self.path}:{self.line}:{at + 1}: error: {reason}"

    def read_line(self, text):
        self.line += 1
        text = _colors.sub("", text)
        if self.table.read(text):
            return
        first = None
        for at in find_starts(text, _heads):
            for program in PROGRAMS:
                if program.banner and self._is_banner(program.banner, text, at):
                    self.program, self.section, self.keys, self.open = program, "", {}, len(self.runs)
                if program.banner and program is not self.program:
                    continue
                for form in program.forms:
                    fields = form.match(text, at)
                    if isinstance(fields, dict):
                        self._use(program, form, fields, at)
                        return
                    if fields is not None and (first is None or (at == first[0] and fields.at > first[1].at)):
                        first = (at, fields, form)
        if first is not None:
            self._skip_mismatch(*first[1:])

    @staticmethod
    def _is_banner(banner, text, at):
        # "Config:" alone is common; as a banner it fills its line.
        return text.startswith(banner, at) and (banner[0] == "=" or text[at:].strip() == banner)

    def _skip_mismatch(self, mismatch: Mismatch, form):
        """Keys of an unread line without a time, such as a shape, are unknown for the lines that
        follow."""
        if form.variant == "":
            self.keys, self.open = {}, len(self.runs)
        wanted = mismatch.wanted
        kind = " (a value)" if wanted.startswith("{") else ""
        self.skip(mismatch.at, f"the line should continue with '{wanted.rstrip()}'{kind}")

    def _use(self, program, form, fields, at):
        rank = fields.get("rank", 0)
        if rank != int(rank) or rank >= RANKS:
            self.skip(at, "no such rank can be")
            return
        times = [stage for stage in STAGES if stage in fields]
        for stage in times:
            if not is_time(fields[stage]):
                self.skip(at, f"not a time above 0: {stage}")
                return
        variant = form.variant
        if not times and variant is not None:
            self.section = variant
            if variant == "":
                self.open = len(self.runs)
        words = {key: WORDS.get(value, "unknown") for key, value in fields.items() if isinstance(value, str) and key != "backend"}
        if "backend" in fields:
            words["backend"] = "".join(c for c in fields["backend"] if c.isalnum() or c in "_-")
        self.keys.update(words)
        for key, value in fields.items():
            if isinstance(value, float) and (key == "ranks" or key.startswith("moe.")):
                if value != int(value) or not 1 <= value < 2**32:
                    self.keys.pop(key, None)
                    self.skip(at, f"no such number can be: {key}")
                    return
                self.keys[key] = int(value)
        if variant is None and self.section:
            variant = self.section
        if variant is not None and variant.startswith("rows"):
            variant = words["rows"] + variant[4:]
        fields = {**fields, **words, "line": self.line}
        for stage in times:
            self._add_time(program, form, variant, fields, stage)

    def _add_time(self, program, form, variant, fields, stage):
        """Adds a time to all open runs that lack it of this rank; for a variant, to the first."""
        rank = int(fields["rank"]) if "rank" in fields else f"line {self.line}"
        taken, place = 0, self.open
        while place < len(self.runs) or taken == 0:
            if place == len(self.runs):
                clock = self.section if self.section in ("host", "kernels") else None
                self.runs.append(Found(program, variant or "", self.line, clock, dict(self.keys)))
            run = self.runs[place]
            place += 1
            if run.program is not program or rank in run.said[stage]:
                continue
            if variant is not None and (taken > 0 or run.variant != variant):
                continue
            run.said[stage][rank] = fields
            run.keys.update({key: value for key, value in fields.items() if key in ("rows", "outputs", "layout")})
            if form.layout:
                run.keys["layout"] = form.layout
            taken += 1


class Table:
    """A table of nccl-tests: a heading, and rows with as many words. Words before them are a prefix."""

    def __init__(self, log):
        self.log = log
        self.collective, self.ranks, self.in_place_first = None, None, False
        self.heading, self.places, self.cpu_time = 0, [], False  # words of a row; times, from its end
        self.has_reduction = False

    def read(self, text):
        """Returns True for a line of a table."""
        comment = next((at for at, c in enumerate(text) if c == "#" and is_prefix(text[:at])), None)
        if comment is not None:
            return self._read_comment(text[comment + 1 :].strip())
        return self.heading > 0 and self._read_row(text)

    def _read_comment(self, rest):
        found = re.match(r"Rank\s+([0-9]+)\s+Group", rest)
        if rest.startswith("nThread "):
            self.heading, self.ranks = 0, None
        elif found and int(found[1]) < RANKS:
            self.ranks = int(found[1]) + 1
        elif rest.startswith("Collective test starting:"):
            self.collective = rest.partition(":")[2].split()[:1]
        elif "out-of-place" in rest and "in-place" in rest.replace("out-of-place", ""):
            without = rest.replace("out-of-place", "############")
            self.in_place_first = without.index("in-place") < without.index("#")
        elif rest.startswith("size "):
            self._read_heading(rest.split())
        else:
            return rest.startswith(("Using devices", "Avg bus bandwidth", "Out of bounds", "nccl-tests"))
        return True

    def _read_heading(self, words):
        stamp = words[-1] == "timestamp"
        words = words[:-1] if stamp else words
        places = [place for place, word in enumerate(words) if word in ("time", "cputime")]
        widths = {b - a for a, b in zip(places, [*places[1:], len(words)])}
        self.cpu_time, self.has_reduction = "cputime" in words, words[3:4] == ["redop"]
        good = 1 <= len(places) <= 2 and len(widths) == 1 and min(widths) >= 4
        # A time stamp is a date and a time: two words. Places count from the end of a row.
        self.heading = len(words) + (2 if stamp else 0) if good else 0
        self.places = [place - self.heading for place in places] if good else []

    def _read_row(self, text):
        words = [(found[0], found.start()) for found in re.finditer(r"[^ \t\r]+", text)]

        def begins(place):
            sizes = [word for word, _ in words[place : place + 2]]
            whole = [word for word in sizes if word.isascii() and word.isdigit() and len(word) < 20]
            return len(whole) == 2 and is_prefix(text[: words[place][1]])

        places = [place for place in range(len(words)) if begins(place)]

        def is_complete(place):
            """The reduction has no name in old versions of alltoall_perf: a row then has a word less."""
            row = [word for word, _ in words[place:]]
            lacks_name = self.has_reduction and row[3:4] and row[3][0] in "-0123456789"
            return len(row) == self.heading - (1 if lacks_name else 0)

        place = next((place for place in places if is_complete(place)), None)
        if place is not None:
            self._use_row(words[place:])
        elif places:
            self.log.skip(0, "a row of nccl-tests has not as many words as its heading")
        return bool(places)

    def _use_row(self, words):
        row, log = [word for word, _ in words], self.log
        size = int(row[0])
        if size == 0:  # fewer elements than ranks
            return
        figures = []
        for place in self.places:
            us, rate, wrong = (parse_number(row[place + k]) for k in (0, 1, 3))
            valid = is_time(us), rate is not None, wrong is not None or row[place + 3] == "N/A"
            if not all(valid):
                n = valid.index(False)
                word, at = words[place + (0, 1, 3)[n]]
                log.skip(at, f"'{word}' is no {('time above 0', 'bandwidth', 'number of errors')[n]}")
                return
            figures.append((us, rate, wrong or 0))
        for place, (us, rate, wrong) in enumerate(figures):
            variant = "in place" if self.in_place_first == (place == 0) else "out of place"
            keys = {"collective.bytes": size, "collective.type": row[2]}
            if self.collective:
                keys = {"collective.name": self.collective[0], **keys}
            if self.ranks:
                keys["ranks"] = self.ranks
            run = Found(NCCL_TESTS, variant + (", CPU time" if self.cpu_time else ""), log.line, None, keys)
            run.said["total"][0] = {"total": us, "total.rate": rate, "line": log.line}
            run.wrong = f"{wrong:.0f} wrong" if wrong > 0 else None
            log.runs.append(run)
