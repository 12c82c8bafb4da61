"""LLVM IR text to machine code in this process, through llvmlite.

No pass pipeline runs: programs arrive in SSA, vectorised and hoisted by whoever
wrote them, and the pipeline would cost three times the build for no steady gain. Of our
own, whose locals are memory, two passes make registers.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from time import perf_counter_ns

import llvmlite
import llvmlite.binding as llvm
from msgspec import Struct, field
from msgspec.structs import replace

from steelyard_device import threads
from steelyard_device.disk import kept
from steelyard_device.errors import LLVMError

# llvmlite's own lock: a child of a fork in another thread's call would wait for it for ever.
threads.held_at_fork(llvm.ffi.lib._lock)  # noqa: SLF001 # it has no public name

Recorder = Callable[[str, int], None]
"""Told the name of each finished phase and its nanoseconds."""


class Host(Struct, frozen=True):
    """The machine that code is made for."""

    triple: str
    cpu: str
    features: frozenset[str]
    vector_bytes: int
    """Width of one vector register."""

    @property
    def architecture(self) -> str:
        """``x86_64``, ``aarch64``, ..."""
        return self.triple.partition("-")[0]


@functools.cache
def host() -> Host:
    """Describe this machine, as LLVM sees it."""
    names = llvm.get_host_cpu_features()
    features = frozenset(name for name, present in names.items() if present)
    width = 64 if "avx512f" in features else 32 if "avx2" in features else 16
    return Host(
        triple=llvm.get_process_triple(),
        cpu=llvm.get_host_cpu_name(),
        features=features,
        vector_bytes=width,
    )


def assemble(
    text: str, recorder: Recorder | None = None, *, registers: bool = False
) -> bytes:
    """Translate LLVM IR ``text`` to object code for this machine.

    ``recorder`` hears of the phases ``parse``, ``verify`` and ``codegen``. With
    ``registers`` what can be in registers is no memory any more.

    Raises:
        LLVMError: the text is not a legal LLVM program.
    """
    started = perf_counter_ns()
    with refusing():
        module = llvm.parse_assembly(text)
        parsed = _told(recorder, "parse", started)
        module.verify()
        verified = _told(recorder, "verify", parsed)
        if registers:
            passes = llvm.create_new_module_pass_manager()
            passes.add_sroa_pass()
            passes.add_simplify_cfg_pass()
            options = llvm.create_pipeline_tuning_options()
            passes.run(module, llvm.create_pass_builder(_session().machine, options))
    code = _emitted(module)
    _told(recorder, "codegen", verified)
    return code


@contextmanager
def refusing() -> Iterator[None]:
    """Have LLVM's words on a program that is none be an `LLVMError`."""
    try:
        yield
    except RuntimeError as error:
        raise LLVMError(f"LLVM rejected the program: {str(error).strip()}") from error


def own(
    named: str, entries: Sequence[str], make: Callable[[], str] | None = None
) -> dict[str, int]:
    """Load one of our own programs, which every process needs; see `link`.

    It is LLVM IR whose locals may be memory, or named by all that `make` makes it of.
    Object code is kept by that, this machine and LLVM's build.
    """

    def made() -> bytes:
        return assemble(make() if make else named, registers=True)

    where = replace(host(), features=frozenset()), sorted(host().features)
    build = llvmlite.__version__, llvm.llvm_version_info
    return link(kept("native", repr((named, where, build)), made), entries)


def _told(recorder: Recorder | None, phase: str, since: int) -> int:
    """Tell of a phase that ends now, and return when that is."""
    now = perf_counter_ns()
    if recorder is not None:
        recorder(phase, now - since)
    return now


def _emitted(module: llvm.ModuleRef) -> bytes:
    machine = _session().machine
    with without_strength_reduction():
        code: bytes = machine.emit_object(module)
    return code


@contextmanager
def without_strength_reduction() -> Iterator[None]:
    """Emit code without loop strength reduction.

    It takes a quarter of code generation and gains nothing measurable on programs that
    spell their addresses out. The switch is the process's, so it is put back for other
    users of the same LLVM (Numba), and no other thread of ours emits code meanwhile.
    """
    with threads.LOCK:
        llvm.set_option("", "-disable-lsr=true")
        try:
            yield
        finally:
            llvm.set_option("", "-disable-lsr=false")


def link(code: bytes, entries: Sequence[str]) -> dict[str, int]:
    """Load object ``code`` and return the address of each of its ``entries``.

    The code stays loaded for the life of the process.

    Raises:
        LLVMError: an entry or a symbol it needs is missing.
    """
    session = _session()
    builder = llvm.JITLibraryBuilder().add_object_img(code).add_current_process()
    for entry in entries:
        builder = builder.export_symbol(entry)
    try:
        # A name is spent even when its linking fails.
        library = builder.link(session.jit, f"steelyard{next(session.numbers)}")
    except RuntimeError as error:
        names = ", ".join(entries)
        raise LLVMError(
            f"linking {names} failed: {str(error).strip()}. Link what `assemble` made "
            "of a program that defines each entry and all it calls."
        ) from error
    session.libraries.append(library)
    return {entry: library[entry] for entry in entries}


class _Session(Struct):
    """What LLVM needs once per process; libraries live as long as it does."""

    machine: llvm.TargetMachine
    jit: llvm.LLJIT
    libraries: list[llvm.ResourceTracker] = field(default_factory=list)
    numbers: Iterator[int] = field(default_factory=itertools.count)


@threads.Once
def _session() -> _Session:
    """Return the session of this process."""
    llvm.initialize_native_target()
    llvm.initialize_native_asmprinter()
    # The other linker maps code and constants apart, and dies where no room was left
    # within 2 GiB of each other: a GPU's driver takes most of the addresses.
    jit = llvm.create_lljit_compiler(_target_machine(), use_jit_link=True)
    return _Session(machine=_target_machine(), jit=jit)


def _target_machine() -> llvm.TargetMachine:
    target = llvm.Target.from_triple(host().triple)
    return target.create_target_machine(
        cpu=host().cpu,
        features=llvm.get_host_cpu_features().flatten(),
        opt=2,
        reloc="pic",
        codemodel="small",
        jit=True,
    )
