"""The sources of API keys: the command line, a file, and the environment."""

from collections.abc import Iterable
from pathlib import Path

from antiphon.app.keys.key_file import read_key_file
from antiphon.app.options.api_keys import ApiKey, ApiKeyError, key_digest, plain_key, require_valid_key


def load_api_keys(
    flags: Iterable[str], key_file: Path | None, environment: str | None
) -> tuple[tuple[ApiKey, ...], tuple[ApiKey, ...]]:
    """Returns the keys of the start, and those of the file, which may change; both empty if no key is required.

    `flags`: values of `--api-key`. `environment`: value of `$ANTIPHON_API_KEY`, keys separated by white space. It
    counts only without flags and file. Raises `ApiKeyError`.
    """
    texts = [require_valid_key(key, "--api-key") for key in flags]
    from_file = () if key_file is None else read_key_file(key_file)
    if not texts and key_file is None and environment is not None:
        texts = _split_environment(environment)
    return tuple(plain_key(digest) for digest in dict.fromkeys(map(key_digest, texts))), from_file


def _split_environment(value: str) -> list[str]:
    if "," in value:
        raise ApiKeyError("ANTIPHON_API_KEY contains a comma; separate several keys by spaces")
    keys = value.split()
    if not keys:
        raise ApiKeyError("ANTIPHON_API_KEY is empty; set a key, or unset the variable to require none")
    return [require_valid_key(key, "ANTIPHON_API_KEY") for key in keys]
