"""TLS: the certificate and private key that the server shows to clients of HTTPS and secure WebSockets."""

import ssl
from pathlib import Path

from antiphon.app.keys.reloader import CertificateError
from antiphon.app.options.serve_options import ServeError
from antiphon.app.options.settings import Settings

_PRIVATE_KEY_LINE = b"PRIVATE KEY-----"


def load_ssl_context(settings: Settings) -> ssl.SSLContext | None:
    """Returns the TLS configuration of the server; None if it serves plain HTTP. Raises `ServeError`."""
    if settings.ssl_certfile is None:
        for name in ("ssl_keyfile", "ssl_keyfile_password"):
            if getattr(settings, name) is not None:
                raise ServeError(f"--{name.replace('_', '-')} needs --ssl-certfile")
        return None
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.set_alpn_protocols(["http/1.1"])
    _check_certificate(settings.ssl_certfile)
    _load_files(context, settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_keyfile_password)
    return context


def reload_certificate(context: ssl.SSLContext, settings: Settings) -> None:
    """Lets new connections of the server have the certificate that the files hold now. Raises `CertificateError`."""
    try:
        load_ssl_context(settings)  # an unusable pair of files would leave the context with half of it
        assert settings.ssl_certfile is not None
        _load_files(context, settings.ssl_certfile, settings.ssl_keyfile, settings.ssl_keyfile_password)
    except ServeError as error:
        raise CertificateError(str(error)) from None


def _check_certificate(path: Path) -> None:
    from cryptography import x509  # noqa: PLC0415  few servers have a certificate, and this takes 50 ms

    source = f"--ssl-certfile {path}"
    try:
        x509.load_pem_x509_certificates(_load_file(path, source))
    except ValueError:
        raise ServeError(f"{source}: contains no certificate in PEM format") from None


def _load_files(context: ssl.SSLContext, certificate: Path, key: Path | None, password: str | None) -> None:
    source = f"--ssl-certfile {certificate}" if key is None else f"--ssl-keyfile {key}"
    if _PRIVATE_KEY_LINE not in _load_file(key or certificate, source):
        remedy = "; give --ssl-keyfile" if key is None else ""
        raise ServeError(f"{source}: contains no private key{remedy}")
    asked = False

    def read_password() -> str:  # without it, OpenSSL would ask on the terminal
        nonlocal asked
        asked = True
        if password is None:
            raise ServeError(f"{source}: the private key is encrypted; give --ssl-keyfile-password")
        return password

    try:
        context.load_cert_chain(certificate, key, read_password)
    except (ssl.SSLError, ValueError) as error:  # a ValueError: the password is too long for OpenSSL
        raise ServeError(f"{source}: {_describe_failure(error, asked=asked)}") from None


def _describe_failure(error: Exception, *, asked: bool) -> str:
    reason = getattr(error, "reason", None) or str(error)
    if reason == "KEY_VALUES_MISMATCH":
        return "the key does not belong to the certificate"
    if asked:
        return "--ssl-keyfile-password does not decrypt the private key"
    return f"OpenSSL cannot use the certificate and the key: {reason.lower().replace('_', ' ')}"


def _load_file(path: Path, source: str) -> bytes:
    try:
        return path.read_bytes()
    except OSError as error:
        raise ServeError(f"{source}: cannot be read: {error.strerror}") from None
