#!/usr/bin/env python3
"""epa2a.deep_ep has the signatures of DeepEP's Buffer, and the calls of engines bind.

deep_ep_signatures.json records the methods of Buffer at five commits of DeepEP, and deep_ep_calls.json
the calls of vLLM, SGLang and Megatron-LM. A method of epa2a may have more optional parameters, and
accepts unknown keywords without effect; a recorded name must be a parameter nevertheless."""

import inspect
import json
import os
import unittest

import support
from epa2a import deep_ep

FOLDER = os.path.dirname(os.path.abspath(__file__))

# The last commit of V1. Its parameters have the same order and defaults here.
LAST = "567632dd59810d77b3cc05553df953cc0f779799"


def load(name):
    with open(os.path.join(FOLDER, name)) as file:
        return json.load(file)


def parameters(function):
    """Returns the parameters that a caller passes, in their order."""
    named = list(inspect.signature(function).parameters.values())
    if named and named[0].name == "self":
        del named[0]
    return {p.name: p for p in named if p.kind is p.POSITIONAL_OR_KEYWORD}


class Signatures(unittest.TestCase):
    commits = load("deep_ep_signatures.json")["commits"]

    def each(self):
        for commit, recorded in self.commits.items():
            for name, wanted in recorded["methods"].items():
                with self.subTest(commit=commit[:7], method=name):
                    yield commit, recorded, name, wanted

    def test_five_commits_have_the_methods(self):
        self.assertEqual(len(self.commits), 5)
        for commit, recorded, name, wanted in self.each():
            attribute = inspect.getattr_static(deep_ep.Buffer, name)
            self.assertEqual(isinstance(attribute, staticmethod), name in recorded["static"])
            named = parameters(getattr(deep_ep.Buffer, name))
            for parameter in wanted:
                self.assertIn(parameter[0], named)
                optional = named[parameter[0]].default is not inspect.Parameter.empty
                self.assertTrue(optional or len(parameter) == 1, parameter[0])

    def test_required_parameters_have_the_same_positions(self):
        for commit, recorded, name, wanted in self.each():
            required = [p[0] for p in wanted if len(p) == 1]
            self.assertEqual(list(parameters(getattr(deep_ep.Buffer, name)))[: len(required)], required)

    def test_no_parameter_is_required_that_a_commit_lacks(self):
        for commit, recorded, name, wanted in self.each():
            known = {p[0] for p in wanted}
            for parameter in parameters(getattr(deep_ep.Buffer, name)).values():
                if parameter.name not in known:
                    self.assertIsNot(parameter.default, inspect.Parameter.empty, parameter.name)

    def test_last_commits_have_the_same_order_and_defaults(self):
        for commit in list(self.commits)[-2:]:
            for name, wanted in self.commits[commit]["methods"].items():
                with self.subTest(commit=commit[:7], method=name):
                    named = parameters(getattr(deep_ep.Buffer, name))
                    names = [p[0] for p in wanted]
                    self.assertEqual([n for n in named if n in names], names)
                    if commit == LAST:
                        self.assertEqual(list(named)[: len(names)], names)
                    for parameter in wanted:
                        if len(parameter) == 2:
                            self.assertEqual(repr(named[parameter[0]].default), parameter[1])


class Calls(unittest.TestCase):
    def target(self, call):
        name, _, method = call.partition(".")
        target = getattr(deep_ep, name)
        return getattr(target, method) if method else target.__init__

    def test_calls_of_engines_bind(self):
        files = load("deep_ep_calls.json")["files"]
        self.assertEqual({f["repository"].rpartition("/")[2] for f in files}, {"vllm", "sglang", "Megatron-LM"})
        for file in files:
            for call in file["calls"]:
                with self.subTest(file=file["file"], call=call["call"]):
                    self.bind(call)

    def bind(self, call):
        target = self.target(call["call"])
        signature = inspect.signature(target)
        positional = [None] * call.get("positional", 0)
        if "self" in signature.parameters:
            positional.insert(0, None)
        keywords = dict.fromkeys(call.get("keywords", []))
        signature.bind(*positional, **keywords)
        for name in keywords:
            self.assertIn(name, parameters(target))
        signature.bind(*positional, **keywords, **dict.fromkeys(call.get("conditional", [])))

    def test_unknown_keywords_are_accepted_without_effect_only(self):
        for method in ("low_latency_dispatch", "low_latency_combine"):
            function = getattr(deep_ep.Buffer, method)
            needed = [p for p in parameters(function).values() if p.default is p.empty]
            with self.assertRaisesRegex(NotImplementedError, "use_nvfp4"):
                function(object.__new__(deep_ep.Buffer), *[None] * len(needed), use_nvfp4=True)
        with self.assertRaisesRegex(NotImplementedError, "novelty"):
            deep_ep.Buffer(None, novelty=1)


class Configs(unittest.TestCase):
    def test_configs_of_rank_numbers(self):
        for ranks in (2, 4, 8, 16, 24, 32, 64, 128, 144, 160):
            self.assertEqual(deep_ep.Buffer.get_dispatch_config(ranks).num_sms, deep_ep.Buffer.num_sms)
            self.assertEqual(deep_ep.Buffer.get_combine_config(ranks).num_sms, deep_ep.Buffer.num_sms)


if __name__ == "__main__":
    support.main()
