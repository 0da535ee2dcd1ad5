"""On a real Ray of this machine, two cores: batches with the texts of one process, and ``outrider.speculate``."""

from __future__ import annotations

import json
import os
import sys
from pathlib import Path
from typing import Any

import pytest

from command import Command
from outrider import speculate
from outrider.cluster.answers import Loading, PromptBatch, PromptLine, answers
from outrider.cluster.ray_batch import OnRay

LINES: list[dict[str, Any]] = [
    *({"id": n, "prompt": f"{n} the quick"} for n in range(9)),
    {"id": "sampled", "prompt": "so", "temperature": 1.0, "seed": 3},
    {"id": "sampled again", "prompt": "so", "temperature": 1.0, "seed": 3},
    {"id": "bad", "prompt": ""},
    {"id": "refused", "prompt": "so", "gamma": 40},
]


@pytest.fixture
def outrider(monkeypatch: pytest.MonkeyPatch, capsys: Any) -> Command:
    monkeypatch.setenv("COLUMNS", "200")
    return Command(monkeypatch, capsys)


def written(path: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in path.read_text().splitlines()]


@pytest.mark.slow
def test_a_batch_gives_the_texts_of_one_process(ray: Any, target: str, tmp_path: Path, outrider: Command) -> None:
    """Catches workers with other slots or seeds, lines that come twice or never, a resumed run that differs."""
    (tmp_path / "in.jsonl").write_text("".join(json.dumps(line) + "\n" for line in LINES))
    words = ["batch", str(tmp_path / "in.jsonl"), "OUT", target, "-n", "7", "--engine", "torch", "--temperature", "0.7"]
    words += ["--seed", "5", "--slots", "2"]
    one, many = tmp_path / "one.jsonl", tmp_path / "many.jsonl"
    assert outrider(*(str(one) if word == "OUT" else word for word in words)).code == 1
    said = outrider(*(str(many) if word == "OUT" else word for word in words), "--ray", "--workers", "2")
    assert said.code == 1 and "2 of 13 lines failed" in said.err, said.err

    def texts(path: Path) -> list[Any]:
        return [(r["index"], r["id"], r["key"], r.get("tokens"), r["error"]) for r in written(path)]

    assert texts(many) == texts(one) and len(texts(one)) == len(LINES)
    many.write_bytes(b"".join(many.read_bytes().splitlines(keepends=True)[:4]) + b'{"index": 5, "id')  # killed
    said = outrider(*(str(many) if word == "OUT" else word for word in words), "--ray")
    assert "4 of 13 lines are in" in said.err and texts(many) == texts(one)


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
def test_two_hundred_lines_give_the_texts_of_one_process(ray: Any, target: str) -> None:
    """Many blocks for each of two workers: greedy, and sampled with the seeds that follow from the batch."""
    prompts = [PromptLine(n, f"{n % 90} the cat", options={"temperature": float(n % 2)}) for n in range(200)]
    batch = PromptBatch(prompts, {"max_new_tokens": 6, "seed": 5}, {})  # some lines come again, with another seed
    lines, loading = (
        batch.complete(batch.keys()),
        Loading(target, {"draft": "copy", "device": "cpu", "engine": "torch"}),
    )
    texts: list[dict[int, Any]] = []
    here = answers(loading.load(8), lines, 8, lambda more_lines, more_tokens: None)
    for given in (here, OnRay(loading, workers=2)(lines, 8)(lambda more_lines, more_tokens: None)):
        found = [(line.index, (record["tokens"], record["text"], record["finish_reason"])) for line, record in given]
        assert len(found) == 200
        texts.append(dict(found))
    assert texts[0] == texts[1] and texts[0].keys() == set(range(200))
    assert len({str(text) for text in texts[0].values()}) > 100


@pytest.mark.slow
def test_speculate_on_ray(ray: Any, tmp_path: Path) -> None:
    """The executor was tried against a stand-in only."""
    from outrider.cluster.ray_cluster import RayExecutor

    def work(action: str) -> str:
        return f"went {action}, process {os.getpid() != home}"

    home = os.getpid()
    executor = RayExecutor(num_cpus=1)
    laws = ({"left": 0.6, "right": 0.4}, {"left": 0.5, "right": 0.5})
    found = [speculate(lambda: laws[0], lambda: laws[1], work, executor, seed=seed) for seed in range(6)]
    from concurrent.futures import ThreadPoolExecutor

    with ThreadPoolExecutor(2) as threads:
        expected = [speculate(lambda: laws[0], lambda: laws[1], work, threads, seed=seed) for seed in range(6)]
    assert [(one.outcome, one.kept, one.guesses) for one in found] == [
        (one.outcome, one.kept, one.guesses) for one in expected
    ]
    assert {one.value for one in found} <= {"went left, process True", "went right, process True"}
    with pytest.raises(ZeroDivisionError):
        speculate(lambda: laws[0], lambda: laws[1], lambda x: 1 // 0, executor, seed=1)
