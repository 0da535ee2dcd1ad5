"""Drafts for encoder-decoder targets: data, slices, training, resuming, and what is refused."""

from __future__ import annotations

import json
import random
from collections.abc import Callable
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import library
import outrider
from outrider.drafters.head import HeadDrafter
from outrider.errors import BadOption, TokenizerMismatch
from outrider.models.hub import loading
from outrider.models.transformers import trimmed
from outrider.models.transformers.fingerprint import fingerprint
from outrider.testing import check_drafter
from outrider.training import distill as module
from outrider.training import student_models
from outrider.training.answers import SelfText
from outrider.training.data import PADDING, Corpus, frequent_tokens
from outrider.training.distill import NoProgress, distill
from outrider.training.distill_plan import DistillPlan
from outrider.training.loop import Budget, train
from outrider.training.progress import Gathering
from outrider.training.sources import examples, from_examples

MAKE: dict[str, Callable[[Path], Path]] = {
    "t5": library.save_t5,
    "bart": library.save_bart,
    "marian": partial(library.save_bart, marian=True),
}
WORDS = ["the", "thin", "end", "then", "a", "bed", "so"]


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("sources")
    chance = random.Random(0)
    lines = [" ".join(chance.choice(WORDS) for _ in range(chance.randint(2, 6))) for _ in range(60)]
    (folder / "sources.txt").write_text("\n".join(lines), encoding="utf-8")
    for name, make in MAKE.items():
        make(folder / name)
    return folder


@pytest.fixture(scope="module", params=list(MAKE))
def target(request: pytest.FixtureRequest, root: Path) -> loading.Loaded:
    return loading.load(str(root / request.param), "cpu", "float32")


@pytest.fixture(scope="module")
def t5(root: Path) -> loading.Loaded:
    return loading.load(str(root / "t5"), "cpu", "float32")


def plan_for(root: Path, **changes: Any) -> DistillPlan:
    plan = DistillPlan(
        kind="model", size="32x64x1x2", prompts=(str(root / "sources.txt"),), text_tokens=800, block=16, vocab=200,
        depth=3, generate_batch=16, budget=Budget(tokens=2000, batch=8, rate=5e-3),
    )  # fmt: skip
    return replace(plan, **changes)


class Listener(NoProgress):
    """Collects reports, and dies when told to."""

    def __init__(self, deadly: bool = False) -> None:
        self.reports: list[Any] = []
        self.deadly = deadly

    def training(self, report: Any) -> None:
        self.reports.append(report)
        if self.deadly:
            raise KeyboardInterrupt


def assert_same_text(target: loading.Loaded, draft: Path) -> None:
    llm = outrider.load(target.name, draft=str(draft), dtype="float32")
    plain = llm.with_draft(None)
    for options in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 3}):  # gamma: "auto" may fall back
        one, two = (x.generate("the thin end", max_new_tokens=12, gamma=3, **options) for x in (llm, plain))
        assert one.tokens == two.tokens and one.stats.drafted > 0 and one.stats.drafter_error is None


def test_alpha_rises_and_the_draft_is_used(target: loading.Loaded, root: Path, tmp_path: Path) -> None:
    """Catches a student that sees other sources than the drafter will, or learns from padding."""
    plan = plan_for(root, budget=Budget(tokens=4000, batch=8, rate=1e-2))
    after = distill(target, tmp_path / "draft", plan).measured
    text = str(tmp_path / "draft" / "training" / "text.safetensors")
    untrained = replace(plan, text=text, prompts=(), budget=Budget(tokens=1, batch=8, rate=1e-9))
    before = distill(target, tmp_path / "before", untrained).measured
    assert before is not None and after is not None
    assert after.overlap[0] > before.overlap[0] + 0.1
    assert_same_text(target, tmp_path / "draft")


@pytest.mark.parametrize("kind", ["model", "feature"])
def test_a_killed_run_ends_with_the_same_weights(
    kind: str, t5: loading.Loaded, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(module, "train", partial(train, every=4))
    plan = plan_for(root, kind=kind, size=None if kind == "feature" else "16x32x1+1x2")
    distill(t5, tmp_path / "whole", plan)
    with pytest.raises(KeyboardInterrupt):
        distill(t5, tmp_path / "broken", plan, Listener(deadly=True))
    assert not (tmp_path / "broken" / "model.safetensors").exists()
    distill(t5, tmp_path / "broken", plan)
    one, two = (load_file(str(tmp_path / name / "model.safetensors")) for name in ("whole", "broken"))
    assert one.keys() == two.keys() and all(torch.equal(one[k], two[k]) for k in one)
    again = distill(t5, tmp_path / "whole", plan)  # finished: nothing to train, and still a figure
    assert again.measured is not None


@pytest.mark.parametrize("kind", ["feature", "block", "blockwise"])
def test_heads_read_a_decoder_with_an_encoder(kind: str, t5: loading.Loaded, root: Path, tmp_path: Path) -> None:
    distill(t5, tmp_path / "draft", plan_for(root, kind=kind, size=None))
    check_drafter(HeadDrafter.load(tmp_path / "draft"), t5.model)
    assert_same_text(t5, tmp_path / "draft")


# --- slices ------------------------------------------------------------------------------------------


def test_a_slice_of_everything_is_the_target(target: loading.Loaded) -> None:
    """Catches tensors that are left random: all layers and all tokens must give the target's own logits."""
    every = torch.arange(target.model.vocab_size)
    model = student_models.sliced(target.model, every, student_models.layer_lists("0,1", target.model)).eval()
    ids = torch.tensor([[5, 9, 40, 2], [7, 7, 12, 30]])
    with torch.no_grad():
        ours = model(input_ids=ids, decoder_input_ids=ids).logits[..., :-1]
        theirs = target.model.model(input_ids=ids, decoder_input_ids=ids).logits
    torch.testing.assert_close(ours, theirs, atol=1e-4, rtol=1e-4)


def test_a_slice_with_fewer_tokens_reads_the_same_source(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a source that is given to the draft by the target's numbers: it would read other words.

    Bytes that never occur are left out, so that all numbers behind them move; acceptance stays near one.
    """
    unused = set(target.tokenizer.convert_tokens_to_ids(list("!\"#$%&'()*+")))
    tokens = torch.tensor([t for t in range(target.model.vocab_size) if t not in unused])
    model = student_models.sliced(target.model, tokens, student_models.layer_lists("0,1+0,1", target.model))
    (tmp_path / "draft").mkdir()
    extra = {"fingerprint": fingerprint(target.model), "gamma": 3}
    trimmed.save(model, tokens, tmp_path / "draft", extra)
    llm = outrider.load(target.name, draft=str(tmp_path / "draft"), dtype="float32")
    assert llm.drafter.traits.gamma == 3  # what was written is what is read
    stats = llm.generate(
        "so the bed then a thin end", max_new_tokens=24, temperature=1.0, seed=0, eos=(), gamma=3
    ).stats
    assert stats.drafter_error is None and stats.examined >= 12 and stats.alpha > 0.93


@pytest.mark.parametrize("text", ["0,2", "0,0", "0+1+1", "a", "0,"])
def test_layers_that_cannot_be_taken(text: str, t5: loading.Loaded) -> None:
    with pytest.raises(BadOption, match="layers"):
        student_models.layer_lists(text, t5.model)


def test_sizes() -> None:
    assert student_models.DraftSize.parse("256x1024x2x4") == student_models.DraftSize(256, 1024, 2, 4)
    assert student_models.DraftSize.parse("128x384x2+1x4") == student_models.DraftSize(128, 384, 1, 4, encoder=2)
    for text in ("12", "256x1024x2", "256x1024x0x4", "256+1x4x2x2", "250x4x2x4", "1x2x3+4+5x1"):
        with pytest.raises(BadOption, match="size"):
            student_models.DraftSize.parse(text)


# --- data --------------------------------------------------------------------------------------------


def test_pairs_and_sources_from_files(t5: loading.Loaded, tmp_path: Path) -> None:
    """Catches a target that goes missing, or a given target that is overwritten by the model's own."""
    (tmp_path / "a.en-de.tsv").write_text("the end\ta bed\nthin\n\n", encoding="utf-8")
    lines = [{"source": "so\nso", "target": "then"}, "a", {"prompt": "bed"}]
    (tmp_path / "b.jsonl").write_text("\n".join(map(json.dumps, lines)), encoding="utf-8")
    (tmp_path / "c.txt").write_text("a\tb\n", encoding="utf-8")
    found = list(examples(tmp_path / name for name in ("a.en-de.tsv", "b.jsonl", "c.txt")))
    assert found == [
        ("the end", "a bed"),
        ("thin", None),
        ("so\nso", "then"),
        ("a", None),
        ("bed", None),
        ("a\tb", None),
    ]
    corpus = from_examples(t5, found[:2], SelfText(60, new_tokens=8, batch=4, block=12), Gathering(60))
    assert corpus.sources is not None and len(corpus.sources) == len(corpus)
    encode = t5.tokenizer.encode
    rows = [[t for t in row if t != PADDING] for row in corpus.tokens.tolist()]
    sources = [[t for t in row if t != PADDING] for row in corpus.sources.tolist()]
    assert sources.count(encode("the end")) == 1 and sources.count(encode("thin")) >= 2
    assert rows[sources.index(encode("the end"))] == [0, *encode("a bed")]
    assert all(row[0] == 0 and 2 <= len(row) <= 12 for row in rows)
    assert sum(map(len, rows)) >= 60


def test_frequent_tokens_count_sources_and_keep_what_is_needed() -> None:
    corpus = Corpus(torch.tensor([[3, 3, 4, PADDING]]), torch.tensor([[7, 7, 7, 8, PADDING]]))
    assert frequent_tokens(corpus, 10, 3, always=[9]).tolist() == [3, 7, 9]
    assert corpus.take([0]).tokens.shape == (1, 3)


# --- what is refused ---------------------------------------------------------------------------------


def test_no_sources(t5: loading.Loaded, root: Path, tmp_path: Path) -> None:
    (tmp_path / "empty.tsv").write_text("\n\n", encoding="utf-8")
    for data, prompts in (((), ()), ((str(tmp_path / "empty.tsv"),), ())):
        with pytest.raises(BadOption, match=r"needs source texts.*--data"):
            distill(t5, tmp_path / f"out{len(data)}", plan_for(root, data=data, prompts=prompts))


def test_text_of_another_target(t5: loading.Loaded, root: Path, tmp_path: Path) -> None:
    """Catches token ids that mean something else to this target."""
    other = loading.load(str(library.save_t5(tmp_path / "other", seed=3)), "cpu", "float32")
    gathered = tmp_path / "text.safetensors"
    Corpus(torch.zeros((40, 8), dtype=torch.int64), torch.zeros((40, 8), dtype=torch.int64)).save(
        gathered, fingerprint(other.model)
    )
    with pytest.raises(TokenizerMismatch, match="another target"):
        distill(t5, tmp_path / "out", plan_for(root, text=str(gathered), prompts=()))
    gathered.write_text("words", encoding="utf-8")
    with pytest.raises(BadOption, match="not text gathered"):
        distill(t5, tmp_path / "out2", plan_for(root, text=str(gathered), prompts=()))


@pytest.mark.parametrize(
    "error", [torch.OutOfMemoryError("CUDA"), MemoryError(), RuntimeError("DefaultCPUAllocator: can't allocate memory")]
)
def test_too_little_memory(
    error: Exception, t5: loading.Loaded, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def full(*_: Any, **__: Any) -> Any:
        raise error

    monkeypatch.setattr(module, "train", full)
    with pytest.raises(BadOption, match=r"lower --batch, --block or --generate-batch.*--text"):
        distill(t5, tmp_path / "out", plan_for(root))
    monkeypatch.setattr(module, "train", lambda *_, **__: (_ for _ in ()).throw(RuntimeError("shapes differ")))
    with pytest.raises(RuntimeError, match="shapes differ"):  # a mistake of ours is not explained away
        distill(t5, tmp_path / "out", plan_for(root))


def test_a_target_without_hidden_states(
    t5: loading.Loaded, root: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a head without anything to read; a model of its own can still learn."""
    monkeypatch.setattr(t5.model, "facts", replace(t5.model.facts, hidden_size=None))
    with pytest.raises(BadOption, match="no hidden states.*--kind model"):
        distill(t5, tmp_path / "head", plan_for(root, kind="feature", size=None))
    assert distill(t5, tmp_path / "model", plan_for(root)).measured is not None


def test_layers_of_two_stacks_need_two_stacks(root: Path, tmp_path: Path) -> None:
    llama = loading.load(str(library.save_llama(tmp_path / "llama")), "cpu", "float32")
    with pytest.raises(BadOption, match="encoder-decoder targets"):
        student_models.build(student_models.DraftSize.parse("16x32x1+1x2"), torch.arange(10), llama.model)
    with pytest.raises(BadOption, match="layers"):
        student_models.layer_lists("0+1", llama.model)
