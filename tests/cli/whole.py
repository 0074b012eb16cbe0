"""Prints one line for each run of a --json document: clock, rows, samples of the last row, whether its limit is known
and its rates equal total traffic / median, operations, and the checked parts."""
import json
import sys

for run in json.load(sys.stdin)["results"]:
    last, total = run["stages"][-1], run["traffic"]["total"]
    rates = [last["rate"][name] and abs(last["rate"][name] * last["ns"]["median"] / total[of] - 1) < 0.01
             for name, of in (("goodput", "needed_bytes"), ("wire", "wire_bytes"), ("bottleneck", "bottleneck_bytes"))]
    print(run["timing"]["clock"], [row["name"] for row in run["stages"]], last["ns"]["n"],
          "limit" if last["peak_ns"] else "no limit", rates, run["compute"]["flops"],
          "checked" if run["verify"]["compared"] > 0 else "unchecked", run["verify"]["wrong"])
