"""Which T5-like models the compiled engine is chosen for, and that the shipped pair is one of them."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from safetensors.torch import load_file, save_file

import library
import outrider
from outrider.bench import prompts
from outrider.drafters import ModelDrafter
from outrider.errors import BadOption, ModelError
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.hub import pairs

pytest.importorskip("numba")

from models.test_engines import with_fma
from models.test_t5_engine import SIZES, built, by_numba

pytestmark = [pytest.mark.cpu_paths, pytest.mark.usefixtures("cache"), with_fma]


def chosen(config: Any, size: float = 1e8, engine: str = "auto") -> str:
    config.dtype = torch.bfloat16
    return chosen_engine(Kernels(engine), config, torch.device("cpu"), torch.float32, size, settled=False)


def test_the_engine_is_chosen_for_layers_it_has() -> None:
    assert chosen(tf.T5Config(**SIZES)) == chosen(tf.MT5Config(**SIZES)) == "numba"
    assert chosen(tf.T5Config(**SIZES), size=2e6) == "numba", "torch is slow at small operations"
    assert chosen(tf.T5Config(**SIZES), size=1e5) == "torch"
    assert chosen(tf.BartConfig()) == "torch"
    for wrong, reason in (({"feed_forward_proj": "gelu_fast"}, "gelu_fast"), ({"d_ff": 100}, "multiple of 16")):
        config = tf.T5Config(**SIZES | wrong)
        assert chosen(config) == "torch"
        with pytest.raises(BadOption, match=reason):
            chosen(config, engine="numba")


def test_an_embedding_of_its_own_for_the_decoder_is_refused(tmp_path: Path) -> None:
    """The engine has one table for encoder and decoder: a checkpoint with two must not lose one."""
    by_numba(built("v1.0: relu, tied, scaled"), tmp_path)
    file = tmp_path / "model.safetensors"
    tensors = load_file(file)
    for factor, fits in ((1, True), (2, False)):
        save_file(tensors | {"decoder.embed_tokens.weight": factor * tensors["shared.weight"]}, file, {"format": "pt"})
        config = tf.AutoConfig.from_pretrained(tmp_path)
        if fits:
            library.prepared(tmp_path, config, "numba", "bfloat16")
            continue
        with pytest.raises(ModelError, match="embed_tokens"):
            library.prepared(tmp_path, config, "numba", "bfloat16")


def test_the_shipped_pair_writes_what_transformers_writes() -> None:
    """Target and draft are both compiled, and texts are those of transformers' own ``generate``."""
    plain = outrider.load("t5-ende", draft=None, dtype="float32")
    auto, given = plain.with_draft("auto"), [text for task in prompts.SOURCES.values() for text in task[:5]]
    assert isinstance(auto.drafter, ModelDrafter)
    for model in (plain.target.model, auto.drafter.model):
        assert "numba" in model.facts.engine  # type: ignore[attr-defined]
    folder = pairs.find("t5-ende")
    assert folder is not None
    peer = tf.AutoModelForSeq2SeqLM.from_pretrained(folder / "target", dtype=torch.float32)
    how = {"max_new_tokens": 24}
    texts = [output.tokens for output in plain.generate(given, **how)]
    assert [output.tokens for output in auto.generate(given, **how)] == texts
    assert [plain.generate(text, **how).tokens for text in given[:4]] == texts[:4]
    assert [auto.generate(text, gamma=3, **how).tokens for text in given[:4]] == texts[:4]
    for text, found in zip(given, texts, strict=True):
        expected = peer.generate(torch.tensor([plain.encode(text)]), do_sample=False, **how)[0, 1:].tolist()
        assert list(found) == expected[: len(found)] and len(found) >= len(expected) - 1, text
