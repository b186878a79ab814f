"""The format of gpt-oss: its prompts, the reader of its answers, and the header parser."""
