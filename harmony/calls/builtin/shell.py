"""Reader of the arguments of `shell`: a JSON object with commands, of which each is emitted while it is written.

Models that no grammar binds write other forms, too: one command as a string, and `command` or `cmd` with the words of
one command, as in `{"cmd": ["bash", "-lc", "ls"]}`.
"""

import shlex
from typing import get_args

from antiphon.harmony.calls.builtin.arguments import MAX_SETTING, ArgumentsReader
from antiphon.harmony.parsing import json_stream, schema_values
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.state.segments import Call, Segment, Setting, SettingName

_WORDS_KEYS = ("command", "cmd")
_SHELLS = ("bash", "sh", "/bin/bash", "/bin/sh")
_COMMAND_OPTIONS = ("-c", "-lc")
_SETTINGS: dict[str, SettingName] = {name: name for name in get_args(SettingName)}


class ShellReader(ArgumentsReader):
    """Reads one call of `shell`."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._num_commands = 0
        self._is_inside_command = False

    def feed(self, text: str, segments: list[Segment]) -> None:
        """Reads more arguments. Most pieces of a command have nothing to decode, so they pass without the parser."""
        if self._is_inside_command and self.tape.index == len(self.tape.text) and not ('"' in text or "\\" in text):
            self.segments = segments
            self.emit_text(text, self._num_commands - 1)
        else:
            super().feed(text, segments)

    def finish(self, segments: list[Segment]) -> None:
        """Emits the end of the call. Raises `MalformedText` if it has no command."""
        super().finish(segments)
        if not self._num_commands:
            raise MalformedText("no command")
        self.emit_close()

    def parse_arguments(self) -> Parser[None]:
        """Parses the object."""
        tape = self.tape
        yield from tape.skip_whitespace()
        yield from tape.expect("{")
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("}")):
            key = yield from json_stream.skip_key(tape)
            if key == "commands" and not self._num_commands:
                yield from self._read_commands()
            elif key in _WORDS_KEYS and not self._num_commands:
                yield from self._read_words()
            elif key in _SETTINGS:
                yield from self._read_setting(_SETTINGS[key])
            else:
                yield from json_stream.read_value(tape, tape.skip)
            yield from json_stream.skip_comma(tape)
        yield from tape.skip_whitespace()
        if (yield from tape.wait_more()):
            raise MalformedText("text after the object")

    def _read_commands(self) -> Parser[None]:
        tape = self.tape
        if (yield from tape.matches_here('"')):
            yield from self._read_command()
            return
        yield from tape.expect("[")
        yield from tape.skip_whitespace()
        while not (yield from tape.skip_literal("]")):
            yield from self._read_command()
            yield from json_stream.skip_comma(tape, "]")

    def _read_command(self) -> Parser[None]:
        tape, index = self.tape, self._num_commands

        def take(count: int) -> None:
            self.emit_text(tape.take(count), index)

        def replace(text: str, count: int) -> None:
            tape.skip(count)
            self.emit_text(text, index)

        if (yield from tape.matches_here('"')):
            self._num_commands += 1
            self.emit_text("", index)
            self._is_inside_command = True
        yield from json_stream.read_string(tape, take, replace)
        self._is_inside_command = False

    def _read_words(self) -> Parser[None]:
        """Reads the words of one command: `bash -lc X` is the command X, other words are quoted."""
        if (yield from self.tape.matches_here('"')):
            yield from self._read_command()
            return
        words = yield from self._read_json()
        if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
            raise MalformedText("words")
        runs_text = len(words) == 3 and words[0] in _SHELLS and words[1] in _COMMAND_OPTIONS
        self.emit_text(words[2] if runs_text else shlex.join(words), self._num_commands)
        self._num_commands += 1

    def _read_setting(self, name: SettingName) -> Parser[None]:
        value = yield from self._read_json()
        if value is None:
            return
        if not isinstance(value, int) or isinstance(value, bool) or not 1 <= value <= MAX_SETTING:
            raise MalformedText(name)
        self.segments.append(Setting(name, value))

    def _read_json(self) -> Parser[object]:
        pieces: list[str] = []
        yield from json_stream.read_value(self.tape, lambda count: pieces.append(self.tape.take(count)))
        try:
            return schema_values.parse_json("".join(pieces))
        except ValueError:
            raise MalformedText("value") from None
