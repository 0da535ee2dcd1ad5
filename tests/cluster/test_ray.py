"""On a real Ray of this machine, two cores: batches with the texts of one process, and ``outrider.speculate``."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import time
from pathlib import Path
from typing import Any

import pytest

from command import Command
from outrider import speculate

pytestmark = pytest.mark.alone
LINES: list[dict[str, Any]] = [
    *({"id": n, "prompt": f"{n} the quick"} for n in range(9)),
    {"id": "sampled", "prompt": "so", "temperature": 1.0, "seed": 3},
    {"id": "sampled again", "prompt": "so", "temperature": 1.0, "seed": 3},
    {"id": "bad", "prompt": ""},
    {"id": "refused", "prompt": "so", "gamma": 40},
    *({"id": n, "prompt": f"{n % 90} the cat", "temperature": float(n % 2)} for n in range(200)),  # some come again
]


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


def on_ray(words: list[str], address: str) -> tuple[int, str]:
    """The program joined to a Ray, and what it said. Where Ray itself aborts it (seen on an overloaded machine: "Tried
    to complete task that was not pending") it is started again, as its user would, and takes up where it was."""
    command = [sys.executable, "-m", "outrider", *words, "--ray", "--workers", "2"]
    for _ in range(4):
        environment = os.environ | {"RAY_ADDRESS": address}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600)
        if done.returncode >= 0:
            break
    assert "Traceback" not in done.stderr
    return done.returncode, done.stderr


@pytest.mark.slow
def test_a_batch_gives_the_texts_of_one_process(ray: Any, target: str, tmp_path: Path, outrider: Command) -> None:
    """Many blocks for each of two workers, greedy and sampled. Catches workers with other slots or seeds, lines that
    come twice or never, a resumed run that differs."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    words = ["batch", str(tmp_path / "in.jsonl"), "OUT", target, "-n", "6", "--engine", "torch", "--temperature", "0.7"]
    words += ["--seed", "5", "--slots", "4"]
    one, many = tmp_path / "one.jsonl", tmp_path / "many.jsonl"
    here, there = ([str(path) if word == "OUT" else word for word in words] for path in (one, many))
    assert outrider(*here).code == 1
    code, said = on_ray(there, ray.get_runtime_context().gcs_address)
    assert code == 1 and "2 of 213 lines failed" in said, said

    def texts(path: Path) -> list[Any]:
        return [(r["index"], r["id"], r["key"], r.get("tokens"), r["error"]) for r in written(path)]

    assert texts(many) == texts(one) and len(texts(one)) == len(LINES)
    assert len({str(text[3]) for text in texts(one)}) > 100
    many.write_bytes(b"".join(many.read_bytes().splitlines(keepends=True)[:204]) + b'{"index": 5, "id')  # killed
    code, said = on_ray(there, ray.get_runtime_context().gcs_address)
    assert "202 of 213 lines are in" in said  # of the 204 two had failed: they are tried again
    assert texts(many) == texts(one)


def test_without_ray_the_error_says_what_to_install(
    target: str, tmp_path: Path, outrider: Command, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "in.jsonl").write_text('{"prompt": "so"}\n')
    words = ["batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), target]
    assert "means something with --ray only" in outrider(*words, "--workers", "2").err
    monkeypatch.setitem(sys.modules, "ray", None)
    said = outrider(*words, "--ray")
    assert said.code == 2 and "pip install '.[ray]'" in said.err


@pytest.mark.slow
def test_speculate_on_ray(ray: Any, tmp_path: Path) -> None:
    """The executor was tried against a stand-in only."""
    from outrider.cluster.ray_cluster import RayExecutor

    def work(action: str) -> str:
        return f"went {action}, process {os.getpid() != home}"

    home = os.getpid()
    executor = RayExecutor(num_cpus=1)
    distributions = ({"left": 0.6, "right": 0.4}, {"left": 0.5, "right": 0.5})
    found = [
        speculate(lambda: distributions[0], lambda: distributions[1], work, executor, seed=seed) for seed in range(6)
    ]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        expected = [
            speculate(lambda: distributions[0], lambda: distributions[1], work, threads, seed=seed) for seed in range(6)
        ]
    assert [(one.outcome, one.kept, one.guesses) for one in found] == [
        (one.outcome, one.kept, one.guesses) for one in expected
    ]
    assert {one.value for one in found} <= {"went left, process True", "went right, process True"}
    with pytest.raises(ZeroDivisionError):
        speculate(lambda: distributions[0], lambda: distributions[1], lambda x: 1 // 0, executor, seed=1)


@pytest.mark.slow
def test_tasks_that_nobody_wants_end_nobody(ray: Any) -> None:
    """Rejected guesses were cancelled by ``ray.cancel``, which aborts the caller's process where a task is just on its
    way to a worker: CI ended without a word. Here that took 14 to 141 rounds."""
    from outrider.cluster.ray_cluster import RayExecutor

    def power(number: int, exponent: int) -> int:
        return number**exponent

    executor = RayExecutor(num_cpus=1)
    for number in range(150):
        wanted, *others = (executor.submit(power, number, exponent) for exponent in (2, 3, 4))
        time.sleep(number % 5 / 1000)
        for other in others:
            other.cancel()
        assert wanted.result() == number**2
