"""Comparing a call's arrays with a remembered call's, as LLVM IR for `dispatch_text`."""

from __future__ import annotations

from typing import Final

TEXT: Final = r"""
define internal i1 @inputs(ptr %record, ptr %args, i64 %count, ptr %objects, ptr %addresses) {
entry:
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %yes
one:
  %object = load ptr at ptr, ptr %args, i64 %i
  %placed = call i1 @placed(ptr %record, ptr %object, i64 %i, ptr %objects, ptr %addresses)
  br i1 %placed, label %check, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

; One array as it is, or a tuple of several. Those not given are nowhere, far apart.
define internal i1 @outputs(ptr %record, ptr %out, i64 %first, i64 %count, ptr %objects, ptr %addresses) {
entry:
  %none = icmp eq ptr %out, null
  %single = icmp eq i64 %count, 1
  br i1 %none, label %check, label %shape
shape:
  br i1 %single, label %check, label %several
several:
  %type = load ptr at ptr, ptr %out, i64 1
  %is.tuple = icmp eq ptr %type, {tuple}
  br i1 %is.tuple, label %size, label %no
size:
  %length = call i64 @PyTuple_Size(ptr %out)
  %as.many = icmp eq i64 %length, %count
  br i1 %as.many, label %check, label %no
check:
  %i = phi i64 [ 0, %entry ], [ 0, %shape ], [ 0, %size ], [ %i.next, %zero ], [ %i.next, %place ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %yes
one:
  %at = add i64 %first, %i
  br i1 %none, label %zero, label %pick
zero:
  %address.at = getelementptr i64, ptr %addresses, i64 %at
  %apart = add i64 %at, 1
  %nowhere = shl i64 %apart, 52
  store i64 %nowhere, ptr %address.at
  br label %check
pick:
  br i1 %single, label %place, label %item
item:
  %element = call ptr @PyTuple_GetItem(ptr %out, i64 %i)
  br label %place
place:
  %object = phi ptr [ %out, %pick ], [ %element, %item ]
  %placed = call i1 @placed(ptr %record, ptr %object, i64 %at, ptr %objects, ptr %addresses)
  br i1 %placed, label %check, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @placed(ptr %record, ptr %object, i64 %number, ptr %objects, ptr %addresses) {
entry:
  %arrays = load ptr at %record, ptr %record, i32 0, i32 4
  %array = getelementptr %array, ptr %arrays, i64 %number
  %expected = load ptr, ptr %array
  %type = load ptr at ptr, ptr %object, i64 1
  %same = icmp eq ptr %type, %expected
  br i1 %same, label %look, label %no
look:
  store ptr %object at ptr, ptr %objects, i64 %number
  %address.at = getelementptr i64, ptr %addresses, i64 %number
  %tensors = load i64, ptr %record
  %foreign = icmp ne i64 %tensors, 0
  br i1 %foreign, label %tensor, label %numpy
numpy:
  %found.numpy = call i1 @numpy(ptr %object, ptr %array, ptr %address.at)
  ret i1 %found.numpy
tensor:
  %found.tensor = call i1 @tensor(ptr %record, ptr %object, ptr %array, ptr %address.at)
  ret i1 %found.tensor
no:
  ret i1 false
}

define internal i1 @numpy(ptr %object, ptr %array, ptr %address) {
entry:
  %dtype = load i64 at i64, ptr %object, i64 7
  %dtype.expected = load i64 at %array, ptr %array, i32 0, i32 1
  %same.dtype = icmp eq i64 %dtype, %dtype.expected
  %nd.at = getelementptr i64, ptr %object, i64 3
  %nd.32 = load i32, ptr %nd.at
  %nd = zext i32 %nd.32 to i64
  %nd.expected = load i64 at %array, ptr %array, i32 0, i32 2
  %same.nd = icmp eq i64 %nd, %nd.expected
  %flags.at = getelementptr i64, ptr %object, i64 8
  %flags.32 = load i32, ptr %flags.at
  %flags = zext i32 %flags.32 to i64
  %flags.expected = load i64 at %array, ptr %array, i32 0, i32 3
  %flags.seen = and i64 %flags, %flags.expected
  %same.flags = icmp eq i64 %flags.seen, %flags.expected
  %same.two = and i1 %same.dtype, %same.nd
  %same = and i1 %same.two, %same.flags
  br i1 %same, label %shapes, label %no
shapes:
  %data = load i64 at i64, ptr %object, i64 2
  store i64 %data, ptr %address
  %shape = load ptr at ptr, ptr %object, i64 4
  %shape.expected = load ptr at %array, ptr %array, i32 0, i32 4
  %equal = call i1 @equal(ptr %shape, ptr %shape.expected, i64 %nd)
  ret i1 %equal
no:
  ret i1 false
}

define internal i1 @equal(ptr %one, ptr %other, i64 %count) {
entry:
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %compare ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %compare, label %yes
compare:
  %a = load i64 at i64, ptr %one, i64 %i
  %b = load i64 at i64, ptr %other, i64 %i
  %same = icmp eq i64 %a, %b
  br i1 %same, label %check, label %no
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @tensor(ptr %record, ptr %object, ptr %array, ptr %address) {
entry:
  %seen = alloca %tensor
  %exchange = load ptr at %record, ptr %record, i32 0, i32 24
  %status = call i32 %exchange(ptr %object, ptr %seen)
  %read = icmp eq i32 %status, 0
  br i1 %read, label %compare, label %refused
refused:
  call void @PyErr_Clear()
  br label %no
compare:
  %device = load i64 at %tensor, ptr %seen, i32 0, i32 1
  %device.expected = call i64 @field(ptr %record, i64 27)
  %same.device = icmp eq i64 %device, %device.expected
  %nd.at = getelementptr %tensor, ptr %seen, i32 0, i32 2
  %nd.32 = load i32, ptr %nd.at
  %nd = zext i32 %nd.32 to i64
  %nd.expected = load i64 at %array, ptr %array, i32 0, i32 2
  %same.nd = icmp eq i64 %nd, %nd.expected
  %dtype.at = getelementptr %tensor, ptr %seen, i32 0, i32 3
  %dtype.32 = load i32, ptr %dtype.at
  %dtype = zext i32 %dtype.32 to i64
  %dtype.expected = load i64 at %array, ptr %array, i32 0, i32 1
  %same.dtype = icmp eq i64 %dtype, %dtype.expected
  %same.two = and i1 %same.device, %same.nd
  %same = and i1 %same.two, %same.dtype
  br i1 %same, label %shapes, label %no
shapes:
  %shape = load ptr at %tensor, ptr %seen, i32 0, i32 4
  %shape.expected = load ptr at %array, ptr %array, i32 0, i32 4
  %equal = call i1 @equal(ptr %shape, ptr %shape.expected, i64 %nd)
  br i1 %equal, label %strided, label %no
strided:
  %strides = load ptr at %tensor, ptr %seen, i32 0, i32 5
  %compact = icmp eq ptr %strides, null
  br i1 %compact, label %lies, label %steps
steps:
  %strides.expected = load ptr at %array, ptr %array, i32 0, i32 5
  %contiguous = call i1 @equal(ptr %strides, ptr %strides.expected, i64 %nd)
  br i1 %contiguous, label %lies, label %no
lies:
  %data = load i64, ptr %seen
  %offset = load i64 at %tensor, ptr %seen, i32 0, i32 6
  %first = add i64 %data, %offset
  store i64 %first, ptr %address
  ret i1 true
no:
  ret i1 false
}

; Builds for aligned arrays take only these, those for others only others.
define internal i1 @aligned(ptr %record, i64 %count, ptr %addresses) {
entry:
  %mask = call i64 @field(ptr %record, i64 5)
  %any = icmp ne i64 %mask, 0
  br i1 %any, label %loop, label %yes
loop:
  %arrays = load ptr at %record, ptr %record, i32 0, i32 4
  br label %check
check:
  %i = phi i64 [ 0, %loop ], [ %i.next, %one ]
  %bits = phi i64 [ 0, %loop ], [ %bits.next, %one ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %end
one:
  %address = load i64 at i64, ptr %addresses, i64 %i
  %counts = load i64 at %array, ptr %arrays, i64 %i, i32 7
  %counted = mul i64 %address, %counts
  %bits.next = or i64 %bits, %counted
  br label %check
end:
  %low = and i64 %bits, %mask
  %off = icmp ne i64 %low, 0
  %expected = call i64 @field(ptr %record, i64 6)
  %off.expected = icmp ne i64 %expected, 0
  %right = icmp eq i1 %off, %off.expected
  ret i1 %right
yes:
  ret i1 true
}

define internal i1 @apart(ptr %record, ptr %addresses) {
entry:
  %count = call i64 @field(ptr %record, i64 8)
  %pairs = load ptr at %record, ptr %record, i32 0, i32 7
  br label %check
check:
  %i = phi i64 [ 0, %entry ], [ %i.next, %one ]
  %i.next = add i64 %i, 1
  %more = icmp slt i64 %i, %count
  br i1 %more, label %one, label %yes
one:
  %pair = getelementptr %pair, ptr %pairs, i64 %i
  %a.number = load i64, ptr %pair
  %b.number = load i64 at %pair, ptr %pair, i32 0, i32 1
  %a.size = load i64 at %pair, ptr %pair, i32 0, i32 2
  %b.size = load i64 at %pair, ptr %pair, i32 0, i32 3
  %a = load i64 at i64, ptr %addresses, i64 %a.number
  %b = load i64 at i64, ptr %addresses, i64 %b.number
  %distance = sub i64 %a, %b
  %before = sub i64 0, %a.size
  %after.start = icmp sgt i64 %distance, %before
  %before.end = icmp slt i64 %distance, %b.size
  %shared = and i1 %after.start, %before.end
  br i1 %shared, label %no, label %check
yes:
  ret i1 true
no:
  ret i1 false
}

define internal i1 @on_stream(ptr %record) {
entry:
  %stream.at = alloca i64
  %tensors = load i64, ptr %record
  %host = icmp eq i64 %tensors, 0
  br i1 %host, label %yes, label %ask
ask:
  %current = load ptr at %record, ptr %record, i32 0, i32 25
  %device = call i64 @field(ptr %record, i64 27)
  %kind = trunc i64 %device to i32
  %high = lshr i64 %device, 32
  %index = trunc i64 %high to i32
  %status = call i32 %current(i32 %kind, i32 %index, ptr %stream.at)
  %answered = icmp eq i32 %status, 0
  br i1 %answered, label %compare, label %refused
compare:
  %stream = load i64, ptr %stream.at
  %expected = call i64 @field(ptr %record, i64 26)
  %same = icmp eq i64 %stream, %expected
  ret i1 %same
refused:
  call void @PyErr_Clear()
  ret i1 false
yes:
  ret i1 true
}
"""
