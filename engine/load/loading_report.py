"""The report of transformers about the weights of a model that it has loaded."""

from collections.abc import Mapping, Sequence
from typing import Any

from antiphon.engine.errors import LoadError, show_shape


def list_missing(report: Mapping[str, Any], place: object) -> list[str]:
    """Returns the names of weights that are missing from the files in a place, sorted.

    Raises `LoadError` if a weight has another shape than the configuration requires. The model must have been
    loaded with `ignore_mismatched_sizes`: transformers' own error does not name the weight.
    """
    mismatched = sorted(report.get("mismatched_keys") or ())
    if mismatched:
        name, found, expected = mismatched[0]
        others = f" (and {len(mismatched) - 1} more)" if len(mismatched) > 1 else ""
        raise LoadError(
            f"{place}: the weight {name}{others} has the shape {show_shape(found)}, and config.json requires "
            f"{show_shape(expected)}; fetch the model again"
        )
    return sorted(report["missing_keys"])


def describe_missing(missing: Sequence[str]) -> str:
    """Returns how many weights are missing, and the name of the first one."""
    if len(missing) == 1:
        return f"1 weight is missing ({missing[0]})"
    return f"{len(missing)} weights are missing ({missing[0]}, …)"
