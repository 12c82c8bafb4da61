"""A launch that is captured of a program: all but the GPU, which is made up."""

# ruff: noqa: D102 - the made-up GPU has the methods of `Memory`

import ctypes
import json
import re
from types import SimpleNamespace

import numpy as np
import pytest
from cuda_programs import SCALE, TEXTURE

from steelyard.errors import SteelyardError
from steelyard.machine import mangled
from steelyard.prepare import capsule_work, capsules
from steelyard.process import attached
from steelyard_device import binary, cubin, nvrtc
from steelyard_device.cuda import calls
from steelyard_device.cuda.calls import Call
from steelyard_device.cuda.capture import Capture
from steelyard_device.errors import DeviceError

pytest.importorskip("cuda.bindings.nvrtc", reason="needs the cuda extra")

BASE, OTHER = 0x7F00_0000_0000, 0x7F00_1000_0000
"""Where the made-up GPU has memory."""

PLACES = [(0, 8), (8, 4)]
"""Of `scale`'s parameters, a pointer and a number."""


class Numbers:
    """Names by number, as CUPTI has them."""

    def __getattr__(self, name):
        return sum(name.encode())


CUPTI = SimpleNamespace(
    CallbackDomain=SimpleNamespace(DRIVER_API=1, RESOURCE=3),
    CallbackIdResource=SimpleNamespace(MODULE_LOADED=6),
    DriverApiTraceCbid=Numbers(),
    subscribe=lambda called, user: 1,
    enable_callback=lambda *args: None,
)


class Gpu:
    """Memory of a GPU whose one kernel doubles floats; `drift` is added each time."""

    def __init__(self, drift=0.0):
        self.held = {BASE: np.arange(64, dtype=np.float32), OTHER: np.ones(4, "f4")}
        self.drift = drift
        self.recording = False
        self.launched = []

    def wait(self):
        pass

    def is_recording(self, stream):
        return self.recording

    def parameters(self, function):
        return PLACES

    def around(self, address):
        for base, data in self.held.items():
            if 0 <= address - base < data.nbytes:
                return {base: data.nbytes}
        return {}

    def read(self, base, size):
        return self.held[base].view(np.uint8)[:size].copy()

    def write(self, base, content):
        self.held[base].view(np.uint8)[:] = content

    def load(self, image, entry, shared):
        assert entry in cubin.entries(image)
        return 77

    def launch(self, function, call):
        self.launched.append(function)
        address, count = (v for v in call.values(PLACES))
        first = (int.from_bytes(address, "little") - BASE) // 4
        n = int.from_bytes(count, "little")
        self.drift *= 2
        self.held[BASE][first : first + n] = 2 * self.held[BASE][first : first + n] + 1
        self.held[BASE][first] += self.drift


class Arguments:
    """What a program hands the driver, alive as long as this is."""

    def __init__(self, address=BASE + 16, count=8, attributes=()):
        self.pointer, self.count = ctypes.c_uint64(address), ctypes.c_uint32(count)
        both = ctypes.addressof(self.pointer), ctypes.addressof(self.count)
        self.each = (ctypes.c_void_p * 2)(*both)
        where = (2, 1, 1, 4, 1, 1, 64, 5)
        self.plain = calls._Plain(9, *where, ctypes.addressof(self.each), None)
        several = [
            calls._Attribute(number, (ctypes.c_uint32 * 16)(*value))
            for number, value in attributes
        ]
        self.attributes = (calls._Attribute * len(several))(*several)
        self.config = calls._Config(*where, self.attributes, len(several))
        config = ctypes.pointer(self.config)
        self.extended = calls._Extended(config, 9, ctypes.addressof(self.each), None)


@pytest.fixture(scope="module")
def image():
    """Return a cubin with the kernel `scale`."""
    return nvrtc.compile(SCALE, "sm_90a").cubin


def loaded(image):
    """Return CUPTI's data of a cubin that was loaded."""
    body = ctypes.create_string_buffer(image, len(image))
    module = calls._Module(1, len(image), ctypes.addressof(body))
    data = calls._Resource(None, None, ctypes.addressof(module))
    return SimpleNamespace(ptr=ctypes.addressof(data), alive=(body, module, data))


def launch(capture, gpu, arguments, *, entry="scale", name="cuLaunchKernel", number=1):
    """Launch as a program does, under the eyes of CUPTI."""
    told = arguments.extended if "Ex" in name else arguments.plain
    data = SimpleNamespace(
        symbol_name=entry,
        correlation_id=number,
        function_params=ctypes.addressof(told),
        callback_site=0,
    )
    cbid = getattr(CUPTI.DriverApiTraceCbid, name)
    capture._called(None, 1, cbid, data)
    gpu.launch(9, Call.of(name, ctypes.addressof(told)))
    data.callback_site = 1
    capture._called(None, 1, cbid, data)


def capturing(gpu, image, kernel="scale", number=1):
    """Return a capture that begins, with the cubin loaded."""
    capture = Capture(CUPTI, attached._named(kernel), number, gpu)
    capture.begin()
    if image:
        capture._called(None, 3, 6, loaded(image))
    return capture


def test_a_launch_is_taken_with_its_memory_and_what_it_wrote(image):
    """The second of three; the program goes on with what its own launch left."""
    gpu, arguments = Gpu(), Arguments()
    capture = capturing(gpu, image, number=2)
    for number in range(1, 4):
        launch(capture, gpu, arguments, number=number)
    assert not capture.why
    found = capture.found
    assert (found.entry, found.image, found.repeats) == ("scale", image, True)
    assert (found.grid, found.block, found.shared) == ((2, 1, 1), (4, 1, 1), 64)
    (region,) = found.regions
    once = np.arange(64, dtype=np.float32)
    once[4:12] = 2 * once[4:12] + 1
    twice = once.copy()
    twice[4:12] = 2 * once[4:12] + 1
    np.testing.assert_array_equal(region.before.view("f4"), once)
    np.testing.assert_array_equal(region.after.view("f4"), twice)
    assert found.pointers(found.parameters[0]) == [(0, 0, 16)]
    assert found.pointers(found.parameters[1]) == []
    assert gpu.launched == [9, 9, 77, 9]
    np.testing.assert_array_equal(gpu.held[BASE][4:12], 2 * twice[4:12] + 1)


def test_its_capsule_says_where_addresses_lie(image, tmp_path):
    """It can be opened, and its words are those of the program at other addresses."""
    gpu, arguments = Gpu(), Arguments()
    capture = capturing(gpu, image)
    launch(capture, gpu, arguments)
    folder, home = tmp_path / "members", tmp_path / "home"
    home.mkdir()
    content = attached.record(capture.found, 1, "x/prog.py", folder)
    content = json.loads(json.dumps(content))  # as its process hands it on
    members = {
        str(file.relative_to(folder)): file.read_bytes()
        for file in folder.rglob("*")
        if file.is_file()
    }
    sealed = capsule_work.drafted(content, members, home)
    assert sealed.case().id == "scale[launch=1]"
    manifest = sealed.capsule.manifest
    words = binary.words(manifest["launch"]["slots"], {"memory0": 0x1000})
    assert words == [(0x1010).to_bytes(8, "little"), (8).to_bytes(4, "little")]
    places, wanted = sealed.capsule.known(0)
    after = capture.found.regions[0].after
    np.testing.assert_array_equal(after[places], wanted)
    assert 0 < len(places) <= 32
    (handle,) = sealed.described().handles
    assert (handle.role, handle.shape, handle.dtype) == ("inout", (256,), "uint8")
    for change, why in (
        ({"at": [[1, "memory0", 0]]}, "behind its end"),
        ({"at": [[0, "memory1", 0]]}, "no array"),
        ({"at": [[0, "memory0", 257]]}, "no array"),
    ):
        slot = content["launch"]["slots"][0]
        broken = content | {
            "launch": content["launch"]
            | {"slots": [[*slot[:2], slot[2] | change], content["launch"]["slots"][1]]}
        }
        with pytest.raises(SteelyardError, match=why):
            capsules.read(capsules.write(broken, members | {capsules.RUN: b"{}"}))


def test_results_that_change_from_launch_to_launch_are_not_checked(image, tmp_path):
    """They are of one cubin, and nothing else can be known of them."""
    gpu, arguments = Gpu(drift=1.0), Arguments()
    capture = capturing(gpu, image)
    launch(capture, gpu, arguments)
    assert capture.found
    assert not capture.found.repeats
    assert attached.record(capture.found, 1, "p.py", tmp_path / "m")["check"] is None


def test_code_that_is_loaded_while_it_is_asked_for_counts(image):
    """The driver loads lazily, within our own questions too."""
    gpu, arguments = Gpu(), Arguments()
    capture = capturing(gpu, None)
    gpu.parameters = lambda _: capture._called(None, 3, 6, loaded(image)) or PLACES
    launch(capture, gpu, arguments)
    assert capture.found.image == image


@pytest.mark.parametrize(
    ("name", "changes", "why"),
    [
        ("cuLaunchKernelEx", {"attributes": [(4, (1, 1, 1)), (6, (1,))]}, ""),
        ("cuLaunchKernelEx", {"attributes": [(4, (2, 1, 1))]}, "has clusters"),
        ("cuLaunchKernelEx", {"attributes": [(2, (1,))]}, "is cooperative"),
        ("cuLaunchCooperativeKernel", {}, "is cooperative"),
    ],
)
def test_what_no_plain_launch_repeats_is_refused(name, changes, why, image):
    """In a sentence, and the program goes on."""
    gpu, arguments = Gpu(), Arguments(**changes)
    capture = capturing(gpu, image)
    launch(capture, gpu, arguments, name=name)
    assert (capture.found is None) == bool(why)
    assert re.search(why, capture.why)


def test_what_cannot_be_copied_or_found_is_refused(image, monkeypatch):
    """Graphs, code that nobody saw being loaded, and more than a capsule holds."""
    gpu = Gpu()
    gpu.recording = True
    capture = capturing(gpu, image)
    launch(capture, gpu, Arguments())
    assert "goes into a graph" in capture.why
    capture = capturing(gpu := Gpu(), None)
    launch(capture, gpu, Arguments())
    assert "no cubin with scale was seen" in capture.why
    monkeypatch.setattr("steelyard_device.cuda.capture.LARGEST", 100)
    capture = capturing(gpu := Gpu(), image)
    launch(capture, gpu, Arguments())
    assert "reaches" in capture.why
    assert gpu.launched == [9]


def test_textures_and_tensors_are_told_by_their_instructions():
    """Handles and descriptors hold no address that could be moved."""
    image = nvrtc.compile(TEXTURE, "sm_90a").cubin
    gpu = Gpu()
    capture = capturing(gpu, image, "look")
    launch(capture, gpu, Arguments(), entry="look")
    assert "look reads textures or surfaces" in capture.why


def test_a_kernel_is_named_as_it_is_mangled_written_or_called():
    """As a whole; a star is anything."""
    name = "_ZN2at6native29vectorized_elementwise_kernelILi4EfEEvPT0_"
    assert mangled.word(name) == "vectorized_elementwise_kernel"
    for kernel in (name, "vectorized_elementwise_kernel", "*elementwise*", "at::*"):
        assert attached._named(kernel)(name), kernel
    for kernel in ("elementwise", "kernel", "at::", "", "vectorized.*"):
        assert not attached._named(kernel)(name), kernel
    assert attached._named("kernel")("kernel")


def test_parameters_may_come_in_one_buffer():
    """As `extra` hands them over; and what launches nothing is no launch."""
    body = ctypes.create_string_buffer(bytes(range(16)), 16)
    size = ctypes.c_size_t(16)
    extra = (ctypes.c_uint64 * 5)(
        1, ctypes.addressof(body), 2, ctypes.addressof(size), 0
    )
    arguments = Arguments()
    arguments.plain.parameters, arguments.plain.extra = 0, ctypes.addressof(extra)
    call = Call.of("cuLaunchKernel_ptsz", ctypes.addressof(arguments.plain))
    assert call.values(PLACES) == [bytes(range(8)), bytes(range(8, 12))]
    with pytest.raises(DeviceError, match="launches no kernel"):
        Call.of("cuMemFree", 0)
