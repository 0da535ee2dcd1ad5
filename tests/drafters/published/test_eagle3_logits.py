"""What EAGLE-3 and P-EAGLE heads compute: beside a plain reference written here, and beside the speculators package."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import block_heads
import eagle_heads
import library
import tiny
from helpers import wrapped
from outrider.drafters.published import PublishedDrafter
from outrider.models.hub import loading
from outrider.training.data import Corpus
from outrider.training.distill import make_student
from outrider.training.distill_plan import DistillPlan
from outrider.training.objectives import OBJECTIVES
from plain_layers import PlainLayers
from published_runs import GAMMA, Logits, compare

LLAMA3 = {
    "rope_type": "llama3", "rope_theta": 500.0, "factor": 4.0, "low_freq_factor": 1.0, "high_freq_factor": 4.0,
    "original_max_position_embeddings": 64,
}  # fmt: skip
SLIDES = {"model_type": "qwen3", "sliding_window": 3, "use_sliding_window": True, "max_window_layers": 0}
TWO = {"num_hidden_layers": 2}

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
        eagle_heads.speculators_config(SLIDES | {"layer_types": ["sliding_attention"]}),
        {"embedding": 1, "qwen3": 1},
    ),
    "the last state before its norm": (
        eagle_heads.speculators_config(eagle_aux_hidden_state_layer_ids=[1, 2]), {"embedding": 1}
    ),
    "three layers": (eagle_heads.speculators_config({"num_hidden_layers": 3}), {"embedding": 1, "layers": 3}),
    "two layers, a window in one": (
        eagle_heads.speculators_config(
            TWO | {"sliding_window": 3, "layer_types": ["full_attention", "sliding_attention"]}, norm_output=True
        ),
        {"embedding": 1, "layers": 2},
    ),
    "P-EAGLE": (block_heads.peagle_config(), {"embedding": 1}),
    "P-EAGLE, two layers": (block_heads.peagle_config(TWO, fc_norm=True), {"embedding": 1, "layers": 2, "fc_norm": 1}),
    "P-EAGLE, a window": (
        block_heads.peagle_config(TWO | {"sliding_window": 3, "layer_types": ["sliding_attention", "full_attention"]}),
        {"embedding": 1, "layers": 2},
    ),
}  # fmt: skip


def tensors(kind: str) -> dict[str, Tensor]:
    config, sizes = KINDS[kind]
    masks = block_heads.mask_hidden() if config["speculators_model_type"] == "peagle" else {}
    return eagle_heads.tensors(**sizes) | masks


class Walk(PlainLayers):
    """Runs a head one place at a time. The first places are of the text, those behind it of guesses."""

    def __init__(self, config: dict[str, Any], weights: dict[str, Tensor], text: int) -> None:
        inner = config["transformer_layer_config"]
        super().__init__(inner, weights, head_norms=inner["model_type"] == "qwen3")
        self.settings, self.text, self.places = config, text, 0
        kinds = inner.get("layer_types", [""] * inner.get("num_hidden_layers", 1))
        self.windows = [inner["sliding_window"] if kind == "sliding_attention" else None for kind in kinds]
        self.seen: list[list[tuple[Tensor, Tensor]]] = [[] for _ in self.windows]

    def fused(self, parts: Tensor) -> Tensor:
        if self.settings.get("fc_norm"):
            parts = torch.stack([self.norm(part, f"fc_norm.{i}") for i, part in enumerate(parts)])
        wide = parts.flatten()
        return self.linear(self.norm(wide, "input_norm") if self.settings.get("norm_before_fc") else wide, "fc")

    def visible(self, window: int | None) -> Sequence[int]:
        """Places that the newest one sees. A guess of EAGLE-3 looks back from where the text ends."""
        here, ends = self.places, min(self.places, self.text - 1)
        if window is None:
            return range(here + 1)
        slides = here if self.settings["speculators_model_type"] == "peagle" else ends
        return [i for i in range(here + 1) if i > slides - window or i >= self.text or i == ends]

    def place(self, state: Tensor, token: int) -> Tensor:
        """One place more -> the state behind it."""
        x = torch.empty(0)
        for layer, window in enumerate(self.windows):
            at = f"layers.{layer}."
            if layer == 0:
                halves = (
                    self.norm(self.weights["embed_tokens.weight"][token], f"{at}input_layernorm"),
                    self.norm(state, f"{at}hidden_norm"),
                )
                read = torch.cat(halves)
                stream = halves[1] if self.settings["norm_before_residual"] else state
            else:
                read, stream = self.norm(x, f"{at}input_layernorm"), x
            query, key, value = (self.heads(read, layer, name, self.places) for name in "qkv")
            self.seen[layer].append((key, value))
            stream = stream + self.attend(layer, query, [self.seen[layer][i] for i in self.visible(window)])
            x = self.mlp(stream, layer)
        self.places += 1
        return x


def reference(config: dict[str, Any], weights: dict[str, Tensor]) -> Logits:
    def logits(text: list[int], states: Tensor, guesses: list[int]) -> Tensor:
        walk = Walk(config, weights, len(states))
        for parts, token in zip(states, text[1:], strict=True):
            state = walk.place(walk.fused(parts), token)
        found = []
        for guess in guesses:
            normed = walk.norm(state, "norm")
            found.append(walk.linear(normed, "lm_head"))
            if config["speculators_model_type"] == "peagle":
                state = walk.place(walk.fused(weights["mask_hidden"].reshape(2, -1)), block_heads.MASK)
            else:
                state = walk.place(normed if config.get("norm_output") else state, guess)
        return torch.stack(found)

    return logits


@pytest.mark.parametrize("kind", KINDS)
def test_logits_are_those_of_a_plain_reference(tmp_path: Path, kind: str) -> None:
    """Catches a layer read at the wrong position, keys of guesses that were refused, norms in the wrong place."""
    config, weights = KINDS[kind][0], tensors(kind)
    loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path, config, weights))
    compare(loaded, reference(config, weights))


def test_the_targets_embeddings_stand_for_missing_ones(tmp_path: Path) -> None:
    config, weights = eagle_heads.speculators_config(), eagle_heads.tensors()
    loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path, config, weights))
    shared = tiny.build("llama").get_input_embeddings().weight.detach()
    compare(loaded, reference(config, weights | {"embed_tokens.weight": shared}))


def trained(folder: Path, blocks: int) -> Path:
    """A head as ``outrider distill --kind eagle3`` writes it, after a few steps."""
    target = loading.Loaded("a/target", wrapped("llama"), library.tokenizer())
    tokens = torch.arange(tiny.VOCAB)[::2]
    plan = DistillPlan(kind="eagle3", blocks=blocks, depth=GAMMA)
    torch.manual_seed(0)
    student, save = make_student(target, plan, tokens)
    text = Corpus(torch.randint(3, tiny.VOCAB, (4, 24), generator=torch.Generator().manual_seed(1)))
    learns = torch.optim.SGD([p for p in student.module.parameters() if p.requires_grad], lr=0.1)
    for _ in range(3):
        learns.zero_grad()
        student.loss(text, OBJECTIVES["kl"]).backward()
        learns.step()
    folder.mkdir()
    save(folder)
    return folder


@pytest.mark.parametrize("blocks", [1, 2])
def test_logits_of_a_trained_head_are_those_of_a_plain_reference(tmp_path: Path, blocks: int) -> None:
    """Catches a config that says something else of a head than what was trained, and rows of other tokens."""
    folder = trained(tmp_path / "head", blocks)
    config = json.loads((folder / "config.json").read_text("utf-8"))
    weights = {name: tensor.float() for name, tensor in load_file(str(folder / "model.safetensors")).items()}
    shared = tiny.build("llama").get_input_embeddings().weight.detach()
    compare(PublishedDrafter.load(folder), reference(config, weights | {"embed_tokens.weight": shared}))


def by_the_package(saved: Path, place: Path, monkeypatch: pytest.MonkeyPatch) -> Logits:
    """The package's own module of a checkpoint, for the tiny Llama."""
    from speculators.models.eagle3.core import Eagle3DraftModel
    from speculators.models.peagle import core as peagle

    parallel = json.loads((saved / "config.json").read_text("utf-8"))["speculators_model_type"] == "peagle"
    kind_of_model = peagle.PEagleDraftModel if parallel else Eagle3DraftModel
    theirs = kind_of_model.config_class.from_pretrained(saved)
    theirs.transformer_layer_config._attn_implementation = "eager"
    tiny.build("llama").save_pretrained(place)
    theirs.speculators_config.verifier.name_or_path = str(place)  # its config is looked at
    model = kind_of_model.from_pretrained(saved, config=theirs, dtype=torch.float32).eval()
    if "embed_tokens.weight" not in load_file(str(saved / "model.safetensors")):
        model._load_verifier_weights(overwrite_embed_tokens=True)  # transformers 5.19 leaves them as memory was
    seen: list[Tensor] = []
    model.lm_head.register_forward_hook(lambda *given: seen.append(given[2]))

    @torch.no_grad()
    def logits(text: list[int], states: Tensor, guesses: list[int]) -> Tensor:
        seen.clear()
        ids = torch.tensor([[*text[1:], *guesses]])
        wide = torch.zeros((1, ids.shape[1], states[0].numel()))
        wide[0, : len(states)] = states.flatten(1)
        if not parallel:
            model(wide, ids, torch.zeros_like(ids), ttt_steps=GAMMA)
            return torch.stack([found[0, len(states) - 1] for found in seen])
        last = len(states) - 1  # all places of the text, and behind the last one a block
        anchors = torch.tensor([*range(len(states)), *[last] * (GAMMA - 1)])
        depths = torch.tensor([*[0] * len(states), *range(1, GAMMA)])
        monkeypatch.setattr(peagle, "generate_cod_sample_indices", lambda **_: (anchors, depths))
        monkeypatch.setattr(peagle, "compute_metrics", lambda **given: (given["logits"].sum(), {}))
        model(wide, ids, torch.zeros_like(ids), verifier_last_hidden_states=wide[..., : states.shape[-1]])
        return seen[0][0, last:]

    return logits


@pytest.mark.parametrize("kind", [*KINDS, "trained here", "trained here, two layers"])
def test_logits_are_those_of_the_speculators_package(
    tmp_path: Path, kind: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Its own module reads what was saved here, and computes the same: logits to 1e-5 in float32."""
    pytest.importorskip("speculators")
    if kind in KINDS:
        loaded = PublishedDrafter.load(eagle_heads.saved(tmp_path / "given", KINDS[kind][0], tensors(kind)))
        loaded.beside(wrapped("llama").facts).save(tmp_path / "saved")
    else:
        loaded = PublishedDrafter.load(trained(tmp_path / "saved", 2 if "two" in kind else 1))
    logits = by_the_package(tmp_path / "saved", tmp_path / "target", monkeypatch)
    print(f"{kind}: {compare(loaded, logits):.1e}")
