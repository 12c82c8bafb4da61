"""What JAX traced of a function becomes a kernel for arguments of one kind."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import numpy as np
from msgspec import Struct

from steelyard_kernels import array as xp
from steelyard_kernels.array import Array
from steelyard_kernels.array.tracing import current
from steelyard_kernels.errors import KernelError
from steelyard_kernels.from_jax import names
from steelyard_kernels.from_jax.interpret import evaluate
from steelyard_kernels.from_jax.memory import memory_type, shower, taker, traceable
from steelyard_kernels.from_jax.values import Aval, Like, array, element, storage
from steelyard_kernels.function import KernelFunction
from steelyard_kernels.imported import identifier
from steelyard_kernels.vmap import vmap

Axes: TypeAlias = "int | Sequence[int | None] | None"


class Translation(Struct, frozen=True):
    """A function of JAX's for arguments of one structure, shapes and dtypes.

    `kernel` takes the leaves of the arguments and then `constants`, what the function
    reads beside its arguments, as a launch takes it; `inputs` are the types of both,
    `outputs` those of its results in the order of the leaves of `tree`.
    """

    kernel: KernelFunction
    inputs: tuple[Aval, ...]
    constants: tuple[Any, ...]
    outputs: tuple[Aval, ...]
    tree: Any
    takers: tuple[Callable[[Any], Any], ...]
    showers: tuple[Callable[[Any], Any], ...]

    def arrays(self, leaves: Sequence[Any]) -> list[Any]:
        """Return the arguments as a launch takes them, and the constants."""
        taken = [take(leaf) for take, leaf in zip(self.takers, leaves, strict=True)]
        return taken + list(self.constants)

    def specs(self) -> list[Any]:
        """Return shape and dtype of everything that a launch takes."""
        return [(storage(aval), memory_type(aval)) for aval in self.inputs]

    def out(self, out: Any) -> Any:
        """Return outputs that the caller gave as a launch takes them.

        Raises KernelError where they are not as many as the function's results, or of
        other dtypes.
        """
        import jax

        if out is None:
            return None
        leaves = jax.tree.leaves(out)
        if len(leaves) != len(self.outputs):
            raise KernelError(
                f"{self.kernel.name}: out has {len(leaves)} arrays, expected "
                f"{len(self.outputs)}; give one for each result, in their structure."
            )
        given = [
            self._written(leaf, aval)
            for leaf, aval in zip(leaves, self.outputs, strict=True)
        ]
        return given[0] if len(given) == 1 else tuple(given)

    def _written(self, leaf: Any, aval: Aval) -> Any:
        """Return an output as a launch takes it: never converted."""
        if not isinstance(leaf, np.ndarray):
            return taker(aval)(leaf)
        if leaf.dtype != aval.dtype:
            raise KernelError(
                f"{self.kernel.name}: out is of {leaf.dtype}, expected {aval.dtype} as "
                "the function's result; allocate it so."
            )
        return leaf.view(memory_type(aval))

    def result(self, result: Any) -> Any:
        """Return what a launch gave in the structure of the function's own result."""
        import jax

        one = len(self.outputs) == 1
        leaves = (result,) if one else result or ()
        found = [show(leaf) for show, leaf in zip(self.showers, leaves, strict=True)]
        return jax.tree.unflatten(self.tree, found)


def translate(
    function: Callable[..., Any],
    name: str,
    args: tuple[Any, ...],
    keywords: dict[str, Any],
    in_axes: Axes,
) -> Translation:
    """Have JAX trace the function, and make a kernel of what it saw.

    Raises KernelError for mapped arguments of different numbers of rows.
    """
    import jax

    paths, tree = jax.tree_util.tree_flatten_with_path((args, keywords))
    leaves = [traceable(leaf) for _, leaf in paths]
    axes = _axes(name, in_axes, args, keywords)
    ones = [
        _without_chains(name, leaf) if axis == 0 else leaf
        for leaf, axis in zip(leaves, axes, strict=True)
    ]
    given, named = jax.tree.unflatten(tree, ones)
    traced, shapes = jax.make_jaxpr(function, return_shape=True)(*given, **named)
    count = len(leaves)
    arguments = names.of_arguments(function, len(args))
    parameters = names.unique([path for path, _ in paths], arguments)
    for parameter, aval in zip(parameters, traced.in_avals, strict=True):
        try:
            element(aval.dtype)
        except KernelError as error:
            raise KernelError(f"{name}: {parameter}: {error}") from None
    held = tuple(traced.consts)
    parameters += [identifier(f"held{n}", parameters) for n in range(len(held))]
    run = _running(name, traced, count, parameters, [*axes, *(None for _ in held)])
    chains = {
        leaf.shape[0] for leaf, axis in zip(leaves, axes, strict=True) if axis == 0
    }
    inputs = [
        Like((leaf.shape[0], *aval.shape), aval.dtype) if axis == 0 else aval
        for leaf, aval, axis in zip(leaves, traced.in_avals, axes, strict=True)
    ]
    constants = [atom.aval for atom in traced.jaxpr.constvars]
    pairs = zip(held, constants, strict=True)
    outputs = [Like((*chains, *aval.shape), aval.dtype) for aval in traced.out_avals]
    return Translation(
        kernel=KernelFunction(run),
        inputs=(*inputs, *constants),
        constants=tuple(taker(aval)(constant) for constant, aval in pairs),
        outputs=tuple(outputs),
        tree=jax.tree.structure(shapes),
        takers=tuple(taker(aval) for aval in inputs),
        showers=tuple(shower(aval) for aval in outputs),
    )


def _axes(
    name: str, in_axes: Axes, args: Sequence[Any], keywords: dict[str, Any]
) -> list[int | None]:
    """Return for each leaf of the arguments whether it has a row for each chain."""
    import jax

    each = in_axes if isinstance(in_axes, Sequence) else [in_axes] * len(args)
    if len(each) != len(args):
        raise KernelError(
            f"{name}: in_axes has {len(each)} entries for {len(args)} arguments; give "
            "0 or None for each."
        )
    found: list[int | None] = []
    for axis, arg in zip(each, args, strict=True):
        found += [axis] * len(jax.tree.leaves(arg))
    return found + [None] * len(jax.tree.leaves(keywords))


def _without_chains(name: str, leaf: Any) -> Any:
    """Return the type of one chain's part of an argument."""
    import jax

    shape = getattr(leaf, "shape", ())
    if not shape:
        raise KernelError(
            f"{name}: a number is mapped over its first axis, expected an array with a "
            "row for each chain; give None for it in in_axes."
        )
    like: Callable[..., Any] = jax.ShapeDtypeStruct
    return like(shape[1:], leaf.dtype)


def _running(
    name: str,
    traced: Any,
    count: int,
    parameters: Sequence[str],
    axes: Sequence[int | None],
) -> Callable[..., Any]:
    """Return what `@kernel` traces: a function of all arrays, by name."""

    def run(*arrays: Array) -> Array | tuple[Array, ...]:
        graph = current(name)
        found = evaluate(graph, traced.jaxpr, arrays[:count], arrays[count:])
        outputs = tuple(
            xp.broadcast_to(array(graph, value), storage(aval))
            for value, aval in zip(found, traced.out_avals, strict=True)
        )
        return outputs[0] if len(outputs) == 1 else outputs

    mapped: Callable[..., Any] = vmap(run, axes) if 0 in axes else run
    kind = inspect.Parameter.POSITIONAL_OR_KEYWORD
    mapped.__name__ = name
    signature = [inspect.Parameter(parameter, kind) for parameter in parameters]
    vars(mapped)["__signature__"] = inspect.Signature(signature)
    return mapped
