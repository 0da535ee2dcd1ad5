"""What DFlash and DSpark heads compute: beside a plain reference written here, and beside the speculators package."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
from torch import Tensor

import block_heads
import eagle_heads
import tiny
from block_heads import ALL_TOKENS, BLOCK, MASK, RANK
from helpers import wrapped
from outrider.core.abilities import forkable
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.published import DFlashHead, PublishedDrafter
from plain_layers import PlainLayers
from published_runs import GAMMA, Logits, compare

SLIDES = {"sliding_window": 4, "use_sliding_window": True, "layer_types": ["sliding_attention", "full_attention"]}

KINDS: dict[str, dict[str, Any]] = {
    "DFlash": block_heads.config("dflash"),
    "DFlash, all tokens": block_heads.config("dflash", **ALL_TOKENS),
    "DFlash from the anchor, biases": block_heads.config("dflash", {"attention_bias": True}, sample_from_anchor=True),
    "DFlash, a causal window": block_heads.config("dflash", SLIDES),
    "DFlash, a window": block_heads.config("dflash", SLIDES, sliding_window_non_causal=True),
    "DFlash, the last state before its norm": block_heads.config("dflash", aux_hidden_state_layer_ids=[1, 2]),
    "DSpark": block_heads.config("dspark"),
    "DSpark, all tokens": block_heads.config("dspark", confidence_head_with_markov=False, **ALL_TOKENS),
    "DSpark, gated": block_heads.config("dspark", markov_head_type="gated"),
    "DSpark, rnn": block_heads.config("dspark", markov_head_type="rnn"),
    "DSpark, rnn, behind the anchor": block_heads.config("dspark", markov_head_type="rnn", sample_from_anchor=False),
    "DSpark, gated, a causal window": block_heads.config("dspark", SLIDES, markov_head_type="gated"),
    "DSpark without a chain": block_heads.config("dspark", markov_rank=0, enable_confidence_head=False),
}


def shared() -> tuple[Tensor, Tensor]:
    """The target's embeddings and the rows of its output layer."""
    model = tiny.build("llama")
    return model.get_input_embeddings().weight.detach(), model.get_output_embeddings().weight.detach()


class Block(PlainLayers):
    """Runs a head for the places of one block, layer by layer and place by place."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor]) -> None:
        super().__init__(config["transformer_layer_config"], weights, head_norms=True)
        self.settings = config
        self.kinds = self.config.get("layer_types", [""] * self.config["num_hidden_layers"])

    def states(self, text: list[int], states: Tensor) -> list[Tensor]:
        """Behind each place of the block whose first place is the newest token."""
        table, anchor = shared()[0], len(text) - 1
        told = [self.norm(self.linear(parts.flatten(), "fc"), "hidden_norm") for parts in states]
        block = [table[token] for token in [text[-1]] + [MASK] * (BLOCK - 1)]
        for layer, kind in enumerate(self.kinds):
            slides = kind == "sliding_attention"
            first = max(0, anchor - self.config["sliding_window"]) if slides else 0
            before = [
                (self.heads(x, layer, "k", i), self.heads(x, layer, "v", i)) for i, x in enumerate(told) if i >= first
            ]
            normed = [self.norm(x, f"layers.{layer}.input_layernorm") for x in block]
            own = [
                (self.heads(x, layer, "k", anchor + i), self.heads(x, layer, "v", anchor + i))
                for i, x in enumerate(normed)
            ]
            causal = slides and not self.settings.get("sliding_window_non_causal")
            block = [
                self.mlp(
                    block[i]
                    + self.attend(
                        layer, self.heads(x, layer, "q", anchor + i), before + (own[: i + 1] if causal else own)
                    ),
                    layer,
                )
                for i, x in enumerate(normed)
            ]
        return [self.norm(x, "norm") for x in block]

    def chained(self, states: list[Tensor], tokens: list[int]) -> list[tuple[Tensor, Tensor]]:
        """Of each place behind its token: what the output reads of the chain, and the token's own embedding."""
        at, kind = "markov_head.", self.settings["markov_head_type"]
        recurrent, found = torch.zeros(RANK), []
        for state, token in zip(states, tokens, strict=True):
            embedded = self.weights[f"{at}markov_w1.weight"][token]
            read = embedded
            if kind == "gated":
                read = self.linear(torch.cat([state, embedded]), f"{at}gate_proj").sigmoid() * embedded
            elif kind == "rnn":
                keep, candidate, out = self.linear(torch.cat([recurrent, embedded, state]), f"{at}joint_proj").split(
                    RANK
                )
                recurrent = keep.sigmoid() * recurrent + (1 - keep.sigmoid()) * candidate.tanh()
                read = out.tanh()
            found.append((self.linear(read, f"{at}markov_w2"), embedded))
        return found


def reference(config: dict[str, Any], weights: dict[str, Tensor]) -> Logits:
    output = weights.get("lm_head.weight", shared()[1])

    def logits(text: list[int], states: Tensor, guesses: list[int]) -> Tensor:
        block = Block(config, weights)
        places = block.states(text, states)
        first = 0 if config["sample_from_anchor"] else 1
        before = [text[-1]] * first + [text[-1], *guesses[:-1]]
        found = [output @ state for state in places]
        if config.get("markov_rank"):
            chained = block.chained(places[: len(before)], before)
            found = [one + added for one, (added, _) in zip(found, chained, strict=False)]
        return torch.stack(found[first : first + len(guesses)])

    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_plain_reference(tmp_path: Path, kind: str) -> None:
    """Catches a place off by one, text behind the anchor, a block that sees too much, and a chain one token late."""
    config = KINDS[kind]
    weights = block_heads.tensors(config)
    loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path, config, weights))
    compare(loaded, reference(config, weights))


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_the_speculators_package(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own module reads what was saved here, and computes the same: logits to 1e-5 in float32."""
    pytest.importorskip("speculators")
    from speculators.models.dflash import core as dflash
    from speculators.models.dspark import core as dspark

    config = KINDS[kind]
    loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path / "given", config, block_heads.tensors(config)))
    loaded.beside(wrapped("llama").facts).save(tmp_path / "saved")
    of, kind_of_model = (
        (dspark, dspark.DSparkDraftModel)
        if config["speculators_model_type"] == "dspark"
        else (dflash, dflash.DFlashDraftModel)
    )
    theirs = kind_of_model.config_class.from_pretrained(tmp_path / "saved")
    theirs.transformer_layer_config._attn_implementation = "eager"
    tiny.build("llama").save_pretrained(tmp_path / "target")
    theirs.speculators_config.verifier.name_or_path = str(tmp_path / "target")
    model = kind_of_model.from_pretrained(tmp_path / "saved", config=theirs).float().eval()
    seen: list[Tensor] = []

    def metrics(logits: Tensor, targets: Tensor, *_: Any, **__: Any) -> tuple[Tensor, dict[str, Tensor]]:
        seen.append(logits)
        return logits.sum(), {}

    monkeypatch.setattr(of, "compute_metrics", metrics)

    @torch.no_grad()
    def logits(text: list[int], states: Tensor, guesses: list[int]) -> Tensor:
        seen.clear()
        ids = torch.tensor([[*text, *guesses, *[0] * (2 * BLOCK)]])
        wide, last = torch.zeros((1, ids.shape[1], states[0].numel())), torch.zeros((1, ids.shape[1], states.shape[-1]))
        wide[0, : len(states)] = states.flatten(1)
        only = torch.zeros(ids.shape)
        only[0, len(text) - 1] = 1  # one block is made, behind this token
        model(wide, ids, only, last, torch.zeros_like(ids), max_anchors=1)
        first = 0 if config["sample_from_anchor"] else 1
        return seen[0][0, first : first + GAMMA]

    print(f"{kind}: {compare(loaded, logits):.1e}")


@pytest.mark.parametrize("with_token", [True, False])
def test_the_confidence_of_a_guess_is_the_heads_own(tmp_path: Path, with_token: bool) -> None:
    """Catches a head that stops by its largest probability, though it has learnt how likely its guesses are kept."""
    config = block_heads.config("dspark", confidence_head_with_markov=with_token)
    weights = block_heads.tensors(config)
    head = PublishedDrafter.load(eagle_heads.saved(tmp_path, config, weights)).head
    assert isinstance(head, DFlashHead)
    state, carried = torch.randn(3, eagle_heads.SIZE), torch.zeros(3, 3 * RANK)
    tokens = torch.tensor([4, 8, 15])
    given = head.corrected(state, head.follow(state, shared()[0], tokens, carried))
    read = torch.cat([state, weights["markov_head.markov_w1.weight"][tokens]], -1) if with_token else state
    expected = torch.sigmoid(read @ weights["confidence_head.proj.weight"][0] + weights["confidence_head.proj.bias"])
    found = head.acceptance(given)
    assert found is not None
    torch.testing.assert_close(found, expected, rtol=0, atol=1e-6)


@pytest.mark.parametrize(("bias", "guesses"), [(30.0, BLOCK), (-30.0, 1)])
def test_a_draft_ends_where_the_head_is_not_confident(tmp_path: Path, bias: float, guesses: int) -> None:
    """The confidence head decides, whatever the probabilities are."""
    config = block_heads.config("dspark")
    weights = block_heads.tensors(config)
    weights["confidence_head.proj.weight"] *= 0
    weights["confidence_head.proj.bias"] += bias - weights["confidence_head.proj.bias"]
    loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path, config, weights))
    model = wrapped("llama")
    shape = Shape(64, BLOCK + 2, chunk=4)
    target = model.start(1, shape)
    session = PublishedDrafter(loaded.head, loaded.tokens, floor=0.5).beside(model.facts).start(1, shape, target)
    for part in (target, session):
        part.admit(0, [3, 9, 4, 5])
    noise, at = Noise(torch.arange(1)), target.context.positions(BLOCK + 2)
    for draft in (
        session.propose(BLOCK + 1, Sampling(temperature=1.0), noise, at),
        forkable(session).fork(torch.tensor([0])).propose(BLOCK + 1, Sampling(temperature=1.0), noise, at),
    ):
        assert int(draft.proposed.sum()) == guesses, "a block is never longer than it was made"
