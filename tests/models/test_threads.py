"""One loaded model, several threads: each run reads its own hidden states."""

from __future__ import annotations

import threading
from typing import Any

import pytest
import torch
from helpers import wrapped
from torch import Tensor

from outrider.core.protocols import Shape


@pytest.mark.parametrize("family", ["llama", "t5"])
def test_two_threads_do_not_read_each_others_states(family: str) -> None:
    """The states a head drafts from were kept on the model, so that a second thread's run overwrote the first's.

    A barrier inside the output layer makes both runs reach it before either goes on: the worst case, every time.
    """
    model = wrapped(family)
    prompts = ([5, 6, 7, 8], [50, 51, 52, 53])

    def hidden(prompt: list[int]) -> Tensor:
        session = model.start(1, Shape(64, 3, 8))
        session.admit(0, prompt, prompt if model.encoder_decoder else None)
        session.score(torch.zeros((1, 0), dtype=torch.int64))
        session.commit(torch.tensor([[9]]), torch.ones(1, dtype=torch.int64))
        assert session.hidden is not None
        return session.hidden.clone()

    expected = [hidden(prompt) for prompt in prompts]
    assert not torch.equal(*expected)
    found: list[Any] = [None, None]

    def work(index: int) -> None:
        found[index] = hidden(prompts[index])

    meeting = threading.Barrier(2, timeout=60)
    layer = model.model.get_output_embeddings()
    hook = layer.register_forward_hook(lambda *_: (meeting.wait(), None)[1])
    try:
        threads = [threading.Thread(target=work, args=(i,)) for i in range(2)]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
    finally:
        hook.remove()
    for index in range(2):
        assert torch.equal(found[index], expected[index])
