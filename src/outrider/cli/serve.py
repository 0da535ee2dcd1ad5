"""``outrider serve``: a model behind an API as OpenAI's clients expect it."""

from __future__ import annotations

import errno
import math
import socket
from pathlib import Path
from typing import Annotated

import typer

from outrider.cli.common import (
    DEFAULT_TARGET,
    Device,
    Dtype,
    Engine,
    Graphs,
    KvCacheDtype,
    MaxLength,
    TargetArgument,
    Trust,
    Weights,
    Width,
    check_drafts,
    loading_options,
    notes,
    read_gamma,
)
from outrider.cli.plan_option import Plan, planned
from outrider.errors import BadOption, require

LOOPBACK = ("127.0.0.1", "localhost", "::1")


def serve(
    command: typer.Context,
    target: TargetArgument = DEFAULT_TARGET,
    draft: Annotated[
        list[str] | None,
        typer.Option(
            "--draft",
            "-d",
            help="Drafter, as of generate; repeatable, and requests may name one of them: "
            '{"speculation": {"draft": ...}}. Default: auto.',
        ),
    ] = None,
    gamma: Annotated[
        str, typer.Option(help="Guesses per target run of requests that do not say it: 1 to width - 1, or auto.")
    ] = "auto",
    plan: Plan = None,
    host: Annotated[str, typer.Option(help="Address to listen on. Loopback unless told otherwise.")] = "127.0.0.1",
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port to listen on; 0: any that is free.")] = 8000,
    api_key_file: Annotated[
        Path | None, typer.Option(help="File with API keys, one per line; OUTRIDER_API_KEY may hold one as well.")
    ] = None,
    allow_anonymous: Annotated[
        bool, typer.Option("--allow-anonymous", help="Serve beyond loopback without API keys.")
    ] = False,
    model_name: Annotated[str | None, typer.Option(help="Name of the model in requests. Default: TARGET's.")] = None,
    slots: Annotated[
        int | None, typer.Option(min=1, help="Requests that run together. Default: what suits the model.")
    ] = None,
    context: Annotated[int, typer.Option(min=2, help="Tokens of a prompt and its answer at most.")] = 2016,
    memory: Annotated[
        float | None,
        typer.Option(help="GiB for KV caches; fewer slots where they need more. Default: half of what is free."),
    ] = None,
    waiting: Annotated[int, typer.Option(min=1, help="Requests that may wait for a slot; more get 429.")] = 64,
    max_tokens: Annotated[int, typer.Option(min=1, help="Tokens of an answer at most.")] = 1024,
    max_bytes: Annotated[int, typer.Option(min=1024, help="Bytes of a request's body at most.")] = 4 << 20,
    timeout: Annotated[float, typer.Option(min=0.1, help="Seconds for a whole answer at most.")] = 600.0,
    drain: Annotated[float, typer.Option(min=0, help="Seconds for answers under way after SIGTERM.")] = 60.0,
    cors_origin: Annotated[
        list[str] | None, typer.Option(help="Origin of web pages that may use the API from a browser; repeatable.")
    ] = None,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Log every request, without bodies or keys.")
    ] = False,
    device: Device = "auto",
    dtype: Dtype = "auto",
    engine: Engine = "auto",
    weights: Weights = "full",
    kv_cache_dtype: KvCacheDtype = "auto",
    max_length: MaxLength = None,
    width: Width = 9,
    graphs: Graphs = None,
    remember: Annotated[
        bool,
        typer.Option(
            "--remember", help="With --draft suffix: guess from earlier answers to the same API key, kept in memory."
        ),
    ] = False,
    trust_remote_code: Trust = False,
    ray: Annotated[
        bool, typer.Option("--ray", help="Run replicas on a Ray cluster (pip install '.[serve,ray]'): the same API.")
    ] = False,
    replicas: Annotated[int | None, typer.Option(min=1, help="With --ray: replicas of the model. Default: 1.")] = None,
    max_replicas: Annotated[
        int | None, typer.Option(min=1, help="With --ray: start up to so many while requests queue up.")
    ] = None,
    replica_cpus: Annotated[
        float | None, typer.Option(min=0.01, help="With --ray: cores of each replica. Default: 1.")
    ] = None,
) -> None:
    """Serve a model over HTTP: /v1/completions, /v1/chat/completions, /metrics, and a page at /."""
    try:
        from outrider.serve import run
    except ModuleNotFoundError as error:
        raise BadOption(f"serving needs {error.name}; install it with pip install '.[serve]'") from None
    from outrider.serve.settings import ServerSettings, public_name, read_keys, served_names

    _check(port, host, timeout, drain, cors_origin or [])
    for name, value in (("--replicas", replicas), ("--max-replicas", max_replicas), ("--replica-cpus", replica_cpus)):
        require(ray or value is None, f"{name} {value} means something with --ray only; leave it out")
    keys = read_keys(api_key_file)
    rule = "--remember keeps answers apart by API key, and there is none; give --api-key-file, or set OUTRIDER_API_KEY"
    require(not remember or bool(keys), rule)
    if host not in LOOPBACK and not keys and not allow_anonymous:
        raise BadOption(
            f"host {host!r} is reachable from other machines and there is no API key; give --api-key-file, set "
            "OUTRIDER_API_KEY, or say --allow-anonymous"
        )
    set_by_plan = planned(command, plan, slots or 1)
    draft = draft or [set_by_plan.get("draft", "auto")]
    check_drafts(draft)
    width = command.params["width"] = set_by_plan.get("width", width)
    guesses = _gamma(str(set_by_plan.get("gamma", gamma)), width)
    settings = ServerSettings(
        model=model_name or public_name(target), keys=keys, most_bytes=max_bytes, most_tokens=max_tokens,
        seconds=timeout, patience=drain, origins=tuple(cors_origin or ()), hosts=served_names(host, ()),
        gamma=guesses,
    )  # fmt: skip
    size = run.WantedSize(slots, context, waiting, memory)
    place = run.ListenAt(host, port, drain, access_log)
    first, *more = draft
    loading = loading_options(command) | {"draft": first}
    if ray:
        from outrider.cluster.answers import Loading
        from outrider.cluster.ray_serve import RayServer, Replicas, ServedModel

        wanted = Replicas(replicas or 1, max_replicas, replica_cpus or 1.0)
        notes.print(f"starting {wanted.least} replicas of {target} ...")
        served_model = ServedModel(Loading(_absolute(target), loading), tuple(more), size, settings)
        RayServer(served_model, wanted).run(place, notes.print)
        return
    from outrider.llm import load

    notes.print(f"loading {target} ...")
    llm = load(target, **loading)
    served = run.make_engine(llm, size, run.load_drafters(llm, more, trust_remote_code))
    notes.print("warming up ...")
    llm.warm_up(coupling="gumbel")
    rows = f"{served.limits.slots} slots of {served.limits.context} tokens"
    if served.limits.context < context:
        more_by = ", more with --max-length" if (llm.target.model.facts.longest or 0) > served.limits.context else ""
        given = f"context {context} is more than the model has positions for"
        notes.print(f"{given}: {served.limits.context} it is{more_by}")
    notes.print(f"{settings.model}, draft {llm.drafter.name}: {rows}, {'API key needed' if keys else 'no API key'}")
    run.run(served, settings, place, notes.print)


def _gamma(text: str, width: int) -> int | None:
    """Guesses of requests that do not say how many; None: adapted."""
    found = read_gamma(text)
    good = found == "auto" or (isinstance(found, int) and 1 <= found < width)
    require(good, f"--gamma must be auto, or a whole number from 1 to {width - 1}, width less 1, got {text!r}")
    return found if isinstance(found, int) else None


def _check(port: int, host: str, timeout: float, drain: float, origins: list[str]) -> None:
    """What would fail after minutes of loading, or never say so."""
    for name, value in (("timeout", timeout), ("drain", drain)):
        require(math.isfinite(value), f"{name} must be a number of seconds, got {value}")
    for origin in origins:
        known = origin.startswith(("http://", "https://")) and not origin.endswith("/")
        require(known, f"cors_origin must be like https://example.org, without a path, got {origin!r}")
    family = socket.AF_INET6 if ":" in host else socket.AF_INET
    with socket.socket(family) as trial:
        trial.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)  # as the server does: a port just left is free
        try:
            trial.bind((host, port))
        except OSError as error:
            reason = error.strerror or str(error)
            no_host = isinstance(error, socket.gaierror) or error.errno == errno.EADDRNOTAVAIL
            remedy = f"choose another {'--host' if no_host else '--port'}"
            raise BadOption(f"cannot listen on {host} port {port} ({reason}); {remedy}") from None


def _absolute(target: str) -> str:
    """A directory or file by its whole path: a replica may run in another directory."""
    return str(Path(target).resolve()) if Path(target).exists() else target
