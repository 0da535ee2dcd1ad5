"""``outrider demo``: one prompt, plain and speculative decoding side by side."""

from __future__ import annotations

from statistics import median
from typing import Annotated, Any

import typer

from outrider.cli import common
from outrider.cli.common import answers, notes
from outrider.cli.progress import loading
from outrider.models.settings import has_chat_template
from outrider.trace import strict_json

PROMPT = """Correct the spelling in this text and change nothing else:

The lighthouse keeper climbed the stairs every evning, lit the lamp, and wrote the wether into his book. \
In forty years he had never mised a night. The ships never knew his name, but every captain knew his light, \
and every captain was gratefull for it."""


def demo(
    context: typer.Context,
    prompt: Annotated[str, typer.Argument(help="What to ask.")] = PROMPT,
    target: common.Target = common.DEFAULT_TARGET,
    draft: common.Draft = "auto",
    max_new_tokens: common.MaxNewTokens = 96,
    gamma: common.Gamma = "auto",
    temperature: Annotated[float, typer.Option(help="0 is greedy; above it, Gumbel coupling.")] = 0.0,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    repeats: Annotated[int, typer.Option(min=1, help="Timed runs of each, alternating.")] = 3,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    engine: common.Engine = "auto",
    weights: common.Weights = "full",
    as_json: common.Json = False,
) -> None:
    """Show what speculation does: same text, fewer target runs."""
    import outrider

    common.check_prompt(common.check_utf8("the prompt", prompt))
    options = {**common.generation_options(context), "coupling": "gumbel"}
    with loading(target):
        llm = outrider.load(target, draft, device, dtype, engine=engine, weights=weights)
        plain = outrider.LLM(llm.target, outrider.Nothing(), width=llm.width, graphs=llm.graphs)
    chat = has_chat_template(llm.tokenizer)
    asked: Any = llm.chat_prompt([{"role": "user", "content": prompt}]) if chat else prompt
    runs: dict[str, list[Any]] = {"plain": [], "speculative": []}
    decoders = {"plain": plain, "speculative": llm}
    with notes.status("compiling and reading the prompt"):  # first calls pay for this: not what is compared
        for decoder in decoders.values():
            decoder.generate(asked, **{**options, "max_new_tokens": 4, "gamma": None})
    for number in range(repeats):
        for name, decoder in decoders.items():
            with notes.status(f"{name} decoding, run {number + 1} of {repeats}"):
                runs[name].append(decoder.generate(asked, **options))
    _report(prompt, runs, llm, as_json)


def _report(prompt: str, runs: dict[str, list[Any]], llm: Any, as_json: bool) -> None:
    from outrider.cli.render import print_trace

    one, two = runs["plain"][0], runs["speculative"][0]
    same = all(output.tokens == one.tokens for outputs in runs.values() for output in outputs)
    speeds = {name: [o.stats.tokens_per_second for o in outputs] for name, outputs in runs.items()}
    if as_json:
        report = {"identical": same, "tokens_per_second": speeds}
        answers.out(strict_json({**report, "plain": one.to_json(), "speculative": two.to_json()}))
    else:
        answers.print("[bold]Prompt[/bold]")
        answers.out(prompt, highlight=False)
        answers.print("\n[bold]Text[/bold]")
        answers.out(two.text, highlight=False)
        answers.print("\n[bold]Trace of speculative decoding[/bold] (one line per target run)")
        print_trace(answers, two.trace, llm.show)
        answers.print()
        answers.print(_comparison(one, two, speeds, same))
        answers.print(_verdict(speeds, two.stats.tokens_per_run / one.stats.tokens_per_run))
    if not same:
        raise typer.Exit(1)


def _comparison(plain: Any, speculative: Any, speeds: dict[str, list[float]], same: bool) -> Any:
    from rich.table import Table

    from outrider.cli.render import engine_and_dtype

    table = Table(title="The two texts are " + ("identical" if same else "DIFFERENT: please report this"))
    for column in ("", "plain", "speculative"):
        table.add_column(column, justify="right" if column else "left")
    a, b = plain.stats, speculative.stats
    table.add_row("engine", engine_and_dtype(a), engine_and_dtype(b))
    table.add_row("drafter", a.drafter, b.drafter)
    table.add_row("tokens", str(a.tokens), str(b.tokens))
    table.add_row("target runs", str(a.runs), str(b.runs))
    table.add_row("tokens per target run", f"{a.tokens_per_run:.2f}", f"{b.tokens_per_run:.2f}")
    medians = [f"{median(values):.1f}" for values in speeds.values()]
    table.add_row(f"tokens per second, median of {len(speeds['plain'])}", *medians)
    table.add_row("acceptance rate alpha", "-", f"{b.alpha:.2f}")
    return table


def _verdict(speeds: dict[str, list[float]], fewer: float) -> str:
    """Say plainly whether it paid, and whether the clock can be believed: ``fewer`` runs are the most it can gain."""
    gain = median(speeds["speculative"]) / median(speeds["plain"])
    ratios = [b / a for a, b in zip(speeds["plain"], speeds["speculative"], strict=True)]
    spread = f"{min(ratios):.2f} to {max(ratios):.2f} over {len(ratios)} pairs of runs"
    if gain > 1.1 * fewer:
        return (
            f"{gain:.2f} times as fast ({spread}), but with {fewer:.2f} times fewer target runs: something else is "
            "using this machine, so do not believe the clock."
        )
    if gain > 1.02:
        return f"Speculation made this prompt {gain:.2f} times as fast here ({spread})."
    return f"Speculation did not pay on this prompt: {gain:.2f} times the speed of plain decoding ({spread})."
