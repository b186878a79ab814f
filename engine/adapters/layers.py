"""The linear layers of a model that adapters can change, and the hooks by which they do.

The names and shapes are those before any layer was replaced by a faster one, since adapters use them. A hook adds the
products of the adapters to the rows of the output that are theirs, and writes to no other row.
"""

from collections import Counter
from collections.abc import Callable
from typing import Any

from torch import Tensor, nn
from transformers import PreTrainedModel
from transformers.pytorch_utils import Conv1D

from antiphon.engine.adapters.matmul import AdapterProducts
from antiphon.engine.forward.adapter_rows import AdapterRows
from antiphon.engine.optimize.decoder_layer import FusedDecoderLayer
from antiphon.engine.optimize.fuse import FusedSwiGLU

PARTIAL_CALL = "it is not computed once for each token, as the layers of experts are"
GATE_UP_NAMES = ("gate_proj", "up_proj")
LAYERS_PART = "layers."
"""Part of a name from which on names are compared if the whole names differ, as those of vision-language models do."""


class AdaptableLayers:
    """The linear layers of a model by name. Created before layers are replaced, attached to them afterwards.

    `shapes` maps a name to (inputs, outputs), `refusals` maps a name to the reason why no adapter can change it.
    """

    def __init__(self, model: PreTrainedModel) -> None:
        self.rows = AdapterRows()
        self.products = AdapterProducts(self.rows)
        self.shapes: dict[str, tuple[int, int]] = {}
        self.refusals: dict[str, str] = {}
        self.device = next(model.parameters()).device
        head = model.get_output_embeddings()  # type: ignore[no-untyped-call]
        self._head_names: set[str] = set()
        for name, module in model.named_modules():
            if isinstance(module, nn.Linear):
                self.shapes[name] = (module.in_features, module.out_features)
            elif isinstance(module, Conv1D):  # GPT-2: the weight is transposed, the product is the same
                self.shapes[name] = (module.weight.shape[0], module.weight.shape[1])
            if module is head:
                self._head_names.add(name)
        self._names_by_tail = Counter(_tail_of(name) for name in self.shapes)
        self._calls: dict[str, list[int]] | None = None

    def find_name(self, written: str) -> str | None:
        """Returns the name of the layer that an adapter's file names; None if the model has no such layer."""
        if written in self.shapes:
            return written
        tail = _tail_of(written)
        if self._names_by_tail[tail] != 1:
            return None
        return next(name for name in self.shapes if _tail_of(name) == tail)

    def attach(self, model: nn.Module) -> None:
        """Adds a hook to each layer, or to the one that computes it now."""
        for name in self.shapes:
            if not self._attach_layer(model, name):
                self.refusals[name] = "this engine computes it together with other layers"

    def record_calls(self, run: Callable[[], Any]) -> dict[str, list[int]]:
        """Runs the model, and returns the number of rows of each call of each layer."""
        self._calls = {name: [] for name in self.shapes}
        try:
            run()
            return self._calls
        finally:
            self._calls = None

    def refuse_partial_calls(self, calls: dict[str, list[int]], num_rows: int, num_logits: int) -> None:
        """Refuses adapters of layers that were not called with all rows of a pass, each time they were called."""
        for name, counts in calls.items():
            expected = num_logits if name in self._head_names else num_rows
            if not counts or any(count != expected for count in counts):
                self.refusals.setdefault(name, PARTIAL_CALL)

    def _attach_layer(self, model: nn.Module, name: str) -> bool:
        """Adds the hooks of a layer. Returns False if no module computes it."""
        module: Any = model
        for part in name.split("."):
            if isinstance(module, FusedDecoderLayer):
                module = module.original
            if isinstance(module, FusedSwiGLU) and part in GATE_UP_NAMES:
                first = GATE_UP_NAMES.index(part) * self.shapes[name][1]
                module.gate_up.register_forward_hook(self._make_hook(name, first))
                return True
            if isinstance(module, FusedSwiGLU) and part == "down_proj" and not module.calls_down:
                return self._attach_uncalled_down(module, name)
            module = getattr(module, part, None)
            if module is None:
                return False
        module.register_forward_hook(self._make_hook(name))
        return True

    def _make_hook(self, name: str, first_column: int = 0) -> Callable[..., None]:
        """Returns a hook that adds the adapters' products to the output's columns of the layer."""
        is_head, columns = name in self._head_names, slice(first_column, first_column + self.shapes[name][1])

        def add_products(_: nn.Module, args: tuple[Any, ...], output: Tensor) -> None:
            x = args[0]
            if self._calls is not None:
                self._calls[name].append(x.numel() // x.shape[-1])
            self.products.add(name, x, output[..., columns], is_head=is_head)

        return add_products

    def _attach_uncalled_down(self, mlp: FusedSwiGLU, name: str) -> bool:
        """Adds hooks around a gated layer whose last layer is computed by a kernel that overwrites its input.

        The names of the first two layers precede the last one's, so that their hooks run first.
        """
        inputs: list[Tensor] = []

        def keep_input(_: nn.Module, __: tuple[Any, ...], gate_up: Tensor) -> None:
            inputs.clear()
            if self._calls is not None:
                self._calls[name].append(gate_up.numel() // gate_up.shape[-1])
            if self.rows.groups:
                inputs.append(mlp.activate(gate_up))

        def add_products(_: nn.Module, __: tuple[Any, ...], output: Tensor) -> None:
            if inputs:
                self.products.add(name, inputs.pop(), output)

        mlp.gate_up.register_forward_hook(keep_input)
        mlp.register_forward_hook(add_products)
        return True


def _tail_of(name: str) -> str:
    """Returns the part of a layer's name from `layers.` on, or the whole name."""
    first = name.find(LAYERS_PART)
    return name if first < 0 else name[first:]
