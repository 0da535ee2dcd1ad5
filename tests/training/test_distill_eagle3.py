"""Training of EAGLE-3 heads in the speculators format: what is learnt, what is written, and what is refused."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file

import block_heads
import eagle_heads
import library
import outrider
from distilling import PLAN
from outrider.core.noise import Noise
from outrider.core.protocols import Shape
from outrider.core.sampling import Sampling
from outrider.drafters.published import Eagle3Head, PublishedDrafter
from outrider.errors import BadOption, OutriderError
from outrider.models.hub import loading
from outrider.training.data import Corpus
from outrider.training.distill import distill, make_student
from outrider.training.head_students import Eagle3Student
from outrider.training.loop import measure

EAGLE3 = replace(PLAN, kind="eagle3")
TOKENS = torch.arange(3, 60)


def text(target: loading.Loaded, rows: int = 24) -> Corpus:
    """What is easy to guess: stretches of the alphabet."""
    begins = torch.randint(3, 40, (rows, 1), generator=torch.Generator().manual_seed(0))
    return Corpus((begins + torch.arange(20)).clamp(max=target.model.vocab_size - 1))


def test_it_learns(target: loading.Loaded, tmp_path: Path) -> None:
    """Catches a gradient that reaches nothing: acceptance of all guesses grows, of the deeper ones, too."""
    plan = replace(EAGLE3, budget=replace(PLAN.budget, tokens=32 * 4 * 60))
    distill(target, tmp_path / "draft", plan)
    made_for = json.loads((tmp_path / "draft" / "config.json").read_text("utf-8"))["outrider_target"]
    held_out = Corpus.load(tmp_path / "draft" / "training" / "text.safetensors", made_for).split(4)[1]
    drafter = PublishedDrafter.load(tmp_path / "draft")
    fresh, _ = make_student(target, plan, drafter.tokens)
    taught, _ = make_student(target, replace(plan, start=str(tmp_path / "draft"), vocab=None), drafter.tokens)
    before, after = (measure(student, held_out, 4) for student in (fresh, taught))
    assert len(after.overlap) == plan.depth
    assert all(one < two for one, two in zip(before.overlap, after.overlap, strict=True))
    assert after.overlap[0] > before.overlap[0] + 0.04


@pytest.mark.parametrize("blocks", [1, 2])
def test_drafting_sees_what_training_saw(blocks: int, target: loading.Loaded) -> None:
    """Catches a head whose keys, places or states differ between training and drafting, in any of its layers."""
    torch.manual_seed(1)
    student, _ = make_student(target, replace(EAGLE3, blocks=blocks), TOKENS)
    assert isinstance(student, Eagle3Student)
    for parameter in student.head.parameters():
        parameter.requires_grad_(False)
        parameter += 0.05 * torch.randn_like(parameter)  # a head whose layers do something
    drafter = PublishedDrafter(student.head, TOKENS, floor=0.0).beside(target.model.facts)
    shape = Shape(capacity=96, width=5, chunk=4)
    session = target.model.start(1, shape)
    drafting = drafter.start(1, shape, session)
    so_far = [3, 9, 4, 11, 7, 5]
    for part in (session, drafting):
        part.admit(0, so_far)
    sampling, at = Sampling(temperature=1.0), torch.zeros((1, 4), dtype=torch.int64)
    for kept, new in ((0, 8), (2, 1), (1, 6), (3, 2)):
        draft = drafting.propose(3, sampling, Noise(torch.zeros(1, dtype=torch.int64)), at)
        guesses = draft.tokens[0].tolist()
        assert draft.probs is not None
        for k, guess in enumerate(student.guesses(Corpus(torch.tensor([so_far + guesses])))):
            known = guess.logits[guess.positions.columns == len(so_far) + k][0].softmax(-1)
            torch.testing.assert_close(draft.probs[0, k], known, rtol=0, atol=1e-5)
        session.score(draft.tokens)
        emitted = torch.tensor([[*guesses[:kept], new, 0, 0, 0][:4]])
        for part in (session, drafting):
            part.commit(emitted, torch.tensor([kept + 1]))
        so_far = so_far + emitted[0, : kept + 1].tolist()


def test_what_is_written_is_a_checkpoint_of_the_format(target: loading.Loaded, tmp_path: Path) -> None:
    """A round trip: the head read back has the trained weights, and gives the text of plain decoding."""
    out = tmp_path / "draft"
    distill(target, out, EAGLE3)
    settings = json.loads((out / "config.json").read_text("utf-8"))
    verifier = settings["speculators_config"]["verifier"]
    assert settings["speculators_model_type"] == "eagle3" and verifier["architectures"] == ["LlamaForCausalLM"]
    assert verifier["name_or_path"] == target.name
    read = PublishedDrafter.load(out)
    student, save = make_student(target, replace(EAGLE3, start=str(out), vocab=None), read.tokens)
    (tmp_path / "again").mkdir()
    save(tmp_path / "again")
    one, two = (load_file(str(folder / "model.safetensors")) for folder in (out, tmp_path / "again"))
    assert one.keys() == two.keys() and all(torch.equal(one[name], two[name]) for name in one)
    assert {tensor.dtype for name, tensor in one.items() if tensor.is_floating_point()} == {torch.bfloat16}
    assert "embed_tokens.weight" not in one
    rows = target.transformers_model.unembedding[read.tokens].to(torch.bfloat16)
    assert torch.equal(read.head.state_dict()["lm_head.weight"], rows), "the output layer is the target's"
    batch = text(target)
    assert isinstance(student.module, Eagle3Head)
    again = PublishedDrafter.load(tmp_path / "again").head.float()
    for mine, its in zip(student.module.state_dict().values(), again.state_dict().values(), strict=True):
        assert torch.equal(mine, its)
    assert student.measure(batch).overlap[0] > 0
    llm = outrider.load(target.name, draft=str(out), dtype="float32")
    plain = outrider.load(target.name, draft=None, dtype="float32")
    for options in ({}, {"temperature": 1.0, "coupling": "gumbel", "seed": 3}):
        found, expected = (each.generate("the thin the", max_new_tokens=20, **options) for each in (llm, plain))
        assert found.tokens == expected.tokens and found.stats.drafted > 0 and found.stats.drafter_error is None


def test_a_head_for_another_target_is_refused(target: loading.Loaded, tmp_path: Path) -> None:
    """Its sizes fit, and its states would be another model's: what is trained here knows its target."""
    distill(target, tmp_path / "draft", EAGLE3)
    other = library.save_llama(tmp_path / "other", seed=5)
    with pytest.raises(BadOption, match="was trained for another target than"):
        outrider.load(str(other), draft=str(tmp_path / "draft"), dtype="float32")


@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"reads": (0, 2)}, r"reads names layers \[2\]: a head reads behind 0 to 1 layers of this target"),
        ({"size": "wide"}, "size of a head is its inner width, got 'wide'"),
    ],
)
def test_shapes_that_cannot_be(given: dict[str, Any], says: str, target: loading.Loaded) -> None:
    with pytest.raises(BadOption, match=says):
        make_student(target, replace(EAGLE3, **given), TOKENS)


@pytest.mark.filterwarnings("ignore:.*was made for a/target")
@pytest.mark.parametrize(
    ("given", "says"),
    [
        ({"vocab": 40}, "has an output layer for its own tokens: leave out --vocab 40, or --from"),
        ({"vocab": None, "size": "8"}, "size of the head in .* is 48, not 8: it goes on with the shape it has"),
        ({"vocab": None, "blocks": 3}, "blocks of the head in .* is 1, not 3"),
        ({"vocab": None, "reads": (1,)}, r"reads of the head in .* is \(0, 1\), not \(1,\)"),
    ],
)
def test_what_it_cannot_go_on_from(given: dict[str, Any], says: str, target: loading.Loaded, tmp_path: Path) -> None:
    """A published head has its shape, and its output layer its tokens."""
    tokens = torch.arange(eagle_heads.TOKENS)
    marked = torch.zeros(library.ROWS, dtype=torch.bool).index_fill_(0, tokens, True)
    weights = eagle_heads.tensors(embedding=1) | {"d2t": tokens - tokens, "t2d": marked}
    weights["embed_tokens.weight"] = torch.randn(library.ROWS, eagle_heads.SIZE)
    eagle_heads.saved(tmp_path, eagle_heads.speculators_config({"vocab_size": library.ROWS}), weights)
    student, _ = make_student(target, replace(EAGLE3, start=str(tmp_path), vocab=None), tokens)
    assert isinstance(student, Eagle3Student) and student.head.own_embedding is not None
    assert student.measure(text(target)).overlap, "its own embeddings are read"
    with pytest.raises(BadOption, match=says):
        make_student(target, replace(EAGLE3, start=str(tmp_path), **given), tokens)


@pytest.mark.filterwarnings("ignore:.*was made for a/target")
def test_only_eagle3_heads_are_trained_on(target: loading.Loaded, tmp_path: Path) -> None:
    config = block_heads.config("dflash", {"vocab_size": library.ROWS}, draft_vocab_size=library.ROWS)
    eagle_heads.saved(tmp_path / "block", config, block_heads.tensors(config, rows=library.ROWS))
    plan = replace(EAGLE3, start=str(tmp_path / "block"), vocab=None)
    with pytest.raises(OutriderError, match="is of kind DFlash; EAGLE-3 heads are trained here"):
        make_student(target, plan, TOKENS)
    with pytest.raises(BadOption, match="there is no EAGLE-3 head in .*, and --kind eagle3 goes on from no other"):
        make_student(target, replace(plan, start=target.name), TOKENS)
    with pytest.raises(BadOption, match="is of another architecture than --kind feature: EAGLE-3 heads are"):
        make_student(target, replace(plan, kind="feature"), TOKENS)
    with pytest.raises(BadOption, match="EAGLE-3 heads attend to the text: leave out --no-attention"):
        replace(EAGLE3, attention=False)
