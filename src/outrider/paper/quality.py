"""How good a text is, by the measures of the papers: BLEU, ROUGE-1, 2 and L, exact match, programs that pass tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from outrider.paper.texts import Program

SECONDS = 5
"""A program has so long for its tests."""

MODULES = (
    "collections,copy,fractions,functools,hashlib,heapq,itertools,math,operator,random,re,statistics,string,typing"
)
"""What a program may import: loaded before it is confined."""

_CONFINED = """\
import resource, sys
import {modules}
resource.setrlimit(resource.RLIMIT_CPU, ({seconds}, {seconds}))
resource.setrlimit(resource.RLIMIT_AS, (1 << 29, 1 << 29))
resource.setrlimit(resource.RLIMIT_FSIZE, (0, 0))
resource.setrlimit(resource.RLIMIT_NPROC, (0, 0))
def refused(event, arguments):
    if event.split(".")[0] in ("open", "os", "shutil", "socket", "subprocess", "ctypes", "import", "pty", "signal"):
        raise PermissionError(event)
source = sys.stdin.read()
code = compile(source, "program", "exec")
sys.addaudithook(refused)
exec(code, {{"__name__": "program"}})
"""
"""No files, no network, no processes, no further modules; little time and memory. Enough for what a small model writes
by accident, and no place for code of somebody who means harm."""


NO_BLEU = "BLEU needs sacrebleu: pip install sacrebleu"


def bleu(texts: Sequence[str], references: Sequence[str]) -> float | None:
    """Of the whole set, between 0 and 1 as in the report; sacrebleu prints a hundred times that. None without it."""
    try:
        import sacrebleu
    except ImportError:
        return None
    return float(sacrebleu.corpus_bleu(list(texts), [list(references)]).score) / 100


def mean_bleu(texts: Sequence[str], references: Sequence[str]) -> float | None:
    """The average of every text's own BLEU, as the report has it. None without sacrebleu."""
    try:
        import sacrebleu
    except ImportError:
        return None
    return mean(
        sacrebleu.sentence_bleu(text, [wanted]).score / 100 for text, wanted in zip(texts, references, strict=True)
    )


def exact_match(text: str, reference: str) -> bool:
    """Whether words and signs are the same; spaces at the ends and how many stand between words do not count."""
    return text.split() == reference.split()


@dataclass(frozen=True)
class Rouge:
    """F-measures over words, without regard to case: of single words, of pairs, of the longest common subsequence."""

    one: float
    two: float
    longest: float

    @staticmethod
    def of(text: str, reference: str) -> Rouge:
        found, wanted = _words(text), _words(reference)
        return Rouge(
            _shared(_runs(found, 1), _runs(wanted, 1)), _shared(_runs(found, 2), _runs(wanted, 2)),
            _f_measure(_common(found, wanted), len(found), len(wanted)),
        )  # fmt: skip


def passes(program: Program, completion: str) -> bool:
    """Whether the function does what its test says, run in a process of its own that may do nothing else."""
    source = f"{program.prompt}{body_of(completion)}\n{program.test}\n"
    with tempfile.TemporaryDirectory() as empty:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _CONFINED.format(seconds=SECONDS, modules=MODULES)],
                input=source, text=True, capture_output=True, timeout=4 * SECONDS, cwd=empty, env={}, check=False,
            )  # fmt: skip
        except subprocess.TimeoutExpired:
            return False
    return ended.returncode == 0


def body_of(completion: str) -> str:
    """The lines that belong to the function: up to the first that is not indented."""
    lines = completion.split("\n")
    for number, line in enumerate(lines):
        if line.strip() and not line.startswith((" ", "\t")):
            return "\n".join(lines[:number])
    return completion


def _words(text: str) -> list[str]:
    return re.findall(r"\w+", text.lower())


def _runs(words: Sequence[str], length: int) -> Counter[tuple[str, ...]]:
    return Counter(tuple(words[place : place + length]) for place in range(len(words) - length + 1))


def _shared(found: Counter[tuple[str, ...]], wanted: Counter[tuple[str, ...]]) -> float:
    return _f_measure(sum((found & wanted).values()), sum(found.values()), sum(wanted.values()))


def _f_measure(shared: int, found: int, wanted: int) -> float:
    if not shared:
        return 0.0
    precision, recall = shared / found, shared / wanted
    return 2 * precision * recall / (precision + recall)


def _common(a: Sequence[str], b: Sequence[str]) -> int:
    """The length of the longest common subsequence."""
    row = [0] * (len(b) + 1)
    for word in a:
        before = row
        row = [0]
        for place, other in enumerate(b):
            row.append(before[place] + 1 if word == other else max(before[place + 1], row[place]))
    return row[-1]
