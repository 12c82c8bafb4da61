"""`from_jax`: a function written for JAX becomes one kernel, called as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from importlib.util import find_spec
from typing import TYPE_CHECKING, Any

from steelyard_device import install
from steelyard_kernels.calling.cpu_bind import CpuKernel
from steelyard_kernels.errors import KernelError
from steelyard_kernels.from_jax import names
from steelyard_kernels.from_jax.memory import specification
from steelyard_kernels.from_jax.translation import Axes, Translation, translate
from steelyard_kernels.imported import ImportedKernel
from steelyard_kernels.schedule.schedule import Schedule

if TYPE_CHECKING:
    from steelyard_kernels.calling.cuda_bind import CudaKernel, CudaSeries
    from steelyard_kernels.library.examples import Spec


class JaxKernel(ImportedKernel):
    """A function of JAX's as a kernel: call it, build it, bind it.

    Arguments and results are pytrees, as the function has them; where a method only
    looks at shapes and dtypes, `jax.ShapeDtypeStruct` leaves do as well.
    """

    def __init__(
        self, function: Callable[..., Any], static_argnums: Sequence[int], in_axes: Axes
    ) -> None:
        self.function = function
        self.name = names.of_function(function)
        functools.update_wrapper(self, function, updated=())
        self._static = frozenset(static_argnums)
        self._in_axes = in_axes
        self._translations: dict[object, Translation] = {}

    def __repr__(self) -> str:
        return f"<kernel {self.name} from JAX>"

    def __call__(self, *args: Any, out: Any = None, **keywords: Any) -> Any:
        """Run once; return the results as the function does, as NumPy arrays.

        On a GPU it is submitted and not waited for, and they lie there.
        """
        leaves, found = self._prepared(args, keywords)
        arrays = found.arrays(leaves)
        return found.result(found.kernel(*arrays, out=found.out(out)))

    def bind(
        self,
        *args: Any,
        out: Any = None,
        schedule: Schedule | None = None,
        stream: int | None = None,
        **keywords: Any,
    ) -> CpuKernel | CudaKernel | CudaSeries:
        """Check the arguments and pack them, for many launches."""
        leaves, found = self._prepared(args, keywords)
        return found.kernel.bind(
            *found.arrays(leaves),
            out=found.out(out),
            schedule=schedule,
            stream=stream,
        )

    def like(self, *arrays: Spec) -> Translation:
        """Return the kernel for arrays of these shapes and dtypes."""
        import jax

        leaf: Callable[..., Any] = jax.ShapeDtypeStruct
        return self.translation(*[leaf(shape, dtype) for shape, dtype in arrays])

    def translation(self, *args: Any, **keywords: Any) -> Translation:
        """Return the kernel for arguments of these shapes and dtypes."""
        return self._prepared(args, keywords)[1]

    def _prepared(
        self, args: tuple[Any, ...], keywords: dict[str, Any]
    ) -> tuple[list[Any], Translation]:
        """Return the arguments' leaves and their translation, kept from the first."""
        import jax

        count = len(args)
        static = {
            place % count: args[place]
            for place in sorted(self._static)
            if -count <= place < count
        }
        given = tuple(
            None if place in static else arg for place, arg in enumerate(args)
        )
        leaves, tree = jax.tree.flatten((given, keywords))
        config: Any = jax.config
        key = (
            tree,
            tuple(static.items()),
            config.jax_enable_x64,
            *map(specification, leaves),
        )
        try:
            found = self._translations.get(key)
        except TypeError:
            raise KernelError(
                f"{self.name}: static arguments {list(static.values())} have no hash, "
                "expected values that have one; pass tuples for lists, arrays as arrays."
            ) from None
        if found is None:
            function = self._with(static)
            found = translate(function, self.name, given, keywords, self._in_axes)
            self._translations[key] = found
        return leaves, found

    def _with(self, static: dict[int, Any]) -> Callable[..., Any]:
        """Return the function with its static arguments in place."""

        @functools.wraps(self.function)
        def function(*given: Any, **named: Any) -> Any:
            every = [static.get(place, arg) for place, arg in enumerate(given)]
            return self.function(*every, **named)

        return function


def from_jax(
    function: Callable[..., Any],
    *,
    static_argnums: int | Sequence[int] = (),
    in_axes: Axes = None,
) -> JaxKernel:
    """Make a kernel of a function written for JAX, by what JAX traces of it.

        @from_jax
        def step(weights, x):
            return jax.nn.sigmoid(x @ weights["w"])

    One kernel is made for each structure, shapes and dtypes of the arguments; those at
    the places `static_argnums` are values of its own, as of `jax.jit`. The function may
    be what `jax.grad`, `jax.value_and_grad` or `jax.jit` gave. Random bits are JAX's own
    (Threefry). What the function reads beside its arguments is read once, when it is
    traced. `in_axes`, as of `jax.vmap`, has 0 for each argument with a row for each of
    many independent chains and None for the others; they run side by side.

    Raises:
        KernelError: a primitive of JAX's is not supported, with its name and the line
            of the function that asked for it; or JAX is not installed.
    """
    if find_spec("jax") is None:
        raise KernelError(
            f"from_jax needs JAX, which is not installed: {install.command('jax')}."
        )
    static = (static_argnums,) if isinstance(static_argnums, int) else static_argnums
    given: object = function
    if not (callable(given) and all(hasattr(n, "__index__") for n in static)):
        raise KernelError(
            f"from_jax got {function!r} with static_argnums {static_argnums!r}, expected "
            "a function and ints; name positional arguments by numbers from 0."
        )
    return JaxKernel(function, static, in_axes)
