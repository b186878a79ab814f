"""Antiphon, a self-hosted server for the OpenAI Responses API.

The repository's folders `app`, `engine`, `events`, `harmony` and `state` are installed as the packages
`antiphon.app`, `antiphon.engine`, and so on. This module binds none of these names: `antiphon.events` is always the
package.
"""

__version__ = "0.1.0"
