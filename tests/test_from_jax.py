"""Functions written for JAX, as kernels and on the oracle, against JAX's own results."""

import sys
from functools import partial

import numpy as np
import pytest
import shell
from hypothesis import given, settings
from hypothesis import strategies as st

from steelyard_kernels import KernelError, Unsupported, kernel
from steelyard_kernels.expression.expr import Loop, loops
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.from_jax import from_jax
from steelyard_kernels.grad import grad
from steelyard_kernels.nest.places import nest_of
from steelyard_kernels.reference import evaluate
from steelyard_kernels.schedule.attention import Attention, attention_of

jax = pytest.importorskip("jax", reason="needs jax: pip install 'steelyard[jax]'")
jnp, lax, random = jax.numpy, jax.lax, jax.random


def bits(leaf):
    """Return a leaf as NumPy's array, keys as their words."""
    if jnp.issubdtype(leaf.dtype, jax.dtypes.prng_key):
        leaf = random.key_data(leaf)
    return np.asarray(leaf)


def close(found, expected, tolerance=2e-6):
    """Hold results against JAX's: structure, shapes and dtypes, integers exactly."""
    assert jax.tree.structure(found) == jax.tree.structure(expected)
    for one, other in zip(
        map(bits, jax.tree.leaves(found)),
        map(bits, jax.tree.leaves(expected)),
        strict=True,
    ):
        assert (one.shape, one.dtype) == (other.shape, other.dtype)
        if one.dtype.kind == "f":
            np.testing.assert_allclose(one, other, rtol=tolerance, atol=tolerance)
        else:
            np.testing.assert_array_equal(one, other)


def agrees(function, *args, tolerance=2e-6):
    """Run a function as a kernel and by JAX."""
    close(from_jax(function)(*args), jax.jit(function)(*args), tolerance)


def on_oracle(kernel, *args):
    """Return a kernel's results by the oracle, which shares nothing with emitters."""
    found = kernel.translation(*args)
    arrays = found.arrays(jax.tree.leaves(args))
    return list(evaluate(kernel.program(*args), arrays).values())


def normal(*shape, seed=1, dtype="float32"):
    """Return an array of NumPy's own numbers."""
    return np.random.default_rng(seed).normal(size=shape).astype(dtype)


def mlp(weights, x):
    """Return the seed's network: 1 -> 12 -> 1."""
    for w in weights:
        x = jax.nn.sigmoid(jnp.dot(x, jax.nn.softplus(w)))
    return x


WEIGHTS = [normal(1, 12), normal(12, 1)]


def ahead(weights, rng, iterations):
    """Return the seed's second listing: noise drawn before the loop."""
    leak, new = random.split(rng)
    diffusion = random.normal(leak, (iterations, 1))

    def step(x, noise):
        return mlp(weights, x) + noise, None

    return lax.scan(step, jnp.zeros(1), diffusion, unroll=2)[0], new


def within(weights, rng, iterations):
    """Return the seed's first listing: a while loop that splits its key."""

    def going(state):
        return state[2] < iterations

    def step(state):
        x, rng, count = state
        leak, new = random.split(rng)
        return mlp(weights, x) + random.normal(leak, (1,)), new, count + 1

    return lax.while_loop(going, step, (jnp.zeros(1), rng, 0))


KEYS = [random.PRNGKey(12), random.key(12)]


@pytest.mark.parametrize("key", KEYS, ids=["words", "key"])
def test_the_second_listing_is_one_loop_and_agrees_after_8000_iterations(key):
    """With the decorator added; its noise is drawn within the loop, no array of it."""
    infer = from_jax(ahead, static_argnums=2)
    close(infer(WEIGHTS, key, 8000), ahead(WEIGHTS, key, 8000), 1e-6)
    program = infer.program(WEIGHTS, key, 8000)
    (loop,) = loops(program.nodes)
    assert isinstance(loop, Loop)
    assert (loop.length, loop.unroll) == (8000, 2)
    assert max(node.shape[:1] for node in loop.nodes) <= (12,)


@pytest.mark.parametrize("key", KEYS, ids=["words", "key"])
@pytest.mark.parametrize("iterations", [0, 1, 7, 8000])
def test_the_first_listing_takes_its_iterations_at_launch(key, iterations):
    """One kernel for any number of them."""
    infer = from_jax(within)
    assert infer.translation(WEIGHTS, key, 3) is infer.translation(WEIGHTS, key, 8)
    close(infer(WEIGHTS, key, iterations), within(WEIGHTS, key, iterations), 1e-6)


def test_a_gradient_of_jax_is_one_kernel():
    """Grad and value_and_grad of a scan: JAX's own program, forward and back."""

    def loss(weights, rng):
        return jnp.sum(ahead(weights, rng, 50)[0] ** 2)

    for taken in (jax.grad(loss), jax.value_and_grad(loss)):
        agrees(taken, WEIGHTS, KEYS[1], tolerance=1e-5)
    value, *slopes = on_oracle(from_jax(jax.value_and_grad(loss)), WEIGHTS, KEYS[1])
    close([np.float32(value)], [np.asarray(loss(WEIGHTS, KEYS[1]))], 1e-5)
    assert [slope.shape for slope in slopes] == [(1, 12), (12, 1)]


def draw(seed, folded):
    """Return bits, keys and uniform numbers of a seed."""
    key = random.fold_in(random.key(seed), folded)
    first, second = random.split(key)
    keys = random.key_data(random.split(second, 3))
    return random.bits(first, (2, 3)), keys, random.uniform(second, (5,))


DRAWN, DRAWN_BY_JAX = from_jax(draw), jax.jit(draw)


@given(seed=st.integers(0, 2**31 - 1), folded=st.integers(0, 2**31 - 1))
@settings(max_examples=20, deadline=None)
def test_random_bits_are_those_of_jax(seed, folded):
    """Equal, of any seed, in the kernel and by the oracle."""
    expected = DRAWN_BY_JAX(seed, folded)
    close(DRAWN(seed, folded), expected, 0)
    words, keys, uniform = on_oracle(DRAWN, seed, folded)
    close([words, keys, uniform.astype("float32")], list(expected), 0)


def test_draws_agree():
    """Of many kinds, of scalars and arrays, of a key for each row."""

    def draw(key):
        keys = random.split(key, 4)
        _, rows = lax.scan(
            lambda x, k: (x, (random.normal(k, (2,)), k)), jnp.zeros(()), keys
        )
        return (
            random.normal(key, (3, 4)),
            random.uniform(key, (), minval=-1.0, maxval=3.0),
            random.bernoulli(key, 0.3, (9,)),
            random.randint(key, (6,), -3, 50),
            random.exponential(key, (3,)),
            random.laplace(key, (3,)),
            random.gumbel(key, (3,)),
            random.truncated_normal(key, -1.0, 1.0, (4,)),
            jax.vmap(lambda k: random.uniform(k, (2,)))(keys),
            rows,
        )

    agrees(draw, random.key(7))
    agrees(random.PRNGKey, 12)
    agrees(random.split, random.PRNGKey(3))


def test_64_bits_are_drawn_and_computed_where_jax_has_them():
    """Float64 numbers take 64 random bits; without x64 they are read as float32."""

    def draw(key, x):
        return random.normal(key, (4,)) * x, random.bits(key, (2,), "uint64")

    x = normal(4, dtype="float64")
    kernel = from_jax(lambda key, x: random.normal(key, (4,)) * x)
    assert kernel(random.key(3), x).dtype == np.float32
    with jax.enable_x64(True):
        found = from_jax(draw)(random.key(3), x)
        close(found, draw(random.key(3), x), 1e-14)
        assert kernel(random.key(3), x).dtype == np.float64


def test_functions_agree_element_by_element():
    """Every one, at zeros, halves and both signs."""

    def every(x):
        size = jnp.abs(x)
        return {
            "whole": [jnp.sign(x), jnp.floor(x), jnp.ceil(x), jnp.round(x)],
            "smooth": [jnp.tanh(x), jnp.expm1(x), jnp.log1p(size), jnp.exp(x)],
            "nets": [jax.nn.gelu(x), jax.nn.silu(x), jax.nn.elu(x), jax.nn.relu(x)],
            "powers": [x**3, (size + 1) ** -2, size**0.5, (size + 0.1) ** 1.7, x**0],
            "sums": [jax.nn.softmax(x), jax.nn.logsumexp(x), jnp.var(x), jnp.prod(x)],
            "choices": [jnp.clip(x, -1, 1), jnp.where(x > 0, x, 0), jnp.isfinite(x)],
            "all": [jnp.all(x > 0), jnp.any(x > 0), x.astype("int32"), x > 0],
            "waves": [jnp.sin(x), jnp.cos(x * 1e20), lax.erf(x), jnp.tan(x)],
            "angles": [jnp.arctan(x), jnp.arcsin(x / 8), jnp.arccosh(size + 1)],
            "rests": [lax.rem(x, 0.7 * x + 1), jnp.trunc(x), size**x, jnp.sinc(x)],
            "more": [lax.rsqrt(size + 1), jnp.square(x), lax.erf_inv(x / 8)],
            "special": [lax.erfc(x), lax.lgamma(size), lax.digamma(size), jnp.cbrt(x)],
            "two": [lax.atan2(x, 1 - x), lax.nextafter(x, size), jnp.exp2(x)],
        }

    agrees(every, np.array([-2.5, -1.5, -0.3, -0.0, 0.5, 1.5, 2.5, 7.3], "float32"))


EDGES = [0, 1, 5, 77, 2**31 - 1, 2**31, 2**32 - 1, 2**32 - 16]


@pytest.mark.parametrize("dtype", ["uint32", "int32", "uint8", "int16"])
def test_integers_wrap_divide_and_compare_as_jax_has_them(dtype):
    """Signed and unsigned, at every pair of edges, zero among the divisors."""

    def every(a, b):
        return (
            *(a < b, a >= b, jnp.maximum(a, b), jnp.minimum(a, b), a == b),
            *(lax.div(a, b), lax.rem(a, b), a * b, a + b, a - b, jnp.sign(a)),
            *(a >> 3, a << 5, lax.shift_right_logical(a, b), a << b, a >> b),
            *(a ^ b, a & b, a | b, ~a, a.astype("float32"), a.astype("int32")),
            *(a.astype("uint32"), a.astype(bool), jnp.clip(a, 2, 9)),
            *(lax.population_count(a), lax.clz(a)),
        )

    edges = np.array(EDGES, "uint32").astype(dtype)
    agrees(every, *(np.ascontiguousarray(m) for m in np.meshgrid(edges, edges)))


def test_numbers_beyond_integers_are_cast_as_jax_casts_them():
    """To the nearest that there is; NaN to 0."""
    x = np.array([-1.7, 300.5, -3e9, 3e9, 5e9, -1e20, 1e20, np.nan, np.inf], "float32")
    names = ["int8", "uint8", "int16", "uint16", "int32", "uint32"]
    agrees(lambda x: [x.astype(name) for name in names], x)


def test_bools_multiply_as_jax_has_them():
    """A sum of them is whether there is one."""
    a, b = (normal(*shape) > 0.5 for shape in ((3, 7), (7, 2)))
    agrees(lambda a, b: (a @ b, jnp.einsum("ij,kj->ik", a, a)), a, b)


def test_integers_of_64_bits_divide_as_jax_has_them():
    """By zero and by -1, the least number too; and have as many bits set."""
    edges = [0, 1, -1, 7, -(2**40) - 1, 2**63 - 1, -(2**63)]
    a, b = (np.ascontiguousarray(m) for m in np.meshgrid(edges, edges))
    with jax.enable_x64(True):
        agrees(lambda a, b: (lax.div(a, b), lax.rem(a, b)), a, b)
        agrees(lambda a: (lax.population_count(a), lax.clz(a)), a)


def test_parts_of_arrays_agree():
    """Rows at fixed and computed places, also beyond the ends; what is put together."""

    def every(x, i):
        cube = jnp.stack([x, x + i])
        return {
            "rows": [x[i], x[1], x[-1], x[i, 1], x[i][2], jnp.tanh(x)[i]],
            "parts": [x[1:3], x[:, 2], x[::2], x[:, None, :], x.T, x.reshape(3, 5)],
            "sums": [x.sum(0), x.sum(), x.max(1), x.min(), x.mean()],
            "axes": [
                jnp.mean(x.reshape(5, 1, 3, 1), (0, 1)),
                cube.sum((0, 1)),
                cube.mT,
            ],
            "joins": [jnp.concatenate([x[0], x[1]]), jnp.stack([x, x], 1)],
            "small": [jnp.flip(x[0]), jnp.pad(x[0], (1, 2)), jnp.tile(x[0], 2)],
            "written": [x.at[i].set(2.0), x.at[0].add(1.0), x.at[1, 2].multiply(3.0)],
            "updated": lax.dynamic_update_index_in_dim(x, jnp.ones(3), i, 0),
            "split": jnp.split(x[0], 3),
        }

    for place in (0, 3, -2, 9):
        agrees(every, normal(5, 3), place)


def test_parts_of_large_arrays_agree():
    """Slices, pads, joins and turns of a hundred elements and more; in a loop as well."""

    def every(x):
        y = jnp.tanh(x)
        turned = jnp.transpose(y.reshape(3, 4, 2, 5), (2, 0, 3, 1))
        return {
            "parts": [y[:, 1:9], y[1:-1:3, ::2], jnp.split(y, [2, 7], 1), y[3:5, 2:3]],
            "joins": [jnp.concatenate([x, y[:, :4]], 1), jnp.stack([y, x], 1)],
            "pads": [jnp.pad(y, ((1, 2), (0, 3))), jnp.pad(y, 1, constant_values=2.5)],
            "turns": [jnp.flip(y), turned, turned.sum((0, 2)), jnp.tile(y, (2, 3))],
            "sums": [jnp.prod(y, 0), jnp.all(y > 0, 0), y.max((0, 1)), y.min(0)],
            "rows": lax.scan(lambda c, row: (c + row[1:4], row[::2]), y[0, :3], y[1:9]),
        }

    agrees(every, normal(12, 10), tolerance=1e-5)


@pytest.mark.parametrize("start", [-4, 0, 3, 90])
def test_parts_at_computed_places_agree(start):
    """Of what is computed as of arguments, also beyond the ends; in a loop as well."""

    def every(x, i):
        y = jnp.tanh(x)
        cube = y.reshape(3, 4, 10)
        return {
            "rows": [y[i], cube[i], lax.dynamic_slice(cube, (i, 0, i), (1, 4, 3))],
            "parts": [lax.dynamic_slice(z, (i, i), (5, 2)) for z in (x, y)],
            "columns": [lax.dynamic_slice(y, (0, i), (12, 1)), y[:, i]],
            "written": [lax.dynamic_update_slice(y, x[:n, :2], (i, i)) for n in (1, 5)],
            "turns": lax.fori_loop(
                0,
                3,
                lambda n, c: c + lax.dynamic_slice(y, (n + i, n), (4, 3)),
                y[:4, :3],
            ),
        }

    agrees(every, normal(12, 10), start)


def test_products_of_matrices_agree():
    """Of vectors and matrices from either side, outer, and in batches."""

    def every(a, b):
        return (
            *(a @ b, a.T @ a, a @ b[:, 0], a[0] @ b, jnp.vdot(a, a), jnp.outer(a, b)),
            *(jnp.einsum("ij,kj->ik", a, a), jnp.einsum("bi,bi->b", a, a)),
            jnp.einsum("bi,bij->bj", a[:3], jnp.stack([b, b, b])),
        )

    agrees(every, normal(4, 3), normal(3, 5, seed=2), tolerance=1e-5)


@pytest.mark.parametrize("causal", [False, True])
def test_attention_of_grouped_heads_is_found(causal):
    """And agrees, of float16 as well, whose products are added up in float32."""

    def attend(q, k, v):
        return jax.nn.dot_product_attention(q, k, v, is_causal=causal)

    q, k, v = (
        x.astype(jnp.float16)
        for x in (normal(1, 8, 4, 16), normal(1, 8, 2, 16), normal(1, 8, 2, 16))
    )
    close(from_jax(attend)(q, k, v), attend(q, k, v), tolerance=4e-3)
    program = simplify(from_jax(attend).program(q, k, v))
    found = attention_of(nest_of(program))
    assert isinstance(found, Attention), found


@pytest.mark.parametrize("which", [-1, 0, 1, 3])
def test_choices_and_bounded_loops_agree(which):
    """Of branches at computed places, and of as many turns as somebody says."""

    def every(i, x):
        return (
            lax.cond(i > 2, lambda x: x * 2, lambda x: x - 1, x),
            lax.cond(True, lambda x: x * 2, lambda x: lax.lgamma(x), x),  # noqa: PLW0108
            lax.switch(i, [lambda x: x, lambda x: x * 3, lambda x: x * 4], x),
            lax.fori_loop(0, 5, lambda i, y: y * 1.1 + i, x),
            lax.fori_loop(0, i, lambda i, y: y * 1.1 + i, x),
            lax.scan(lambda c, x: (c + x, c * x), 0.0, x, reverse=True),
            jax.vmap(lambda x, n: lax.fori_loop(0, n, lambda i, y: y * 1.1 + i, x))(
                x, jnp.arange(3) + i
            ),
        )

    agrees(every, which, np.ones(3, "float32"))


def test_chains_run_side_by_side():
    """As jax.vmap of the same function: keys and states of each, weights of all."""

    def chain(x, key, w):
        def step(x, i):
            noise = random.normal(random.fold_in(key, i), (3,))
            return jnp.tanh(w @ x) + noise, None

        return lax.scan(step, x, jnp.arange(10))[0]

    axes = (0, 0, None)
    kernel = from_jax(chain, in_axes=axes)
    for key in KEYS:
        args = normal(7, 3), random.split(key, 7), normal(3, 3, seed=2)
        assert kernel.program(*args).chains == 7
        close(kernel(*args), jax.vmap(chain, axes)(*args), 1e-5)
    with pytest.raises(KernelError, match="in_axes has 3 entries for 2 arguments"):
        kernel(*args[:2])


def test_arguments_and_results_are_the_functions_own():
    """Pytrees, numbers, None, arrays of either, keywords, and what it reads beside."""
    held = jnp.asarray(normal(20, 20))

    def function(out, state, *, scale):
        return {"y": held @ out * scale, "z": (state["a"], None, jnp.float32(5))}

    kernel = from_jax(function)
    args = (normal(20), {"a": 3, "class": jnp.ones(2)})
    close(kernel(*args, scale=2.0), jax.jit(function)(*args, scale=2.0), 1e-5)
    names = [
        node.name
        for node in kernel.translation(*args, scale=2.0)
        .kernel.program(*kernel.translation(*args, scale=2.0).specs())
        .inputs
    ]
    assert names == ["out_", "state_a", "state_class", "scale", "held0"]


def test_it_is_work_like_any_kernel():
    """Built without arrays, bound once, launched often into the caller's memory."""
    kernel = from_jax(lambda x, k: (jnp.tanh(x), random.bits(k, (2,))))
    x, key = normal(8), random.PRNGKey(1)
    built = kernel.build(*(jax.ShapeDtypeStruct(a.shape, a.dtype) for a in (x, key)))
    assert built.strategy
    assert kernel.candidates(x, key)
    out = (np.zeros(8, "float32"), np.zeros(2, "uint32"))
    work = kernel.bind(x, key, out=out)
    work.launch(2)
    work.wait()
    close(out, kernel.function(x, key))
    assert kernel(x, key, out=out)[0].base is not None
    with pytest.raises(KernelError, match="out is of float64, expected float32"):
        kernel(x, key, out=(np.zeros(8), out[1]))
    with pytest.raises(KernelError, match="out has 1 arrays, expected 2"):
        kernel(x, key, out=out[0])


class OnGpu:
    """An array as a GPU's owner offers it: no values here."""

    def __init__(self, shape, dtype):
        self.shape, self.dtype = shape, np.dtype(dtype)
        data = (4096, False)
        typestr = self.dtype.str
        self.__cuda_array_interface__ = {
            "shape": shape,
            "typestr": typestr,
            "data": data,
            "version": 3,
        }


def test_arrays_on_a_gpu_stay_there():
    """As they are, words of keys as well."""
    kernel = from_jax(lambda x, k: x * random.uniform(k, (4,)))
    x, key = OnGpu((4,), "float32"), OnGpu((2,), "uint32")
    taken, words = kernel.translation(x, key).arrays([x, key])
    assert taken is x
    assert words is key


def test_static_arguments_need_a_hash():
    """As jax.jit's do."""
    kernel = from_jax(lambda x, n: x * n[0], static_argnums=1)
    close(kernel(normal(3), (2.0,)), jnp.asarray(normal(3) * 2))
    with pytest.raises(KernelError, match=r"static arguments \[\[2.0\]\] have no hash"):
        kernel(normal(3), [2.0])


def test_static_arguments_count_from_either_end():
    """A length is one from the end, too; what is no place is one sentence."""

    def doubled(x, n):
        return lax.scan(lambda x, _: (x * 2.0, None), x, length=n)[0]

    x = normal(3)
    close(from_jax(doubled, static_argnums=-1)(x, 3), jnp.asarray(x * 8.0))
    for function, places in ((doubled, "n"), (3, ())):
        with pytest.raises(KernelError, match="expected a function and ints"):
            from_jax(function, static_argnums=places)


def test_what_is_not_supported_is_named_with_its_line():
    """The primitive and where the user asked for it, within a loop as well."""

    def wave(x):
        return lax.scan(lambda x, _: (lax.bessel_i0e(x), None), x * 1.0, length=3)[0]

    with pytest.raises(
        Unsupported, match=r"^wave: JAX's bessel_i0e at .*test_from_jax.py:\d+ "
    ):
        from_jax(wave)(normal(3))
    with pytest.raises(Unsupported, match=r"JAX's fft at .*test_from_jax.py:\d+ "):
        from_jax(lambda x: jnp.fft.rfft(2 * x).real)(normal(3))
    with pytest.raises(
        KernelError, match=r"^lambda: x: dtype complex64 is not supported"
    ):
        from_jax(lambda x: x * 2.0)(np.ones(3, "complex64"))
    old = jax.threefry_partitionable(False)
    with pytest.raises(Unsupported, match="jax_threefry_partitionable"), old:
        from_jax(partial(random.uniform, shape=(2,)))(random.key(1))


def test_kernels_call_functions_of_jax():
    """On pytrees of their values, in the dtypes that JAX computes in; gradients too."""
    close = partial(np.testing.assert_allclose, rtol=1e-6, atol=2e-6)
    table = np.float32([[1, 2], [3, 4]])

    @from_jax
    def step(weights, x):
        return {"y": jnp.tanh(x @ weights["w"] + table)}

    @from_jax
    def total(w, x):
        return jnp.sum(step.function({"w": w}, x)["y"])

    x, w = np.float32([[1, 2], [0.5, -1]]), np.float32([[0.25, -0.5], [1, 0.125]])
    twice = kernel(lambda w, x: step({"w": w}, step({"w": w}, x)["y"])["y"] * 2)
    inner = step.function({"w": w}, x)["y"]
    close(twice(w, x), 2 * step.function({"w": w}, inner)["y"])
    close(kernel(grad(total))(w, x), jax.grad(total.function)(w, x))
    stopped = from_jax(lambda x: jnp.sum(x * jax.lax.stop_gradient(x)))
    close(kernel(grad(stopped))(x), x)
    assert kernel(total)(w.astype(float), x).dtype == "float32"
    rng = kernel(lambda key, x: from_jax(lambda k: random.normal(k, (4,)))(key) + x)
    key = random.PRNGKey(3)
    close(rng(np.asarray(key), np.float32(1)), random.normal(key, (4,)) + 1)
    held = from_jax(lambda x: x * np.linspace(0, 1, 999, dtype="float32"))
    with pytest.raises(KernelError, match="at most 64 are supported; pass it as a"):
        kernel(held)(np.ones(999, np.float32))


def test_jax_is_imported_when_a_function_is_given(monkeypatch):
    """Not before, and where it is missing the sentence says what to install."""
    script = "import sys, steelyard_kernels.from_jax; print('jax' in sys.modules)"
    done = shell.python("-c", script, check=True)
    assert done.stdout == "False\n"
    monkeypatch.setitem(sys.modules, "jax", None)
    with pytest.raises(KernelError, match=r"pip install .*\[jax\]"):
        from_jax(abs)


@pytest.mark.parametrize(
    ("x", "w", "how"),
    [
        ((2, 3, 9, 11), (4, 3, 3, 2), {"window_strides": (2, 1), "padding": "SAME"}),
        (
            (2, 9, 11, 6),
            (3, 2, 3, 4),
            {
                "window_strides": (1, 2),
                "padding": ((1, 2), (0, -1)),
                "rhs_dilation": (1, 2),
                "feature_group_count": 2,
                "dimension_numbers": ("NHWC", "HWIO", "NHWC"),
            },
        ),
        (
            (6, 3, 9),
            (4, 3, 3),
            {
                "window_strides": (1,),
                "padding": ((1, 0),),
                "lhs_dilation": (3,),
                "batch_group_count": 2,
            },
        ),
    ],
)
def test_convolutions_and_their_gradients_are_jax_s(x, w, how):
    """In any layout, by strides, dilations and groups of features or of the batch."""
    x, w = normal(*x), normal(*w, seed=2)

    def convolved(x, w):
        return lax.conv_general_dilated(x, w, **how)

    def total(x, w):
        return jnp.sum(convolved(x, w) ** 2)

    agrees(convolved, x, w, tolerance=2e-5)
    for place in (0, 1):
        agrees(jax.grad(total, place), x, w, tolerance=2e-4)
