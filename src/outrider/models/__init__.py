"""Language models behind one protocol: transformers models, CPU engines, and where checkpoints come from."""
