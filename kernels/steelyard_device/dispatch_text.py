"""The native half of a call from Python, as LLVM IR: which launch it is, and the launch.

A call's arrays are compared with those of remembered calls, field by field of NumPy's
array struct (its layout is that of `ndarraytypes.h`, the same since NumPy 1.7) or of
what a library's DLPack exchange table says (dlpack.h 1.2). The first that is equal is
launched with these addresses; where none is, the Python function is called. How arrays
are compared is in `dispatch_arrays`, how results are made in `dispatch_launch`.

Everything lies in words of 8 bytes. `dispatch.Record` packs them in the order of
`%record`; an array is (type, dtype, dimensions, flags, shape, strides, bytes, whether
its alignment counts).
"""

from __future__ import annotations

from typing import Final

TEXT: Final = r"""
%array = type { ptr, i64, i64, i64, ptr, ptr, i64, i64 }
%pair = type { i64, i64, i64, i64 }
%place = type { i64, i64 }
%scalar = type { ptr, i64, i64 }
%tensor = type { ptr, i64, i32, i32, ptr, ptr, i64 }
%record = type { i64, i64, i64, i64, ptr, i64, i64, ptr, i64, ptr, i64, ptr, i64, ptr, i64, i64, ptr, ptr, i64, i64, ptr, i64, ptr, ptr, ptr, ptr, i64, i64, ptr, ptr, i64 }

declare void @Py_IncRef(ptr)
declare void @Py_DecRef(ptr)
declare ptr @PyBytes_AsString(ptr)
declare ptr @PyTuple_GetItem(ptr, i64)
declare i64 @PyTuple_Size(ptr)
declare ptr @PyTuple_New(i64)
declare i32 @PyTuple_SetItem(ptr, i64, ptr)
declare ptr @PyDict_New()
declare i32 @PyDict_SetItem(ptr, ptr, ptr)
declare double @PyFloat_AsDouble(ptr)
declare double @PyLong_AsDouble(ptr)
declare i64 @PyLong_AsLongLong(ptr)
declare ptr @PyErr_Occurred()
declare void @PyErr_Clear()
declare ptr @PyObject_Vectorcall(ptr, ptr, i64, ptr)
declare ptr @PyEval_SaveThread()
declare void @PyEval_RestoreThread(ptr)
declare void @llvm.memcpy.p0.p0.i64(ptr, ptr, i64, i1)

define ptr @dispatch(ptr %self, ptr %args, i64 %nargs, ptr %names) {
entry:
  %done = alloca i32
  %holder = call ptr @PyTuple_GetItem(ptr %self, i64 0)
  %bytes = call ptr @PyBytes_AsString(ptr %holder)
  %table = load ptr, ptr %bytes
  %count = load i64, ptr %table
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %try ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %try, label %slow
try:
  store i32 0, ptr %done
  %record = load ptr at ptr, ptr %table, i64 %i.next
  %result = call ptr @attempt(ptr %record, ptr %args, i64 %nargs, ptr %names, ptr %done)
  %was = load i32, ptr %done
  %handled = icmp ne i32 %was, 0
  br i1 %handled, label %return, label %check
return:
  ret ptr %result
slow:
  %function = call ptr @PyTuple_GetItem(ptr %self, i64 1)
  %called = call ptr @PyObject_Vectorcall(ptr %function, ptr %args, i64 %nargs, ptr %names)
  ret ptr %called
}

; The result, or null; done is 0 where the record is of another call or did not launch.
define internal ptr @attempt(ptr %record, ptr %args, i64 %nargs, ptr %names, ptr %done) {
entry:
  %out.at = alloca ptr
  %inputs = call i64 @field(ptr %record, i64 1)
  %as.many = icmp eq i64 %nargs, %inputs
  br i1 %as.many, label %start, label %no
start:
  %words.count = call i64 @field(ptr %record, i64 10)
  %words = alloca i64, i64 %words.count, align 16
  %template = load ptr at %record, ptr %record, i32 0, i32 9
  %words.bytes = shl i64 %words.count, 3
  call void @llvm.memcpy.p0.p0.i64(ptr %words, ptr %template, i64 %words.bytes, i1 false)
  store ptr null, ptr %out.at
  %keywords = getelementptr ptr, ptr %args, i64 %nargs
  %understood = call i1 @keywords(ptr %record, ptr %keywords, ptr %names, ptr %words, ptr %out.at)
  br i1 %understood, label %arrays, label %no
arrays:
  %out = load ptr, ptr %out.at
  %outputs = call i64 @field(ptr %record, i64 2)
  %given = call i64 @field(ptr %record, i64 3)
  %wants = icmp ne i64 %given, 0
  %has = icmp ne ptr %out, null
  %total = add i64 %inputs, %outputs
  %objects = alloca ptr, i64 %total, align 16
  %addresses = alloca i64, i64 %total, align 16
  %as.given = icmp eq i1 %wants, %has
  br i1 %as.given, label %place, label %no
place:
  %placed = call i1 @inputs(ptr %record, ptr %args, i64 %inputs, ptr %objects, ptr %addresses)
  br i1 %placed, label %place.outputs, label %no
place.outputs:
  %ready = call i1 @outputs(ptr %record, ptr %out, i64 %inputs, i64 %outputs, ptr %objects, ptr %addresses)
  br i1 %ready, label %hold, label %no
hold:
  %lie = call i1 @aligned(ptr %record, i64 %total, ptr %addresses)
  br i1 %lie, label %overlaps, label %no
overlaps:
  %apart = call i1 @apart(ptr %record, ptr %addresses)
  br i1 %apart, label %streams, label %no
streams:
  %same.stream = call i1 @on_stream(ptr %record)
  br i1 %same.stream, label %fresh, label %no
fresh:
  br i1 %wants, label %pack, label %allocate
allocate:
  %made = call i1 @allocate(ptr %record, i64 %inputs, i64 %total, ptr %objects, ptr %addresses)
  br i1 %made, label %pack, label %raised
pack:
  call void @pack(ptr %record, ptr %addresses, ptr %words)
  %result = call ptr @result(ptr %record, ptr %objects)
  br i1 %wants, label %kept, label %dropped
dropped:
  call void @drop(ptr %objects, i64 %inputs, i64 %total)
  br label %kept
kept:
  %lost = icmp eq ptr %result, null
  br i1 %lost, label %raised, label %go
go:
  %use.at = getelementptr %record, ptr %record, i32 0, i32 30
  %use = load i64, ptr %use.at
  %in.use = icmp eq i64 %use, 2
  br i1 %in.use, label %refused, label %begin
begin: ; with the interpreter's lock: 0 stays 0, 1 becomes 2 until the launch is done
  %twice = shl i64 %use, 1
  store i64 %twice, ptr %use.at
  %status = call i32 @launch(ptr %record, ptr %words, i64 %words.count)
  store i64 %use, ptr %use.at
  %failed = icmp ne i32 %status, 0
  br i1 %failed, label %refused, label %yes
refused:
  call void @Py_DecRef(ptr %result)
  br label %no
yes:
  store i32 1, ptr %done
  ret ptr %result
raised:
  store i32 1, ptr %done
  ret ptr null
no:
  ret ptr null
}

define internal i64 @field(ptr %record, i64 %number) {
  %at = getelementptr i64, ptr %record, i64 %number
  %value = load i64, ptr %at
  ret i64 %value
}

; Keyword arguments: out, and numbers of Python's own types into their words.
define internal i1 @keywords(ptr %record, ptr %values, ptr %names, ptr %words, ptr %out) {
entry:
  %needed = call i64 @field(ptr %record, i64 15)
  %none = icmp eq ptr %names, null
  br i1 %none, label %end, label %some
some:
  %count = call i64 @PyTuple_Size(ptr %names)
  %out.name = load ptr at %record, ptr %record, i32 0, i32 23
  %scalars = load ptr at %record, ptr %record, i32 0, i32 13
  %scalars.count = call i64 @field(ptr %record, i64 14)
  br label %check
check:
  %i = phi i64 [ 0, %some ], [ %i.next, %output ], [ %i.next, %number ]
  %numbers = phi i64 [ 0, %some ], [ %numbers, %output ], [ %numbers.next, %number ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %next, label %end
next:
  %name = call ptr @PyTuple_GetItem(ptr %names, i64 %i)
  %value = load ptr at ptr, ptr %values, i64 %i
  %is.out = icmp eq ptr %name, %out.name
  br i1 %is.out, label %output, label %find
output:
  store ptr %value, ptr %out
  br label %check
find:
  %k = phi i64 [ 0, %next ], [ %k.next, %other ]
  %found = phi i1 [ false, %next ], [ %found.next, %other ]
  %k.next = add i64 %k, 1
  %left = icmp slt i64 %k, %scalars.count
  br i1 %left, label %look, label %looked
looked:
  br i1 %found, label %number, label %no
look:
  %scalar = getelementptr %scalar, ptr %scalars, i64 %k
  %known = load ptr, ptr %scalar
  %same = icmp eq ptr %known, %name
  br i1 %same, label %convert, label %other
other:
  %found.next = phi i1 [ %found, %look ], [ true, %convert ]
  br label %find
convert:
  %converted = call i1 @number(ptr %scalar, ptr %value, ptr %words)
  br i1 %converted, label %other, label %no
number:
  %numbers.next = add i64 %numbers, 1
  br label %check
end:
  %seen = phi i64 [ 0, %entry ], [ %numbers, %check ]
  %enough = icmp sge i64 %seen, %needed
  ret i1 %enough
no:
  ret i1 false
}

define internal i1 @number(ptr %scalar, ptr %value, ptr %words) {
entry:
  %place = load i64 at %scalar, ptr %scalar, i32 0, i32 1
  %word = getelementptr i64, ptr %words, i64 %place
  %kind = load i64 at %scalar, ptr %scalar, i32 0, i32 2
  %floating = icmp eq i64 %kind, 0
  %type = load ptr at ptr, ptr %value, i64 1
  %is.int = icmp eq ptr %type, {int}
  %is.float = icmp eq ptr %type, {float}
  br i1 %floating, label %real, label %whole
real:
  br i1 %is.float, label %float, label %maybe
maybe:
  br i1 %is.int, label %int.float, label %no
float:
  %same = call double @PyFloat_AsDouble(ptr %value)
  store double %same, ptr %word
  ret i1 true
int.float:
  %rounded = call double @PyLong_AsDouble(ptr %value)
  store double %rounded, ptr %word
  br label %fits
whole:
  br i1 %is.int, label %int, label %no
int:
  %exact = call i64 @PyLong_AsLongLong(ptr %value)
  store i64 %exact, ptr %word
  br label %fits
fits:
  %error = call ptr @PyErr_Occurred()
  %fine = icmp eq ptr %error, null
  br i1 %fine, label %yes, label %refused
yes:
  ret i1 true
refused:
  call void @PyErr_Clear()
  br label %no
no:
  ret i1 false
}
"""
