"""``outrider chat``: a conversation with a model, on a terminal or from a pipe with one message in each line."""

from __future__ import annotations

import sys
from contextlib import suppress
from typing import Annotated, Any

import typer

from outrider.cli import common, progress
from outrider.cli.common import notes
from outrider.errors import OutriderError, PromptError, decode_utf8

HELP = """/reset   forget the conversation, but not the system message
/stats   statistics of the last answer
/help    this list
/exit    leave, like Ctrl-D
Ctrl-C stops an answer; once more leaves. A message that begins with a slash is written with two."""


def chat(
    context: typer.Context,
    target: common.TargetArgument = common.DEFAULT_TARGET,
    draft: common.Draft = "auto",
    system: Annotated[str | None, typer.Option(help="A system message: how to answer.")] = None,
    max_new_tokens: common.MaxNewTokens = 512,
    temperature: common.Temperature = 0.0,
    top_k: common.TopK = None,
    top_p: common.TopP = 1.0,
    min_p: common.MinP = 0.0,
    repetition_penalty: common.RepetitionPenalty = None,
    seed: common.Seed = None,
    gamma: common.Gamma = "auto",
    coupling: common.Coupling = "maximal",
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
) -> None:
    """Talk with a model. Answers go to stdout as they are accepted, everything else to stderr."""
    common.check_utf8("--system", system or "")
    options = common.generation_options(context)
    with progress.loading(target):
        import outrider

        llm = outrider.load(
            target, draft, device, dtype, graphs=common.graphs_option(graphs), engine=engine, weights=weights,
            trust_remote_code=trust_remote_code,
        )  # fmt: skip
        llm.chat_prompt([{"role": "user", "content": "Hello"}])  # a model without a chat template is refused now
    failed = Chat(llm, options, system).run()
    if failed:
        raise typer.Exit(1)


class Chat:
    """The conversation so far, and the loop around it."""

    def __init__(self, llm: Any, options: dict[str, Any], system: str | None) -> None:
        self.llm, self.options = llm, options
        self.start = [{"role": "system", "content": system}] if system is not None else []
        self.turns: list[dict[str, str]] = []  # a user's message and the answer, in turn
        self.last: Any = None  # output of the last answer
        self.by_hand = sys.stdin.isatty()

    def run(self) -> int:
        """Answer until the input ends -> how many messages could not be answered."""
        if self.by_hand:
            notes.print(f"{self.llm.target.name}, drafted for by {self.llm.drafter.name}. /help lists commands.")
        failed, leaving = 0, False  # leaving: the next Ctrl-C does
        while True:
            try:
                text = self._read()
            except KeyboardInterrupt:
                if leaving or not self.by_hand:
                    raise
                notes.print("\nCtrl-C again, or Ctrl-D, leaves")
                leaving = True
                continue
            except OutriderError as error:
                failed += self._say(error)
                continue
            if text is None or text in ("/exit", "/quit"):
                return failed if not self.by_hand else 0
            leaving = False
            if text.startswith("/") and not text.startswith("//"):
                self._command(text)
            elif text:
                try:
                    leaving = self.answer(text.removeprefix("/") if text.startswith("//") else text)
                except OutriderError as error:
                    failed += self._say(error)

    def _say(self, error: OutriderError) -> int:
        notes.print("error: " + " ".join(str(error).split()), style="red", markup=False)
        return 1

    def _read(self) -> str | None:
        """The next message without blanks around it; None at the end of the input."""
        if self.by_hand and sys.stdout.isatty():
            with suppress(ImportError):
                import readline  # noqa: F401  # input() gets a line that can be edited, and the lines before
            try:
                return common.check_utf8("the message", input("> ")).strip()
            except EOFError:
                sys.stdout.write("\n")
                return None
            except UnicodeDecodeError as error:
                raise PromptError(f"the message is not UTF-8 ({error.reason}); type it again") from None
        line = sys.stdin.buffer.readline()
        return decode_utf8("the message", line).strip() if line else None

    def _command(self, text: str) -> None:
        if text == "/reset":
            self.turns.clear()
            notes.print("the conversation begins anew")
        elif text == "/stats" and self.last is not None and self.last.trace.records:
            from outrider.cli.render import stats_table

            notes.print(stats_table(self.last.stats, self.last))
        elif text == "/stats":
            notes.print("no answer yet")
        else:
            known = "" if text == "/help" else f"there is no command {text.split()[0]}\n"
            notes.print(known + HELP, markup=False)

    def answer(self, text: str) -> bool:
        """Stream the answer to one message and remember both -> whether Ctrl-C stopped it."""
        from outrider.output import Collected

        ids = self._fitted({"role": "user", "content": text})
        collected, shown = Collected(), progress.on_terminal()
        try:
            for chunk in progress.watched(self.llm.stream(ids, **self.options), len(ids), shown):
                collected.add(chunk)
                sys.stdout.write(chunk.text)
                sys.stdout.flush()
        except KeyboardInterrupt:
            if not self.by_hand:
                raise
        sys.stdout.write("\n")
        sys.stdout.flush()
        self.last = collected.output()
        self.turns.append({"role": "user", "content": text})
        self.turns.append({"role": "assistant", "content": self.last.text})
        stopped = bool(self.last.finish_reason == "interrupted")
        if stopped or self.last.finish_reason == "length":
            why = "stopped" if stopped else f"cut off after {len(self.last.tokens)} tokens; see --max-new-tokens"
            notes.print(f"({why})", style="dim", markup=False)
        return stopped

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
