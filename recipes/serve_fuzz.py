"""Sends a server thousands of requests that no client should send, and counts how it answers.

python recipes/serve_fuzz.py --requests 10000
python recipes/serve_fuzz.py --url http://127.0.0.1:8000 --requests 500 --json

Half of them are made from the server's OpenAPI document by schemathesis, valid and invalid ones; the others by hand:
wrong types, huge numbers, NaN, lone surrogates, deep nesting, truncated JSON, other content types, paths and methods,
and clients that leave early. A server error, an answer that does not come, an error of another shape than OpenAI's or a
row that is not given back fails the run. Without --url a server is started around a tiny random model. Ctrl-C shows
what was counted so far.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import random
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from fuzz_requests import PATHS, PATIENCE, Client, Counts, by_hand
from rich.console import Console
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn

EXAMPLES = 25
"""Requests that hypothesis makes at a time: with more it takes ever longer to vary those it has."""


def by_schema(url: str, client: Client, count: int, seed: int, advance: Callable[[], None]) -> None:
    """Requests made from the OpenAPI document, as many valid as invalid ones, for both paths that generate."""
    import schemathesis

    schema = schemathesis.openapi.from_url(f"{url}/openapi.json")
    modes = schemathesis.GenerationMode
    kinds = [(path, mode) for path in PATHS for mode in (modes.POSITIVE, modes.NEGATIVE)]
    left = count
    for round_number in range(-(-count // EXAMPLES)):
        path, mode = kinds[round_number % len(kinds)]
        strategy = schema[path]["POST"].as_strategy(generation_mode=mode)
        _send_cases(strategy, f"schema, {mode.value}", client, (min(EXAMPLES, left), seed + round_number), advance)
        left -= EXAMPLES


def _send_cases(
    strategy: Any, kind: str, client: Client, examples_and_seed: tuple[int, int], advance: Callable[[], None]
) -> None:
    import hypothesis
    import requests

    examples, seed = examples_and_seed

    @hypothesis.seed(seed)
    @hypothesis.settings(
        max_examples=examples, deadline=None, database=None, phases=[hypothesis.Phase.generate],
        suppress_health_check=list(hypothesis.HealthCheck),
    )  # fmt: skip
    @hypothesis.given(case=strategy)
    def send(case: Any) -> None:
        _lead_on(case.body)
        try:
            found = case.call(timeout=PATIENCE)
            client.judge(kind, found.status_code, found.content, found.headers.get("Content-Type") or "", case.body)
        except requests.RequestException as error:
            client.counts.add(kind, "no answer" if isinstance(error, requests.Timeout) else "broken")
            client.counts.fail(kind, f"{type(error).__name__}: {error}", case.body)
        advance()

    send()


def _lead_on(body: Any) -> None:
    """Names that no server has would be refused before anything else is looked at, and long answers take long."""
    if not isinstance(body, dict):
        return
    body.pop("model", None)
    if isinstance(body.get("speculation"), dict):
        body["speculation"].pop("draft", None)
    if isinstance(body.get("max_tokens"), int):
        body["max_tokens"] = min(body["max_tokens"], 4)


def fuzz(url: str, count: int, seed: int, counts: Counts, advance: Callable[[], None] = lambda: None) -> None:
    """Send ``count`` requests, and see that the server is idle and well behind them."""
    client, chance = Client(url, counts), random.Random(seed)
    for _ in range(count - count // 2):
        by_hand(client, chance)
        advance()
    by_schema(url, client, count // 2, seed, advance)
    check_idle(url, counts)


def check_idle(url: str, counts: Counts) -> None:
    """Every row was given back, and the server says that it is well."""
    end = time.monotonic() + PATIENCE
    while (state := _get(f"{url}/v1/outrider/status"))["running"] or state["waiting"]:
        if time.monotonic() > end:
            counts.fail("afterwards", f"{state['running']} rows run and {state['waiting']} wait", "nothing more")
            return
        time.sleep(0.05)
    if (health := _get(f"{url}/health")) != {"status": "ok"}:
        counts.fail("afterwards", f"/health says {health}", "nothing more")


def _get(url: str) -> Any:
    with contextlib.closing(urllib.request.urlopen(url, timeout=PATIENCE)) as answer:
        return json.load(answer)


@contextlib.contextmanager
def own_server() -> Iterator[str]:
    """``outrider serve`` with a tiny random model -> its address."""
    with tempfile.TemporaryDirectory() as folder:
        model, said = Path(folder) / "model", Path(folder) / "said"
        _save_tiny_model(model)
        command = [sys.executable, "-m", "outrider", "serve", str(model), "--draft", "copy", "--port", "0", "--engine",
                   "torch", "--slots", "4", "--context", "120", "--max-tokens", "8"]  # fmt: skip
        with said.open("w") as log, subprocess.Popen(command, stderr=log) as process:
            try:
                while not (lines := [line for line in said.read_text().splitlines() if line.startswith("http://")]):
                    if process.poll() is not None:
                        raise SystemExit(f"the server did not start:\n{said.read_text()}")
                    time.sleep(0.05)
                yield lines[0].split()[0]
            finally:
                process.terminate()


def _save_tiny_model(folder: Path) -> None:
    import transformers
    from tokenizers import Tokenizer, decoders, models, pre_tokenizers

    letters = ["<pad>", "<s>", "</s>", *sorted(pre_tokenizers.ByteLevel.alphabet())]
    words = Tokenizer(models.BPE({letter: place for place, letter in enumerate(letters)}, []))
    words.pre_tokenizer, words.decoder = pre_tokenizers.ByteLevel(add_prefix_space=False), decoders.ByteLevel()
    template = "{% for m in messages %}{{ m['role'] }}: {{ m['content'] }}\n{% endfor %}{{ tools }}"
    transformers.PreTrainedTokenizerFast(
        tokenizer_object=words, pad_token="<pad>", bos_token="<s>", eos_token="</s>", chat_template=template
    ).save_pretrained(folder)
    config = transformers.LlamaConfig(
        vocab_size=len(letters), hidden_size=32, intermediate_size=64, num_hidden_layers=2, num_attention_heads=4,
        max_position_embeddings=128, bos_token_id=1, eos_token_id=2, pad_token_id=0,
    )  # fmt: skip
    transformers.LlamaForCausalLM(config).save_pretrained(folder)


def main() -> None:
    parser = argparse.ArgumentParser(description="Send a server requests that no client should send.")
    parser.add_argument("--url", help="a server that runs; without it one is started around a tiny random model")
    parser.add_argument("--requests", type=int, default=10_000, help="how many to send")
    parser.add_argument("--seed", type=int, default=0, help="which ones")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    options = parser.parse_args()
    if options.requests < 1:
        parser.error(f"--requests must be at least 1, got {options.requests}")
    counts, stopped = Counts(), False
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with contextlib.nullcontext(options.url) if options.url else own_server() as url:
        try:
            with Progress(*columns, console=Console(stderr=True)) as progress:
                task = progress.add_task("fuzzing", total=options.requests)
                fuzz(url.rstrip("/"), options.requests, options.seed, counts, lambda: progress.advance(task))
        except KeyboardInterrupt:
            stopped = True
    report = counts.report(options.requests)
    sys.stdout.write((json.dumps(report) if options.json else _table(report, stopped)) + "\n")
    sys.exit(130 if stopped else bool(counts.failures))


def _table(report: dict[str, Any], stopped: bool) -> str:
    """What was counted, for people."""
    lines = [f"{report['sent']} of {report['asked']} requests" + (", stopped" if stopped else "")]
    for name in ("statuses", "kinds"):
        lines.append(f"{name}: " + ", ".join(f"{key} {count}" for key, count in report[name].items()))
    return "\n".join([*lines, *(report["failures"] or ["no server error, no hang, no row left behind"])])


if __name__ == "__main__":
    main()
