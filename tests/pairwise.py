"""Values of parameters in pairs: what two of them do wrong together is seen by few tests."""

from itertools import combinations, product


def pairs(*columns):
    """Return rows in which all values of every two columns meet, few of all there are."""
    found, missing = [], {met for row in _all(columns) for met in _met(row)}
    while missing:
        best = max(_all(columns), key=lambda row: len(missing & _met(row)))
        missing -= _met(best)
        found.append(tuple(map(lambda one, at: one[at], columns, best)))
    return found


def _all(columns):
    return product(*(range(len(one)) for one in columns))


def _met(row):
    return {*combinations(enumerate(row), 2)}
