"""What both recipes share: the command line, the stages of a run, and the model card."""

from __future__ import annotations

import argparse
import json
import math
import platform
import shlex
import sys
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

import mistakes
import pretrain
import tokenizers
import torch
import transformers
from pretrain import Batch, Data, Effort, Trunk, say
from tokenizers import Tokenizer

from outrider.drafters.ngram import NgramTable
from outrider.errors import require
from outrider.models.hub.loading import choose_device
from outrider.training.objectives import OBJECTIVES

SHIPPED = ("target", "draft", "unigram.safetensors", "bigram.safetensors", "results.json", "README.md")

SOURCES = {
    "prose": "English prose: Wikipedia 2014 slice (CC BY-SA 3.0), ELTeC novels 1840-1920 (public domain), eLife "
    "articles (CC BY / CC0), MDN prose (CC BY-SA 2.5)",
    "heldout": "Wikipedia documents that are not in prose (CC BY-SA 3.0)",
    "wikitext2": "WikiText-2 (CC BY-SA)",
    "tatoeba": "Tatoeba sentences, English-German (CC BY 2.0 FR); the test set is from the Tatoeba Challenge",
    "news": "WMT news test sets and FLORES dev, English-German (free for research); WMT 13 is the test set",
    "technical": "Debian package descriptions, English-German (Debian translation project)",
}
"""Where the project's own data comes from, by the beginning of a file's name; other files are the user's."""


def arguments(description: str, seconds: float, draft_seconds: float) -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(description=description, formatter_class=argparse.ArgumentDefaultsHelpFormatter)
    add = parser.add_argument
    add("--data", nargs="+", required=True, metavar="FILE", help="what to train on, plain or packed (.gz, .xz)")
    add("--out", required=True, metavar="DIR", help="a new directory for the pair")
    add("--seconds", type=float, default=seconds, help="time to train the target")
    add("--draft-seconds", type=float, default=draft_seconds, help="time to train the draft")
    add("--steps", type=int, help="train the target for so many steps instead, which repeats to the bit on a CPU")
    add("--draft-steps", type=int, help="the same for the draft")
    add("--rate", type=float, help="highest learning rate of the target")
    add("--draft-rate", type=float, help="highest learning rate of the draft")
    add("--warmup", type=int, default=250, help="steps until that rate is reached")
    add("--draft-objective", choices=sorted(OBJECTIVES), default="kl", help="what the draft learns from the target")
    add("--vocab", type=int, help="tokens of the vocabulary")
    add("--alpha-tokens", type=int, default=10_000, help="tokens of the target's own to measure alpha on")
    add("--seed", type=int, default=0)
    add("--device", default="auto", help="auto, cpu, cuda")
    add("--checkpoint-seconds", type=float, default=60.0, help="how often to save what a kill must not lose")
    add("--resume", action="store_true", help="go on with the run in --out")
    return parser


class Run:
    """One run of a recipe: its settings, its directory, its device, and what it has found out so far."""

    def __init__(self, options: argparse.Namespace, script: str, argv: Sequence[str]) -> None:
        self.options, self.began = options, time.perf_counter()
        self.out = Path(options.out)
        settings = {
            k: v for k, v in vars(options).items() if k not in ("resume", "prepare", "device", "out", "no_bleu")
        }
        for name in [*options.data, *(options.test or ())]:
            require(Path(name).is_file(), f"data file {name} does not exist")
        self.device = torch.device(choose_device(options.device))
        self.work = pretrain.open_run(self.out, settings, options.resume)
        transformers.utils.logging.disable_progress_bar()
        if self.device.type == "cuda":
            torch.set_float32_matmul_precision("high")
        name = torch.cuda.get_device_name() if self.device.type == "cuda" else platform.processor() or "CPU"
        self.results: dict[str, Any] = {
            "command": shlex.join(
                ["python", f"recipes/{script}", *(a for a in argv if a not in ("--resume", "--prepare"))]
            ),
            "device": name,
            "versions": {m.__name__: m.__version__ for m in (torch, transformers, tokenizers)},
            "data": {Path(n).name: source_of(n) for n in [*options.data, *(options.test or ())]},
        }
        say(f"{script} on {name}, into {self.out}")

    def clock(self, what: str) -> None:
        say(f"[{time.perf_counter() - self.began:6.1f} s] {what}")

    def tokenizer(self, make: Callable[[], Tokenizer]) -> Tokenizer:
        """Trained once; a resumed run has the same."""
        path = self.work / "tokenizer.json"
        if not path.is_file():
            tokenizer = make()
            tokenizer.save(str(path.with_suffix(".tmp")), pretty=False)
            path.with_suffix(".tmp").replace(path)
        tokenizer = Tokenizer.from_file(str(path))
        self.results["vocabulary"] = tokenizer.get_vocab_size()
        self.clock(f"vocabulary of {tokenizer.get_vocab_size()} tokens")
        return tokenizer

    def effort(self, draft: bool, rate: float, **more: Any) -> Effort:
        options = self.options
        steps = options.draft_steps if draft else options.steps
        seconds = None if steps is not None else options.draft_seconds if draft else options.seconds
        chosen = options.draft_rate if draft else options.rate
        return Effort(
            rate=rate if chosen is None else chosen, seconds=seconds, steps=steps, warmup=options.warmup,
            seed=options.seed, save_every=options.checkpoint_seconds, **more,
        )  # fmt: skip

    def train(
        self,
        name: str,
        model: Any,
        tokenizer: Any,
        loss: Callable[[Trunk, Batch], torch.Tensor],
        data: Data,
        effort: Effort,
        scale: Callable[[str], float] = lambda _: 1.0,
        compiled: bool = False,
    ) -> None:
        """Train a model into its folder, unless an earlier run has done so."""
        note, checkpoint = self.work / f"{name}.json", self.work / f"{name}.pt"
        if not (self.out / name).is_dir():
            trunk = Trunk(model.to(self.device))
            if compiled:
                model.compile()
            parameters = sum(p.numel() for p in model.parameters())
            self.clock(f"{name}: {parameters:,} parameters")
            last = pretrain.fit(model, lambda b: loss(trunk, b), data, effort, checkpoint, name, scale)
            facts = {
                "parameters": parameters, "steps": last.steps, "seconds": round(last.seconds, 1),
                "tokens": last.tokens, "tokens_per_second": round(last.tokens / max(1e-9, last.seconds)),
                "loss": round(last.loss, 4),
            }  # fmt: skip
            note.write_text(json.dumps(facts, indent=2) + "\n", encoding="utf-8")
            pretrain.save_model(model, tokenizer, self.out / name)
            checkpoint.unlink()
        self.results[name] = json.loads(note.read_text(encoding="utf-8"))
        self.clock(f"{name}: in {self.out / name}")

    def load(self, kind: Any, name: str) -> Any:
        """As a user gets it: the weights that were saved, here in float32."""
        return kind.from_pretrained(self.out / name, dtype=torch.float32).to(self.device).eval()

    def tables(self, stream: torch.Tensor, vocab_size: int, never: int | None = None) -> dict[str, NgramTable]:
        tables = dict(zip(("unigram", "bigram"), pretrain.count_tables(stream, vocab_size, never), strict=True))
        for name, table in tables.items():
            table.save(self.out / f"{name}.safetensors")
        self.clock("unigram and bigram tables counted")
        return {name: table.to(self.device) for name, table in tables.items()}

    def alphas(
        self, where: str, target: Any, drafts: dict[str, Any], texts: dict[int, list[Any]], end: int, paper: Any
    ) -> None:
        """Table 3's rows, beside the paper's: ``texts`` are the target's own, by temperature."""
        for temperature, written in texts.items():
            rates = pretrain.acceptance(target, drafts, written, temperature, end)
            for name, rate in rates.items():
                known = paper.get((name, temperature))
                row = {
                    "on": where, "draft": name, "temperature": temperature, "alpha": round(rate.alpha, 4),
                    "error": round(rate.error, 4), "tokens": rate.tokens, "paper": known,
                }  # fmt: skip
                self.results.setdefault("alpha", []).append(row)
                self.clock(
                    f"{where}: alpha of {name} at t={temperature}: {rate.alpha:.3f} +- {rate.error:.3f} over "
                    f"{rate.tokens} tokens (paper {known})"
                )

    def finish(self, title: str, about: str, ship: bool) -> None:
        """Results and model card, and one tar of what is shipped."""
        self.results["bytes"] = {
            n: sum(f.stat().st_size for f in _files(self.out / n)) for n in SHIPPED[:4] if (self.out / n).exists()
        }
        (self.out / "results.json").write_text(json.dumps(self.results, indent=2) + "\n", encoding="utf-8")
        (self.out / "README.md").write_text(card(title, about, self.results), encoding="utf-8")
        if ship:
            for path in pretrain.pack(self.out, SHIPPED):
                self.clock(f"{path}: {path.stat().st_size:,} bytes")
        self.clock(f"done: {self.out}")


def _files(path: Path) -> Iterable[Path]:
    return [path] if path.is_file() else [f for f in path.rglob("*") if f.is_file()]


def source_of(name: str) -> str:
    base = Path(name).name
    return next((text for start, text in SOURCES.items() if base.startswith(start)), "the user's own file")


def fast_tokenizer(tokenizer: Tokenizer, **special: str) -> Any:
    """For transformers: AutoTokenizer loads what this saves."""
    return transformers.PreTrainedTokenizerFast(
        tokenizer_object=tokenizer, clean_up_tokenization_spaces=False, **special
    )


def card(title: str, about: str, results: dict[str, Any]) -> str:
    """The model card: everything in it is in results.json, and the command makes it again."""
    lines = [f"# {title}", "", about, "", "Made by:", "", "```sh", results["command"], "```", ""]
    versions = ", ".join(f"{k} {v}" for k, v in results["versions"].items())
    lines += [f"On {results['device']}, {versions}.", "", "## Data", ""]
    lines += [f"- `{name}`: {source}" for name, source in results["data"].items()]
    lines += ["", "## Models", "", "| | parameters | bytes | steps | tokens seen | training | last loss |"]
    lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
    for name in ("target", "draft"):
        if r := results.get(name):
            lines.append(
                f"| {name} | {r['parameters']:,} | {results['bytes'][name]:,} | {r['steps']} | {r['tokens']:,} | "
                f"{r['seconds']:.0f} s | {r['loss']} |"
            )
    lines += [
        "",
        f"Vocabulary: {results['vocabulary']} tokens, byte-level BPE. Weights in bfloat16 safetensors. The target's "
        "last loss is its training loss (with label smoothing where there is any); the draft's is its objective "
        "against the target.",
    ]
    if measured := results.get("held_out"):
        lines += [
            "",
            "## Held-out text",
            "",
            "| text | model | nats per token | perplexity |",
            "| --- | --- | --- | --- |",
        ]
        lines += [
            f"| {where} | {name} | {nats:.4f} | {math.exp(nats):.2f} |"
            for where, models in measured.items()
            for name, nats in models.items()
        ]
    if scores := results.get("bleu"):
        lines += ["", "## BLEU", "", "Greedy decoding, sacrebleu's default tokenisation.", ""]
        lines += ["| test set | target | draft | copying the source |", "| --- | --- | --- | --- |"]
        lines += [f"| {where} | {s['target']} | {s['draft']} | {s['copy']} |" for where, s in scores.items()]
    if rows := results.get("alpha"):
        lines += ["", "## Acceptance rate", ""]
        lines += ["alpha = E[sum-min(p, q)] over tokens the target wrote itself; at t=0 both are point masses.", ""]
        lines += ["| texts | draft | t | alpha | standard error | tokens | the paper's row |"]
        lines += ["| --- | --- | --- | --- | --- | --- | --- |"]
        lines += [
            f"| {r['on']} | {r['draft']} | {r['temperature']} | {r['alpha']:.3f} | {r['error']:.3f} | {r['tokens']} | "
            f"{r['paper']} |"
            for r in rows
        ]
    if examples := results.get("examples"):
        lines += ["", "## Examples", ""]
        lines += [f"- {e}" for e in examples]
    return "\n".join(lines) + "\n"


def guarded(main: Callable[[Sequence[str]], None]) -> None:
    """The command line: a mistake of the user's is one line, not a traceback."""
    mistakes.guarded(lambda: main(sys.argv[1:]))
