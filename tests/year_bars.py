"""How long questions to a PostgreSQL server take that has ten million trials.

python tests/year_bars.py [--trials 10_000_000]

A server of its own gets runs of 1,000 trials, of 100 cases: all of them and what they come
to are there as the store writes them, but for the documents and samples of the trials
that are not read, which are empty. Prints seconds, and those of the reader's processor
time, which a busy machine does not lengthen; exits with 1 if an answer takes longer than
the bar.
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections.abc import Mapping
from typing import Any

import click
import postgresql
import sqlalchemy as sa
from store_bars import read, run_of

from steelyard.store import run, schema, summary
from steelyard.store.store import Store

CASE = "norm[hidden=7,dtype=float16,impl=ours]"

BAR = 2.0
"""Seconds of each command that reads a year's store."""

QUESTIONS = (
    ["history"],
    ["history", CASE],
    ["history", CASE, "--on", "any"],
    ["show"],
    ["show", CASE],
    ["show", "@-1", CASE],
    ["compare", "@-2", "@-1"],
)


def year(count: int) -> bool:
    """Fill a server with so many trials and ask it; say whether all answers are quick."""
    server = postgresql.serve()
    url = next(server).url()
    runs = count // 1000
    began = time.monotonic()
    rng = random.Random(1)  # noise, not a secret
    with Store.open(url) as store:
        for number in (1, 2):
            store.load(run_of(number, rng, cases=100, blocks=5))
        copied(url, runs)
        trials_there = sum(store.counts().values())
    click.echo(
        f"{trials_there} trials of {runs} runs in {time.monotonic() - began:.0f} s"
    )
    fine = True
    for words in QUESTIONS:
        seconds, busy = read(*words, "--store", url)
        fine &= seconds <= BAR
        said = f"{seconds:.2f} s, {busy:.2f} s of a processor"
        click.echo(f"{' '.join(words)}: {said}; the bar is {BAR:g} s")
    server.close()
    return fine


def copied(url: str, runs: int) -> None:
    """Copy the first of two runs until there are so many, the originals the latest."""
    import psycopg

    engine = sa.create_engine(url)
    with engine.begin() as connection:
        first = sa.select(schema.RUNS).order_by(schema.RUNS.c.number).limit(1)
        row = dict(connection.execute(first).mappings().one())
        entry = sa.select(schema.ENTRIES).where(schema.ENTRIES.c.run == row["uid"])
        kept = [one[1:-1] for one in connection.execute(entry)]
        for number in (2, 1):  # behind the copies
            was = sa.select(schema.RUNS).where(schema.RUNS.c.number == number)
            own = dict(connection.execute(was).mappings().one())
            schema.update(connection, own | {"number": runs - 2 + number})
        made = [_copy(row, number) for number in range(1, runs - 1)]
        connection.execute(sa.insert(schema.RUNS), made)
        connection.execute(sa.update(schema.SCHEMAS).values(runs=runs, last=runs))
    plain = url.replace("+psycopg", "").replace(" ", "%20")
    with psycopg.connect(plain, autocommit=True) as connection:
        connection.execute(
            'INSERT INTO trial (run, "case", mode, block, position, document, samples, '
            "digest) SELECT r.uid, t.\"case\", t.mode, t.block, t.position, '', '', "
            "t.digest FROM run r CROSS JOIN trial t WHERE t.run = %s AND r.number < %s",
            (row["uid"], runs - 1),
        )
        rng = random.Random(2)  # noise, not a secret
        with connection.cursor().copy("COPY entry FROM STDIN") as copy:
            for one in made:
                head = run.head_of([one[name] for name in schema.HEAD])
                for values in kept:
                    numbers = [x * rng.gauss(1, 0.01) for x in json.loads(values[3])]
                    new = (head.uid, *values[:3], json.dumps(numbers), *values[4:])
                    copy.write_row((*new, summary.digest_of(head, new)))
        with connection.cursor().copy("COPY summary FROM STDIN") as copy:
            for one in made:
                head = run.head_of([one[name] for name in schema.HEAD])
                copy.write_row((head.uid, summary.digest(head), len(kept)))
        connection.execute("ANALYZE")


def _copy(row: Mapping[str, Any], number: int) -> dict[str, Any]:
    """Return the row of another run, of one of three kinds of machines."""
    day, hour = divmod(number, 24)
    changed = dict(row) | {
        "uid": f"{number:032x}",
        "started": f"2024-{1 + day // 28 % 12:02}-{1 + day % 28:02}T{hour:02}:00:00",
        "commit": f"{number:040x}",
        "number": number,
        "kind": f"cpu=Test CPU {number % 3}; cores=2",
        "place": f"{number % 3:016x}" if number % 3 else row["place"],
    }
    changed["head"] = schema.headed(changed)
    return changed | {"digest": schema.sealed(schema.RUNS, changed)}


def main() -> None:
    """Fill a server and ask it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--trials", type=int, default=10_000_000)
    sys.exit(not year(parser.parse_args().trials))


if __name__ == "__main__":
    main()
