"""The rules on a rollout's fields, with their limits: the same for who publishes and who seals.

A check returns nothing, or raises ``InvalidRollout``. A producer's caller gets it; a reader finds
it in ``IngestRecord.broken``, since a producer in another language may check nothing. Pure.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Mapping, Sequence
from math import isfinite, prod
from operator import index
from typing import Any, TypeVar
from urllib.parse import quote

import numpy as np
from numpy.typing import NDArray

from rollstream.schemas.errors import InvalidRollout
from rollstream.schemas.ids import MIXED_POLICY
from rollstream.schemas.order import UNKNOWN_STEP

T = TypeVar("T")
INT_MAX = 2**31 - 1
LONG_MAX = 2**63 - 1
CREATED_TS_MAX = 253_402_300_799_999_999  # The last microsecond that Python has: of the year 9999.
GROUP_SIZE_MAX = 65_536  # A larger group is a mistake: it would wait for members until it expires.
# Avro's numbers have no bounds on the wire.
COUNTS = range(INT_MAX + 1)
STEPS = range(UNKNOWN_STEP, LONG_MAX + 1)
BOUNDS: Mapping[str, range] = {
    "group_size": range(GROUP_SIZE_MAX + 1),
    "segment_idx": COUNTS,
    "is_last_segment": range(2),
    "policy_epoch": COUNTS,
    "weight_step": STEPS,
    "created_ts": range(CREATED_TS_MAX + 1),
    "count": range(1, INT_MAX + 1),
    "begun": range(LONG_MAX + 1),
    "waiting": COUNTS,
    "expect_version": COUNTS,
}
# Of a name: seal events repeat some for thousands of rollouts, and each must leave room for others.
NAME_CHARS_MAX = 4_096
# Uids stand in paths of URLs, lines of logs and arguments of commands.
UID_PATTERN = r"^[^\x00-\x1f\x7f-\x9f]*$"
_DIGEST = re.compile("[0-9a-f]{32}")
_CONTROL = re.compile(r"[\x00-\x1f\x7f-\x9f]")
# A policy version names a folder, and file systems take names of 255 bytes.
VERSION_BYTES_MAX = 200
_READ_AS_NULL = ("", "__HIVE_DEFAULT_PARTITION__")  # By readers of partitioned paths.
_SHORT_VERSION = VERSION_BYTES_MAX // 12  # A character takes at most 12 bytes when it is escaped.
SPLITS = ("train", "eval")
# Batches have rewards in float32: what is beyond it is infinite there.
FLOAT32_MAX = float(np.finfo(np.float32).max)
LOGPROB_MAX = 1e-3  # Rounding in the kernels of inference engines takes a certain token above 0.
LOGPROB_MIN = -1e4  # Below what a softmax over float32 logits gives; padding and damage are below.
LOGPROB_SUM_MAX = 1.0  # The same of a thousand certain tokens.
# Of one token in a token array. A batch has room for every token, also for those without a value.
TOKEN_ROW_BYTES_MAX = 1 << 20
# Named arrays of one record, and the length of such a name: each is a column of files and data set.
TOKEN_ARRAYS_MAX = 64
TOKEN_ARRAY_NAME_CHARS_MAX = 200
_SIDES_MAX = 30  # NumPy 1 has 32 at most, and a batch adds two.
_PLAIN_KINDS = "biufc"  # What crosses languages as raw bytes: no objects, no text, no structs.
# Attachments travel inside the rollout; two large images fit, and a topic's record limit (16 MiB)
# stays out of reach for them.
ATTACHED_BYTES_MAX = 4 * 1024 * 1024


def whole_number(name: str, value: Any) -> int:
    """The value as an ``int``, where it is an integer to Python, NumPy's too, and no ``bool``."""
    try:
        if value.__class__ is bool:
            raise TypeError(value)
        return int(index(value))
    except TypeError:
        raise InvalidRollout(name, value, "give a whole number") from None


def check_number(name: str, number: int) -> None:
    """The number is within the field's ``BOUNDS``."""
    bounds = BOUNDS[name]
    if number not in bounds:
        low, high = bounds.start, bounds.stop - 1
        remedy = f"give a number from {low} to {high}"
        if name == "weight_step":
            remedy = f"steps count from 0; {UNKNOWN_STEP}: not known"
        raise InvalidRollout(name, number, remedy)


def check_finite(name: str, number: float) -> None:
    """The number is neither NaN nor infinite, and float32 has room for it, as batches have it."""
    if not isfinite(number):
        raise InvalidRollout(name, number, "give a finite number, or None where none is due")
    if abs(number) > FLOAT32_MAX:
        within = f"from {-FLOAT32_MAX:.8g} to {FLOAT32_MAX:.8g}"
        remedy = f"float32, as batches have it, has no room for it: give a number {within}"
        raise InvalidRollout(name, number, remedy)


def check_name(name: str, value: str) -> None:
    """The text is short enough to be repeated in seal events."""
    if len(value) > NAME_CHARS_MAX:
        remedy = f"give at most {NAME_CHARS_MAX}, and put what is longer into metadata"
        raise InvalidRollout(name, value, remedy, f"has {len(value)} characters")


def check_key(name: str, key: Any, check: Callable[[str, Any], T]) -> T:
    """Returns what this check of a name returns, for a name in the mapping ``name``."""
    try:
        return check(name, key)
    except InvalidRollout as wrong:
        finding = f"has a name that {wrong.finding}"
        raise InvalidRollout(name, wrong.value, wrong.remedy, finding) from None


def check_uid(name: str, value: str) -> None:
    """The text is a name without control characters. Producers alone ask: sealers take any name,
    since older records have such uids."""
    check_name(name, value)
    if not value.isprintable() and (found := _CONTROL.search(value)):
        finding = f"is {value!r:.80} with control character {found[0]!r}"
        remedy = "give one without line breaks, tabs and the like"
        raise InvalidRollout(name, value, remedy, finding)


def check_digest(name: str, value: str) -> None:
    """The text is empty, or a digest as ids of groups and hashes of prefixes are."""
    if value and not _DIGEST.fullmatch(value):
        remedy = "give what Rollstream made: 32 hexadecimal digits in lower case"
        raise InvalidRollout(name, value, remedy)


def check_continuation(prior: str, rollout_uid: str, segment_idx: int) -> None:
    """A first segment continues no other rollout."""
    if prior not in ("", rollout_uid) and segment_idx == 0:
        finding = f"is {prior!r:.80} in a segment with segment_idx 0, which continues nothing"
        remedy = "give segment_idx=1 or more, or leave continuation_of out"
        raise InvalidRollout("continuation_of", prior, remedy, finding)


def check_tokens(name: str, tokens: NDArray[np.int32]) -> None:
    """No token id is negative."""
    _check_values(name, tokens, tokens < 0, "token ids are not negative; is padding still in it?")


def check_floats(name: str, values: NDArray[np.float32]) -> None:
    """Every value is finite."""
    _check_values(name, values, ~np.isfinite(values), "give finite numbers")


def check_logprobs(name: str, values: NDArray[np.float32]) -> None:
    """Every value is a natural logarithm of a probability but for rounding, and none that no model
    gives: bytes in another order look so."""
    bad = ~((values >= LOGPROB_MIN) & (values <= LOGPROB_MAX))
    remedy = f"log-probs are finite and at most 0 (rounding: {LOGPROB_MAX}), and at least "
    remedy += f"{LOGPROB_MIN:g}; are they natural logarithms, little-endian?"
    _check_values(name, values, bad, remedy)


def check_logprob_sum(name: str, number: float) -> None:
    """The number is at most 0 but for rounding."""
    if number > LOGPROB_SUM_MAX:
        remedy = f"a sum of log-probs is at most 0 (rounding: {LOGPROB_SUM_MAX})"
        raise InvalidRollout(name, number, remedy)


def _check_values(name: str, values: NDArray[Any], bad: NDArray[np.bool_], remedy: str) -> None:
    if bad.any():
        at = int(np.flatnonzero(bad)[0])
        raise InvalidRollout(f"{name}[{at}]", values[at].item(), remedy)


def check_split(name: str, value: str) -> None:
    """The text is one of the splits that there are."""
    if value not in SPLITS:
        raise InvalidRollout(name, value, "give 'train' or 'eval'")


def check_version(name: str, value: str) -> None:
    """The policy version can name a folder: it is read as itself, and is short when escaped. It is
    not the name of those groups that several policies sampled."""
    if value == MIXED_POLICY:
        finding = f"is {value!r}, the name of groups that several versions sampled"
        raise InvalidRollout(name, value, "give this policy another name", finding)
    if value not in _READ_AS_NULL and (
        len(value) <= _SHORT_VERSION
        or (len(value) <= VERSION_BYTES_MAX and len(quote(value, safe="")) <= VERSION_BYTES_MAX)
    ):
        return
    raise InvalidRollout(
        name,
        value,
        f"give others, at most {VERSION_BYTES_MAX} (no letter, digit, _ . - or ~: each counts "
        "for 3)",
        f"is {value[:40]!r} of {len(value)} characters and must name a folder",
    )


def check_lengths(arrays: Mapping[str, Any], widths: Mapping[str, int], token_count: int) -> None:
    """Each packed array that is given has one value, of so many bytes, for each output token."""
    for name, width in widths.items():
        packed = arrays.get(name)
        if packed is not None and len(packed) != width * token_count:
            count, rest = divmod(len(packed), width)
            found = len(packed) / width if rest else count
            finding = f"has {found:g} values for {token_count} output tokens"
            raise InvalidRollout(name, found, "give one for each output token", finding)


def check_token_arrays(names: Collection[str]) -> None:
    """Arrays of these names can be columns of a file."""
    if len(names) > TOKEN_ARRAYS_MAX:
        remedy = f"give at most {TOKEN_ARRAYS_MAX}, with several values a token"
        raise InvalidRollout("token_arrays", len(names), remedy, f"has {len(names)} names")
    for name in names:
        if not 0 < len(name) <= TOKEN_ARRAY_NAME_CHARS_MAX:
            remedy = f"give 1 to {TOKEN_ARRAY_NAME_CHARS_MAX}"
            finding = f"has a name that has {len(name)} characters"
            raise InvalidRollout("token_arrays", name, remedy, finding)


def check_token_rows(name: str, dtype: np.dtype[Any], shape: Sequence[int]) -> None:
    """One token's values, of this dtype and trailing shape, can be held by every reader."""
    field = f"token_arrays[{name!r}]"
    if dtype.kind not in _PLAIN_KINDS:
        finding = f"has dtype {dtype}, which is no plain number"
        remedy = "convert it, for example with .astype('float32')"
        raise InvalidRollout(field, str(dtype), remedy, finding)
    sides_fit = len(shape) <= _SIDES_MAX and all(side in COUNTS for side in shape)
    # NumPy multiplies the sides before it sees that one is 0.
    if not sides_fit or prod(side or 1 for side in shape) * dtype.itemsize > TOKEN_ROW_BYTES_MAX:
        remedy = f"one token's values may have {TOKEN_ROW_BYTES_MAX} bytes and {_SIDES_MAX} sides"
        finding = f"has trailing shape {tuple(shape)} of {dtype}"
        raise InvalidRollout(field, tuple(shape), remedy, finding)
