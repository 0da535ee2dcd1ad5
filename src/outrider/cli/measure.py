"""``outrider measure``: does speculation pay, on these models, these prompts, this machine?"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn
from rich.table import Table

from outrider.cli import common
from outrider.cli.common import answers, notes


def measure(
    target: Annotated[str, typer.Argument(help="Model: a short name, a directory, a .gguf file or a hub id.")],
    draft: common.Draft = "auto",
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file with prompt and task fields (Spec-Bench's too).")
    ] = None,
    per_task: Annotated[int | None, typer.Option(help="Prompts of each task at most, evenly spaced.")] = None,
    max_new_tokens: common.MaxNewTokens = 64,
    temperature: Annotated[float, typer.Option(help="0 is greedy.")] = 0.0,
    coupling: common.Coupling = "maximal",
    lenience: common.Lenience = 1.0,
    draft_temperature: common.DraftTemperature = None,
    draft_top_k: common.DraftTopK = None,
    draft_top_p: common.DraftTopP = None,
    seed: Annotated[int, typer.Option(help="Same seed, same text.")] = 0,
    gamma: common.Gamma = None,
    width: common.Width = 9,
    device: common.Device = "auto",
    dtype: common.Dtype = "auto",
    graphs: common.Graphs = None,
    trust_remote_code: common.Trust = False,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers here, as JSON.")] = None,
    as_json: common.Json = False,
) -> None:
    """Plain and speculative decoding side by side: acceptance, cost, speed-up with its interval, per task."""
    from outrider.bench.measure import measure as run
    from outrider.bench.prompts import read
    from outrider.options import Options

    options: dict[str, Any] = {
        "max_new_tokens": max_new_tokens, "temperature": temperature, "seed": seed, "coupling": coupling,
        "lenience": lenience, "draft_temperature": draft_temperature, "draft_top_k": draft_top_k,
        "draft_top_p": draft_top_p,
    }  # fmt: skip
    common.check_writable(out, "--out")
    Options.parse(options | {"gamma": gamma})
    tasks = read(prompts, per_task)
    import outrider

    with notes.status(f"loading {target}"):
        llm = outrider.load(
            target,
            draft,
            device,
            dtype,
            width=width,
            slots=1,
            graphs=common.graphs_option(graphs),
            trust_remote_code=trust_remote_code,
        )
    chat = bool(getattr(llm.tokenizer, "chat_template", None))
    asked: dict[str, Any] = {
        task: [llm.chat_prompt([{"role": "user", "content": p}]) if chat else p for p in texts]
        for task, texts in tasks.items()
    }
    with Progress(
        TextColumn("{task.description}"), BarColumn(), TimeElapsedColumn(), console=notes, transient=True
    ) as bar:
        shown = bar.add_task("warming up", total=1.0)
        rows = run(
            llm,
            asked,
            options | {"gamma": gamma},
            lambda what, share: bar.update(shown, description=what, completed=share),
        )
    drafter = rows[-1].stats.drafter
    report = {"target": target, "drafter": drafter, "options": options, "rows": [r.to_json() for r in rows]}
    if out is not None:
        out.write_text(json.dumps(report, indent=2) + "\n", encoding="utf-8")
    if as_json:
        answers.out(json.dumps(report), highlight=False)
    else:
        rule = coupling if rows[-1].stats.exact else f"INEXACT, lenience {lenience:g}"
        answers.print(_table(rows, f"{target} with {drafter}, temperature {temperature:g}, {rule}"))
        answers.print(
            "speed-up: against plain decoding with the same shapes (95 % interval over prompts), and against unpadded "
            "plain decoding; c: time of a guess over time of a target run", style="dim",
        )  # fmt: skip


def _table(rows: list[Any], title: str) -> Table:
    table = Table(title=title, title_justify="left")
    for column in (
        "task",
        "prompts",
        "alpha",
        "tokens/run",
        "c",
        "plain t/s",
        "spec. t/s",
        "speed-up",
        "unpadded",
        "same text",
    ):
        table.add_column(column, justify="left" if column == "task" else "right")
    for r in rows:
        low, high = r.speedup_interval
        table.add_row(
            r.task, str(r.prompts), f"{r.stats.alpha:.2f}", f"{r.stats.tokens_per_run:.2f}", f"{r.cost:.3f}",
            f"{r.plain_tokens_per_second:.1f}", f"{r.stats.tokens_per_second:.1f}",
            f"{r.speedup:.2f} ({low:.2f}-{high:.2f})", f"{r.speedup_narrow:.2f}", f"{r.identical}/{r.prompts}",
        )  # fmt: skip
    return table
