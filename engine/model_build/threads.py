"""Adapts the number of CPU threads to the load of the machine, while a model is built and while it runs."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager

import torch
from transformers import PreTrainedModel

from antiphon.engine.host.thread_governor import ThreadGovernor
from antiphon.engine.options import EngineOptions


def adapt_threads(model: PreTrainedModel, options: EngineOptions) -> Callable[[], None]:
    """Returns a function that adapts the number of threads to the load of the machine, if no number is configured.

    With `deterministic` the number stays, because the bits of torch's operations may depend on it.
    """
    if options.threads is not None or options.deterministic or model.device.type != "cpu":
        return lambda: None
    return ThreadGovernor(torch.get_num_threads(), torch.set_num_threads).update


@contextmanager
def adapted_threads(model: PreTrainedModel, options: EngineOptions) -> Iterator[None]:
    """Adapts the number of threads before each pass of the checks, and restores it.

    The weights of a large model are read a dozen times. If other processes compete for the cores, threads that wait for
    each other multiply the time of that.
    """
    threads, adapt = torch.get_num_threads(), adapt_threads(model, options)
    hook = model.register_forward_pre_hook(lambda *_: adapt())
    try:
        yield
    finally:
        hook.remove()
        torch.set_num_threads(threads)
