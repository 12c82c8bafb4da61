import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from steelyard.analyse.change_points import divide

NOISE = 0.01


def white(draw, count, noise=NOISE):
    """Noise of its own at each commit."""
    return [math.exp(draw.gauss(0, noise)) for _ in range(count)]


def hanging(draw, count, noise=NOISE, rho=0.7):
    """Good and bad days hang together: AR(1)."""
    found, x = [], 0.0
    for _ in range(count):
        x = rho * x + draw.gauss(0, noise * math.sqrt(1 - rho * rho))
        found.append(math.exp(x))
    return found


def bimodal(draw, count, noise=NOISE):
    """Three in ten runs take 5 % longer."""
    return [
        value * (1.05 if draw.random() < 0.3 else 1)
        for value in white(draw, count, noise)
    ]


def heavy(draw, count, noise=NOISE):
    """Student's t with three degrees of freedom."""
    return [
        math.exp(
            noise
            * draw.gauss(0, 1)
            / math.sqrt(sum(draw.gauss(0, 1) ** 2 for _ in range(3)) / 3)
        )
        for _ in range(count)
    ]


def one_sided(draw, count, noise=NOISE):
    """Other programs slow a quarter of runs, by 10 % on average."""
    return [
        value * math.exp(draw.expovariate(10) if draw.random() < 0.25 else 0)
        for value in white(draw, count, noise)
    ]


def quantised(draw, count, noise=NOISE):
    """Ticks of a clock are as coarse as the times vary."""
    return [round(value / noise) * noise for value in white(draw, count, noise)]


@pytest.mark.parametrize(
    "model", [white, hanging, bimodal, heavy, one_sided, quantised]
)
def test_no_commit_of_an_unchanged_program_is_a_step(model):
    """Asked after every third of 80 commits; tests/simulated_histories.py asks for many seeds."""
    values = model(random.Random(1), 80)
    assert not any(
        divide(values[:count]).steps for count in range(2, len(values) + 1, 3)
    )


def found_after(change, seed):
    """Return how many commits after a change a step is told of near it."""
    draw = random.Random(seed)
    values = white(draw, 40) + [x * (1 + change) for x in white(draw, 15)]
    return next(
        (
            count - 40
            for count in range(41, 56)
            if any(abs(step.at - 40) <= 2 for step in divide(values[:count]).steps)
        ),
        math.inf,
    )


@pytest.mark.parametrize("change", [0.05, -0.05])
def test_a_step_of_five_noises_is_found_within_five_commits_nearly_always(change):
    """In 18 of 20 series at least, up and down."""
    late = [seed for seed in range(20) if found_after(change, seed) > 5]
    assert len(late) <= 2


def test_a_step_says_where_and_how_much():
    """Its change is a share of the level before."""
    draw = random.Random(3)
    (step,) = divide(white(draw, 50) + [2 * x for x in white(draw, 50)]).steps
    assert step.at == 50
    assert step.change == pytest.approx(1.0, abs=0.02)
    assert step.noise < 0.01


@pytest.mark.parametrize("after", [3, 4, 6, 12])
def test_a_step_far_beyond_the_noise_is_found_in_few_points(after):
    """A fit of one segment a point, which leaves nothing, is none."""
    for seed in range(20):
        draw = random.Random(seed)
        values = white(draw, 6, 0.02) + [2 * x for x in white(draw, after, 0.02)]
        assert [step.at for step in divide(values).steps] == [6], seed


def test_a_single_outlier_is_no_step():
    """However far it is."""
    values = white(random.Random(5), 60)
    values[40] *= 3
    assert divide(values).steps == ()


def test_a_noiseless_step_is_found():
    """Nothing is divided by its noise."""
    (step,) = divide([1.0] * 10 + [1.2] * 10).steps
    assert (step.at, step.change) == (10, pytest.approx(0.2))


def levels(draw, changes, count=200, model=white):
    """Return a series that steps by each of ``changes``, evenly spaced, and where."""
    at = [(k + 1) * count // (len(changes) + 1) for k in range(len(changes))]
    values = model(draw, count)
    for place, change in zip(at, changes, strict=True):
        values[place:] = [x * (1 + change) for x in values[place:]]
    return values, at


@pytest.mark.parametrize("count", [1, 3, 5, 7, 9])
def test_steps_do_not_hide_each_other(count):
    """97 % of steps of 5 % in 1 % noise are found, and nothing else."""
    found = total = 0
    for seed in range(10):
        draw = random.Random(seed)
        changes = [draw.choice([0.05, -0.05]) for _ in range(count)]
        values, at = levels(draw, changes)
        told = [step.at for step in divide(values).steps]
        near = [place for place in at if any(abs(place - one) <= 3 for one in told)]
        found += len(near)
        total += count
        assert len(told) <= count
    assert found >= 0.97 * total


def test_a_plateau_is_found_where_good_and_bad_days_hang_together():
    """Both of its ends, of 20 commits that are 5 % slower in AR(0.5) noise of 1 %."""
    found = 0
    for seed in range(20):
        values = hanging(random.Random(seed), 200, rho=0.5)
        values[100:120] = [1.05 * x for x in values[100:120]]
        told = [step.at for step in divide(values).steps]
        found += all(any(abs(at - one) <= 3 for one in told) for at in (100, 120))
    assert found >= 18


def test_the_whole_series_is_read():
    """A step 900 points ago is as good as a new one."""
    draw = random.Random(6)
    values = white(draw, 1000)
    values[100:] = [1.05 * x for x in values[100:]]
    assert [step.at for step in divide(values).steps] == [pytest.approx(100, abs=3)]


def test_boundaries_that_are_dropped_are_not_compared_with():
    """A slow rise over three points is one step, from the old level to the new."""
    values, _ = levels(random.Random(7), [0.2], 60)
    values[27:30] = [1.08, 1.11, 1.14]
    (step,) = divide(values).steps
    assert step.at == pytest.approx(29, abs=2)
    assert step.change == pytest.approx(0.2, abs=0.02)


@pytest.mark.parametrize("length", [3, 4, 5])
def test_a_few_points_that_leave_and_come_back_are_an_episode(length):
    """They are no steps, and the points around them are one segment."""
    values = white(random.Random(8), 80)
    values[40 : 40 + length] = [1.3 * x for x in values[40 : 40 + length]]
    found = divide(values)
    assert found.steps == ()
    assert len(found.segments) == 1
    (episode,) = found.episodes
    assert (episode.first, episode.stop) == (40, 40 + length)
    assert episode.change == pytest.approx(0.3, abs=0.03)


def test_a_step_among_outliers_is_found():
    """A fifth of the points after it are as slow as those before."""
    draw = random.Random(9)
    values = white(draw, 40, 0.003)
    values += [
        x * (1 if draw.random() < 0.2 else 0.97) for x in white(draw, 160, 0.003)
    ]
    assert [step.at for step in divide(values).steps] == [pytest.approx(40, abs=3)]


def test_a_mode_that_moves_under_outliers_is_found():
    """Both ends of a regression by 3 % while a quarter of runs is slower anyway."""
    found = 0
    for seed in range(20):
        values = one_sided(random.Random(seed), 200)
        values[80:140] = [1.03 * x for x in values[80:140]]
        told = [step.at for step in divide(values).steps]
        found += all(any(abs(at - one) <= 5 for one in told) for at in (80, 140))
    assert found >= 18


@pytest.mark.parametrize("values", [[], [1.0], [1.0, 2.0], [1.0, 1.0, 2.0, 2.0]])
def test_a_few_points_say_nothing(values):
    """None of them raises."""
    assert divide(values).steps == ()


@pytest.mark.parametrize("bad", [0.0, -1.0, math.nan, math.inf])
def test_what_is_no_time_is_refused(bad):
    """It has no logarithm."""
    with pytest.raises(ValueError, match="above 0"):
        divide([1.0, bad])


@given(st.lists(st.floats(1e-3, 1e9), min_size=1, max_size=40), st.floats(1e-3, 1e3))
def test_segments_cover_the_series_and_do_not_depend_on_the_unit(values, unit):
    """Nanoseconds or seconds."""
    found = divide(values).segments
    assert [s.first for s in found] == [0, *(s.stop for s in found)][:-1]
    assert found[-1].stop == len(values)
    scaled = divide([unit * value for value in values]).segments
    assert sum(map(len, scaled)) == len(values)


@pytest.mark.parametrize("count", [31, 100])
def test_the_smallest_step_that_the_next_runs_show_is_shown(count):
    """In 95 % of 200 quiet histories, and of fewer runs none is promised."""
    found = asked = 0
    for seed in range(200):
        draw = random.Random(seed)
        before = white(draw, count)
        last = divide(before).segments[-1]
        if last.first == 0:
            after = [x * (1 + last.smallest) for x in white(draw, 4)]
            asked += 1
            found += any(
                abs(step.at - count) < 2 for step in divide(before + after).steps
            )
    assert asked > 190
    assert found >= 0.95 * asked
    assert divide(before[:30]).segments[-1].smallest == math.inf
