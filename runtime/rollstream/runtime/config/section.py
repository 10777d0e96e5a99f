"""What every section of ``rollstream.toml`` is."""

from __future__ import annotations

from typing import Any, get_args, get_origin

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


class VariableText(str):
    """The text of an environment variable, which has no types: it is read as its key's."""


class Section(BaseModel):
    """A frozen model that refuses unknown keys; the string below each field explains it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_of_its_type(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true, 4.0 and "4" for 4, and "yes" for true: pydantic takes them, unless it is so
        strict that it also refuses the texts of environment variables."""
        if isinstance(value, VariableText):
            return str(value)
        kind = cls.model_fields[info.field_name or ""].annotation
        kinds = (kind,) if get_origin(kind) is tuple else get_args(kind) or (kind,)
        given = type(value)
        if given in (bool, float, str) and given not in kinds:
            if int in kinds:
                raise PydanticKnownError("int_type")
            if float in kinds and given is not float:
                raise PydanticKnownError("float_type")
            if bool in kinds:
                raise PydanticKnownError("bool_type")
        return value
