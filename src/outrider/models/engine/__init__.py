"""Llama-like and T5-like models on a CPU, run by compiled code (numba), not by transformers' layers."""
