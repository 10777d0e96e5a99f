"""How long the docs are, and how long their sentences: figures that ``make docs`` prints and keeps.

Counted is what a reader reads: paragraphs, lists and tables, not code blocks.
"""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from harness.source_tree import ROOT

# Of README, the path of a newcomer, and the guides.
GUIDES_WORDS_MAX = 16_000
GUIDE_WORDS_MAX = 1_200
SENTENCE_WORDS_MEAN_MAX = 16.0
LONG_SENTENCE_WORDS = 28
LONG_SENTENCES_SHARE_MAX = 0.03
# Of everything below docs/ but what describes formats field by field, and the record of decisions.
PAGES_WORDS_MAX = 27_500
NOT_COUNTED = ("wire_format.md", "data_dictionary.md", "reference/", "decisions/")
PATH_OF_A_NEWCOMER = ("index.md", "install.md", "quickstart.md", "concepts.md", "guides/")

_FENCE = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
_COMMENT = re.compile(r"<!--.*?-->|</?\w[^>]*>", re.DOTALL)
_LINK = re.compile(r"!?\[([^\]]*)\]\([^)]*\)")
_CODE = re.compile(r"`[^`]*`")
_ITEM = re.compile(r"^ *(?:[-*]|\d+\.) +", re.MULTILINE)
_END = re.compile(r"(?<=[.!?:])[\"')*_]* +(?=[\"'(*_`\[]*[A-Z0-9`])")
# A cell of fewer words is a name or a figure.
_CELL_WORDS = 8


class Prose(NamedTuple):
    """Words of a text, and the words of each of its sentences."""

    words: int
    sentences: list[int]

    def __add__(self, other: object) -> Prose:
        assert isinstance(other, Prose)
        return Prose(self.words + other.words, self.sentences + other.sentences)

    @property
    def mean(self) -> float:
        """Words a sentence."""
        return sum(self.sentences) / max(1, len(self.sentences))

    @property
    def long_share(self) -> float:
        """The share of sentences with more than ``LONG_SENTENCE_WORDS`` words."""
        long = sum(words > LONG_SENTENCE_WORDS for words in self.sentences)
        return long / max(1, len(self.sentences))


def blocks(text: str) -> Iterator[str]:
    """Paragraphs, list items, and the cells of tables, each on one line."""
    text = _COMMENT.sub("", _FENCE.sub("", text))
    for part in re.split(r"\n\s*\n", text):
        lines = [line for line in part.splitlines() if not line.lstrip().startswith("#")]
        table = [line for line in lines if line.lstrip().startswith("|")]
        for line in table:
            if not re.fullmatch(r"[\s|:-]+", line):
                yield from (cell.strip() for cell in line.strip().strip("|").split(" | "))
        rest = "\n".join(line for line in lines if line not in table)
        yield from (" ".join(item.split()) for item in _ITEM.split(rest) if item.strip())


def sentences(block: str) -> list[str]:
    """The sentences of a paragraph, with each link as its text and each piece of code as a word."""
    plain = _CODE.sub(lambda code: code.group().replace(" ", "_").replace(".", "_"), block)
    return [one for one in _END.split(_LINK.sub(r"\1", plain)) if one.strip()]


def measured(text: str) -> Prose:
    """The figures of a page."""
    words, found = 0, []
    for block in blocks(text):
        counts = [len(one.split()) for one in sentences(block)]
        words += sum(counts)
        found += counts if sum(counts) >= _CELL_WORDS else []
    return Prose(words, found)


def long_sentences(text: str) -> list[str]:
    """Those with more than ``LONG_SENTENCE_WORDS`` words."""
    each = [one for block in blocks(text) for one in sentences(block)]
    return [one for one in each if len(one.split()) > LONG_SENTENCE_WORDS]


def pages() -> dict[str, str]:
    """The text of README and of each page that counts, by its path."""
    docs = ROOT / "docs"
    found = {"README.md": (ROOT / "README.md").read_text(encoding="utf-8")}
    for path in sorted(docs.rglob("*.md")):
        name = str(path.relative_to(docs))
        if not name.startswith(NOT_COUNTED):
            found[f"docs/{name}"] = path.read_text(encoding="utf-8")
    return found


def is_for_newcomers(name: str) -> bool:
    """Whether it is README, on the path of a newcomer, or a guide."""
    return name == "README.md" or name.removeprefix("docs/").startswith(PATH_OF_A_NEWCOMER)


def totals(texts: dict[str, str]) -> tuple[Prose, int]:
    """The figures of README and guides together, and the words below docs/."""
    guides, words = Prose(0, []), 0
    for name, text in texts.items():
        one = measured(text)
        words += one.words if name != "README.md" else 0
        guides += one if is_for_newcomers(name) else Prose(0, [])
    return guides, words


def broken_bounds(texts: dict[str, str]) -> list[str]:
    """One line for each figure that is beyond its bound."""
    guides, words = totals(texts)
    found = [
        f"{name}: {measured(text).words} words; a guide has at most {GUIDE_WORDS_MAX}"
        for name, text in texts.items()
        if name.startswith("docs/guides/") and measured(text).words > GUIDE_WORDS_MAX
    ]
    if guides.words > GUIDES_WORDS_MAX:
        found.append(f"README and guides: {guides.words} words; at most {GUIDES_WORDS_MAX}")
    if words > PAGES_WORDS_MAX:
        found.append(f"docs: {words} words; at most {PAGES_WORDS_MAX}")
    if guides.mean > SENTENCE_WORDS_MEAN_MAX:
        found.append(
            f"README and guides: {guides.mean:.1f} words a sentence; at most "
            f"{SENTENCE_WORDS_MEAN_MAX:g}"
        )
    if guides.long_share > LONG_SENTENCES_SHARE_MAX:
        found.append(
            f"README and guides: {guides.long_share:.1%} of the sentences have more than "
            f"{LONG_SENTENCE_WORDS} words; at most {LONG_SENTENCES_SHARE_MAX:.0%}"
        )
    return found


def main(names: list[str]) -> int:
    """Prints the figures of all pages, and of the named ones their long sentences; 1 if a bound is
    broken."""
    texts = pages()
    for name, text in texts.items():
        one = measured(text)
        print(
            f"{one.words:>6} words {one.mean:>5.1f} a sentence {one.long_share:>6.1%} long  {name}"
        )
    for name in names:
        text = Path(name).read_text(encoding="utf-8")
        print(*(f"{name}: {one}" for one in long_sentences(text)), sep="\n")
    guides, words = totals(texts)
    print(
        f"README and guides: {guides.words:,} words, {guides.mean:.1f} a sentence, "
        f"{guides.long_share:.1%} longer than {LONG_SENTENCE_WORDS}; docs: {words:,} words"
    )
    broken = broken_bounds(texts)
    print(*broken, sep="\n")
    return bool(broken)


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
