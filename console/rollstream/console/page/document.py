"""The HTML document: style, scripts, the chart library and the data, all in it.

Nothing of a run is ever markup: its data is JSON that ``run.js`` puts into text nodes, and the
document's policy lets a browser run these scripts alone, and load nothing from anywhere.
"""

from __future__ import annotations

import base64
import hashlib
from collections.abc import Mapping
from functools import cache
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import orjson

_HERE = Path(__file__).parent
_CHARTS = "uplot"  # The package that ships uPlot.
_INTEGERS_MAX = 1 << 63  # What orjson writes.


def html_of(data: Mapping[str, Any] | None) -> bytes:
    """The document.

    Args:
        data: of the run, and ``rows`` and ``rollouts``; None: a server has them.

    Raises:
        ModuleNotFoundError: the extra ``page`` is not installed.
    """
    html, style, script = _parts()
    return (
        html.replace(b"{{policy}}", policy(served=data is None).encode())
        .replace(b"{{style}}", style)
        .replace(b"{{script}}", script)
        .replace(
            # In JSON this character is in strings alone, and may be spelled so.
            b"{{data}}",
            as_json(data).replace(b"<", b"\\u003c"),
        )
    )


def policy(*, served: bool) -> str:
    """The document's Content-Security-Policy."""
    _, style, script = _parts()
    return (
        f"default-src 'none'; script-src {_hash(script)}; style-src {_hash(style)}; "
        f"img-src data:; connect-src {_OWN if served else _NONE}; base-uri 'none'; "
        "form-action 'none'"
    )


def as_json(value: Any) -> bytes:
    """JSON that every browser reads, whatever the value's texts and numbers are."""
    option = orjson.OPT_SERIALIZE_NUMPY | orjson.OPT_NON_STR_KEYS
    try:
        return orjson.dumps(value, option=option)
    except TypeError:  # Half a character, or a number beyond 64 bits, in somebody's metadata.
        return orjson.dumps(_plain(value), option=option)


_OWN, _NONE = "'self'", "'none'"


@cache
def _parts() -> tuple[bytes, bytes, bytes]:
    """The document with gaps, its style and its script."""
    spec = find_spec(_CHARTS)  # Importing it would import IPython.
    if spec is None or not spec.submodule_search_locations:
        raise ModuleNotFoundError(f"No module named {_CHARTS!r}", name=_CHARTS)
    static = Path(spec.submodule_search_locations[0]) / "static"
    style = (static / "uPlot.min.css").read_bytes() + (_HERE / "run.css").read_bytes()
    script = (static / "uPlot.iife.js").read_bytes() + (_HERE / "run.js").read_bytes()
    assert b"</script" not in script
    return (_HERE / "run.html").read_bytes(), style, script


def _hash(content: bytes) -> str:
    return f"'sha256-{base64.b64encode(hashlib.sha256(content).digest()).decode()}'"


def _plain(value: Any) -> Any:
    match value:
        case str():
            return value.encode(errors="replace").decode()
        case int() if not -_INTEGERS_MAX <= value < _INTEGERS_MAX:
            return str(value)
        case Mapping():
            return {_plain(key): _plain(one) for key, one in value.items()}
        case list() | tuple():
            return [_plain(one) for one in value]
    return value
