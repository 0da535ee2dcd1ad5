"""How a call's options become a decoder: one way for ``LLM`` and for ``transformers_generate``."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf

import library
import outrider
import tiny
from outrider.call import DecoderBuilder
from outrider.core.sampling import Sampling
from outrider.decoding.loop import Decoder
from outrider.decoding.session_pool import SessionPool
from outrider.drafters import Copying
from outrider.models.transformers.model import HuggingFaceModel
from outrider.planning.policies import Auto, Fixed


def test_both_doors_are_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``transformers_generate`` once put its own decoder together, and rules about clocks were written twice."""
    folder = library.save_llama(tmp_path / "model")
    made: list[Decoder] = []
    build = DecoderBuilder.decoder

    def seen(self: DecoderBuilder, *given: Any, **options: Any) -> Decoder:
        made.append(build(self, *given, **options))
        return made[-1]

    monkeypatch.setattr(DecoderBuilder, "decoder", seen)
    prompt = [4, 9, 30, 8, 4, 9, 30]
    llm = outrider.load(str(folder), "copy", "cpu", "float32", engine="torch")
    ours = llm.generate(prompt, max_new_tokens=12, gamma=3, temperature=1.0, coupling="gumbel", seed=5, eos=[])
    assert len(made) == 1 and len(ours.tokens) == 12
    model = tf.AutoModelForCausalLM.from_pretrained(folder)
    model.generate(
        torch.tensor([prompt]), custom_generate=outrider.transformers_generate, draft="copy", gamma=3, seed=5,
        max_new_tokens=12, min_new_tokens=12, do_sample=True, top_k=0, coupling="gumbel", exact=True, pad_token_id=0,
    )  # fmt: skip
    first, second = made
    assert second.target.vocab_size == first.target.vocab_size and second.slots == 1
    for field in ("verifier", "gamma", "width", "exact"):
        assert getattr(first, field) == getattr(second, field)


@pytest.mark.parametrize("dtype", [torch.float32, torch.bfloat16])
@pytest.mark.parametrize("exact", [True, False])
@pytest.mark.parametrize("repeatable", [True, False])
@pytest.mark.parametrize(("coupling", "temperature"), [("gumbel", 1.0), ("maximal", 1.0), ("block", 1.0), ("block", 0)])
def test_where_a_clock_may_choose_gamma(
    dtype: torch.dtype, exact: bool, repeatable: bool, coupling: str, temperature: float
) -> None:
    """Not where the same call must give the same text, and the text depends on gamma: by the rule, or by its bits."""
    builder = DecoderBuilder(_model(dtype), Auto(), SessionPool(), exact=exact)
    decoder = builder.decoder(Copying(), Sampling(temperature), coupling, "auto", repeatable=repeatable)
    one_text = coupling == "gumbel" or temperature == 0
    same_bits = exact or dtype == torch.float32
    assert isinstance(decoder.gamma, Auto)
    assert (decoder.gamma is builder.auto) == decoder.gamma.clock == (not repeatable or (one_text and same_bits))


def test_a_gamma_of_the_callers_is_kept() -> None:
    """Catches a policy that replaces what was asked for."""
    builder = DecoderBuilder(_model(torch.float32), Auto(), SessionPool())
    for gamma in (3, Fixed(2)):
        assert builder.decoder(Copying(), Sampling(1.0), "maximal", gamma, repeatable=True).gamma is gamma


def _model(dtype: torch.dtype) -> HuggingFaceModel:
    return HuggingFaceModel(tiny.build("llama").to(dtype))
