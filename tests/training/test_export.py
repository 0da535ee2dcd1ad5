"""``outrider distill --export speculators``: what can be written in that format, and what says that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from safetensors.torch import load_file
from typer.testing import CliRunner

import eagle_heads
import library
import outrider
from outrider.cli.main import app
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
from outrider.drafters.published import PublishedDrafter
from outrider.errors import BadOption


@pytest.fixture
def head(tmp_path: Path) -> Path:
    """A plain EAGLE-3 repository beside the target it is for."""
    library.save_llama(tmp_path / "target")
    tokens = torch.arange(eagle_heads.TOKENS) * 2
    weights = eagle_heads.tensors("midlayer") | {"d2t": tokens - torch.arange(len(tokens))}
    del weights["t2d"]
    return eagle_heads.saved(tmp_path / "head", eagle_heads.plain_config(vocab_size=library.ROWS), weights)


def run(*words: object) -> str:
    """What the command prints; raises what it refuses."""
    result = CliRunner().invoke(app, ["distill", *map(str, words)], catch_exceptions=False)
    assert result.exit_code == 0
    return result.stdout


def test_a_plain_repository_is_written_for_vllm(tmp_path: Path, head: Path) -> None:
    out = tmp_path / "out"
    words = (tmp_path / "target", "--out", out, "--from", head, "--export", "speculators", "--json")
    assert json.loads(run(*words))["layers"] == eagle_heads.LAYERS
    settings = json.loads((out / "config.json").read_text("utf-8"))
    verifier = settings["speculators_config"]["verifier"]
    assert verifier == {"name_or_path": str(tmp_path / "target"), "architectures": ["LlamaForCausalLM"]}
    given, written = PublishedDrafter.load(head), PublishedDrafter.load(out)
    assert torch.equal(given.tokens, written.tokens)
    assert torch.equal(given.head.lm_head.weight, written.head.lm_head.weight)
    with pytest.raises(BadOption, match="is not empty; name a new directory"):
        run(*words)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """Heads of Outrider's own kinds have layers that the format does not know: said before anything is loaded."""
    own = tmp_path / "own"
    own.mkdir()
    HeadDrafter(Head(HeadConfig("feature", 32, 16, 1)), torch.arange(3, 40)).save(own)
    for words, says in [
        (("--from", own, "--export", "speculators"), "is a draft with layers that no architecture of spec"),
        (("--from", tmp_path, "--export", "speculators"), "is no head; name another --from"),
        (("--export", "speculators"), "cannot hold a draft of --kind feature: its layers exist in no architecture"),
        (("--export", "vllm"), "--export must be one of speculators, got 'vllm'"),
    ]:
        with pytest.raises(BadOption, match=says):
            run("no-such-target", "--out", tmp_path / "out", *words)


def test_what_is_trained_is_in_the_format(tmp_path: Path) -> None:
    """From the command to a draft that is used: catches --export that is ignored, and a directory that is no draft."""
    target, out = library.save_llama(tmp_path / "target"), tmp_path / "out"
    few = ("--text-tokens", 600, "--tokens", 512, "--block", 32, "--batch", 4, "--vocab", 64, "--depth", 2)
    run(target, "--out", out, "--kind", "eagle3", "--export", "speculators", *few, "--no-measure", "--dtype", "float32")
    assert "An EAGLE-3 head in the speculators format" in (out / "README.md").read_text("utf-8")
    again = tmp_path / "again"
    run(target, "--out", again, "--from", out, "--export", "speculators")
    one, two = (load_file(str(folder / "model.safetensors")) for folder in (out, again))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    llm, plain = (outrider.load(str(target), draft=draft, dtype="float32") for draft in (str(again), None))
    found, expected = (each.generate("the thin the", max_new_tokens=20) for each in (llm, plain))
    assert found.tokens == expected.tokens and found.stats.drafted > 0 and found.stats.drafter_error is None
    other = library.save_llama(tmp_path / "other", seed=5)
    with pytest.raises(BadOption, match="was trained for another target than"):
        run(other, "--out", tmp_path / "third", "--from", out, "--export", "speculators")
