"""The gateway's process: `python -m gateway --config FILE [--http ADDR]`. The composition root: reads settings,
chooses the backend, has everything built (`compose`), serves until told to stop."""

from __future__ import annotations

import argparse
import sys
from pathlib import Path

import msgspec
import uvloop

from gateway.app import create_app
from gateway.compose import composed
from gateway.server import Server, stopped
from gateway.settings import Settings, SettingsError, read_settings
from gateway.telemetry import configure_logging
from gateway.tls import certificates
from runtimes.backend import Backend
from runtimes.fake import FakeBackend
from runtimes.languages import Languages
from runtimes.native.backend import NativeBackend


def _backend(settings: Settings) -> Backend:
    return FakeBackend() if settings.backend == "fake" else NativeBackend(settings.spawner)


def _languages(settings: Settings) -> Languages:
    """Those that the base layer found. Raises SettingsError."""
    if settings.backend == "fake":
        return Languages({})
    file = settings.base / "languages.json"
    try:
        return Languages.read(file)
    except (OSError, msgspec.DecodeError) as error:
        raise SettingsError(f"{file}: {error}: make the base layer with python -m layers.host {settings.base}") from error


async def serve(settings: Settings) -> None:
    """Run until SIGTERM or SIGINT. Raises SettingsError, BackendError."""
    pair = certificates(settings.tls, settings.state)
    async with composed(settings, _backend(settings), _languages(settings)) as services:
        server = Server(create_app(services), settings, pair)
        try:
            await server.start()
            await stopped()
            await server.drain(services.drain)
        finally:
            await server.aclose()


def main() -> int:
    """Exit status: 0 stopped on request, 2 settings that cannot be used."""
    parser = argparse.ArgumentParser(prog="python -m gateway", description="The HTTP gateway of a Stokehold node.")
    parser.add_argument("--config", type=Path, required=True, help="settings (TOML)")
    parser.add_argument("--http", metavar="HOST:PORT", help="serve plain HTTP/1.1 and h2c here too")
    arguments = parser.parse_args()
    try:
        settings = read_settings(arguments.config)
        if arguments.http:
            settings = msgspec.structs.replace(settings, http=arguments.http)
        configure_logging(settings.log_level)
        settings.state.mkdir(mode=0o700, parents=True, exist_ok=True)
        uvloop.run(serve(settings))
    except SettingsError as error:
        print(f"gateway: {error}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
