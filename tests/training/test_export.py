"""``outrider distill --export speculators``: what can be written in that format, and what says that it cannot."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch
from typer.testing import CliRunner

import eagle_heads
import library
from outrider.cli.main import app
from outrider.drafters.eagle3 import Eagle3Drafter
from outrider.drafters.head import Head, HeadConfig, HeadDrafter
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
    given, written = Eagle3Drafter.load(head), Eagle3Drafter.load(out)
    assert torch.equal(given.tokens, written.tokens)
    assert torch.equal(given.head.lm_head.weight, written.head.lm_head.weight)
    with pytest.raises(BadOption, match="is not empty; name a new directory"):
        run(*words)


def test_what_cannot_be_written(tmp_path: Path) -> None:
    """A head trained here has layers that the format does not know, and that is said before anything is loaded."""
    own = tmp_path / "own"
    own.mkdir()
    HeadDrafter(Head(HeadConfig("feature", 32, 16, 1)), torch.arange(3, 40)).save(own)
    for words, says in [
        (("--from", own, "--export", "speculators"), "is a draft trained by Outrider: layers of the heads trained"),
        (("--export", "speculators"), "no --from names one"),
        (("--export", "vllm"), "--export must be one of speculators, got 'vllm'"),
    ]:
        with pytest.raises(BadOption, match=says):
            run("no-such-target", "--out", tmp_path / "out", *words)
