"""The tables of engines and of families: whatever stands in them is offered, used and tested."""

from __future__ import annotations

import warnings
from dataclasses import replace
from pathlib import Path

import pytest
import torch
import transformers as tf

import library
import outrider
import tiny
from outrider.errors import BadOption
from outrider.models.engine.backends import BACKENDS, Asked
from outrider.models.engine.choice import Kernels, chosen_engine
from outrider.models.transformers.families import FAMILIES, sliding_windows
from outrider.models.transformers.model import HuggingFaceModel
from outrider.runtime import cpu

with_fma = pytest.mark.skipif(not cpu.facts().fuses_multiplication, reason="this CPU has no fused multiplication")
CPU = torch.device("cpu")


def test_families_that_are_called_tested_are_tested() -> None:
    """A family that no test knows must be compared with itself when it is loaded."""
    built = {build().config.get_text_config(decoder=True).model_type for build in tiny.FAMILIES.values()}
    assert {name for name, family in FAMILIES.items() if family.tested} == built


@pytest.mark.parametrize("engine", ["torch", pytest.param("numba", marks=with_fma)])
def test_a_window_that_the_family_does_not_have(engine: str, tmp_path: Path, cache: Path) -> None:
    """A Llama's config.json with a sliding_window, which a Llama's layers do not look at, changed the text.

    transformers' cache of keys and values does look at it, and forgets: so the reference runs without a cache.
    """
    folder = library.save_llama(tmp_path / "model")
    model = tf.LlamaForCausalLM.from_pretrained(folder).to(torch.bfloat16)
    model.config.sliding_window = 4
    model.save_pretrained(folder)
    prompt = [4, 9, 30, 8, 41, 7, 5, 60, 17, 33, 21, 12]
    found = outrider.load(str(folder), "copy", "cpu", "float32", engine=engine).generate(
        prompt, max_new_tokens=16, eos=[]
    )
    reference = tf.AutoModelForCausalLM.from_pretrained(folder, dtype=torch.float32)
    expected = reference.generate(
        torch.tensor([prompt]), max_new_tokens=16, min_new_tokens=16, do_sample=False, pad_token_id=0, use_cache=False
    )
    assert found.tokens == expected[0, len(prompt) :].tolist()


def test_windows_of_families_that_have_them() -> None:
    """Catches a window that is lost with the one that is not there: of Mistral, Phi-3, Qwen2 and unknown families."""
    assert sliding_windows(tf.MistralConfig(sliding_window=6)) == 6
    assert sliding_windows(tf.Phi3Config(sliding_window=7)) == 7
    assert sliding_windows(tf.Starcoder2Config(sliding_window=8)) == 8
    mixed = tf.Qwen2Config(num_hidden_layers=2, sliding_window=9, use_sliding_window=True, max_window_layers=1)
    assert sliding_windows(mixed) == {"full_attention": None, "sliding_attention": 9}


def test_a_family_in_the_table_is_believed(monkeypatch: pytest.MonkeyPatch) -> None:
    """An entry decides: with it an engine runs the family, without it none but torch does."""
    config = tf.LlamaConfig()
    config.model_type = "mine"
    with pytest.raises(BadOption, match="'mine' have no layers here"):
        chosen_engine(Kernels("numba"), config, CPU, torch.float32, 1e9, tried=False)
    monkeypatch.setitem(FAMILIES, "mine", FAMILIES["llama"])
    config.dtype = torch.bfloat16
    monkeypatch.setattr("outrider.models.engine.choice.find_spec", lambda name: name)
    assert chosen_engine(Kernels("numba"), config, CPU, torch.float32, 1e9, tried=False) == "numba"


def test_an_engine_in_the_table_is_offered_and_asked(monkeypatch: pytest.MonkeyPatch) -> None:
    """Its name is an ``engine=``, "auto" tries it in its turn, its obstacle is what the user reads."""
    with pytest.raises(BadOption, match="engine must be one of auto, numba, torch"):
        Kernels("mine")
    asked: list[Asked] = []

    def obstacle(given: Asked) -> str | None:
        asked.append(given)
        return None if given.weights == "int8" else "it has eight bits only; leave it out"

    mine = replace(BACKENDS["numba"], packages=(), obstacle=obstacle, broken=lambda: None)
    monkeypatch.setattr("outrider.models.engine.choice.find_spec", lambda name: None)
    monkeypatch.setitem(BACKENDS, "mine", mine)
    config = tf.LlamaConfig()
    with pytest.raises(BadOption, match="engine 'mine' cannot be used: it has eight bits only; leave it out"):
        chosen_engine(Kernels("mine"), config, CPU, torch.float32, 1e9)
    assert chosen_engine(Kernels("auto"), config, CPU, torch.float32, 1e9) == "torch"
    assert chosen_engine(Kernels("auto", "int8"), config, CPU, torch.float32, 1e9) == "mine"
    assert [given.weights for given in asked] == ["full", "full", "int8"]


def test_an_entry_is_not_compared_at_load_only_if_tested(monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches an entry that turns the comparison off: a family of a user's own has no tests here."""
    compared = []
    monkeypatch.setattr(
        "outrider.models.transformers.selfcheck.check_against_itself", lambda *given: compared.append(given)
    )
    model = tiny.build("llama")
    HuggingFaceModel(model)
    assert not compared
    monkeypatch.setitem(FAMILIES, "llama", replace(FAMILIES["llama"], tested=False))
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        HuggingFaceModel(model)
    assert compared
