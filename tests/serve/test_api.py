"""The API as clients see it: fields, streams, log-probabilities, formats, and refusals with their reasons."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import torch
import transformers

from outrider.llm import LLM
from serving import Served

CHAT = {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 12, "temperature": 0}


def test_a_stream_is_the_whole_answer_in_pieces(served: Served) -> None:
    body = {"prompt": "the cat", "max_tokens": 30, "seed": 7, "n": 2}
    chunks = served.stream("/v1/completions", {**body, "stream_options": {"include_usage": True}})
    _, whole, _ = served.send("/v1/completions", body)
    for choice in whole["choices"]:
        own = [c["choices"][0] for c in chunks if c["choices"] and c["choices"][0]["index"] == choice["index"]]
        assert "".join(each["text"] for each in own) == choice["text"]
        assert [each["finish_reason"] for each in own if each["finish_reason"]] == [choice["finish_reason"]]
    assert chunks[-1]["choices"] == [] and chunks[-1]["usage"]["total_tokens"] == whole["usage"]["total_tokens"]


def test_a_chat_stream_begins_with_who_speaks(served: Served) -> None:
    chunks = served.stream("/v1/chat/completions", CHAT)
    _, whole, _ = served.send("/v1/chat/completions", CHAT)
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant" and chunks[0]["object"] == "chat.completion.chunk"
    text = "".join(chunk["choices"][0]["delta"].get("content", "") for chunk in chunks)
    assert text == whole["choices"][0]["message"]["content"]
    assert whole["choices"][0]["finish_reason"] == chunks[-1]["choices"][0]["finish_reason"] == "length"


@pytest.mark.parametrize("gamma", [0, 4])
def test_logprobs_are_the_models_own_under_speculation(served: Served, llm: LLM, target: Path, gamma: int) -> None:
    """Servers have returned the draft's log-probabilities, or none, for tokens that were guessed."""
    body = {"prompt": "the cat", "max_tokens": 20, "seed": 1, "logprobs": 2, "speculation": {"gamma": gamma}}
    _, answer, _ = served.send("/v1/completions", {**body, "prediction": {"content": served.text(**body)}})
    told = answer["choices"][0]["logprobs"]
    tokens = llm.generate("the cat", max_new_tokens=20, seed=1, temperature=1.0, coupling="gumbel").tokens
    prompt = llm.encode("the cat")
    model = transformers.AutoModelForCausalLM.from_pretrained(target, dtype=torch.float32)
    with torch.no_grad():
        table = model(torch.tensor([[*prompt, *tokens]])).logits[0, len(prompt) - 1 : -1].log_softmax(-1)
    expected = [float(table[place, token]) for place, token in enumerate(tokens)]
    assert told["token_logprobs"] == pytest.approx(expected, abs=1e-4)
    assert [max(top.values()) for top in told["top_logprobs"]] == pytest.approx(table.amax(-1).tolist(), abs=1e-4)
    assert told["text_offset"][:3] == [0, len(told["tokens"][0]), len(told["tokens"][0]) + len(told["tokens"][1])]


def test_the_trace_of_a_stream_colours_every_token(served: Served) -> None:
    """What the page shows: tokens by origin, and a step with its guesses."""
    body = {"prompt": "the cat", "temperature": 0, "max_tokens": 30, "ignore_eos": True}
    text = served.text(**body)
    traced = {**body, "prediction": {"content": text[:20]}, "speculation": {"trace": True}}
    chunks = served.stream("/v1/completions", traced)
    told = [chunk["outrider"] for chunk in chunks]
    assert "".join(token["text"] for each in told for token in each["tokens"]) == text
    for each in told:
        origins, step = [token["origin"] for token in each["tokens"]], each["step"]
        assert origins.count("accepted") == min(step["accepted"], len(origins))
        last = "plain" if not step["drafted"] else "bonus" if step["accepted"] == len(step["drafted"]) else "corrected"
        assert origins[-1] in ("accepted", last) and step["gamma"] >= len(step["drafted"]) and step["why"]
    assert [each["step"]["index"] for each in told] == list(range(len(told)))
    assert {token["origin"] for each in told for token in each["tokens"]} >= {"accepted", "bonus"}


def test_a_schema_is_followed_with_every_drafter(served: Served) -> None:
    """The grammar sees every drafted prefix: what speculation keeps is what plain decoding writes."""
    schema = {"type": "object", "properties": {"a": {"enum": ["xyz", "xyw"]}, "b": {"type": "boolean"}},
              "required": ["a", "b"], "additionalProperties": False}  # fmt: skip
    form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": schema, "strict": True}}
    texts = set()
    for speculation in ({"enabled": False}, {"gamma": 4}, {"gamma": 2}):
        body = {**CHAT, "max_tokens": 60, "temperature": 0.7, "seed": 4, "response_format": form}
        _, answer, _ = served.send("/v1/chat/completions", {**body, "speculation": speculation})
        texts.add(answer["choices"][0]["message"]["content"])
    assert len(texts) == 1
    found = json.loads(texts.pop())
    assert found["a"] in ("xyz", "xyw") and isinstance(found["b"], bool)


def test_tools_reach_the_template_and_calls_come_back(served: Served) -> None:
    from outrider.serve.chat import tool_calls

    tool = {"type": "function", "function": {"name": "look", "parameters": {"type": "object"}}}
    _, without, _ = served.send("/v1/chat/completions", CHAT)
    _, with_tool, _ = served.send("/v1/chat/completions", {**CHAT, "tools": [tool]})
    assert with_tool["usage"]["prompt_tokens"] > without["usage"]["prompt_tokens"]
    streamed = served.stream("/v1/chat/completions", {**CHAT, "tools": [tool]})
    assert streamed[-1]["choices"][0]["delta"]["content"] == with_tool["choices"][0]["message"]["content"]
    calls = tool_calls('<tool_call>\n{"name": "look", "arguments": {"at": 1}}\n</tool_call>')
    assert calls[0]["function"] == {"name": "look", "arguments": '{"at": 1}'}
    assert tool_calls("no call") == tool_calls("<tool_call>{broken}</tool_call>") == []


def test_the_state_is_told(served: Served) -> None:
    served.text("the cat", max_tokens=20, temperature=0, speculation={"gamma": 4})
    _, status, _ = served.send("/v1/outrider/status")
    assert {"model", "draft", "engine", "dtype", "slots", "running", "waiting", "alpha", "c", "gamma",
            "tokens_per_second"} <= set(status)  # fmt: skip
    assert status["model"] == "tiny" and "/" not in status["draft"] and status["gamma"] > 0
    _, theory, _ = served.send("/v1/outrider/theory")
    assert theory["curves"][0]["speedup"][0] == 1 and set(theory["here"]) == {"alpha", "c", "gamma", "speedup"}
    _, metrics, _ = served.send("/metrics")
    for name in ("drafts", "draft_tokens", "accepted_tokens"):
        assert f"vllm:spec_decode_num_{name}_total" in metrics
    assert 'outrider_requests_total{path="/v1/completions",status="200"}' in metrics
    assert served.send("/health")[0] == 200
    _, models, _ = served.send("/v1/models")
    assert models["data"][0]["id"] == "tiny" and served.send("/v1/models/tiny")[0] == 200


def test_harmless_fields_are_accepted(served: Served) -> None:
    harmless = {"user": "me", "metadata": {"a": 1}, "store": False, "service_tier": "auto", "safety_identifier": "x",
                "prompt_cache_key": "k", "parallel_tool_calls": True, "modalities": ["text"]}  # fmt: skip
    assert served.send("/v1/chat/completions", {**CHAT, **harmless})[0] == 200


BAD: list[tuple[Any, str]] = [
    (b"", "JSON"), (b"{", "JSON"), (b"[]", "object"), (b"null", "object"), (b"[" * 100_000, ""),
    ({}, "prompt"), ({"prompt": ""}, "empty"), ({"prompt": []}, "prompt"), ({"prompt": [[]]}, "prompt"),
    ({"prompt": [10**6]}, "vocabulary"), ({"prompt": [-1]}, "prompt"), ({"prompt": 5}, "prompt"),
    ({"prompt": "a" * 500}, "context"), (b'{"prompt": "\\ud800"}', "Unicode"),
    ({"prompt": "a", "max_tokens": 0}, "max_tokens"), ({"prompt": "a", "max_tokens": 10**9}, "max_tokens"),
    ({"prompt": "a", "max_tokens": "5"}, "max_tokens"), ({"prompt": "a", "temperature": -1}, "temperature"),
    (b'{"prompt": "a", "temperature": NaN}', "temperature"), ({"prompt": "a", "top_p": 0}, "top_p"),
    ({"prompt": "a", "temperature": 1e-30}, "temperature"), ({"prompt": "a", "repetition_penalty": 1e-30}, "penalty"),
    ({"prompt": "a", "n": 0}, "n"), ({"prompt": "a", "n": 100}, "n"), ({"prompt": "a", "seed": 2**64}, "seed"),
    ({"prompt": "a", "stop": [""]}, "stop"), ({"prompt": "a", "stop": ["a"] * 99}, "stop"),
    (b'{"prompt": "a", "stop": "\\udc00"}', "stop"), ({"prompt": "a", "logit_bias": {"x": 1}}, "logit_bias"),
    ({"prompt": "a", "logit_bias": {"99999": 1}}, "vocabulary"), ({"prompt": "a", "logit_bias": {"1": 101}}, "logit"),
    ({"prompt": "a", "echo": True}, "echo"), ({"prompt": "a", "suffix": "b"}, "suffix"),
    ({"prompt": "a", "best_of": 2}, "best_of"), ({"prompt": "a", "logprobs": 99}, "logprobs"),
    ({"prompt": "a", "model": "../../etc/passwd"}, "not served"), ({"prompt": "a", "lora": "x"}, "lora"),
    ({"prompt": "a", "speculation": {"gamma": 60}}, "gamma"), ({"prompt": "a", "speculation": {"gamma": -1}}, "gamma"),
    ({"prompt": "a", "speculation": {"draft": "/etc/passwd"}}, "draft"),
    ({"prompt": "a", "speculation": {"depth": 1}}, "depth"),
    ({"prompt": "a", "seed": 1, "speculation": {"coupling": "maximal"}}, "seed"),
    ({"prompt": ["a"] * 64, "n": 16}, "at most"),
    (b'{"prompt": "a", "prediction": {"content": "\\ud83d"}}', "prediction"),
]  # fmt: skip

BAD_CHATS: list[tuple[Any, str]] = [
    ({"messages": []}, "messages"), ({"messages": [{"role": "pirate", "content": "x"}]}, "role"),
    ({"messages": [{"role": "user"}]}, "content"),
    ({"messages": [{"role": "user", "content": [{"type": "image_url", "image_url": {"url": "x"}}]}]}, "content"),
    ({**CHAT, "top_logprobs": 2}, "logprobs"), ({**CHAT, "tool_choice": "required"}, "tool_choice"),
    ({**CHAT, "max_completion_tokens": 5}, "max_completion_tokens"), ({**CHAT, "functions": []}, "functions"),
    ({**CHAT, "response_format": {"type": "json_schema"}}, "json_schema"),
    ({**CHAT, "response_format": {"type": "json_schema", "json_schema": {"schema": {"type": "nonsense"}}}}, "followed"),
    ({**CHAT, "response_format": {"type": "xml"}}, "response_format"), ({**CHAT, "audio": {}}, "audio"),
    ({**CHAT, "reasoning_effort": "high"}, "reasoning_effort"),
]  # fmt: skip


@pytest.mark.parametrize("path, body, reason", [
    *(("/v1/completions", *case) for case in BAD), *(("/v1/chat/completions", *case) for case in BAD_CHATS),
])  # fmt: skip
def test_what_cannot_be_honoured_is_refused_with_the_reason(served: Served, path: str, body: Any, reason: str) -> None:
    status, answer, _ = served.send(path, body)
    assert status in (400, 404) and set(answer["error"]) == {"message", "type", "param", "code"}, answer
    assert reason.lower() in answer["error"]["message"].lower() and answer["error"]["type"].endswith("_error")
