"""``outrider serve --ray`` with two replicas on a real Ray of this machine: the API and the texts of one process."""

from __future__ import annotations

import http.client
import importlib
import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

import outrider
from outrider.cli.main import app
from outrider.cluster.answers import Loading
from outrider.cluster.ray_serve import REFUSING, RayServer, Replicas, ServedModel
from outrider.errors import OutriderError
from outrider.serve.engine import Limits
from outrider.serve.run import ListenAt, WantedSize
from outrider.serve.settings import ServerSettings
from serving import PATIENCE, Served, eventually, serving

KEY = "a-key-for-tests"
KEYS = {"Authorization": f"Bearer {KEY}"}
OPTIONS = ["--engine", "torch", "--draft", "copy", "--slots", "4", "--context", "120", "--max-tokens", "100"]
BODIES: list[dict[str, Any]] = [
    {"prompt": f"{n} the cat", "max_tokens": 20, "seed": n, "temperature": float(n % 2), "ignore_eos": True}
    for n in range(16)
]

pytestmark = [pytest.mark.alone, pytest.mark.slow]


@dataclass
class Program:
    """The command in a process of its own."""

    process: subprocess.Popen[str]
    server: Served

    def text(self, body: dict[str, Any]) -> str | None:
        """Of a completion; None where the server reports an error or the connection ends. Raises for neither."""
        try:
            status, answer, _ = self.server.send("/v1/completions", body, KEYS)
        except TimeoutError:
            raise
        except (OSError, http.client.HTTPException):
            return None
        return str(answer["choices"][0]["text"]) if status == 200 else None


@pytest.fixture(scope="module")
def program(ray: Any, target: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Program]:
    pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    keys = tmp_path_factory.mktemp("keys") / "keys"
    keys.write_text(f"{KEY}\n")
    command = [sys.executable, "-m", "outrider", "serve", target, "--ray", "--replicas", "2", "--replica-cpus", "0.5"]
    command += ["--port", "0", "--api-key-file", str(keys), *OPTIONS]
    address = ray.get_runtime_context().gcs_address
    environment = {**os.environ, "RAY_ADDRESS": address, "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment)
    try:
        assert process.stderr is not None
        lines: list[str] = []
        for line in process.stderr:
            lines.append(line)
            if line.startswith("http://"):
                break
        else:
            raise AssertionError("".join(lines))
        threading.Thread(target=lambda: lines.extend(process.stderr or ()), daemon=True).start()
        yield Program(process, Served(None, line.split()[0]))  # type: ignore[arg-type]
    finally:
        process.kill()
        process.wait()


def replicas(ray: Any) -> list[Any]:
    """Handles of the actors that serve."""
    named = ray.util.list_named_actors(all_namespaces=True)
    found = [entry for entry in named if entry["name"].startswith("SERVE_REPLICA::")]
    return [ray.get_actor(entry["name"], namespace=entry["namespace"]) for entry in found]


@pytest.fixture(scope="module")
def expected(target: str) -> list[str]:
    """The texts of one server without Ray."""
    llm = outrider.load(target, "copy", engine="torch")
    with serving(llm, Limits(slots=4, context=120, waiting=64)) as server:
        return [server.text(**body) for body in BODIES]


def test_two_replicas_give_the_texts_of_one_process(ray: Any, program: Program, expected: list[str]) -> None:
    """Streamed and whole, at once; options of security hold in every replica."""
    assert len(replicas(ray)) == 2
    with ThreadPoolExecutor(8) as threads:
        assert list(threads.map(program.text, BODIES)) == expected
    status, streamed, headers = program.server.send("/v1/completions", {**BODIES[3], "stream": True}, KEYS)
    chunks = [line.removeprefix("data: ") for line in streamed.split("\n\n") if line]
    assert status == 200 and chunks[-1] == "[DONE]" and len(chunks) > 3 and headers["X-Frame-Options"] == "DENY"
    assert "".join(json.loads(chunk)["choices"][0]["text"] for chunk in chunks[:-1]) == expected[3]
    for _ in range(6):  # whichever replica is asked
        assert program.server.send("/v1/completions", BODIES[0])[0] == 401
    assert program.server.send("/health")[0] == 200
    status, answer, _ = program.server.send("/v1/completions", {"prompt": "so", "unknown": 1}, KEYS)
    assert status == 400 and "unknown" in str(answer)


def test_a_replica_that_dies_takes_no_other_along(ray: Any, program: Program, expected: list[str]) -> None:
    """Requests come all the time. Each gets its text or an error, none waits for ever, and all go well again soon."""
    over, found = threading.Event(), []

    def client(start: int) -> None:
        number = start
        while not over.is_set():
            found.append((number % 16, program.text(BODIES[number % 16])))
            number += 1

    with ThreadPoolExecutor(4) as threads:
        running = [threads.submit(client, start) for start in range(4)]
        assert eventually(lambda: len(found) >= 8)
        ray.kill(replicas(ray)[0])
        seen = len(found)
        assert eventually(lambda: len(found) >= seen + 40)
        over.set()
        for each in running:
            each.result(PATIENCE)  # raises where one hangs
    assert all(text in (None, expected[number]) for number, text in found)
    assert sum(text is None for _, text in found) <= 8  # those that were with the one that died
    assert eventually(lambda: len(replicas(ray)) == 2)  # Ray starts another
    assert [program.text(body) for body in BODIES] == expected


def test_sigterm_lets_answers_end(ray: Any, program: Program) -> None:
    """Last, since the server ends: a stream that is under way is complete, and so is the end of the process."""
    host, body = program.server.address.removeprefix("http://"), {**BODIES[1], "max_tokens": 90, "stream": True}
    connection = http.client.HTTPConnection(host, timeout=PATIENCE)
    connection.request("POST", "/v1/completions", json.dumps(body), {"Content-Type": "application/json", **KEYS})
    answer = connection.getresponse()
    first = answer.readline()
    program.process.send_signal(signal.SIGTERM)
    assert b"[DONE]" in first + answer.read() and program.process.wait(PATIENCE) == 0
    assert not replicas(ray)
    with pytest.raises(OSError):
        program.server.send("/health")


def test_replicas_follow_the_queue(ray: Any) -> None:
    """Ray accepts what it is told: from so many to so many replicas, another one where slots are not enough."""
    serve = pytest.importorskip("ray.serve", reason="Ray Serve is not installed")
    given = ServedModel(Loading("x", {"device": "cpu"}), (), WantedSize(slots=6, waiting=10), ServerSettings("x"))
    fixed = RayServer(given, Replicas(3, cpus=0.5)).deployment(ray, serve, ListenAt(drain=7))
    assert fixed.num_replicas == 3 and fixed.max_ongoing_requests == 6 + 10 + REFUSING
    assert fixed.ray_actor_options == {"num_cpus": 0.5, "num_gpus": 0}
    scaled = RayServer(given, Replicas(2, 9)).deployment(ray, serve, ListenAt())
    schema = importlib.import_module("ray.serve.deployment").deployment_to_schema(scaled)
    found = dict(schema.autoscaling_config)
    assert (found["min_replicas"], found["max_replicas"], found["target_ongoing_requests"]) == (2, 9, 6)


def test_what_cannot_be_served_is_one_line(target: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Without Ray, and with options that mean nothing without it."""

    def told(*words: str) -> str:
        result = CliRunner().invoke(app, ["serve", target, "--port", "0", *words])
        assert isinstance(result.exception, OutriderError), result.output
        return str(result.exception)

    assert "--replicas 2 means something with --ray only" in told("--replicas", "2")
    assert "max_replicas must be at least replicas, 3, got 2" in told("--ray", "--replicas", "3", "--max-replicas", "2")
    monkeypatch.setitem(sys.modules, "ray", None)
    assert "pip install '.[ray]'" in told("--ray")
