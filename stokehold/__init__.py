"""What users import and type: the SDK and the command line. Speaks HTTP; imports no other package of ours."""

from typing import TYPE_CHECKING

from stokehold.version import __version__

if TYPE_CHECKING:
    from stokehold.aio import AsyncClient
    from stokehold.client import Client

__all__ = ["AsyncClient", "Client", "__version__"]


def __getattr__(name: str) -> object:
    """`Client` and `AsyncClient`, loaded when first asked for: `serve` and `status` need no HTTP client."""
    if name == "Client":
        from stokehold.client import Client

        return Client
    if name == "AsyncClient":
        from stokehold.aio import AsyncClient

        return AsyncClient
    raise AttributeError(f"module 'stokehold' has no attribute {name!r}")
