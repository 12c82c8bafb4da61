"""Random numbers by key and counter: known answers, the same bits, their distribution."""

import ctypes
import shutil

import gpu_cases
import gpu_host
import numpy as np
import programs
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import stats
from test_functions import ulps

from steelyard_kernels import array as xp
from steelyard_kernels import kernel, random, reference
from steelyard_kernels.emit.cuda import emit
from steelyard_kernels.errors import KernelError
from steelyard_kernels.schedule.gpu import GPUS
from steelyard_kernels.schedule.strategies import lower

# Random123's kat_vectors, philox4x32 10: counter, key, answer.
KNOWN = """
00000000 00000000 00000000 00000000 00000000 00000000 6627e8d5 e169c58d bc57ac4c 9b00dbd8
ffffffff ffffffff ffffffff ffffffff ffffffff ffffffff 408f276d 41c83b0e a20bc7c6 6d5451fd
243f6a88 85a308d3 13198a2e 03707344 a4093822 299f31d0 d16cfe09 94fdcceb 5001e420 24126ea1
"""
KEYS = st.integers(-(2**63), 2**63 - 1)
COUNT = 1 << 18


@kernel
def words(low, high, a, b, c, d):  # noqa: PLR0917 - arrays are positional
    """Give the words of a block."""
    return random.philox((low, high), (a, b, c, d))


@kernel
def drawn(counter, *, key: int):
    """Draw one number of each kind for every counter."""
    return (
        random.bits(key, counter),
        random.uniform(key, counter),
        random.uniform(key, counter, dtype="float64"),
        random.normal(key, counter),
        random.normal(key, counter, dtype="float64"),
    )


def philox(key, counter, rounds=10):
    """Return Philox's four words of Python's own integers, as the paper has it."""
    key, (a, b, c, d) = list(key), counter
    for _ in range(rounds):
        first, second = a * 0xD2511F53, c * 0xCD9E8D57
        a, b, c, d = (
            (second >> 32) ^ b ^ key[0],
            second & 0xFFFFFFFF,
            (first >> 32) ^ d ^ key[1],
            first & 0xFFFFFFFF,
        )
        key = [(key[0] + 0x9E3779B9) % 2**32, (key[1] + 0xBB67AE85) % 2**32]
    return a, b, c, d


def block(key, counter, number=0):
    """Return the words of a block of a draw."""
    key, counter = key % 2**64, counter % 2**64
    return philox((key % 2**32, key >> 32), (counter % 2**32, counter >> 32, number, 0))


def test_philox_gives_its_authors_known_answers():
    """On this machine and in the oracle."""
    table = [
        [int(word, 16) for word in line.split()] for line in KNOWN.split("\n")[1:-1]
    ]
    table = np.array(table, np.uint32).view(np.int32)
    ours = [philox(row[4:6], row[:4]) for row in table.view(np.uint32).tolist()]
    assert ours == [tuple(row[6:]) for row in table.view(np.uint32).tolist()]
    arrays = [np.ascontiguousarray(table[:, at]) for at in (4, 5, 0, 1, 2, 3)]
    answers = table[:, 6:].T.tolist()
    assert [word.tolist() for word in words(*arrays)] == answers
    program = words.program(*arrays)
    oracle = reference.evaluate(program, arrays).values()
    assert [word.tolist() for word in oracle] == answers


@given(KEYS, st.lists(KEYS, min_size=1, max_size=9))
def test_any_key_and_counter_give_the_same_bits_everywhere(key, counters):
    """All 64 bits of both count; here, in the oracle, and as the paper has it."""
    counter = np.array(counters)
    want = [block(key, each) for each in counters]
    results = drawn(counter, key=key)
    program = drawn.program(counter)
    oracle = list(reference.evaluate(program, [counter], {"key": key}).values())
    whole = [word[0] for word in want]
    assert results[0].view(np.uint32).tolist() == whole
    assert results[1].tolist() == [(word >> 8) * 2.0**-24 for word in whole]
    pairs = [((w[0] >> 5) << 26) + (w[1] >> 6) for w in want]
    assert results[2].tolist() == [pair * 2.0**-53 for pair in pairs]
    for at in range(3):
        assert results[at].tolist() == oracle[at].tolist()


def test_normals_are_within_two_ulp_of_the_truth():
    """A quarter of a million of each type, against Box and Muller in a wider one."""
    counter = np.arange(COUNT)
    single, double = drawn(counter, key=77)[3:]
    made = np.array([block(77, each) for each in range(COUNT)], np.uint64)
    unit = np.float64(2) ** -24
    radius = ((made[:, 0] >> 8) + 1) * unit
    turn = 2 * ((made[:, 1] >> 8) * unit)
    assert ulps(single, box_muller(radius, turn)) <= 2
    unit = np.longdouble(2) ** -53
    first, second = (
        ((made[:, at] >> 5) << 26) + (made[:, at + 1] >> 6) for at in (0, 2)
    )
    exact = box_muller((first + 1) * unit, 2 * (second * unit))
    assert ulps(double, exact) <= 2


def box_muller(radius, turn):
    """Return the normal of uniform numbers, in the type they have."""
    return np.sqrt(-2 * np.log(radius)) * gpu_cases.turned(turn, 1).astype(radius.dtype)


def test_the_ends_of_the_uniform_numbers_give_finite_normals():
    """Counters whose word begins with 24 zeros, the furthest, and 24 ones: exactly 0."""
    bits, uniform, _, normal, _ = drawn(np.array([14883995, 38471471]), key=0)
    assert (bits.view(np.uint32) >> 8).tolist() == [0, 0xFFFFFF]
    assert uniform.tolist() == [0.0, 1 - 2.0**-24]
    assert np.abs(normal[0]) <= np.sqrt(48 * np.log(2))
    assert normal[1] == 0
    assert np.isfinite(normal).all()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
def test_a_draw_of_a_shape_has_blocks_of_four_words(dtype):
    """Element e of bits is word e % 4 of block e // 4; odd normals are sines."""

    @kernel
    def shaped(counter, *, key: int):
        return (
            random.bits(key, counter, (3, 5)),
            random.uniform(key, counter, (3, 5), dtype),
            random.normal(key, counter, (3, 5), dtype),
        )

    key, counters = -3, np.array([0, 1 << 40])
    drawn_ = shaped(counters, key=key)
    assert {result.shape for result in drawn_} == {(2, 3, 5)}
    bits, uniform, normal = (result.reshape(2, 15) for result in drawn_)
    for row, counter in enumerate(counters.tolist()):
        made = np.array([block(key, counter, k) for k in range(8)], np.uint64)
        flat = made.ravel()
        assert bits[row].view(np.uint32).tolist() == flat[:15].tolist()
        if dtype == "float32":
            whole = (flat >> 8) * 2.0**-24
            pair = whole.reshape(-1, 2)
            wide = np.float64
            radius, turn = (pair[:, 0] + 2.0**-24, 2 * pair[:, 1])
        else:
            wide = np.longdouble
            whole = ((flat[::2] >> 5) << 26) + (flat[1::2] >> 6)
            pair = whole.reshape(-1, 2)
            radius = (pair[:, 0] + 1) * wide(2) ** -53
            turn = pair[:, 1] * wide(2) ** -52
            whole = whole * 2.0**-53
        assert uniform[row].tolist() == whole[:15].tolist()
        cosines = box_muller(radius, turn)
        sines = box_muller(radius, turn - wide(0.5))
        both = np.stack([cosines, sines], 1).ravel()[:15]
        assert ulps(normal[row], both) <= 2


def test_one_element_is_the_scalar():
    """Shapes of one element are the scalar draw, whatever their axes."""

    @kernel
    def ones(counter, *, key: int):
        return (
            random.normal(key, counter),
            random.normal(key, counter, (1,)),
            random.normal(key, counter, (1, 1)),
        )

    scalar, line, square = ones(np.arange(5), key=9)
    assert (line.shape, square.shape) == ((5, 1), (5, 1, 1))
    assert line.ravel().tolist() == square.ravel().tolist() == scalar.tolist()


def test_draws_are_spread_as_they_say():
    """With fixed keys: uniform and normal by Kolmogorov and Smirnov, bits by halves."""
    counter = np.arange(COUNT)
    for key in (0, 1, 2**40):
        bits, *floats = drawn(counter, key=key)
        ones = np.unpackbits(bits.view(np.uint8)).reshape(COUNT, 32).mean(0)
        assert np.abs(ones - 0.5).max() < 5 * 0.5 / np.sqrt(COUNT)
        for values, law in zip(floats, ("uniform",) * 2 + ("norm",) * 2, strict=True):
            assert stats.kstest(values.astype(np.float64), law).pvalue > 1e-4
            follow = np.corrcoef(values[:-1], values[1:])[0, 1]
            assert abs(follow) < 5 / np.sqrt(COUNT)


def test_draws_of_neighbouring_keys_have_nothing_in_common():
    """Nor a key's low and high word, nor a counter's."""
    counter = np.arange(1 << 14)
    made = [drawn(counter, key=key)[4] for key in (0, 1, 1 << 32)]
    made.append(drawn(counter << 32, key=0)[4])
    related = np.corrcoef(np.stack(made)) - np.eye(4)
    assert np.abs(related).max() < 5 / np.sqrt(counter.size)


@pytest.mark.skipif(shutil.which("g++") is None, reason="needs g++")
def test_a_gpus_text_gives_the_same_bits(tmp_path):
    """The CUDA C++ of a pointwise kernel, run on the host."""

    @kernel
    def both(counter, *, key: int):
        return random.bits(key, counter), random.uniform(key, counter, dtype="float64")

    counter = np.arange(-500, 500) * 0x123456789ABCD
    bits, uniform = both(counter, key=-12345)
    lowered = lower(both.program(counter), programs.blocks(1, 1), GPUS["sm_90a"])
    run = gpu_host.load(emit(lowered.kernel), tmp_path)
    seen, numbers = np.zeros_like(bits), np.zeros_like(uniform)
    given_ = {
        "counter": counter,
        "key": ctypes.c_longlong(-12345),
        "out0": seen,
        "out1": numbers,
        "extent": ctypes.c_int(counter.size),
    }
    names = [parameter.name for parameter in lowered.kernel.parameters]
    blocks = -(-counter.size // 32)
    run(lowered.kernel.name, blocks, 32, *[given_[name] for name in names])
    assert seen.tolist() == bits.tolist()
    assert numbers.tolist() == uniform.tolist()


def test_noise_ahead_of_a_loop_is_the_loops_noise():
    """Drawn for all iterations at once, or inside of each."""

    @kernel
    def ahead(start, *, key: int):
        noise = random.normal(key, xp.arange(50), dtype="float64")
        return xp.scan(lambda x, n: (0.5 * x + n, None), start, noise)[0]

    @kernel
    def inside(start, *, key: int):
        def step(x, i):
            return 0.5 * x + random.normal(key, i, dtype="float64"), None

        return xp.scan(step, start, xp.arange(50))[0]

    start = np.ones(1)
    results = [
        reference.evaluate(made.program(start), [start], {"key": 4})
        for made in (ahead, inside)
    ]
    (first,), (second,) = (result.values() for result in results)
    assert first.tolist() == second.tolist()


@pytest.mark.parametrize("dtype", ["float32", "float64"])
@pytest.mark.parametrize(
    "use",
    [
        lambda x: xp.take(x, xp.asarray([0, 0]), axis=0)[1:],
        lambda x: xp.sort(x, axis=0),
        lambda x: xp.flip(x)[:, ::-1],
        lambda x: xp.scan(lambda c, row: (c, row), 0.0, x)[1],
        lambda x: xp.stack([x, x * 2.0])[0],
    ],
)
def test_a_draw_is_the_same_wherever_it_is_read(use, dtype):
    """To the bit, of one row too: no sum of a product is rounded in another way."""

    def draw(key):
        return random.normal(key, 3, (1, 97), dtype)

    key = np.asarray(12)
    drawn, read = kernel(draw)(key), kernel(lambda key: use(draw(key)))(key)
    assert read.tobytes() == drawn.tobytes()


@pytest.mark.parametrize(
    ("body", "said"),
    [
        (
            lambda c: random.bits(c.astype("float32"), c),
            "the key .* is float32, expect",
        ),
        (
            lambda c: random.bits(c, c.astype("float64")),
            "the counter .* is float64, expected int64",
        ),
        (lambda c: random.normal(0, c, (), "float16"), "of float16 are not made"),
        (lambda c: random.uniform(0, c, (), "int32"), "draw float32 and cast it"),
        (lambda c: random.bits(0, c, (-1,)), r"the shape \(-1,\), expected a tuple"),
        (lambda c: random.normal(0, c, "a"), "a random number got the shape 'a'"),
    ],
)
def test_what_cannot_be_drawn_is_one_sentence(body, said):
    """A key or counter that is no integer, a type that has no numbers of its own."""

    @kernel
    def refused(counter):
        return body(counter)

    with pytest.raises(KernelError, match=said):
        refused.program(np.arange(3))
