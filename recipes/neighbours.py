"""What waiting costs: one decoding process alone and several at once, under several policies of waiting.

python recipes/neighbours.py smollm2-135m

Threads of one team wait for each other hundreds of times a step. While they wait they may spin, which is quickest if
the core is theirs and a waste if another process needs it. Every policy is tried alone and with neighbours, in turn,
in processes of their own, since the OpenMP runtime reads its settings when it is loaded. All of them decode the same
text plainly, so the work is the same.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

POLICIES = {
    # What the library does by itself: libgomp spins for about 3 ms.
    "their own": {"OMP_WAIT_POLICY": "ACTIVE", "GOMP_SPINCOUNT": "300000"},
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

CHILD = """
import sys, time, outrider
llm = outrider.load(sys.argv[1], draft="none", slots=1, engine=sys.argv[3])
options = {"eos": (), "max_new_tokens": int(sys.argv[2])}
llm.generate("Once upon a time", eos=(), max_new_tokens=4)
print("ready", flush=True)
for line in sys.stdin:
    began = time.perf_counter()
    llm.generate("Once upon a time", **options)
    print(time.perf_counter() - began, flush=True)
"""


class Team:
    """Processes that decode when told to, all at the same time."""

    def __init__(self, size: int, settings: dict[str, str], options: argparse.Namespace) -> None:
        kept = {name: value for name, value in os.environ.items() if name not in WAITING}
        command = [sys.executable, "-c", CHILD, options.target, str(options.tokens), options.engine]
        self.members = [
            subprocess.Popen(
                command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, bufsize=1, env=kept | settings
            )
            for _ in range(size)
        ]
        for member in self.members:
            self._answer(member)

    @staticmethod
    def _answer(member: subprocess.Popen[str]) -> str:
        assert member.stdout is not None
        line = member.stdout.readline()
        if not line:
            sys.exit("a decoding process ended; its message is above")
        return line.strip()

    def decode(self) -> list[float]:
        for member in self.members:
            assert member.stdin is not None
            member.stdin.write("go\n")
        return [float(self._answer(member)) for member in self.members]

    def end(self) -> None:
        for member in self.members:
            member.kill()
            member.wait()


def measure(options: argparse.Namespace, size: int) -> dict[str, list[float]]:
    """Policy -> tokens per second of ``size`` processes together, a value for every round."""
    speeds: dict[str, list[float]] = {name: [] for name in POLICIES}
    teams: dict[str, Team] = {}
    try:
        for name, settings in POLICIES.items():
            sys.stderr.write(f"{size} at once, {name}: loading\n")
            teams[name] = Team(size, settings, options)
        for turn in range(options.repeats):
            for name in list(teams)[turn % len(teams) :] + list(teams)[: turn % len(teams)]:
                speeds[name].append(sum(options.tokens / seconds for seconds in teams[name].decode()))
                sys.stderr.write(f"{size} at once, {name}: {speeds[name][-1]:.1f} tokens/s\n")
    finally:
        for team in teams.values():
            team.end()
    return speeds


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--processes", type=int, nargs="+", default=[1, 2], help="how many decode at once")
    parser.add_argument("--engine", default="auto", help="numba, torch or auto")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--repeats", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write every value here, as JSON")
    options = parser.parse_args()
    found = {size: measure(options, size) for size in options.processes}
    sys.stdout.write(
        f"{options.target}, tokens/s of all processes together, median of {options.repeats} (least-most)\n"
    )
    for size, speeds in found.items():
        first = statistics.median(next(iter(speeds.values())))
        for name, values in speeds.items():
            middle = statistics.median(values)
            spread = f"({min(values):.2f}-{max(values):.2f})"
            sys.stdout.write(f"{size} at once, {name:14}: {middle:6.2f} {spread}, {middle / first:.2f} x the first\n")
    if options.out is not None:
        options.out.write_text(json.dumps(found, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
