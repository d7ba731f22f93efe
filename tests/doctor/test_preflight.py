"""What check and run say of a scenario before an engine starts."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path

import pytest
from click.testing import CliRunner, Result
from conftest import CONFIG
from git_project import GitProject
from hand_made import scenario_file
from vllm_source import write_vllm

from perfgate.cli.main import main

Check = Callable[..., Result]

SCENARIO = """schema: 1
name: mine
engine:
  model: {{config: model}}
  args:
    max_model_len: 256
    {args}
workload: {{batch: 8, input_tokens: 32, output_tokens: {output}}}
gates: [{gate}]
{more}
"""

GATE = "{metric: itl_median, ignorable: 10%, must_catch: 50%}"


@pytest.fixture
def check(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Check:
    """A function that writes mine.yaml and runs ``perfgate check`` on it, in an empty project."""
    monkeypatch.chdir(tmp_path)
    scenario_file(tmp_path)

    def one(
        args: str,
        *words: str,
        more: str = "",
        output: object = 16,
        command: str = "check",
        gate: str = GATE,
    ) -> Result:
        Path("mine.yaml").write_text(SCENARIO.format(args=args, output=output, more=more, gate=gate))
        return CliRunner().invoke(main, [command, "mine.yaml", *words])

    return one


@pytest.fixture
def build(tmp_path: Path) -> list[str]:
    """The words of a subject whose interpreter finds the stand-in of vLLM."""
    write_vllm(tmp_path / "build")
    return ["--base", f"python={sys.executable}", "--base", f"path={tmp_path / 'build'}"]


@pytest.fixture
def cpu_build(tmp_path: Path) -> list[str]:
    """The same with a vLLM for CPUs."""
    write_vllm(tmp_path / "build", cpu=True)
    return ["--base", f"python={sys.executable}", "--base", f"path={tmp_path / 'build'}"]


def test_more_figures_than_a_record_takes(check: Check) -> None:
    """Refused before anything is measured, with what is to be less."""
    (problem,) = check("max_num_seqs: 8", more="measure: {iterations: 9999}", output=100).stderr.splitlines()

    assert problem == (
        "mine.yaml:10:23: measure.iterations: 12 pairs of 9999 iterations with 8 requests and 100 tokens each yield 28 "
        "million figures, and a record takes 8: take fewer iterations, requests or tokens"
    )


def test_a_batch_above_max_num_seqs(check: Check) -> None:
    """Arithmetic needs no build: the place is the batch, the text says both ways out."""
    assert check("max_num_seqs: 4").stderr == (
        "mine.yaml:8:19: workload.batch: 8 requests at once, and max_num_seqs is 4: no step gives each of them a "
        "token, so itl_median has no value; set max_num_seqs to at least 8, or batch to at most 4\n"
    )


def test_more_tokens_than_the_model_is_given(check: Check) -> None:
    """Prompt and output together fit into max_model_len, or are refused with the largest output that does."""
    assert check("max_num_seqs: 8", output=512).stderr == (
        "mine.yaml:8:55: workload.output_tokens: 32 + 512 tokens are more than max_model_len, 256: set max_model_len "
        "to at least 544, or output_tokens to at most 224\n"
    )
    assert check("max_num_seqs: 8", output=224).exit_code == 0


def test_a_misspelt_argument(check: Check, build: list[str]) -> None:
    """The subject's own source knows its arguments; the place is the key, with the nearest name."""
    refused = check("max_num_seq: 8", *build)

    assert refused.exit_code == 2
    assert refused.stderr == (
        "mine.yaml:7:5: engine.args.max_num_seq: vLLM 9.8.7 has no such engine argument "
        "(did you mean 'max_num_seqs'?)\n"
    )


@pytest.mark.parametrize("asked", [True, False])
def test_a_key_of_the_matrix_that_is_no_argument(check: Check, build: list[str], *, asked: bool) -> None:
    """It is refused at its key with a build, and without one where it resembles a key of the workload."""
    refused = check("max_num_seqs: 8", *(build if asked else ()), more="matrix: {batches: [1, 8]}")

    assert refused.exit_code == 2
    assert refused.stderr.startswith("mine.yaml:10:10: matrix.batches: ")
    assert refused.stderr.endswith(" (did you mean 'batch'?)\n")


@pytest.mark.parametrize(
    ("args", "more", "place"),
    [
        ("max_num_batched_tokens: 4\n    max_num_seqs: 8", "", "7:29: engine.args.max_num_batched_tokens: 4 tokens "),
        ("max_num_batched_tokens: 64\n    enable_chunked_prefill: false", "", "7:29: engine.args.max_num_batched_"),
        ("max_num_seqs: 8", "matrix: {max_num_seqs: [8, 2]}", "8:19: workload.batch: 8 requests at once, "),
        ("max_num_seqs: 8", "matrix: {batch: [4, 16]}", "10:21: matrix.batch[1]: 16 requests at once, "),
        ("max_num_seqs: 8", "matrix: {input_tokens: [16, 300]}", "10:29: matrix.input_tokens[1]: 300 + 16 tokens "),
    ],
)  # fmt: skip
def test_relations(check: Check, args: str, more: str, place: str) -> None:
    """Each relation that vLLM insists on has its place, in the matrix where the value comes from there."""
    refused = check(args, more=more)

    assert refused.exit_code == 2
    assert refused.stderr.startswith(f"mine.yaml:{place}")
    assert len(refused.stderr.splitlines()) == 1


def test_what_a_side_says_for_itself(check: Check, build: list[str]) -> None:
    """An argument of one side is judged with that side, at the option that says it, also beside the scenario's own."""
    fits = [*build, "--base", "args.max_num_seqs=8"]

    assert check("max_num_seqs: 4", *fits).exit_code == 0
    lower = check("max_num_seqs: 4", *fits, "--head", "args.max_num_seqs=2")
    assert lower.stderr.startswith(
        "--head or [subjects.head]: args.max_num_seqs: 8 requests at once, and max_num_seqs is 2"
    )
    several = check(
        "max_num_seqs: 8", *build, "--head", "few:args.max_num_seqs=4", "--head", "many:args.max_num_seqs=16"
    )
    assert several.stderr.startswith("--head few: args.max_num_seqs: 8 requests at once, and max_num_seqs is 4")
    short = check("max_num_seqs: 8", *build, "--head", "args.max_model_len=40")
    assert short.stderr.startswith("--head or [subjects.head]: args.max_model_len: 32 + 16 tokens are more than")
    scheduled = check("max_num_seqs: 8", *build, "--head", "args.max_num_batched_tokens=4")
    assert scheduled.stderr.startswith("--head or [subjects.head]: args.max_num_batched_tokens: 4 tokens a step")
    wrong = check("max_num_seqs: 8", *build, "--head", "args.dtype=float33")
    assert wrong.stderr == (
        "--head or [subjects.head]: args.dtype: expected one of auto, bfloat16, float32 (did you mean 'float32'?)\n"
    )


@pytest.mark.usefixtures("check")
def test_a_side_that_names_the_folder_of_a_model_on_the_hub() -> None:
    """There is none: vLLM would be given the name as it stands there."""
    hub = SCENARIO.replace("{{config: model}}", "{{hub: a/b, revision: 0123abc}}")
    Path("hub.yaml").write_text(hub.format(args="max_num_seqs: 8", output=16, more="", gate=GATE))
    head = 'args.speculative_config={"model": "{model}/a"}'
    refused = CliRunner().invoke(main, ["check", "hub.yaml", "--base", "python=/bin/true", "--head", head])
    assert refused.stderr == (
        "--head or [subjects.head]: args.speculative_config: {model} is the model's folder, and a model on the hub has "
        "none\n"
    )


def test_run_refuses_before_it_begins(check: Check, build: list[str]) -> None:
    """What check refuses, run refuses in the same words: no run folder is made, no engine started."""
    said = check("max_num_seq: 8", *build)
    refused = check("max_num_seq: 8", *build, command="run")

    assert (refused.exit_code, refused.stderr) == (said.exit_code, said.stderr)
    assert not Path("runs").exists()


@pytest.mark.parametrize(
    ("key", "value", "said"),
    [
        ("python", "/nowhere/python", "subject-not-found: base: python=/nowhere/python: no such program"),
        ("python", "/etc/passwd", "python=/etc/passwd: is there, and is not a program that you may execute"),
        ("python", "garbage", "garbage: Exec format error"),
        ("path", "/nowhere", "subject-not-found: base: path=/nowhere: no such folder"),
        ("path", "/etc/passwd", "path=/etc/passwd: is a file; name the folder that it is in"),
        ("python", sys.executable, f"engine-import-failed: base: python={sys.executable} has no vllm"),
    ],
)
def test_a_build_that_cannot_run(check: Check, key: str, value: str, said: str) -> None:
    """Run and check end with 2 in the same words, by a word or perfgate.toml, and wait for no lock before that."""
    Path("garbage").write_text("no program")
    Path("garbage").chmod(0o755)
    value = str(Path(value).absolute()) if value == "garbage" else value
    own = "" if key == "python" else f'python = "{sys.executable}"'
    refused = [check("max_num_seqs: 8", "--base", f"{key}={value}", command=command) for command in ("check", "run")]
    Path("perfgate.toml").write_text(f'[subjects.base]\n{own}\n{key} = "{value}"\n')
    refused += [check("max_num_seqs: 8", command=command) for command in ("check", "run")]

    assert [one.exit_code for one in refused] == [2, 2, 2, 2]
    assert {one.stderr for one in refused} == {refused[0].stderr}
    assert said in refused[0].stderr
    assert not Path("runs").exists()


def test_the_builds_of_the_configuration_are_asked(check: Check, tmp_path: Path) -> None:
    """Without words check asks [subjects.base]; in a commit that is pushed it may be missing."""
    write_vllm(tmp_path / "build")
    Path("perfgate.toml").write_text(f'[subjects.base]\npython = "{sys.executable}"\npath = "build"\n')
    assert check("max_num_seq: 8").exit_code == 2

    Path("perfgate.toml").write_text('[subjects.base]\npython = "/nowhere/python"\n')
    Path(".git").mkdir()
    passed = check("max_num_seq: 8")
    assert passed.exit_code == 0
    assert "base: engine arguments are not checked: python=/nowhere/python: no such program" in passed.stdout
    assert check("max_num_seq: 8", "--base", "python=/nowhere/python").exit_code == 2


def test_nobody_to_ask(check: Check) -> None:
    """Without any build check says what it did not look at, and how to have it looked at."""
    assert "name a build with --base python=..., or as [subjects.base]" in check("max_num_seqs: 8").stdout


def test_a_ref_is_not_built_for_it(check: Check, tmp_path: Path) -> None:
    """Check builds nothing: a ref without a build is left out, and named."""
    project = GitProject(tmp_path)
    project.commit({"perfgate.toml": '[build]\npython = "{env}/bin/python"\ncommands = [["false"]]\n'})
    passed = check("max_num_seq: 8", "--base", "ref=HEAD")

    assert passed.exit_code == 0, passed.output
    assert "is not built yet" in passed.stdout


@pytest.mark.parametrize(
    "plugin",
    [
        {"patch.py": "from vllm import EngineArgs\n", "p.dist-info/METADATA": "Name: p\nVersion: 1\n"},
        {"sitecustomize.py": "import vllm.engine.arg_utils\n"},
    ],
    ids=["plugin", "sitecustomize"],
)
def test_a_plugin_that_may_change_the_arguments(
    check: Check, build: list[str], tmp_path: Path, plugin: dict[str, str]
) -> None:
    """What path= adds may bring arguments of its own if it speaks of them: names are left to the engine, sizes not."""
    for name, text in plugin.items():
        (tmp_path / "plugin" / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / "plugin" / name).write_text(text)
    words = [*build, "--base", f"path={tmp_path / 'plugin'}"]

    passed = check("max_num_seq: 8", *words)
    assert passed.exit_code == 0
    assert "may change the engine's arguments" in passed.stdout
    assert check("max_num_seqs: 4", *words).exit_code == 2


def test_what_lies_beside_vllm_changes_nothing(check: Check, build: list[str], tmp_path: Path) -> None:
    """A checkout of vLLM as path=, or a folder of its libraries, holds files that speak of engine arguments."""
    (tmp_path / "build" / "tests").mkdir()
    (tmp_path / "build" / "tests" / "test_arg_utils.py").write_text("from vllm import EngineArgs\n")

    assert "did you mean 'max_num_seqs'?" in check("max_num_seq: 8", *build).stderr


@pytest.mark.parametrize("python", ["/bin/true", "/bin/false"])
def test_an_interpreter_that_is_none(check: Check, python: str) -> None:
    """A program that answers nothing leaves the arguments to the engine."""
    passed = check("max_num_seq: 8", "--base", f"python={python}")

    assert passed.exit_code == 0
    assert f"python={python} does not run a Python program" in passed.stdout


def test_a_cpu_scenario_that_takes_all_memory(check: Check, cpu_build: list[str]) -> None:
    """A CPU build without a size for its cache is warned of, with the line to add; with it there is no warning."""
    warned = check("max_num_seqs: 8", *cpu_build)
    assert warned.exit_code == 0
    assert (
        "warning: mine.yaml:5:3: engine.args: on a CPU vLLM reserves most of the host's memory unless "
        "kv_cache_memory_bytes says how much; add kv_cache_memory_bytes: 1073741824\n"
    ) in warned.stderr
    assert "kv_cache_memory_bytes" not in check("kv_cache_memory_bytes: 1073741824", *cpu_build).stderr


def test_a_cpu_scenario_whose_threads_are_bound(check: Check, cpu_build: list[str], tmp_path: Path) -> None:
    """A CPU build whose threads nobody freed is warned of, with the line to add; whoever says anything is not."""
    bounded = "kv_cache_memory_bytes: 1073741824"

    assert check(bounded, *cpu_build).stderr == (
        "perfgate: warning: mine.yaml:3:1: engine.env: on a CPU vLLM binds its threads to cores, and a core that "
        "something else uses makes steps several times as long; add VLLM_CPU_OMP_THREADS_BIND: nobind\n"
    )
    assert check(f"{bounded}\n  env: {{VLLM_CPU_OMP_THREADS_BIND: 0-7}}", *cpu_build).stderr == ""
    write_vllm(tmp_path / "build")
    assert check(bounded, *cpu_build).stderr == ""


@pytest.mark.parametrize(
    "metric",
    ["energy_per_token", "mbu", "peak_memory", "device_memory_growth", "dram_bytes, role: attention"],
)
def test_a_gate_on_what_only_a_gpu_has(check: Check, cpu_build: list[str], tmp_path: Path, metric: str) -> None:
    """With a CPU build it is warned of at its place before a trial is spent on it; with one for GPUs it is not."""
    args = "kv_cache_memory_bytes: 1073741824\n  env: {VLLM_CPU_OMP_THREADS_BIND: nobind}"
    counted = "kernels: {traced: {iterations: 2}}\ncounters: [{role: attention, profile: 4}]"
    more = counted if "role" in metric else ""
    gate = f"{{metric: {metric}, ignorable: 10%, must_catch: 50%}}"

    assert check(args, *cpu_build, gate=gate, more=more).stderr == (
        f"perfgate: warning: mine.yaml:10:18: gates[0].metric: {metric.partition(',')[0]} is measured on GPUs alone, "
        "and this engine runs on the CPU: remove the gate there\n"
    )
    write_vllm(tmp_path / "build")
    assert "GPUs alone" not in check("max_num_seqs: 8", *cpu_build, gate=gate, more=more).stderr


@pytest.mark.parametrize(("output", "size"), [("16", 2**26), ("16, images: {width: 8, height: 8}", 2**30)])
def test_the_size_of_the_cache_follows_the_model(check: Check, output: str, size: int) -> None:
    """Twice what keys and values of a counted model take, at least 64 MiB; a GiB where images come, as if uncounted."""
    Path("model/config.json").write_text(json.dumps(CONFIG))
    variables = "max_num_seqs: 8\n  env: {VLLM_CPU_OMP_THREADS_BIND: nobind}"

    assert f"add kv_cache_memory_bytes: {size}\n" in check(variables, output=output).stderr


@pytest.mark.parametrize(
    ("args", "told"),
    [("{size}", False), ("{less}", True), ("{less}, num_gpu_blocks_override: 512", False), ("auto", False),
     ("{less}, tensor_parallel_size: 2", False), ("{less}, speculative_config: {{method: ngram}}", False)],
)  # fmt: skip
def test_a_cache_that_cannot_hold_the_batch(check: Check, args: str, *, told: bool) -> None:
    """Eight requests keep 47 tokens each in their last step; a byte less is refused: requests would be preempted."""
    Path("model/config.json").write_text(json.dumps(CONFIG))
    layers, width = CONFIG["num_hidden_layers"], CONFIG["hidden_size"] // CONFIG["num_attention_heads"]
    size = 8 * (32 + 16 - 1) * layers * 2 * CONFIG["num_key_value_heads"] * width * 2
    written = args.format(size=size, less=size - 1).replace(", ", "\n    ")
    said = check(f"max_num_seqs: 8\n    kv_cache_memory_bytes: {written}").stderr

    assert said == (told * (
        f"mine.yaml:8:28: engine.args.kv_cache_memory_bytes: 8 requests of 32 + 16 tokens keep {size} bytes on each "
        f"rank, and the cache has {size - 1}: requests wait or are preempted; raise it, or lower batch or lengths\n"
    ))  # fmt: skip


@pytest.mark.parametrize(
    ("config", "known"),
    [({"vocab_size": 100}, False), ({"vocab_size": 101}, True), ({"vocab_size": 100, "image_token_index": 100}, True),
     ({"text_config": {"vocab_size": 99}}, False), ({}, True)],
)  # fmt: skip
def test_a_token_for_images_that_the_model_has_not(check: Check, config: dict[str, object], *, known: bool) -> None:
    """It is refused where the configuration says how many there are, and does not itself name that token."""
    Path("model/config.json").write_text(json.dumps(config))
    said = check("max_num_seqs: 8", output="16, images: {width: 8, height: 8, token: 100}").stderr

    assert ("workload.images.token: the model has no such token: its vocabulary has " not in said) is known


def test_a_head_whose_path_replaced_that_of_its_vllm(check: Check, tmp_path: Path) -> None:
    """Both commands say that it did, and how a folder is put in front; so put, it is found."""
    write_vllm(tmp_path / "tree")
    (tmp_path / "plugin").mkdir()
    base = ("--base", f"python={sys.executable}", "--base", f"path={tmp_path / 'tree'}")
    for command in ("check", "run"):
        refused = check("max_num_seqs: 8", *base, "--head", f"path={tmp_path / 'plugin'}", command=command)
        assert refused.exit_code == 2
        told = f"path= replaces the base's path={tmp_path / 'tree'}; path=+FOLDER puts a folder in front of it"
        assert told in " ".join(refused.stderr.split())
    assert check("max_num_seqs: 8", *base, "--head", f"path=+{tmp_path / 'plugin'}").exit_code == 0
