"""Tiny random-initialised models of every family, large enough in their weights that the text is not constant."""

from __future__ import annotations

from collections.abc import Callable

import torch
import transformers as tf

VOCAB = 96
_SIZES = {
    "vocab_size": VOCAB,
    "hidden_size": 32,
    "intermediate_size": 64,
    "num_hidden_layers": 2,
    "num_attention_heads": 4,
}
_ROPE = dict(**_SIZES, max_position_embeddings=256, initializer_range=0.4)
_GROUPED = dict(**_ROPE, num_key_value_heads=2)
_T5 = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "d_ff": 64,
    "num_layers": 2,
    "num_heads": 4,
    "d_kv": 8,
    "initializer_factor": 0.6,
}
_BART = {
    "vocab_size": VOCAB,
    "d_model": 32,
    "encoder_ffn_dim": 64,
    "decoder_ffn_dim": 64,
    "encoder_layers": 2,
    "decoder_layers": 2,
    "encoder_attention_heads": 4,
    "decoder_attention_heads": 4,
    "max_position_embeddings": 256,
    "init_std": 0.12,
    "forced_eos_token_id": None,
}

DECODER_ONLY: dict[str, Callable[[], tf.PreTrainedModel]] = {
    "llama": lambda: tf.LlamaForCausalLM(tf.LlamaConfig(**_GROUPED)),
    "mistral": lambda: tf.MistralForCausalLM(tf.MistralConfig(**_GROUPED, sliding_window=6)),
    "qwen2": lambda: tf.Qwen2ForCausalLM(tf.Qwen2Config(**_GROUPED)),
    "qwen3": lambda: tf.Qwen3ForCausalLM(tf.Qwen3Config(**_GROUPED, head_dim=8)),
    "gemma": lambda: tf.GemmaForCausalLM(tf.GemmaConfig(**_GROUPED, head_dim=8)),
    "gemma2": lambda: tf.Gemma2ForCausalLM(tf.Gemma2Config(**_GROUPED, head_dim=8, sliding_window=6)),
    "gemma3": lambda: tf.Gemma3ForCausalLM(
        tf.Gemma3TextConfig(
            **_GROUPED, head_dim=8, sliding_window=6, layer_types=["sliding_attention", "full_attention"]
        )
    ),
    "phi3": lambda: tf.Phi3ForCausalLM(tf.Phi3Config(**_GROUPED, pad_token_id=0)),
    "granite": lambda: tf.GraniteForCausalLM(
        tf.GraniteConfig(**_GROUPED, embedding_multiplier=3.0, residual_multiplier=0.5, attention_multiplier=0.3)
    ),
    "smollm3": lambda: tf.SmolLM3ForCausalLM(
        tf.SmolLM3Config(**_GROUPED, no_rope_layers=[1, 0], pad_token_id=0, tie_word_embeddings=False)
    ),
    "olmo2": lambda: tf.Olmo2ForCausalLM(tf.Olmo2Config(**_GROUPED)),
    "mixtral": lambda: tf.MixtralForCausalLM(tf.MixtralConfig(**_GROUPED, num_local_experts=4, num_experts_per_tok=2)),
    "qwen3_moe": lambda: tf.Qwen3MoeForCausalLM(
        tf.Qwen3MoeConfig(
            **_GROUPED, head_dim=8, num_experts=4, num_experts_per_tok=2, moe_intermediate_size=32, norm_topk_prob=True
        )
    ),
    "gpt2": lambda: tf.GPT2LMHeadModel(
        tf.GPT2Config(vocab_size=VOCAB, n_embd=32, n_layer=2, n_head=4, n_positions=256, initializer_range=0.4)
    ),
    "gpt_neox": lambda: tf.GPTNeoXForCausalLM(tf.GPTNeoXConfig(**_ROPE)),
    "opt": lambda: tf.OPTForCausalLM(
        tf.OPTConfig(
            vocab_size=VOCAB,
            hidden_size=32,
            ffn_dim=64,
            num_hidden_layers=2,
            num_attention_heads=4,
            max_position_embeddings=256,
            word_embed_proj_dim=32,
            init_std=0.4,
        )
    ),  # fmt: skip
    "bloom": lambda: tf.BloomForCausalLM(
        tf.BloomConfig(vocab_size=VOCAB, hidden_size=32, n_layer=2, n_head=4, initializer_range=0.4)
    ),
}

ENCODER_DECODER: dict[str, Callable[[], tf.PreTrainedModel]] = {
    "t5": lambda: tf.T5ForConditionalGeneration(tf.T5Config(**_T5)),
    "mt5": lambda: tf.MT5ForConditionalGeneration(tf.MT5Config(**_T5)),
    "bart": lambda: tf.BartForConditionalGeneration(tf.BartConfig(**_BART)),
    "marian": lambda: tf.MarianMTModel(tf.MarianConfig(**_BART, pad_token_id=0)),
}

FAMILIES = {**DECODER_ONLY, **ENCODER_DECODER}

_TIED = {"gemma2", "gemma3", "bloom", *ENCODER_DECODER}
"""Left as they are, random models with one matrix for input and output repeat a single token for ever."""


def _untie(model: tf.PreTrainedModel) -> None:
    head = model.get_output_embeddings()
    head.weight = torch.nn.Parameter(torch.randn_like(head.weight))
    torch.nn.init.normal_(model.get_input_embeddings().weight)
    ids = torch.randint(3, VOCAB, (4, 12))
    inputs = {"input_ids": ids, "decoder_input_ids": ids} if model.config.is_encoder_decoder else {"input_ids": ids}
    with torch.no_grad():
        head.weight *= 2.3 / model.eval()(**inputs).logits.std()  # peaked, but not a single token's


def build(family: str, seed: int = 0) -> tf.PreTrainedModel:
    """A model of the family in float32 whose weights follow from the seed; its generation config asks for nothing."""
    with torch.random.fork_rng():
        torch.manual_seed(seed)
        model = FAMILIES[family]()
        if family in _TIED:
            _untie(model)
    model.generation_config = tf.GenerationConfig(pad_token_id=0, decoder_start_token_id=0, bos_token_id=0)
    return model.eval()
