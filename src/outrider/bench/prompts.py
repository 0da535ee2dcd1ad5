"""Prompts to measure with: a small sample of six tasks, or a file of the user's."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from outrider.errors import BadOption, ModelNotFound, decode_utf8, require

_STORY = (
    "The old mill stood at the bend of the river, and nobody in the village remembered who had built it. Every spring "
    "the water rose to the third step of its stairs, and every summer it fell again. When the miller's daughter came "
    "back from the city, she found the wheel broken and the roof full of holes. She worked on it for two years, alone, "
    "and on the first day of the third year the wheel turned again."
)

SAMPLE: dict[str, tuple[str, ...]] = {
    "chat": ("What should I think about before I adopt a dog?", "Write a short poem about a lighthouse in a storm."),
    "translation": (
        "Translate German to English: Der Zug nach Hamburg hat heute leider vierzig Minuten Verspätung.",
        "Translate German to English: Wer früh aufsteht, sieht die Sonne über den Bergen.",
    ),
    "summary": (f"Summarize this story in two sentences.\n\n{_STORY}", f"{_STORY}\n\nWhat is this story about?"),
    "question": ("Why do leaves change colour in autumn?", "Who wrote Faust, and what is it about?"),
    "maths": (
        "A baker sells 24 loaves in the morning and half as many in the afternoon. Each loaf costs 3 dollars. "
        "How much money does the baker make? Think step by step.",
        "Lena has 15 marbles. She gives 4 to Paul and buys 9 more. How many marbles does she have now?",
    ),
    "passage": (
        f"Use the passage to answer. Passage: {_STORY}\nQuestion: How long did the repair take?",
        f"Correct the spelling and change nothing else: {_STORY}",
    ),
}

SOURCES: dict[str, tuple[str, ...]] = {
    "everyday": (
        "Where is the nearest station?",
        "My sister forgot her umbrella on the bus.",
        "We will meet in front of the museum at half past seven.",
        "Could you please close the window? It is getting cold.",
    ),
    "news": (
        "The government announced on Tuesday that the new bridge will be opened next year.",
        "According to the police, nobody was injured in the accident.",
        "Prices rose by two per cent in March, more than most experts had expected.",
    ),
    "technical": (
        "This package contains the documentation and the examples.",
        "The program reads a list of files and writes a summary to the standard output.",
        "A small library for reading and writing compressed archives.",
    ),
}
"""Sentences for an encoder to read; SAMPLE asks for answers, which a translator cannot give."""


CONVERSATIONS = ("writing", "roleplay", "reasoning", "math", "coding", "extraction", "stem", "humanities")
"""Categories that Spec-Bench counts as one of its six tasks."""


def read(
    path: Path | None, per_task: int | None = None, sources: bool = False, spec_bench: bool = False
) -> dict[str, tuple[str, ...]]:
    """Prompts by task: a sample, or a .jsonl file with prompt (or turns) and task (or category) fields.

    sources: the sample for encoder-decoder models.
    spec_bench: tasks as Spec-Bench has them, its eight categories of conversation as one.
    """
    tasks = (SOURCES if sources else SAMPLE) if path is None else _from_file(path)
    if spec_bench and set(CONVERSATIONS) <= tasks.keys():
        joined = tuple(prompt for name in CONVERSATIONS for prompt in tasks[name])
        tasks = {"multi-turn": joined, **{k: v for k, v in tasks.items() if k not in CONVERSATIONS}}
    if per_task is not None:
        require(per_task >= 1, f"per_task must be at least 1, got {per_task}")
        tasks = {name: _spread(prompts, per_task) for name, prompts in tasks.items()}
    return tasks


def _from_file(path: Path) -> dict[str, tuple[str, ...]]:
    require(not path.is_dir(), f"prompts file {path} is a directory; name a file in it")
    require(path.exists(), f"prompts file {path} does not exist; name one that does", ModelNotFound)  # pipes may be
    tasks: dict[str, list[str]] = {}
    for number, line in enumerate(decode_utf8(f"prompts file {path}", path.read_bytes()).splitlines(), 1):
        if not line.strip():
            continue
        task, prompt = _task_and_prompt(f"{path}, line {number}", line)
        tasks.setdefault(task, []).append(prompt)
    require(bool(tasks), f'prompts file {path} is empty; give it lines such as {{"prompt": "..."}}')
    return {name: tuple(prompts) for name, prompts in tasks.items()}


def _task_and_prompt(place: str, line: str) -> tuple[str, str]:
    try:
        record: Any = json.loads(line)
        prompt = record["prompt"] if "prompt" in record else record["turns"][0]
    except (ValueError, KeyError, TypeError, IndexError) as error:
        raise BadOption(f"{place}: needs a JSON object with a prompt or turns ({error})") from None
    named = [record[name] for name in ("task", "category") if record.get(name) not in (None, "")]
    task = named[0] if named else "prompts"
    for name, value in (("prompt", prompt), ("task", task)):
        require(
            isinstance(value, str), f"{place}: {name} must be a text, got {json.dumps(value)[:80]}; write it as one"
        )
    return task, prompt


def _spread(prompts: Sequence[str], count: int) -> tuple[str, ...]:
    """Evenly spaced, so that a sorted file is sampled fairly."""
    step = max(1, len(prompts) // count)
    return tuple(prompts[::step][:count])
