"""Key files that a server refuses, each with the message."""

from antiphon.app.options.api_keys import key_digest

DIGEST = key_digest("sk-a").hex()
OTHER = key_digest("sk-b").hex()
KEY = f'[[key]]\nsha256 = "{DIGEST}"\n'
FAULTS = {
    "unknown key": (f"{KEY}color = 1", "line 1, [[key]] 1: unknown key 'color'"),
    "unknown table": (f"{KEY}[limits]", "line 3, [limits]: unknown table"),
    "no key in it": ('[[key]]\nowner = "a"', "line 1, [[key]] 1: write either key, or its digest as sha256"),
    "key and digest": (f'{KEY}key = "sk-b"', "either key, or its digest"),
    "bad digest": ('[[key]]\nsha256 = "abc"', "sha256: expected the SHA-256 digest"),
    "key of a wrong type": ("[[key]]\nkey = 7", "key: expected a string"),
    "empty key": ('[[key]]\nkey = ""', "line 1, [[key]] 1: the API key is empty"),
    "two owners of a key": (
        f'{KEY}owner = "a"\n\n[[key]]\nsha256 = "{DIGEST}"\nowner = "b"',
        "line 5, [[key]] 2: the key is that of line 1, which has another owner",
    ),
    "a key twice": (f"{KEY}{KEY}", "line 3, [[key]] 2: the key is that of line 1, which has the same owner"),
    "limit of 0": (f"{KEY}max_concurrent = 0", "max_concurrent: expected a positive integer"),
    "limit below 0": (f"{KEY}tokens_per_day = -1", "tokens_per_day: expected a positive integer"),
    "limit that is true": (f"{KEY}requests_per_minute = true", "requests_per_minute: expected a positive integer"),
    "limit with a fraction": (f"{KEY}tokens_per_month = 1.5", "tokens_per_month: expected a positive integer"),
    "limit of an owner": (
        f'{KEY}owner = "a"\n[owners.a]\ntokens_per_minute = "x"',
        "line 4, [owners.a]: tokens_per_minute: expected a positive integer",
    ),
    "store of 0": (f"{KEY}store_gib = 0", "store_gib: expected a positive number"),
    "endless store": (f"{KEY}store_gib = inf", "store_gib: expected a positive number"),
    "bad date": (f'{KEY}expires = "tomorrow"', "expires: expected a date such as 2027-01-31"),
    "impossible date": (f"{KEY}expires = 2027-02-30", "is no TOML"),
    "date out of range": (f"{KEY}expires = 9999-12-31", "expires: the date is out of range"),
    "bad role": (f'{KEY}role = "admin"', 'role: expected "client" or "operator"'),
    "no models": (f"{KEY}models = []", "models: expected a list of names"),
    "models of a wrong type": (f'{KEY}models = "coder"', "models: expected a list of names"),
    "empty owner": (f'{KEY}owner = ""', "owner: expected a name"),
    "owner that is a digest": (f'{KEY}owner = "{DIGEST[:32]}"', "owner: expected a name"),
    "owner with a slash": (f'{KEY}owner = "a/b"', "owner: expected a name"),
    "digest without an owner": (f'{KEY}owner_digest = "{OTHER}"', "owner_digest: needs an owner"),
    "bad owner digest": (f'{KEY}owner = "a"\nowner_digest = "x"', "owner_digest: expected the SHA-256 digest"),
    "two digests of an owner": (
        f'{KEY}owner = "a"\nowner_digest = "{OTHER}"\n[[key]]\nkey = "sk-c"\nowner = "a"\nowner_digest = "{DIGEST}"',
        "[[key]] 2: owner_digest: the owner 'a' has another one",
    ),
    "a digest of two owners": (
        f'{KEY}owner = "a"\nowner_digest = "{OTHER}"\n[[key]]\nkey = "sk-c"\nowner = "b"\nowner_digest = "{OTHER}"',
        "[[key]] 2: owner_digest: another owner takes it over",
    ),
    "owner without a key": (f"{KEY}[owners.a]\nmax_concurrent = 1", "line 3, [owners.a]: no key has this owner"),
    "owners as a list": (f"{KEY}[[owners]]", "write the limits of an owner as [owners.NAME]"),
    "keys as a table": (f'[key]\nsha256 = "{DIGEST}"', "contains no API key"),
    "syntax": ("[[key]\n", "is no TOML"),
}
