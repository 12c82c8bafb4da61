"""JAX's values in memory: what a launch takes of them, and what it gives back."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np

from steelyard_kernels.calling.bind import on_gpu
from steelyard_kernels.from_jax.values import Aval, element, is_key, is_unsigned


class _Bits:
    """Unsigned integers on a GPU, as the signed ones that a kernel knows."""

    __slots__ = ("_array", "dtype", "shape")

    def __init__(self, array: Any, dtype: np.dtype[Any]) -> None:
        self._array, self.dtype, self.shape = array, dtype, array.shape

    @property
    def __cuda_array_interface__(self) -> dict[str, Any]:
        """The array's own, with the other type."""
        interface: dict[str, Any] = self._array.__cuda_array_interface__
        return {**interface, "typestr": self.dtype.str}


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
    """Return the NumPy dtype that carries the elements."""
    return np.dtype(element(aval.dtype).numpy)


def taker(aval: Aval) -> Callable[[Any], Any]:
    """Return what takes an argument as a launch does: in its dtype, as its bits.

    What lies on a GPU stays there.
    """
    memory, dtype, of_keys = memory_type(aval), aval.dtype, is_key(aval)
    as_it_is, of_bits = memory == dtype, of_keys or is_unsigned(aval)

    def take(leaf: Any) -> Any:
        if type(leaf) is np.ndarray and as_it_is and leaf.dtype == dtype:
            return leaf if leaf.flags.c_contiguous else leaf.copy()
        if of_keys:
            leaf = _words(leaf)
        elif not isinstance(leaf, np.ndarray):
            leaf = _gathered(leaf)
        if not isinstance(leaf, np.ndarray):
            return _Bits(leaf, memory) if of_bits else leaf
        if not of_keys and leaf.dtype != dtype:
            leaf = leaf.astype(dtype)
        return np.asarray(leaf, order="C").view(memory)

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
    dtype, of_keys = aval.dtype, is_key(aval)

    def show(result: Any) -> Any:
        if not isinstance(result, np.ndarray):
            return result
        if not of_keys:
            return result if result.dtype == dtype else result.view(dtype)
        import jax

        words: Any = result.view(np.uint32)
        return jax.random.wrap_key_data(words)

    return show
