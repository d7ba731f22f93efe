"""Docs and messages use the words of an engineer: no phrase that has to be read twice."""

from __future__ import annotations

import ast
import io
import re
import tokenize
from collections.abc import Iterator
from pathlib import Path

import pytest
from sources import FILES, tree

ROOT = Path(__file__).parents[2]
MANNERED = {
    "is no": r"(?<!there )\b(?:is|are) no\b(?! longer| more)",
    "stands": r"\bstands?\b(?!-in)",
    "lies": r"\blies\b",
    "mend": r"\bmend\w*",
    "likewise": r"\blikewise\b",
    "as of": r"\bas of\b",
    "conditioning": r"\bconditioning\b",
}
PHRASES = re.compile("|".join(f"(?P<p{n}>{pattern})" for n, pattern in enumerate(MANNERED.values())), re.IGNORECASE)
PAGES = sorted(
    page
    for pattern in ("*.md", "docs/*.md", ".github/**/*.md", "perfgate/templates/**/*.md")
    for page in ROOT.glob(pattern)
)
PUBLISHED = re.compile(r"^mend$")
"""A key of the published format of doctor's diagnosis."""
EXPLAINED = re.compile(r"^ *mend:", re.MULTILINE)
"""The same in the ``Args:`` of the class that has it."""


def mannered(text: str) -> list[str]:
    """The phrases in a text, each with the words around it."""
    return [text[max(0, found.start() - 30) : found.end() + 30].replace("\n", " ") for found in PHRASES.finditer(text)]


def strings(tree: ast.AST) -> Iterator[tuple[int, str]]:
    """Every string of a module that documents nothing: messages, remedies, help and reports."""
    docs = {id(node.value) for node in ast.walk(tree) if isinstance(node, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docs:
            yield node.lineno, node.value


def comments(module: str) -> Iterator[tuple[int, str]]:
    """Every comment and docstring of a module, without keys of published formats that it explains.

    Of a module without any phrase there are none: to take sources apart is what takes time.
    """
    source = FILES[module].read_text(encoding="utf-8")
    if not PHRASES.search(source):
        return
    for node in ast.walk(tree(module)):
        if isinstance(node, ast.Expr) and isinstance(node.value, ast.Constant) and isinstance(node.value.value, str):
            yield node.lineno, EXPLAINED.sub("", node.value.value)
    for token in tokenize.generate_tokens(io.StringIO(source).readline):
        if token.type == tokenize.COMMENT:
            yield token.start[0], token.string


@pytest.mark.parametrize("page", PAGES, ids=lambda page: str(page.relative_to(ROOT)))
def test_pages_are_plain(page: Path) -> None:
    """No page has a mannered phrase."""
    assert mannered(page.read_text(encoding="utf-8")) == []


def test_messages_are_plain() -> None:
    """No message, remedy, help or line of a report has a mannered phrase; keys of published formats are kept."""
    found = {
        f"{file.relative_to(ROOT)}:{line}": phrases
        for module, file in FILES.items()
        for line, text in strings(tree(module))
        if not PUBLISHED.fullmatch(text) and (phrases := mannered(text))
    }
    assert found == {}


def test_comments_are_plain() -> None:
    """No docstring or comment of the package has a mannered phrase."""
    found = {
        f"{file.relative_to(ROOT)}:{line}": phrases
        for module, file in FILES.items()
        for line, text in comments(module)
        if (phrases := mannered(text))
    }
    assert found == {}


@pytest.mark.parametrize(
    "phrase", ["is no YAML", "are no part of it", "the reason stands above", "lies in", "mends it", "as of ``run``"]
)
def test_phrases_that_are_refused(phrase: str) -> None:
    """Each phrase is found, and its plain form is not."""
    assert mannered(phrase)


@pytest.mark.parametrize(
    "phrase", ["there is no GPU", "is no longer read", "a stand-in engine", "invalid YAML", "relies on"]
)
def test_phrases_that_are_plain(phrase: str) -> None:
    """Plain phrases of the same words are not refused."""
    assert not mannered(phrase)
