"""What the model's choices take over the best that was found: replayed from tunings.

    python tests/regret.py tests/tuned_h200.json

Files are what `steelyard tune --json` prints. Nothing is built or measured: the model of
today chooses, and its choice was measured with all other candidates.
"""

import json
import statistics
import sys
from pathlib import Path

from steelyard_lock.points import Point, spec_of
from steelyard_lock.tuning import Space


def regrets(path):
    """Yield each tuning's shape, the choice of today, and its time over the best's.

    A choice that was not measured has none: then the file has to be made again.
    """
    for found in json.loads(Path(path).read_text())["tunings"]:
        arrays = tuple(map(spec_of, found["arrays"]))
        kernel = str(Path(__file__).parent.parent / found["kernel"])
        point = Point(kernel, (), arrays, found["target"])
        chosen = Space.of(point).heuristic.label
        final, screened = found["finalists"], found["times"]
        times = final if chosen in final else screened
        best = min(times[label] for label in final)
        over = times[chosen] / best - 1 if chosen in times else None
        yield " ".join(found["arrays"]), chosen, over


def main(paths):
    """Write a line a shape, and the mean and the worst."""
    found = [each for path in paths for each in regrets(path)]
    lines = [
        f"{arrays}: {'unknown' if over is None else f'{over:.1%}'} {chosen}"
        for arrays, chosen, over in found
    ]
    known = [over for *_, over in found if over is not None]
    mean, worst = statistics.fmean(known), max(known)
    lines.append(f"{len(known)} shapes: mean {mean:.1%}, worst {worst:.1%}")
    sys.stdout.write("\n".join(lines) + "\n")


if __name__ == "__main__":
    main(sys.argv[1:])
