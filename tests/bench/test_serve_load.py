"""``outrider bench serve`` against real servers around tiny models, and against one that misbehaves on purpose."""

from __future__ import annotations

import json
import os
import signal
import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import library
import outrider
from outrider.bench.serving.client import Address, Answer, Requests
from outrider.bench.serving.load import Clients, Load, LoadRun, figures, percentiles
from outrider.bench.serving.process import started
from outrider.bench.serving.table import LoadTable, TablePlan
from outrider.cli.main import app
from serving import Served, serving


@pytest.fixture(scope="module")
def target(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.save_llama(tmp_path_factory.mktemp("loaded") / "target", seed=3)


@pytest.fixture(scope="module")
def served(target: Path) -> Iterator[Served]:
    with serving(outrider.load(str(target), "copy", "cpu", "float32", width=5)) as server:
        yield server


@pytest.fixture
def prompts(tmp_path: Path) -> Path:
    path = tmp_path / "prompts.jsonl"
    path.write_text("".join(json.dumps({"prompt": text}) + "\n" for text in ("the cat", "a dog sat", "so")))
    return path


def bench(*words: object) -> Any:
    return CliRunner().invoke(app, ["bench", *map(str, words)])


SHORT = ("--completions", "--tokens", 6, "--json")


def test_a_load_and_what_it_leaves_behind(served: Served, prompts: Path, tmp_path: Path) -> None:
    """Catches requests lost or counted twice, answers compared with another request's, and rows that stay."""
    words = ("--clients", 5, "--requests", 13, "--check", "all", "--prompts", prompts, "--out", tmp_path / "out.json")
    result = bench("serve", "--url", served.address, *words, *SHORT)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert (found["answers"], found["errors"], found["refused_429"], found["held"]) == (13, {}, 0, 0)
    assert found["alone"] == {"compared": 13, "same": 13, "differ": []}
    assert found["first_token"]["n"] == found["whole"]["n"] == 13 and 13 < found["tokens"] <= 6 * 13
    assert 0 < found["first_token"]["p50"] <= found["whole"]["p50"] <= found["whole"]["p95"]
    assert json.loads((tmp_path / "out.json").read_text()) == found


def test_loads_are_compared_in_turns(served: Served, prompts: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Catches a way that does not ask for what it is called, turns not counted, and a base that is missing."""
    asked: list[Any] = []
    body = Requests.body
    monkeypatch.setattr(Requests, "body", lambda self, number: asked.append(self.speculation) or body(self, number))
    result = bench(
        "serve", "--url", served.address, "--loads", "2", "--turns", 2, "--requests", 4, "--prompts", prompts, *SHORT
    )
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert [point["load"] for point in found["points"]] == [1, 2]  # one by one is the base, asked for or not
    for point in found["points"]:
        assert point["plain"]["answers"] == point["speculative"]["answers"] == 12  # two turns of two rounds
        assert point["plain"]["tokens"] == point["speculative"]["tokens"]
        assert {point[name]["n"] for name in point if "over" in name} == {2}
    assert found["points"][0]["plain_over_one_by_one"]["turns"] == [1.0, 1.0]
    assert found["texts"] == {"compared": 42, "same": 42, "differ": []} and found["held"] == 0
    counted = asked[3:]  # behind the round that warms up
    assert len(counted) == 48 and counted.count(True) == counted.count(False) == 24
    assert counted[:12] == [False] * 6 + [True] * 6 and counted[24:36] == [True] * 6 + [False] * 6


@contextmanager
def scripted(reply: Callable[[int, dict[str, Any]], tuple[int, bytes]]) -> Iterator[str]:
    """A server that answers the n-th completion as told."""
    count, lock = iter(range(10**6)), threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            self.say(200, b'{"data": [{"id": "scripted"}]}')

        def do_POST(self) -> None:
            body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
            with lock:
                number = next(count)
            self.say(*reply(number, body))

        def say(self, status: int, data: bytes) -> None:
            self.send_response(status)
            if status == 429:
                self.send_header("Retry-After", "0")
            self.end_headers()
            self.wfile.write(data)

        def log_message(self, *given: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def stream(*texts: str, reason: str | None = "stop", end: bytes = b"data: [DONE]\n\n") -> bytes:
    events = [{"choices": [{"index": 0, "text": text, "finish_reason": None}]} for text in texts]
    events += [{"choices": [{"index": 0, "text": "", "finish_reason": reason}]}] if reason else []
    return b"".join(b"data: " + json.dumps(event).encode() + b"\n\n" for event in events) + end


def test_errors_are_told_apart(prompts: Path) -> None:
    """A stream that breaks off or reports an error has status 200 and is no answer. Changed texts are told."""
    replies = [
        (429, b"full"), (500, b"broken"), (200, stream("half", reason=None, end=b"")),
        (200, stream("half", end=b'data: {"error": {"message": "NaN"}}\n\n')),
        (200, stream("one", " two")), (200, stream("other")),
    ]  # fmt: skip

    def reply(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        under_load = 3 <= number < 3 + len(replies)  # behind the round that warms up
        return replies[number - 3] if under_load else (200, stream("one", " two"))

    with scripted(reply) as url:
        words = ("--url", url, "--clients", 1, "--requests", 6, "--check", "all", "--prompts", prompts)
        result = bench("serve", *words, *SHORT)
    assert result.exit_code == 1, result.output
    found = json.loads(result.stdout)
    assert (found["answers"], found["refused_429"]) == (2, 1) and found["errors"] == {"500": 1, "stream": 2}
    assert found["first_error"] == "broken" and found["tokens"] == 3  # a server that counts none: its chunks
    assert found["alone"] == {"compared": 2, "same": 1, "differ": [5]}
    assert found["held"] is None  # the server does not tell


def test_no_server_is_one_clear_line(prompts: Path) -> None:
    with scripted(lambda number, body: (200, b"")) as url:
        pass
    assert "no answer" in str(bench("serve", "--url", url, "--prompts", prompts).exception)
    assert "url must be like" in str(bench("serve", "--url", "localhost").exception)
    for words, says in (
        (("--loads", "1,2", "--clients", 4), "--clients 4 means something without --loads only"),
        (("--turns", 4), "--turns 4 means something with --loads only"),
        (("--pid", 4), "--pid 4 means something with --url only"),
        (("--url", url, "--server-options", "--slots 4"), "--server-options --slots 4 means something without --url"),
        (("--loads", "1,x"), "--loads '1,x'"),
        (("--check", "some"), "--check 'some'"),
    ):
        assert says in str(bench("serve", *words).exception), words


def test_ctrl_c_keeps_the_answers_that_were_complete() -> None:
    """The clients that wait for an answer give up, and nothing that was measured is lost."""
    told, waiting, go = [], threading.Event(), threading.Event()

    def reply(number: int, body: dict[str, Any]) -> tuple[int, bytes]:
        if number >= 2:
            waiting.set()
            go.wait(30)
        return 200, stream("one")

    def say(line: str) -> None:
        told.append(line)
        if waiting.wait(30):
            go.set()
            raise KeyboardInterrupt

    with scripted(reply) as url:
        clients = Clients(Address(url), Requests(["so"], "scripted", chat=False), Load(1, seconds=600))
        run = clients.measure(say)
    assert run.interrupted and len(run.answers) >= 2 and all(answer.text == "one" for answer in run.answers)
    assert "1 clients" in told[0]


def test_a_table_that_was_interrupted_shows_whole_points() -> None:
    """Half a turn gives no ratio of runs from different turns."""

    def run(speed: float) -> LoadRun:
        return LoadRun(Load(1, requests=1), [Answer(0, 0.0, "200", tokens=100, ended=100 / speed)], began=0.0)

    table = LoadTable(TablePlan([1, 2, 4], turns=2))
    for load, way, speed in ((1, "plain", 10), (1, "speculative", 20), (2, "plain", 40), (2, "speculative", 60),
                             (4, "plain", 99), (1, "plain", 30)):  # fmt: skip
        table.add(load, way, run(speed))
    points = table.to_json()["points"]
    assert [point["load"] for point in points] == [1, 2]
    assert points[0]["speculative_over_plain"]["turns"] == [2.0] and points[1]["plain_over_one_by_one"]["ratio"] == 4
    assert points[0]["plain"]["tokens_per_second"] == pytest.approx(200 / (10 + 100 / 30))


def test_figures_of_known_arrivals() -> None:
    """Ten requests whose tokens come every 0.5 s behind a first one that takes as many tenths as its number says."""
    answers = [
        Answer(n, 1.0, "200", None, "x", 5, "stop", [1 + (n + 1) / 10 + 0.5 * k for k in range(5)], 3 + (n + 1) / 10)
        for n in range(10)
    ]
    found = figures([LoadRun(Load(10, requests=10), answers, began=1.0)])
    assert found["per_token"]["p95"] == pytest.approx(0.5) and found["between_chunks"]["n"] == 40
    assert found["first_token"]["p50"] == pytest.approx(0.55) and found["first_token"]["p95"] == pytest.approx(0.955)
    assert found["seconds"] == pytest.approx(3.0) and found["tokens_per_second"] == pytest.approx(50 / 3)
    assert percentiles([]) == {"p50": None, "p95": None, "n": 0}


def test_requests_are_the_same_by_number() -> None:
    """Every prompt comes greedy and sampled, no two requests are equal, and the seed is the number."""
    requests = Requests(["a", "b"], "tiny", tokens=4)
    bodies = [requests.body(n) for n in range(8)]
    assert bodies == [requests.body(n) for n in range(8)] and len({str(body["messages"]) for body in bodies}) == 8
    ways: Sequence[tuple[str, bool]] = [(b["messages"][0]["content"][-1], b["temperature"] > 0) for b in bodies]
    assert set(ways) == {("a", False), ("a", True), ("b", False), ("b", True)}
    assert [body["seed"] for body in bodies] == list(range(8)) and "speculation" not in bodies[0]


@pytest.mark.slow
def test_a_server_of_its_own_is_started_and_stopped(target: Path, prompts: Path) -> None:
    """A real process: its memory is read, and it ends with the measurement."""
    options = "--draft copy --engine torch --slots 2 --context 120 --max-tokens 20"
    words = ("--server-options", options, "--clients", 2, "--requests", 4, "--check", 2, "--prompts", prompts)
    result = bench("serve", target, *words, *SHORT)
    assert result.exit_code == 0, result.output
    found = json.loads(result.stdout)
    assert found["answers"] == 4 and found["held"] == 0 and found["alone"]["same"] == 2
    assert min(found["resident_bytes"].values()) > 2**25
    failed = bench("serve", target.parent / "none", *SHORT)
    assert "did not start" in str(failed.exception) and "none" in str(failed.exception)


@pytest.mark.slow
def test_sigterm_ends_the_server_that_was_started(target: Path) -> None:
    """`timeout outrider bench serve ...` left a server behind that went on for ever."""
    before = signal.getsignal(signal.SIGTERM)
    options = ["--draft", "copy", "--engine", "torch", "--slots", "2", "--context", "120", "--max-tokens", "20"]
    with pytest.raises(KeyboardInterrupt), started(str(target), options, lambda line: None) as (_, pid):
        os.kill(os.getpid(), signal.SIGTERM)
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)
    assert signal.getsignal(signal.SIGTERM) is before
