"""Schedules by their labels, for tests that name one."""

import re

from steelyard_kernels.schedule.schedule import Cut, Place, Schedule

NUMBERS = {"ahead": "prefetch", "registers": "registers", "blocks": "blocks"}
FLAGS = {"stream": "streaming", "onepass": "one_pass"}


def schedule_of(label):
    """Return the schedule that a label shows."""
    cuts, hints = [], {}
    for word in label.split():
        name, _, place = word.partition("-")
        numbered = re.fullmatch(r"([a-z]+)(\d+)", word)
        if ":" in word:
            axes, factors = word.split(":")
            cuts.append(Cut(axes, tuple(map(factor, factors.split(".")))))
        elif word in FLAGS:
            hints[FLAGS[word]] = True
        elif place:
            hints[name] = Place(place)
        else:
            hints[NUMBERS[numbered[1]]] = int(numbered[2])
    return Schedule(tuple(cuts), **hints)


def factor(word):
    """Return a factor and its place."""
    found = re.fullmatch(r"([a-z]+)(\d*)", word)
    return int(found[2] or 1), Place(found[1])
