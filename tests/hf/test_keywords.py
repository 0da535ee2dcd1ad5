"""What generate is given for its own loop arrives: streamers, stop strings, an assistant."""

from __future__ import annotations

import functools
import threading
from typing import Any

import pytest
import torch
import transformers as tf
from calls import batch, call, plain, through
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

import outrider
import tiny
from outrider import transformers_generate as ours
from outrider.errors import BadOption

IDS = torch.tensor([[5, 6, 7, 5, 6, 7]])
OPTIONS: dict[str, Any] = {"do_sample": False, "max_new_tokens": 16}


def tokenizer() -> tf.PreTrainedTokenizerFast:
    """One printable character a token."""
    characters = {chr(33 + i): i for i in range(94)} | {"<pad>": 94, "<unk>": 95}
    made = Tokenizer(models.BPE(characters, [], unk_token="<unk>"))
    made.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False, use_regex=False)
    made.decoder = decoders.ByteLevel()
    return tf.PreTrainedTokenizerFast(tokenizer_object=made, unk_token="<unk>", pad_token="<pad>")


class Collects(tf.generation.streamers.BaseStreamer):
    def __init__(self) -> None:
        self.values: list[list[Any]] = []
        self.ends = 0

    def put(self, value: torch.Tensor) -> None:
        self.values.append(value.tolist())

    def end(self) -> None:
        self.ends += 1


@pytest.mark.parametrize("draft", ["auto", "uniform", None])
def test_a_streamer_is_told_what_transformers_tells_it(draft: Any) -> None:
    """transformers drops streamer= for a callable: nothing was printed."""
    seen = []
    for run, extra in ((plain, {}), (through, {"draft": draft})):
        streamer = Collects()
        run("llama", {"input_ids": IDS}, **OPTIONS, streamer=streamer, eos_token_id=95, **extra)
        seen.append((streamer.values, streamer.ends))
    assert seen[0] == seen[1]


def test_text_streamer(capsys: pytest.CaptureFixture[str]) -> None:
    """Catches a prompt that is printed though it is to be skipped, or a text that is not flushed."""
    shown = []
    for run in (plain, through):
        run("llama", {"input_ids": IDS}, **OPTIONS, streamer=tf.TextStreamer(tokenizer(), skip_prompt=True))
        shown.append(capsys.readouterr().out)
    assert shown[0] == shown[1] != ""


def test_iterator_streamer() -> None:
    """An iterator streamer waited for ever."""
    streamer = tf.TextIteratorStreamer(tokenizer(), skip_prompt=True, timeout=60)
    model = tiny.build("llama")
    thread = threading.Thread(target=call, args=(model, {"input_ids": IDS}), kwargs={**OPTIONS, "streamer": streamer})
    thread.start()
    text = "".join(streamer)
    thread.join()
    new = plain("llama", {"input_ids": IDS}, **OPTIONS)[0][IDS.shape[1] :]
    assert text == tokenizer().decode(new)


def test_an_error_ends_the_stream() -> None:
    """Whoever reads from an iterator streamer must not wait for a call that has failed."""
    streamer = Collects()
    with pytest.raises(BadOption, match="num_return_sequences|one prompt at a time"):
        call(tiny.build("llama"), batch("llama"), **OPTIONS, streamer=streamer)
    assert streamer.ends == 1


@pytest.mark.parametrize("rows", [1, 3])
def test_stop_strings(rows: int) -> None:
    """stop_strings= with tokenizer= failed: the tokenizer never arrived."""
    text = plain("llama", batch("llama", rows), **OPTIONS, eos_token_id=95)[-1]
    stop = {"stop_strings": [chr(33 + text[-9]) + chr(33 + text[-8])], "tokenizer": tokenizer(), "eos_token_id": 95}
    got = through("llama", batch("llama", rows), **OPTIONS, **stop)
    assert got == plain("llama", batch("llama", rows), **OPTIONS, **stop)
    assert got[-1] != text


def test_assistant_model() -> None:
    """assistant_model= was silently ignored: it drafts."""
    drafted = []
    assistant = tiny.build("llama", 1)
    assistant.register_forward_pre_hook(lambda *_: drafted.append(1))
    got = through("llama", {"input_ids": IDS}, **OPTIONS, assistant_model=assistant)
    assert got == plain("llama", {"input_ids": IDS}, **OPTIONS) and drafted


def test_other_callables_are_as_before() -> None:
    """The method that sorts keywords is wrapped: nobody else may notice."""
    given: dict[str, Any] = {}

    def own(model: Any, input_ids: torch.Tensor, logits_processor: Any, stopping_criteria: Any, **rest: Any) -> Any:
        given.update(rest)
        return input_ids

    streamer = Collects()
    tiny.build("llama").generate(input_ids=IDS, **OPTIONS, custom_generate=own, streamer=streamer)
    assert "streamer" not in given and "synced_gpus" not in given


def by_attribute(model: Any, input_ids: torch.Tensor, **rest: Any) -> Any:
    return outrider.transformers_generate(model, input_ids, **rest)


class ByCall:
    def __call__(self, model: Any, input_ids: torch.Tensor, **rest: Any) -> Any:
        return ours(model, input_ids, **rest)


def closed_over() -> Any:
    own = ours
    return lambda model, input_ids, **rest: own(model, input_ids, **rest)


@functools.wraps(ours)
def wrapped(*args: Any, **rest: Any) -> Any:
    return by_attribute(*args, **rest)


@pytest.mark.parametrize("wrapper", [by_attribute, ByCall(), closed_over(), wrapped])
def test_a_function_around_ours(wrapper: Any) -> None:
    """A caller's own function around ours was not recognised: the streamer was dropped without a word."""
    streamer = Collects()
    ids = tiny.build("llama").generate(input_ids=IDS, **OPTIONS, custom_generate=wrapper, streamer=streamer)
    assert streamer.ends == 1
    assert [token for value in streamer.values[1:] for token in value] == ids[0, IDS.shape[1] :].tolist()


def test_a_function_around_the_door_without_room() -> None:
    """Catches keywords that nobody set and that a caller's function has no parameters for."""
    model, taken = tiny.build("llama"), []

    def narrow(model: Any, input_ids: torch.Tensor, generation_config: Any, **rest: Any) -> Any:
        taken.extend(rest)
        return ours(model, input_ids, generation_config=generation_config)

    model.generate(input_ids=IDS, **OPTIONS, custom_generate=narrow)
    assert not {"streamer", "synced_gpus", "assistant_model", "tokenizer"} & set(taken)
