"""The digest of a build: equal for equal installations, another one for whatever an import could notice."""

from __future__ import annotations

import base64
import hashlib
import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from perfgate.capture import build_files
from perfgate.capture.build_digest import Builds
from perfgate.capture.build_files import UnknownBuildError
from perfgate.scenario.subject import Subject

SOURCE = b"version = 1\n"


@pytest.fixture
def packages(tmp_path: Path) -> Path:
    """A folder with one package that was installed from a wheel."""
    folder = tmp_path / "site-packages"
    (folder / "vllm" / "__pycache__").mkdir(parents=True)
    (folder / "vllm" / "__init__.py").write_bytes(SOURCE)
    (folder / "vllm" / "__pycache__" / "__init__.cpython-312.pyc").write_bytes(b"code")
    installed = folder / "vllm-1.0.dist-info"
    installed.mkdir()
    (installed / "METADATA").write_text("Name: vllm\n")
    digest = base64.urlsafe_b64encode(hashlib.sha256(SOURCE).digest()).decode().rstrip("=")
    (installed / "RECORD").write_text(f"vllm/__init__.py,sha256={digest},{len(SOURCE)}\nvllm-1.0.dist-info/RECORD,,\n")
    return folder


@pytest.fixture
def digest(tmp_path: Path, packages: Path) -> Callable[..., str]:
    """A function that gives the digest of a build with these folders on its module path."""

    def of(*more: Path, answer: str | None = None) -> str:
        said = answer or json.dumps(["3.12", [*map(str, more), str(packages)], "/nowhere", "/nowhere"])
        python = tmp_path / "python"
        python.write_text(f"#!/bin/sh\necho 'a hook that prints'\necho '{said}'\n")
        python.chmod(0o755)
        return Builds(tmp_path).of(Subject(python=str(python)), {"PATH": os.defpath}).placed_digest

    return of


def changed_in_place(packages: Path) -> None:
    """A file of another content, of the same size."""
    file = packages / "vllm" / "__init__.py"
    file.write_bytes(b"version = 2\n")
    later_ns = file.stat().st_mtime_ns + 5_000_000_000
    os.utime(file, ns=(later_ns, later_ns))


CHANGES: dict[str, Callable[[Path], object]] = {
    "a file changed in place": changed_in_place,
    "a file more": lambda packages: (packages / "vllm" / "more.py").write_text(""),
    "a file less": lambda packages: (packages / "vllm" / "__init__.py").unlink(),
    "another record": lambda packages: (packages / "vllm-1.0.dist-info" / "METADATA").write_text("Name: other\n"),
    "a module beside the packages": lambda packages: (packages / "sitecustomize.py").write_text(""),
    "a path file": lambda packages: (packages / "more.pth").write_text("/elsewhere\n"),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_what_an_import_could_notice(
    digest: Callable[..., str], packages: Path, change: Callable[[Path], object]
) -> None:
    """It makes another build."""
    before = digest()
    assert digest() == before
    change(packages)
    assert digest() != before


def test_what_no_import_notices(digest: Callable[..., str], packages: Path) -> None:
    """Bytecode, and what only says who installed a package and when, make none."""
    before = digest()
    (packages / "vllm" / "__pycache__" / "more.cpython-312.pyc").write_bytes(b"code")
    (packages / "vllm-1.0.dist-info" / "INSTALLER").write_text("uv")
    record = packages / "vllm-1.0.dist-info" / "RECORD"
    record.write_text(f"{record.read_text()}vllm/__pycache__/more.cpython-312.pyc,,\n")
    os.utime(packages / "vllm" / "__init__.py", ns=(7, 7))
    assert digest() == before


def test_a_record_is_believed_for_files_that_are_not_newer(digest: Callable[..., str], packages: Path) -> None:
    """So that gigabytes of libraries need not be read: the file's own content does not matter then."""
    before = digest()
    file = packages / "vllm" / "__init__.py"
    file.write_bytes(SOURCE.upper())
    os.utime(file, ns=(7, 7))
    assert digest() == before


def test_sources_of_editable_installs(digest: Callable[..., str], packages: Path, tmp_path: Path) -> None:
    """They are read wherever they are; git's own files, environments and run folders inside them are not."""
    checkout = tmp_path / "a checkout"
    for folder in ("vllm", ".git", "env", "runs/one/trials"):
        (checkout / folder).mkdir(parents=True)
    (checkout / "vllm" / "core.py").write_text("1")
    (checkout / "env" / "pyvenv.cfg").write_text("")
    (checkout / "runs" / "one" / "run.json").write_text("{}")
    said = {"url": checkout.as_uri(), "dir_info": {"editable": True}}
    (packages / "vllm-1.0.dist-info" / "direct_url.json").write_text(json.dumps(said))
    before = digest()
    for name in (".git/index", "env/more.py", "runs/one/records.json"):
        (checkout / name).write_text("changed")
    assert digest() == before
    (checkout / "vllm" / "core.py").write_text("2")
    assert digest() != before


def test_folders_of_the_path(digest: Callable[..., str], tmp_path: Path) -> None:
    """They count with their content, in their order; one that is a link to another is one folder."""
    one, two = tmp_path / "one", tmp_path / "two"
    one.mkdir()
    two.mkdir()
    (one / "plugin.py").write_text("1")
    (two / "plugin.py").write_text("2")
    (one / "itself").symlink_to(one)
    assert len({digest(), digest(one), digest(one, two), digest(two, one)}) == 4


@pytest.mark.parametrize(
    "answer", ["no JSON", "[]", "[1, [], 2, 3]", '["3.12", [4], "", ""]', '["3.12", 5, "", ""]']
)
def test_interpreters_that_do_not_tell(digest: Callable[..., str], answer: str) -> None:
    """Such a build is like no other, so it has no digest."""
    with pytest.raises(UnknownBuildError, match="does not say"):
        digest(answer=answer)


def test_too_many_files(digest: Callable[..., str], monkeypatch: pytest.MonkeyPatch) -> None:
    """What could not be looked at in time has none either."""
    monkeypatch.setattr(build_files, "MOST_FILES", 1)
    with pytest.raises(UnknownBuildError, match="more than 1 files"):
        digest()


def test_too_much_to_read(digest: Callable[..., str], packages: Path) -> None:
    """Nor has a build with a file that nobody reads to its end."""
    with (packages / "vllm" / "weights.bin").open("wb") as stream:
        stream.truncate(1 << 40)
    with pytest.raises(UnknownBuildError, match="64 GiB"):
        digest()


@pytest.mark.parametrize("name", ["RECORD", "direct_url.json", "../vllm/data.bin"])
@pytest.mark.parametrize("without_end", ["/dev/zero", "/proc/kmsg"])
def test_links_to_what_has_no_end(
    digest: Callable[..., str], packages: Path, tmp_path: Path, name: str, without_end: str
) -> None:
    """A device, or a file that the kernel makes up, has no size and is read no further than that."""
    empty = tmp_path / "empty"
    empty.write_bytes(b"")
    link = packages / "vllm-1.0.dist-info" / name
    link.unlink(missing_ok=True)
    link.symlink_to(without_end)
    found = digest()
    link.unlink()
    if not Path(without_end).is_char_device() and name.startswith(".."):  # a file like any other
        link.symlink_to(empty)
    assert digest() == found


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("RECORD", f"vllm/__init__.py,sha256=x,{'9' * 5000}\n"),
        ("direct_url.json", '{"url": "file:///a%00b", "dir_info": {"editable": true}}'),
        ("direct_url.json", '{"url": 5, "dir_info": {"editable": true}}'),
        ("direct_url.json", "[" * 100_000),
    ],
)
def test_what_a_package_says_of_itself_may_be_anything(
    digest: Callable[..., str], packages: Path, name: str, text: str
) -> None:
    """What makes no sense says nothing: its files are read."""
    said = packages / "vllm-1.0.dist-info" / name
    said.write_text("")
    before = digest()
    said.write_text(text)
    assert digest() == before


def test_no_interpreter(tmp_path: Path) -> None:
    """A program that is not there."""
    with pytest.raises(UnknownBuildError, match="No such file"):
        Builds(tmp_path).of(Subject(python=str(tmp_path / "python")), {"PATH": os.defpath})
