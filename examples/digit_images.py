"""Speculative decoding of images: 8x8 digits, pixel by pixel, by the engine that decodes text.

    python examples/digit_images.py --out digits

trains a small Llama on scikit-learn's bundled digits (a class label as the prompt, then 64 pixels of 17 grey levels
as tokens), a one-layer Llama to draft for it and a table of neighbouring pixels to draft for that one. It then draws
digits plainly and speculatively, prints statistics and saves a picture. Needs scikit-learn and matplotlib
(pip install -e '.[examples]'); a minute or two on a CPU.
"""

from __future__ import annotations

import argparse
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import torch
from torch import Tensor
from transformers import LlamaConfig, LlamaForCausalLM

from outrider import (
    Cascade,
    Decoder,
    Draft,
    Drafter,
    DraftSession,
    ModelDrafter,
    Nothing,
    Sampling,
    Stats,
    Trace,
    summarise,
)
from outrider.core.noise import Noise
from outrider.core.protocols import Session, Shape, Verifier
from outrider.core.verification.gumbel import gumbel_coupling
from outrider.core.verification.maximal import maximal_coupling
from outrider.decoding.loop import Request
from outrider.decoding.stopping import Stopping
from outrider.drafters.base import ContextSession
from outrider.models.transformers.model import HuggingFaceModel

SIDE, GREYS, CLASSES = 8, 17, 10
PIXELS = SIDE * SIDE
VOCAB = GREYS + CLASSES  # tokens 0..16 are grey levels, 17..26 the labels a prompt consists of


@dataclass(frozen=True)
class Size:
    layers: int
    width: int
    heads: int


TARGET, DRAFT = Size(8, 64, 4), Size(1, 48, 4)


def load_images() -> Tensor:
    """Every digit as a sequence: its label, then its pixels line by line -> [1797, 65]."""
    from sklearn.datasets import load_digits

    digits = load_digits()
    pixels = torch.tensor(digits.images, dtype=torch.int64).reshape(-1, PIXELS)
    labels = torch.tensor(digits.target, dtype=torch.int64)[:, None] + GREYS
    return torch.cat([labels, pixels], 1)


def train(size: Size, images: Tensor, seconds: float, steps: int | None = None) -> LlamaForCausalLM:
    """A Llama of this size, trained for a time or a number of steps; the learning rate falls to zero."""
    torch.manual_seed(0)
    config = LlamaConfig(
        vocab_size=VOCAB, hidden_size=size.width, intermediate_size=3 * size.width, num_hidden_layers=size.layers,
        num_attention_heads=size.heads, max_position_embeddings=PIXELS + 1, tie_word_embeddings=False,
        bos_token_id=None, eos_token_id=None, pad_token_id=None,
    )  # fmt: skip
    model = LlamaForCausalLM(config)
    optimiser = torch.optim.AdamW(model.parameters(), lr=0.0, weight_decay=0.05, betas=(0.9, 0.95))
    begin, step = time.monotonic(), 0
    while (done := step / steps if steps else (time.monotonic() - begin) / seconds) < 1:
        for group in optimiser.param_groups:
            group["lr"] = 4e-3 * min(1.0, (step + 1) / 20) * (1 - done)
        batch = images[torch.randint(len(images), (32,))]
        loss = torch.nn.functional.cross_entropy(model(batch[:, :-1]).logits.flatten(0, 1), batch[:, 1:].flatten())
        optimiser.zero_grad()
        loss.backward()
        torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
        optimiser.step()
        step += 1
    print(f"{size.layers} layers of {size.width}: {step} steps, loss {loss.item():.3f} nats per pixel", flush=True)
    return model.eval()


def trained(folder: Path, size: Size, images: Tensor, seconds: float, steps: int | None) -> HuggingFaceModel:
    """The model in this folder, trained first if there is none."""
    if not (folder / "config.json").is_file():
        train(size, images, seconds, steps).save_pretrained(folder)
    return HuggingFaceModel(LlamaForCausalLM.from_pretrained(folder))


class Neighbours:
    """Guesses the pixel that most often followed the ones to the left and above: point masses, no model at all."""

    name = "neighbours"

    def __init__(self, images: Tensor) -> None:
        pixels = images[:, 1:]
        left = torch.nn.functional.pad(pixels, (1, 0))[:, :PIXELS]
        above = torch.nn.functional.pad(pixels, (SIDE, 0))[:, :PIXELS]
        seen = (left * GREYS + above) * GREYS + pixels
        counts = torch.bincount(seen.flatten(), minlength=GREYS**3)
        self.best = counts.reshape(GREYS, GREYS, GREYS).argmax(-1)  # [left, above]

    def start(self, rows: int, shape: Shape, target: Session) -> DraftSession:
        return _NeighboursSession(self, rows, shape, target)


class _NeighboursSession(ContextSession):
    def __init__(self, drafter: Neighbours, rows: int, shape: Shape, target: Session) -> None:
        super().__init__(rows, shape, target)
        self.best = drafter.best.to(target.device)

    def propose(self, gamma: int, sampling: Sampling, noise: Noise, at: Tensor) -> Draft:
        gamma = min(gamma, SIDE)  # so far the pixels above are known
        context = self.context
        place = context.positions(gamma, offset=-SIDE)  # [B, G]
        above = context.tokens.gather(1, place.clamp(min=0))
        above = above * ((place > 0) & (above < GREYS))  # black above the first line
        last = context.read(context.lengths - 1, 1)[:, 0]
        last, tokens = last * (last < GREYS), []
        for k in range(gamma):
            last = self.best[last, above[:, k]]
            tokens.append(last)
        guesses = torch.stack(tokens, 1) if tokens else at[:, :0]
        return Draft(guesses, None, context.active[:, None].expand(-1, gamma))


@dataclass(frozen=True)
class Drawn:
    """Digits and how they came about."""

    pixels: Tensor  # [count, 64]
    stats: Stats


def draw_digits(
    model: HuggingFaceModel, drafter: Drafter, verifier: Verifier, gamma: int, *, count: int = CLASSES, seed: int = 0
) -> Drawn:
    """0, 1, 2... with every pixel sampled at temperature 1 from the model's distribution, one image at a time."""
    decoder = Decoder(model, drafter, verifier, Sampling(1.0), gamma, width=gamma + 1, slots=1)
    stopping = Stopping(max_new_tokens=PIXELS)
    requests = [Request((GREYS + i % CLASSES,), stopping, seed + i) for i in range(count)]
    trace = Trace(drafter.name, verifier.name)
    rows = {event.index: event.row for event in decoder.stream(requests, trace)}
    tokens = torch.tensor([rows[i].tokens for i in range(len(requests))])
    return Drawn(tokens * (tokens < GREYS), summarise(trace))  # a label among the pixels, if ever, is shown black


def compare(model: HuggingFaceModel, drafters: Sequence[tuple[Drafter, int]], count: int) -> list[Drawn]:
    """Plain decoding and every drafter in turn; the first image of each warms up and is not counted."""
    print(f"{'drafter':24} gamma  pixels/run  alpha  pixels/s  speed-up")
    results: list[Drawn] = []
    for drafter, gamma in [(Nothing(), 0), *drafters]:
        draw_digits(model, drafter, maximal_coupling, gamma, count=1, seed=99)
        results.append(draw_digits(model, drafter, maximal_coupling, gamma, count=count))
        s, plain = results[-1].stats, results[0].stats
        ratio = s.tokens_per_second / plain.tokens_per_second
        print(
            f"{drafter.name:24} {gamma:5d}  {s.tokens_per_run:10.2f}  {s.alpha:5.2f}  {s.tokens_per_second:8.0f}  "
            f"{ratio:8.2f}", flush=True,
        )  # fmt: skip
        for level in s.levels:
            print(f"  {level.drafter} for {level.model}: {level.tokens_per_run:.2f} pixels per run of {level.model}")
    return results


def picture(rows: Sequence[tuple[str, Tensor]], path: Path) -> None:
    """One line of ten digits per entry."""
    import matplotlib

    matplotlib.use("Agg")
    from matplotlib import pyplot

    figure, axes = pyplot.subplots(len(rows), CLASSES, figsize=(CLASSES, 1.25 * len(rows)), squeeze=False)
    for line, (title, pixels) in zip(axes, rows, strict=True):
        for axis in line:
            axis.set_axis_off()
        for axis, image in zip(line, pixels, strict=False):  # fewer images than places, or more
            axis.imshow(image.reshape(SIDE, SIDE), cmap="gray_r", vmin=0, vmax=GREYS - 1)
        line[0].set_title(title, loc="left", fontsize=9)
    figure.subplots_adjust(0.01, 0.01, 0.99, 0.93, hspace=0.35)
    figure.savefig(path, dpi=120)
    pyplot.close(figure)


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description="Digits, pixel by pixel, plainly and speculatively.")
    parser.add_argument("--out", type=Path, default=Path("digits"), help="folder for the picture and the two models")
    parser.add_argument("--seconds", type=float, default=60.0, help="training time of the target")
    parser.add_argument("--steps", type=int, help="training steps of both, instead of a time")
    parser.add_argument("--images", type=int, default=CLASSES, help="images per measurement")
    parser.add_argument("--more", action="store_true", help="measure other gammas and Algorithm 3 as well")
    options = parser.parse_args(arguments)
    images = load_images()
    target = trained(options.out / "target", TARGET, images, options.seconds, options.steps)
    small = ModelDrafter(trained(options.out / "draft", DRAFT, images, options.seconds / 3, options.steps), "one layer")
    table = Neighbours(images)
    cascade, gamma = Cascade(table, small, guesses=3), 6
    drafters: list[tuple[Drafter, int]] = [(table, 3), (small, 4), (cascade, gamma)]
    if options.more:
        once = Cascade(table, small, guesses=3, once=True)
        drafters += [(table, 2), (table, 5), (small, 2), (small, 6), (cascade, 4), (cascade, 8), (once, 6)]
    results = compare(target, drafters, options.images)
    plain = draw_digits(target, Nothing(), gumbel_coupling, 0, count=options.images)
    same = draw_digits(target, cascade, gumbel_coupling, gamma, count=options.images)
    assert torch.equal(plain.pixels, same.pixels), "with Gumbel coupling the images are the same, pixel by pixel"
    options.out.mkdir(parents=True, exist_ok=True)
    lines = [
        ("from the data set", torch.stack([images[images[:, 0] == GREYS + c][0, 1:] for c in range(CLASSES)])),
        ("plain decoding, one run per pixel", results[0].pixels),
        (f"speculative, {cascade.name}, {results[3].stats.tokens_per_run:.1f} pixels per run", results[3].pixels),
        ("Gumbel coupling, same seed: plain", plain.pixels),
        (f"Gumbel coupling, same seed: {cascade.name}", same.pixels),
    ]
    picture(lines, options.out / "digits.png")
    print(f"Gumbel coupling: all {same.pixels.numel()} pixels as in plain decoding; see {options.out / 'digits.png'}")


if __name__ == "__main__":
    main()
