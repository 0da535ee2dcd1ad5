"""What a draft is distilled by: the kind, its size, the text and how long to train."""

from __future__ import annotations

from dataclasses import dataclass

from outrider.errors import require
from outrider.training.loop import Budget

KINDS = ("model", "feature", "block", "blockwise", "eagle3")


@dataclass(frozen=True)
class DistillPlan:
    """Everything that decides a draft."""

    kind: str = "feature"
    start: str | None = None  # heads: the directory of a draft to go on from, whose shape this one then has
    size: str | None = None  # model: 256x1024x2x4 (2+1 layers: encoder+decoder); heads: the inner width
    layers: str = ""  # model: start from these layers of the target (0,15,29 or 0,3+0) instead of from scratch
    data: tuple[str, ...] = ()  # text files, for an encoder-decoder sources and targets; none: the target writes
    prompts: tuple[str, ...] = ()  # files of prompts, or sources, for the target to answer
    text: str | None = None  # the training/text.safetensors of another run, to train on the same text
    vocab: int | None = None  # tokens the draft can write, 0: all; None: those of ``start``, or 8192
    text_tokens: int = 2_000_000  # of text to gather
    block: int = 512
    depth: int = 5  # heads: guesses trained in a row
    blocks: int | None = None  # feature, block and EAGLE-3 head: layers; None: 1
    reads: tuple[int, ...] | None = None  # as blocks: layers of the target it reads beside the last; None: two of them
    # (EAGLE-3: all that it reads; None: three of them)
    attention: bool = True  # feature and block head: look back over the text
    rank: int | None = None  # block head: numbers in the corrector's state; None: 128
    generate_batch: int = 64
    temperatures: tuple[float, ...] = (0.0, 1.0)  # at which the target writes, in turn
    seconds: float | None = None  # of writing, which gets half of them at most, and of training
    budget: Budget = Budget(tokens=10_000_000)

    def __post_init__(self) -> None:
        require(self.kind in KINDS, f"kind must be one of {', '.join(KINDS)}, got {self.kind!r}")
        require(self.vocab is None or self.vocab >= 0, f"vocab must be positive, or 0 for all, got {self.vocab}")
        require(self.blocks is None or self.blocks >= 1, f"blocks must be at least 1, got {self.blocks}")
        good = len(self.temperatures) > 0 and all(t >= 0 for t in self.temperatures)
        require(good, f"temperatures must be numbers of at least 0, got {self.temperatures}")
        require(self.rank is None or self.rank >= 1, f"rank must be at least 1, got {self.rank}")
        require(
            self.rank is None or self.kind == "block",
            f"rank is for --kind block: other drafts have no corrector; leave out --rank {self.rank}",
        )
        require(self.depth >= 1, f"depth must be at least 1, got {self.depth}")
        require(self.text_tokens >= 1, f"text_tokens must be at least 1, got {self.text_tokens}")
        require(self.block >= 2, f"block must be at least 2 tokens, got {self.block}")
        require(self.generate_batch >= 1, f"generate_batch must be at least 1, got {self.generate_batch}")
        require(self.seconds is None or self.seconds > 0, f"seconds must be above 0, got {self.seconds}")
        require(not self.layers or self.kind == "model", "layers are for --kind model: heads read the target itself")
        require(self.start is None or self.kind != "model", "only heads go on from another draft: leave out --from")
        require(self.attention or self.kind != "eagle3", "EAGLE-3 heads attend to the text: leave out --no-attention")
