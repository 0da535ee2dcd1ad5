"""How good a text is, by the measures of the papers: BLEU, ROUGE-2, exact match, and programs that pass their tests."""

from __future__ import annotations

import re
import subprocess
import sys
import tempfile
from collections import Counter
from collections.abc import Sequence

from outrider.paper.texts import Program

SECONDS = 5
"""A program has so long for its tests."""

_CONFINED = """\
import resource, sys
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


def rouge_2(text: str, reference: str) -> float:
    """F-measure of pairs of words that text and reference share."""
    found, wanted = _pairs(text), _pairs(reference)
    shared = sum((found & wanted).values())
    if not shared:
        return 0.0
    precision, recall = shared / sum(found.values()), shared / sum(wanted.values())
    return 2 * precision * recall / (precision + recall)


def passes(program: Program, completion: str) -> bool:
    """Whether the function does what its test says, run in a process of its own that may do nothing else."""
    source = f"{program.prompt}{body_of(completion)}\n{program.test}\n"
    with tempfile.TemporaryDirectory() as empty:
        try:
            ended = subprocess.run(
                [sys.executable, "-I", "-S", "-c", _CONFINED.format(seconds=SECONDS)],
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


def _pairs(text: str) -> Counter[tuple[str, str]]:
    words = re.findall(r"\w+", text.lower())
    return Counter(zip(words, words[1:], strict=False))
