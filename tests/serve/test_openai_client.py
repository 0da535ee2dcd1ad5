"""The official Python client works unchanged."""

from __future__ import annotations

import asyncio
from concurrent.futures import ThreadPoolExecutor

import openai
import pytest

from serving import Served


@pytest.fixture
def client(served: Served) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{served.address}/v1", api_key="unused", max_retries=0)


def test_completions_whole_and_streamed(client: openai.OpenAI) -> None:
    whole = client.completions.create(model="tiny", prompt="the cat", max_tokens=20, seed=1, logprobs=1)
    parts = list(client.completions.create(model="tiny", prompt="the cat", max_tokens=20, seed=1, stream=True))
    assert "".join(part.choices[0].text for part in parts) == whole.choices[0].text != ""
    assert whole.choices[0].logprobs is not None and whole.usage is not None and whole.usage.prompt_tokens == 5


def test_chat_whole_and_streamed(client: openai.OpenAI) -> None:
    messages = [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}]
    asked = {"model": "tiny", "messages": messages, "max_completion_tokens": 15, "seed": 2}
    whole = client.chat.completions.create(**asked, logprobs=True, top_logprobs=2)  # type: ignore[call-overload]
    stream = client.chat.completions.create(**asked, stream=True, stream_options={"include_usage": True})  # type: ignore[call-overload]
    parts = list(stream)
    text = "".join(part.choices[0].delta.content or "" for part in parts if part.choices)
    assert text == whole.choices[0].message.content
    assert len(whole.choices[0].logprobs.content) == whole.usage.completion_tokens
    assert parts[-1].usage.total_tokens == whole.usage.total_tokens
    assert whole.model_extra["metrics"]["speculative_decoding"]["num_steps"] > 0


def test_extensions_predictions_and_many_at_once(served: Served) -> None:
    async def all_of_them() -> list[str | None]:
        client = openai.AsyncOpenAI(base_url=f"{served.address}/v1", api_key="unused", max_retries=0)

        async def one(number: int) -> str | None:
            answer = await client.chat.completions.create(
                model="tiny", messages=[{"role": "user", "content": "hi"}], max_tokens=10, temperature=0,
                prediction={"type": "content", "content": "x" * number}, extra_body={"speculation": {"gamma": 4}},
            )  # fmt: skip
            return answer.choices[0].message.content

        texts = await asyncio.gather(*map(one, range(1, 9)))
        await client.close()
        return texts

    with ThreadPoolExecutor(1) as thread:  # tests in a browser leave a loop running in this one
        assert len(set(thread.submit(asyncio.run, all_of_them()).result())) == 1


def test_errors_are_the_clients_own(client: openai.OpenAI) -> None:
    with pytest.raises(openai.BadRequestError, match="temperature"):
        client.completions.create(model="tiny", prompt="a", temperature=9)
    with pytest.raises(openai.NotFoundError, match="not served"):
        client.completions.create(model="other", prompt="a")
    assert [model.id for model in client.models.list()] == ["tiny"]
    assert client.models.retrieve("tiny").id == "tiny"
