"""Models run by the layers of the transformers library, with a KV cache that has a write position per row."""
