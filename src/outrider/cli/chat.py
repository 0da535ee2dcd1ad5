"""``outrider chat``: a conversation with a model, on a terminal or from a pipe with one message in each line."""

from __future__ import annotations

import difflib
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli import common, progress
from outrider.cli.chat_input import Messages, Piped, Typed, history_file
from outrider.cli.common import notes
from outrider.cli.conversation import Conversation
from outrider.cli.origin_text import coloured, legend
from outrider.errors import BadOption, OutriderError

HELP = """/draft NAME  draft by NAME from now on (what --draft takes); without a name: which drafter is used
/reset       forget the conversation, but not the system message
/save FILE   write the conversation to FILE: as JSON where it ends in .json or .jsonl, else as text
/stats       statistics of the last answer, and totals of this session
/help        this list
/quit        leave, like /exit and Ctrl-D
A line that ends in a backslash goes on in the next one; so does all between two lines of triple quotes (\"\"\").
Ctrl-C stops an answer and keeps what was written of it. A message that begins with a slash is written with two."""


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
    kv_cache_dtype: common.KvCacheDtype = "auto",
    max_length: common.MaxLength = None,
    graphs: common.Graphs = None,
    history: Annotated[
        bool, typer.Option("--history/--no-history", help="Keep lines typed on a terminal for the next session.")
    ] = True,
    trust_remote_code: common.Trust = False,
) -> None:
    """Talk with a model. Answers go to stdout as they are accepted, everything else to stderr."""
    common.check_utf8("--system", system or "")
    options = common.generation_options(context)
    with progress.loading(target):
        import outrider

        llm = outrider.load(target, **common.loading_options(context))
        llm.chat_prompt([{"role": "user", "content": "Hello"}])  # a model without a chat template is refused now
    on_terminal = sys.stdin.isatty() and sys.stdout.isatty()
    messages = Typed(history_file() if history else None) if on_terminal else Piped()
    try:
        failed = Chat(Conversation(llm, options, system), messages, trust_remote_code).run()
    finally:
        messages.close()
    if failed:
        raise typer.Exit(1)


class Chat:
    """The loop around a conversation: messages, commands and Ctrl-C."""

    def __init__(self, conversation: Conversation, messages: Messages, trust_remote_code: bool = False) -> None:
        self.conversation, self.messages, self.trust = conversation, messages, trust_remote_code
        self.by_hand = sys.stdin.isatty()
        self.saved: set[Path] = set()  # files of this session, which may be written again
        self.commands: dict[str, Callable[[str], None]] = {
            "/draft": self._draft, "/reset": self._reset, "/save": self._save, "/stats": self._stats,
            "/help": self._help,
        }  # fmt: skip

    def run(self) -> int:
        """Answer until the input ends -> how many messages could not be answered."""
        if self.by_hand:
            llm = self.conversation.llm
            notes.print(f"{llm.target.name}, drafted for by {llm.drafter.name}. /help lists commands.", markup=False)
            if coloured():
                notes.print(legend())
        failed, leaving = 0, False  # leaving: the next Ctrl-C does
        while True:
            try:
                text = self.messages.read()
                leaving = False
                if text is None or text in ("/exit", "/quit"):
                    return failed if not self.by_hand else 0
                self._take(text)
            except KeyboardInterrupt:
                if leaving or not self.by_hand:
                    raise
                notes.print("\nCtrl-C again, or Ctrl-D, leaves")
                leaving = True
            except OutriderError as error:
                notes.print("error: " + " ".join(str(error).split()), style="red", markup=False)
                failed += 1

    def _take(self, text: str) -> None:
        one_line = "\n" not in text
        if one_line and text.startswith("/") and not text.startswith("//"):
            self._command(text)
        elif text:
            message = text.removeprefix("/") if one_line and text.startswith("//") else text
            self.conversation.answer(message, stoppable=self.by_hand)

    def _command(self, text: str) -> None:
        name, _, argument = text.partition(" ")
        if name in self.commands:
            self.commands[name](argument.strip())
            return
        near = difflib.get_close_matches(name, [*self.commands, "/quit", "/exit"], n=1)
        meant = f"; did you mean {near[0]}?" if near else ""
        notes.print(f"there is no command {name}{meant}\n{HELP}", markup=False)

    def _help(self, argument: str) -> None:
        notes.print(HELP, markup=False)

    def _reset(self, argument: str) -> None:
        _check_alone("/reset", argument)
        self.conversation.turns.clear()
        notes.print("the conversation begins anew")

    def _stats(self, argument: str) -> None:
        _check_alone("/stats", argument)
        outputs = self.conversation.outputs
        if not outputs or not outputs[-1].trace.records:
            notes.print("no answer yet")
            return
        from outrider.cli.render import stats_table

        notes.print(stats_table(outputs[-1].stats, outputs[-1]))
        notes.print(self.conversation.totals(), markup=False)

    def _draft(self, name: str) -> None:
        """The old drafter is given up once the new one is loaded, not before."""
        now = self.conversation.llm.drafter.name
        if not name:
            known = ", ".join(common.DRAFTERS)
            notes.print(f"drafted for by {now}; /draft NAME changes it: {known}, a model ...", markup=False)
            return
        try:
            with progress.loading(name):
                self.conversation.llm = self.conversation.llm.with_draft(name, self.trust)
        except KeyboardInterrupt:
            notes.print(f"(stopped: still drafted for by {now})", markup=False)
        else:
            notes.print(f"drafted for by {self.conversation.llm.drafter.name} from now on", markup=False)

    def _save(self, name: str) -> None:
        path = Path(name).expanduser()
        self._check_file(name, path)
        try:
            self.conversation.save(path)
        except OSError as error:
            raise BadOption(f"/save {name}: {error.strerror or error}; name another file") from None
        self.saved.add(path.resolve())
        notes.print(f"{len(self.conversation.messages)} messages written to {path}", markup=False)

    def _check_file(self, name: str, path: Path) -> None:
        if not name:
            raise BadOption("/save needs a file: /save FILE")
        if not self.conversation.turns:
            raise BadOption("/save: nothing was said yet")
        common.check_writable(path, "/save")
        if path.exists() and path.resolve() not in self.saved:
            raise BadOption(f"/save {name}: the file exists and was not written in this session; name another")


def _check_alone(command: str, argument: str) -> None:
    if argument:
        raise BadOption(f"{command} takes no argument, got {argument!r}")
