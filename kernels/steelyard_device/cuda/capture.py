"""One launch of a program that nobody rewrote, with its code and all memory that it reaches.

CUPTI calls back when the driver loads a cubin and when a launch begins and ends. Around
the launch that is wanted, memory that its parameters point to is copied; what the launch
changed is what it wrote. It is then launched again on what was there before, out of the
cubin that was found: what it leaves must be the same, byte for byte.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final

import numpy as np
from msgspec import Struct, field
from numpy.typing import NDArray

from steelyard_device import cubin
from steelyard_device.cuda import calls
from steelyard_device.cuda.calls import Call
from steelyard_device.cuda.launch import FREE_SHARED
from steelyard_device.cuda.module import check_whole
from steelyard_device.errors import DeviceError

HOST: Final = 1
"""CU_MEMORYTYPE_HOST."""

LOWEST: Final = 1 << 20
"""Numbers below are no addresses."""


class Memory:
    """What a launch reaches, of a program that has CUDA's driver to itself.

    Nothing is set up here: calls go to the context that is current, as the program's do.

    Raises:
        DeviceError: the driver refuses a call, or memory cannot be copied.
    """

    def __init__(self) -> None:
        from cuda.bindings import driver  # pyright: ignore[reportAttributeAccessIssue] - compiled, without stubs

        self._driver: Any = driver

    def _ask(self, function: str, *args: Any) -> Any:
        status, *values = getattr(self._driver, function)(*args)
        if int(status):
            raise DeviceError(f"{function} failed with {status.name}")
        return values[0] if len(values) == 1 else values

    def wait(self) -> None:
        """Wait for everything that was submitted."""
        self._ask("cuCtxSynchronize")

    def is_recording(self, stream: int) -> bool:
        """Whether launches of a stream go into a graph."""
        return bool(int(self._ask("cuStreamIsCapturing", stream)))

    def parameters(self, function: int) -> list[tuple[int, int]]:
        """Return offset and bytes of each parameter of a function, or of a kernel."""
        for handle, query in self._handles(function):
            found: list[tuple[int, int]] = []
            while True:
                status, *info = getattr(self._driver, query)(handle, len(found))
                if int(status):
                    break
                found.append((int(info[0]), int(info[1])))
            if found:
                return found
        return []

    def _handles(self, function: int) -> list[tuple[Any, str]]:
        """Libraries launch kernels where functions are expected."""
        return [
            (self._driver.CUfunction(function), "cuFuncGetParamInfo"),
            (self._driver.CUkernel(function), "cuKernelGetParamInfo"),
        ]

    def around(self, address: int) -> dict[int, int]:
        """Return base and bytes of the allocation that an address lies in, if in any."""
        if address < LOWEST:
            return {}
        names = self._driver.CUpointer_attribute
        kind = names.CU_POINTER_ATTRIBUTE_MEMORY_TYPE
        status, found = self._driver.cuPointerGetAttribute(kind, address)
        if int(status) or not found:
            return {}
        if int(found) == HOST:
            raise DeviceError("a parameter points to memory of the host")
        base, size = self._ask("cuMemGetAddressRange", address)
        return {int(base): int(size)}

    def read(self, address: int, size: int) -> NDArray[np.uint8]:
        """Return a copy of memory."""
        room = np.empty(size, np.uint8)
        self._ask("cuMemcpyDtoH", room.ctypes.data, address, size)
        return room

    def write(self, address: int, content: NDArray[np.uint8]) -> None:
        """Overwrite memory."""
        self._ask("cuMemcpyHtoD", address, content.ctypes.data, content.size)

    def load(self, image: bytes, entry: str, shared: int) -> int:
        """Return a function of a cubin, for launches with so much dynamic memory."""
        check_whole(image)
        module = self._ask("cuModuleLoadData", image)
        function = self._ask("cuModuleGetFunction", module, entry.encode())
        if shared > FREE_SHARED:
            names = self._driver.CUfunction_attribute
            limit = names.CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES
            self._ask("cuFuncSetAttribute", function, limit, shared)
        return int(function)

    def launch(self, function: int, call: Call) -> None:
        """Launch a function as the program's was."""
        where = call.shared, call.stream, call.parameters, call.extra
        self._ask("cuLaunchKernel", function, *call.grid, *call.block, *where)


Bytes = NDArray[np.uint8]

LARGEST: Final = 768 << 20
"""Bytes of memory that are captured at most: a capsule has to hold them."""

TEXTURES: Final = ("TEX", "TLD", "TLD4", "TXD", "TXQ", "SULD", "SUST", "SURED")
"""Instructions that take their address from an object that only its process knows."""

NAMES: Final = (*calls.PLAIN, *calls.EXTENDED, *calls.COOPERATIVE)

_ENTER, _LEAVE = 0, 1
"""CUpti_ApiCallbackSite."""


class Region(Struct, frozen=True):
    """Memory that was allocated at once, from its address on."""

    address: int
    before: Bytes
    after: Bytes
    """What the launch left; `before` itself where that is the same."""

    @property
    def written(self) -> bool:
        """Whether the launch changed it."""
        return self.after is not self.before


class Launched(Struct, frozen=True):
    """What a launch took, all of it copied."""

    entry: str
    image: bytes
    """The cubin."""
    grid: tuple[int, int, int]
    block: tuple[int, int, int]
    shared: int
    parameters: Sequence[bytes]
    regions: Sequence[Region]
    repeats: bool
    """Whether another launch on the same memory leaves the same bytes."""

    def pointers(self, parameter: bytes) -> list[tuple[int, int, int]]:
        """Return where a parameter holds addresses: byte, region, bytes within that."""
        found = []
        for place in range(0, len(parameter) - 7, 8):
            value = int.from_bytes(parameter[place : place + 8], "little")
            for number, one in enumerate(self.regions):
                if 0 <= value - one.address < one.before.size:
                    found.append((place, number, value - one.address))
        return found


class _Open(Struct):
    """A launch that is under way."""

    number: int
    entry: str
    call: Call
    sizes: list[tuple[int, int]]
    parameters: list[bytes]
    before: dict[int, Bytes] = field(default_factory=dict)


class Capture:
    """Waits for launch ``number``, from 1 on, among those of kernels that are wanted.

    ``wanted`` says so of a kernel's name as its compiler mangled it. `found` is the
    launch, else `why` says what kept it from being one.
    """

    def __init__(
        self,
        cupti: Any,
        wanted: Callable[[str], bool],
        number: int = 1,
        memory: Memory | None = None,
    ) -> None:
        self._cupti, self._wanted, self._number = cupti, wanted, number
        self._memory = memory or Memory()
        self._images: list[bytes] = []
        self._open: _Open | None = None
        self._own = False
        """Whether a call is ours: a callback's calls are called back too."""
        self.seen = 0
        self.found: Launched | None = None
        self.why = ""

    def begin(self) -> None:
        """Be called back from now on."""
        cupti = self._cupti
        resource, driver = (
            cupti.CallbackDomain.RESOURCE,
            cupti.CallbackDomain.DRIVER_API,
        )
        self._resource = int(resource)
        numbers = cupti.DriverApiTraceCbid
        self._calls = {int(getattr(numbers, name)): name for name in NAMES}
        subscriber = cupti.subscribe(self._called, None)
        loaded = cupti.CallbackIdResource.MODULE_LOADED
        cupti.enable_callback(1, subscriber, resource, loaded)
        for number in self._calls:
            cupti.enable_callback(1, subscriber, driver, number)

    def _called(self, _user: object, domain: int, number: int, data: Any) -> None:
        """Look at a call of the program's; nothing is raised into it."""
        if self.found is not None or self.why:
            return
        loads = domain == self._resource
        if self._own and not loads:  # asking for a function may be what loads its code
            return
        before, self._own = self._own, True
        try:
            if loads:
                image = calls.image(int(data.ptr))
                if any(map(self._wanted, cubin.entries(image))):
                    self._images.append(image)
            elif data.callback_site == _ENTER:
                self._enter(number, data)
            elif self._open and self._open.number == data.correlation_id:
                self.found = self._leave(self._open)
                self._open, self._images = None, []
        except Exception as error:  # noqa: BLE001 # the program goes on, whatever it was
            self.why = str(error) or type(error).__name__
        finally:
            self._own = before

    def _enter(self, number: int, data: Any) -> None:
        entry = data.symbol_name
        if not entry or not self._wanted(entry):
            return
        self.seen += 1
        if self.seen != self._number:
            return
        call = Call.of(self._calls[number], int(data.function_params))
        if call.refused:
            raise DeviceError(f"a launch of {entry} {call.refused}")
        if self._memory.is_recording(call.stream):
            raise DeviceError(f"a launch of {entry} goes into a graph that is recorded")
        sizes = self._memory.parameters(call.function)
        opened = _Open(
            data.correlation_id, entry, call, sizes, list(call.values(sizes))
        )
        self._memory.wait()
        self._open = self._with_memory(opened)

    def _with_memory(self, opened: _Open) -> _Open:
        """Copy all memory that the parameters point into."""
        held: dict[int, int] = {}
        for parameter in opened.parameters:
            for place in range(0, len(parameter) - 7, 8):
                value = int.from_bytes(parameter[place : place + 8], "little")
                if not any(0 <= value - base < held[base] for base in held):
                    held.update(self._memory.around(value))
        if sum(held.values()) > LARGEST:
            raise DeviceError(
                f"a launch of {opened.entry} reaches {sum(held.values()) >> 20} MiB of "
                f"allocated memory, and {LARGEST >> 20} are captured at most"
            )
        opened.before = {base: self._memory.read(base, held[base]) for base in held}
        return opened

    def _leave(self, opened: _Open) -> Launched:
        memory, before = self._memory, opened.before
        memory.wait()
        after = {base: memory.read(base, old.size) for base, old in before.items()}
        written = [b for b in before if not np.array_equal(before[b], after[b])]
        after |= {base: old for base, old in before.items() if base not in written}

        def again(function: int) -> bool:
            """Launch it on what was there before; say whether it leaves the same."""
            for base in written:
                memory.write(base, before[base])
            memory.launch(function, opened.call)
            memory.wait()
            return all(
                np.array_equal(memory.read(base, old.size), after[base])
                for base, old in before.items()
            )

        try:
            image, repeats = self._image(opened, again)
        finally:  # as the program left it
            for base in written:
                memory.write(base, after[base])
        call = opened.call
        regions = [Region(base, before[base], after[base]) for base in sorted(before)]
        return Launched(
            opened.entry,
            image,
            call.grid,
            call.block,
            call.shared,
            opened.parameters,
            regions,
            repeats,
        )

    def _image(self, opened: _Open, again: Callable[[int], bool]) -> tuple[bytes, bool]:
        """Return the cubin of a launch, and whether it leaves the same each time."""
        entry = opened.entry
        several = list(
            dict.fromkeys(i for i in self._images if entry in cubin.entries(i))
        )
        if not several:
            raise DeviceError(
                f"no cubin with {entry} was seen being loaded: it may come from a "
                "library that loads its code in another way"
            )
        _require_plain(entry, cubin.read(several[-1])[entry])
        for image in reversed(several):
            function = self._memory.load(image, entry, opened.call.shared)
            if self._memory.parameters(function) == opened.sizes and again(function):
                return image, True
        if again(opened.call.function):
            raise DeviceError(
                f"{entry} of the cubin that was loaded leaves other bytes than the "
                "program's launch: it depends on more than its parameters, such as "
                "variables of its module"
            )
        if len(several) > 1:
            raise DeviceError(
                f"{entry} is in {len(several)} cubins and leaves other bytes each time, "
                "so that nothing tells which was launched"
            )
        return several[0], False


def _require_plain(entry: str, taken: cubin.Resources) -> None:
    """Refuse code that takes addresses from more than memory."""
    used = [name for name, _ in taken.opcodes if name in TEXTURES]
    if used:
        raise DeviceError(f"{entry} reads textures or surfaces ({', '.join(used)})")
    tensors = [name for name, _ in taken.opcodes if name.startswith("UTMA")]
    if tensors:
        raise DeviceError(
            f"{entry} copies tensors by descriptors ({', '.join(tensors)}), whose "
            "addresses cannot be told apart"
        )
