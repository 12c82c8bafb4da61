"""The process that builds for `steelyard compile`: a line of JSON in, a line out.

    {"points": [...], "library": path}               -->  {"began", "ready", "compiler"}
    {"build": number, "cache": name, "drop": [...]}  -->  a `Sample`
    {"record": true, "allocations": whether}         -->  {}
    {"spans": true}                                  -->  {"spans": [...]}

Times are of CLOCK_MONOTONIC, which all processes share. A user's mistake is answered
with {"refused": sentence}.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from contextlib import ExitStack, suppress
from dataclasses import asdict
from time import monotonic_ns
from typing import Any

from steelyard_device.errors import DeviceError
from steelyard_device.timings import Timings, span, timings
from steelyard_kernels.compiling.builders import Here
from steelyard_kernels.compiling.points import point_of
from steelyard_kernels.errors import KernelError


class Session:
    """What has been asked for so far."""

    def __init__(self, began: int, stack: ExitStack) -> None:
        self._began = began
        self._stack = stack
        self._builder = Here(())
        self._recorded: Timings | None = None

    def answer(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        """Answer one message."""
        if "points" in message:
            return self._begin(message)
        if "record" in message:
            counted = message["allocations"]
            self._recorded = self._stack.enter_context(timings(allocations=counted))
            return {}
        if "spans" in message:
            return {"spans": self._recorded.spans() if self._recorded else []}
        number, cache, drop = message["build"], message["cache"], message["drop"]
        return asdict(self._builder.build(number, cache, drop))

    def _begin(self, message: Mapping[str, Any]) -> Mapping[str, Any]:
        compiler = ""
        if message["library"]:
            from steelyard_device import nvrtc

            nvrtc.load(message["library"])
            compiler = f"nvrtc {nvrtc.compiler().version} {nvrtc.compiler().build}"
        self._builder = Here(map(point_of, message["points"]))
        return {"began": self._began, "ready": monotonic_ns(), "compiler": compiler}


def _next() -> str:
    with span("wait for the next"):
        return sys.stdin.readline()


def main(began: int) -> None:
    """Answer until the input ends; what kernels print goes to standard error.

    `began` is when the process came to the first line of ours.
    """
    answers = os.fdopen(os.dup(1), "w")
    os.dup2(2, 1)
    with ExitStack() as stack, answers, suppress(KeyboardInterrupt):
        session = Session(began, stack)
        while line := _next():
            try:
                answer = session.answer(json.loads(line))
            except (KernelError, DeviceError) as error:
                answer = {"refused": str(error)}
            answers.write(json.dumps(answer) + "\n")
            answers.flush()
