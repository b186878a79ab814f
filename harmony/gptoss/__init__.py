"""gpt-oss: the harmony format's reader, header parser and renderer."""
