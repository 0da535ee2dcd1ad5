"""The paper's own pair (Leviathan et al., section 4.2): a GPT-like target of 97M and draft of 6M, and Table 3's rows.

    python recipes/gpt_pair.py --data prose.txt.xz --test heldout.txt.gz --out DIR            # the pair of the paper
    python recipes/gpt_pair.py --data prose.txt.xz --test heldout.txt.gz --out DIR --small    # at most 10 MB

The models are GPT-2's of transformers: its layer norm, GELU and attention are one kernel each, where a Llama's norm
and rotary positions are a handful, which should make it the fastest to train without a compiler (counted, not timed).
With an input and an output matrix of their own, as the paper's sizes imply, the pair has 98.0M and 5.9M parameters,
learnt positions included; the small pair shares the two matrices.

The paper trains on lm1b, which is not to be had here: the numbers are measured on the text that is given.
The target learns the text; the draft learns the target's probabilities on it (``--draft-objective``).
"""

from __future__ import annotations

import os

os.environ.setdefault("TOKENIZERS_PARALLELISM", "true")

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pretrain
import torch
from common import Run, arguments, fast_tokenizer, guarded
from pretrain import Blocks, Written, cross_entropy, from_teacher
from tokenizers import Tokenizer
from transformers import AutoModelForCausalLM, GPT2Config, GPT2LMHeadModel

from outrider.errors import require
from outrider.training.data import documents
from outrider.training.objectives import OBJECTIVES
from outrider.training.student_models import DraftSize

END = "<|endoftext|>"

PAPER = {
    ("unigram", 0): 0.03,
    ("bigram", 0): 0.05,
    ("draft", 0): 0.88,
    ("unigram", 1): 0.03,
    ("bigram", 1): 0.05,
    ("draft", 1): 0.89,
}
"""Table 3, GPT-like (97M)."""

PRESETS: dict[bool, dict[str, Any]] = {
    False: {"vocab": 8192, "target_size": "768x3072x12x12", "draft_size": "256x1024x2x4", "rate": 1e-3},
    True: {"vocab": 4096, "target_size": "192x768x6x6", "draft_size": "96x384x2x3", "rate": 2e-3},
}
"""By --small: width, inner width, layers, heads."""


def build(size: DraftSize, vocab: int, positions: int, end: int, tied: bool) -> GPT2LMHeadModel:
    model = GPT2LMHeadModel(
        GPT2Config(
            vocab_size=vocab, n_positions=positions, n_embd=size.dim, n_inner=size.inner, n_layer=size.layers,
            n_head=size.heads, activation_function="gelu", resid_pdrop=0.0, embd_pdrop=0.0, attn_pdrop=0.0,
            bos_token_id=end, eos_token_id=end, tie_word_embeddings=tied,
        )
    )  # fmt: skip
    model.generation_config.eos_token_id = model.generation_config.pad_token_id = end
    return model


def main(argv: Sequence[str]) -> None:
    parser = arguments(__doc__.splitlines()[0], seconds=150, draft_seconds=45)
    add = parser.add_argument
    add("--small", action="store_true", help="the pair that is shipped: vocabulary 4096, at most 10 MB together")
    add("--test", nargs="+", metavar="FILE", help="held-out text; none: the last hundredth of the data")
    add("--target-size", help="width x inner width x layers x heads")
    add("--draft-size", help="the same for the draft")
    add("--block", type=int, default=512, help="tokens of text a model sees at once, and can ever hold")
    add("--rows", type=int, default=64, help="blocks of text per step")
    add("--characters", type=int, help="read no more of the data than this")
    add("--prepare", action="store_true", help="only turn the text into tokens; go on from there with --resume")
    add("--compile", action="store_true", help="torch.compile: a minute of compiling for longer runs than minutes")
    options = parser.parse_args(argv)
    for name, value in PRESETS[options.small].items():
        if getattr(options, name) is None:
            setattr(options, name, value)
    require(options.block >= 8, f"block must be at least 8, got {options.block}")
    sizes = DraftSize.parse(options.target_size), DraftSize.parse(options.draft_size)
    run = Run(options, Path(__file__).name, argv)

    text, unseen, tokenizer = prepare(run)
    end, vocab = tokenizer.token_to_id(END), tokenizer.get_vocab_size()
    run.results["tokens"] = {"training": len(text), "held out": len(unseen)}
    run.clock(f"{len(text):,} tokens to train on, {len(unseen):,} held out")
    if options.prepare:
        return
    blocks = Blocks(text, options.block, options.rows, options.seed)
    again = Blocks(text, options.block, options.rows, options.seed + 1)
    held_out = Blocks(unseen, options.block, 16, 0)
    tables = run.tables(text, vocab)
    saved = fast_tokenizer(tokenizer, eos_token=END, bos_token=END, pad_token=END)

    torch.manual_seed(options.seed)
    model = build(sizes[0], vocab, options.block, end, tied=options.small)
    run.train("target", model, saved, cross_entropy, blocks, run.effort(False, options.rate), compiled=options.compile)
    teacher = pretrain.Trunk(run.load(AutoModelForCausalLM, "target").requires_grad_(False))
    torch.manual_seed(options.seed + 1)
    model = build(sizes[1], vocab, options.block, end, tied=options.small)
    objective = OBJECTIVES[options.draft_objective]
    run.train(
        "draft", model, saved, lambda trunk, batch: from_teacher(trunk, teacher, batch, objective), again,
        run.effort(True, 2e-3),
    )  # fmt: skip

    try:
        measure(run, tables, held_out, unseen, end, tokenizer)
    finally:
        about = (
            "A GPT-like target and draft for speculative decoding, trained from scratch: "
            f"{options.target_size} and {options.draft_size} (width, inner width, layers, heads), GELU, "
            f"{vocab} tokens, texts of up to {options.block} tokens. "
            + ("A small variant of t" if options.small else "T")
            + "he pair of section 4.2 of Leviathan et al. (2023). The paper's rows were measured on lm1b with its own "
            "weights; these are for the text below."
        )
        run.finish("GPT-like pair" + (" (small)" if options.small else ""), about, ship=options.small)


def prepare(run: Run) -> tuple[torch.Tensor, torch.Tensor, Tokenizer]:
    """The text and the held-out text as streams of tokens, an end after every document; kept for a resumed run."""
    options, path = run.options, run.work / "tokens.pt"
    if not path.is_file():
        texts = list(documents(map(Path, options.data), options.characters))
        require(len(texts) > 0, f"the data is empty: no text in {', '.join(options.data)}")
        if options.test:
            held_out = list(documents(map(Path, options.test)))
            require(len(held_out) > 0, f"the test data is empty: no text in {', '.join(options.test)}")
        else:
            kept = max(1, len(texts) // 100)
            require(len(texts) > kept, "the data is one document only: give held-out text with --test")
            texts, held_out = texts[:-kept], texts[-kept:]
        characters = sum(map(len, texts))
        run.clock(f"{len(texts)} documents, {characters:,} characters")
        every = max(1, characters // 10_000_000)
        tokenizer = run.tokenizer(lambda: pretrain.train_tokenizer(texts[::every], options.vocab, [END]))
        streams = [stream(tokenizer, part) for part in (texts, held_out)]
        torch.save(streams, path.with_suffix(".tmp"))
        path.with_suffix(".tmp").replace(path)
    else:
        tokenizer = run.tokenizer(Tokenizer)  # which is there
    text, unseen = torch.load(path, weights_only=True)
    return text.to(run.device, torch.int64), unseen.to(run.device, torch.int64), tokenizer


def stream(tokenizer: Tokenizer, texts: Sequence[str]) -> torch.Tensor:
    end = [tokenizer.token_to_id(END)]
    rows = [part for row in pretrain.encode(tokenizer, texts) for part in (row, end)]
    return torch.from_numpy(np.concatenate(rows).astype(np.int32))


def measure(run: Run, tables: dict[str, Any], held_out: Blocks, unseen: torch.Tensor, end: int, tokenizer: Any) -> None:
    """Perplexities, and alpha on what the target writes after the beginnings of held-out stretches."""
    target, draft = (run.load(AutoModelForCausalLM, name) for name in ("target", "draft"))
    losses = {n: pretrain.held_out_loss(m, held_out.in_order()) for n, m in (("target", target), ("draft", draft))}
    run.results["held_out"] = {"held-out text": losses}
    run.clock(f"nats per held-out token: target {losses['target']:.4f}, draft {losses['draft']:.4f}")
    block, wanted = run.options.block, run.options.alpha_tokens
    given, new = min(32, block // 3), min(64, block - min(32, block // 3))
    rows = max(1, -(-wanted * 11 // (10 * new)))  # some end early
    starts = torch.linspace(0, max(0, len(unseen) - given - 1), rows, device=unseen.device).long()
    prompts = unseen[starts[:, None] + torch.arange(given, device=unseen.device)]
    texts = {
        t: [pretrain.write(target, Written(prompts, given), new, float(t), end, end, run.options.seed)] for t in (0, 1)
    }
    run.results["examples"] = [
        f"t={t}: {tokenizer.decode(texts[t][0].tokens[row].tolist())!r}" for t in texts for row in range(min(3, rows))
    ]
    run.clock(f"the target wrote {rows} texts of {new} tokens after {given} tokens of held-out text, at t=0 and t=1")
    run.alphas("after held-out text", target, {**tables, "draft": draft}, texts, end, PAPER)


if __name__ == "__main__":
    guarded(main)
