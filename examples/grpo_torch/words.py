"""The environment: words to spell backward, from reasoning-gym, and the model's tokens for them."""

from __future__ import annotations

import string
from collections.abc import Iterable
from dataclasses import dataclass
from typing import Any

import numpy as np
import reasoning_gym
from numpy.typing import NDArray

ENVIRONMENT = "spell_backward"
WORD_LENGTH = 3
#: The answer's letters and the end.
MAX_ANSWER_TOKENS = WORD_LENGTH + 1

PAD, END, ANSWER = 0, 1, 2
_LETTERS = string.ascii_lowercase
VOCABULARY_SIZE = 3 + len(_LETTERS)
_SPECIAL = VOCABULARY_SIZE - len(_LETTERS)

# The package draws words with replacement; so many draws find nearly all of its 1,254.
_DRAWS = 20_000


@dataclass(frozen=True)
class Problem:
    """One problem.

    Attributes:
        example_id: names it; the same in every process.
        prompt_tokens: int32 [WORD_LENGTH + 1]: the word, and the token after which the answer
            begins. The rest of the question is the same in all of them and is left out.
        entry: what the package's scorer wants.
    """

    example_id: str
    prompt_tokens: NDArray[np.int32]
    entry: dict[str, Any]


class Words:
    """Every problem, in an order that depends on the seed; the last ones are held out.

    The scorer is the package's own: 1 for the answer, a share for each letter that is in its place.
    """

    def __init__(self, seed: int, held_out: int) -> None:
        self._dataset = reasoning_gym.create_dataset(
            ENVIRONMENT, size=_DRAWS, seed=seed, min_word_len=WORD_LENGTH, max_word_len=WORD_LENGTH
        )
        distinct: dict[str, Problem] = {}
        for index in range(_DRAWS):
            entry = self._dataset[index]
            word = entry["metadata"]["word"].lower()
            if word not in distinct:
                distinct[word] = Problem(word, np.append(encode(word), np.int32(ANSWER)), entry)
        problems = tuple(distinct.values())
        self.trained, self.held_out = problems[:-held_out], problems[-held_out:]

    def score(self, problem: Problem, output_tokens: Iterable[int]) -> float:
        """From 0 to 1."""
        return float(self._dataset.score_answer(decode(output_tokens), problem.entry))


def encode(word: str) -> NDArray[np.int32]:
    """A token a letter, int32 [letters]."""
    return np.array([_LETTERS.index(letter) + _SPECIAL for letter in word], np.int32)


def decode(tokens: Iterable[int]) -> str:
    """The letters; other tokens are nothing, except a stray ``ANSWER``, which spoils the answer."""
    texts = {PAD: "", END: "", ANSWER: ">"}
    return "".join(texts[t] if t in texts else _LETTERS[t - _SPECIAL] for t in map(int, tokens))
