"""Leaves out of the reference on the site what is for developers: the maps of packages, and how
objects are made that users get and do not make."""

from __future__ import annotations

from typing import Any

import griffe

MAP = "\n\nMap"
MADE_BY_US = "`` makes it"  # The docstring of such a class names what does.


class ForUsers(griffe.Extension):
    """Cuts a module's docstring where its map begins, and empties such constructors."""

    def on_module_instance(self, *, mod: griffe.Module, **_: Any) -> None:
        """Runs for each module that the reference reads."""
        if mod.docstring is not None:
            mod.docstring.value = mod.docstring.value.partition(MAP)[0]

    def on_class_members(self, *, cls: griffe.Class, **_: Any) -> None:
        """Runs for each class, once its members are known."""
        if cls.docstring is not None and MADE_BY_US in cls.docstring.value:
            cls.set_member("__init__", griffe.Function("__init__"))
