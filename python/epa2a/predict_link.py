"""The link between the nodes of a predicted world."""

import math
import re
from dataclasses import dataclass

from .result_files import ResultsError

_rates = {"TB/s": 1e3, "GB/s": 1, "MB/s": 1e-3, "Gbit/s": 0.125, "Mbit/s": 0.125e-3}
_durations = {"ns": 1, "us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}


@dataclass(frozen=True)
class Link:
    """A link between nodes: of each rank, or shared by the ranks of a node."""

    bytes_per_ns: float
    latency_ns: float = 0
    message_ns: float = 0  # least time between two messages
    node: bool = False

    @classmethod
    def parse(cls, text):
        """Parses "50GB/s,2us", then optionally ",10ns" and ",node"."""
        rate, *more = text.split(",")
        found = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?)(\D+/s)", rate)
        if found is None or found[2] not in _rates or not 0 < float(found[1]) < math.inf:
            raise ResultsError(
                f"--link {text}: a rate is expected first, in TB/s, GB/s, MB/s, Gbit/s or Mbit/s: --link 50GB/s,2us"
            )
        times, node = [], False
        for word in more:
            if word == "node":
                node = True
                continue
            time = re.fullmatch(r"([0-9]+(?:\.[0-9]+)?)([a-z]+)", word)
            if time is None or time[2] not in _durations or len(times) == 2:
                why = "is one too many" if len(times) == 2 else "is no time such as 2us"
                raise ResultsError(
                    f"--link {text}: '{word}' {why}; behind the rate are the latency, the time between two messages, "
                    "and 'node': --link 400GB/s,2us,10ns,node"
                )
            times.append(float(round(float(time[1]) * _durations[time[2]])))
        return cls(float(found[1]) * _rates[found[2]], *times, node=node)

    @classmethod
    def of(cls, document):
        """Returns the link of a document, or None."""
        link = document.get("link")
        return link and cls(link["rate"], link["latency_ns"], link["message_ns"], link["of"] == "node")

    def document(self):
        return {
            "rate": self.bytes_per_ns, "latency_ns": round(self.latency_ns),
            "message_ns": round(self.message_ns), "of": "node" if self.node else "rank",
        }  # fmt: skip


def check_link(document, link):
    """Refuses worlds of several nodes without a link."""
    nodes = document["ranks"] // document["per_node"]
    if link is None and document["ranks"] > document["per_node"]:
        raise ResultsError(
            f"{document['ranks']} ranks on {nodes} nodes need the link between nodes, such as --link 50GB/s,2us"
        )
