"""Files of published heads: the formats, what is written, and what is refused in one line."""

from __future__ import annotations

import argparse
import json
import re
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import Tensor

import block_heads
import eagle_heads
import tiny
from helpers import wrapped
from outrider.drafters.published import PublishedDrafter, is_checkpoint
from outrider.drafters.published.kinds import parse
from outrider.errors import OutriderError
from published_kinds import KINDS, files

Settings, Weights = dict[str, Any], dict[str, Tensor]


def test_a_round_trip(tmp_path: Path) -> None:
    """What is saved is what was read, in the dtype it was in, and a plain repository becomes the same head."""
    weights = {k: v.bfloat16() if v.is_floating_point() else v for k, v in eagle_heads.tensors(embedding=1).items()}
    given = eagle_heads.saved(tmp_path / "given", eagle_heads.speculators_config(), weights)
    PublishedDrafter.load(given).save(tmp_path / "again")
    found = load_file(str(tmp_path / "again" / "model.safetensors"))
    assert found.keys() == weights.keys()
    assert all(
        torch.equal(found[name], tensor) and found[name].dtype == tensor.dtype for name, tensor in weights.items()
    )
    assert PublishedDrafter.load(tmp_path / "again").config == PublishedDrafter.load(given).config

    plain = {k.replace("layers.0", "midlayer"): v for k, v in weights.items()}
    config = eagle_heads.plain_config(norm_before_residual=True)
    one = PublishedDrafter.load(eagle_heads.saved(tmp_path / "plain", config, plain))
    other = PublishedDrafter.load(given)
    assert replace(one.config, gamma=5, target_name="a/target", target_architectures=("LlamaForCausalLM",)) == (
        other.config
    )
    assert torch.equal(one.tokens, other.tokens)
    pairs = zip(one.head.state_dict().values(), other.head.state_dict().values(), strict=True)
    assert all(torch.equal(a, b) for a, b in pairs)


def test_tokens_in_any_order(tmp_path: Path) -> None:
    """A d2t that does not ascend: each row of the output layer goes with its token."""
    weights = eagle_heads.tensors()
    tokens = torch.randperm(tiny.VOCAB, generator=torch.Generator().manual_seed(1))[: eagle_heads.TOKENS]
    eagle_heads.saved(tmp_path, eagle_heads.speculators_config(), weights | eagle_heads.mapping(tokens))
    drafter = PublishedDrafter.load(tmp_path)
    assert torch.equal(drafter.tokens, tokens.sort().values)
    rows = drafter.head.lm_head.weight
    assert all(
        torch.equal(rows[place], weights["lm_head.weight"][tokens.tolist().index(token)])
        for place, token in enumerate(drafter.tokens.tolist())
    )


def test_weights_of_older_repositories(tmp_path: Path) -> None:
    """The authors' own repositories have a pytorch_model.bin, which is read without running what is in it."""
    weights = eagle_heads.tensors("midlayer")
    eagle_heads.saved(tmp_path, eagle_heads.plain_config(), weights)
    (tmp_path / "model.safetensors").unlink()
    torch.save(weights, tmp_path / "pytorch_model.bin")
    assert torch.equal(PublishedDrafter.load(tmp_path).head.fc.weight, weights["fc.weight"])


@pytest.mark.parametrize(
    ("given", "layers"),
    [(None, (2, 18, 33)), ([1, 17, 32], (2, 18, 33)), ([2, 18, 33], (2, 18, 33)), ([3, 9], (3, 9))],
)
def test_layers_of_plain_repositories(given: list[int] | None, layers: tuple[int, ...]) -> None:
    """Some trainers count the output of the first layer as 0, some as 1; none reads the first layer's input."""
    settings = eagle_heads.plain_config(eagle_config={"eagle_aux_hidden_state_layer_ids": given})
    assert parse(settings).resolved(36).layers == layers


def test_layers_of_the_speculators_format_stay() -> None:
    settings = eagle_heads.speculators_config(eagle_aux_hidden_state_layer_ids=[1, 17, 32])
    assert parse(settings).resolved(36).layers == (1, 17, 32)


def test_what_is_a_checkpoint(tmp_path: Path) -> None:
    """A model's directory is none, and nor is a directory without a config or with a broken one."""
    assert not is_checkpoint(tmp_path) and not is_checkpoint(tmp_path / "missing")
    for settings, expected in [
        (eagle_heads.speculators_config(), True),
        (eagle_heads.plain_config(), True),
        (eagle_heads.speculators_config(speculators_model_type="dflash"), True),
        ({"architectures": ["LlamaForCausalLM"]}, False),
        ([1], False),
    ]:
        (tmp_path / "config.json").write_text(json.dumps(settings), encoding="utf-8")
        assert is_checkpoint(tmp_path) == expected
    (tmp_path / "config.json").write_text("{", encoding="utf-8")
    assert not is_checkpoint(tmp_path)


def without(*names: str) -> Callable[[Settings, Weights], None]:
    def change(settings: Settings, weights: Weights) -> None:
        for name in names:
            del weights[name]

    return change


def setting(name: str, value: object, inner: bool = False) -> Callable[[Settings, Weights], None]:
    def change(settings: Settings, weights: Weights) -> None:
        (settings["transformer_layer_config"] if inner else settings)[name] = value

    return change


def tensor(name: str, value: Tensor) -> Callable[[Settings, Weights], None]:
    return lambda settings, weights: weights.update({name: value})


WRONG: dict[str, Callable[[Settings, Weights], None]] = {
    "tensors are missing: fc.weight, norm.weight; get it again": without("fc.weight", "norm.weight"),
    "d2t is missing, which maps its 40 tokens to the target's 96": without("d2t"),
    r"d2t has shape \(7,\), and draft_vocab_size is 40": tensor("d2t", torch.arange(7)),
    "d2t maps 40 tokens to 40 from 100 to 139, and the target's vocabulary has 96": tensor(
        "d2t", torch.full((40,), 100)
    ),
    "d2t maps 40 tokens to 1 from 0 to 0": tensor("d2t", -torch.arange(40)),
    r"t2d, of shape \(96,\) with 96 tokens, and d2t name different tokens": tensor(
        "t2d", torch.ones(96, dtype=torch.bool)
    ),
    r"norm.weight has shape \(8,\), and its config says \(32,\)": tensor("norm.weight", torch.ones(8)),
    "has tensors that its config does not ask for: layers.1.mlp.up_proj.weight": tensor(
        "layers.1.mlp.up_proj.weight", torch.ones(3)
    ),
    **{
        f"speculators_model_type is '{kind}'; read are eagle3, peagle, dflash, dspark; use": setting(
            "speculators_model_type", kind
        )
        for kind in ("dflash2", "xpress", "mtp")
    },
    "tensors are missing: layers.1.input_layernorm.weight, .* and 5 more": setting("num_hidden_layers", 2, inner=True),
    "model_type is 'deepseek_v3'; known are llama, qwen3": setting("model_type", "deepseek_v3", inner=True),
    "rope_type 'yarn' is not known": setting("rope_parameters", {"rope_type": "yarn"}, inner=True),
    "factor of rope_type 'linear' must be a number above 0": setting("rope_scaling", {"type": "linear"}, inner=True),
    "hidden_size must be a whole number from 1 on, got None": setting("hidden_size", None, inner=True),
    "norm_before_residual must be true or false, got 'yes'": setting("norm_before_residual", "yes"),
    r"eagle_aux_hidden_state_layer_ids must be a list of layers, got \[\]": setting(
        "eagle_aux_hidden_state_layer_ids", []
    ),
    "norm_before_fc and fc_norm exclude each other": lambda settings, weights: settings.update(
        norm_before_fc=True, fc_norm=True
    ),
    # Of another target: what is known once that target is there.
    "was trained for a vocabulary of 128 tokens, and the target has 96": lambda settings, weights: (
        settings["transformer_layer_config"].update(vocab_size=128),
        weights.update(t2d=torch.nn.functional.pad(weights["t2d"], (0, 32))),
    )[0],
    "reads states of size 64, and the target's have 32": lambda settings, weights: (
        settings.update(target_hidden_size=64),
        weights.update({"fc.weight": torch.ones(32, 128)}),
    )[0],
    r"reads states behind \(0, 3\) layers of its target, and \[3\] cannot be read of one with 2; use": setting(
        "eagle_aux_hidden_state_layer_ids", [0, 3]
    ),
    r"layer_types must name each of num_hidden_layers 1, got \['full_attention', 'full_attention'\]": setting(
        "layer_types", ["full_attention"] * 2, inner=True
    ),
    "partial_rotary_factor is 0.5; known are layers whose heads turn whole": setting(
        "rope_parameters", {"rope_type": "default", "partial_rotary_factor": 0.5}, inner=True
    ),
}


@pytest.mark.parametrize("says", WRONG)
def test_refusals(tmp_path: Path, says: str) -> None:
    """One line that names the draft, what is wrong, and what to do."""
    settings, weights = eagle_heads.speculators_config(), eagle_heads.tensors()
    WRONG[says](settings, weights)
    eagle_heads.saved(tmp_path / "head", settings, weights)
    with pytest.raises(OutriderError, match=says) as caught:
        PublishedDrafter.load(tmp_path / "head").beside(wrapped("llama").facts)
    assert re.fullmatch(r"draft [^\n]*head[^\n]*; [^\n;]+", str(caught.value))


WRONG_BLOCKS: dict[str, Callable[[Settings, Weights], None]] = {
    "aux_hidden_state_layer_ids must be a list of layers, got None": setting("aux_hidden_state_layer_ids", None),
    "mask_token_id must be a whole number from 0 on, got None": setting("mask_token_id", None),
    "mask_token_id 96 is not in a vocabulary of 96": setting("mask_token_id", 96),
    "block_size 1 leaves no guess": lambda settings, weights: settings.update(block_size=1, sample_from_anchor=False),
    "markov_head_type is 'transformer'; known are vanilla, gated, rnn": setting("markov_head_type", "transformer"),
    "confidence_head_with_markov needs a markov_rank above 0": setting("markov_rank", 0),
    "target_hidden_size is 64 and hidden_size 32; they must be the same": setting("target_hidden_size", 64),
    "tensors are missing: markov_head.markov_w1.weight": without("markov_head.markov_w1.weight"),
    "sample_from_anchor must be true or false, got 1": setting("sample_from_anchor", 1),
}


@pytest.mark.parametrize("says", WRONG_BLOCKS)
def test_refusals_of_block_heads(tmp_path: Path, says: str) -> None:
    settings = block_heads.config("dspark")
    weights = block_heads.tensors(settings)
    WRONG_BLOCKS[says](settings, weights)
    eagle_heads.saved(tmp_path / "head", settings, weights)
    with pytest.raises(OutriderError, match=says) as caught:
        PublishedDrafter.load(tmp_path / "head")
    assert re.fullmatch(r"draft [^\n]*head[^\n]*; [^\n;]+", str(caught.value))


@pytest.mark.parametrize("kind", KINDS)
def test_a_round_trip_of_every_kind(tmp_path: Path, kind: str) -> None:
    """What is saved is what was read: tensors and all that the config says."""
    settings, weights = files(kind)
    given = PublishedDrafter.load(eagle_heads.saved(tmp_path / "given", settings, weights))
    given.save(tmp_path / "again")
    found = load_file(str(tmp_path / "again" / "model.safetensors"))
    assert found.keys() == weights.keys() and all(torch.equal(found[name], weights[name]) for name in weights)
    assert PublishedDrafter.load(tmp_path / "again").config == given.config


def test_what_a_block_head_has_of_its_target_is_the_targets(tmp_path: Path) -> None:
    """Older checkpoints have embeddings and a full output layer; the format takes both from the target."""
    settings = block_heads.config("dflash", **block_heads.ALL_TOKENS)
    weights = block_heads.tensors(settings)
    copies = {f"{name}.weight": torch.zeros(tiny.VOCAB, eagle_heads.SIZE) for name in ("embed_tokens", "lm_head")}
    drafter = PublishedDrafter.load(eagle_heads.saved(tmp_path, settings, weights | copies))
    assert drafter.head.own_embedding is None and drafter.head.lm_head is None


def test_rows_of_the_chain_go_with_their_tokens(tmp_path: Path) -> None:
    """A d2t that does not ascend: the output layer was sorted, and what a DSpark head adds to it was not."""
    settings = block_heads.config("dspark")
    weights = block_heads.tensors(settings)
    tokens = torch.randperm(tiny.VOCAB, generator=torch.Generator().manual_seed(1))[: eagle_heads.TOKENS]
    eagle_heads.saved(tmp_path, settings, weights | eagle_heads.mapping(tokens))
    drafter = PublishedDrafter.load(tmp_path)
    order = [tokens.tolist().index(token) for token in drafter.tokens.tolist()]
    for name in ("lm_head.weight", "markov_head.markov_w2.weight"):
        assert torch.equal(drafter.head.state_dict()[name], weights[name][order])


def test_weights_that_are_not_there_or_cannot_be_read(tmp_path: Path) -> None:
    eagle_heads.saved(tmp_path, eagle_heads.speculators_config(), eagle_heads.tensors())
    (tmp_path / "model.safetensors").write_bytes(b"nothing")
    with pytest.raises(OutriderError, match=r"its weights cannot be read \(.*\); get it again"):
        PublishedDrafter.load(tmp_path)
    (tmp_path / "model.safetensors").unlink()
    with pytest.raises(OutriderError, match="there is no model.safetensors; get it again"):
        PublishedDrafter.load(tmp_path)
    torch.save({"x": argparse.Namespace()}, tmp_path / "pytorch_model.bin")
    with pytest.raises(OutriderError, match=r"holds more than tensors, and none of it is run; save it as [^\n]*"):
        PublishedDrafter.load(tmp_path)
