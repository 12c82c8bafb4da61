"""Processes that put and get, are killed, and have their files damaged meanwhile.

python tests/storm.py --seconds 60 --seed 1

The parent forks workers, damages random entries, and kills a worker every so often.
A payload follows from its key, so a wrong byte is seen. Prints counts as JSON and
exits with 1 if a payload was wrong or a process failed.
"""

from __future__ import annotations

import argparse
import json
import mmap
import os
import random
import signal
import struct
import sys
import tempfile
import time
import traceback
from hashlib import blake2b
from pathlib import Path

from steelyard_device.disk import Disk

KEYS = [blake2b(bytes([k]), digest_size=16).hexdigest() for k in range(40)]
WORKERS = 4
COUNTS = ("gets", "hits", "puts", "kept", "drops", "wrong")
SLOTS = struct.Struct(f"<{len(COUNTS)}Q")


def payload(key):
    """Return the bytes that belong to a key: none for some, up to 64 KiB."""
    size = int(key[:4], 16) if int(key[4], 16) else 0
    return (blake2b(key.encode()).digest() * (size // 64 + 1))[:size]


def work(disk, rng, counts):
    """Put and get at random until killed; `counts` is shared memory."""
    seen = dict.fromkeys(COUNTS, 0)
    while True:
        key = rng.choice(KEYS)
        draw = rng.random()
        if draw < 0.001:
            seen["drops"] += 1
            disk.drop()
        elif draw < 0.4:
            seen["puts"] += 1
            seen["kept"] += disk.put(key, payload(key))
        else:
            found = disk.get(key)
            seen["gets"] += 1
            seen["hits"] += found is not None
            seen["wrong"] += found is not None and found != payload(key)
        SLOTS.pack_into(counts, 0, *seen.values())


def fork(disk, seed, counts):
    """Start a worker; it ends by being killed, or with 1 after an exception."""
    child = os.fork()
    if child:
        return child
    try:
        work(disk, random.Random(seed), counts)
    except BaseException:  # noqa: BLE001 - whatever it is, the parent counts it
        traceback.print_exc()
    finally:
        os._exit(1)


def damage(folder, rng):
    """Truncate, flip, exchange, empty or replace a random file."""
    files = [p for p in folder.glob("??/*") if p.is_file()]
    if not files:
        return
    path = rng.choice(files)
    with path.open("r+b") as file:
        size = os.fstat(file.fileno()).st_size
        place = rng.randrange(size or 1)
        kind = rng.randrange(6)
        if kind == 0:
            file.truncate(place)
        elif kind == 1:
            file.seek(place)
            byte = (file.read(1) or b"\0")[0]
            file.seek(place)
            file.write(bytes([byte ^ 1 << rng.randrange(8)]))
        elif kind == 2:
            file.write(rng.choice(files).read_bytes())
        elif kind == 3:
            file.truncate(0)
        elif kind == 4:
            file.seek(8)
            file.write(struct.pack("<I", rng.randrange(4)))
        else:
            file.seek(0, os.SEEK_END)
            file.write(b"tail")


def storm(folder, seconds, seed):
    """Return counts of all that happened, and what was found wrong."""
    rng = random.Random(seed)
    disk = Disk(folder, limit=512 << 10, every=16)
    totals = dict.fromkeys([*COUNTS, "kills", "damages", "failed"], 0)
    memory = [mmap.mmap(-1, SLOTS.size) for _ in range(WORKERS)]
    workers = [fork(disk, rng.random(), counts) for counts in memory]

    def reap(number):
        os.kill(workers[number], signal.SIGKILL)
        _, status = os.waitpid(workers[number], 0)
        totals["failed"] += not os.WIFSIGNALED(status)
        for name, count in zip(COUNTS, SLOTS.unpack(memory[number]), strict=True):
            totals[name] += count
        memory[number][:] = bytes(SLOTS.size)
        totals["kills"] += 1

    deadline = time.monotonic() + seconds
    while time.monotonic() < deadline:
        for _ in range(rng.randrange(8)):
            try:
                damage(folder, rng)
            except FileNotFoundError:  # a worker replaced or dropped it
                continue
            totals["damages"] += 1
        number = rng.randrange(WORKERS)
        reap(number)
        workers[number] = fork(disk, rng.random(), memory[number])
    for number in range(WORKERS):
        reap(number)
    return totals | aftermath(folder)


def aftermath(folder):
    """Return what is wrong once all is quiet: nothing, and temporaries are swept."""
    disk = Disk(folder, every=1)
    left = [disk.get(key) for key in KEYS]
    wrong = sum(
        found not in {None, payload(key)} for key, found in zip(KEYS, left, strict=True)
    )
    temporaries = list(folder.glob("??/*.tmp"))
    for path in temporaries:
        os.utime(path, (0, 0))
    kept = sum(disk.put(key, payload(key)) for key in KEYS)
    right = sum(disk.get(key) == payload(key) for key in KEYS)
    return {
        "wrong_after": wrong,
        "temporaries": len(temporaries),
        "temporaries_after": len(list(folder.glob("??/*.tmp"))),
        "lost_after": len(KEYS) * 2 - kept - right,
    }


def main():
    """Run a storm in a folder of its own and print its counts."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--seconds", type=float, default=3.0)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args()
    with tempfile.TemporaryDirectory() as folder:
        totals = storm(Path(folder), options.seconds, options.seed)
    sys.stdout.write(json.dumps(totals) + "\n")
    bad = ("wrong", "failed", "wrong_after", "temporaries_after", "lost_after")
    sys.exit(any(totals[name] for name in bad))


if __name__ == "__main__":
    main()
