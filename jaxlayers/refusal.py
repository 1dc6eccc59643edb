"""What is said to a user whose input cannot be used."""

import importlib.util


class Refusal(ValueError):
    """One sentence that names what to change. The commands print it, without a traceback, and exit 2."""


def require(package: str, option: str, extra: str) -> None:
    """Refuses an option whose package, an extra, is not installed."""
    if importlib.util.find_spec(package) is None:
        raise Refusal(f"{option} needs {package}: pip install 'jaxlayers[{extra}]'")
