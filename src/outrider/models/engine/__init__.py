"""Llama-like and T5-like models on a CPU, run by compiled code (numba) or onnxruntime, not by transformers' layers."""
