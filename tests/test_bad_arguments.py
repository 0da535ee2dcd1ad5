"""Arguments of the Python API that cannot be right are refused at once, by name, value and rule."""

from __future__ import annotations

import inspect
import re
from pathlib import Path
from typing import Any

import pytest
from torch import Tensor

import library
import outrider
from outrider.checks import LOADING
from outrider.errors import BadOption
from outrider.options import Options
from outrider.planning.policies import chosen


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"target": ""}, "target must be a model's name, got ''"),
        ({"draft": 7}, "draft must be a name or have `name` and `start`, got 7"),
        ({"width": 0}, "width must be a whole number of at least 1, got 0"),
        ({"width": True}, "width must be a whole number of at least 1, got True"),
        ({"slots": "a"}, "slots must be None or a whole number of at least 1, got 'a'"),
        ({"exact": "no"}, "exact must be True or False, got 'no'"),
        ({"width": 2**70}, "width must be at most 4096, got 1180591620717411303424; leave it out"),
        ({"slots": 10**7}, "slots must be at most 4096, got 10000000; leave it out for up to 8"),
        ({"width": 2.5}, "width must be a whole number of at least 1, got 2.5; leave it out"),
        ({"graphs": 1}, 'graphs must be True, False or "auto", got 1; leave it out'),
        ({"draft": ""}, "draft must be a name or have `name` and `start`, got ''; leave it out for 'auto'"),
        ({"draft": outrider.Copying}, "got the class Copying; give an instance, as Copying()"),
        ({"trust_remote_code": "False"}, "trust_remote_code must be True or False, got 'False'"),
        ({"foo": 1}, "unknown option 'foo'; known options: target, draft, device"),
        ({"widht": 5}, "unknown option 'widht'; did you mean 'width'?"),
        ({"temperature": 0.5}, "unknown option 'temperature'; it is an option of generate"),
        ({"remember": "yes"}, "remember must be True or False, got 'yes'"),
        ({"remember": True, "draft": "copy"}, "remember=True is for draft 'suffix' or 'suffix:DIR', got 'copy'"),
    ],
)
def test_bad_arguments_are_refused_before_a_model_is_loaded(
    monkeypatch: pytest.MonkeyPatch, asked: dict[str, Any], said: str
) -> None:
    """They were refused after it, by a TypeError, or not at all: exact="no" was exact, draft="" was a model's name."""
    monkeypatch.setattr("outrider.models.hub.loading.load", lambda *_: pytest.fail("loaded"))
    with pytest.raises(outrider.OutriderError, match=re.escape(said)):
        outrider.load(**{"target": "some-model", **asked})


def test_load_is_documented_by_its_own_signature() -> None:
    """Options of generate that belong to load are told so by a list, which must be load's own; typing still sees it."""
    assert list(inspect.signature(outrider.load).parameters) == list(LOADING)
    with pytest.raises(BadOption, match="unknown option 'slots'; it is an option of outrider.load"):
        Options.parse({"slots": 4})


@pytest.mark.parametrize("gamma", [outrider.Auto, outrider.Fixed, int, True, 2.5, -1, "atuo", object()])
def test_a_gamma_that_is_none(gamma: Any) -> None:
    """A policy's class has the methods of one: outrider.Auto was accepted, and failed in the first step."""
    rule = "gamma must be a whole number of at least 0, 'auto', 'gradient' or a policy, got "
    for check in (lambda: Options(gamma=gamma), lambda: chosen(gamma, outrider.Auto())):
        with pytest.raises(BadOption, match=re.escape(rule)) as caught:
            check()
        remedy = f"give outrider.{gamma.__name__}()" if gamma in (outrider.Auto, outrider.Fixed) else "leave it out"
        assert remedy in str(caught.value)


@pytest.mark.parametrize(
    ("asked", "said"),
    [
        ({"temperature": 1e-38}, "temperature must be 0, which is greedy, or at least 1e-06, got 1e-38; use 0"),
        ({"temperature": 1, "draft_temperature": 1e-9}, "draft_temperature must be 0, which is greedy, or at least"),
        ({"temperature": True}, "temperature must be a number, got True"),
        ({"top_p": True}, "top_p must be a number, got True"),
        ({"repetition_penalty": 1e-300}, "repetition_penalty must be at least 1e-06, got 1e-300; 1 is none"),
        ({"logit_bias": {0: 1e300}}, "logit_bias must be at most 1e+30, got {0: 1e+300}; 100 is plenty"),
        ({"beams": 2, "draft_beams": 10**7}, "draft_beams must be at most 4096, got 10000000"),
        ({"beams": 10**7}, "beams must be at most 4096, got 10000000"),
    ],
)
def test_numbers_that_no_decoding_can_use(asked: dict[str, Any], said: str) -> None:
    """Logits became infinite and the model was blamed, or all tokens were said to be forbidden; ten million rows
    filled the memory; and True was a temperature."""
    with pytest.raises(BadOption, match=re.escape(said)):
        Options.parse(asked)


@pytest.mark.parametrize(
    "asked",
    [{"temperature": 1e-6}, {"repetition_penalty": 1e-6}, {"logit_bias": {0: 1e30}, "temperature": 1e-6}],
    ids=str,
)
def test_the_last_numbers_that_can_be_used_can_be(asked: dict[str, Any], tmp_path: Path) -> None:
    """Catches a bound beyond which logits are infinite all the same."""
    library.save_llama(tmp_path)
    output = outrider.load(str(tmp_path)).generate([1, 2], max_new_tokens=4, seed=1, **{"temperature": 1.0, **asked})
    assert len(output.tokens) and output.finish_reason in ("length", "stop")


@pytest.mark.parametrize("bias", [{7.9: 1.0}, {True: 1.0}, {"7.9": 1.0}, {7: "much"}, {7: float("inf")}], ids=str)
def test_biases_of_no_token(bias: dict[Any, Any]) -> None:
    """A bias of token 7.9 was added to token 7, and one of True to token 1."""
    with pytest.raises(BadOption, match=f"logit_bias must map token ids, which are whole numbers, .*, got {bias}"):
        Options(logit_bias=bias)


def test_runs_that_a_model_cannot_have(tmp_path: Path) -> None:
    """A width beyond the model's positions was accepted, and beams beyond the vocabulary were an error of torch's."""
    library.save_llama(tmp_path)
    with pytest.raises(BadOption, match="width must be at most the model's 128 positions, got 129; load it with"):
        outrider.load(str(tmp_path), width=129)
    with pytest.raises(BadOption, match="max_length=3 leaves no room for runs of width 9; give at least 9, or load"):
        outrider.load(str(tmp_path), max_length=3)
    llm = outrider.load(str(tmp_path), width=128)
    size = llm.target.model.vocab_size
    with pytest.raises(BadOption, match=f"beams must be at most the {size} tokens of the vocabulary, got {size + 1}"):
        llm.generate([1, 2], beams=size + 1, max_new_tokens=3)


def test_a_device_without_memory(tmp_path: Path) -> None:
    """torch has one that holds shapes alone: it was accepted, and failed deep inside with torch's own words."""
    library.save_llama(tmp_path)
    with pytest.raises(BadOption, match="device 'meta' holds no numbers, so nothing runs on it; use 'auto' or 'cpu'"):
        outrider.load(str(tmp_path), device="meta")


def test_a_stream_checks_what_it_is_given_at_once(tmp_path: Path) -> None:
    """Nothing was said before the first ``next``, which may be far from the call that was wrong."""
    library.save_llama(tmp_path)
    llm = outrider.load(str(tmp_path))
    for prompt, options, said in (
        ([1, 2], {"temprature": 1}, "unknown option 'temprature'"),
        ([1, 2], {"beams": 2}, "beams=2 cannot be streamed"),
        ([1] * 200, {}, "limit"),
        ([], {}, "prompt"),
    ):
        with pytest.raises(BadOption, match=said):
            llm.stream(prompt, **options)
    assert (
        "".join(chunk.text for chunk in llm.stream([1, 2], max_new_tokens=3))
        == llm.generate([1, 2], max_new_tokens=3).text
    )


def test_end_tokens_and_prompts_are_tokens(tmp_path: Path) -> None:
    """A number beyond the vocabulary never ended a text, and [True] was a prompt."""
    library.save_llama(tmp_path)
    llm = outrider.load(str(tmp_path))
    size = llm.target.model.vocab_size
    with pytest.raises(outrider.OutriderError, match=rf"eos names token \[{size}\], the vocabulary has {size} tokens"):
        llm.generate([1, 2], eos=size)
    with pytest.raises(outrider.OutriderError, match="a prompt is a text or token ids"):
        llm.generate([True])


@pytest.mark.parametrize("beams", [1, 2])
def test_a_processor_that_returns_nan_is_named(beams: int, tmp_path: Path) -> None:
    """It was said to forbid all tokens, and with beams nothing was said, or the model was blamed."""
    library.save_llama(tmp_path)
    llm = outrider.load(str(tmp_path))

    def broken(ids: Tensor, scores: Tensor) -> Tensor:
        return scores * float("nan") if ids.shape[1] > 3 else scores

    with pytest.raises(outrider.OutriderError, match="logits_processor broken returned NaN or plus infinity after 4"):
        llm.generate([1, 2], logits_processor=[broken], beams=beams, max_new_tokens=8)


def test_a_criterion_that_fails_in_beam_search_is_named(tmp_path: Path) -> None:
    """Catches a hypothesis that counts as finished because the criterion behind it failed."""
    library.save_llama(tmp_path)

    def impatient(ids: Tensor, scores: Any) -> bool:
        raise KeyError("mine")

    with pytest.raises(outrider.OutriderError, match="stopping_criteria impatient failed on .* KeyError: 'mine'"):
        outrider.load(str(tmp_path)).generate([1, 2], stopping_criteria=[impatient], beams=2, max_new_tokens=8)
