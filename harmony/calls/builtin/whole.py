"""Readers of the arguments of `local_shell` and `tool_search`, which are emitted as a whole at the end of the call."""

import msgspec

from antiphon.events.builtin_calls import LocalShellAction
from antiphon.harmony.calls.builtin.arguments import MAX_SETTING, ArgumentsReader
from antiphon.harmony.parsing.tape import MalformedText, Parser
from antiphon.state.segments import Call, Segment


class WholeArgumentsReader(ArgumentsReader):
    """Base class: keeps the arguments, and reads them at their end."""

    def __init__(self, call: Call) -> None:
        super().__init__(call)
        self._texts: list[str] = []

    def feed(self, text: str, segments: list[Segment]) -> None:
        """Keeps more arguments."""
        self.segments = segments
        self._texts.append(text)

    def finish(self, segments: list[Segment]) -> None:
        """Emits the arguments and the end of the call. Raises `MalformedText` if they are not those of the tool."""
        super().finish(segments)
        self.emit_text(self.read_arguments("".join(self._texts)))
        self.emit_close()

    def parse_arguments(self) -> Parser[None]:
        """Parses nothing: the arguments are read at their end."""
        yield from ()

    def read_arguments(self, text: str) -> str:
        """Returns the arguments as JSON. Raises `MalformedText`."""
        raise NotImplementedError


class LocalShellReader(WholeArgumentsReader):
    """Reads one call of `local_shell`.

    Some models write a line for a shell where a program and its words are asked for, as one string or as the only word
    of the list. `bash` then runs it.
    """

    def read_arguments(self, text: str) -> str:
        """Returns the action as JSON. Raises `MalformedText`."""
        return msgspec.json.encode(_read_action(text)).decode()


class ToolSearchReader(WholeArgumentsReader):
    """Reads one call of `tool_search`, whose arguments are any object."""

    def read_arguments(self, text: str) -> str:
        """Returns the object as it was written. Raises `MalformedText`."""
        try:
            arguments = msgspec.json.decode(text)
        except (msgspec.DecodeError, RecursionError):
            raise MalformedText("arguments") from None
        if not isinstance(arguments, dict):
            raise MalformedText("no object")
        return text


def _read_action(text: str) -> LocalShellAction:
    try:
        sent = msgspec.json.decode(text)
        fields = {key: value for key, value in sent.items() if value is not None}
        match fields.get("command"):
            case str(line):
                fields["command"] = ["bash", "-lc", line]
            case [str(line)] if " " in line:
                fields["command"] = ["bash", "-lc", line]
        action = msgspec.convert({**fields, "type": "exec"}, LocalShellAction)
    except (msgspec.DecodeError, AttributeError, RecursionError):
        raise MalformedText("arguments") from None
    if not action.command:
        raise MalformedText("no command")
    if isinstance(action.timeout_ms, int) and action.timeout_ms > MAX_SETTING:
        raise MalformedText("timeout_ms")
    return action
