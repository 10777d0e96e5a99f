"""The numbered examples, as modules."""

from __future__ import annotations

import sys
from functools import cache
from importlib.util import module_from_spec, spec_from_file_location
from pathlib import Path
from types import ModuleType

EXAMPLES = Path(__file__).parents[2] / "examples"


@cache
def example(name: str) -> ModuleType:
    """The example of this file name, loaded and not run."""
    module_name = f"example_{name.removesuffix('.py')}"
    spec = spec_from_file_location(module_name, EXAMPLES / name)
    assert spec is not None
    assert spec.loader is not None
    module = sys.modules[module_name] = module_from_spec(spec)
    spec.loader.exec_module(module)
    return module
