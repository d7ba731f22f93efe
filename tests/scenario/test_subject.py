"""Which builds stand on the two sides, from words and from perfgate.toml."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from perfgate.errors import ExitStatus, UsageError
from perfgate.scenario.subject import Source, Subject
from perfgate.scenario.subject_words import (
    MOST_HEADS,
    against,
    anchored,
    resolve,
    resolve_several,
    revisions,
    same_build,
    words,
)

Tables = dict[str, dict[str, Any]]


def make(ref: str) -> dict[str, Any]:
    """A build of a ref that needs no git: its folder is named by the ref."""
    folder = f"/builds/{ref}"
    source = Source(ref=ref, commit="c" * 40, changes="", recipe="r" * 64, folder=folder)
    return {"python": f"{folder}/env/bin/python", "env": {"BUILD": ref, "X": "build"}, "built_from": source}


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


def test_a_folder_of_data(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """``,data`` behind a folder declares it, in words and tables; it goes with the path, and makes no other build."""
    monkeypatch.chdir(tmp_path)
    code, data = str(tmp_path / "code"), str(tmp_path / "tables")
    subjects = resolve(["path=code:tables,data"], ["args.a=1"], {})
    assert [(one.path, one.data) for one in subjects.values()] == [((code, data), (data,))] * 2
    assert resolve(["path=tables,data"], ["path=code"], {})["head"].data == ()
    assert resolve(["mine"], [], {"mine": {"path": [f"{data},data"]}})["base"].data == (data,)

    declared, plain = Subject(python="/p", path=(data,), data=(data,)), Subject(python="/p", path=(data,))
    assert same_build(declared, plain)
    assert words(declared) == ("python=/p", f"path={data},data")
    assert "data" not in plain.model_dump(mode="json")


def test_the_heads_path_replaces_the_bases() -> None:
    """path= on the head stands instead of the base's folders; an empty one takes them away."""
    assert resolve(["path=/a"], ["path=/b"], {})["head"].path == ("/b",)
    assert resolve(["path=/a"], ["path="], {})["head"].path == ()


@pytest.mark.parametrize(
    ("base", "head", "path"),
    [
        (["path=/a:/b"], ["path=+/c"], ("/c", "/a", "/b")),
        (["path=/a"], ["path=+/c:/d"], ("/c", "/d", "/a")),
        (["path=/a"], ["path=+/c", "path=+/d"], ("/c", "/d", "/a")),
        (["path=/a"], ["path=+/c", "path=/d"], ("/c", "/d")),
        (["path=/a"], ["plugin"], ("/plugin", "/a")),
        (["path=/a"], ["plugin", "path=+/c"], ("/c", "/plugin", "/a")),
        (["path=/a"], ["ref=new", "path=+/c"], ("/c", "/builds/new/tree")),
        (["plugin"], ["path=+/c"], ("/c", "/plugin")),
        (["path=+/a"], ["path=/./+c"], ("/+c",)),
    ],
)
def test_a_plus_puts_folders_in_front(base: list[str], head: list[str], path: tuple[str, ...]) -> None:
    """Of those that the base, the subject or the build has; without it they are replaced."""
    tables: Tables = {"plugin": {"path": ["+/plugin"]}}
    built = resolve(base, head, tables, lambda ref: {**make(ref), "path": [f"/builds/{ref}/tree"]})
    assert built["head"].path == path


def test_folders_in_front_are_taken_from_here(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """As all others are, in the words of one of several heads and in those that are kept for another folder too."""
    monkeypatch.chdir(tmp_path)
    built = resolve_several(["path=/a"], ["one:path=+plugin", "two:env.A=1"], {})
    assert (built["one"].path, built["two"].path) == ((str(tmp_path / "plugin"), "/a"), ("/a",))
    assert anchored(["path=+plugin:more"], Path("/x")) == ("path=+/x/plugin:/x/more",)
    assert resolve(["path=/a"], anchored(["path=+plugin:more"], Path("/x")), {})["head"].path[1:] == ("/x/more", "/a")


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


def test_a_ref_is_worth_what_is_built_of_it() -> None:
    """ref= gives interpreter and environment; what is said beside it overrides that, and the head inherits the rest."""
    sides = resolve(["ref=v1", "env.X=mine"], ["ref=v2", "args.n=1"], {}, make)

    assert sides["base"].python == "/builds/v1/env/bin/python"
    assert sides["base"].env == {"BUILD": "v1", "X": "mine"}
    assert sides["head"].python == "/builds/v2/env/bin/python"
    assert sides["head"].env == {"BUILD": "v2", "X": "build"}
    assert revisions(sides) == {"base": "c" * 12, "head": "c" * 12}


def test_a_head_that_names_no_ref_is_the_bases_build() -> None:
    """One engine flag on one build is an A/B of that flag; where nothing of the build is left, none is claimed."""
    sides = resolve(["ref=v1"], ["args.n=1"], {}, make)
    assert sides["head"].built_from == sides["base"].built_from is not None
    assert resolve(["ref=v1"], ["python=/p"], {}, make)["head"].built_from is None


def test_the_nearest_ref_is_built_and_no_other() -> None:
    """A ref of words goes before the ref of the table that they follow; keys of the table lie below the build's."""
    asked: list[str] = []
    tables: Tables = {"old": {"ref": "v0", "env": {"X": "table", "Y": "table"}}}

    def making(ref: str) -> dict[str, Any]:
        asked.append(ref)
        return make(ref)

    sides = resolve(["old", "ref=v1"], [], tables, making)

    assert asked == ["v1"]
    assert sides["base"].env == {"BUILD": "v1", "X": "build", "Y": "table"}
    assert resolve(["old"], [], tables, make)["base"].env == {"BUILD": "v0", "X": "table", "Y": "table"}


@pytest.mark.parametrize(
    ("base", "head", "tables", "expected"),
    [
        ((), (), {}, (("ref=main...HEAD",), ("ref=.",))),
        (("python=/p",), ("env.X=1",), {}, (("python=/p", "ref=main...HEAD"), ("ref=.", "env.X=1"))),
        ((), ("ref=topic",), {}, (("ref=main...topic",), ("ref=topic",))),
        ((), ("patched",), {"patched": {"ref": "topic"}}, (("ref=main...topic",), ("patched",))),
        ((), (), {"base": {"python": "/p"}}, (("base", "ref=main...HEAD"), ("ref=.",))),
        ((), (), {"base": {"ref": "v1"}}, (("ref=main...HEAD",), ("ref=.",))),
    ],
)
def test_against_a_ref_is_the_merge_base_and_the_working_tree(
    base: tuple[str, ...], head: tuple[str, ...], tables: Tables, expected: tuple[tuple[str, ...], ...]
) -> None:
    """--against REF is short for two refs; words of either side still say what they say."""
    assert against("main", base, head, tables) == expected


def test_against_and_a_base_with_a_ref_contradict_each_other() -> None:
    """Two commits for one side are a usage error."""
    with pytest.raises(UsageError, match="--against names the base's commit, and so does --base"):
        against("main", ("ref=v1",), (), {})


def test_one_build_by_two_names_is_one_build() -> None:
    """Base and head of an A/A run differ in the words by which their commit was asked for, and in nothing else."""
    base = resolve(["ref=v1"], [], {}, make)["base"]
    assert base.built_from is not None
    head = base.model_copy(update={"built_from": base.built_from.model_copy(update={"ref": "HEAD"})})
    assert same_build(base, head)
    assert not same_build(base, head.model_copy(update={"env": {}}))


@pytest.mark.parametrize(
    ("words", "problem"),
    [
        (["nobody"], "--base nobody: no such subject (known: a, b)"),
        (["a", "b"], "--base names two subjects: a and b"),
        (["pyton=x"], "--base pyton=x: unknown key 'pyton', expected one of python, path, env, args, ref"),
        (["=x"], "--base =x: unknown key '', expected one of python, path, env, args, ref"),
        (["ref=main"], "ref=main: nothing is built here"),
        (["ref.x=main"], "--base ref.x=main: expected ref=value"),
        (["env=x"], "--base env=x: expected env.NAME=value"),
        (["args.=x"], "--base args.=x: expected args.NAME=value"),
        (["python.x=y"], "--base python.x=y: expected python=value"),
        (["python="], "--base: python: expected an interpreter, found nothing"),
        (["args.x=[1"], "--base args.x=[1: invalid YAML: while parsing a flow sequence"),
        (["args.x=" + "[" * 600], "invalid YAML: maximum recursion depth exceeded"),
        (["args.x=.nan"], "--base: args: Out of range float values are not JSON compliant"),
        (["args.x=2024-01-31"], "--base: args.x: input was not a valid JSON value"),
        (["args.model=x"], "--base: args.model: is not allowed here: engine.model says it"),
        (
            ["args.hf_overrides={vocab_size: 8}"],
            "--base: args: hf_overrides may set head_dtype alone; of all else, change",
        ),
        (["args.hf_overrides=[head_dtype]"], "--base: args: hf_overrides may set head_dtype alone"),
        (["args.max-num-seqs=4"], "--base: args.max-num-seqs: engine arguments are written with underscores"),
        (["env.A B=1"], "--base: env.A B: not a valid name of an environment variable"),
    ],
)
def test_words_that_make_no_sense_are_usage_errors(words: list[str], problem: str) -> None:
    """Each error names the option, the word and what was expected, and means exit status 2."""
    with pytest.raises(UsageError) as caught:
        resolve(words, [], {"a": {}, "b": {}})
    assert problem in str(caught.value)
    assert caught.value.exit_status is ExitStatus.USAGE


def test_the_precision_of_the_logits_is_a_subjects_own() -> None:
    """Computing them in float32 leaves the model what the scenario says it is, so one side may."""
    sides = resolve(["python=x"], ['args.hf_overrides={"head_dtype": "float32"}'], {})

    assert sides["base"].args == {}
    assert sides["head"].args == {"hf_overrides": {"head_dtype": "float32"}}


def test_a_subject_made_in_python_has_absolute_paths(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Engines start in another folder than the one that paths were written for; a bare name is left to PATH."""
    monkeypatch.chdir(tmp_path)

    subject = Subject(python="env/bin/python", path=("src", "/elsewhere"))

    assert subject.python == str(tmp_path / "env/bin/python")
    assert subject.path == (str(tmp_path / "src"), "/elsewhere")
    assert Subject(python="python3").python == "python3"


# --- subjects as words again

TEXT = st.text("aé☃\U0001f600 :#&*'\"\\{}[]-,0~")
SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | TEXT
VALUES = SCALARS | st.lists(SCALARS) | st.dictionaries(TEXT, SCALARS)
ARGS = st.dictionaries(st.sampled_from(["a", "b", "c"]), VALUES)
SUBJECTS = st.builds(Subject, python=st.sampled_from(["/a/python", "/b c/python"]), args=ARGS)


@settings(deadline=None)
@given(base=SUBJECTS, own=ARGS, python=st.sampled_from(["/a/python", "/b c/python"]))
def test_words_name_the_subject_again(base: Subject, own: dict[str, Any], python: str) -> None:
    """The words of a base and those in which a head differs from it make the same two subjects."""
    head = Subject(python=python, args={**base.args, **own})

    made = resolve(words(base), words(head, base) or ["env.UNUSED=1"], {})

    assert made["base"] == base
    assert made["head"].model_copy(update={"env": {}}) == head


def test_words_keep_values_of_variables_back_and_name_commits() -> None:
    """A value of the environment may be a secret; a build is its commit, one with changes the working tree."""
    clean = Subject(**make("main"), path=("/builds/main/src", "/own"))
    changed = clean.model_copy(update={"built_from": clean.built_from.model_copy(update={"changes": "d" * 40})})  # type: ignore[union-attr]

    assert words(clean) == ("ref=cccccccccccc", "path=/own", "env.BUILD=...", "env.X=...")
    assert words(changed, clean) == ("ref=.",)
    assert words(clean, clean) == ()


# --- several heads

TABLES: Tables = {"a": {"python": "/a", "args": {"n": 1}}, "b": {"env": {"X": "1"}}, "c": {"args": {"n": 3}}}


@pytest.mark.parametrize(
    ("said", "heads"),
    [
        (["a", "b"], {"a": {"python": "/a", "args": {"m": 1, "n": 1}}, "b": {"env": {"X": "1"}}}),
        (["few:args.n=2", "many:args.n=9"], {"few": {"args": {"m": 1, "n": 2}}, "many": {"args": {"m": 1, "n": 9}}}),
        (["a:args.n=2", "b"], {"a": {"python": "/a", "args": {"m": 1, "n": 2}}, "b": {"env": {"X": "1"}}}),
        (["a", "c", "c:env.P=/x:/y=z"], {"a": {"python": "/a", "args": {"m": 1, "n": 1}},
                                        "c": {"args": {"m": 1, "n": 3}, "env": {"P": "/x:/y=z"}}}),
    ],
)  # fmt: skip
def test_several_heads_by_name(said: list[str], heads: Tables) -> None:
    """Each is a subject of perfgate.toml, or what its own words say; what it does not say it takes from the base."""
    base = Subject(python="/p", args={"m": 1})

    builds = resolve_several(["python=/p", "args.m=1"], said, TABLES)

    assert builds == {
        "base": base,
        **{name: Subject(**{"python": "/p", "args": {"m": 1}, **own}) for name, own in heads.items()},
    }


@pytest.mark.parametrize(
    ("said", "same"),
    [(["args.n=2"], ["args.n=2"]), (["new:args.n=2"], ["args.n=2"]), (["a:env.X=1"], ["a", "env.X=1"]),
     (["a", "env.A=b:args.c=d"], ["a", "env.A=b:args.c=d"]), ([], [])],
)  # fmt: skip
def test_one_head_needs_no_name(said: list[str], same: list[str]) -> None:
    """Words of one head are what they have always been, with its name or without."""
    assert resolve_several(["python=/p"], said, TABLES) == resolve(["python=/p"], same, TABLES)


@pytest.mark.parametrize(
    ("said", "problem"),
    [
        (["a", "b", "args.n=1"], "--head args.n=1: of which head? There are a, b"),
        (["a", "nobody"], "--head nobody: no such subject (known: a, b, base, c)"),
        (["a", "base"], "--head base: one of several heads cannot be called that"),
        (["a", "b c:args.n=1"], "--head b c: one of several heads cannot be called that"),
        (
            [f"h{n}:args.n=1" for n in range(MOST_HEADS + 1)],
            f"--head names 9 heads, and a run takes up to {MOST_HEADS}",
        ),
        (["a", "b:pyton=x"], "--head b:pyton=x: unknown key 'b:pyton'"),
    ],
)
def test_words_of_several_heads_that_make_no_sense(said: list[str], problem: str) -> None:
    """Each error names the word, and what it could have been."""
    with pytest.raises(UsageError) as caught:
        resolve_several([], said, {**TABLES, "base": {"python": "/p"}})
    assert problem in str(caught.value)


def test_two_sides_alone_take_one_head() -> None:
    """A command that compares two builds refuses more, with the command that takes them."""
    with pytest.raises(UsageError, match="--head names several heads: a, b"):
        resolve([], ["a", "b"], TABLES)
