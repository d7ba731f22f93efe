"""The engine arguments of a build, read from its source: what is refused is refused by the engine, too."""

from __future__ import annotations

import json
import os
import subprocess
from pathlib import Path
from typing import Any

import pytest
from conftest import ENGINE_PYTHON
from hypothesis import given
from hypothesis import strategies as st
from vllm_source import ARGUMENTS, write_vllm

from perfgate.doctor.accepted_values import Accepted, EngineArguments
from perfgate.doctor.engine_arguments import read_arguments
from perfgate.doctor.vllm_source import Located, locate
from perfgate.scenario.subject import Subject


@pytest.fixture(scope="module")
def taken(tmp_path_factory: pytest.TempPathFactory) -> EngineArguments:
    """The arguments of the stand-in."""
    found = read_arguments(write_vllm(tmp_path_factory.mktemp("source")), "9.8.7")
    assert found is not None
    return found


@pytest.mark.parametrize(
    ("name", "value", "within", "text"),
    [
        ("max_num_seq", 8, (), "vLLM 9.8.7 has no such engine argument (did you mean 'max_num_seqs'?)"),
        ("max_num_seqs", "eight", (), "expected a whole number"),
        ("max_num_seqs", 2.5, (), "expected a whole number"),
        ("max_num_seqs", [8], (), "expected a whole number"),
        ("dtype", "bfloat17", (), "expected one of auto, bfloat16, float32 (did you mean 'bfloat16'?)"),
        ("runner", "poling", (), "expected one of auto, generate, pooling (did you mean 'pooling'?)"),
        ("kv_cache_dtype", 8, (), "expected one of auto, fp8"),
        ("gpu_memory_utilization", 92, (), "must be at most 1"),
        ("gpu_memory_utilization", 0, (), "must be above 0"),
        ("enforce_eager", "maybe", (), "expected true or false"),
        ("enforce_eager", 2, (), "expected true or false"),
        ("max_num_seqs", -1, (), "must be at least 1"),
        ("compilation_config", {"cudagraph_capture_size": [1]}, ("cudagraph_capture_size",),
         "unknown key (did you mean 'cudagraph_capture_sizes'?)"),
        ("compilation_config", {"mode": 4}, ("mode",), "must be at most 3"),
        ("compilation_config", {"derived": 4}, ("derived",), "unknown key"),
    ],
)  # fmt: skip
def test_what_the_declaration_rules_out(
    taken: EngineArguments, name: str, value: Any, within: tuple[str, ...], text: str
) -> None:
    """A name, a kind, a choice, a bound or a key that the declaration has no room for is told with what is near."""
    assert taken.problem(name, value) == (within, text)


@pytest.mark.parametrize(
    ("name", "value"),
    [
        ("max_num_seqs", 8), ("max_num_seqs", "8"), ("max_num_seqs", 8.0), ("max_num_seqs", True),
        ("max_num_seqs", None),
        ("cudagraph_capture_sizes", 8), ("quoted", [1]),  # nothing says that they are used
        ("elastic", "perhaps"),  # used on a condition
        ("dtype", "BFLOAT16"), ("dtype", None), ("quantization", "whatever"), ("anything", {"a": [1]}),
        ("enforce_eager", "yes"), ("enforce_eager", 1), ("gpu_memory_utilization", "0.5"),
        ("max_model_len", "auto"),  # its validator sees it first
        ("moe_backend", "TRITON-x"),  # likewise
        ("data_parallel_size", 0),  # the class changes it before use
        ("compilation_config", 3), ("compilation_config", {"mode": 3}), ("quoted", {"a": "b"}),
    ],
)  # fmt: skip
def test_what_cannot_be_judged_is_left_to_the_engine(taken: EngineArguments, name: str, value: Any) -> None:
    """Pydantic converts, validators rewrite, classes change their fields: none of that is refused here."""
    assert taken.problem(name, value) is None


@pytest.mark.parametrize(
    ("old", "new"),
    [
        ("class EngineArgs:", "class EngineArgs(Base):"),
        ("@dataclass\n", "@changed\n@dataclass\n"),
        ("class EngineArgs:", "class Other:"),
        ("class EngineArgs:", "class EngineArgs(:"),
        ("class EngineArgs:", "\0"),
        ("@dataclass\n", "EngineArgs = None\n@dataclass\n"),
    ],
    ids=["base", "decorator", "none", "syntax", "nul", "twice"],
)
def test_a_class_that_may_take_more_than_it_shows(tmp_path: Path, old: str, new: str) -> None:
    """Bases, other decorators, a second definition and unreadable source leave everything to the engine."""
    assert read_arguments(write_vllm(tmp_path, ARGUMENTS.replace(old, new)), "1") is None


@pytest.mark.parametrize(
    ("limit", "known"),
    [("-1.5", {"ge": -1.5}), ("{[]: 1}", {}), ("[*a]", {}), ("f(1)", {}), ("1" + "0" * 400, {}), ("'1'", {})],
)
def test_limits_that_are_no_numbers(tmp_path: Path, limit: str, known: dict[str, float]) -> None:
    """A limit that is another expression, or a number that no float holds, is left to the engine."""
    package = write_vllm(tmp_path)
    file = package / "config" / "cache.py"
    file.write_text(file.read_text().replace("gt=0, le=1", f"ge={limit}"))
    found = read_arguments(package, "1")
    assert found is not None
    assert found.accepted["gpu_memory_utilization"].bounds == known


@pytest.mark.parametrize("place", ["ge=", "init=", "default="])
def test_an_expression_that_is_nested_too_deeply(tmp_path: Path, place: str) -> None:
    """Source that can be parsed and is too deep to be followed is left to the engine."""
    package = write_vllm(tmp_path)
    file = package / "config" / "cache.py"
    file.write_text(file.read_text().replace("default=0.92, gt=0, le=1", f"{place}{'-' * 900}1"))
    assert read_arguments(package, "1") is None


@given(st.text(alphabet="abclass:()[]|=,.@ \n'\"0", max_size=60))
def test_no_source_breaks_the_reader(tmp_path_factory: pytest.TempPathFactory, tail: str) -> None:
    """Whatever stands behind the class, reading ends with arguments or with none."""
    package = write_vllm(tmp_path_factory.mktemp("any"), f"{ARGUMENTS}\n{tail}")
    found = read_arguments(package, "1")
    assert found is None or "max_num_seqs" in found.accepted


def test_names_that_lead_in_a_circle(tmp_path: Path) -> None:
    """An alias of itself ends as unknown, and its field takes anything."""
    package = write_vllm(
        tmp_path, ARGUMENTS.replace("anything: Any", "anything: A").replace("@dataclass", "A = B\nB = A\n@dataclass")
    )
    found = read_arguments(package, "1")
    assert found is not None
    assert found.accepted["anything"] == Accepted()


REFUSED: list[tuple[str, Any]] = [
    ("dtype", "bfloat17"), ("gpu_memory_utilization", 92), ("max_num_seqs", "eight"), ("seed", "x"),
    ("enforce_eager", "maybe"), ("compilation_config", {"cudagraph_capture_size": [1]}), ("max_num_seq", 8),
]  # fmt: skip
ASKED = """
import dataclasses, json, sys
from vllm import EngineArgs
plain, refused = json.loads(sys.argv[1])
names = [field.name for field in dataclasses.fields(EngineArgs)]
EngineArgs(**plain).create_engine_config()
taken = []
for name, value in refused:
    try:
        EngineArgs(**{**plain, name: value}).create_engine_config()
        taken.append(name)
    except (TypeError, ValueError):
        pass
print(json.dumps([names, taken]))
"""


@pytest.mark.slow
@pytest.mark.engine(starts=1)
def test_the_real_class_agrees(engine_cache: Path) -> None:
    """Of a real vLLM the source tells the fields of the imported class, and what is refused here is refused there."""
    python = os.environ[ENGINE_PYTHON]
    located = locate(Subject(python=python), dict(os.environ))
    assert isinstance(located, Located)
    found = read_arguments(Path(str(located.file)).parent, "1")
    model = str(Path(__file__).parents[2] / "scenarios" / "models" / "llama-tiny")
    plain = {"model": model, "skip_tokenizer_init": True, "load_format": "dummy", "max_model_len": 256}
    argv = [python, "-c", ASKED, json.dumps([plain, REFUSED])]
    environment = {**os.environ, "VLLM_CACHE_ROOT": str(engine_cache)}
    said = subprocess.run(argv, env=environment, capture_output=True, text=True, check=True)
    names, taken = json.loads(said.stdout.splitlines()[-1])
    assert found is not None
    assert list(found.accepted) == names
    assert all(found.problem(name, value) for name, value in REFUSED)
    assert taken == []
