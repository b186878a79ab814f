"""What a policy lets through beside public addresses."""

import pytest

from antiphon.app.outbound.policy import OutboundPolicy


@pytest.mark.parametrize(
    ("reach", "ip", "host", "may"),
    [
        ("public", "127.0.0.1", "localhost", False),
        ("public", "93.184.216.34", "a.example", True),
        ("loopback", "127.0.0.1", "localhost", True),
        ("loopback", "127.0.0.2", "127.0.0.1", True),
        ("loopback", "::1", "localhost", True),
        ("loopback", "10.0.0.1", "localhost", False),
        ("loopback", "93.184.216.34", "localhost", False),
        ("loopback", "nonsense", "localhost", False),
        ("loopback", "127.0.0.1", "a.example", False),
        ("loopback", "93.184.216.34", "a.example", True),
        ("any", "10.0.0.1", "a.example", True),
    ],
)
def test_host_of_this_machine_reaches_nothing_else(reach: str, ip: str, host: str, *, may: bool) -> None:
    assert OutboundPolicy(reach=reach).may_dial(ip, host) is may  # type: ignore[arg-type]
