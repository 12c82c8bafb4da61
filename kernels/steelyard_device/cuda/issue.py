"""What native code issues on a stream: the half that launches and graphs share."""

from __future__ import annotations

import ctypes

from steelyard_device import native_call
from steelyard_device.cuda import driver, native
from steelyard_device.cuda.device import Context


class Issued:
    """Something that is launched natively on one stream.

    ``entries`` and ``turns`` are what `native.Batch` says, ``kind`` the functions
    that take it; ``alive`` is kept as long as this is. One thread at a time uses it.
    ``submit`` is `launch` without a Python function round it: it takes the count and
    returns the driver's code, of which `failure` makes an error.
    """

    __slots__ = (
        "_alive",
        "_batch",
        "_shown",
        "_window",
        "context",
        "stream",
        "submit",
    )

    def __init__(
        self,
        context: Context,
        shown: str,
        stream: int | None,
        entries: int,
        turns: int = 1,
        *,
        kind: str = "cuda",
        alive: object = None,
    ) -> None:
        self.context = context
        self.stream = context.stream if stream is None else stream
        calls = native.calls()
        self._batch = native.Batch(
            calls=ctypes.addressof(calls),
            context=context.handle,
            stream=self.stream,
            entries=entries,
            count=turns,
        )
        self._alive = (calls, alive)
        self._shown = shown
        at, batch = native.addresses(), ctypes.addressof(self._batch)
        self.submit = native_call.bound(at[f"{kind}_launch"], batch)
        self._window = native_call.bound(at[f"{kind}_window"], batch)

    def launch(self, count: int = 1) -> None:
        """Submit ``count`` launches; they run one after another.

        It returns before they are done; when about 1000 wait it waits with them.
        """
        if code := self.submit(count):
            raise self.failure(code)

    def window(self, count: int, *, dependent: bool = False) -> tuple[int, int]:
        """Run ``count`` launches between two reads of the clock, all in native code.

        Returns CLOCK_MONOTONIC in nanoseconds before the first is submitted and when
        the last is done. In a stream all launches are dependent, asked or not.
        """
        del dependent
        if code := self._window(count):
            raise self.failure(code)
        return self._batch.start, self._batch.stop

    def wait(self) -> None:
        """Return when all launches on the stream are done."""
        self.context.wait(self.stream)

    def ready(self) -> None:
        """Nothing of ours sleeps: a GPU takes a launch at any time."""

    def failure(self, code: int) -> driver.CUDAError:
        """Return the error that a code of ``submit`` stands for."""
        return driver.failure(f"launching {self._shown}", code)
