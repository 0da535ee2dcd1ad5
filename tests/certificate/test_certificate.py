"""The certificate on tiny models: it passes where it should, and each part can fail."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

import library
import outrider
from outrider.certificate import Certificate, Plan, certify
from outrider.certificate.identity import compare
from outrider.certificate.invariance import invariance
from outrider.certificate.run import conditions
from outrider.errors import BadOption
from outrider.models.huggingface import HuggingFaceSession

PLAN = Plan(prompts=("the thin the thin", "a bc a bc a"), max_new_tokens=10, gammas=(1, 4), samples=600, rows=300)


@pytest.fixture(scope="module", params=["llama", "t5"])
def llm(request: Any, tmp_path_factory: Any) -> outrider.LLM:
    folder: Path = tmp_path_factory.mktemp("certificate") / request.param
    save = library.save_llama if request.param == "llama" else library.save_t5
    return outrider.load(str(save(folder)), draft="copy", dtype="float32")


def test_a_right_engine_passes(llm: outrider.LLM) -> None:
    """Catches a certificate that cries wolf, or that crashes on an encoder-decoder."""
    shown: list[str] = []
    done = certify(llm, PLAN, Certificate("tiny", "copy", conditions(llm)), lambda what, share: shown.append(what))
    assert done.finished and done.mismatches == 0 and done.tokens > 200
    assert all(r.passed for r in (*done.greedy, *done.gumbel, *done.invariance))
    assert [r for r in done.law if r.must_pass and not r.passed] == []
    assert json.loads(json.dumps(done.to_json(), allow_nan=False))["mismatched_tokens"] == 0
    assert shown


def test_a_changed_token_is_found_and_explained(llm: outrider.LLM) -> None:
    """Catches a comparison that cannot fail: plain outputs with one token changed must be reported."""
    prompts = [llm.tokenizer.encode(text) for text in PLAN.prompts]
    options = {"max_new_tokens": 8, "eos": ()}
    plain = outrider.LLM(llm.target, outrider.Nothing(), slots=1).generate(prompts, **options)
    plain[1].tokens[5] = (plain[1].tokens[5] + 1) % 40
    single = outrider.LLM(llm.target, llm.drafter, slots=1)
    (result,) = compare(single, [outrider.Copying()], [4], prompts, plain, options, None)
    assert not result.passed and result.mismatches == 1
    assert result.first is not None and (result.first.prompt, result.first.position) == (1, 5)
    assert result.first.plain_gap < 0  # the changed token was not the target's choice


def test_a_drafter_that_fails_is_no_evidence(llm: outrider.LLM) -> None:
    """Catches a certificate for a drafter that never drafted."""

    class Broken:
        name = "broken"

        def start(self, *arguments: Any) -> Any:
            raise RuntimeError("no")

    prompts = [llm.tokenizer.encode("the thin")]
    options = {"max_new_tokens": 4, "eos": ()}
    plain = outrider.LLM(llm.target, outrider.Nothing(), slots=1).generate(prompts, **options)
    with pytest.warns(UserWarning, match="drafter failed"):
        (result,) = compare(llm, [Broken()], [2], prompts, plain, options, None)
    assert not result.passed


def test_kernels_that_mix_rows_are_caught(llm: outrider.LLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an invariance check that compares a thing with itself."""
    feed = HuggingFaceSession._feed

    def leaky(self: Any, tokens: torch.Tensor, positions: torch.Tensor) -> Any:
        logits, hidden = feed(self, tokens, positions)
        return logits + tokens.sum() * 1e-4, hidden

    monkeypatch.setattr(HuggingFaceSession, "_feed", leaky)
    results = invariance(llm, [llm.tokenizer.encode(t) for t in PLAN.prompts])
    assert any(not r.passed for r in results)


def test_gammas_that_do_not_fit_are_refused(llm: outrider.LLM) -> None:
    """Catches a certificate that silently leaves out what was asked for."""
    plan = Plan(prompts=("the",), gammas=(4, 12), samples=600)
    with pytest.raises(BadOption, match="--width 13"):
        certify(llm, plan, Certificate("tiny", "copy", {}), lambda *_: None)
