"""Cycles and time in a stream of a GPU."""

import numpy as np
import pytest

from steelyard_device import cuda
from steelyard_device.cuda.stamps import Stamps
from steelyard_device.errors import DeviceError


def test_a_delay_lies_between_its_stamps(context):
    """In cycles and in nanoseconds; the frequency is one that a GPU has."""
    stamps = Stamps(context, 40)
    delay = cuda.Delay(context, 256_000)
    for place in range(40):
        stamps.stamp(place)
        if place % 2 == 0:
            delay.launch()
    marks = np.array(stamps.read(40))
    assert (np.diff(marks, axis=0) > 0).all()
    cycles, nanoseconds = (marks[1::2] - marks[::2]).T
    assert (cycles > delay.cycles()).all()
    frequency = cycles / nanoseconds
    assert ((frequency > 0.2) & (frequency < 5)).all()


def test_places_never_stamped_read_nothing(context):
    """And only as many as are asked for are read."""
    stamps = Stamps(context, 3)
    stamps.stamp(1)
    first, second, third = stamps.read(3)
    assert first == third == (0, 0)
    assert second > (0, 0)
    assert stamps.read(0) == []
    assert stamps.read(1) == [(0, 0)]


def test_a_place_that_is_not_there_is_refused(context):
    """Nothing is written beside the marks."""
    for capacity, place in ((3, 3), (3, -1), (0, 0)):
        with pytest.raises(DeviceError, match=f"no place {place} for a stamp"):
            Stamps(context, capacity).stamp(place)


def test_a_full_gpu_is_stamped_all_the_same(context):
    """A stamp waits for the kernel before it, and finds multiprocessor 0."""
    stamps, flush = Stamps(context, 100), cuda.Flush(context)
    for place in range(100):
        flush()
        stamps.stamp(place)
    assert (0, 0) not in stamps.read(100)
