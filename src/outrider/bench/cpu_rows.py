"""Turns timings of engines into figures: totals over totals, medians, intervals, ratios, and which texts are equal."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from itertools import takewhile
from statistics import median, quantiles
from typing import Any

from outrider.bench.intervals import Interval, bootstrap, total_ratio
from outrider.trace import finite, ratio

OURS, OUR_PLAIN = "outrider speculative", "outrider plain"


@dataclass(frozen=True)
class EngineCell:
    """One text: its tokens, its seconds, and when how many of them came first."""

    tokens: tuple[int, ...]
    seconds: float
    first_tokens: int
    first_seconds: float
    prompt: int  # tokens of the prompt
    decode_seconds: float | None = None  # of the tokens behind the first ones, where the engine says it itself

    @staticmethod
    def of(answer: Mapping[str, Any], prompt: int) -> EngineCell:
        first = answer["first_tokens"], answer["first_seconds"]
        return EngineCell(tuple(answer["tokens"]), answer["seconds"], *first, prompt, answer.get("decode_seconds"))

    @property
    def work(self) -> Interval:
        """Tokens behind the first ones and their seconds. The first ones' time is the prompt's."""
        behind = self.seconds - self.first_seconds if self.decode_seconds is None else self.decode_seconds
        return len(self.tokens) - self.first_tokens, behind


@dataclass(frozen=True)
class EngineText:
    """A prompt decoded in one way, as often as it was repeated; the middle time counts."""

    repeats: tuple[EngineCell, ...]

    @property
    def middle(self) -> EngineCell:
        """The repeat with the median time a token (of two, the slower one)."""
        ordered = sorted(self.repeats, key=lambda cell: ratio(cell.work[1], cell.work[0]))
        return ordered[len(ordered) // 2]

    @property
    def tokens(self) -> tuple[int, ...]:
        return self.repeats[0].tokens


@dataclass
class EngineResults:
    """Every timing, by temperature, prompt and way of decoding; a way is named 'engine way'."""

    cells: dict[tuple[float, str, int, str], list[EngineCell]] = field(default_factory=dict)

    def add(self, temperature: float, task: str, number: int, way: str, cell: EngineCell) -> None:
        self.cells.setdefault((temperature, task, number, way), []).append(cell)

    def texts(self, temperature: float, task: str | None) -> dict[str, dict[int, EngineText]]:
        """Way -> prompt -> text, of one task or of all."""
        found: dict[str, dict[int, EngineText]] = {}
        for (t, where, number, way), cells in self.cells.items():
            if t == temperature and task in (None, where):
                found.setdefault(way, {})[number] = EngineText(tuple(cells))
        return found

    def groups(self) -> Iterator[tuple[float, str | None]]:
        """Every temperature with all tasks together (None) and with each task."""
        for temperature in dict.fromkeys(t for t, *_ in self.cells):
            tasks = dict.fromkeys(task for t, task, *_ in self.cells if t == temperature)
            yield from ((temperature, task) for task in (None, *tasks))

    def samples(self) -> list[dict[str, Any]]:
        """The timings themselves, for other figures."""
        return [
            {"temperature": t, "task": task, "prompt": number, "way": way, "seconds": cell.seconds,
             "first_seconds": cell.first_seconds, "first_tokens": cell.first_tokens, "prompt_tokens": cell.prompt,
             "decode_seconds": cell.work[1]}
            for (t, task, number, way), cells in self.cells.items()
            for cell in cells
        ]  # fmt: skip


@dataclass(frozen=True)
class EngineRow:
    """One way of decoding on one task or on all. Intervals: 95 %, bootstrap over prompts; None: not known."""

    temperature: float
    task: str
    way: str
    prompts: int
    tokens_per_second: float | None  # behind the first token; totals over totals
    interval: Interval
    middle: float | None  # median over prompts
    quartiles: Interval  # half of the prompts lie between
    prefill_tokens_per_second: float | None  # tokens of prompts over the time to the first token; totals over totals
    first_seconds: float | None  # to the first token, median over prompts
    whole_tokens_per_second: float | None  # the prompt's time counted, too
    floor_share: float | None  # of what reading the weights once a token would allow
    over_plain: float | None  # against the same engine's plain decoding, same prompts
    over_plain_interval: Interval
    ours_over: float | None  # Outrider's speculative decoding against this
    ours_over_interval: Interval
    our_plain_over: float | None  # Outrider's plain decoding against this
    compared: int  # texts that the engine has decoded plainly, too
    same_as_plain: int | None  # of them, texts that are the engine's own plain text, token for token; at temperature 0
    agreement: float | None  # tokens until the text leaves Outrider's plain text, median; at temperature 0


def rows(results: EngineResults, floor: Callable[[str], float | None]) -> list[EngineRow]:
    found = []
    for temperature, task in results.groups():
        texts = results.texts(temperature, task)
        found += [_row(temperature, task or "all", way, texts, floor(way)) for way in texts]
    return found


def _row(
    temperature: float, task: str, way: str, texts: dict[str, dict[int, EngineText]], floor: float | None
) -> EngineRow:
    ours, plain, our_plain = texts[way], texts.get(f"{way.rpartition(' ')[0]} plain", {}), texts.get(OUR_PLAIN, {})
    cells = [text.middle for text in ours.values()]
    speed = total_ratio([cell.work for cell in cells])
    each = [ratio(*cell.work) for cell in cells]
    low, middle, high = quantiles(each, n=4, method="inclusive") if len(each) > 1 else each * 3
    over_plain, over_plain_interval = _against(ours, plain)
    ours_over, ours_over_interval = _against(texts.get(OURS, {}), ours)
    greedy = temperature == 0
    return EngineRow(
        temperature=temperature,
        task=task,
        way=way,
        prompts=len(cells),
        tokens_per_second=finite(speed),
        interval=_known(bootstrap([cell.work for cell in cells])),
        middle=finite(middle),
        quartiles=_known((low, high)),
        prefill_tokens_per_second=finite(total_ratio([(cell.prompt, cell.first_seconds) for cell in cells])),
        first_seconds=finite(median(cell.first_seconds for cell in cells)),
        whole_tokens_per_second=finite(total_ratio([(len(cell.tokens), cell.seconds) for cell in cells])),
        floor_share=None if floor is None else finite(speed / floor),
        over_plain=over_plain,
        over_plain_interval=over_plain_interval,
        ours_over=ours_over,
        ours_over_interval=ours_over_interval,
        our_plain_over=_against(our_plain, ours)[0],
        compared=len(ours.keys() & plain.keys()),
        same_as_plain=sum(ours[n].tokens == plain[n].tokens for n in ours if n in plain) if greedy and plain else None,
        agreement=median([_common(ours[n].tokens, our_plain[n].tokens) for n in ours if n in our_plain])
        if greedy and ours.keys() & our_plain.keys()
        else None,
    )


def _against(over: Mapping[int, EngineText], under: Mapping[int, EngineText]) -> tuple[float | None, Interval]:
    """How many times as fast, on the prompts that both have decoded."""
    shared = [number for number in over if number in under]
    top, bottom = ([texts[number].middle.work for number in shared] for texts in (over, under))
    return finite(ratio(total_ratio(top), total_ratio(bottom))), _known(bootstrap(top, bottom))


def _common(left: Sequence[int], right: Sequence[int]) -> int:
    """Tokens before the first difference."""
    return sum(1 for _ in takewhile(lambda pair: pair[0] == pair[1], zip(left, right, strict=False)))


def _known(interval: Interval) -> Any:
    return tuple(finite(interval))
