"""The recipes for pairs trained from scratch: their parts, and whole runs with tiny models on text made here."""

from __future__ import annotations

import gzip
import importlib
import json
import lzma
import tarfile
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pretrain
import pytest
import torch
import transformers
from clocks import ticking
from pretrain import Blocks, Effort, Pairs, Ragged, Trunk, Written
from torch.nn import functional as F

import outrider
from outrider.drafters.ngram import Ngram, NgramTable
from outrider.errors import BadOption, OutriderError
from outrider.runtime import timer
from outrider.training.objectives import OBJECTIVES

CPU = torch.device("cpu")

NOUNS = ["cat", "dog", "house", "river", "tree", "king", "ship", "stone"]
DE = {"the": "der", "sees": "sieht", "and": "und", "cat": "Kater", "dog": "Hund", "house": "Hof", "river": "Fluss",
      "tree": "Baum", "king": "König", "ship": "Kahn", "stone": "Stein"}  # fmt: skip


def sentences(count: int, seed: int) -> list[str]:
    random = np.random.default_rng(seed)
    clause = lambda: f"the {random.choice(NOUNS)} sees the {random.choice(NOUNS)}"  # noqa: E731
    return [" and ".join(clause() for _ in range(random.integers(1, 4))) for _ in range(count)]


@pytest.fixture(scope="module")
def data(tmp_path_factory: pytest.TempPathFactory) -> dict[str, str]:
    folder = tmp_path_factory.mktemp("data")
    prose = "\n\n".join("\n".join(f"{s}." for s in sentences(10, i)) for i in range(60))
    with lzma.open(folder / "prose.txt.xz", "wt", encoding="utf-8") as file:
        file.write(prose)
    for name, count, seed in (("pairs", 300, 1), ("test", 20, 2)):
        with gzip.open(folder / f"{name}.en-de.tsv.gz", "wt", encoding="utf-8") as file:
            file.writelines(f"{s}\t{' '.join(DE[w] for w in s.split())}\n" for s in sentences(count, seed))
    (folder / "empty.txt").write_text("\n\n", encoding="utf-8")
    return {p.name.split(".")[0]: str(p) for p in folder.iterdir()}


@pytest.fixture
def recipe() -> Any:
    return importlib.import_module


GPT = [
    "--small", "--vocab", "300", "--target-size", "32x64x2x2", "--draft-size", "16x32x1x2", "--block", "32", "--rows",
    "8", "--steps", "12", "--draft-steps", "8", "--warmup", "4", "--alpha-tokens", "200", "--device", "cpu",
]  # fmt: skip
T5 = [
    "--vocab", "300", "--target-size", "32x32x1+1x2", "--draft-size", "16x16x1+1x2", "--positions", "512", "--steps",
    "12", "--draft-steps", "8", "--warmup", "4", "--generated", "40", "--alpha-tokens", "150", "--device", "cpu",
    "--no-bleu",
]  # fmt: skip


def weights(folder: Path) -> dict[str, bytes]:
    return {n: (folder / n / "model.safetensors").read_bytes() for n in ("target", "draft")}


def killed_at(monkeypatch: pytest.MonkeyPatch, start: str) -> Any:
    """From now on the run dies at the first line of progress that begins so."""

    def say(line: str) -> None:
        if line.startswith(start):
            raise KeyboardInterrupt(line)

    monkeypatch.setattr("pretrain.loop.say", say)


@pytest.mark.parametrize("kind", ["gpt", "t5"])
def test_a_killed_run_resumes_to_the_same_pair_and_the_pair_works(
    kind: str, data: dict[str, str], tmp_path: Path, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    main = recipe("gpt_pair" if kind == "gpt" else "ende_pair").main
    given = ["--data", data["prose"], *GPT] if kind == "gpt" else ["--data", data["pairs"], "--test", data["test"], *T5]
    main([*given, "--out", str(tmp_path / "whole")])

    broken = [*given, "--checkpoint-seconds", "0", "--out", str(tmp_path / "broken")]
    if kind == "gpt":
        main([*broken, "--prepare"])
    for death in ("target: step 5 ", "draft: step 6 "):
        with monkeypatch.context() as patch:
            killed_at(patch, death)
            with pytest.raises(KeyboardInterrupt, match=death):
                main([*broken, "--resume"])
    with pytest.raises(BadOption, match="--resume"):
        main(broken)
    with pytest.raises(BadOption, match=r"other settings \(seed\)"):
        main([*broken, "--resume", "--seed", "3"])
    main([*broken, "--resume"])
    assert weights(tmp_path / "whole") == weights(tmp_path / "broken")
    check_pair(tmp_path / "whole", seq2seq=kind == "t5")


def check_pair(out: Path, seq2seq: bool) -> None:
    results = json.loads((out / "results.json").read_text(encoding="utf-8"))
    rows = [r for r in results["alpha"] if r["on"] == results["alpha"][0]["on"]]
    assert [(r["draft"], r["temperature"]) for r in rows] == [
        (draft, t) for t in (0, 1) for draft in ("unigram", "bigram", "draft")
    ]
    assert all(0 <= r["alpha"] <= 1 and r["tokens"] > 50 for r in rows)
    card = (out / "README.md").read_text(encoding="utf-8")
    assert results["command"] in card and f"{results['target']['parameters']:,}" in card
    with tarfile.open(out / "pair.tar") as tar:
        names = set(tar.getnames())
    assert {"target/model.safetensors", "draft/tokenizer.json", "bigram.safetensors", "results.json"} <= names
    assert not {"target.pt", "draft.pt"} & {p.name for p in (out / "training").iterdir()}  # checkpoints are gone

    plain = outrider.load(str(out / "target"), draft=None, device="cpu", dtype="float32")
    pair = outrider.load(str(out / "target"), draft=str(out / "draft"), device="cpu", dtype="float32")
    table = Ngram(NgramTable.load(out / "bigram.safetensors"))
    prompt = "the cat sees the dog"
    expected = plain.generate(prompt, max_new_tokens=8).tokens
    assert pair.generate(prompt, max_new_tokens=8).tokens == expected
    assert outrider.load(str(out / "target"), draft=table, dtype="float32").generate(
        prompt, max_new_tokens=8
    ).tokens == expected  # fmt: skip
    check_as_a_pair(out, expected)
    kind: Any = transformers.AutoModelForSeq2SeqLM if seq2seq else transformers.AutoModelForCausalLM
    model = kind.from_pretrained(out / "target", dtype="auto")
    assert model.dtype == torch.bfloat16
    end = plain.tokenizer.eos_token_id
    assert model.generation_config.eos_token_id == end and plain.tokenizer.pad_token_id is not None
    assert plain.decode(plain.tokenizer.encode("Grüße, „Welt“!")) == "Grüße, „Welt“!"
    assert (plain.tokenizer.encode("the")[-1] == end) == seq2seq


def check_as_a_pair(out: Path, expected: list[int]) -> None:
    """The directory by itself is the target with its draft; as a draft it is the draft."""
    for llm in (
        outrider.load(str(out), dtype="float32"),
        outrider.load(str(out / "target"), str(out), dtype="float32"),
    ):
        assert llm.drafter.name == f"{out.name} draft"
        output = llm.generate("the cat sees the dog", max_new_tokens=8)
        assert output.tokens == expected and output.stats.drafted > 0 and output.stats.drafter_error is None


def test_bleu_without_sacrebleu_is_refused_before_training(
    data: dict[str, str], tmp_path: Path, recipe: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Catches a training run that ends without the figure it was made for."""
    module = recipe("ende_pair")
    monkeypatch.setattr(module, "find_spec", lambda name: None)
    given = ["--data", data["pairs"], "--test", data["test"], *T5, "--out", str(tmp_path / "new")]
    given.remove("--no-bleu")
    with pytest.raises(BadOption, match="pip install sacrebleu"):
        module.main(given)
    assert not (tmp_path / "new").exists()


def test_mistakes_are_told_and_nothing_is_overwritten(data: dict[str, str], tmp_path: Path, recipe: Any) -> None:
    gpt, ende = recipe("gpt_pair").main, recipe("ende_pair").main
    out = ["--out", str(tmp_path / "new")]
    with pytest.raises(OutriderError, match="nowhere.txt does not exist"):
        gpt(["--data", "nowhere.txt", *GPT, *out])
    with pytest.raises(BadOption, match=r"size must look like .* 256x512x5\+4x4"):
        ende(["--data", data["pairs"], "--test", data["test"], *out, "--target-size", "12", "--no-bleu"])
    assert not (tmp_path / "new").exists()
    with pytest.raises(BadOption, match="empty"):
        gpt(["--data", data["empty"], *GPT, *out])
    with pytest.raises(BadOption, match="empty"):
        ende(["--data", data["empty"], "--test", data["test"], *T5, "--out", str(tmp_path / "other")])
    kept = tmp_path / "kept"
    kept.mkdir()
    (kept / "mine.txt").write_text("mine", encoding="utf-8")
    with pytest.raises(BadOption, match="exists and is not empty"):
        gpt(["--data", data["prose"], *GPT, "--out", str(kept)])
    assert [p.name for p in kept.iterdir()] == ["mine.txt"]


# --- parts -------------------------------------------------------------------------------------------


class Tiny(torch.nn.Module):
    """Called like a causal model of transformers."""

    def __init__(self, vocab: int, size: int) -> None:
        super().__init__()
        self.embedding = torch.nn.Embedding(vocab, size)
        self.output = torch.nn.Linear(size, vocab, bias=False)

    def get_output_embeddings(self) -> torch.nn.Linear:
        return self.output

    def forward(self, input_ids: torch.Tensor, use_cache: bool = False) -> Any:
        return SimpleNamespace(logits=self.output(self.embedding(input_ids).tanh()))


def test_the_loss_in_pieces_is_the_loss_with_its_gradients() -> None:
    torch.manual_seed(1)
    states, weight = torch.randn(37, 8), torch.randn(50, 8)
    labels = torch.randint(0, 50, (37,))
    labels[::5] = pretrain.IGNORED
    told = torch.randn(37, 50).softmax(-1)
    losses = {
        "cross-entropy": lambda x, r: F.cross_entropy(x, labels[r], reduction="sum", label_smoothing=0.1),
        **{n: lambda x, r, f=f: f(x, told[r], labels[r]).sum() for n, f in OBJECTIVES.items()},
    }
    for name, loss in losses.items():
        found = []
        for pieces in (False, True):
            s, w = states.clone().requires_grad_(), weight.clone().requires_grad_()
            value = pretrain.in_pieces(s, w, loss, rows=10) if pieces else loss(s @ w.t(), slice(None))
            (value * 3).backward()
            found.append((value.detach(), s.grad, w.grad))
        for plain, piecewise in zip(*found, strict=True):
            torch.testing.assert_close(plain, piecewise, msg=name)


def test_counted_tables_are_the_tables_that_are_fitted() -> None:
    stream = torch.randint(0, 40, (4000,), generator=torch.Generator().manual_seed(0)) ** 2 % 61
    unigram, bigram = pretrain.count_tables(stream, 64)
    fitted = NgramTable.fit([stream.tolist()], 64, order=2)
    assert torch.equal(unigram.unigram, fitted.unigram) and unigram.order == 1
    every = torch.arange(64)
    torch.testing.assert_close(pretrain.table_weights(bigram, every), pretrain.table_weights(fitted, every))
    torch.testing.assert_close(pretrain.table_weights(unigram, every), fitted.unigram.expand(64, -1))


def test_each_pass_has_every_pair_once_with_little_padding() -> None:
    random = np.random.default_rng(0)
    lengths = random.integers(3, 60, 500)
    sources = Ragged.of([np.full(n, i + 1) for i, n in enumerate(lengths)], CPU)
    targets = Ragged.of([np.full(max(1, n + random.integers(-2, 3)), i + 1) for i, n in enumerate(lengths)], CPU)
    pairs, again = (Pairs(sources, targets, start=0, padding=0, budget=1024, seed=4) for _ in range(2))
    batches = list(pairs.in_order())
    for step, batch in enumerate(batches):
        assert torch.equal(again.batch(step).labels, pairs.batch(step).labels)
        source, told = batch.inputs["input_ids"], batch.inputs["decoder_input_ids"]
        assert source.numel() + told.numel() <= 1024
        assert torch.equal(batch.labels[:, 0], source[:, 0]) and torch.equal(told[:, 1:2], source[:, :1])
        assert batch.tokens == int((batch.labels != pretrain.IGNORED).sum())
        assert torch.equal(batch.inputs["attention_mask"] == 1, source != 0) and not told[:, 0].any()
    later, first = pairs.batch(len(batches)).labels, pairs.batch(0).labels
    assert torch.equal(first, batches[0].labels) and not torch.equal(later, first)
    seen = torch.cat([b.labels[:, 0] for b in batches])
    assert torch.equal(seen.sort().values, torch.arange(1, 501))
    assert sum(b.tokens for b in batches) / sum(b.labels.numel() for b in batches) > 0.85


def test_a_run_by_the_clock_ends_in_time(tmp_path: Path) -> None:
    """By a clock of the test's own, on which every look takes five milliseconds."""
    torch.manual_seed(0)
    model = Tiny(20, 8)
    trunk = Trunk(model)
    blocks = Blocks(torch.arange(4000) % 20, 16, 4, seed=0)
    effort = Effort(0.05, seconds=1.5)
    with timer.using(ticking(lambda n: 0.005 * n)):
        last = pretrain.fit(
            model, lambda b: pretrain.cross_entropy(trunk, b), blocks, effort, tmp_path / "c.pt", "tiny"
        )
    assert 1.4 < last.seconds < 1.6 and last.step == last.steps and last.steps > 250
    assert last.loss < 1.5  # on average over the run; it began at 3


def test_the_rate_rises_holds_and_falls() -> None:
    effort = Effort(1.0, seconds=10, warmup=10)
    assert effort.rate_at(0, 0, None) == 0.1 and effort.rate_at(50, 0, None) == 1.0
    assert effort.rate_at(60, 60, 160) == 1.0 and effort.rate_at(110, 60, 160) == pytest.approx(0.51)
    assert effort.rate_at(159, 60, 160) < 0.03


@pytest.mark.parametrize("temperature", [0, 1])
def test_acceptance_is_the_mean_overlap_up_to_the_end(temperature: int) -> None:
    torch.manual_seed(3)
    target, draft = Tiny(12, 6), Tiny(12, 6)
    tokens = torch.randint(2, 12, (5, 9))
    tokens[2, 5:] = 1
    text = Written(tokens, 3)
    rates = pretrain.acceptance(target, {"draft": draft, "target": target}, [text], temperature, end=1)
    assert rates["target"].alpha == pytest.approx(1, abs=1e-6)
    shared = []
    for row in range(5):
        for place in range(3, 9 if row != 2 else 6):
            p, q = (m(tokens[row, place - 1]).logits.softmax(-1).detach() for m in (target, draft))
            shared.append(float(torch.minimum(p, q).sum()) if temperature else float(p.argmax() == q.argmax()))
    assert rates["draft"].tokens == len(shared)
    assert rates["draft"].alpha == pytest.approx(sum(shared) / len(shared), abs=1e-5)
