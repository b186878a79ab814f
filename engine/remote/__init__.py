"""Engines on other machines: vLLM, SGLang, llama.cpp and TensorRT-LLM, driven by token ids over HTTP.

A `.engine.RemoteEngine` keeps the rules of `engine.protocol` over one or more replicas of such a server. It
sends token ids and receives token ids, so that prompts, dialects and grammars are Antiphon's own. No module of this
package imports torch.
"""
