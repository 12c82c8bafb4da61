"""JAX's values in memory: what a launch takes of them, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard_kernels.array import Array
from steelyard_kernels.calling.bind import on_gpu
from steelyard_kernels.from_jax.values import Aval, element, is_key


def specification(leaf: Any) -> object:
    """Return what a translation depends on of an argument, to be remembered by."""
    dtype = getattr(leaf, "dtype", None)
    if dtype is None:
        return type(leaf)
    return tuple(leaf.shape), dtype, getattr(leaf, "weak_type", False)


def traceable(leaf: Any) -> Any:
    """Return an argument as JAX can trace it: others' arrays by shape and dtype."""
    import jax

    known = (np.ndarray, np.generic, jax.Array, jax.ShapeDtypeStruct)
    if isinstance(leaf, known) or not hasattr(leaf, "dtype"):
        return leaf
    like: Callable[..., Any] = jax.ShapeDtypeStruct
    return like(tuple(leaf.shape), str(leaf.dtype).removeprefix("torch."))


def memory_type(aval: Aval) -> np.dtype[Any]:
    """Return the dtype of the elements in memory."""
    return np.dtype(element(aval.dtype).numpy)


def taker(aval: Aval) -> Callable[[Any], Any]:
    """Return what takes an argument as a launch does: in its dtype, keys as words.

    What lies on a GPU stays there.
    """
    memory, of_keys = memory_type(aval), is_key(aval)

    def take(leaf: Any) -> Any:
        if isinstance(leaf, Array):  # of a kernel that calls this one
            return leaf.astype(element(aval.dtype))
        if type(leaf) is np.ndarray and leaf.dtype == memory:
            return leaf if leaf.flags.c_contiguous else leaf.copy()
        if of_keys:
            leaf = _words(leaf)
        elif not isinstance(leaf, np.ndarray):
            leaf = _gathered(leaf)
        if not isinstance(leaf, np.ndarray):
            return leaf
        return np.asarray(leaf, memory, order="C")

    return take


def _words(keys: Any) -> Any:
    """Return the words of JAX's keys."""
    import jax

    return _gathered(jax.random.key_data(keys))


def _gathered(leaf: Any) -> Any:
    """Return NumPy's array of what lies on the host, JAX's and numbers; else itself."""
    import jax

    if isinstance(leaf, jax.Array):
        return leaf if jax.default_backend() == "gpu" else np.asarray(leaf)
    return leaf if on_gpu(leaf) else np.asarray(leaf)


def shower(aval: Aval) -> Callable[[Any], Any]:
    """Return what gives a result back as JAX has it, in NumPy, keys as JAX's keys."""
    of_keys = is_key(aval)

    def show(result: Any) -> Any:
        if not of_keys or not isinstance(result, np.ndarray):
            return result
        import jax

        words: Any = result
        return jax.random.wrap_key_data(words)

    return show
