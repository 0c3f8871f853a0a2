"""What `pip install 'quire-serve[EXTRA]'` brings, and one clear line where that is missing.

Quire alone is the SDK. What each service needs beyond it is an extra: pyproject.toml has them.
"""

import importlib.util
from pathlib import Path

from quire.contract.errors import ConfigError

# Import names. Every extra of a service has those of "scheduler" too.
_ANY_SERVICE = (
    *("cryptography", "grpc_health", "grpc_reflection"),
    *("prometheus_client", "rich", "structlog", "typer"),
)
PICTURES = (".svg", ".png", ".pdf")
MODULES = {
    "scheduler": _ANY_SERVICE,
    "router": (
        *(*_ANY_SERVICE, "h11", "jinja2", "llguidance"),
        *("starlette", "tokenizers", "uvicorn"),
    ),
    "worker": (
        *(*_ANY_SERVICE, "llguidance", "numpy", "safetensors"),
        *("tokenizers", "torch", "transformers"),
    ),
    "simulator": (*_ANY_SERVICE, "numpy"),
    "gguf": ("gguf",),
    "ray": ("ray",),
    "bench": (*_ANY_SERVICE, "aiohttp", "numpy", "tokenizers"),
    "pull": (*_ANY_SERVICE, "huggingface_hub"),
}


def require(what: str, *extras: str, bring: str | None = None) -> None:
    """Return if the packages of some extras are installed. Imports none of them.

    Args:
        what: needs them, for the message.
        extras: of MODULES.
        bring: the extra to name instead of those that lack something.

    Raises:
        ConfigError: one is not; names the packages, and what installs them.
    """
    missing: dict[str, None] = {}
    lacking = []
    for extra in extras:
        absent = [name for name in MODULES[extra] if not _is_installed(name)]
        if absent:
            lacking.append(extra)
        missing |= dict.fromkeys(absent)
    if missing:
        raise ConfigError(
            f"{what}: needs packages that are not installed ({', '.join(missing)}): "
            f"pip install 'quire-serve[{bring or ','.join(lacking)}]'"
        )


def require_plot(path: Path, extra: str) -> None:
    """Return if a picture of this name can be drawn.

    Args:
        path: to write.
        extra: that brings matplotlib.

    Raises:
        ConfigError: matplotlib is not installed, or the name has no ending of a format for it.
    """
    if not _is_installed("matplotlib"):
        raise ConfigError(
            f"--plot: matplotlib is not installed: pip install 'quire-serve[{extra}]'"
        )
    if path.suffix not in PICTURES:
        raise ConfigError(f"--plot: must end in .svg, .png or .pdf, got {path.name}")


def _is_installed(name: str) -> bool:
    try:
        return importlib.util.find_spec(name) is not None
    except ModuleNotFoundError:  # of a finder that hides it
        return False
    except ValueError:  # it is imported, and has no spec
        return True
