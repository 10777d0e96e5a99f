"""The policy's tokens: digits, a comma, one word a task, and the end of an answer.

A question is read character by character for its digits and commas, and word by word for the
words that tell the tasks apart. Everything else in it is the same in every question of its
task, carries nothing, and is skipped.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

#: Ends an answer. Stands first, so that the tokens of answers are the ids below ANSWER_SIZE.
END = 0
_DIGITS = tuple("0123456789")
_WORDS = ("divisor", "bits")

#: The text of each token id.
VOCABULARY: tuple[str, ...] = ("", *_DIGITS, ",", *_WORDS)

#: Ids below this one can stand in an answer: the end and the digits.
ANSWER_SIZE = 1 + len(_DIGITS)

_IDS = {text: token for token, text in enumerate(VOCABULARY) if text}
_PIECES = re.compile(r"[a-z]+|[0-9,]")


def encode(text: str) -> NDArray[np.int32]:
    """The tokens of ``text`` that the vocabulary knows, in order; the rest is skipped.

    Returns:
        Token ids, int32 [k], without an END.
    """
    pieces = _PIECES.findall(text.lower())
    return np.array([_IDS[piece] for piece in pieces if piece in _IDS], dtype=np.int32)


def decode(tokens: Iterable[int]) -> str:
    """The text of the tokens; END is nothing, words stand between spaces.

    For digits and commas it is the inverse of :func:`encode`.
    """
    texts = (VOCABULARY[int(token)] for token in tokens)
    return "".join(f" {text} " if text in _WORDS else text for text in texts).strip()
