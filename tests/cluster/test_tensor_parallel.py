"""Tensor parallelism on two gloo ranks: with and without speculation the same text, and rank 0 alone decides."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from transformers import AutoModelForCausalLM

import library
import outrider
from outrider.errors import BadOption, DeviceError
from outrider.models import parallel

pytestmark = pytest.mark.alone
HERE = Path(__file__).parent


def torchrun(*words: str) -> subprocess.CompletedProcess[str]:
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join(path for path in sys.path if path)}
    command = [sys.executable, "-m", "torch.distributed.run", "--standalone", "--nproc-per-node", "2", *words]
    return subprocess.run(command, env=environment, capture_output=True, text=True, timeout=600, check=False)


@pytest.fixture(scope="module")
def models(tmp_path_factory: pytest.TempPathFactory) -> tuple[str, str]:
    """A target and a model to draft for it."""
    folder = tmp_path_factory.mktemp("models")
    return str(library.save_llama(folder / "target")), str(library.save_llama(folder / "draft", seed=1))


@pytest.mark.slow
def test_speculation_changes_no_token(models: tuple[str, str], tmp_path: Path) -> None:
    """Ranks that decide for themselves hang, or drift apart; a rank whose cache misses a change of rows does, too."""
    done = torchrun(str(HERE / "torchrun.py"), *models, str(tmp_path / "found.json"))
    assert done.returncode == 0, done.stderr[-3000:]
    found: dict[str, Any] = json.loads((tmp_path / "found.json").read_text())
    for way in ("greedy", "gumbel", "beams"):
        plain = [(text, tokens) for text, tokens, _ in found[f"{way} none"]]
        assert all(len(tokens) == 24 for _, tokens in plain)
        for drafter in ("copy", "model", *([] if way == "beams" else [f"copy>{models[1]}"])):
            assert [(text, tokens) for text, tokens, _ in found[f"{way} {drafter}"]] == plain, (way, drafter)
    assert sum(accepted for _, _, accepted in found["greedy copy"]) > 0, "guesses were made and kept"
    assert found["gumbel none"] != found["greedy none"] and found["facts"] == ["torch on 2 ranks", False]
    assert len(found["other"]) <= 8
    alone = outrider.load(models[0], "none", engine="torch").generate("so", max_new_tokens=1)
    assert alone.tokens == found["greedy none"][1][1][:1], "the model, not something else"


@pytest.mark.slow
def test_one_rank_is_the_command(models: tuple[str, str], tmp_path: Path) -> None:
    """Each process would read the prompts, hold the lock of the output file and write every line."""
    (tmp_path / "in.jsonl").write_text('{"prompt": "so"}\n{"prompt": "the quick"}\n')
    words = ["-m", "outrider", "batch", str(tmp_path / "in.jsonl"), str(tmp_path / "out.jsonl"), models[0]]
    done = torchrun(*words, "-n", "5", "--tensor-parallel", "2")
    assert done.returncode == 0 and done.stdout == "", done.stderr[-3000:]
    assert done.stderr.count("2 texts") == 1
    assert [json.loads(line)["index"] for line in (tmp_path / "out.jsonl").read_text().splitlines()] == [0, 1]


REFUSED: dict[str, tuple[dict[str, Any], str]] = {
    "no torchrun": ({}, "torchrun --nproc-per-node 2"),
    "graphs": ({"graphs": True}, "graphs=True needs tensor_parallel=1"),
    "no number": ({"tensor_parallel": 0}, "tensor_parallel must be a whole number of at least 1"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused_outside_torchrun(name: str, models: tuple[str, str]) -> None:
    """Catches a job of one process that waits for others which will never come."""
    given, says = REFUSED[name]
    with pytest.raises(BadOption, match=says):
        outrider.load(models[0], **{"tensor_parallel": 2, **given})


class OneRank:
    """Stands in for a job of two ranks of which one exists."""

    device = parallel.torch.device("cpu")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"engine": "numba"}, "engine 'numba' runs a model in one process"),
        ({"weights": "int8", "engine": "torch"}, "weights='int8' cannot be sharded"),
        ({"target": "t5"}, "decoder-only"),
        ({"target": "gpt2"}, "no plan for sharding"),
        ({"tensor_parallel": 3}, "must divide the 2 key/value heads"),
    ],
)
def test_what_is_refused_of_models(
    given: dict[str, Any], says: str, models: tuple[str, str], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """transformers loads a model without a plan whole on every rank, and fails deep inside on uneven heads."""
    size = given.get("tensor_parallel", 2)
    monkeypatch.setenv("WORLD_SIZE", str(size))
    monkeypatch.setattr(parallel, "joined", OneRank)
    monkeypatch.setattr(parallel, "lead", lambda *given: pytest.fail("it was loaded"))
    target = models[0]
    if "target" in given:
        target = str(library.save_t5(tmp_path / "model"))
    if given.get("target") == "gpt2":
        (tmp_path / "model" / "config.json").write_text(json.dumps({"model_type": "gpt2"}))
    with pytest.raises(BadOption, match=says):
        outrider.load(**{"tensor_parallel": size, **given, "target": target})


def test_a_sharded_model_of_the_caller_is_refused(models: tuple[str, str]) -> None:
    """Ranks that plan by their own clocks run different numbers of tokens, and wait for each other for ever."""
    model = AutoModelForCausalLM.from_pretrained(models[0])
    model._tp_size = 2
    ids = parallel.torch.tensor([[5, 6]])
    with pytest.raises(BadOption, match="sharded over 2 processes"):
        model.generate(ids, max_new_tokens=2, custom_generate=outrider.transformers_generate, draft="copy")


def test_after_an_error_in_a_run_no_rank_is_left_waiting(monkeypatch: pytest.MonkeyPatch) -> None:
    """The next collective would meet another one on the other rank, and both would wait for ever."""
    told: list[Any] = []
    dist = parallel.dist
    monkeypatch.setattr(dist, "is_initialized", lambda: True)
    monkeypatch.setattr(dist, "get_world_size", lambda: 2)
    monkeypatch.setattr(dist, "new_group", lambda **given: None)
    monkeypatch.setattr(dist, "broadcast_object_list", lambda given, **options: told.append(given[0]))
    ranks = parallel.Ranks(parallel.torch.device("cpu"))
    with ranks.told("run", 1):
        pass
    with pytest.raises(ZeroDivisionError), ranks.told("run", 2):
        raise ZeroDivisionError
    with pytest.raises(DeviceError, match="no longer in step"), ranks.told("run", 3):
        pass
    assert [command[1:] for command in told] == [("run", 1), ("run", 2)]
