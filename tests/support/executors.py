"""Executors for tests: tasks that run at once, and tasks that run when somebody waits for them."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any


class Done:
    """A task that has run already."""

    def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
        self.value, self.error = None, None
        try:
            self.value = function(*arguments)
        except Exception as error:
            self.error = error

    def result(self) -> Any:
        if self.error is not None:
            raise self.error
        return self.value

    def cancel(self) -> bool:
        return False


class AtOnce:
    """The simplest executor, and no relative of concurrent.futures."""

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Done:
        return Done(function, arguments)


class Lazy:
    """Runs a task only when somebody waits for it, and remembers what became of all of them."""

    def __init__(self) -> None:
        self.tasks: list[Lazy.Task] = []

    class Task:
        def __init__(self, function: Callable[..., Any], arguments: tuple[Any, ...]) -> None:
            self.function, self.arguments, self.state = function, arguments, "waiting"

        def result(self) -> Any:
            assert self.state != "cancelled"
            self.state = "run"
            return self.function(*self.arguments)

        def cancel(self) -> None:
            if self.state == "waiting":
                self.state = "cancelled"

    def submit(self, function: Callable[..., Any], /, *arguments: Any) -> Task:
        self.tasks.append(Lazy.Task(function, arguments))
        return self.tasks[-1]

    def states(self) -> list[str]:
        return [task.state for task in self.tasks]
