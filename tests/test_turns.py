"""Slow tests take turns: none is forgotten."""

import ast
from functools import cache

import turns

FUNCTIONS = turns.SLOW.read_text().split()


@cache
def parsed(file):
    """Return the names of a file's functions and classes."""
    tree = ast.parse((turns.SLOW.parents[1] / file).read_text())
    return {
        node.name
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.ClassDef)
    }


def test_each_slow_case_has_one_turn_and_a_quick_one_each():
    """Of functions of one case, or of several, as they are collected."""
    cases = [f"{name}[{k}]" for name in FUNCTIONS for k in range(8)]
    cases += ["tests/quick.py::test"]
    dealt = [turns.deal(cases, now) for now in range(turns.TURNS)]
    counts = [sum(runs) for runs in zip(*dealt, strict=True)]
    assert counts == [1] * 8 * len(FUNCTIONS) + [turns.TURNS]


def test_turns_are_of_about_as_many_cases():
    """A function's first case is of any turn."""
    counts = [sum(turns.deal(FUNCTIONS * 2, now)) for now in range(turns.TURNS)]
    assert max(counts) < 2 * min(counts)


def test_what_is_named_slow_is_a_test():
    """Also after a function has another name; else it would be of every turn."""
    for name in FUNCTIONS:
        file, *parts = name.split("::")
        assert parsed(file) >= set(parts), (
            "make test-all, with --update-slow, names them anew"
        )
