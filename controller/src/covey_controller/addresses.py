"""`HOST:PORT` in flags."""

import argparse


def parse_address(parser: argparse.ArgumentParser, flag: str, text: str) -> tuple[str, int]:
    """Wrong ones end the process with code 2."""
    host, _, port = text.rpartition(":")
    if not port.isdecimal() or int(port) > 65_535:
        parser.error(f"`{flag}` must be 'HOST:PORT'; got '{text}'")
    return host.strip("[]"), int(port)


def render_address(host: str, port: int) -> str:
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"
