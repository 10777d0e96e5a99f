"""What every section of ``rollstream.toml`` is."""

from __future__ import annotations

from typing import Any, get_args

from pydantic import BaseModel, ConfigDict, ValidationInfo, field_validator
from pydantic_core import PydanticKnownError


class Section(BaseModel):
    """A frozen model that refuses unknown keys; the string below each field explains it."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True)

    @field_validator("*", mode="before")
    @classmethod
    def _is_no_truth_value(cls, value: Any, info: ValidationInfo) -> Any:
        """Refuses true and false for numbers: pydantic takes them as 1 and 0, unless it is so
        strict that it also refuses the texts of environment variables."""
        if isinstance(value, bool):
            kind = cls.model_fields[info.field_name or ""].annotation
            kinds = get_args(kind) or (kind,)
            if int in kinds:
                raise PydanticKnownError("int_type")
            if float in kinds:
                raise PydanticKnownError("float_type")
        return value
