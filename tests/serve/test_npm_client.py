"""The official npm client works unchanged, in a real node. ``.ci/run`` installs it into a temporary folder."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from serving import PATIENCE, Served

SCRIPT = Path(__file__).with_name("openai_client.cjs")
FOLDER = os.environ.get("OUTRIDER_NPM", "")
"""Where ``npm install openai`` was run."""


@pytest.fixture(scope="module")
def found(served: Served) -> Any:
    packages, node = Path(FOLDER) / "node_modules", shutil.which("node")
    if node is None or not FOLDER or not (packages / "openai").is_dir():
        pytest.skip("npm's openai is not here: npm install openai in a folder, and name it in OUTRIDER_NPM")
    run = subprocess.run(
        [node, SCRIPT, served.address], capture_output=True, text=True, timeout=PATIENCE,
        env={**os.environ, "NODE_PATH": str(packages)},
    )  # fmt: skip
    assert run.returncode == 0, run.stderr
    return json.loads(run.stdout)


def test_completions_whole_streamed_and_seeded(found: Any, served: Served) -> None:
    whole = found["completion"]["choices"][0]["text"]
    assert whole == found["again"] == found["streamed"] == served.text("the cat", max_tokens=20, seed=1) != ""
    assert found["completion"]["usage"]["prompt_tokens"] == 5


def test_a_stop_ends_the_text(found: Any) -> None:
    whole, stopped = found["completion"]["choices"][0]["text"], found["stopped"]
    assert stopped["finish_reason"] == "stop" and stopped["text"] == whole[: whole.index(whole[3:5])]


def test_chats_whole_and_streamed(found: Any) -> None:
    choice = found["chat"]["choices"][0]
    assert choice["message"]["content"] == found["chatStreamed"] != ""
    assert len(choice["logprobs"]["content"]) == found["usage"]["completion_tokens"]
    assert found["chat"]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0


def test_errors_and_models(found: Any) -> None:
    assert found["bad"]["name"] == "BadRequestError" and found["bad"]["status"] == 400
    assert found["bad"]["param"] == "temperature" and "got 9" in found["bad"]["message"]
    assert found["unknown"]["name"] == "NotFoundError" and found["models"] == ["tiny"]
