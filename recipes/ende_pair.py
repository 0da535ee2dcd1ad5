"""An English-German pair of T5's architecture, trained from scratch: at most 25 MB for target, draft and tokenizer.

    python recipes/ende_pair.py --data tatoeba.train.en-de.tsv.gz news.train.en-de.tsv.gz technical.train.en-de.tsv.gz \
        --test tatoeba.test.en-de.tsv.gz news.test.en-de.tsv.gz --out DIR

Data: a line is English TAB German. The target learns the translations (with dropout and label smoothing); the draft
learns the target's probabilities on the same pairs and on translations the target wrote itself (``--generated``),
half of them greedily and half at temperature 1, for those are the texts a draft must guess.
"""

from __future__ import annotations

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

import math
from collections.abc import Sequence
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import numpy as np
import pretrain
import torch
from common import Run, arguments, fast_tokenizer, guarded
from pretrain import Pairs, Ragged, Written, cross_entropy, from_teacher
from transformers import AutoModelForSeq2SeqLM, T5Config, T5ForConditionalGeneration

from outrider.errors import require
from outrider.training.data import open_text
from outrider.training.objectives import OBJECTIVES
from outrider.training.student_models import DraftSize

PAD, END = "<pad>", "</s>"
PADDING, STOP = 0, 1  # their ids; as with every T5, padding also begins the output

PAPER = {
    ("unigram", 0): 0.08,
    ("bigram", 0): 0.20,
    ("draft", 0): 0.75,
    ("unigram", 1): 0.07,
    ("bigram", 1): 0.19,
    ("draft", 1): 0.62,
}
"""Table 3, T5-XXL (EnDe); the draft's row is T5-small's."""


def build(size: DraftSize, vocab: int, dropout: float) -> T5ForConditionalGeneration:
    model = T5ForConditionalGeneration(
        T5Config(
            vocab_size=vocab, d_model=size.dim, d_ff=size.inner, d_kv=size.dim // size.heads, num_heads=size.heads,
            num_layers=size.encoder or size.layers, num_decoder_layers=size.layers,
            feed_forward_proj="gated-gelu_pytorch_tanh", dropout_rate=dropout,
            pad_token_id=PADDING, eos_token_id=STOP, decoder_start_token_id=PADDING,
        )
    )  # fmt: skip
    model.set_attn_implementation("eager")  # short sentences with a learnt bias on every score: nothing to fuse
    config = model.generation_config
    config.pad_token_id, config.eos_token_id, config.decoder_start_token_id = PADDING, STOP, PADDING
    return model


def scale(size: DraftSize) -> Any:
    """Factors that give Adam the usual parametrisation of a transformer.

    T5 keeps the embeddings sqrt(width) larger (its output layer divides by that) and the queries sqrt(head width)
    smaller (its attention does not divide), but Adam's steps know nothing of sizes.
    """

    def of(name: str) -> float:
        if name.endswith(".q.weight"):
            return float((size.dim // size.heads) ** -0.5)
        return math.sqrt(size.dim) if name == "shared.weight" else 1.0

    return of


def read_pairs(names: Sequence[str]) -> list[tuple[str, str]]:
    pairs = []
    for name in names:
        with open_text(Path(name)) as file:
            for line in file:
                parts = [p.strip() for p in line.rstrip("\n").split("\t")]
                if len(parts) >= 2 and parts[0] and parts[1]:
                    pairs.append((parts[0], parts[1]))
    require(len(pairs) > 0, f"the data is empty: no line of English TAB German in {', '.join(names)}")
    return pairs


class Sentences:
    """Sources and targets as tokens, each with an end."""

    def __init__(self, pairs: Sequence[tuple[str, str]], tokenizer: Any, device: torch.device) -> None:
        self.pairs = pairs
        self.sources, self.targets = (
            Ragged.of(pretrain.encode(tokenizer, [p[i] for p in pairs], special=True), device) for i in (0, 1)
        )

    def up_to(self, longest: int) -> tuple[Ragged, Ragged]:
        short = np.flatnonzero(np.maximum(self.sources.sizes, self.targets.sizes) <= longest)
        require(len(short) > 0, f"no pair of at most {longest} tokens; raise --longest")
        return self.sources.select(short), self.targets.select(short)


def translate(model: Any, sources: Ragged, index: np.ndarray, temperature: float, seed: int) -> Written:
    """The model's translations of some sources, all at a time."""
    chosen = torch.from_numpy(index).to(sources.flat.device)
    wide = int(sources.sizes[index].max())
    source = sources.rows(chosen, wide, PADDING)
    present = (torch.arange(wide, device=source.device) < sources.lengths[chosen, None]).long()
    begin = Written(source.new_full((len(index), 1), PADDING), 1, source, present)
    return pretrain.write(model, begin, min(200, 2 * wide + 16), temperature, STOP, PADDING, seed)


def own_translations(run: Run, target: Any, sources: Ragged, count: int, rows: int = 2048) -> tuple[Ragged, Ragged]:
    """Translations the target writes itself, half at t=0 and half at t=1; kept, so that a resumed run has the same."""
    path = run.work / "generated.pt"
    if not path.is_file():
        picked = np.random.default_rng([run.options.seed, 77]).permutation(len(sources))[:count]
        indices, flats, sizes = [], [], []
        for temperature, half in enumerate(np.array_split(picked, 2)):
            half = half[np.argsort(sources.sizes[half], kind="stable")]
            for start in range(0, len(half), rows):
                index = half[start : start + rows]
                written = translate(target, sources, index, float(temperature), run.options.seed + start)
                counts = written.counts(STOP)
                flats.append(written.tokens[:, 1:][counts].cpu())
                sizes.append(counts.sum(1).cpu())
                indices.append(torch.from_numpy(index))
                run.clock(f"the target writes its own translations: {sum(map(len, sizes)):,} of {len(picked):,}")
        torch.save({"index": torch.cat(indices), "flat": torch.cat(flats), "sizes": torch.cat(sizes)}, path)
    kept = torch.load(path, weights_only=True)
    rows_of = np.split(kept["flat"].numpy(), np.cumsum(kept["sizes"].numpy())[:-1])
    return sources.select(kept["index"].numpy()), Ragged.of(rows_of, run.device)


def main(argv: Sequence[str]) -> None:
    parser = arguments(__doc__.splitlines()[0], seconds=150, draft_seconds=60)
    add = parser.add_argument
    add("--test", nargs="+", required=True, metavar="FILE", help="held-out pairs, each file measured by itself")
    add("--target-size", default="256x512x5+4x4", help="width x inner width x encoder+decoder layers x heads")
    add("--draft-size", default="128x384x2+1x4", help="the same for the draft")
    add("--positions", type=int, default=65536, help="source and target positions per step")
    add("--longest", type=int, default=128, help="leave out training pairs with more tokens than this")
    add("--dropout", type=float, default=0.1, help="of the target; the draft has none")
    add("--label-smoothing", type=float, default=0.05, help="of the target; more blurs what it says at temperature 1")
    add("--generated", type=int, default=120_000, help="translations by the target for the draft to learn from as well")
    add("--no-bleu", action="store_true", help="do without sacrebleu; the translations are kept in training/")
    options = parser.parse_args(argv)
    require(
        options.no_bleu or find_spec("sacrebleu") is not None,
        "BLEU needs sacrebleu, which is not installed: pip install sacrebleu, or do without by --no-bleu",
    )
    options.vocab = 8192 if options.vocab is None else options.vocab
    sizes = DraftSize.parse(options.target_size), DraftSize.parse(options.draft_size)
    run = Run(options, Path(__file__).name, argv)

    pairs = read_pairs(options.data)
    tests = {Path(name).name.split(".en-de")[0]: read_pairs([name]) for name in options.test}
    run.clock(f"{len(pairs):,} pairs, {', '.join(f'{len(t):,} in {n}' for n, t in tests.items())}")
    every = max(1, len(pairs) // 100_000)
    tokenizer = run.tokenizer(
        lambda: pretrain.train_tokenizer(
            [text for pair in pairs[::every] for text in pair], options.vocab, [PAD, END], words_alike=True, end=END
        )
    )
    vocab = tokenizer.get_vocab_size()
    sentences = Sentences(pairs, tokenizer, run.device)
    sources, targets = sentences.up_to(options.longest)
    held_out = {name: Sentences(test, tokenizer, run.device) for name, test in tests.items()}
    run.results["tokens"] = {"sources": int(sources.sizes.sum()), "targets": int(targets.sizes.sum())}
    run.results["pairs"] = len(sources)
    run.clock(f"{len(sources):,} pairs kept, {sources.sizes.sum():,} and {targets.sizes.sum():,} tokens")
    every_target = sentences.targets
    begun = np.insert(every_target.flat.cpu().numpy(), every_target.starts.cpu().numpy(), PADDING)
    tables = run.tables(torch.from_numpy(begun).to(run.device), vocab, never=PADDING)
    saved = fast_tokenizer(tokenizer, eos_token=END, pad_token=PAD)
    shapes = {"start": PADDING, "padding": PADDING, "budget": options.positions}

    torch.manual_seed(options.seed)
    model = build(sizes[0], vocab, options.dropout)
    run.train(
        "target", model, saved, lambda trunk, batch: cross_entropy(trunk, batch, options.label_smoothing),
        Pairs(sources, targets, seed=options.seed, **shapes),
        run.effort(False, 2e-3, betas=(0.9, 0.98), decay=0.01), scale(sizes[0]),
    )  # fmt: skip
    target = run.load(AutoModelForSeq2SeqLM, "target").requires_grad_(False)
    if options.generated > 0 and not (run.out / "draft").is_dir():
        more = own_translations(run, target, sources, options.generated)
        sources, targets = sources.join(more[0]), targets.join(more[1])
    target.set_attn_implementation("eager")
    teacher = pretrain.Trunk(target)
    torch.manual_seed(options.seed + 1)
    model = build(sizes[1], vocab, 0.0)
    objective = OBJECTIVES[options.draft_objective]
    run.train(
        "draft", model, saved, lambda trunk, batch: from_teacher(trunk, teacher, batch, objective),
        Pairs(sources, targets, seed=options.seed + 1, **shapes),
        run.effort(True, 3e-3, betas=(0.9, 0.98), decay=0.01), scale(sizes[1]),
    )  # fmt: skip

    try:
        measure(run, tables, held_out, tokenizer)
    finally:
        about = (
            "An English-German target and draft of T5's architecture for speculative decoding, trained from scratch: "
            f"{options.target_size} and {options.draft_size} (width, inner width, encoder+decoder layers, heads), "
            f"gated GELU, {vocab} tokens. Give English, get German; no prefix is needed. The paper's rows are those of "
            "T5-XXL with T5-small on WMT: a far larger pair on other text, here for comparison only."
        )
        run.finish("English-German pair", about, ship=True)


def measure(run: Run, tables: dict[str, Any], held_out: dict[str, Sentences], tokenizer: Any) -> None:
    """Per test set: loss, BLEU of target, draft and of copying, and alpha on the target's own translations."""
    models = {name: run.load(AutoModelForSeq2SeqLM, name) for name in ("target", "draft")}
    for where, test in held_out.items():
        batches = Pairs(test.sources, test.targets, start=PADDING, padding=PADDING, budget=32768, seed=0)
        losses = {n: pretrain.held_out_loss(m, batches.in_order()) for n, m in models.items()}
        run.results.setdefault("held_out", {})[where] = losses
        run.clock(f"{where}: nats per token: target {losses['target']:.4f}, draft {losses['draft']:.4f}")
        texts = {n: texts_of(tokenizer, m, test.sources) for n, m in models.items()}
        texts["copy"] = [p[0] for p in test.pairs]
        if not run.options.no_bleu:
            scores = {n: bleu(t, [p[1] for p in test.pairs]) for n, t in texts.items()}
            run.results.setdefault("bleu", {})[where] = scores
            run.clock(f"{where}: BLEU {scores}")
        ours = zip(test.pairs, texts["target"], texts["draft"], strict=True)
        lines = ("\t".join([*pair, *both]) for pair, *both in ours)
        (run.work / f"translations.{where}.tsv").write_text("\n".join(lines) + "\n", encoding="utf-8")
        run.results.setdefault("examples", []).extend(
            f"{test.pairs[i][0]} -> {texts['target'][i]}" for i in range(min(5, len(test.pairs)))
        )
        written = {t: own_texts(run, models["target"], test.sources, t) for t in (0, 1)}
        run.alphas(where, models["target"], {**tables, "draft": models["draft"]}, written, STOP, PAPER)


def own_texts(run: Run, target: Any, sources: Ragged, temperature: int, rows: int = 256) -> list[Written]:
    """The target's translations of the first sources, until there are tokens enough to measure on."""
    texts: list[Written] = []
    tokens = 0
    for start in range(0, len(sources), rows):
        index = np.arange(start, min(len(sources), start + rows))
        texts.append(translate(target, sources, index, float(temperature), run.options.seed + start))
        tokens += int(texts[-1].counts(STOP).sum())
        if tokens >= run.options.alpha_tokens:
            break
    return texts


def texts_of(tokenizer: Any, model: Any, sources: Ragged, rows: int = 1024) -> list[str]:
    """Greedy translations of all sources, in their order."""
    order = np.argsort(sources.sizes, kind="stable")
    texts = [""] * len(sources)
    for start in range(0, len(order), rows):
        index = order[start : start + rows]
        written = translate(model, sources, index, 0.0, 0)
        for i, text in zip(index, tokenizer.decode_batch(written.tokens[:, 1:].tolist()), strict=True):
            texts[i] = " ".join(text.split())
    return texts


def bleu(texts: Sequence[str], references: Sequence[str]) -> float:
    import sacrebleu

    return round(sacrebleu.corpus_bleu(list(texts), [list(references)]).score, 2)


if __name__ == "__main__":
    guarded(main)
