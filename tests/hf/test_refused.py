"""What cannot be honoured is refused by name: nothing is silently ignored."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch
import transformers as tf
from calls import batch, call, plain, through

import outrider
import tiny
from outrider.errors import BadOption
from outrider.hf.refusals import HONOURED, REFUSED, WITHOUT_EFFECT

IDS = torch.tensor([[5, 6, 7, 8]])


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"inputs_embeds": torch.zeros((1, 4, 32))}, "inputs_embeds would not be used"),
        ({"input_ids": IDS, "inputs_embeds": torch.zeros((1, 4, 32))}, "inputs_embeds would not be used"),
        ({"input_ids": IDS, "position_ids": torch.tensor([[3, 4, 5, 6]])}, "position_ids other than"),
        ({"input_ids": IDS, "output_hidden_states": True}, "output_hidden_states"),
        ({"input_ids": IDS, "logits_to_keep": 2}, "logits_to_keep=2"),
        ({"input_ids": IDS, "past_key_values": tf.DynamicCache()}, "past_key_values would not be used"),
    ],
)
def test_inputs_of_a_decoder(given: dict[str, Any], says: str) -> None:
    """Inputs of the model were dropped: positions, embeddings, a cache, an image. The text was another one."""
    with pytest.raises(BadOption, match=says):
        call(tiny.build("llama"), given, max_new_tokens=3)


def test_token_types() -> None:
    """token_type_ids change what GPT-2 reads, and were dropped."""
    with pytest.raises(BadOption, match="token_type_ids would not be used"):
        call(tiny.build("gpt2"), {"input_ids": IDS, "token_type_ids": torch.ones_like(IDS)}, max_new_tokens=3)


def test_an_image() -> None:
    """A vision model answered without its image."""
    text = tf.LlamaConfig(
        vocab_size=96, hidden_size=32, intermediate_size=64, num_hidden_layers=1, num_attention_heads=4
    )
    vision = tf.CLIPVisionConfig(
        hidden_size=16, intermediate_size=16, num_hidden_layers=1, num_attention_heads=2, image_size=8, patch_size=4
    )
    config = tf.LlavaConfig(vision_config=vision, text_config=text, image_token_index=95)
    model = tf.LlavaForConditionalGeneration(config).eval()
    given = {"input_ids": torch.tensor([[5, 95, 95, 95, 95, 6]]), "pixel_values": torch.zeros((1, 3, 8, 8))}
    with pytest.raises(BadOption, match="pixel_values.* would not be used"):
        call(model, given, max_new_tokens=3)


def test_usual_positions_are_no_reason_to_refuse() -> None:
    """transformers makes position ids for every call, and a careful caller passes the same."""
    given = batch("llama")
    own = (given["attention_mask"].cumsum(-1) - 1).masked_fill(given["attention_mask"] == 0, 1)
    options: dict[str, Any] = {"max_new_tokens": 6, "do_sample": False}
    assert through("llama", {**given, "position_ids": own}, **options) == plain("llama", given, **options)


def test_decoder_attention_mask() -> None:
    """It was dropped: the decoder read what it was told to leave out."""
    given = {**batch("bart"), "decoder_input_ids": torch.tensor([[0, 7], [0, 8], [0, 9]])}
    mask = torch.ones((3, 2), dtype=torch.int64)
    options: dict[str, Any] = {"max_new_tokens": 5, "do_sample": False}
    assert through("bart", {**given, "decoder_attention_mask": mask}, **options) == plain("bart", given, **options)
    mask[1, 0] = 0
    with pytest.raises(BadOption, match="decoder_attention_mask hides tokens"):
        through("bart", {**given, "decoder_attention_mask": mask}, **options)


ASKED: dict[str, Any] = {
    "num_beams": 3, "guidance_scale": 2.0, "prompt_lookup_num_tokens": 3, "num_assistant_tokens": 5,
    "output_attentions": True, "prefill_chunk_size": 4, "penalty_alpha": 0.6,
    "dola_layers": "high",
}  # fmt: skip


@pytest.mark.parametrize("name", ASKED)
def test_options(name: str) -> None:
    """Catches an option of another way of decoding that has no effect."""
    extra = {"top_k": 4} if name == "penalty_alpha" else {}
    with pytest.raises(BadOption, match=f"{name}=.* is not supported with custom_generate"):
        call(
            tiny.build("llama"),
            {"input_ids": IDS},
            max_new_tokens=3,
            return_dict_in_generate=True,
            **{name: ASKED[name]},
            **extra,
        )


def test_cache_implementation() -> None:
    """Asked directly: transformers makes some kinds of cache first, for which a machine may lack the device."""
    config = tf.GenerationConfig(max_new_tokens=3, cache_implementation="offloaded")
    with pytest.raises(BadOption, match="cache_implementation='offloaded' is not supported with custom_generate"):
        outrider.transformers_generate(tiny.build("llama"), IDS, generation_config=config)


def test_the_calls_own_keywords() -> None:
    """assistant_tokenizer= and synced_gpus= never arrived, and were ignored."""
    model, given = tiny.build("llama"), {"input_ids": IDS}
    with pytest.raises(BadOption, match="synced_gpus"):
        call(model, given, max_new_tokens=3, synced_gpus=True)
    with pytest.raises(BadOption, match="assistant_tokenizer"):
        call(model, given, max_new_tokens=3, assistant_tokenizer=object())
    with pytest.raises(BadOption, match="both name a draft"):
        call(model, given, max_new_tokens=3, draft="copy", assistant_model=tiny.build("llama", 1))


def test_every_field_of_the_generation_config_is_in_a_table() -> None:
    """Catches a new field of transformers that nobody has thought about, and docs that do not say what is done."""
    fields = set(tf.GenerationConfig().__dict__)
    tables = [set(HONOURED), set(WITHOUT_EFFECT), set(REFUSED)]
    assert fields <= set.union(*tables)
    assert sum(map(len, tables)) == len(set.union(*tables))
    text = (Path(outrider.__file__).parents[2] / "docs" / "transformers.md").read_text(encoding="utf-8")
    sections = [part.split("\n## ")[0] for part in text.split("\n## ")[1:]]
    documented = {part.splitlines()[0]: part for part in sections}
    for title, table in zip(("Honoured", "Without effect", "Refused"), tables, strict=True):
        missing = [name for name in sorted(table) if f"`{name}`" not in documented[title] and not name.startswith("_")]
        assert not missing, f"docs/transformers.md does not name {missing} under {title!r}"


@pytest.mark.parametrize(
    ("asked", "says"),
    [
        ({"seed": "a"}, "seed must be None or a whole number of 64 bits, got 'a'"),
        ({"seed": True}, "seed must be None or a whole number of 64 bits, got True"),
        ({"exact": "yes"}, "exact must be True or False, got 'yes'"),
        ({"width": 2.5}, "width must be a whole number of at least 1, got 2.5"),
        ({"width": 257}, "width must be at most the model's 256 positions, got 257"),
        ({"graphs": "yes"}, "graphs must be True, False or \"auto\", got 'yes'"),
        ({"gamma": outrider.Auto}, r"got the class Auto; give outrider.Auto\(\)"),
        ({"gamma": True}, "gamma must be a whole number of at least 0, .* got True"),
    ],
)
def test_options_of_our_own(asked: dict[str, Any], says: str) -> None:
    """exact="yes" was exact, and a width of 2.5 a TypeError from inside."""
    with pytest.raises(BadOption, match=says):
        call(tiny.build("llama"), {"input_ids": IDS}, max_new_tokens=3, **asked)
