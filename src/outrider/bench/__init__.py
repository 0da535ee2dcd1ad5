"""Benchmarks: speculative against plain decoding in one run, with the spread beside every number."""
