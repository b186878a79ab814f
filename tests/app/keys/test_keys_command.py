"""`antiphon keys`: new keys are printed once, files are replaced atomically, and only what was meant changes."""

import stat
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from antiphon.app.cli.commands import main
from antiphon.app.keys.file_edits import remove_keys
from antiphon.app.keys.key_file import parse_key_file, read_key_file
from antiphon.app.options.api_keys import ApiKeyError, key_digest, plain_key

FAR_DATE = "2999-01-31"
"""A date in the future: the command compares it with the clock."""


def run(*arguments: str) -> Result:
    return CliRunner().invoke(main, ["keys", *arguments])


def test_new_key_is_printed_once_and_kept_as_a_digest(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    result = run(
        "add", str(file), "--owner", "team-a", "--model", "coder", "--max-concurrent", "2", "--expires", FAR_DATE
    )
    assert result.exit_code == 0, result.output
    key = result.stdout.strip()
    assert key.startswith("sk-antiphon-") and len(key) > 50
    assert stat.S_IMODE(file.stat().st_mode) == 0o600
    assert key not in file.read_text()
    [entry] = read_key_file(file)
    assert (entry.digest, entry.owner, entry.models) == (key_digest(key), "team-a", frozenset({"coder"}))
    assert entry.limits.max_concurrent == 2 and entry.expires is not None
    listed = run("list", str(file)).stdout
    assert entry.id in listed and "team-a" in listed and "max_concurrent=2" in listed
    assert key not in listed and entry.digest.hex()[:16] not in listed


def test_id_of_a_listed_key_is_in_one_line(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    run("add", str(file), "--owner", "team-a", "--requests-per-minute", "5", "--tokens-per-day", "5000000")
    run("add", str(file), "--owner", "a" * 64, "--model", "m" * 60, "--role", "operator", "--expires", FAR_DATE)
    listed = run("list", str(file)).stdout.splitlines()
    assert all(any(line.startswith(f"{key.id} ") for line in listed) for key in read_key_file(file)), listed


def test_add_keeps_comments_tables_and_other_keys(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    before = f'# ours\n[[key]] # first\nowner = "a"\nsha256 = "{key_digest("sk-a").hex()}"\n\n[owners.a]\ntokens_per_day = 5\n'
    file.write_text(before)
    assert run("add", str(file), "--owner", "b", "--role", "operator").exit_code == 0
    assert file.read_text().startswith(before.rstrip("\n"))
    assert [key.owner for key in read_key_file(file)] == ["a", "b"]


def test_add_to_a_plain_file_keeps_its_keys_valid(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-a\n\nsk-b\nsk-a\n")
    result = run("add", str(file))
    assert "have tables with their digests now" in result.stderr
    keys = read_key_file(file)
    assert keys[:2] == (plain_key(key_digest("sk-a")), plain_key(key_digest("sk-b"))) and len(keys) == 3
    assert "sk-a" not in file.read_text() and "# ours" in file.read_text()


def test_revoke_removes_what_was_named_only(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    names = ("a", "a", "b", "c")
    file.write_text(
        "# top\n"
        + "".join(f'\n# of {name}\n[[ "key" ]]\nowner = "{name}"\nkey = "sk-{n}"\n' for n, name in enumerate(names))
        + "\n[owners.c]\ntokens_per_day = 5\n"
    )
    keys = read_key_file(file)
    assert run("revoke", str(file), keys[2].id).exit_code == 0
    assert read_key_file(file) == (keys[0], keys[1], keys[3])
    assert "# top" in file.read_text() and "# of c" in file.read_text()
    assert run("revoke", str(file), "--owner", "a").stdout.startswith("2 revoked.")
    assert read_key_file(file) == (keys[3],)
    result = run("revoke", str(file), keys[3].id)
    assert result.exit_code == 1 and "no key would be left" in result.output
    assert read_key_file(file) == (keys[3],)


def test_revoke_in_a_plain_file(tmp_path: Path) -> None:
    file = tmp_path / "keys"
    file.write_text("# ours\nsk-a\nsk-b\n")
    run("revoke", str(file), plain_key(key_digest("sk-a")).id)
    assert file.read_text() == "# ours\nsk-b\n"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (("revoke", "FILE", "key_unknown"), "no key key_unknown"),
        (("revoke", "FILE", "--owner", "nobody"), "no key of nobody"),
        (("revoke", "FILE"), "name the ids"),
        (("revoke", "MISSING", "key_1"), "there is no such file"),
        (("list", "MISSING"), "cannot read API keys"),
        (("add", "FILE", "--owner", "a b"), "Invalid value for --owner: expected a name"),
        (("add", "FILE", "--owner", "a\nb\x7f"), "Invalid value for --owner: expected a name"),
        (("add", "FILE", "--owner", "a", "--model", ""), "Invalid value for --model: expected a list of names"),
        (("add", "FILE", "--owner-digest", "0" * 64), "Invalid value for --owner-digest: needs an owner"),
        (
            ("add", "FILE", "--owner", "c", "--owner-digest", "7" * 64),
            "for --owner-digest: another owner takes it over",
        ),
        (("add", "FILE", "--store-gib", "-1"), "Invalid value for --store-gib: expected a positive number"),
        (("add", "FILE", "--requests-per-minute", "0"), "for --requests-per-minute: expected a positive integer"),
        (("add", "FILE", "--expires", "tomorrow"), "Invalid value for --expires: 'tomorrow' is no date"),
        (("add", "FILE", "--expires", "2027-02-30"), "Invalid value for --expires: '2027-02-30' is no date"),
        (("add", "FILE", "--expires", "0001-01-01T00:00:00+12:00"), "Invalid value for --expires"),
        (("add", "FILE", "--expires", "2020-01-31"), "for --expires: '2020-01-31' is in the past"),
        (("add", "FILE", "--expires", "2020-01-31T12:00:00Z"), "is in the past"),
        (("add", "NOWHERE"), "No such file or directory"),
    ],
)
def test_fault_leaves_the_file_as_it_was(tmp_path: Path, arguments: tuple[str, ...], message: str) -> None:
    file = tmp_path / "keys.toml"
    file.write_text(
        '[[key]]\nowner = "a"\nkey = "sk-a"\n[[key]]\nowner = "b"\nkey = "sk-b"\nowner_digest = "' + 64 * "7" + '"\n'
    )
    before = file.read_text()
    paths = {"FILE": file, "MISSING": tmp_path / "missing", "NOWHERE": tmp_path / "no" / "keys"}
    result = run(*(str(paths.get(argument, argument)) for argument in arguments))
    assert result.exit_code != 0 and message in " ".join(result.output.split()), result.output
    assert ", line " not in result.output, "the file is in order"
    assert file.read_text() == before
    assert list(tmp_path.iterdir()) == [file], "a file is left over"


def test_text_that_looks_like_a_table_is_not_edited() -> None:
    text = '[[key]]\nkey = "sk-a"\nmodels = ["""\n[[key]]\n"""]\n[[key]]\nkey = "sk-b"\n'
    first = parse_key_file(text, Path("keys"))[0]
    with pytest.raises(ApiKeyError, match="edit it by hand"):
        remove_keys(text, Path("keys"), lambda key: key == first)


def test_no_addition_is_lost_when_several_run_at_once(tmp_path: Path) -> None:
    file = tmp_path / "keys.toml"
    with ThreadPoolExecutor(8) as pool:
        from antiphon.app.keys.file_edits import add_key, create_key, edit_file

        def add(_: int) -> None:
            with edit_file(file) as texts:
                texts[0] = add_key(texts[0], file, create_key(), {"owner": "a"})

        list(pool.map(add, range(40)))
    assert len(read_key_file(file)) == 40
