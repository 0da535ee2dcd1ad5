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
from typing import Any

POLICIES = {
    "libgomp's own": {"GOMP_SPINCOUNT": "300000"},  # what an unset policy means there, about 3 ms
    "spin 10000": {"GOMP_SPINCOUNT": "10000"},
    "spin 1000": {"GOMP_SPINCOUNT": "1000"},
    "passive": {"OMP_WAIT_POLICY": "PASSIVE"},
}
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT", "KMP_BLOCKTIME")

CHILD = """
import sys, time, outrider
llm = outrider.load(sys.argv[1], draft="none", slots=1)
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
        command = [sys.executable, "-c", CHILD, options.target, str(options.tokens)]
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


def measure(options: argparse.Namespace) -> dict[tuple[str, int], list[float]]:
    """(policy, processes) -> tokens per second of all processes together, a value for every round."""
    speeds: dict[tuple[str, int], list[float]] = {}
    for size in (1, options.processes):
        teams = {name: Team(size, settings, options) for name, settings in POLICIES.items()}
        try:
            for turn in range(options.rounds):
                names = list(teams)[turn % len(teams) :] + list(teams)[: turn % len(teams)]
                for name in names:
                    took = teams[name].decode()
                    speeds.setdefault((name, size), []).append(sum(options.tokens / t for t in took))
                    sys.stderr.write(f"{size} at once, {name}: {speeds[name, size][-1]:.1f} tokens/s\n")
        finally:
            for team in teams.values():
                team.end()
    return speeds


def table(speeds: dict[tuple[str, int], list[float]], processes: int) -> list[dict[str, Any]]:
    first = next(iter(POLICIES))
    rows = []
    for name in POLICIES:
        alone, together = speeds[name, 1], speeds[name, processes]
        rows.append(
            {
                "policy": name, "alone": statistics.median(alone), "alone_all": alone,
                "together": statistics.median(together), "together_all": together,
                "alone_ratio": statistics.median(alone) / statistics.median(speeds[first, 1]),
                "together_ratio": statistics.median(together) / statistics.median(speeds[first, processes]),
            }
        )  # fmt: skip
    return rows


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("target")
    parser.add_argument("--processes", type=int, default=2, help="how many decode at once in the second part")
    parser.add_argument("--tokens", type=int, default=32)
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--out", type=Path, help="also write the table here, as JSON")
    options = parser.parse_args()
    rows = table(measure(options), options.processes)
    sys.stdout.write(f"{options.target}, tokens/s of all processes together, medians of {options.rounds} rounds\n")
    for r in rows:
        sys.stdout.write(
            f"{r['policy']:14}: alone {r['alone']:6.2f} ({min(r['alone_all']):.2f}-{max(r['alone_all']):.2f}), x "
            f"{r['alone_ratio']:.2f}; {options.processes} at once {r['together']:6.2f} ({min(r['together_all']):.2f}-"
            f"{max(r['together_all']):.2f}), x {r['together_ratio']:.2f}\n"
        )
    if options.out is not None:
        options.out.write_text(json.dumps(rows, indent=2) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
