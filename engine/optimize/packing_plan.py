"""Finds the linear layers of a model that can be packed, and those that can be merged.

A dry run tells: the model runs once with stand-ins. It shows which layers the model only calls, and which of them are
always called with the same tensor. A layer whose weight the model reads itself, as some routers' are, stays unchanged.
"""

import logging
from collections.abc import Callable

import torch
from torch import Tensor, nn

from antiphon.engine.errors import one_line
from antiphon.engine.forward.replace import relative_error
from antiphon.engine.optimize.verification import UnusableKernelError

log = logging.getLogger(__name__)

MERGED_NAMES = (("q_proj", "k_proj", "v_proj"), ("gate_proj", "up_proj"))
"""Names of layers of one parent that may share their input, and can then be merged."""

DRY_RUN_RTOL = 1e-3
"""Largest relative error of the logits in the dry run."""

DRY_RUN_TOKENS = 8
"""Tokens of a text that is long enough for a dry run: some models compute a prompt and a single token in two ways."""

RunModel = Callable[[], Tensor]
"""Runs the model on a fixed text and returns the logits (tokens, vocabulary)."""


class DryRun:
    """Observes how a model uses its linear layers while it runs.

    `groups` are the layers to pack: groups of layers that share their input, and groups of one. A layer whose weight
    or bias the model reads itself is in no group. They are None until a run has been observed. Without `merges`, no
    layers are merged.
    """

    def __init__(self, model: nn.Module, linears: dict[str, nn.Linear], *, merges: bool = True) -> None:
        self.groups: list[list[str]] | None = None
        self._model, self._linears = model, linears
        self._candidates = _candidate_groups(linears) if merges else []

    def observe(self, run: Callable[[], str | None]) -> str | None:
        """Observes the model while `run` runs it and returns the reason why its result is wrong, None if it is right.

        Returns that reason, or the error of the run. Then the model cannot be packed in these groups.
        """
        probes = {name: _LinearProbe(layer) for name, layer in self._linears.items()}
        watchers = [_CallWatcher([probes[name] for name in names]) for names in self._candidates]
        try:
            for name, probe in probes.items():
                self._model.set_submodule(name, probe)
            reason = run()
        except Exception as failure:  # a model that fails in the dry run is not packed
            log.debug("the dry run failed", exc_info=True)
            reason = one_line(failure)
        finally:
            for name, layer in self._linears.items():
                self._model.set_submodule(name, layer)
                probes[name].watcher = None  # the reference cycle would keep the original weights
        if reason is None:
            groups = [names for names, watcher in zip(self._candidates, watchers, strict=True) if watcher.is_shared]
            merged = {name for names in groups for name in names}
            callable_only = (name for name, probe in probes.items() if not probe.was_read)
            self.groups = [*groups, *([name] for name in callable_only if name not in merged)]
        return reason


def plan_packing(model: nn.Module, linears: dict[str, nn.Linear], run: RunModel) -> list[list[str]]:
    """Returns the groups of a dry run. If the model does not run with merged layers, none are merged.

    Raises `UnusableKernelError` if the logits differ in the dry run, or the model does not run.
    """
    expected = run()

    def compare() -> str | None:
        error = relative_error(run(), expected)
        return None if error <= DRY_RUN_RTOL else f"the dry run's logits differ by {error:.2g}"

    reason = None
    for merges in (True, False):
        dry_run = DryRun(model, linears, merges=merges)
        reason = dry_run.observe(compare)
        if dry_run.groups is not None:
            return dry_run.groups
    raise UnusableKernelError(reason)


class _CallWatcher:
    """Records whether its layers are always called in turn, with the same tensor, which is not changed in between."""

    def __init__(self, members: list["_LinearProbe"]) -> None:
        self._shared = True
        self._members = members
        for member in members:
            member.watcher = self
        self._waiting: list[_LinearProbe] = []
        self._input: Tensor | None = None
        self._copy: Tensor | None = None

    @property
    def is_shared(self) -> bool:
        """True if all calls shared their input, the last round included every layer, and no weight was read."""
        return self._shared and not self._waiting and not any(member.was_read for member in self._members)

    def record_call(self, member: "_LinearProbe", x: Tensor) -> None:
        if not self._waiting:
            self._waiting, self._input, self._copy = list(self._members), x, x.clone()
        same = x is self._input and self._copy is not None and torch.equal(x, self._copy)
        if not same or member not in self._waiting:
            self._shared = False
        self._waiting = [other for other in self._waiting if other is not member]
        if not self._waiting:
            self._input = self._copy = None


class _LinearProbe(nn.Module):
    """A linear layer that records whether the model reads its parameters, which a packed layer does not have.

    In a group, its results are views, as those of a merged layer are.
    """

    def __init__(self, layer: nn.Linear) -> None:
        super().__init__()
        self.in_features, self.out_features = layer.in_features, layer.out_features
        self.watcher: _CallWatcher | None = None
        self.was_read = False
        self._layer = [layer]  # in a list, so that torch does not register it as a submodule

    @property
    def weight(self) -> Tensor:
        """Returns the layer's weight and records the access."""
        self.was_read = True
        return self._layer[0].weight

    @property
    def bias(self) -> Tensor | None:
        """Returns the layer's bias and records the access."""
        self.was_read = True
        return self._layer[0].bias

    def forward(self, x: Tensor) -> Tensor:
        result: Tensor = self._layer[0](x)
        if self.watcher is None:
            return result
        self.watcher.record_call(self, x)
        return torch.cat([result, result], -1)[..., : self.out_features]


def _candidate_groups(linears: dict[str, nn.Linear]) -> list[list[str]]:
    """Returns the groups of `MERGED_NAMES` whose layers have the same inputs, and either all a bias or none."""
    groups = []
    for family in MERGED_NAMES:
        for first in [name for name in linears if name.rpartition(".")[2] == family[0]]:
            parent = first[: -len(family[0])]
            names = [parent + name for name in family]
            layers = [linears[name] for name in names if name in linears]
            are_compatible = len({(layer.in_features, layer._parameters["bias"] is None) for layer in layers}) == 1
            if len(layers) == len(names) and are_compatible:
                groups.append(names)
    return groups
