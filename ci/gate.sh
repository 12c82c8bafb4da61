#!/usr/bin/env bash
# One lane of the gate: ci/gate.sh static|gate BASELINE [OPTIONS and PATHS of the gate]
# Leaves gate.json, summary.md and junit.xml in $GATE_OUT, prints annotations, and ends
# as the gate does. What continuous integration runs, and anybody may by hand.
set -euo pipefail
cd "$(dirname "$0")/.."

lane=$1 baseline=$2
shift 2
steelyard=${STEELYARD:-.venv/bin/steelyard}
out=${GATE_OUT:-gate/$lane}
mkdir -p "$out"
rm -f "$out/gate.json" # an older verdict is not this one's

# Measuring runs what it measures, on a machine of ours. The workflow asks this too; it
# is asked again so that no other workflow forgets.
if [[ $lane == gate && -n ${GITHUB_EVENT_PATH:-} ]]; then
  python3 - "$GITHUB_EVENT_PATH" "${GITHUB_REPOSITORY:-}" <<'PYTHON'
import json, sys
pull = json.load(open(sys.argv[1], encoding="utf-8")).get("pull_request")
home = ((pull or {}).get("head") or {}).get("repo") or {}
if pull and home.get("full_name") != sys.argv[2]:
    sys.exit("error: this is a fork's code and is not run on this machine; somebody who "
             "has read it pushes it to a branch of this repository.")
PYTHON
fi

code=0
"$steelyard" gate "$baseline" --lane "$lane" --format json --output "$out/gate.json" \
  --annotations "$@" || code=$?
if [[ -e $out/gate.json ]]; then # none where the command line was wrong
  show() { "$steelyard" verdict --from "$out/gate.json" "$@" || (($? == code)); }
  show
  show --format markdown --output "$out/summary.md"
  show --format junit --output "$out/junit.xml"
  if [[ -n ${GITHUB_STEP_SUMMARY:-} ]]; then
    cat "$out/summary.md" >> "$GITHUB_STEP_SUMMARY"
  fi
fi
exit "$code"
