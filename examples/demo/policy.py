"""A small real policy: it reads a prompt's tokens and writes an answer token by token.

The network is a perceptron with two hidden layers over three sums of embeddings: each prompt
token at its distance from the prompt's end, each answer token already written at its position, and
the position that is written next. It sees nothing else of a problem.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, Self

import numpy as np
from numpy.typing import NDArray

from examples.demo.errors import PromptDoesNotFit, WeightsDoNotFit
from examples.demo.tokens import ANSWER_SIZE, END, VOCABULARY, decode

#: The tasks' answers have at most two digits, and the policy has to end them itself.
MAX_ANSWER_TOKENS = 3
#: The longest prompt of the demo's tasks has 6 tokens.
MAX_PROMPT_TOKENS = 8
#: Neurons of each hidden layer: 192 learn little faster, 64 take half as many rollouts more.
HIDDEN = 128

_PROMPT_FEATURES = MAX_PROMPT_TOKENS * len(VOCABULARY)
_WRITTEN_FEATURES = MAX_ANSWER_TOKENS * ANSWER_SIZE

#: The weights in the order in which they stand in the flat vector.
SHAPES: dict[str, tuple[int, ...]] = {
    "prompt_embedding": (_PROMPT_FEATURES, HIDDEN),
    "written_embedding": (_WRITTEN_FEATURES, HIDDEN),
    "position_embedding": (MAX_ANSWER_TOKENS, HIDDEN),
    "mixing": (HIDDEN, HIDDEN),
    "mixing_bias": (HIDDEN,),
    "readout": (HIDDEN, ANSWER_SIZE),
    "readout_bias": (ANSWER_SIZE,),
}
_SIZE = sum(int(np.prod(shape)) for shape in SHAPES.values())
_WIRE = np.dtype("<f4")

# Scales of the first weights. Wide embeddings set problems apart from the start, which keeps the
# policy from settling on one answer for all; a narrow readout makes the first answers near uniform.
_INITIAL_SCALES = {
    "prompt_embedding": 2 / np.sqrt(6),
    "written_embedding": 2 / np.sqrt(2),
    "position_embedding": 0.5,
    "mixing": np.sqrt(2 / HIDDEN),
    "readout": 0.01,
}


@dataclass(frozen=True)
class Completion:
    """One answer with the log-probabilities under which each of its tokens was drawn.

    Attributes:
        ids: the tokens, int32 [k]; the last one is END if and only if it stopped by itself.
        logprobs: float32 [k].
        text: the answer without its end.
        stop_reason: ``stop``, or ``length`` when the limit cut it off.
    """

    ids: NDArray[np.int32]
    logprobs: NDArray[np.float32]
    text: str
    stop_reason: Literal["stop", "length"]


@dataclass(frozen=True)
class Contexts:
    """What the policy sees before each of m choices, over n prompts.

    Attributes:
        prompts: float32 [n, prompt features], see :func:`prompt_features`.
        prompt_of: which prompt a choice belongs to, int64 [m].
        written: one-hot of the tokens written so far by position, float32 [m, written features].
        position: the position that is written next, int64 [m].
    """

    prompts: NDArray[np.float32]
    prompt_of: NDArray[np.int64]
    written: NDArray[np.float32]
    position: NDArray[np.int64]


@dataclass(frozen=True)
class Activations:
    """What a forward pass leaves behind for the backward pass, all float32.

    Attributes:
        first: [m, HIDDEN]; second: [m, HIDDEN]; log_probs: of each token, [m, ANSWER_SIZE].
    """

    first: NDArray[np.float32]
    second: NDArray[np.float32]
    log_probs: NDArray[np.float32]


def prompt_features(tokens: NDArray[np.int32], lengths: NDArray[np.int64]) -> NDArray[np.float32]:
    """One-hot features of n prompts: a token at its distance from the prompt's end.

    Args:
        tokens: the prompts one after the other, int32 [total].
        lengths: of each prompt, int64 [n].

    Raises:
        PromptDoesNotFit: a prompt is too long, or a token is not in the vocabulary.
    """
    if lengths.size and int(lengths.max()) > MAX_PROMPT_TOKENS:
        raise PromptDoesNotFit(
            f"a prompt has {int(lengths.max())} tokens, the policy reads {MAX_PROMPT_TOKENS}: "
            "give the task smaller numbers"
        )
    if tokens.size and not 0 <= int(tokens.min()) <= int(tokens.max()) < len(VOCABULARY):
        raise PromptDoesNotFit(
            f"prompt tokens from {int(tokens.min())} to {int(tokens.max())} are not all among the "
            f"{len(VOCABULARY)} of the vocabulary: encode prompts with the demo's tokens"
        )
    row = np.repeat(np.arange(lengths.size), lengths)
    from_end = np.cumsum(lengths)[row] - 1 - np.arange(tokens.size)
    features = np.zeros((lengths.size, _PROMPT_FEATURES), np.float32)
    features[row, from_end * len(VOCABULARY) + tokens] = 1
    return features


def no_answer_yet(rows: int) -> NDArray[np.float32]:
    """The written features of ``rows`` answers that have not begun."""
    return np.zeros((rows, _WRITTEN_FEATURES), np.float32)


def write_token(
    written: NDArray[np.float32],
    rows: NDArray[np.int64],
    position: int,
    tokens: NDArray[np.int64] | NDArray[np.int32],
) -> None:
    """Marks in ``written`` that the answers ``rows`` have ``tokens`` at ``position``."""
    written[rows, position * ANSWER_SIZE + tokens] = 1


class Policy:
    """The weights, and what can be asked of them.

    Attributes:
        weights: every weight, one flat float32 vector; a learner changes it in place.
        params: the same memory by name, in the shapes of ``SHAPES``.
    """

    def __init__(self, weights: NDArray[np.float32]) -> None:
        if weights.size != _SIZE:
            raise WeightsDoNotFit(weights.nbytes, _SIZE * _WIRE.itemsize)
        self.weights = weights
        self.params = views(weights)

    @classmethod
    def initial(cls, seed: int) -> Self:
        """The same first weights for the same seed."""
        rng = np.random.default_rng(seed)
        policy = cls(np.zeros(_SIZE, np.float32))
        for name, scale in _INITIAL_SCALES.items():
            policy.params[name][...] = rng.standard_normal(SHAPES[name]) * scale
        return policy

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """The policy that :meth:`to_bytes` wrote, weight for weight.

        Raises:
            WeightsDoNotFit: the bytes have another length than this policy's weights.
        """
        if len(data) != _SIZE * _WIRE.itemsize:
            raise WeightsDoNotFit(len(data), _SIZE * _WIRE.itemsize)
        return cls(np.frombuffer(data, _WIRE).astype(np.float32))

    def to_bytes(self) -> bytes:
        """Every weight, little-endian float32, in the order of ``SHAPES``."""
        return self.weights.astype(_WIRE).tobytes()

    def forward(self, contexts: Contexts) -> Activations:
        """The log-probabilities of the next token, at temperature 1, for each context."""
        params = self.params
        first: NDArray[np.float32] = (contexts.prompts @ params["prompt_embedding"])[
            contexts.prompt_of
        ]
        first += contexts.written @ params["written_embedding"]
        first += params["position_embedding"][contexts.position]
        np.maximum(first, 0, out=first)
        second: NDArray[np.float32] = first @ params["mixing"] + params["mixing_bias"]
        np.maximum(second, 0, out=second)
        logits: NDArray[np.float32] = second @ params["readout"] + params["readout_bias"]
        logits -= logits.max(axis=1, keepdims=True)
        totals: NDArray[np.float32] = np.exp(logits).sum(axis=1, keepdims=True)
        logits -= np.log(totals)
        return Activations(first, second, logits)

    def sample(
        self, prompts: Sequence[NDArray[np.int32]], n: int, rng: np.random.Generator
    ) -> list[list[Completion]]:
        """``n`` answers to each prompt, all written side by side, token by token.

        Each token is drawn from exactly the distribution whose log-probability is recorded
        with it (temperature 1, nothing cut off).

        Args:
            prompts: token ids, int32 [k] each.
            n: answers to a prompt.
            rng: the only source of chance.

        Returns:
            One list of ``n`` completions for each prompt, in the prompts' order.

        Raises:
            PromptDoesNotFit: see :func:`prompt_features`.
        """
        if not prompts or n == 0:
            return [[] for _ in prompts]
        lengths = np.array([len(prompt) for prompt in prompts], np.int64)
        features = prompt_features(np.concatenate(prompts).astype(np.int32), lengths)
        prompt_of = np.repeat(np.arange(len(prompts)), n)
        rows = len(prompts) * n
        written = no_answer_yet(rows)
        tokens = np.zeros((rows, MAX_ANSWER_TOKENS), np.int32)
        logprobs = np.zeros((rows, MAX_ANSWER_TOKENS), np.float32)
        sizes = np.full(rows, MAX_ANSWER_TOKENS)
        open_rows = np.arange(rows)
        for position in range(MAX_ANSWER_TOKENS):
            contexts = Contexts(
                features,
                prompt_of[open_rows],
                written[open_rows],
                np.full(open_rows.size, position),
            )
            log_probs = self.forward(contexts).log_probs
            # The largest of log-probability plus Gumbel noise is a draw from the distribution.
            drawn = (log_probs + rng.gumbel(size=log_probs.shape)).argmax(axis=1)
            tokens[open_rows, position] = drawn
            logprobs[open_rows, position] = log_probs[np.arange(open_rows.size), drawn]
            write_token(written, open_rows, position, drawn)
            sizes[open_rows[drawn == END]] = position + 1
            open_rows = open_rows[drawn != END]
            if open_rows.size == 0:
                break
        completions = [_completion(*row) for row in zip(tokens, logprobs, sizes, strict=True)]
        return [completions[start : start + n] for start in range(0, rows, n)]


def views(vector: NDArray[np.float32]) -> dict[str, NDArray[np.float32]]:
    """The parts of a flat vector by name, sharing its memory."""
    parts: dict[str, NDArray[np.float32]] = {}
    start = 0
    for name, shape in SHAPES.items():
        size = int(np.prod(shape))
        parts[name] = vector[start : start + size].reshape(shape)
        start += size
    return parts


def _completion(tokens: NDArray[np.int32], logprobs: NDArray[np.float32], size: int) -> Completion:
    ids = tokens[:size]
    stopped = ids[-1] == END
    return Completion(ids, logprobs[:size], decode(ids.tolist()), "stop" if stopped else "length")
