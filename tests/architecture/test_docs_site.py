"""The documentation's site holds every page and every package; paths that are named exist."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from harness.source_tree import ROOT, packages, roots

DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
# Read as text: the file has tags that only the site's own loader knows.
SITE = (ROOT / "mkdocs.yml").read_text(encoding="utf-8")
PATH = re.compile(r"`([\w.-]+/[\w./-]*)`")
LINK = re.compile(r"\]\((?!https?://|#)([^)#]+)")
ANCHOR = re.compile(r"\]\((?!https?://)([^)#]*)#([^)]+)\)")
HEADING = re.compile(r"^#{1,6} +(.+)$", re.MULTILINE)
FENCED = re.compile(r"^( *)```.*?^\1```$", re.MULTILINE | re.DOTALL)
FILTER = re.compile(r'"!\^\(([\w|]+)\)\$"')
BLOCK = re.compile(r"^::: rollstream\.[\w.]+\.(\w+)$", re.MULTILINE)
OF_A_NAME = "rollstream."  # Such anchors the reference has by itself, and the build checks them.
COMMAND_LINE = "console"  # It has no interface for programs.
MADE = {"commands", "configuration", "metrics"}  # Of the command line, models, the catalogue.


def test_navigation_names_every_page_once_and_no_other() -> None:
    named = re.findall(r"^ +- .*?: (\S+\.md)$", SITE, re.MULTILINE)
    assert sorted(named) == [path.relative_to(DOCS).as_posix() for path in PAGES]


def test_reference_has_a_page_for_every_package_and_finds_its_sources() -> None:
    found = {path.stem for path in DOCS.glob("reference/*.md")}
    assert found == set(packages()) - {COMMAND_LINE} | MADE
    (paths,) = re.findall(r"^ +paths: \[(.*)\]$", SITE, re.MULTILINE)
    assert tuple(paths.split(", ")) == roots()


@pytest.mark.parametrize("page", sorted(DOCS.glob("reference/*.md")), ids=lambda page: page.stem)
def test_a_class_that_the_reference_filters_has_a_block_of_its_own(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    filtered = [name for names in FILTER.findall(text) for name in names.split("|")]
    classes = {name for name in filtered if name[0].isupper()}
    assert classes <= set(BLOCK.findall(text))


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_links_of_a_page_lead_to_files_of_the_site(page: Path) -> None:
    for target in LINK.findall(page.read_text(encoding="utf-8")):
        linked = (page.parent / target).resolve()
        assert linked.is_file(), target
        assert DOCS in linked.parents, f"{target} is no part of the site; name the file instead"


def anchors(page: Path) -> set[str]:
    """Of the page's headings, as Python-Markdown makes them."""
    titles = HEADING.findall(FENCED.sub("", page.read_text(encoding="utf-8")))
    plain = [re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", title) for title in titles]
    words = [re.sub(r"[^\w\s-]", "", title).strip().lower() for title in plain]
    return {re.sub(r"[-\s]+", "-", title) for title in words}


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(DOCS)))
def test_anchors_that_a_page_links_to_are_headings(page: Path) -> None:
    text = FENCED.sub("", page.read_text(encoding="utf-8"))
    for path, anchor in ANCHOR.findall(text):
        linked = (page.parent / path).resolve() if path else page
        if not anchor.startswith(OF_A_NAME):
            assert anchor in anchors(linked), f"{path}#{anchor}"


def test_paths_that_contributors_are_sent_to_exist() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    named = [path for path in PATH.findall(text) if (ROOT / path.split("/")[0]).exists()]
    assert len(named) > 20, "what looks like a path is not found"
    assert [path for path in named + LINK.findall(text) if not (ROOT / path).exists()] == []
