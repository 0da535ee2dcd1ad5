"""From a name to files and a loaded model: short names, directories, GGUF, the Hugging Face hub, the cache."""
