"""Which builds stand on the two sides, from words and from perfgate.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest

from perfgate.errors import ExitStatus, UsageError
from perfgate.subject import Subject, find_config, load_config, resolve


def write_config(folder: Path, text: str) -> Path:
    """A perfgate.toml with this text."""
    file = folder / "perfgate.toml"
    file.write_text(text)
    return file


def test_without_words_and_tables_the_base_is_this_interpreter() -> None:
    """The interpreter that runs perfgate is measured alone."""
    assert resolve([], [], {}) == {"base": Subject(python=sys.executable)}


def test_words_say_everything_a_subject_has(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """python= and path= are taken from the current folder, args are YAML values, env is text."""
    monkeypatch.chdir(tmp_path)
    words = ["python=venv/bin/python", "path=src", f"path=a{os.pathsep}/b", "env.N=012", "args.n=3", "args.c={mode: 0}"]
    assert resolve(words, [], {})["base"] == Subject(
        python=f"{tmp_path}/venv/bin/python",
        path=(f"{tmp_path}/src", f"{tmp_path}/a", "/b"),
        env={"N": "012"},
        args={"n": 3, "c": {"mode": 0}},
    )


@pytest.mark.parametrize(
    ("written", "value"),
    [
        ("4", 4), ("true", True), ("no", "no"), ("", None), ("null", None), ("[1, 2]", [1, 2]), ("a=b", "a=b"),
        ("'4'", "4"), ("1e-3", 0.001),
    ],
)  # fmt: skip
def test_engine_arguments_are_read_as_yaml(written: str, value: Any) -> None:
    """args.NAME= follows YAML 1.2, as the scenario does."""
    assert resolve([f"args.x={written}"], [], {})["base"].args == {"x": value}


def test_a_bare_program_name_is_left_to_path_and_links_are_kept(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """python=python3.12 stays a name; a virtual environment's link to its python is not followed."""
    monkeypatch.chdir(tmp_path)
    (tmp_path / "python").symlink_to(sys.executable)
    assert resolve(["python=python3.12"], [], {})["base"].python == "python3.12"
    assert resolve(["python=./python"], [], {})["base"].python == str(tmp_path / "python")


def test_the_head_takes_from_the_base_what_it_does_not_say() -> None:
    """One engine flag on the head alone is an A/B of that flag."""
    sides = resolve(["python=/p", "path=/a", "env.X=1", "args.n=1", "args.m=1"], ["args.n=2", "env.Y=2"], {})
    assert sides["head"] == Subject(python="/p", path=("/a",), env={"X": "1", "Y": "2"}, args={"n": 2, "m": 1})


def test_the_heads_path_replaces_the_bases() -> None:
    """path= on the head stands instead of the base's folders; an empty one takes them away."""
    assert resolve(["path=/a"], ["path=/b"], {})["head"].path == ("/b",)
    assert resolve(["path=/a"], ["path="], {})["head"].path == ()


def test_tables_serve_where_no_words_are_given() -> None:
    """[subjects.base] and [subjects.head] are the two sides of a plain run."""
    tables: dict[str, dict[str, Any]] = {"base": {"python": "/p"}, "head": {"env": {"X": "1"}}}
    sides = resolve([], [], tables)
    assert sides == {"base": Subject(python="/p"), "head": Subject(python="/p", env={"X": "1"})}


def test_the_heads_table_is_left_alone_once_a_base_is_named() -> None:
    """--base alone measures one side."""
    tables: dict[str, dict[str, Any]] = {"base": {"python": "/p"}, "head": {"env": {"X": "1"}}}
    assert list(resolve(["base"], [], tables)) == ["base"]


@pytest.mark.parametrize("words", [["a", "env.X=2", "path=/c"], ["env.X=2", "path=/c", "a"]])
def test_words_override_the_table_they_follow(words: list[str]) -> None:
    """Env is merged name by name, path is replaced, and the order of words does not matter."""
    tables: dict[str, dict[str, Any]] = {"a": {"python": "/p", "path": ["/a"], "env": {"X": "1", "Y": "1"}}}
    assert resolve(words, [], tables)["base"] == Subject(python="/p", path=("/c",), env={"X": "2", "Y": "1"})


def test_paths_of_a_table_are_taken_from_its_file(tmp_path: Path) -> None:
    """Relative entries of perfgate.toml do not depend on the current folder; numbers in env become text."""
    file = write_config(tmp_path, '[subjects.a]\npython = "v/bin/python"\npath = "src"\nenv = {N = 1}\n')
    assert load_config(file) == {
        "a": {"python": f"{tmp_path}/v/bin/python", "path": [f"{tmp_path}/src"], "env": {"N": "1"}}
    }
    assert load_config(None) == {}


def test_the_config_is_the_nearest_one_upwards(tmp_path: Path) -> None:
    """perfgate.toml is found from any folder below it."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    file = write_config(tmp_path, "")
    assert find_config(inner) == file
    assert load_config(find_config(inner)) == {}


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nobody"], "--base nobody: no such subject (known: a, b)"),
        (["a", "b"], "--base names two subjects: a and b"),
        (["pyton=x"], "--base pyton=x: unknown key 'pyton', expected one of python, path, env, args"),
        (["=x"], "--base =x: unknown key '', expected one of python, path, env, args"),
        (["ref=main"], "--base ref=main: ref= is not supported yet"),
        (["env=x"], "--base env=x: expected env.NAME=value"),
        (["args.=x"], "--base args.=x: expected args.NAME=value"),
        (["python.x=y"], "--base python.x=y: expected python=value"),
        (["python="], "--base: python: expected an interpreter, found nothing"),
        (["args.x=[1"], "--base args.x=[1: the value is no YAML: while parsing a flow sequence"),
        (["args.x=" + "[" * 5000], "the value is no YAML: maximum recursion depth exceeded"),
        (["args.x=.nan"], "--base: args: Out of range float values are not JSON compliant"),
        (["args.x=2024-01-31"], "--base: args.x: input was not a valid JSON value"),
        (["args.model=x"], "--base: args.model: is not allowed here: engine.model says it"),
        (["args.max-num-seqs=4"], "--base: args.max-num-seqs: engine arguments are written with underscores"),
        (["env.A B=1"], "--base: env.A B: is no name of an environment variable"),
    ],
)
def test_words_that_make_no_sense_are_usage_errors(words: list[str], problem: str) -> None:
    """Each error names the option, the word and what was expected, and means exit status 2."""
    with pytest.raises(UsageError) as caught:
        resolve(words, [], {"a": {}, "b": {}})
    assert problem in str(caught.value)
    assert caught.value.exit_status is ExitStatus.USAGE


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("subjects = 3", ": subjects is no table, expected [subjects.NAME]"),
        ("[subjects]\na = 'x'", ": subjects.a: is no table, expected [subjects.NAME]"),
        ("[subject.a]", ": unknown table or key 'subject', expected [subjects.NAME]"),
        ("[subjects.a]\npyton = 'x'", ": subjects.a: unknown key 'pyton', expected one of python, path, env, args"),
        ("[subjects.a]\nref = 'x'", ": subjects.a: ref= is not supported yet"),
        ("[subjects.a]\npython = 3", ": subjects.a: python: Input should be a valid string"),
        ("[subjects.a]\npath = 3", ": subjects.a: path: Input should be a valid tuple"),
        ("[subjects.a]\nenv = 3", ": subjects.a: env: Input should be a valid dictionary"),
        ("[subjects.a]\nenv = {X = true}", ": subjects.a: env.X: Input should be a valid string"),
        ("[subjects.a]\nargs = {x = 2024-01-31}", ": subjects.a: args.x: input was not a valid JSON value"),
        ("[subjects.a]\nargs = {x = nan}", ": subjects.a: args: Out of range float values are not JSON compliant"),
        ("[subjects.a]\nargs = {load_format = 'x'}", ": subjects.a: args.load_format: is not allowed here"),
        ("[subjects", ": cannot be read: "),
    ],
)
def test_a_broken_config_is_a_usage_error_that_names_it(tmp_path: Path, text: str, problem: str) -> None:
    """Each error names the file, the table and the key."""
    file = write_config(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(file)
    assert f"{file}{problem}" in str(caught.value)


def test_a_config_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    """Binary files and missing ones cannot be read, and that is said."""
    file = tmp_path / "perfgate.toml"
    file.write_bytes(b"\xff\xfe")
    for path in (file, tmp_path / "absent.toml"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_config(path)


def test_a_subject_made_in_python_has_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start in another folder than the one that paths were written for; a bare name is left to PATH."""
    monkeypatch.chdir(tmp_path)

    subject = Subject(python="env/bin/python", path=("src", "/elsewhere"))

    assert subject.python == str(tmp_path / "env/bin/python")
    assert subject.path == (str(tmp_path / "src"), "/elsewhere")
    assert Subject(python="python3").python == "python3"
