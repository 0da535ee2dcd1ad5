"""A conversation with a model: what was said, the next answer as it is streamed, and a file of all of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import TYPE_CHECKING, Any

from outrider.cli import progress
from outrider.cli.common import notes
from outrider.cli.origin_text import Writer
from outrider.runtime.files import write_whole

if TYPE_CHECKING:
    from outrider.llm import LLM
    from outrider.output import Output

JSON = (".json", ".jsonl", ".ndjson")


class Conversation:
    """Messages and answers so far. An answer that was interrupted is kept as far as it was written."""

    def __init__(self, llm: LLM, options: dict[str, Any], system: str | None) -> None:
        self.llm, self.options = llm, options
        self.start = [{"role": "system", "content": system}] if system is not None else []
        self.turns: list[dict[str, str]] = []  # a user's message and the answer, in turn
        self.outputs: list[Output] = []  # of all answers, also those whose turns were left out since

    @property
    def messages(self) -> list[dict[str, str]]:
        return [*self.start, *self.turns]

    def answer(self, text: str, stoppable: bool) -> None:
        """Stream the answer to one message and remember both. ``stoppable``: Ctrl-C ends the answer only."""
        from outrider.output import Collected

        ids = self._fitted({"role": "user", "content": text})
        collected, writer = Collected(), Writer(self.llm.decode)
        try:
            for chunk in progress.watched(self.llm.stream(ids, **self.options), len(ids), progress.on_terminal()):
                collected.add(chunk)
                writer.write(chunk)
        except KeyboardInterrupt:
            if not stoppable:
                raise
        finally:
            writer.end()
            if collected.last is not None:
                self._remember(text, collected.output())
        if collected.last is None:
            notes.print("(stopped before the first token: the message is forgotten)", style="dim", markup=False)

    def _remember(self, text: str, output: Output) -> None:
        self.outputs.append(output)
        self.turns.append({"role": "user", "content": text})
        self.turns.append({"role": "assistant", "content": output.text})
        why = {
            "interrupted": "stopped",
            "length": f"cut off after {len(output.tokens)} tokens; see --max-new-tokens",
            "error": f"ended early: {output.error}",
        }.get(output.finish_reason)
        if why is not None:
            notes.print(f"({why})", style="dim", markup=False)

    def _fitted(self, message: dict[str, str]) -> list[int]:
        """The token ids of the conversation with this message. The oldest turns go where it would not fit the model,
        with room for an answer: at most half of what the model can hold."""
        limit = self.llm.target.model.max_length
        room = 0 if limit is None else min(self.options["max_new_tokens"], limit // 2)
        turns = self.turns
        while True:
            ids: list[int] = self.llm.chat_prompt([*self.start, *turns, message])
            if not turns or limit is None or len(ids) + room <= limit:
                break
            turns = turns[2:]
        ids = self.llm.encode(ids)  # refuses a message that is too long alone: then nothing is forgotten for it
        if dropped := (len(self.turns) - len(turns)) // 2:
            what = f"the oldest {dropped} turns" if dropped > 1 else "the oldest turn"
            notes.print(f"(left out {what}: the model holds {limit} tokens)", style="dim", markup=False)
            self.turns = turns
        return ids

    def save(self, path: Path) -> None:
        """One JSON line that ``outrider generate --prompts`` takes where the name says so, else plain text."""
        if path.suffix.lower() in JSON:
            text = json.dumps({"messages": self.messages}, ensure_ascii=False) + "\n"
        else:
            text = "\n".join(f"{message['role']}:\n{message['content']}\n" for message in self.messages)
        write_whole(path, text)

    def totals(self) -> str:
        """All answers of this session in one line."""
        stats = [output.stats for output in self.outputs]
        tokens, runs = sum(s.tokens for s in stats), sum(s.runs for s in stats)
        per_run = f", {tokens / runs:.2f} per run" if runs else ""
        count = "1 answer" if len(stats) == 1 else f"{len(stats)} answers"
        return f"session: {count}, {tokens} tokens in {runs} target runs{per_run}"
