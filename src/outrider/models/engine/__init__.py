"""Llama-like models on a CPU, run by compiled code (numba) or onnxruntime instead of transformers' layers."""
