"""perfgate.toml as a whole: what it says, what it refuses, and its schema."""

from __future__ import annotations

import json
import tomllib
from pathlib import Path

import jsonschema
import pytest
from pages import blocks

from perfgate.errors import ExitStatus, UsageError
from perfgate.project.config import Config, config_schema, load_config

SCHEMA_FILE = Path(__file__).parents[2] / "docs" / "schema" / "config.schema.json"


def write_config(folder: Path, text: str) -> Path:
    """A perfgate.toml with this text."""
    file = folder / "perfgate.toml"
    file.write_text(text)
    return file


def test_paths_of_a_table_are_taken_from_its_file(tmp_path: Path) -> None:
    """Relative entries of perfgate.toml do not depend on the current folder; numbers in env become text."""
    file = write_config(tmp_path, '[subjects.a]\npython = "v/bin/python"\npath = "src"\nenv = {N = 1}\nref = "x"\n')
    assert load_config(file).subjects == {
        "a": {"python": f"{tmp_path}/v/bin/python", "path": [f"{tmp_path}/src"], "env": {"N": "1"}, "ref": "x"}
    }


def test_the_config_is_the_nearest_one_upwards(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """perfgate.toml is found from any folder below it, and an empty one says nothing, as none does."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    monkeypatch.chdir(inner)
    assert load_config() == Config()
    file = write_config(tmp_path, "")
    assert load_config() == Config(file)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("subjects = 3", ": subjects: expected a mapping, found 3"),
        ("[subjects]\na = 'x'", ": subjects.a: expected a mapping, found 'x'"),
        ("[subject.a]", ": subject: unknown key (did you mean 'subjects'?); expected one of subjects, build"),
        ("[subjects.a]\npyton = 'x'", ": subjects.a.pyton: unknown key (did you mean 'python'?); expected one of "),
        ("[subjects.a]\npython = 3", ": subjects.a.python: expected text (quote it), found 3"),
        ("[subjects.a]\npath = 3", ": subjects.a.path: expected a list, found 3"),
        ("[subjects.a]\npath = ['a', 3]", ": subjects.a.path[1]: expected text (quote it), found 3"),
        ("[subjects.a]\nenv = 3", ": subjects.a.env: expected a mapping, found 3"),
        ("[subjects.a]\nenv = {X = true}", ": subjects.a.env.X: expected text (quote it), found true"),
        ("[subjects.a]\nargs = {x = 2024-01-31}", ": subjects.a.args.x: input was not a valid JSON value"),
        ("[subjects.a]\nargs = {x = nan}", ": subjects.a.args: Out of range float values are not JSON compliant"),
        ("[subjects.a]\nargs = {load_format = 'x'}", ": subjects.a.args.load_format: is not allowed here"),
        ("[subjects", ": cannot be read: "),
        ('[build]\npath = "{tree}"\ninputs = "/etc/x"', ": build.inputs: expected a pattern of files from this"),
        ('[build]\npath = "{tree}"\ninputs = ["a", "b/**.txt"]', ": build.inputs[1]: expected ** between slashes only"),
        ('[build]\npath = "{tree}"\ncommands = [["a\\u0000"]]', ": build.commands[0][0]: expected text without NUL"),
        ('[build]\npath = "{tree}\\u0000"', ": build.path: expected text without NUL"),
        ('[subjects.a]\nref = "\\u0000"', ": subjects.a.ref: expected text without NUL"),
        ('[subjects.a]\npath = "\\u0000"', ": subjects.a.path: expected text without NUL"),
        ("[build]", ": build: python, path or env must name {tree} or {env}, otherwise every ref would be the same"),
        ("[build]\npath = 'src'\ncommands = [['make']]", ": build: python, path or env must name {tree} or {env}"),
        ("[build]\npath = '{tree}'\ncommands = ['pip install x']", 'no text: write ["pip", "install", "x"], or ["sh"'),
        ("[build]\npath = '{tree}'\ncommands = [[]]", ": build.commands[0]: expected at least one entry"),
        ("[build]\npath = '{tre}'", ": build.path: unknown placeholder {tre}: expected {tree}, {env}, {commit},"),
        ("[build]\npath = '{tree!r}'", ": build.path: unknown placeholder {tree}"),
        ("[build]\npath = '{tree'", ": build.path: expected '}' before end of string"),
        ("[build]\npath = '{tree}'\nenv = {X = '{x}'}", ": build.env: unknown placeholder {x}"),
        ("[build]\npath = '{tree}'\ntimeout = 3", ": build.timeout: expected a positive duration with its unit"),
    ],
)  # fmt: skip
def test_a_broken_config_is_a_usage_error_that_names_it(tmp_path: Path, text: str, problem: str) -> None:
    """Each error names the file, the table and the key, and means exit status 2."""
    file = write_config(tmp_path, text)
    with pytest.raises(UsageError) as caught:
        load_config(file)
    assert str(caught.value).startswith(f"{file}: ")
    assert problem in str(caught.value)
    assert caught.value.exit_status is ExitStatus.USAGE


def test_every_problem_is_listed(tmp_path: Path) -> None:
    """A file with two mistakes is mended in one go."""
    file = write_config(tmp_path, "[subjects.a]\npython = 3\n[build]\npath = '{tree}'\ntimout = '1s'\n")
    with pytest.raises(UsageError, match=r"subjects\.a\.python: (?s:.*)build\.timout: unknown key"):
        load_config(file)


def test_a_config_that_is_no_text_is_a_usage_error(tmp_path: Path) -> None:
    """Binary files and missing ones cannot be read, and that is said."""
    file = tmp_path / "perfgate.toml"
    file.write_bytes(b"\xff\xfe")
    for path in (file, tmp_path / "absent.toml"):
        with pytest.raises(UsageError, match="cannot be read"):
            load_config(path)


def test_schema_is_current_and_valid() -> None:
    """docs/schema/config.schema.json is what perfgate schema config prints, in draft-07."""
    assert json.loads(SCHEMA_FILE.read_text()) == config_schema()
    jsonschema.Draft7Validator.check_schema(config_schema())


@pytest.mark.parametrize("text", blocks("docs/configuration.md", "toml"))
def test_what_the_pages_show_is_right(tmp_path: Path, text: str) -> None:
    """Every example of docs/configuration.md is read without an error and fits the schema."""
    load_config(write_config(tmp_path, text))
    jsonschema.Draft7Validator(config_schema()).validate(tomllib.loads(text))


def test_the_page_shows_every_key() -> None:
    """A key that docs/configuration.md does not explain does not exist for users."""
    page = (SCHEMA_FILE.parents[1] / "configuration.md").read_text()
    definitions = config_schema()["definitions"]
    for model in ("SubjectTable", "Recipe"):
        for key in definitions[model]["properties"]:
            assert f"| `{key}` |" in page, f"{model}: {key}"
