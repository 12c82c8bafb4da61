"""Kernels that measure the measuring: nothing, a wait for the host, a flush, a delay."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

import numpy as np

from steelyard_device.cuda import kept
from steelyard_device.cuda.device import Context
from steelyard_device.cuda.launch import Launch
from steelyard_device.cuda.memory import Buffer, SharedWords
from steelyard_device.cuda.module import Function, load

FLUSH_CACHES = 2
"""How many times its cache a flush reads. On an H200 every line then comes from memory
(690 cycles a load, 290 before), and four times changes nothing."""

SPIN_SECONDS = 2.0
"""How long a spin waits for the host: longer than it takes to queue what a queue
holds, short enough to be a failed sample and not a hanging run."""

CHAIN = 256
"""Multiply-adds in a turn of the delay's loop: the jump's 12 cycles are 1 % of it."""

QUEUE = 900
"""Launches that surely fit behind a spin: about 1020 do, and the next would wait for it
while it waits for us."""

_BLOCK = 256
_BLOCKS_EACH = 8
"""Of a multiprocessor: all the threads it can have."""


def cubin(arch: str) -> bytes:
    """Return the probes' cubin, compiled once a machine."""
    return kept.cubin(TEXT.replace("{CHAIN}", str(CHAIN)), arch)


def _function(context: Context, entry: str) -> Function:
    return load(context, cubin(context.device.arch)).function(entry)


def null(context: Context, stream: int | None = None) -> Launch:
    """Return a launch of nothing: the floor of the hand-over."""
    nothing = _function(context, "steelyard_null")
    return Launch(nothing, (), grid=1, block=32, stream=stream)


class Spin:
    """A kernel that holds its stream until the host releases it.

    What is queued behind it runs without waiting for the host. It gives up by itself
    after ``seconds``; then `expired` is true and what was measured behind is not good.
    """

    def __init__(
        self,
        context: Context,
        *,
        seconds: float = SPIN_SECONDS,
        stream: int | None = None,
    ) -> None:
        self._words = SharedWords(context, 2)
        self._ticket = 0
        slots = (self._words.address, 0, round(seconds * 1e9))
        function = _function(context, "steelyard_spin")
        self._launch = Launch(function, slots, grid=1, block=1, stream=stream)

    def launch(self) -> None:
        """Hold the stream from here on."""
        self._ticket += 1
        self._launch.set(1, self._ticket)
        self._launch.launch()

    def release(self) -> None:
        """Let go of every spin launched so far."""
        self._words.words[0] = self._ticket

    @property
    def expired(self) -> bool:
        """Whether the last spin ended by itself; known once it is over."""
        return self._ticket > 0 and self._words.words[1] == self._ticket

    @contextmanager
    def held(self) -> Iterator[None]:
        """Hold the stream within a ``with``, whatever happens there."""
        self.launch()
        try:
            yield
        finally:
            self.release()


class Flush:
    """Reads other memory until nothing that was used before is in the L2 cache.

    It writes nothing: behind a flush that does, a kernel waits for lines to be written
    back that are not its own (1.3 us of 10 for a copy of 24 MiB on an H200).
    """

    def __init__(
        self,
        context: Context,
        nbytes: int | None = None,
        stream: int | None = None,
    ) -> None:
        least = FLUSH_CACHES * context.device.l2_bytes
        self.nbytes = -(-max(nbytes or 0, least, 16) // 16) * 16
        self._memory = Buffer(context, (self.nbytes,), np.uint8)
        self._memory.fill(0)
        self._sum = Buffer(context, (1,), np.uint32)
        context.wait()  # another stream may be the one that walks
        addresses = (self._memory.address, self.nbytes // 16, self._sum.address)
        blocks = _BLOCKS_EACH * context.device.multiprocessors
        walk = _function(context, "steelyard_walk")
        self._walk = Launch(walk, addresses, grid=blocks, block=_BLOCK, stream=stream)
        self()  # the lines that filling it left

    def __call__(self) -> None:
        """Submit one walk."""
        self._walk.launch()


class Delay:
    """A kernel of at least ``steps`` dependent multiply-adds by one thread.

    `steps` are those it makes, a multiple of `CHAIN`.
    """

    def __init__(self, context: Context, steps: int, stream: int | None = None) -> None:
        turns = max(-(-steps // CHAIN), 0)
        self.steps = turns * CHAIN
        self._marks = Buffer(context, (4,), np.int64)
        self._marks.fill(0)
        context.wait()
        function = _function(context, "steelyard_delay")
        slots = (turns, self._marks.address)
        self._launch = Launch(function, slots, grid=1, block=1, stream=stream)
        self.context, self.stream = context, self._launch.stream
        self.launch, self.window = self._launch.launch, self._launch.window
        self.wait = self._launch.wait

    def cycles(self) -> int:
        """Return the multiprocessor's cycles that the last launch took; waits for it."""
        return self._marked()[0]

    def nanoseconds(self) -> int:
        """Return its time by the GPU's global timer; waits for it."""
        _, start, stop = self._marked()
        return stop - start

    def _marked(self) -> tuple[int, int, int]:
        self.wait()
        cycles, start, stop, _ = self._marks.read().tolist()
        return cycles, start, stop


TEXT = r"""
extern "C" __global__ void steelyard_null() {}

extern "C" __global__ void steelyard_spin(
    volatile unsigned long long* words, unsigned long long ticket,
    unsigned long long limit) {
  unsigned long long start, now;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  while (words[0] < ticket) {
    asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(now));
    if (now - start > limit) {
      words[1] = ticket;
      return;
    }
  }
}

extern "C" __global__ void steelyard_walk(
    const uint4* memory, unsigned long long count, unsigned* sum) {
  unsigned found = 0;
  const unsigned long long step = 1ull * gridDim.x * blockDim.x;
  #pragma unroll 4
  for (unsigned long long i = 1ull * blockIdx.x * blockDim.x + threadIdx.x; i < count;
       i += step) {
    uint4 word = memory[i];
    found |= word.x | word.y | word.z | word.w;
  }
  if (found) *sum = found;  // never: all are zero, which the compiler cannot know
}

extern "C" __global__ void steelyard_delay(long long turns, long long* marks) {
  float x = 1.0f;
  long long before, after, start, stop;
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(start));
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(before));
  #pragma unroll 1
  for (long long turn = 0; turn < turns; ++turn) {
    #pragma unroll
    for (int step = 0; step < {CHAIN}; ++step)
      asm volatile("fma.rn.f32 %0, %0, 0f3F7F8000, 0f3A800000;" : "+f"(x));
  }
  asm volatile("mov.u64 %0, %%clock64;" : "=l"(after));
  asm volatile("mov.u64 %0, %%globaltimer;" : "=l"(stop));
  marks[0] = after - before;
  marks[1] = start;
  marks[2] = stop;
  marks[3] = __float_as_int(x);
}
"""
