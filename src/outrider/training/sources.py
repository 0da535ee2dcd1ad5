"""Training text for an encoder-decoder target: sources with the targets given for them, or written by the model."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from itertools import count
from pathlib import Path
from typing import IO, Any

import torch
from torch import Tensor

from outrider.errors import BadOption, require
from outrider.models.hub import generation_config
from outrider.models.hub.loading import Loaded
from outrider.training.answers import SelfText
from outrider.training.data import PADDING, Corpus, Pair, open_text, readable
from outrider.training.progress import Gathering
from outrider.training.rounds import Rounds
from outrider.training.writing import write

Example = tuple[str, str | None]
"""What the encoder reads, and what should be said about it if that is given."""


def examples(paths: Iterable[Path]) -> Iterator[Example]:
    """A line is a source, or a source TAB its target (.tsv), or a JSON object with source and target (.jsonl)."""
    for path in paths:
        with open_text(path) as file, readable(path):
            if ".jsonl" in path.suffixes:
                yield from _jsonl(file, path)
            else:
                tabbed = ".tsv" in path.suffixes
                for line in file:
                    source, _, target = line.rstrip("\n").partition("\t") if tabbed else (line, "", "")
                    if source.strip():
                        yield source.strip(), target.strip() or None


def _jsonl(file: IO[str], path: Path) -> Iterator[Example]:
    for number, line in enumerate(file, 1):
        if not line.strip():
            continue
        try:
            record: Any = json.loads(line)
            record = {"source": record} if isinstance(record, str) else record
            source = next(record[k] for k in ("source", "text", "prompt") if record.get(k))
            target = record.get("target")
        except (ValueError, AttributeError, StopIteration) as error:
            raise BadOption(f"{path}, line {number}: needs a text, or an object with a source ({error})") from None
        yield str(source), None if target is None else str(target)


def from_examples(
    loaded: Loaded, given: Sequence[Example], plan: SelfText, gathering: Gathering, kept: Rounds | None = None
) -> Corpus:
    """Rows of source and target, up to the plan's tokens; where a target is missing, the model writes it itself."""
    require(
        len(given) > 0,
        f"the data is empty: {loaded.name} is an encoder-decoder and needs source texts; name files with --data or "
        "--prompts (one source per line, or .tsv lines of source TAB target)",
    )
    start = generation_config.defaults(loaded.model).decoder_start
    require(start is not None, f"{loaded.name} names no decoder_start_token_id in its generation config")
    rows: list[tuple[Sequence[int], list[int]]] = []
    for pairs, read in _pairs(loaded, given, plan, gathering, kept or Rounds()):
        for source, told in pairs:
            if gathering.enough:
                break
            rows.append((source, [int(start or 0), *told][: plan.block]))
            gathering.add(1, len(rows[-1][1]), read=read)
        if gathering.done:
            break
    order = torch.randperm(len(rows), generator=torch.Generator().manual_seed(plan.seed)).tolist()
    return Corpus(_padded([rows[i][1] for i in order]), _padded([rows[i][0] for i in order]))


def _pairs(
    loaded: Loaded, given: Sequence[Example], plan: SelfText, gathering: Gathering, kept: Rounds
) -> Iterator[tuple[Sequence[Pair], bool]]:
    """The pairs that are given, once, and then what the model says to sources without a target, round by round.

    With each whether it cost no time: it was given, or an earlier run wrote it.
    """
    encode = loaded.tokenizer
    alone = []
    for source, target in given:
        ids = list(encode(source)["input_ids"])[: plan.block]
        if target is None:
            alone.append(ids)
        else:
            yield [(ids, list(encode(text_target=target)["input_ids"]))], True
    stretch = plan.batch * 4
    firsts = range(0, len(alone), stretch)
    for number in count() if alone else ():
        turn, place = divmod(number, len(firsts))
        # Every source once in each way; after that, only what is drawn is new.
        ways = len(plan.temperatures)
        temperature = plan.temperatures[(place + turn) % ways if turn < ways else -1]
        known = kept.load(number)
        if known is not None:
            yield known, True
            continue
        pairs: list[Pair] = []
        try:
            for asked, answer in write(
                loaded.transformers_model, loaded.tokenizer, alone[firsts[place] : firsts[place] + stretch],
                new_tokens=min(plan.new_tokens, plan.block), temperature=temperature, batch=plan.batch,
                seed=plan.seed + 7919 * turn + place, keep_going=gathering.until(),
            ):  # fmt: skip
                if answer:
                    pairs.append((asked, answer))
        finally:
            if pairs:
                kept.save(number, pairs)
        yield pairs, False


def _padded(rows: Sequence[Sequence[int]]) -> Tensor:
    wide = max(len(row) for row in rows)
    return torch.tensor([[*row, *[PADDING] * (wide - len(row))] for row in rows])
