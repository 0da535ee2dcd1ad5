"""A checkpoint's generation config: what it asks for is done as transformers does it, or said not to be."""

from __future__ import annotations

import json
import warnings
from pathlib import Path
from typing import Any

import library
import pytest
import transformers as tf

import outrider
from outrider.models.hub import generation_config

PROMPT = "the quick brown fox"


def test_every_field_is_decided() -> None:
    """A field that a new transformers brings is not dropped silently: somebody has to decide about it here."""
    kinds = [
        generation_config.HONOURED,
        generation_config.BY_CALL,
        generation_config.NO_TEXT,
        frozenset(generation_config.NOT_HONOURED),
    ]
    decided = frozenset().union(*kinds)
    assert sum(map(len, kinds)) == len(decided), "a field is of one kind"
    assert not frozenset(vars(tf.GenerationConfig())) - decided


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.save_llama(tmp_path_factory.mktemp("generation") / "target")


def asking(folder: Path, fields: dict[str, Any]) -> None:
    given = {"eos_token_id": 2, "bos_token_id": 1, "pad_token_id": 0, **fields}
    (folder / "generation_config.json").write_text(json.dumps(given), encoding="utf-8")


def by_transformers(folder: Path) -> list[int]:
    words, model = tf.AutoTokenizer.from_pretrained(folder), tf.AutoModelForCausalLM.from_pretrained(folder)
    ids = words(PROMPT, return_tensors="pt", return_token_type_ids=False)
    return model.generate(**ids, do_sample=False, max_new_tokens=30, tokenizer=words)[0][
        ids["input_ids"].shape[1] :
    ].tolist()


@pytest.mark.parametrize("draft", ["none", "copy"])
@pytest.mark.parametrize("field", ["sequence_bias", "exponential_decay_length_penalty", "stop_strings"])
def test_the_text_is_transformers_own(folder: Path, field: str, draft: str) -> None:
    """These three were read by transformers and dropped here."""
    asking(folder, {})
    plain = by_transformers(folder)
    words = tf.AutoTokenizer.from_pretrained(folder)
    text = words.decode(plain)
    fields = {
        "sequence_bias": [[[plain[3]], -50.0], [plain[:2], -50.0]],
        "exponential_decay_length_penalty": [4, 3.0],
        "stop_strings": [text[6:8], "never"],
    }
    asking(folder, {field: fields[field]})
    expected = by_transformers(folder)
    assert expected != plain, "the rule changes nothing, so nothing would be tested"
    llm = outrider.load(str(folder), draft, engine="torch")
    output = llm.generate(PROMPT, max_new_tokens=30)
    assert output.tokens == expected
    if field == "stop_strings":
        assert (output.finish_reason, output.stop_reason) == ("stop", text[6:8])
        assert llm.generate(PROMPT, max_new_tokens=30, stop="no such text").tokens == plain


@pytest.mark.parametrize("draft", ["none", "copy"])
@pytest.mark.parametrize("asked", [None, 1.3])
def test_a_sequence_bias_comes_before_the_penalty(folder: Path, asked: float | None, draft: str) -> None:
    """The penalty divides what is above zero and multiplies what is below: behind the bias or before it, it differs."""
    asking(folder, {"repetition_penalty": 1.8})
    plain = by_transformers(folder)
    rules = {"sequence_bias": [[[token], 4.0] for token in sorted(set(plain))[:6]], "no_repeat_ngram_size": 3}
    asking(folder, {**rules, "repetition_penalty": asked or 1.8})
    expected = by_transformers(folder)
    asking(folder, {**rules, "repetition_penalty": 1.8})
    llm = outrider.load(str(folder), draft, engine="torch")
    assert llm.generate(PROMPT, max_new_tokens=30, repetition_penalty=asked).tokens == expected


def test_a_special_token_among_the_models_stop_strings(folder: Path) -> None:
    """Decoded text does not show it. Its id was watched for where the call named it, not where the model did."""
    asking(folder, {"eos_token_id": None, "sequence_bias": [[[2], 50.0]], "stop_strings": ["</s>", "never"]})
    llm = outrider.load(str(folder), "none", engine="torch")
    assert llm.tokenizer.convert_ids_to_tokens(2) == "</s>" and 2 in llm.tokenizer.all_special_ids
    output = llm.generate(PROMPT, max_new_tokens=5)
    assert (output.tokens, output.finish_reason) == ([2], "eos")


def test_what_is_not_honoured_is_named(folder: Path) -> None:
    """One warning for all fields that would change the text; none for those that ask for nothing."""
    asking(folder, {"encoder_repetition_penalty": 1.3, "encoder_no_repeat_ngram_size": 2, "guidance_scale": 1.0})
    with pytest.warns(UserWarning, match=r"encoder_repetition_penalty=1.3, encoder_no_repeat_ngram_size=2, which"):
        outrider.load(str(folder), "none", engine="torch").generate(PROMPT, max_new_tokens=2)
    asking(folder, {"num_beam_groups": 1, "penalty_alpha": 0.0, "remove_invalid_values": False, "temperature": 0.6})
    with warnings.catch_warnings():
        warnings.simplefilter("error", UserWarning)
        outrider.load(str(folder), "none", engine="torch").generate(PROMPT, max_new_tokens=2)
