"""``outrider bench serve``: a server under load; ``outrider bench capacity``: what that says of many replicas."""

from __future__ import annotations

import json
import os
import shlex
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from outrider.cli import common
from outrider.cli.bench_serve_tables import show_capacity, show_load, show_loads
from outrider.cli.common import answers, notes
from outrider.errors import BadOption, require
from outrider.trace import strict_json


def serve(
    target: common.TargetArgument = common.DEFAULT_TARGET,
    url: Annotated[
        str | None, typer.Option(help="Measure the server that is there, as http://127.0.0.1:8000; none is started.")
    ] = None,
    server_options: Annotated[
        str, typer.Option(help="Options of the `outrider serve` that is started, as one text: '--slots 16'.")
    ] = "",
    clients: Annotated[
        int | None, typer.Option(min=1, help="Clients, each with one request at a time. Default: 8.")
    ] = None,
    seconds: Annotated[
        float | None, typer.Option(help="Send requests for so long. Default: 60, without --requests.")
    ] = None,
    requests: Annotated[
        int | None, typer.Option(min=1, help="Send so many requests; with --loads: at least so many per turn and load.")
    ] = None,
    loads: Annotated[
        str | None,
        typer.Option(help="Compare these numbers of clients, as 1,2,4,8: with and without speculation, taking turns."),
    ] = None,
    turns: Annotated[
        int | None, typer.Option(min=1, help="With --loads: how often each is measured. Default: 3.")
    ] = None,
    tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 64,
    prompts: Annotated[
        Path | None, typer.Option(help="A .jsonl file of prompts, with prompt or turns; else twelve of six tasks.")
    ] = None,
    check: Annotated[
        str | None,
        typer.Option(
            help="Answers to compare with the same request sent alone afterwards: a number, or all. Default: 32."
        ),
    ] = None,
    completions: Annotated[
        bool, typer.Option("--completions", help="Use /v1/completions: for models without a chat template.")
    ] = False,
    pid: Annotated[int | None, typer.Option(help="With --url: the server's process, whose memory is watched.")] = None,
    out: Annotated[Path | None, typer.Option(help="Also write the numbers here; with --loads after every run.")] = None,
    as_json: common.Json = False,
) -> None:
    """Send prompts to a server with many clients at once: throughput, latencies, errors, and whether texts change.

    Afterwards: requests that the server still holds, its memory, and answers compared with the same request sent alone.
    OUTRIDER_API_KEY is sent as the API key. Ctrl-C ends the run and keeps what was measured. Exit code 1: a request
    failed (429 is no failure), a text differed, or the server still held a request.
    """
    from outrider.bench.prompts import read
    from outrider.bench.serving.client import Requests
    from outrider.bench.serving.load import Load, measure_load
    from outrider.bench.serving.process import ServerPlace, held_when_idle, reached
    from outrider.bench.serving.table import TablePlan, measure

    common.check_writable(out, "--out")
    if loads is None:
        _refuse({"--turns": turns}, "with --loads")
    else:
        _refuse({"--clients": clients, "--seconds": seconds, "--check": check}, "without --loads")
    if url is None:
        _refuse({"--pid": pid}, "with --url")
    else:
        _refuse({"--server-options": server_options or None}, "without --url")
    plan = None if loads is None else TablePlan(_numbers(loads, "--loads"), turns or 3, requests or 24)
    load = Load(clients or 8, 60.0 if seconds is None and requests is None else seconds, requests)
    checked = _checked(check or "32")
    texts = [text for task in read(prompts).values() for text in task]
    place = ServerPlace(
        target, tuple(shlex.split(server_options)), url, pid, os.environ.get("OUTRIDER_API_KEY") or None
    )
    with notes.status("starting") as status, reached(place, status.update) as (address, process):
        asked = Requests(texts, address.model(), tokens, not completions)
        if plan is not None:
            table = measure(address, asked, plan, status.update, lambda so_far: _save(out, so_far.to_json()))
            found = table.to_json() | {"held": held_when_idle(address)}
        else:
            found = measure_load(address, asked, load, status.update, checked, process)
    found = {"target": url or target, "server_options": server_options, "tokens_at_most": tokens, **found}
    _save(out, found)
    if as_json:
        answers.out(strict_json(found), highlight=False)
    else:
        (show_load if plan is None else show_loads)(found)
    if found["interrupted"]:
        notes.print("interrupted: this is what was measured until then")
        raise typer.Exit(130)
    if _failed(found):
        raise typer.Exit(1)


def capacity(
    curve: Annotated[Path, typer.Argument(help="What `outrider bench serve --loads ... --out` wrote of one replica.")],
    rate: Annotated[float | None, typer.Option(help="Requests per second to be answered.")] = None,
    within: Annotated[float | None, typer.Option(help="With --rate: 95 % of answers within so many seconds.")] = None,
    replicas: Annotated[str, typer.Option(help="Predict for these numbers of replicas.")] = "2,10,100,1000",
    clients: Annotated[int | None, typer.Option(min=1, help="Clients in all. Default: each replica's knee.")] = None,
    way: Annotated[str, typer.Option(help="The curve to use: speculative or plain.")] = "speculative",
    compare: Annotated[
        Path | None, typer.Option(help="The same measured of several replicas, to hold the prediction against.")
    ] = None,
    as_json: common.Json = False,
) -> None:
    """Predict throughput and latency of many replicas from the curve of one, and how many a rate of requests needs.

    With --compare the first number of --replicas says how many were measured there.
    """
    from outrider.bench.serving import capacity as replicas_of

    one, counts = replicas_of.LoadCurve.read(_read(curve), way), _numbers(replicas, "--replicas")
    if rate is None:
        _refuse({"--within": within}, "with --rate")
    predictions = [replicas_of.predict(one, count, clients) for count in counts]
    found: dict[str, Any] = {
        "way": way,
        "knee": vars(one.knee),
        "predicted": [{"replicas": count, **vars(each)} for count, each in zip(counts, predictions, strict=True)],
    }
    if rate is not None:
        needed = replicas_of.replicas_for(one, rate, within)
        found["needed"] = {"rate": rate, "within": within, "replicas": needed, "each": vars(one.fastest_within(within))}
    if compare is not None:
        several = replicas_of.LoadCurve.read(_read(compare), way)
        found["compared"] = {"replicas": counts[0], "loads": replicas_of.compare(one, several, counts[0])}
    if as_json:
        answers.out(strict_json(found), highlight=False)
    else:
        show_capacity(found)


def _refuse(options: Mapping[str, Any], where: str) -> None:
    """Options that would have no effect here."""
    for name, value in options.items():
        require(value is None, f"{name} {value} means something {where} only; leave it out")


def _numbers(text: str, option: str) -> list[int]:
    words = [word.strip() for word in text.split(",") if word.strip()]
    known = bool(words) and all(word.isdecimal() and int(word) > 0 for word in words)
    require(known, f"{option} {text!r}: write numbers from 1 on, as 1,2,4,8")
    return [int(word) for word in words]


def _checked(text: str) -> int | None:
    require(text == "all" or text.isdecimal(), f"--check {text!r}: write a number of answers, or all")
    return None if text == "all" else int(text)


def _read(path: Path) -> dict[str, Any]:
    try:
        return dict(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise BadOption(f"{path}: cannot be read ({error.strerror}); name a file that --out wrote") from None
    except (ValueError, TypeError):
        raise BadOption(f"{path}: not a result of `outrider bench serve`; name a file that --out wrote") from None


def _save(out: Path | None, found: dict[str, Any]) -> None:
    if out is not None:
        out.write_text(strict_json(found, indent=1) + "\n", encoding="utf-8")


def _failed(found: dict[str, Any]) -> bool:
    parts: Sequence[dict[str, Any]] = [found[name] for name in ("alone", "texts") if name in found]
    cells = (
        [found] if "errors" in found else [point[way] for point in found["points"] for way in ("plain", "speculative")]
    )
    return bool(found["held"] or any(part["differ"] for part in parts) or any(cell["errors"] for cell in cells))
