"""GGUF files, llama.cpp's format: their configuration and tokenizer become a model folder, which names the file."""
