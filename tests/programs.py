"""Schedules of elementwise programs, for tests that name one."""

from __future__ import annotations

from steelyard_kernels.schedule.schedule import Cut, Place, Schedule


def vectors(lanes, unroll=1, turns=1, place=Place.SERIAL, axes="i", **hints):
    """Return a CPU's schedule of one loop over vectors."""
    factors = (lanes, Place.VECTOR), (unroll, Place.REGISTER), (turns, place)
    return Schedule((Cut(axes, factors),), **hints)


def rows_of_vectors(lanes, unroll=1, rows=1, axes="i", inner="j", **hints):
    """Return a CPU's schedule of rows, shared by all threads, each of vectors."""
    (row,) = vectors(lanes, unroll, axes=inner).cuts
    return Schedule((Cut(axes, ((rows, Place.CORE),)), row), **hints)


def blocks(lanes=4, unroll=2, threads=32, axes="i", **hints):
    """Return a GPU's schedule of one loop, by default of small blocks."""
    factors = (lanes, Place.VECTOR), (unroll, Place.REGISTER)
    cut = Cut(axes, (*factors, (threads, Place.THREAD), (1, Place.GRID)))
    return Schedule((cut,), **hints)


def walked_rows(rows=1, unroll=1, axes="i", inner="j", **hints):
    """Return a CPU's schedule of so many rows at a time, each walked by vectors."""
    shared = (1, Place.VECTOR), (rows, Place.REGISTER), (2, Place.CORE)
    (row,) = vectors(16, unroll, axes=inner).cuts
    return Schedule((Cut(axes, shared), row), **hints)
