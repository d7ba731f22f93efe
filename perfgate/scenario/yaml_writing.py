"""YAML as perfgate writes it: whole documents, and one block of a document that a person wrote."""

from __future__ import annotations

import re
from io import StringIO
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.nodes import MappingNode, ScalarNode
from ruamel.yaml.representer import SafeRepresenter

from perfgate.errors import ScenarioError
from perfgate.scenario.yaml_document import TAG, read_document, whole_file_error


def write_document(content: dict[str, Any]) -> str:
    """``content`` as YAML that :func:`read_document` reads back unchanged, its innermost lists and mappings inline."""
    stream = StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.Representer = _Representer
    yaml.default_flow_style = None
    yaml.sort_base_mapping_type_on_output = False  # type: ignore[assignment]  # ruamel's stub says None
    yaml.width = 1000  # a folded value is harder to read than a long line
    yaml.dump(content, stream)
    return stream.getvalue()


def replace_block(text: str, file: Path, key: str, content: Any) -> str:
    """``text`` with the top-level block ``key`` replaced, or appended; everything else stays byte for byte.

    Args:
        text: A document of :func:`read_document` in block style: ``key: value`` lines.
        file: Names it in errors.
        key: The block's name.
        content: Its new value, of plain Python values.

    Raises:
        ScenarioError: The document is not such a one, or cannot be edited in place.
    """
    old = read_document(text, file)
    root = YAML(typ="safe", pure=True).compose(StringIO(text))
    if not isinstance(root, MappingNode) or root.flow_style:
        raise whole_file_error(file, f"is written in braces, so {key} cannot be put in: write it by hand")
    newline = "\r\n" if "\r\n" in text else "\n"
    indent = " " * root.start_mark.column
    written = write_document({key: content}).splitlines()
    block = "".join(f"{indent}{line}{newline}" for line in written)
    begin, end = _extent(text, root, key)
    before = text[:begin] + (newline if begin and text[begin - 1] not in "\r\n" else "")
    edited = before + block + text[end:]
    refusal = whole_file_error(file, f"cannot be edited in place, so put this in by hand:\n{block}")
    try:
        if read_document(edited, file).content == {**old.content, key: content}:
            return edited
    except ScenarioError as error:  # something follows the mapping, such as the mark that ends a document
        raise refusal from error
    raise refusal


def _extent(text: str, root: MappingNode, key: str) -> tuple[int, int]:
    """From a key's line to behind its value, without comments there: they belong to what follows. Else the end."""
    entry = next(((name, value) for name, value in root.value if name.value == key), None)
    if entry is None:
        return len(text), len(text)
    name, value = entry
    begin = name.start_mark.index - name.start_mark.column
    if isinstance(value, ScalarNode) and value.style not in ("|", ">"):
        return begin, _line_end(text, value.end_mark.index if value.value or value.style else name.end_mark.index)
    if not isinstance(value, ScalarNode) and value.flow_style:
        return begin, _line_end(text, value.end_mark.index)
    # The end that is marked is where the next key begins: there may be comments between.
    lines = text[begin : value.end_mark.index].splitlines(keepends=True)
    while lines and lines[-1].strip()[:1] in ("", "#"):
        lines.pop()
    return begin, begin + sum(map(len, lines))


def _line_end(text: str, index: int) -> int:
    end = text.find("\n", index)
    return len(text) if end < 0 else end + 1


class _Representer(SafeRepresenter):
    """Writes equal values out instead of as aliases, and escapes what cannot be seen."""

    def ignore_aliases(self, data: Any) -> bool:
        del data
        return True

    def represent_text(self, text: str) -> ScalarNode:
        """Quoted unless made of harmless characters: ruamel cannot read all that it writes plain (``{a: :0}``)."""
        style = None if re.fullmatch(r"[\w./]([\w./%+,() -]*[\w./%+()-])?", text, flags=re.ASCII) else '"'
        node: ScalarNode = self.represent_scalar(TAG + "str", text, style=style)
        return node


_Representer.add_representer(str, _Representer.represent_text)
