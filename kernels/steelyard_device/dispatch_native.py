"""The native half of a call from Python: which launch it is, and the launch.

A call's arrays are compared with those of remembered calls, field by field of NumPy's
array struct (its layout is that of `ndarraytypes.h`, the same since NumPy 1.7) or of
what a library's DLPack exchange table says (dlpack.h 1.2). The first that is equal is
launched with these addresses; where none is, the Python function is called.

Everything lies in words of 8 bytes: `Record` and what it points to as `dispatch` packs them,
`Host` what each process has at other places.
"""

from __future__ import annotations

from typing import Final

from steelyard_device.native import CLEAR

SMALL: Final = 4096
"""Bytes of a result from which on it starts on a cache line, at the price of another
object: below, two lines of it are not worth a larger block of NumPy's."""

GIVEN: Final = {"SMALL": str(SMALL), "CLEAR": CLEAR}

SOURCE: Final = """
class Host:
    int_type: ptr
    float_type: ptr
    tuple_type: ptr
    none: ptr
    uint8: ptr
    new: fn[ptr]
    set_base: fn[i32]
    fork_join: fn[void]

class Array:
    type: ptr
    dtype: i64
    dimensions: i64
    flags: i64
    shape: ptr[i64]
    strides: ptr[i64]
    bytes: i64
    counts: i64

class Pair:
    one: i64
    other: i64
    one_size: i64
    other_size: i64

class Place:
    word: i64
    array: i64

class Scalar:
    name: ptr
    place: i64
    kind: i64

class Record:
    foreign: i64
    inputs: i64
    outputs: i64
    given: i64
    arrays: ptr[Array]
    mask: i64
    off: i64
    pairs: ptr[Pair]
    pair_count: i64
    words: ptr
    word_count: i64
    places: ptr[Place]
    place_count: i64
    scalars: ptr[Scalar]
    scalar_count: i64
    needed: i64
    function: ptr
    pool: ptr
    quick: i64
    kind: i64
    results: ptr[i64]
    result_count: i64
    keys: ptr[ptr]
    out_name: ptr
    exchange: fn[i32]
    stream_of: fn[i32]
    stream: i64
    device: i64
    batch: ptr
    kernel: ptr
    use: i64

class PyArray:
    references: i64
    type: ptr
    data: i64
    dimensions: i32
    shape: ptr[i64]
    strides: ptr
    base: ptr
    dtype: i64
    flags: i32

class Tensor:
    data: i64
    device: i64
    dimensions: i32
    dtype: i32
    shape: ptr[i64]
    strides: ptr[i64]
    offset: i64

def Py_IncRef(it: ptr): ...
def Py_DecRef(it: ptr): ...
def PyBytes_AsString(it: ptr) -> ptr: ...
def PyTuple_GetItem(it: ptr, place: i64) -> ptr: ...
def PyTuple_Size(it: ptr) -> i64: ...
def PyTuple_New(size: i64) -> ptr: ...
def PyTuple_SetItem(it: ptr, place: i64, item: ptr) -> i32: ...
def PyDict_New() -> ptr: ...
def PyDict_SetItem(it: ptr, key: ptr, item: ptr) -> i32: ...
def PyFloat_AsDouble(it: ptr) -> double: ...
def PyLong_AsDouble(it: ptr) -> double: ...
def PyLong_AsLongLong(it: ptr) -> i64: ...
def PyErr_Occurred() -> ptr: ...
def PyErr_Clear(): ...
def PyObject_Vectorcall(it: ptr, args: ptr, count: i64, names: ptr) -> ptr: ...
def PyEval_SaveThread() -> ptr: ...
def PyEval_RestoreThread(thread: ptr): ...
def memcpy(to: ptr, of: ptr, size: i64) -> ptr: ...

def dispatch(itself: ptr, args: ptr[ptr], count: i64, names: ptr) -> ptr:
    held = ptr[ptr](PyBytes_AsString(PyTuple_GetItem(itself, 0)))
    table = ptr[i64](held[0])
    done = room(i32, 1, 4)
    for i in range(table[0]):
        done[0] = 0
        record = ptr[Record](table[i + 1])
        result = attempt(ptr[Host](held[1]), record, args, count, names, done)
        if done[0] != 0:
            return result
    return PyObject_Vectorcall(PyTuple_GetItem(itself, 1), args, count, names)

def attempt(host: ptr[Host], record: ptr[Record], args: ptr[ptr], count: i64, names: ptr, done: ptr[i32]) -> ptr:
    "The result, or null; done is 0 where the record is of another call or did not launch."
    if count != record.inputs:
        return null
    words = room(i64, record.word_count, 16)
    memcpy(words, record.words, record.word_count * 8)
    out = room(ptr, 1, 8)
    out[0] = null
    if not keywords(host, record, address(args[count]), names, words, out):
        return null
    given = record.given != 0
    if given != (out[0] != null):
        return null
    total = count + record.outputs
    objects = room(ptr, total, 16)
    addresses = room(i64, total, 16)
    if not inputs(record, args, objects, addresses):
        return null
    if not outputs(host, record, out[0], objects, addresses):
        return null
    if not aligned(record, total, addresses) or not apart(record, addresses) or not on_stream(record):
        return null
    if not given and not allocate(host, record, total, objects, addresses):
        done[0] = 1
        return null
    for i in range(record.place_count):
        place = record.places[i]
        words[place.word] = words[place.word] + addresses[place.array]
    result = result_of(host, record, objects)
    if not given:
        drop(objects, count, total)
    if result == null:
        done[0] = 1
        return null
    use = record.use
    if use != 2:
        record.use = use << 1  # with the interpreter's lock: 0 stays 0, 1 is 2 meanwhile
        status = launch(host, record, words)
        record.use = use
        if status == 0:
            done[0] = 1
            return result
    Py_DecRef(result)
    return null

def keywords(host: ptr[Host], record: ptr[Record], values: ptr[ptr], names: ptr, words: ptr[i64], out: ptr[ptr]) -> i1:
    "Keyword arguments: out, and numbers of Python's own types into their words."
    numbers = 0
    if names != null:
        for i in range(PyTuple_Size(names)):
            name = PyTuple_GetItem(names, i)
            if name == record.out_name:
                out[0] = values[i]
                continue
            found = False
            for k in range(record.scalar_count):
                scalar = record.scalars[k]
                if scalar.name == name:
                    if not number(host, scalar, values[i], words):
                        return False
                    found = True
            if not found:
                return False
            numbers = numbers + 1
    return numbers >= record.needed

def number(host: ptr[Host], scalar: ptr[Scalar], value: ptr[ptr], words: ptr[i64]) -> i1:
    word = address(words[scalar.place])
    if scalar.kind == 0 and value[1] == host.float_type:
        ptr[double](word)[0] = PyFloat_AsDouble(value)
        return True
    if value[1] != host.int_type:
        return False
    if scalar.kind == 0:
        ptr[double](word)[0] = PyLong_AsDouble(value)
    else:
        word[0] = PyLong_AsLongLong(value)
    if PyErr_Occurred() == null:
        return True
    PyErr_Clear()
    return False

def inputs(record: ptr[Record], args: ptr[ptr], objects: ptr[ptr], addresses: ptr[i64]) -> i1:
    for i in range(record.inputs):
        if not placed(record, args[i], i, objects, addresses):
            return False
    return True

def outputs(host: ptr[Host], record: ptr[Record], out: ptr[ptr], objects: ptr[ptr], addresses: ptr[i64]) -> i1:
    "One array as it is, or a tuple of several. Those not given are nowhere, far apart."
    count = record.outputs
    if out != null and count != 1:
        if out[1] != host.tuple_type or PyTuple_Size(out) != count:
            return False
    for i in range(count):
        at = record.inputs + i
        if out == null:
            addresses[at] = (at + 1) << 52
        else:
            one = out if count == 1 else PyTuple_GetItem(out, i)
            if not placed(record, one, at, objects, addresses):
                return False
    return True

def placed(record: ptr[Record], one: ptr[PyArray], place: i64, objects: ptr[ptr], addresses: ptr[i64]) -> i1:
    array = record.arrays[place]
    if one.type != array.type:
        return False
    objects[place] = one
    if record.foreign != 0:
        return tensor(record, one, array, address(addresses[place]))
    if one.dtype != array.dtype or i64(one.dimensions) != array.dimensions:
        return False
    if (i64(one.flags) & array.flags) != array.flags:
        return False
    addresses[place] = one.data
    return equal(one.shape, array.shape, array.dimensions)

def tensor(record: ptr[Record], one: ptr, array: ptr[Array], where: ptr[i64]) -> i1:
    seen = room(Tensor, 1, 8)
    if record.exchange(one, seen) != 0:
        PyErr_Clear()
        return False
    count = i64(seen.dimensions)
    if seen.device != record.device or count != array.dimensions or i64(seen.dtype) != array.dtype:
        return False
    if not equal(seen.shape, array.shape, count):
        return False
    if seen.strides != null and not equal(seen.strides, array.strides, count):
        return False
    where[0] = seen.data + seen.offset
    return True

def equal(one: ptr[i64], other: ptr[i64], count: i64) -> i1:
    for i in range(count):
        if one[i] != other[i]:
            return False
    return True

def aligned(record: ptr[Record], count: i64, addresses: ptr[i64]) -> i1:
    "Builds for aligned arrays take only these, those for others only others."
    if record.mask == 0:
        return True
    bits = 0
    for i in range(count):
        bits = bits | addresses[i] * record.arrays[i].counts
    return ((bits & record.mask) != 0) == (record.off != 0)

def apart(record: ptr[Record], addresses: ptr[i64]) -> i1:
    for i in range(record.pair_count):
        pair = record.pairs[i]
        distance = addresses[pair.one] - addresses[pair.other]
        if distance + pair.one_size > 0 and distance < pair.other_size:
            return False
    return True

def on_stream(record: ptr[Record]) -> i1:
    if record.foreign == 0:
        return True
    stream = room(i64, 1, 8)
    if record.stream_of(i32(record.device), i32(record.device >> 32), stream) != 0:
        PyErr_Clear()
        return False
    return stream[0] == record.stream

def allocate(host: ptr[Host], record: ptr[Record], end: i64, objects: ptr[ptr], addresses: ptr[i64]) -> i1:
    for i in range(record.inputs, end):
        one = new(host, record.arrays[i])
        if one == null:
            drop(objects, record.inputs, i)
            return False
        objects[i] = one
        addresses[i] = one.data
    return True

def new(host: ptr[Host], array: ptr[Array]) -> ptr[PyArray]:
    "An array of NumPy's own memory: a larger one starts on a cache line of another's."
    dtype = ptr(array.dtype)
    dimensions = i32(array.dimensions)
    if array.bytes < SMALL:
        Py_IncRef(dtype)
        return host.new(array.type, dtype, dimensions, array.shape, null, null, i32(0), null)
    size = room(i64, 1, 8)
    size[0] = array.bytes + 64
    Py_IncRef(host.uint8)
    base = ptr[PyArray](host.new(array.type, host.uint8, i32(1), size, null, null, i32(0), null))
    if base == null:
        return null
    line = base.data + 63 & -64
    Py_IncRef(dtype)
    inner = host.new(array.type, dtype, dimensions, array.shape, null, ptr(line), i32(1281), null)
    if inner == null:
        Py_DecRef(base)
        return null
    if host.set_base(inner, base) != 0:
        Py_DecRef(inner)
        return null
    return inner

def drop(objects: ptr[ptr], first: i64, end: i64):
    for i in range(first, end):
        Py_DecRef(objects[i])

def result_of(host: ptr[Host], record: ptr[Record], objects: ptr[ptr]) -> ptr:
    "As the kernel's function returned it: an array (0), a tuple (1), a dict (2), None (3)."
    kind = record.kind
    if kind == 0 or kind == 3:
        one = objects[record.results[0]] if kind == 0 else host.none
        Py_IncRef(one)
        return one
    made = PyTuple_New(record.result_count) if kind == 1 else PyDict_New()
    if made == null:
        return null
    for i in range(record.result_count):
        one = objects[record.results[i]]
        if kind == 1:
            Py_IncRef(one)
            PyTuple_SetItem(made, i, one)
        elif PyDict_SetItem(made, record.keys[i], one) != 0:
            Py_DecRef(made)
            return null
    return made

def launch(host: ptr[Host], record: ptr[Record], words: ptr[i64]) -> i32:
    ticket = room(i64, 8, 64)
    function = fn[void](record.function)
    if record.foreign != 0:
        return submitted(record, words)
    llvm(None, CLEAR, ticket)
    if record.quick != 0:
        function(words, ticket, i32(0), i32(1))
        return i32(0)
    thread = PyEval_SaveThread()
    if record.pool == null:
        function(words, ticket, i32(0), i32(1))
    else:
        host.fork_join(record.pool, function, words, ticket, 1)
    PyEval_RestoreThread(thread)
    return i32(0)

def submitted(record: ptr[Record], words: ptr[i64]) -> i32:
    batch = room(ptr, 8, 8)
    kernel = room(ptr, 6, 8)
    table = room(ptr, 1, 8)
    parameters = room(ptr, record.word_count, 8)
    for i in range(record.word_count):
        parameters[i] = address(words[i])
    memcpy(batch, record.batch, 64)
    memcpy(kernel, record.kernel, 48)
    kernel[5] = parameters
    table[0] = kernel
    batch[3] = table
    thread = PyEval_SaveThread()
    status = fn[i32](record.function)(batch, 1)
    PyEval_RestoreThread(thread)
    return status
"""
