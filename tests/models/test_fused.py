"""The wiring of fused layers, with plain functions in place of the kernels: the model's own logits come out.

The kernels themselves are held to these functions in tests/gpu, where there is a GPU or Triton's interpreter.
"""

from __future__ import annotations

import sys
from collections import Counter
from copy import deepcopy
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import torch
import transformers as tf
from torch import Tensor

import plain_kernels
import tiny
import tiny_designs
from outrider.core.protocols import Shape
from outrider.kernels.triton import available
from outrider.models.transformers import trimmed
from outrider.models.transformers.model import HuggingFaceModel
from outrider.training import student_models

FUSED = [
    "llama", "mistral", "qwen2", "qwen3", "smollm3", "phi3", "granite", "olmo2", "gemma", "gemma2", "gemma3"
]  # fmt: skip
SIZES: dict[str, Any] = {
    "vocab_size": 96, "hidden_size": 32, "intermediate_size": 64, "num_hidden_layers": 2, "num_attention_heads": 4,
    "num_key_value_heads": 2,
}  # fmt: skip
SHAPE = Shape(capacity=64, width=4, chunk=8)


@pytest.fixture
def fused(monkeypatch: pytest.MonkeyPatch) -> Any:
    """Fuse a model as on a GPU."""
    rows = SimpleNamespace(**{n: getattr(plain_kernels, n) for n in plain_kernels.ROWS})
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.rows", rows)
    monkeypatch.setitem(sys.modules, "outrider.kernels.triton.attention", SimpleNamespace(attend=plain_kernels.attend))

    def fuse(model: HuggingFaceModel) -> bool:
        with monkeypatch.context() as patch:
            patch.setattr(available, "run_on", lambda device: True)
            return model.fuse()

    return fuse


def run(model: HuggingFaceModel, layers: tuple[int, ...] = ()) -> tuple[Tensor, Tensor | None]:
    """Ragged rows, a chunked prompt longer than Mistral's window, two steps with a rejection between."""
    session = model.start(2, SHAPE)
    if layers:
        session.keep_states(layers)
    for row, prompt in enumerate((list(range(3, 24)), [9])):
        session.admit(row, prompt)
    first = session.score(torch.tensor([[30, 31, 32], [33, 34, 35]]))
    session.commit(torch.tensor([[30, 40, 0, 0], [41, 0, 0, 0]]), torch.tensor([2, 1]))
    return torch.cat([first, session.score(torch.tensor([[50, 51, 52], [53, 54, 55]]))]), session.states


@pytest.mark.parametrize("family", FUSED)
def test_fused_layers_give_the_models_own_logits(family: str, fused: Any) -> None:
    expected, _ = run(HuggingFaceModel(tiny.build(family)))
    model = HuggingFaceModel(tiny.build(family))
    assert fused(model) and model.fused
    torch.testing.assert_close(run(model)[0], expected, atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("name", tiny_designs.BUILT)
def test_designs_with_all_their_options(name: str, fused: Any) -> None:
    """Norms, biases and options at values that show: catches a norm at the wrong place or without its offset, a
    multiplier or cap left out, windows and rotary positions of another layer, heads that are turned too far."""
    expected, _ = run(HuggingFaceModel(deepcopy(tiny_designs.built(name)).double()))
    model = HuggingFaceModel(tiny_designs.built(name))
    assert fused(model) and model.fused
    torch.testing.assert_close(run(model)[0].double(), expected, atol=2e-4, rtol=1e-4)


LAUNCHES = {"llama": {}, "phi3": {}, "granite": {}, "gemma": {}, "gemma2": {}, "gemma3": {"rms_norm": 1 + 2 * 2},
            "olmo2": {"rms_norm": 2 * 2}}  # fmt: skip
"""Where they are not a Llama's: head norms of two layers, and no norm before the first."""


@pytest.mark.parametrize("family", LAUNCHES)
def test_a_layer_takes_no_more_launches_than_it_needs(family: str, fused: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a norm of what is added, or a multiplier, as a launch of its own, and any more for a Llama."""
    model = HuggingFaceModel(tiny.build(family))
    assert fused(model)
    session = model.start(1, SHAPE)
    session.admit(0, [3, 4])
    counts: Counter[str] = Counter()

    def counted(name: str, kernel: Any) -> Any:
        def call(*given: Any, **options: Any) -> Any:
            counts[name] += 1
            return kernel(*given, **options)

        return call

    for module in ("rows", "attention"):
        held = sys.modules[f"outrider.kernels.triton.{module}"]
        for name, kernel in vars(held).copy().items():
            monkeypatch.setattr(held, name, counted(name, kernel))
    session.score(torch.tensor([[5, 6]]))
    gate = "gelu_gate" if "gemma" in family else "silu_gate"
    assert counts == {"rms_norm": 1, "add_rms_norm": 4, "rotate_and_store": 2, "attend": 2, gate: 2} | LAUNCHES[family]


class Grown(tf.LlamaConfig):  # type: ignore[misc]
    """A Llama's config as a later release might have it: with an option that changes the layers."""

    def __init__(self, sinks: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.sinks = sinks


ASKING_FOR_MORE: dict[str, Any] = {
    "another activation": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**SIZES, hidden_act="relu")),
    "attention in both directions": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(**SIZES, head_dim=8, use_bidirectional_attention=True)
    ),
    "an option of nobody's": lambda: tf.LlamaForCausalLM(Grown(**SIZES, sinks=4)),
}


@pytest.mark.parametrize("name", ASKING_FOR_MORE)
def test_options_that_fused_layers_do_not_compute(name: str, fused: Any) -> None:
    """Such a model runs through its own layers: catches an option of a known family that is passed over."""
    model = HuggingFaceModel(ASKING_FOR_MORE[name]())
    assert not fused(model) and not model.fused


@pytest.mark.parametrize("family", ["llama", "gemma2", "olmo2", "granite"])
def test_states_of_layers_are_seen_through_fused_layers(family: str, fused: Any) -> None:
    """A head reads what the layers give; fused, they must still show it: catches sums before the norm of what is added,
    and embeddings that are not multiplied."""
    _, expected = run(HuggingFaceModel(tiny.build(family)), (0, 1, 2, -1))
    model = HuggingFaceModel(tiny.build(family))
    assert fused(model)
    _, found = run(model, (0, 1, 2, -1))
    assert expected is not None and found is not None and float(expected.abs().sum()) > 0
    torch.testing.assert_close(found[0, :24], expected[0, :24], atol=2e-4, rtol=1e-4)


@pytest.mark.parametrize("family", FUSED)
def test_another_cache_than_ours_still_works(family: str, fused: Any) -> None:
    """transformers' own generate on a model that was fused: the same text as before."""
    ids = torch.arange(3, 14)[None]
    options = {"max_new_tokens": 8, "do_sample": False, "attention_mask": torch.ones_like(ids)}
    expected = tiny.build(family).generate(ids, **options)
    model = HuggingFaceModel(tiny.build(family))
    assert fused(model)
    assert torch.equal(model.model.generate(ids, **options), expected)


def test_a_gradient_goes_through_the_layers_own_forward(fused: Any) -> None:
    """Kernels have no backward; training on a fused model must not silently lose its gradient."""
    ids = torch.arange(3, 14)[None]

    def gradient(network: Any) -> Tensor:
        embedded = network.get_input_embeddings()(ids).detach().requires_grad_()
        network(inputs_embeds=embedded).logits.square().sum().backward()
        return embedded.grad

    expected = gradient(tiny.build("llama"))
    model = HuggingFaceModel(tiny.build("llama"))
    assert fused(model)
    torch.testing.assert_close(gradient(model.model), expected, atol=1e-2, rtol=1e-3)


@pytest.mark.parametrize("family", ["gpt2", "mixtral", "qwen3_moe", "t5"])
def test_other_families_are_left_as_they_are(family: str, fused: Any) -> None:
    model = HuggingFaceModel(tiny.build(family))
    assert not fused(model) and not model.fused


def test_nothing_is_fused_without_a_gpu() -> None:
    assert not HuggingFaceModel(tiny.build("llama")).fuse()


@pytest.mark.usefixtures("fused")
def test_a_trimmed_draft_is_fused_on_a_gpu(tmp_path: Path) -> None:
    """It speaks few tokens and costs little, so that its launches are most of its time."""
    target = HuggingFaceModel(tiny.build("llama"))
    tokens = torch.arange(3, 60)
    draft = student_models.build(student_models.DraftSize.parse("16x32x1x2"), tokens, target)
    trimmed.save(draft, tokens, tmp_path, {})
    plain = trimmed.load(tmp_path, target)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(available, "run_on", lambda device: True)
        model = trimmed.load(tmp_path, target)
    assert model.inner.fused and not plain.inner.fused

    def logits(of: trimmed.TrimmedModel) -> Tensor:
        session = of.start(1, SHAPE)
        session.admit(0, list(range(3, 24)))
        return session.score(torch.tensor([[30, 70, 32]]))  # 70 is none of its tokens

    torch.testing.assert_close(logits(model), logits(plain), atol=2e-4, rtol=1e-4)
