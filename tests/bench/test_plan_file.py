"""Plan files: whatever is not a whole plan of this release and target is refused, with file, line and key."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch

from outrider.bench.plan.export import WRITERS, export
from outrider.bench.plan.plan_file import PlanFile
from outrider.errors import BadOption

COPY = {"name": "copy", "kind": "copy", "shortest": 2, "longest": 8}
MODEL = {"name": "small", "kind": "model", "model": "some/small model"}
HEAD = {"name": "copy+head", "kind": "other"}


def choice(batch: int, draft: str = "copy", gamma: int = 4, speedup: float = 1.5) -> dict[str, Any]:
    return {"batch": batch, "draft": draft, "gamma": gamma, "speedup": speedup, "interval": [1.2, 1.8]}


def content(**more: Any) -> dict[str, Any]:
    return {
        "plan": 1, "outrider": "0.1", "target": "some/model", "fingerprint": None, "encoder_decoder": False,
        "device": "Some CPU", "loading": {"device": "auto", "dtype": "auto", "engine": "auto", "weights": "full"},
        "width": 9, "options": {"temperature": 0.0}, "drafters": {"copy": COPY, "small": MODEL, "auto": HEAD},
        "conditions": {}, "command": "", "costs": [], "acceptance": [], "prices": [],
        "cells": [choice(1), choice(1, "auto", 3, 2.0), choice(1, "copy", 2, 1.1)], "recommended": [choice(1)],
        "checks": [], "sentence": "", "prompts_done": 1, "prompts_wanted": 1, "interrupted": False,
        "others_cores": None, **more,
    }  # fmt: skip


def written(folder: Path, what: Any) -> PlanFile:
    path = folder / "plan.json"
    path.write_text(what if isinstance(what, str) else json.dumps(what, indent=1), encoding="utf-8")
    return PlanFile.read(path)


def without(key: str) -> dict[str, Any]:
    return {name: value for name, value in content().items() if name != key}


BAD: list[tuple[Any, str]] = [
    (json.dumps(content(), indent=1)[:-40], r"plan.json, line \d\d+: not whole JSON.*run `outrider plan --out` again"),
    ("", r"line 1: not whole JSON"),
    ([1], r"key 'plan' is missing: this is no plan"),
    ({"rows": []}, r"key 'plan' is missing"),
    (content(plan=2), r"line 2: key 'plan' is version 2, this release reads 1"),
    (content(recomended=[]), r"line \d+: key 'recomended' is unknown; did you mean 'recommended'\?"),
    (without("device"), r"key 'device' is missing"),
    (content(recommended={}), r"line \d+: key 'recommended' must be a list, got \{\}"),
    (content(recommended=[{**choice(1), "gamma": "4"}]), r"key 'gamma' must be a whole number, got '4'"),
    (content(recommended=[{**choice(1), "gamma": True}]), r"key 'gamma' must be a whole number, got True"),
    (content(recommended=[choice(1, gamma=9)]), r"key 'gamma' must be from 0 to 8, width less 1, got 9"),
    (content(recommended=[{"batch": 1}]), r"key 'recommended' has an entry without 'draft'"),
]


@pytest.mark.parametrize(("what", "said"), BAD)
def test_what_is_no_plan_is_refused_in_one_line(tmp_path: Path, what: Any, said: str) -> None:
    with pytest.raises(BadOption, match=said) as raised:
        written(tmp_path, what)
    assert str(tmp_path / "plan.json") in str(raised.value) and "\n" not in str(raised.value)


def test_files_that_cannot_be_read(tmp_path: Path) -> None:
    with pytest.raises(BadOption, match="cannot be read"):
        PlanFile.read(tmp_path / "none.json")
    (tmp_path / "bytes").write_bytes(b"\xff\xfe")
    with pytest.raises(BadOption, match="not UTF-8"):
        PlanFile.read(tmp_path / "bytes")


def test_a_choice_is_that_of_the_nearest_smaller_batch(tmp_path: Path) -> None:
    plan = written(tmp_path, content(recommended=[choice(8, gamma=2), choice(1), choice(64, "none", 0)]))
    found = {batch: (plan.choice(batch).batch, plan.choice(batch).draft) for batch in (1, 7, 8, 63, 64, 500)}
    assert found == {
        1: (1, "copy"),
        7: (1, "copy"),
        8: (8, "copy"),
        63: (8, "copy"),
        64: (64, "none"),
        500: (64, "none"),
    }
    assert written(tmp_path, content(recommended=[choice(8)])).choice(1).batch == 8
    with pytest.raises(BadOption, match="'recommended' is empty, no prompt was finished"):
        written(tmp_path, content(recommended=[])).choice(1)


def test_a_plan_is_for_one_target_and_says_what_else_differs(tmp_path: Path) -> None:
    """Catches a plan taken for a model of the same name with other weights, and differences that go unsaid."""
    plan = written(tmp_path, content(fingerprint="aa"))
    plan.check_target("another name", "aa")
    with pytest.raises(BadOption, match=r"key 'target' is 'some/model', not 'x', or its weights have changed; make"):
        plan.check_target("x", "bb")
    named = written(tmp_path, content())
    named.check_target("some/model", None)
    with pytest.raises(BadOption, match="key 'target'"):
        named.check_target("other/model", None)
    same = dict(plan.content["loading"])
    assert plan.differences(same, "Some CPU", 0.0) == [] == plan.differences(same, "Some CPU", None)
    assert plan.differences({**same, "dtype": "float32", "width": 3}, "A GPU", 1.0) == [
        "dtype is float32, the plan has auto", "this machine is A GPU, the plan is of Some CPU",
        "temperature is 1, the plan has 0",
    ]  # fmt: skip


def test_copying_in_the_words_of_others(tmp_path: Path) -> None:
    plan = written(tmp_path, content())
    found = {program: export(plan, program, 1) for program in WRITERS}
    config = json.loads(found["vllm"].split("--speculative-config '")[1].split("'")[0])
    assert config == {"method": "ngram", "num_speculative_tokens": 4, "prompt_lookup_min": 2, "prompt_lookup_max": 8}
    assert "--speculative-algorithm NGRAM --speculative-num-draft-tokens 5\n" in found["sglang"]
    assert "--spec-type ngram-simple --spec-ngram-simple-size-n 2 --spec-ngram-simple-size-m 4\n" in found["llama.cpp"]
    space: dict[str, Any] = {}
    exec(found["transformers"], space)  # a script, comments included
    assert space["options"] == {"prompt_lookup_num_tokens": 4, "max_matching_ngram_size": 8}
    assert all("No equivalent" in text and text.startswith("# some/model, 1 at a time") for text in found.values())


def test_a_draft_model_in_the_words_of_others(tmp_path: Path) -> None:
    """Catches a gamma that is off by one, and names that a shell would cut in two."""
    plan = written(tmp_path, content(recommended=[choice(1, "small", 3)]))
    vllm, sglang = export(plan, "vllm", 1), export(plan, "sglang", 1)
    config = json.loads(vllm.split("--speculative-config '")[1].split("'")[0])
    assert config == {"method": "draft_model", "model": "some/small model", "num_speculative_tokens": 3}
    assert "STANDALONE --speculative-draft-model-path 'some/small model' --speculative-num-steps 3" in sglang
    assert "--speculative-eagle-topk 1 --speculative-num-draft-tokens 4" in sglang
    assert "--spec-type draft-simple --model-draft DRAFT.gguf --spec-draft-n-max 3" in export(plan, "llama.cpp", 1)
    script = export(plan, "transformers", 1)
    assert "num_assistant_tokens = 3" in script and "'some/small model'" in script
    compile(script, "script", "exec")


def test_transformers_knows_the_options_that_are_exported(tmp_path: Path) -> None:
    """Catches an export that the installed transformers would refuse or ignore."""
    from transformers import GenerationConfig

    known = vars(GenerationConfig())
    text = export(written(tmp_path, content()), "transformers", 1)
    text += export(written(tmp_path, content(recommended=[choice(1, "small")])), "transformers", 1)
    for name in ("prompt_lookup_num_tokens", "max_matching_ngram_size", "num_assistant_tokens",
                 "num_assistant_tokens_schedule", "assistant_confidence_threshold"):  # fmt: skip
        assert name in text and name in known, name


def test_transformers_runs_what_is_exported(tmp_path: Path, two_models: Path) -> None:
    """Catches a gamma that transformers reads otherwise: with a draft that is the target itself every guess is kept,
    and its runs tell how many there were."""
    from transformers import AutoModelForCausalLM

    model = AutoModelForCausalLM.from_pretrained(two_models / "target")
    asked = {"inputs": torch.tensor([[1, 5, 9, 5, 9, 5]]), "max_new_tokens": 24, "do_sample": False, "eos_token_id": -1}
    plain, widths = model.generate(**asked)[0].tolist(), list[int]()
    model.model.register_forward_pre_hook(
        lambda _, args, given: widths.append(given["input_ids"].shape[1]), with_kwargs=True
    )
    own = {"kind": "model", "name": "own", "model": str(two_models / "target")}
    copying = content()["drafters"]["copy"]
    for drafters, name in (({"own": own}, "own"), ({"copy": copying}, "copy")):
        plan = written(tmp_path, content(drafters=drafters, recommended=[choice(1, name, 3)]))
        space: dict[str, Any] = {}
        exec(export(plan, "transformers", 1), space)
        widths.clear()
        assert model.generate(**asked, **space["options"])[0].tolist() == plain
        if name == "own":
            assert len(widths) == 6 and set(widths[1:]) == {4}, widths  # 24 tokens, four of them a run
        else:
            assert max(widths[1:]) == 4, widths


def test_what_others_do_not_have_is_refused_with_what_they_have(tmp_path: Path) -> None:
    """Catches a head exported as if it were a draft model."""
    plan = written(tmp_path, content(recommended=[choice(1, "auto", 3, 2.0)]))
    said = r"vllm has nothing like draft 'auto' \(copy\+head\); copy with gamma 4 \(predicted 1.50x\) can be exported"
    with pytest.raises(BadOption, match=said):
        export(plan, "vllm", 1)
    alone = content(drafters={"auto": HEAD}, recommended=[choice(1, "auto", 3)])
    with pytest.raises(BadOption, match="only copying and draft models can be exported"):
        export(written(tmp_path, alone), "sglang", 1)
    with pytest.raises(BadOption, match="export must be one of vllm, sglang, llama.cpp, transformers, got 'mlx'"):
        export(plan, "mlx", 1)
    translator = written(tmp_path, content(encoder_decoder=True))
    with pytest.raises(BadOption, match="does not speculate with encoder-decoder models.*use transformers"):
        export(translator, "vllm", 1)
    assert "prompt_lookup_num_tokens" in export(translator, "transformers", 1)
    plain = export(written(tmp_path, content(recommended=[choice(1, "none", 0)])), "vllm", 1)
    assert "do not speculate" in plain and "speculative-config" not in plain
