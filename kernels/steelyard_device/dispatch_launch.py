"""Making a call's results and launching it, as LLVM IR for `dispatch_text`."""

from __future__ import annotations

from typing import Final

SMALL: Final = 4096
"""Bytes of a result from which on it starts on a cache line, at the price of another
object: below, two lines of it are not worth a larger block of NumPy's."""

TEXT: Final = r"""
define internal i1 @allocate(ptr %record, i64 %first, i64 %end, ptr %objects, ptr %addresses) {
entry:
  %arrays = load ptr at %record, ptr %record, i32 0, i32 4
  br label %check
check:
  %i = phi i64 [ %first, %entry ], [ %i.next, %made ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %end
  br i1 %more, label %one, label %yes
one:
  %array = getelementptr %array, ptr %arrays, i64 %i
  %object = call ptr @new(ptr %array)
  %lost = icmp eq ptr %object, null
  br i1 %lost, label %no, label %made
made:
  store ptr %object at ptr, ptr %objects, i64 %i
  %data = load i64 at i64, ptr %object, i64 2
  %address.at = getelementptr i64, ptr %addresses, i64 %i
  store i64 %data, ptr %address.at
  br label %check
yes:
  ret i1 true
no:
  call void @drop(ptr %objects, i64 %first, i64 %i)
  ret i1 false
}

; An array of NumPy's own memory: a larger one starts on a cache line of another's.
define internal ptr @new(ptr %array) {
entry:
  %room = alloca i64
  %type = load ptr, ptr %array
  %dtype = load ptr at %array, ptr %array, i32 0, i32 1
  %nd.at = getelementptr %array, ptr %array, i32 0, i32 2
  %nd.64 = load i64, ptr %nd.at
  %nd = trunc i64 %nd.64 to i32
  %shape = load ptr at %array, ptr %array, i32 0, i32 4
  %bytes = load i64 at %array, ptr %array, i32 0, i32 6
  %small = icmp slt i64 %bytes, {small}
  br i1 %small, label %plain, label %within
plain:
  call void @Py_IncRef(ptr %dtype)
  %object = call ptr {new}(ptr %type, ptr %dtype, i32 %nd, ptr %shape, ptr null, ptr null, i32 0, ptr null)
  ret ptr %object
within:
  %more = add i64 %bytes, 64
  store i64 %more, ptr %room
  call void @Py_IncRef(ptr {uint8})
  %base = call ptr {new}(ptr %type, ptr {uint8}, i32 1, ptr %room, ptr null, ptr null, i32 0, ptr null)
  %lost = icmp eq ptr %base, null
  br i1 %lost, label %no, label %view
view:
  %data = load i64 at i64, ptr %base, i64 2
  %up = add i64 %data, 63
  %line = and i64 %up, -64
  %start = inttoptr i64 %line to ptr
  call void @Py_IncRef(ptr %dtype)
  %inner = call ptr {new}(ptr %type, ptr %dtype, i32 %nd, ptr %shape, ptr null, ptr %start, i32 1281, ptr null)
  %inner.lost = icmp eq ptr %inner, null
  br i1 %inner.lost, label %unmade, label %owned
owned:
  %set = call i32 {set_base}(ptr %inner, ptr %base)
  %refused = icmp ne i32 %set, 0
  br i1 %refused, label %undone, label %yes
yes:
  ret ptr %inner
undone:
  call void @Py_DecRef(ptr %inner)
  ret ptr null
unmade:
  call void @Py_DecRef(ptr %base)
  br label %no
no:
  ret ptr null
}

define internal void @drop(ptr %objects, i64 %first, i64 %end) {
entry:
  br label %check
check:
  %i = phi i64 [ %first, %entry ], [ %i.next, %one ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %end
  br i1 %more, label %one, label %exit
one:
  %object = load ptr at ptr, ptr %objects, i64 %i
  call void @Py_DecRef(ptr %object)
  br label %check
exit:
  ret void
}

define internal void @pack(ptr %record, ptr %addresses, ptr %words) {
entry:
  %count = call i64 @field(ptr %record, i64 12)
  %places = load ptr at %record, ptr %record, i32 0, i32 11
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %exit
one:
  %place = getelementptr %place, ptr %places, i64 %i
  %at = load i64, ptr %place
  %number = load i64 at %place, ptr %place, i32 0, i32 1
  %address = load i64 at i64, ptr %addresses, i64 %number
  %word = getelementptr i64, ptr %words, i64 %at
  %far = load i64, ptr %word
  %place.address = add i64 %far, %address
  store i64 %place.address, ptr %word
  br label %check
exit:
  ret void
}

; As the kernel's function returned it: an array (0), a tuple (1), a dict (2), None (3).
define internal ptr @result(ptr %record, ptr %objects) {
entry:
  %kind = call i64 @field(ptr %record, i64 19)
  %numbers = load ptr at %record, ptr %record, i32 0, i32 20
  %count = call i64 @field(ptr %record, i64 21)
  %keys = load ptr at %record, ptr %record, i32 0, i32 22
  switch i64 %kind, label %nothing [ i64 0, label %single
                                     i64 1, label %tuple
                                     i64 2, label %dict ]
single:
  %only = load i64, ptr %numbers
  %only.at = getelementptr ptr, ptr %objects, i64 %only
  %array = load ptr, ptr %only.at
  call void @Py_IncRef(ptr %array)
  ret ptr %array
nothing:
  call void @Py_IncRef(ptr {none})
  ret ptr {none}
tuple:
  %new.tuple = call ptr @PyTuple_New(i64 %count)
  br label %begin
dict:
  %new.dict = call ptr @PyDict_New()
  br label %begin
begin:
  %made = phi ptr [ %new.tuple, %tuple ], [ %new.dict, %dict ]
  %named = phi i1 [ false, %tuple ], [ true, %dict ]
  %lost = icmp eq ptr %made, null
  br i1 %lost, label %no, label %check
check:
  %i = phi i64 [ 0, %begin ], [ %i.next, %item ], [ %i.next, %entered ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %yes
one:
  %number = load i64 at i64, ptr %numbers, i64 %i
  %object = load ptr at ptr, ptr %objects, i64 %number
  br i1 %named, label %enter, label %item
item:
  call void @Py_IncRef(ptr %object)
  %set = call i32 @PyTuple_SetItem(ptr %made, i64 %i, ptr %object)
  br label %check
enter:
  %key = load ptr at ptr, ptr %keys, i64 %i
  %status = call i32 @PyDict_SetItem(ptr %made, ptr %key, ptr %object)
  %refused = icmp ne i32 %status, 0
  br i1 %refused, label %undo, label %entered
entered:
  br label %check
yes:
  ret ptr %made
undo:
  call void @Py_DecRef(ptr %made)
  br label %no
no:
  ret ptr null
}

define internal i32 @launch(ptr %record, ptr %words, i64 %count) {
entry:
  %ticket = alloca [8 x i64], align 64
  %batch = alloca [8 x i64]
  %kernel = alloca [6 x i64]
  %table = alloca ptr
  %parameters = alloca ptr, i64 %count
  %function = load ptr at %record, ptr %record, i32 0, i32 16
  %pool = load ptr at %record, ptr %record, i32 0, i32 17
  %quick = call i64 @field(ptr %record, i64 18)
  %tensors = load i64, ptr %record
  %foreign = icmp ne i64 %tensors, 0
  %alone = icmp eq ptr %pool, null
  %at.once = icmp ne i64 %quick, 0
  br i1 %foreign, label %parameter, label %host
host:
  store <8 x i64> zeroinitializer, ptr %ticket, align 64
  br i1 %at.once, label %inline, label %release
inline:
  call void %function(ptr %words, ptr %ticket, i32 0, i32 1)
  ret i32 0
release:
  %host.thread = call ptr @PyEval_SaveThread()
  br i1 %alone, label %one, label %all
one:
  call void %function(ptr %words, ptr %ticket, i32 0, i32 1)
  br label %back
all:
  call void {fork_join}(ptr %pool, ptr %function, ptr %words, ptr %ticket, i64 1)
  br label %back
back:
  call void @PyEval_RestoreThread(ptr %host.thread)
  ret i32 0
parameter:
  %i = phi i64 [ 0, %entry ], [ %i.next, %point ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %point, label %submit
point:
  %word = getelementptr i64, ptr %words, i64 %i
  %parameter.at = getelementptr ptr, ptr %parameters, i64 %i
  store ptr %word, ptr %parameter.at
  br label %parameter
submit:
  %batch.like = load ptr at %record, ptr %record, i32 0, i32 28
  call void @llvm.memcpy.p0.p0.i64(ptr %batch, ptr %batch.like, i64 64, i1 false)
  %kernel.like = load ptr at %record, ptr %record, i32 0, i32 29
  call void @llvm.memcpy.p0.p0.i64(ptr %kernel, ptr %kernel.like, i64 48, i1 false)
  %kernel.parameters = getelementptr i64, ptr %kernel, i64 5
  store ptr %parameters, ptr %kernel.parameters
  store ptr %kernel, ptr %table
  %batch.table = getelementptr i64, ptr %batch, i64 3
  store ptr %table, ptr %batch.table
  %thread = call ptr @PyEval_SaveThread()
  %status = call i32 %function(ptr %batch, i64 1)
  call void @PyEval_RestoreThread(ptr %thread)
  ret i32 %status
}
"""
