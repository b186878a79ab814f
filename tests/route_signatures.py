"""Signatures of route handlers, parsed once for all servers of a test process.

Every server registers the same routes, and parsing the signatures of their handlers would take half of its start.
"""

from typing import Any

from litestar._signature import SignatureModel
from litestar.utils.signature import ParsedSignature

parse_signature = ParsedSignature.from_fn
create_model = SignatureModel.create.__func__  # type: ignore[attr-defined]  # mypy sees no class method
signatures: dict[tuple[object, ...], Any] = {}
models: dict[tuple[object, ...], tuple[Any, Any]] = {}
"""The signature and the model of its arguments. The signature is kept since its address is part of the key."""


def share_signatures() -> None:
    """Makes Litestar take a signature that it has parsed before."""
    ParsedSignature.from_fn = _parse_once  # type: ignore[method-assign,assignment]
    SignatureModel.create = classmethod(_create_model_once)  # type: ignore[method-assign,assignment]


def _parse_once(handler: Any, namespace: dict[str, Any]) -> Any:
    code = getattr(handler, "__code__", None)
    if code is None or handler.__defaults__ or handler.__kwdefaults__:
        return parse_signature(handler, namespace)
    key = (code, *namespace)
    if key not in signatures:
        signatures[key] = parse_signature(handler, namespace)
    return signatures[key]


def _create_model_once(base: Any, **options: Any) -> Any:
    """Creates the model, or returns that of the same signature. The type decoders are always those of Litestar."""
    code, signature = getattr(options["fn"], "__code__", None), options["parsed_signature"]
    if code is None or options["dependency_name_set"] or options["data_dto"]:
        return create_model(base, **options)
    key = (base, code, id(signature))
    if key not in models:
        models[key] = (signature, create_model(base, **options))
    return models[key][1]
