"""`@kernel`: a plain function over arrays, callable on NumPy arrays.

    @kernel
    def triad(a, b, *, s=3.0):
        return a + s * b

    c = triad(a, b)                      # runs once, allocates c
    work = triad.bind(a, b, out=c)       # checked and packed, for many launches
    built = triad.build(a, b)            # Artifact or Failure, by shapes and dtypes

Arrays are NumPy's, of its dtypes and `ml_dtypes`', and of any strides (see `strides`).
Where they lie on a GPU (`cuda.Buffer`, PyTorch's, anyone's with
`__cuda_array_interface__`) it runs there, on contiguous ones.

Builds are remembered by shapes, dtypes, schedule, target and alignment; the lookup is
done before anything is traced. Behind it lie the caches of `cache`.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Sequence
from functools import partial, update_wrapper
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from steelyard_device.dispatch import Record
from steelyard_device.timings import listening, span
from steelyard_kernels import dtypes
from steelyard_kernels.artifact import Artifact, Failure
from steelyard_kernels.building.cache import levels_of
from steelyard_kernels.building.programs import build, explained
from steelyard_kernels.calling import arguments, strides
from steelyard_kernels.calling import bind as binding
from steelyard_kernels.calling.bind import Array, Outputs, Result
from steelyard_kernels.calling.convention import Convention, convention_of
from steelyard_kernels.calling.cpu_bind import CpuKernel, launch_of
from steelyard_kernels.calling.dispatching import LINE, Recent
from steelyard_kernels.errors import KernelError
from steelyard_kernels.expression.expr import Program
from steelyard_kernels.expression.simplify import simplify
from steelyard_kernels.schedule.schedule import Schedule
from steelyard_kernels.targets import CPU, device, parse
from steelyard_kernels.trace import Signature, Spec, inlined, signature, trace

if TYPE_CHECKING:
    from steelyard_kernels.building.facts import TargetBuild
    from steelyard_kernels.calling.cuda_bind import CudaKernel, CudaSeries, Packed
    from steelyard_kernels.calling.cuda_calls import Calls, Remembered
    from steelyard_kernels.calling.cuda_packing import Caller


LAUNCHES: Final = 100_000
"""Of a kernel, that have a span while timings are open: each span is kept."""


class KernelFunction:
    """A kernel: trace it, build it, bind it, call it.

    Where a method takes arrays, `(shape, dtype)` pairs do as well, except to run.
    Calling it runs once and returns the outputs as the function returned them: on a GPU
    in the order of the arrays' stream, and not waited for.

    Called on values of another kernel it becomes a part of that: they are what it would
    give by itself of such arrays. Nothing is updated then; what is returned under a
    parameter's name is a new value, as others are.
    """

    # What is called is an attribute, so that it can become a builtin.
    __slots__ = ("__call__", "__dict__", "__weakref__")
    __call__: Callable[..., Result]

    _program: Program | None = None  # of a part of another kernel

    def __init__(
        self, function: Callable[..., Any], of: Signature | None = None
    ) -> None:
        update_wrapper(self, function, updated=())  # for `grad`, `vmap` and the like
        self.function = function
        self.signature = of or signature(function)
        self.name = self.signature.name
        self._launching = f"launch {self.name}"
        self._timed = 0
        self._builds: dict[object, Artifact | Failure] = {}
        self._conventions: dict[object, Convention] = {}  # of builds, by the same keys
        self._defaults = binding.defaults_of(self.signature)
        self._calls: Calls | None = None  # on GPUs, from the first on
        self._known: dict[int, Remembered] = {}  # of them, by identities
        self._recent = Recent(self._called, self._defaults)
        self.__call__ = self._called

    def __repr__(self) -> str:
        return f"<kernel {self.name}({', '.join(self.signature.arrays)})>"

    def __reduce__(self) -> tuple[Any, ...]:
        """Pickle as functions are, by name; one of another name by its function's."""
        if self._program is not None:
            raise KernelError(
                f"{self.name}: a part of it cannot be pickled; pickle it whole."
            )
        module, name = self.function.__module__, self.function.__qualname__
        found = _named(module, name)
        if found is self:
            return _named, (module, name)
        if found is not self.function:
            raise KernelError(
                f"{self.name}: {module} has no function {name}, by which it would be "
                "found again: a lambda, or made within another; write it with def at "
                "the top of a module, or pickle what it is made of."
            )
        return type(self), (self.function,)

    def __deepcopy__(self, _: object) -> KernelFunction:
        """Return itself, as of functions."""
        return self

    def program(self, *arrays: Array | Spec) -> Program:
        """Trace the function for arrays of these shapes and dtypes; a part is of one."""
        if self._program is not None:
            return self._program
        return trace(self.function, self.signature, self._specs(arrays))

    def part(self, program: Program) -> KernelFunction:
        """Return a part of it, such as one launch, as a kernel of its own arrays."""
        found = KernelFunction(self.function, self.signature.part(program))
        found._program = program
        return found

    def candidates(
        self, *arrays: Array | Spec, target: str = CPU
    ) -> tuple[Schedule, ...]:
        """Return every legal schedule of one kernel worth trying."""
        from steelyard_kernels.schedule import strategies  # a build may be kept

        program = simplify(self.program(*arrays))
        return strategies.candidates(program, device(parse(target)))

    def explain(
        self, *arrays: Array | Spec, target: str = CPU, constant: Sequence[str] = ()
    ) -> str:
        """Return why schedules are chosen, of several launches for each: `explained`."""
        return explained(self.program(*arrays), target, constant)

    def build(
        self,
        *arrays: Array | Spec,
        schedule: Schedule | None = None,
        target: str = CPU,
        cache: str = "warm-memory",
        drop: frozenset[str] = frozenset(),
        aligned: bool = True,
    ) -> Artifact | Failure:
        """Build for arrays of these shapes and dtypes; never raises for a candidate.

        `cache` "warm-memory" gives what was built before, "warm-disk" what any process
        of this user built before, "cold" builds everything anew; `drop` leaves out some
        of `cache.LEVELS`. `aligned` says that outputs start on a cache line (on a GPU:
        every array at a multiple of 16 bytes).
        """
        with span("arguments"):
            key = arguments.key_of(arrays, schedule, target, aligned=aligned)
            if cache == "warm-memory" and not drop:  # the way of every call
                found = self._builds.get(key)
                if found is not None:
                    return found
            levels = levels_of(self.name, cache, drop)
            if "memory" in levels and (found := self._builds.get(key)) is not None:
                return found
            specs = self._specs(arrays)
        built = build(
            lambda: self.program(*specs),
            schedule,
            name=self.name,
            target=target,
            aligned=aligned,
            levels=levels,
        )
        with span("remember"):  # and forget the last, which unloads its code
            before = self._builds.pop(key, None)
            if before is not None:
                self._recent.forget()
                if self._calls is not None:
                    self._calls.forget()
            if isinstance(built, Artifact):
                self._builds[key] = built
            elif built.lasting:
                self._builds[key] = built.remembered()
            self._conventions.pop(key, None)
        return built

    def for_target(
        self, target: str, *arrays: tuple[tuple[int, ...], str]
    ) -> TargetBuild:
        """Build for a target that this machine need not have; raises what failed."""
        from steelyard_kernels.building.facts import TargetBuild

        specs = [(shape, dtypes.of(dtype)) for shape, dtype in arrays]
        return TargetBuild(lambda cache: self.build(*specs, target=target, cache=cache))

    def made_of(
        self, target: str, *arrays: tuple[tuple[int, ...], str]
    ) -> dict[str, object]:
        """Return all that `for_target` depends on, without a build: `facts.made_of`."""
        from steelyard_kernels.building import facts

        specs = [(shape, dtypes.of(dtype)) for shape, dtype in arrays]
        return facts.made_of(self.program(*specs), target)

    def bind(
        self,
        *arrays: Array,
        out: Outputs = None,
        schedule: Schedule | None = None,
        stream: int | None = None,
        constant: Sequence[str] = (),
        **scalars: float,
    ) -> CpuKernel | CudaKernel | CudaSeries:
        """Check the arguments and pack them; raises KernelError with one sentence.

        On a GPU launches run on `stream`, by default that of the arrays. What `constant`
        parameters alone decide is stored now; writes to these count from `refresh` on.
        """
        if constant:
            from steelyard_kernels.calling import constants

            how: dict[str, Any] = {"out": out, "schedule": schedule, "stream": stream}
            return constants.bound(self, arrays, constant, scalars, how)
        if arrays and type(arrays[0]) is not np.ndarray and binding.on_gpu(arrays[0]):
            return self._on_gpus().bind(arrays, out, schedule, stream, scalars)
        if stream is not None:
            raise KernelError(
                f"{self.name}: stream {stream} was given for arrays of the host, expected "
                "arrays on a GPU; copy them there, or leave stream away."
            )
        copies = strides.OnHost()
        near = tuple([copies.made(array) for array in arrays])
        room = strides.mapped(out, partial(copies.made, read=False))
        convention, every, slots = self._packed(near, room, schedule, scalars)

        def rebuild(cache: str) -> Artifact | Failure:
            return self.build(
                *near, schedule=schedule, cache=cache, aligned=convention.aligned
            )

        return CpuKernel(convention, every, slots, rebuild, copies)

    def _called(self, *arrays: Array, out: Outputs = None, **scalars: float) -> Result:
        """Run once: what becomes of calls that native code does not recognise."""
        known = self._known
        if known:
            given = arrays if out is None else (*arrays, out)
            try:  # key_of, spelled out
                found = known.get(hash(arrays if out is None else (out, arrays)))
            except TypeError:  # NumPy's have none
                found = None
            if found is not None:
                if scalars:
                    found.launch(scalars)
                elif code := found.submit(1):
                    raise found.failure(code)
                done: Result = found.result(given)
                return done
        if arguments.are_traced(arrays, scalars):
            return self._inlined(arrays, out, scalars)
        if arrays and type(arrays[0]) is not np.ndarray and binding.on_gpu(arrays[0]):
            return self._on_gpus().call(arrays, out, scalars)
        if strides.are_there(arrays, out):
            return strides.called(self.name, self, arrays, out, scalars)
        return self._on_host(arrays, out, scalars)

    def _on_host(
        self, arrays: tuple[Array, ...], out: Outputs, scalars: dict[str, float]
    ) -> Result:
        """Run once on NumPy's arrays."""
        convention, every, slots = self._packed(arrays, out, None, scalars)
        launch = launch_of(convention.built, slots)
        with span(self._launching):
            launch.launch()
        if convention.built.parts and convention.hidden:
            convention.spare.append(every[-1])
        into = out is not None
        if not self._is_timed() and self._recent.again(convention, into):
            record = self._recent.on_host(convention, arrays, given=into)
            self._remember(record)
        result: Result = convention.result(every)
        return result

    def _inlined(
        self, arrays: tuple[Any, ...], out: Outputs, scalars: dict[str, Any]
    ) -> Result:
        """Return the outputs of a call within another kernel, as values of that."""
        if out is not None:
            raise KernelError(
                f"{self.name}: out was given where another kernel calls it, expected "
                "none; its results are values there: return them."
            )
        given = arguments.constants(self.signature, arrays)
        values = binding.scalar_values(self.signature, scalars)
        found: Result = inlined(self.function, self.signature, given, values)
        return found

    def _is_timed(self) -> bool:
        """Whether calls are to come to Python: what native code launches has no span."""
        if not listening() or self._timed >= LAUNCHES:
            return False
        self._timed += 1
        if self._timed == LAUNCHES:
            with span(f"{self._launching}, not timed from {LAUNCHES} on"):
                pass
        return True

    def _remember(self, record: Record | None) -> None:
        if record is not None:
            self.__call__ = self._recent.remember(record)

    def _offer(self, packed: Packed, caller: Caller) -> None:
        """Have native code recognise a call with tensors, from its second time on."""
        if packed.convention.built.parts:
            return
        if self._recent.again(packed.convention, packed.stream):
            self._remember(self._recent.on_gpu(packed, *caller.template()))

    def _on_gpus(self) -> Calls:
        """Return what is known of calls on GPUs."""
        if self._calls is None:
            from steelyard_kernels.calling.cuda_calls import Calls

            self._calls = Calls(
                self.signature, self._convention, self.build, self._offer
            )
            self._known = self._calls.known
        return self._calls

    def _packed(
        self,
        arrays: tuple[Array, ...],
        out: Outputs,
        schedule: Schedule | None,
        scalars: dict[str, float],
    ) -> tuple[Convention, Sequence[Array], list[int]]:
        """Check the arguments; return the convention, all its arrays and its slots' words."""
        for parameter, array in zip(self.signature.arrays, arrays, strict=False):
            binding.check_array(self.name, parameter, array)
        convention = self._convention(arrays, schedule, CPU, aligned=True)
        binding.check_updated(convention, arrays)
        every = [*arrays, *binding.outputs_of(convention, out)]
        addresses = [binding.address(array) for array in every]
        if convention.streams and any(
            addresses[number] % LINE for number in convention.outputs
        ):
            convention = self._convention(arrays, schedule, CPU, aligned=False)
        binding.check_overlap(convention, addresses)
        values = self._defaults
        if scalars or values is None:
            values = binding.scalar_values(self.signature, scalars)
        return convention, every, binding.packed(convention, addresses, values)

    def _convention(
        self,
        arrays: tuple[Any, ...],
        schedule: Schedule | None,
        target: str,
        *,
        aligned: bool,
    ) -> Convention:
        """Return a build's convention, remembered as the build is; raises what failed."""
        key = arguments.key_of(arrays, schedule, target, aligned=aligned)
        convention = self._conventions.get(key)
        if convention is None:
            built = self.build(
                *[(array.shape, array.dtype) for array in arrays],
                schedule=schedule,
                target=target,
                aligned=aligned,
            )
            if isinstance(built, Failure):
                raise built.raised()
            convention = self._conventions[key] = convention_of(built, aligned=aligned)
        return convention

    def _specs(self, arrays: tuple[Array | Spec, ...]) -> list[Spec]:
        return arguments.specs_of(self.signature, arrays)


def _named(module: str, name: str) -> Any:
    """Return what a module has under a dotted name; None where it has nothing."""
    found: Any = importlib.import_module(module)
    for part in name.split("."):
        found = getattr(found, part, None)
    return found


def kernel(function: Callable[..., Any]) -> KernelFunction:
    """Make a kernel of a plain function; see the module's example."""
    return KernelFunction(function)
