"""Shared by all tests: quiet transformers, no test that depends on another's random state, no skip unnoticed, and a
failure told at once."""

from __future__ import annotations

import contextlib
import json
import logging
import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from caches import link_compiled
from expected_skips import expected
from outrider.runtime.cache_dir import cache_dir

logging.getLogger("transformers").setLevel(logging.ERROR)

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # A shell that starts the tests in the background has Ctrl-C ignored, by them and by all they start; some press it.
    signal.signal(signal.SIGINT, signal.default_int_handler)

try:
    from hypothesis import settings
except ImportError:  # a rented GPU has torch and pytest, and tests/gpu needs no more
    pass
else:
    # A loaded machine is not a failure; examples are new in every run, and a failing one prints how to repeat it.
    settings.register_profile("outrider", deadline=None, database=None, print_blob=True)
    settings.load_profile("outrider")


@pytest.fixture(scope="session", autouse=True)
def session_cache(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A cache of this session's own, so that models of tests leave nothing in the user's.

    It links to what the user's has of real models, downloaded and prepared, and to compiled code, which takes long.
    """
    users, base = cache_dir(), tmp_path_factory.getbasetemp()
    own = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "session-cache"  # one for all workers
    own.mkdir(exist_ok=True)
    with contextlib.suppress(ImportError):
        from outrider.kernels.numba.code_cache import code_folder_in

        code_folder_in(users)  # made there, where the next session finds it
    link_compiled(users, own)
    for entry in users.glob("[!.]*"):
        if (entry / "outrider.json").is_file() or _prepared_from(entry, users):
            with contextlib.suppress(FileExistsError):  # another worker was first
                (own / entry.name).symlink_to(entry)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("OUTRIDER_CACHE", str(own))
        yield own


def _prepared_from(entry: Path, users: Path) -> bool:
    """Whether a directory of the cache holds an engine's weights of a model that is in the cache itself."""
    try:
        record = json.loads((entry / "prepared.json").read_text(encoding="utf-8"))
        return users.resolve() in Path(record["source"]).parents
    except (OSError, ValueError, KeyError, TypeError):
        return False


@pytest.fixture(autouse=True)
def fresh_random_state() -> None:
    """Nothing in the package may use torch's global generator; a test that does gets a known state."""
    torch.manual_seed(0)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """An empty cache directory of the test's own, not yet made."""
    monkeypatch.setenv("OUTRIDER_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache"


@pytest.fixture(scope="session")
def two_models(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A directory with two models, ``target`` and ``draft``, of the same tokens."""
    import library  # a rented GPU has no tokenizers

    root = tmp_path_factory.mktemp("models")
    library.save_llama(root / "target")
    library.save_llama(root / "draft", seed=1)
    return root


# --- skips -------------------------------------------------------------------------------------------------

_unexpected: list[str] = []


def pytest_addoption(parser: pytest.Parser) -> None:
    told = "fail where a test was skipped for a reason that this machine has no cause for; so does CI=true"
    parser.addoption("--strict-skips", action="store_true", help=told)


def _strict(config: pytest.Config) -> bool:
    return bool(config.getoption("--strict-skips")) or os.environ.get("CI", "").lower() in ("1", "true")


def _note(report: pytest.TestReport | pytest.CollectReport) -> None:
    if not report.skipped or hasattr(report, "wasxfail"):
        return
    reason = report.longrepr[2] if isinstance(report.longrepr, tuple) else str(report.longrepr)
    if not expected(reason):
        _unexpected.append(f"{report.nodeid}: {reason}")


pytest_collectreport = _note


def pytest_runtest_logreport(report: pytest.TestReport) -> None:
    _note(report)
    if report.failed and "PYTEST_XDIST_WORKER" not in os.environ:  # a run that is cut off shows no summary
        told = report.longreprtext.strip().splitlines() or [""]
        print(f"\nFAILED {report.nodeid} ({report.when}): {told[-1]}", flush=True)


def pytest_sessionfinish(session: pytest.Session) -> None:
    if _unexpected and _strict(session.config) and session.exitstatus in (pytest.ExitCode.OK, None):
        session.exitstatus = pytest.ExitCode.TESTS_FAILED


@pytest.hookimpl(trylast=True)
def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter, config: pytest.Config) -> None:
    """At the end, behind the list of slow tests: of a log that is cut, the end is what is kept."""
    if _unexpected and _strict(config):
        terminalreporter.section("skipped, and this machine has no cause for it (tests/expected_skips.py)")
        for line in _unexpected:
            terminalreporter.line(line, red=True)
