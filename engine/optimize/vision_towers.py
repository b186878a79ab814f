"""Removes the parts of a multimodal model that text does not use, such as a vision tower, and frees their weights."""

import logging
from collections.abc import Callable
from typing import Any

import torch
from torch import nn
from transformers import PreTrainedModel

from antiphon.engine.errors import LoadError, one_line, refuse_out_of_memory

log = logging.getLogger(__name__)


@torch.inference_mode()
def remove_unused_towers(model: PreTrainedModel, run: Callable[[], object]) -> dict[str, Any]:
    """Removes children of a multimodal model's body that `run`, which runs it on text, does not call.

    Returns them by name. A part that the model reads without a call stays: the model then fails without it, or calls
    other parts. Results are not compared, since two equal passes may differ in their last bits.

    Raises `LoadError` if the model does not run on text alone.
    """
    body: Any = model.base_model
    if model.config.get_text_config(decoder=True) is model.config or body is model:
        return {}
    try:
        called = _find_called_children(body, run)
    except Exception as error:  # a tower that needs other inputs stays unchanged
        refuse_out_of_memory(error)
        raise LoadError(
            f"{type(model).__name__} does not run on text alone ({one_line(error)}); choose a text generation model"
        ) from error
    unused = {name: child for name, child in body.named_children() if name not in called}
    _set_children(body, dict.fromkeys(unused))
    try:
        is_same = _find_called_children(body, run) == called
    except Exception as error:  # a tower that needs the other modules gets them back
        _set_children(body, unused)
        refuse_out_of_memory(error)
        log.debug("%s does not run without %s", type(model).__name__, ", ".join(unused), exc_info=True)
        return {}
    if not is_same:
        _set_children(body, unused)
        return {}
    return unused


def _find_called_children(body: nn.Module, run: Callable[[], object]) -> set[str]:
    """Returns the names of the children that `run` calls, themselves or modules in them."""
    called: set[str] = set()
    hooks = [
        module.register_forward_hook(lambda *_, name=name: called.add(name))
        for name, child in body.named_children()
        for module in child.modules()
    ]
    try:
        run()
    finally:
        for hook in hooks:
            hook.remove()
    return called


def _set_children(body: nn.Module, children: dict[str, Any]) -> None:
    for name, child in children.items():
        setattr(body, name, child)
