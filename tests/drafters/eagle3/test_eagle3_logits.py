"""What an EAGLE-3 head computes: beside a plain reference written here, and beside the speculators package itself."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor
from torch.nn.functional import rms_norm, silu

import eagle_heads
import tiny
from helpers import wrapped
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.eagle3 import Eagle3Drafter

PROMPTS = ([3, 9, 4, 5, 7, 11, 30], [8, 2, 60])
FOLLOWS = ([12, 13, 14], [15, 16, 17])
GAMMA = 4

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip

KINDS: dict[str, tuple[dict[str, Any], dict[str, int]]] = {
    "plain residual": (eagle_heads.speculators_config(norm_before_residual=False), {"embedding": 1}),
    "normed residual": (eagle_heads.speculators_config(), {"embedding": 1}),
    "normed output": (eagle_heads.speculators_config(norm_output=True), {"embedding": 1}),
    "norm of all states": (eagle_heads.speculators_config(norm_before_fc=True), {"embedding": 1, "input_norm": 1}),
    "norm of each state": (eagle_heads.speculators_config(fc_norm=True), {"embedding": 1, "fc_norm": 1}),
    "qwen3": (eagle_heads.speculators_config({"model_type": "qwen3"}), {"embedding": 1, "qwen3": 1}),
    "biases, scaled positions": (
        eagle_heads.speculators_config({"attention_bias": True, "rope_parameters": LLAMA3}),
        {"embedding": 1, "bias": 1},
    ),
    "a window": (
        eagle_heads.speculators_config(
            {"model_type": "qwen3", "sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0,
             "layer_types": ["sliding_attention"]}
        ),
        {"embedding": 1, "qwen3": 1},
    ),
}  # fmt: skip


def drafted(drafter: Eagle3Drafter) -> list[tuple[list[int], Tensor, list[int], Tensor]]:
    """Of each row: text, states behind it, guesses, and the q that they were drawn from, after two commits."""
    model = wrapped("llama")
    drafter = drafter.beside(model.facts)
    shape = Shape(64, 6, chunk=4)
    target = model.start(len(PROMPTS), shape)
    session = drafter.start(len(PROMPTS), shape, target)
    for row, prompt in enumerate(PROMPTS):
        for part in (target, session):
            part.admit(row, prompt)
    noise, none = Noise(torch.arange(2)), torch.zeros((2, 0), dtype=torch.int64)
    target.score(none)
    for count in ([1, 1], [1, 2]):
        session.propose(GAMMA, Sampling(temperature=1.0), noise, target.context.positions(GAMMA + 1))
        for part in (target, session):
            part.commit(torch.tensor(FOLLOWS), torch.tensor(count))
        target.score(none)
    draft = session.propose(GAMMA, Sampling(temperature=1.0), noise, target.context.positions(GAMMA + 1))
    assert draft.probs is not None and draft.support is not None and target.states is not None
    assert torch.equal(draft.support, drafter.tokens)
    found = []
    for row, length in enumerate(target.context.lengths.tolist()):
        text = target.context.tokens[row, :length].tolist()
        found.append((text, target.states[row, : length - 1], draft.tokens[row].tolist(), draft.probs[row]))
    return found


def reference(
    config: dict[str, Any], weights: dict[str, Tensor], text: list[int], states: Tensor, guesses: list[int]
) -> Tensor:
    """Logits of every guess, all keys made anew for each, one position at a time."""
    inner, layer, eps = config["transformer_layer_config"], "layers.0.", 1e-5
    size = eagle_heads.HEAD_SIZE

    def norm(x: Tensor, name: str) -> Tensor:
        return rms_norm(x, x.shape[-1:], weights[f"{name}.weight"], eps)

    def linear(x: Tensor, name: str) -> Tensor:
        return torch.nn.functional.linear(x, weights[f"{name}.weight"], weights.get(f"{name}.bias"))

    def heads(x: Tensor, name: str, position: int) -> Tensor:
        x = linear(x, f"{layer}self_attn.{name}_proj").reshape(-1, size)
        if name == "v":
            return x
        if inner["model_type"] == "qwen3":
            x = norm(x, f"{layer}self_attn.{name}_norm")
        angles = [position * speed for speed in _speeds(inner.get("rope_parameters", {"rope_theta": 10_000.0}))]
        turn = torch.polar(torch.ones(size // 2), torch.tensor(angles))
        both = torch.complex(x[:, : size // 2].contiguous(), x[:, size // 2 :].contiguous()) * turn
        return torch.cat([both.real, both.imag], -1)

    def fused(parts: Tensor) -> Tensor:
        if config.get("fc_norm"):
            parts = torch.stack([norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        wide = parts.flatten()
        return linear(norm(wide, "input_norm") if config.get("norm_before_fc") else wide, "fc")

    inputs = [(fused(parts), token) for parts, token in zip(states, text[1:], strict=True)]
    oldest = max(0, len(inputs) - inner["sliding_window"]) if "sliding_window" in inner else 0
    found = []
    for guess in guesses:
        halves = [
            (norm(weights["embed_tokens.weight"][token], f"{layer}input_layernorm"), norm(state, f"{layer}hidden_norm"))
            for state, token in inputs
        ]
        read = [torch.cat(pair) for pair in halves]
        groups = eagle_heads.HEADS // eagle_heads.KEYS
        keys, values = (
            torch.stack([heads(x, name, i).repeat_interleave(groups, 0) for i, x in enumerate(read)], 1)[:, oldest:]
            for name in "kv"
        )
        query = heads(read[-1], "q", len(read) - 1)
        chance = ((keys @ query[:, :, None])[..., 0] * size**-0.5).softmax(-1)
        stream = halves[-1][1] if config["norm_before_residual"] else inputs[-1][0]
        stream = stream + linear((chance[:, None] @ values)[:, 0].flatten(), f"{layer}self_attn.o_proj")
        y = norm(stream, f"{layer}post_attention_layernorm")
        gated = silu(linear(y, f"{layer}mlp.gate_proj")) * linear(y, f"{layer}mlp.up_proj")
        stream = stream + linear(gated, f"{layer}mlp.down_proj")
        normed = norm(stream, "norm")
        found.append(linear(normed, "lm_head"))
        inputs.append((normed if config.get("norm_output") else stream, guess))
    return torch.stack(found)


def _speeds(rope: dict[str, Any]) -> list[float]:
    """By the rule of Llama 3.1, in Python: long waves are stretched, short ones are not."""
    found = [rope["rope_theta"] ** (-2 * i / eagle_heads.HEAD_SIZE) for i in range(eagle_heads.HEAD_SIZE // 2)]
    if rope.get("rope_type", "default") == "default":
        return found
    scaled = []
    for speed in found:
        turns = rope["original_max_position_embeddings"] * speed / 6.283185307179586
        if turns < rope["low_freq_factor"]:
            scaled.append(speed / rope["factor"])
        elif turns > rope["high_freq_factor"]:
            scaled.append(speed)
        else:
            share = (turns - rope["low_freq_factor"]) / (rope["high_freq_factor"] - rope["low_freq_factor"])
            scaled.append((1 - share) * speed / rope["factor"] + share * speed)
    return scaled


def compare(drafter: Eagle3Drafter, logits: Callable[[list[int], Tensor, list[int]], Tensor]) -> None:
    for text, states, guesses, q in drafted(drafter):
        assert len(guesses) == GAMMA, "it was told not to stop"
        torch.testing.assert_close(q.log(), logits(text, states, guesses).log_softmax(-1), rtol=0, atol=1e-5)


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_plain_reference(tmp_path: Path, kind: str) -> None:
    """Catches a layer read at the wrong position, keys of guesses that were refused, norms in the wrong place."""
    config, sizes = KINDS[kind]
    weights = eagle_heads.tensors(**sizes)
    loaded = Eagle3Drafter.load(eagle_heads.saved(tmp_path, config, weights))
    compare(
        Eagle3Drafter(loaded.head, loaded.tokens, floor=0.0),
        lambda text, states, guesses: reference(config, weights, text, states, guesses),
    )


def test_the_targets_embeddings_stand_for_missing_ones(tmp_path: Path) -> None:
    config, weights = eagle_heads.speculators_config(), eagle_heads.tensors()
    loaded = Eagle3Drafter.load(eagle_heads.saved(tmp_path, config, weights))
    shared = tiny.build("llama").get_input_embeddings().weight.detach()
    compare(
        Eagle3Drafter(loaded.head, loaded.tokens, floor=0.0),
        lambda text, states, guesses: reference(
            config, weights | {"embed_tokens.weight": shared}, text, states, guesses
        ),
    )


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_speculators_package(tmp_path: Path, kind: str) -> None:
    """Its own module reads what was saved here, and computes the same: logits to 1e-5 in float32."""
    pytest.importorskip("speculators")
    from speculators.models.eagle3.core import Eagle3DraftModel

    config, sizes = KINDS[kind]
    loaded = Eagle3Drafter.load(eagle_heads.saved(tmp_path / "given", config, eagle_heads.tensors(**sizes)))
    loaded.beside(wrapped("llama").facts).save(tmp_path / "saved")
    theirs = Eagle3DraftModel.config_class.from_pretrained(tmp_path / "saved")
    theirs.transformer_layer_config._attn_implementation = "eager"
    tiny.build("llama").save_pretrained(tmp_path / "target")
    theirs.speculators_config.verifier.name_or_path = str(tmp_path / "target")  # its config is looked at
    model = Eagle3DraftModel.from_pretrained(tmp_path / "saved", config=theirs).float().eval()

    @torch.no_grad()
    def logits(text: list[int], states: Tensor, guesses: list[int]) -> Tensor:
        seen: list[Tensor] = []
        handle = model.lm_head.register_forward_hook(lambda *given: seen.append(given[2]))
        ids = torch.tensor([[*text[1:], *guesses]])
        wide = torch.zeros((1, ids.shape[1], states[0].numel()))
        wide[0, : len(states)] = states.flatten(1)
        model(wide, ids, torch.zeros_like(ids), ttt_steps=GAMMA)
        handle.remove()
        return torch.stack([found[0, len(states) - 1] for found in seen])

    compare(Eagle3Drafter(loaded.head, loaded.tokens, floor=0.0), logits)
