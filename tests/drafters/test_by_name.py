"""What ``draft=`` says, as a chain: which drafter stands where, and what is refused with a remedy."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import torch

import library
import outrider
from outrider.drafters import BUILT_IN, Cascade, Copying, ModelDrafter, by_name
from outrider.drafters.by_name import check_draft, drafts_for
from outrider.drafters.head import CONFIG, Head, HeadConfig, HeadDrafter
from outrider.errors import BadOption, ModelNotFound
from outrider.models.hub.loading import load
from outrider.models.transformers import trimmed
from outrider.training import student_models

PROMPT = "the quick brown fox the quick"


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A target, another model of its kind, and two trained drafts: a model with few tokens, and a head."""
    root = tmp_path_factory.mktemp("chain")
    library.save_llama(root / "target")
    library.save_llama(root / "other", seed=1)
    target = load(str(root / "target"), "cpu", "float32").model
    tokens = torch.arange(3, 200)
    draft = student_models.build(student_models.DraftSize.parse("16x32x1x2"), tokens, target)
    trimmed.save(draft, tokens, root / "small", {})
    (root / "head").mkdir()
    HeadDrafter(Head(HeadConfig("feature", 32, 16, 1)), tokens).save(root / "head")
    (root / "head" / CONFIG).write_text(
        json.dumps({"kind": "feature", "hidden_size": 32, "inner_size": 16, "blocks": 1})
    )
    return root


@pytest.mark.parametrize(
    ("draft", "name", "depth"),
    [
        ("copy>{}/other", "copy>{}/other", 1),
        ("ngram>>{}/small", "ngram>>small", 1),
        ("auto>{}/small", "copy+ngram>small", 1),
        ("copy>{}/small>{}/other", "copy>small>{}/other", 2),
    ],
)
def test_chains(folders: Path, draft: str, name: str, depth: int) -> None:
    """Catches a chain read from the wrong end, and text that changes because of one."""
    llm = outrider.load(str(folders / "target"), draft.replace("{}", str(folders)))
    assert llm.drafter.name == name.replace("{}", str(folders))
    out = llm.generate([PROMPT, "a"], max_new_tokens=12)
    plain = outrider.LLM(llm.target, outrider.Nothing()).generate([PROMPT, "a"], max_new_tokens=12)
    assert [o.tokens for o in out] == [p.tokens for p in plain]
    assert out[0].stats.drafter_error is None
    assert len(out[0].stats.levels) == depth and out[0].stats.levels[0].runs > 0
    assert len(out[0].to_json()["stats"]["levels"]) == depth


def test_objects() -> None:
    """Catches arguments in the wrong order, which would draft with the target's size of model for a table."""
    with pytest.raises(BadOption, match="middle must be a ModelDrafter"):
        Cascade(Copying(), Copying())  # type: ignore[arg-type]
    with pytest.raises(BadOption, match="guesses must be at least 1"):
        Cascade(Copying(), ModelDrafter(None), guesses=0)  # type: ignore[arg-type]


def test_a_drafter_in_the_table_has_its_name_everywhere(monkeypatch: pytest.MonkeyPatch) -> None:
    """As ``draft=``, at the start of a chain, and in what a misspelt name is answered with."""
    monkeypatch.setitem(BUILT_IN, "mirror", lambda: Copying(shortest=1))
    for draft in ("mirror", "mirror>some/model"):
        check_draft(draft)
    with pytest.raises(BadOption, match=r"did you mean 'mirror'\? Built in: auto, copy, .*, mirror"):
        check_draft("miror")
    with pytest.raises(BadOption, match="'mirror' cannot check guesses"):
        check_draft("copy>mirror")


def test_the_head_by_itself(folders: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """The head of the package could be had beside copying alone, and not be compared with what it gains by itself."""
    target = load(str(folders / "target"), "cpu", "float32")
    assert drafts_for(target) == ["auto", "copy", "ngram", "suffix"]
    own = HeadDrafter.load(folders / "head")
    monkeypatch.setattr(by_name, "shipped_draft", lambda target: own)
    llm = outrider.LLM(target, own)
    assert llm.with_draft("head").drafter is own and drafts_for(target)[:2] == ["auto", "head"]
    assert llm.with_draft("auto").drafter.name == f"copy+{own.name}"


@pytest.mark.parametrize("draft", ["./nosuch", "copy>./nosuch", "nosuch.gguf"])
def test_a_name_that_is_no_model_lists_the_drafters(folders: Path, draft: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """It was answered as a model's name alone, though a drafter that needs no model may have been meant."""
    monkeypatch.setitem(BUILT_IN, "mirror", Copying)
    with pytest.raises(ModelNotFound, match=r"nosuch.* is not built in \(auto, copy, .*, mirror\); model .*nosuch"):
        outrider.load(str(folders / "target"), draft)


@pytest.mark.parametrize(
    ("draft", "says"),
    [
        (">copy", "is not a chain"),
        ("x>copy", "cannot check guesses"),  # a name of one letter was "not a chain"
        ("copy>", "is not a chain"),
        ("copy>>>x", "is not a chain"),
        ("ngram>copy", "cannot check guesses"),
        ("copy>{}/head", "cannot run by itself"),
        ("cpoy", "did you mean 'copy'"),  # it was looked for on the hub, and no drafter was named
        ("cpoy>{}/other", "did you mean 'copy'"),
        (" >{}/other", "must be a name"),
        ("suffix:", "names no index"),
        ("{}/target/mine.py", "name the class in it"),
        ("head", "no head comes with the package for target"),
        ("copy>head", "cannot check guesses"),
    ],
)
def test_refusals(folders: Path, draft: str, says: str) -> None:
    """Catches a chain that would fail later, or be read as something else."""
    with pytest.raises(BadOption, match=says):
        outrider.load(str(folders / "target"), draft.replace("{}", str(folders)))


def test_a_model_of_another_kind_is_refused_before_it_is_loaded(
    folders: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It was compiled and measured for two minutes first, and the error named a path that nobody had typed."""
    library.save_t5(tmp_path / "reads sources")
    llm = outrider.load(str(folders / "target"), "none", device="cpu", dtype="float32")
    monkeypatch.setattr(by_name.loading, "load", lambda *_: pytest.fail("it was loaded"))
    says = "reads sources' is an encoder-decoder and target .* decoder-only; both must be of one kind: leave the draft"
    with pytest.raises(BadOption, match=says):
        llm.with_draft(str(tmp_path / "reads sources"))
