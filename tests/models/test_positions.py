"""Rotary positions that transformers scales by the longest text of a run: an angle depends on its position only."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import library
import outrider
from outrider.core.protocols import Shape
from outrider.errors import BadOption, ModelError, PromptError
from outrider.models.engine.backends import BACKENDS
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.positions import Positions
from outrider.models.transformers import rotary
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu

FIRST, MOST = 32, 256
"""Positions of the first training, and of the model."""

SIZES: dict[str, Any] = {
    "vocab_size": 320, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2, "max_position_embeddings": MOST, "initializer_range": 0.4, "bos_token_id": 1,
    "eos_token_id": 2, "pad_token_id": 0,
}  # fmt: skip
LONG = {
    "rope_type": "longrope", "rope_theta": 1e4, "original_max_position_embeddings": FIRST,
    "short_factor": [1.0, 1.1, 1.2, 1.3], "long_factor": [3.0, 5.0, 7.0, 9.0],
}  # fmt: skip
TEXT = [(7 * place + 3) % 96 for place in range(80)]
SHAPE = Shape(128, 5, chunk=8)

numba_only = pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication")


def phi3() -> Any:
    torch.manual_seed(0)
    config = tf.Phi3Config(**SIZES, rope_parameters=dict(LONG), original_max_position_embeddings=FIRST)
    return tf.Phi3ForCausalLM(config).eval()


def scored(model: Any, *lengths: int) -> Tensor:
    """Rows of the text behind prompts of these lengths, with four guesses each: logits [B, 5, V]."""
    session = model.start(len(lengths), SHAPE)
    for row, length in enumerate(lengths):
        session.admit(row, TEXT[:length])
    return session.score(torch.tensor([TEXT[length : length + 4] for length in lengths]))


def own(model: Any, count: int) -> Tensor:
    """transformers' own logits of the text's first tokens."""
    with torch.no_grad():
        return model(torch.tensor([TEXT[:count]])).logits[0]


@pytest.mark.parametrize("max_length", [None, 200])
def test_rows_beside_and_guesses_change_no_angle(max_length: int | None) -> None:
    """transformers takes the factors of the largest position of a run: a row beside, a guess or padding behind the
    first training's length turned all queries of the run by other angles than the keys that were stored before."""
    model = HuggingFaceModel(phi3(), max_length)
    far = 60 if max_length else FIRST - 2  # its guesses are behind
    assert torch.equal(scored(model, 20, far)[0], scored(model, 20, 20)[0])
    if max_length is None:
        expected = own(phi3(), FIRST)[-3:]  # what stands before the first guess behind
        torch.testing.assert_close(scored(model, FIRST - 2)[0, :3], expected, atol=2e-4, rtol=1e-4)


def test_the_function_is_transformers_own() -> None:
    """Short factors for texts of the first training's length, long ones for all positions of longer texts: what
    transformers computes for a text that it reads at once."""
    short, long = HuggingFaceModel(phi3()), HuggingFaceModel(phi3(), MOST)
    assert (short.max_length, long.max_length) == (FIRST, MOST)
    torch.testing.assert_close(scored(short, 20)[0], own(phi3(), 24)[19:], atol=2e-4, rtol=1e-4)
    torch.testing.assert_close(scored(long, 60)[0], own(phi3(), 64)[59:], atol=2e-4, rtol=1e-4)
    assert not torch.allclose(scored(long, 20)[0], own(phi3(), 24)[19:], atol=0.1), "else nothing is tested"


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    phi3().to(torch.bfloat16).save_pretrained(tmp_path)
    library.tokenizer().save_pretrained(tmp_path)
    return tmp_path


@pytest.mark.parametrize("engine", ["torch", pytest.param("numba", marks=numba_only)])
@pytest.mark.usefixtures("cache")
def test_texts_across_the_first_trainings_length(engine: str, folder: Path) -> None:
    """With guesses and in company they were others than without; numba refused the model."""
    options: dict[str, Any] = {"eos": [], "temperature": 1.0, "coupling": "gumbel", "seed": 3}
    prompts = [TEXT[:24], TEXT[30:40], TEXT[:29]]
    for max_length, tokens in ((None, 60), (200, 60)):
        llm = outrider.load(str(folder), None, "cpu", engine=engine, max_length=max_length)
        alone = [llm.generate(prompt, max_new_tokens=tokens, **options).tokens for prompt in prompts]
        for draft in ("uniform", "copy"):
            found = llm.with_draft(draft).generate(prompts, max_new_tokens=tokens, gamma=4, **options)
            assert [output.tokens for output in found] == alone
        assert [len(text) for text in alone] == [tokens if max_length else FIRST - len(p) for p in prompts]


@numba_only
@pytest.mark.parametrize("max_length", [None, MOST])
@pytest.mark.usefixtures("cache")
def test_numba_has_transformers_angles(max_length: int | None, folder: Path) -> None:
    llm = outrider.load(str(folder), None, "cpu", engine="numba", max_length=max_length, kv_cache_dtype="float32")
    reference = tf.Phi3ForCausalLM.from_pretrained(folder, dtype=torch.float32)
    length = 60 if max_length else 20
    found, expected = scored(llm.target.model, length)[0], own(reference, length + 4)[-5:]
    assert float((found - expected).norm() / expected.norm()) < 2e-4


@pytest.mark.usefixtures("cache")
def test_limits_are_said(folder: Path) -> None:
    """A text ends where the caller wants it to; what the model has no positions for is refused, with the remedy."""
    with pytest.raises(BadOption, match=f"max_length must be at most the {MOST} positions of the model, got 300; "):
        outrider.load(str(folder), None, "cpu", max_length=300)
    with pytest.raises(BadOption, match="max_length must be a whole number of at least 1, got 0"):
        outrider.load(str(folder), None, "cpu", max_length=0)
    llm = outrider.load(str(folder), None, "cpu", engine="torch")
    with pytest.raises(PromptError, match=f"the model's limit is {FIRST}; shorten it, or load .* max_length .* {MOST}"):
        llm.generate(TEXT[:40])
    few = outrider.load(str(folder), None, "cpu", engine="torch", max_length=16)
    assert len(few.generate(TEXT[:10], max_new_tokens=30, eos=[]).tokens) == 6


def test_an_engine_without_longer_positions(monkeypatch: pytest.MonkeyPatch) -> None:
    """One that takes no ``max_length`` would run short factors for a long text."""
    monkeypatch.setitem(BACKENDS, "mine", replace(BACKENDS["numba"], max_lengths=False))
    config = phi3().config
    config.dtype = torch.bfloat16
    for max_length in (None, FIRST):
        kernels = Kernels("mine", max_length=max_length)
        assert chosen_engine(kernels, config, torch.device("cpu"), torch.float32, 1e9, False, False) == "mine"
    with pytest.raises(BadOption, match="engine 'mine' .* for shorter texts only than a max_length of 33; lower it"):
        kernels = Kernels("mine", max_length=FIRST + 1)
        chosen_engine(kernels, config, torch.device("cpu"), torch.float32, 1e9, False, False)


def test_code_that_came_with_a_model(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its rotary positions are none of transformers': what they do behind the first training's length is not known."""
    monkeypatch.setattr(rotary, "changes", lambda module: False)
    assert HuggingFaceModel(phi3()).max_length == FIRST
    with pytest.raises(ModelError, match="by code that came with it; load it with a smaller max_length"):
        HuggingFaceModel(phi3(), MOST)


def test_the_door_takes_the_factors_of_the_call() -> None:
    """``generate`` says how long a text may be, and transformers' own run of the model is as before, afterwards."""
    model, door = phi3(), {"custom_generate": outrider.transformers_generate, "draft": "copy", "do_sample": False}
    model.generation_config.eos_token_id = None
    before = own(model, 24), own(model, 60)
    for count, new in ((20, 10), (20, 40), (50, 20), (10, 4)):
        ids = torch.tensor([TEXT[:count]])
        found = model.generate(ids, attention_mask=torch.ones_like(ids), max_new_tokens=new, exact=True, **door)
        plain = HuggingFaceModel(deepcopy(model), MOST if count + new > FIRST else None)
        session = plain.start(1, Shape(128, 9))
        session.admit(0, TEXT[:count])
        text: list[int] = []
        for _ in range(new):
            best = session.score(torch.zeros((1, 8), dtype=torch.int64))[:, 0].argmax(-1)
            text += best.tolist()
            session.commit(torch.nn.functional.pad(best[:, None], (0, 8)), torch.tensor([1]))
        assert found[0, count:].tolist() == text
    assert all(map(torch.equal, before, (own(model, 24), own(model, 60))))


def test_dynamic_positions_are_those_a_model_begins_with() -> None:
    """Up to the last position of a model dynamic scaling is none. Where transformers had run a longer text before, it
    stayed scaled for a run that reached the last position."""
    scaled = {"rope_type": "dynamic", "factor": 4.0, "rope_theta": 1e4}
    sizes = SIZES | {"max_position_embeddings": FIRST}
    torch.manual_seed(0)
    network = tf.LlamaForCausalLM(tf.LlamaConfig(**sizes, rope_parameters=scaled)).eval()
    model = HuggingFaceModel(deepcopy(network))
    texts = torch.tensor([TEXT[FIRST - 4 : FIRST]])
    session = model.start(1, SHAPE)
    session.admit(0, TEXT[: FIRST - 4])
    own(model.model, 60)  # of somebody else, in between: the module is scaled now
    torch.testing.assert_close(session.score(texts)[0], own(network, FIRST)[-5:], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize(
    ("asked", "expected"),
    [(None, Positions(FIRST, False, MOST)), (FIRST, Positions(FIRST, False, MOST)), (33, Positions(MOST, True, MOST))],
)
def test_positions_of_a_config(asked: int | None, expected: Positions) -> None:
    assert Positions.of(phi3().config, asked) == expected
    old = {"type": "longrope", "short_factor": LONG["short_factor"], "long_factor": LONG["long_factor"]}
    given = tf.Phi3Config(**SIZES, rope_scaling=old, original_max_position_embeddings=FIRST)
    assert Positions.of(given, asked) == expected, "as Phi-3's config.json has it"
    assert Positions.of(tf.LlamaConfig(**SIZES), asked) == Positions(MOST, False, MOST)
