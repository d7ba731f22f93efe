"""The digest of a build: equal for equal installations, another one for whatever an import could notice."""

from __future__ import annotations

import base64
import hashlib
import json
import os
import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest
from stub_engine import bare_python

from perfgate.capture import build_files
from perfgate.capture.build_digest import Build, Builds, ModulePath
from perfgate.capture.build_files import UnknownBuildError
from perfgate.capture.watched_builds import link_bytecode
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
        said = answer or json.dumps(["3.12", [*map(str, more), str(packages)], "/nowhere", "/nowhere", "", "/nowhere"])
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


def test_a_record_is_believed_for_files_that_are_not_newer(
    digest: Callable[..., str], packages: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """So that gigabytes of libraries need not be read: the file's own content does not matter then.

    A file that was put in its place later has a newer time of change, whatever time of writing it was given.
    """
    before = digest()
    file = packages / "vllm" / "__init__.py"
    file.write_bytes(SOURCE.upper())
    os.utime(file, ns=(7, 7))
    assert digest() == before
    monkeypatch.setattr("perfgate.capture.build_files._NEWER_NS", 0)
    assert digest() != before


def test_links_and_folders_that_lead_nowhere(digest: Callable[..., str], packages: Path) -> None:
    """They hide nothing: the rest is read, and the digest does not tell in which order they were made."""
    (packages / "vllm" / "real").mkdir()
    (packages / "vllm" / "real" / "core.py").write_text("1")
    before = digest()
    for name, to in {"itself": "itself", "nothing": "missing", "a": "real", "z": "real", "0.json": "0.json"}.items():
        (packages / "vllm" / name).symlink_to(to)
    assert digest() == before
    (packages / "vllm" / "real" / "core.py").write_text("2")
    assert digest() != before


@pytest.mark.skipif(os.geteuid() == 0, reason="root may read everything")
def test_what_may_not_be_read(tmp_path: Path) -> None:
    """It hides nothing: the rest is looked at, and that it may be read is a change."""
    plugin = tmp_path / "plugin"
    (plugin / "closed").mkdir(parents=True)
    for name in ("one.py", "two.py", "closed/three.py"):
        (plugin / name).write_text("1")
    (plugin / "two.py").chmod(0)
    (plugin / "closed").chmod(0)
    environment(tmp_path / "env")
    build = found(tmp_path, tmp_path / "env", plugin)
    assert build.changes() == []
    (plugin / "one.py").write_text("2")
    (plugin / "two.py").chmod(0o600)
    (plugin / "closed").chmod(0o700)
    told = "\n".join(sorted(build.changes()))
    assert all(said in told for said in ("one.py has", "two.py has", "three.py is new", "closed/ is gone"))


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
    "answer",
    ["no JSON", "[]", "[1, [], 2, 3, 4, 5]", '["3.12", [4], "", "", "", ""]', '["3.12", 5, "", "", "", ""]'],
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


def environment(folder: Path) -> Path:
    """The interpreter of an empty environment, and its packages."""
    bare_python(folder)
    (packages,) = folder.glob("lib/python*/site-packages")
    return packages


def found(tmp_path: Path, folder: Path, *path: Path) -> Build:
    """The build of an environment, with folders put before its packages."""
    variables = {"PATH": os.defpath, "PYTHONPATH": os.pathsep.join(map(str, path))}
    return Builds(tmp_path).of(Subject(python=str(folder / "bin" / "python")), variables)


FINDER = "import __editable___plugin_finder"
EDITABLE: dict[str, Callable[[Path, Path], object]] = {
    "a path file": lambda packages, source: (packages / "plugin.pth").write_text(f"{source}\n"),
    "a finder": lambda packages, source: [
        (packages / "__editable__.plugin.pth").write_text(f"{FINDER}\n"),
        (packages / "__editable___plugin_finder.py").write_text(f"MAPPING = {{'plugin': '{source}/plugin'}}\n"),
    ],
}  # fmt: skip


@pytest.mark.parametrize("install", EDITABLE.values(), ids=EDITABLE)
def test_what_an_editable_install_leads_to(tmp_path: Path, install: Callable[[Path, Path], object]) -> None:
    """Its modules and their data are of the build, wherever they are; they are looked at as all others are."""
    source = tmp_path / "source"
    (source / "plugin").mkdir(parents=True)
    (source / "plugin" / "__init__.py").write_text("1")
    (source / "plugin" / "tuned.json").write_text("{}")
    install(environment(tmp_path / "env"), source)
    build = found(tmp_path, tmp_path / "env")
    assert build.changes() == []
    (source / "plugin" / "tuned.json").write_text("{1}")
    (change,) = build.changes()
    assert change.startswith(f"{source / 'plugin' / 'tuned.json'} has changed: 2 bytes written ")


def test_an_environment_that_is_used(tmp_path: Path) -> None:
    """Engines that import write bytecode, and an installer that finds all there rewrites nothing: no change."""
    packages = environment(tmp_path / "env")
    (packages / "plugin.py").write_text("1")
    build = found(tmp_path, tmp_path / "env")
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-c", "import plugin"], check=True, env={"PATH": os.defpath})
    subprocess.run([python, "-m", "compileall", "-q", "-f", packages], check=True, env={"PATH": os.defpath})
    assert [*packages.glob("__pycache__/*.pyc")]
    assert build.changes() == []
    (packages / "plugin.py").unlink()
    assert len(build.changes()) == 1


def test_the_same_files_elsewhere(tmp_path: Path) -> None:
    """They have the same digest, and where they are is told by the other one alone."""
    for name in ("one", "two"):
        (tmp_path / name / "plugin").mkdir(parents=True)
        (tmp_path / name / "plugin" / "__init__.py").write_text("1")
    environment(tmp_path / "env")
    one, two = (found(tmp_path, tmp_path / "env", tmp_path / name) for name in ("one", "two"))
    assert one.digest == two.digest
    assert one.placed_digest != two.placed_digest


def swap(folder: Path, to: str) -> None:
    """Make a link lead elsewhere."""
    folder.unlink()
    folder.symlink_to(to)


def add(file: Path, text: str) -> None:
    """Write more into a file, or a new one."""
    with file.open("a") as stream:
        stream.write(text)


@pytest.fixture
def linked(tmp_path: Path) -> Path:
    """Two environments, of which a link names one, with a script that starts its interpreter, and two plugins alike."""
    for name in ("1", "2"):
        environment(tmp_path / f"env{name}")
        (tmp_path / f"plugins{name}" / "mine").mkdir(parents=True)
    (tmp_path / "env").symlink_to("env1")
    (tmp_path / "plugins").symlink_to("plugins1")
    (tmp_path / "python").write_text(f'#!/bin/sh\nexec {tmp_path}/env/bin/python "$@"\n')
    (tmp_path / "python").chmod(0o755)
    return tmp_path


LEADS: dict[str, tuple[Callable[[Path], object], str]] = {
    "a parent of path=": (lambda folder: swap(folder / "plugins", "plugins2"), "plugins/mine leads to "),
    "the environment": (lambda folder: swap(folder / "env", "env2"), "site-packages leads to "),
    "the interpreter": (lambda folder: swap(folder / "env" / "bin" / "python", "/bin/true"), "bin/python leads to /"),
    "a script that starts it": (lambda folder: add(folder / "python", "#"), "python has changed: "),
    "what the environment is": (lambda folder: add(folder / "env" / "pyvenv.cfg", "a = b\n"), "pyvenv.cfg has changed"),
    "what Python reads first": (lambda folder: add(folder / "env" / "bin" / "pyvenv.cfg", ""), "led to nothing"),
    "a folder that was not there": (lambda folder: (folder / "later").mkdir(), "led to nothing"),
}


@pytest.mark.parametrize(("edit", "said"), LEADS.values(), ids=LEADS)
def test_what_a_build_is_named_by(linked: Path, edit: Callable[[Path], object], said: str) -> None:
    """Engines go through links and scripts each time: where another build is behind them, it is one."""
    variables = {"PATH": os.defpath, "PYTHONPATH": f"{linked}/plugins/mine:{linked}/later"}
    build = Builds(linked).of(Subject(python=str(linked / "python")), variables)
    assert build.changes() == []
    edit(linked)
    assert said in "\n".join(build.changes())


def test_a_script_that_starts_another_build(linked: Path) -> None:
    """It is of the digest, so that no later visit takes it for the same build."""
    subject = Subject(python=str(linked / "python"))
    before = Builds(linked).of(subject, {"PATH": os.defpath}).digest
    add(linked / "python", "#")
    assert Builds(linked).of(subject, {"PATH": os.defpath}).digest != before


def test_too_much_to_read_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Where all was touched, a look reads as much as it may, says that the rest is not known, and the next goes on."""
    plugin = tmp_path / "plugin"
    plugin.mkdir()
    for name in ("one", "two"):
        (plugin / f"{name}.py").write_bytes(b"#" * 700)
    environment(tmp_path / "env")
    build = found(tmp_path, tmp_path / "env", plugin)
    for file in plugin.iterdir():
        os.utime(file, ns=(0, 0))
    monkeypatch.setattr("perfgate.capture.build_digest.MOST_AGAIN_BYTES", 1000)
    monkeypatch.setattr("perfgate.capture.build_files._NEWER_NS", -(10**18))  # what was just read is known at once
    with pytest.raises(UnknownBuildError, match="more than"):
        build.changes()
    assert build.changes() == []


def test_bytecode_is_found_and_none_is_written_beside_sources(tmp_path: Path) -> None:
    """An interpreter reads what an installer left, through links, and writes what it makes into the visit's folder.

    What lies beside sources of ``path=`` is not read: it may be of another source.
    """
    packages = environment(tmp_path / "env")
    (packages / "old.py").write_text("1")
    python = tmp_path / "env" / "bin" / "python"
    subprocess.run([python, "-c", "import old"], check=True, env={"PATH": os.defpath})
    (there,) = packages.glob("__pycache__/old.*.pyc")
    (packages / "old-1.dist-info").mkdir()
    plugin = tmp_path / "plugin"
    (plugin / "__pycache__").mkdir(parents=True)
    (plugin / "new.py").write_text("1")
    stale = plugin / "__pycache__" / there.name.replace("old", "new")
    stale.write_text("made of another source")
    build, bytecode = found(tmp_path, tmp_path / "env", plugin), tmp_path / "bytecode"
    link_bytecode(bytecode, build.path)
    content = there.read_bytes()
    program = "import old, new; print(old.__cached__, new.__cached__)"
    variables = {"PATH": os.defpath, "PYTHONPATH": str(plugin), "PYTHONPYCACHEPREFIX": str(bytecode)}
    ran = subprocess.run([python, "-c", program], check=True, capture_output=True, text=True, env=variables)
    old, new = map(Path, ran.stdout.split())
    assert old.is_symlink()
    assert old.resolve() == there.resolve()
    assert new.is_relative_to(bytecode)
    assert not new.is_symlink()
    assert stale.read_text() == "made of another source"
    assert [*plugin.rglob("*.*")] == [plugin / "new.py", stale]

    (packages / "old.py").write_text("22")
    subprocess.run([python, "-c", program], check=True, capture_output=True, env=variables)
    assert not old.is_symlink()
    assert there.read_bytes() == content


def test_packages_below_a_library_that_nobody_imports(tmp_path: Path) -> None:
    """An environment has the library of its interpreter on its path, and not the packages that lie in it."""
    library = tmp_path / "lib"
    for name in ("a.cpython-311", "a.cpython-311.opt-1", "json/b.cpython-311", "site-packages/c.cpython-311"):
        file = library / Path(name).parent / "__pycache__" / f"{Path(name).name}.pyc"
        file.parent.mkdir(parents=True, exist_ok=True)
        file.touch()
    bytecode = tmp_path / "bytecode"
    link_bytecode(bytecode, ModulePath("3.11", (str(tmp_path),), (str(library),)))

    linked = {str(file.relative_to(f"{bytecode}{library}")) for file in bytecode.rglob("*.pyc")}
    assert linked == {"a.cpython-311.pyc", "json/b.cpython-311.pyc"}
