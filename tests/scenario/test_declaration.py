"""What a scenario may say, what it may not, and that its words come back unchanged."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from perfgate.errors import ScenarioError
from perfgate.metrics.catalogue import PART_METRICS, metric_family, metric_names
from perfgate.scenario import kernel_names
from perfgate.scenario.declaration import (
    LoadedScenario,
    Scenario,
    dump,
    json_schema,
    load,
    loads,
    model_folder,
)
from perfgate.scenario.local_files import repository_root
from perfgate.scenario.yaml_document import MAX_BYTES
from perfgate.stats.sequential import Schedule
from perfgate.units import LARGEST_PERCENTAGE, format_percent, parse_percent, parse_quantity

ROOT = Path(__file__).parents[2]
HUB = "{hub: meta/llama, revision: 0123abc}"

LINES = {
    "schema": "schema: 1",
    "name": "name: x",
    "engine": f"engine: {{model: {HUB}}}",
    "workload": "workload: {batch: 1, input_tokens: 4, output_tokens: 4}",
    "gates": "gates: [{metric: itl_median, ignorable: 1%, must_catch: 2%}]",
}


def text_with(**lines: str) -> str:
    """A scenario with some of its lines replaced or added; an empty one is left out."""
    merged = {**LINES, **lines}
    return "".join(f"{line}\n" for line in merged.values() if line)


def parse(text: str) -> LoadedScenario:
    """Load from text under the name s.yaml."""
    return loads(text, Path("s.yaml"))


def refusal(text: str) -> str:
    """The error text that ``text`` earns."""
    with pytest.raises(ScenarioError) as caught:
        parse(text)
    return str(caught.value)


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model folder."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.json").write_text("{}")
    return tmp_path


KNOWN = ", ".join(metric_names())
BY_ROLE = ", ".join(PART_METRICS)
TRACED = "kernels: {traced: {iterations: 2}}"
GEMM = "{metric: kernel_throughput, role: gemm, ignorable: 1%, must_catch: 3%}"
ROLES = ", ".join(kernel_names.ROLES)
BATCH = "batch: 4, input_tokens: 16, output_tokens: 4"
SIZE = "width: 8, height: 8"
LARGE = "width: 8192, height: 8192"
MFU = "{metric: mfu, ignorable: 1%, must_catch: 2%}"
GATE = "{metric: itl_median, ignorable: 0.1%, must_catch: 0.5%}"
NAME_EXPECTED = "expected at most 63 lower-case letters, digits, dots, dashes or underscores, a letter or digit first, "
OTHER_LOOKS = "looks other than [6, 8, 12], [4, 6, 8, 12] or a beginning of them need their own spend, like spend: "
NO_FOLDER = "{model} is the model's folder, and a model on the hub has none"
PERCENT = 'expected a percentage from 0% to 1000% with its % sign, like "0.5%"'
DURATION = 'expected a positive duration with its unit, like "90s" or "15min"'


@pytest.mark.needs("calls", "kernels")
@pytest.mark.parametrize(
    ("lines", "problem"),
    [
        ({"schema": ""}, "1:1: schema: is missing; add it, for example schema: 1"),
        ({"schema": "schema: 2"}, "1:9: schema: expected 1, found 2"),
        ({"schema": "schema: true"}, "1:9: schema: expected a whole number, found true"),
        ({"schema": "schema: 1.0"}, "1:9: schema: expected a whole number, found 1.0"),
        ({"name": "name: no"}, None),
        ({"name": "name: 12"}, "2:7: name: expected text (quote it), found 12"),
        ({"name": "name: A"}, f"2:7: name: {NAME_EXPECTED}like a, found 'A'"),
        ({"name": "name:"}, "2:1: name: expected text (quote it), found nothing"),
        ({"engine": "engine: vllm"}, "3:9: engine: expected a mapping, found 'vllm'"),
        ({"engine": "engine: {model: {}}"}, "3:17: engine.model: expected exactly one of config, path, hub"),
        ({"engine": "engine: {model: {hub: a/b}}"}, "3:17: engine.model: hub and revision go together"),
        (
            {"engine": "engine: {model: {hub: a/b, revision: main}}"},
            "3:38: engine.model.revision: must match ^[0-9a-f]{7,64}$, found 'main'",
        ),
        (
            {"engine": f"engine: {{modl: 3, model: {HUB}}}"},
            "3:10: engine.modl: unknown key (did you mean 'model'?); expected one of driver, model, args, env, command",
        ),
        ({"engine": f"engine: {{model: {HUB}, args: [1]}}"}, "3:61: engine.args: expected a mapping"),
        (
            {"engine": f"engine: {{model: {HUB}, args: {{tokenizer: x}}}}"},
            "3:62: engine.args.tokenizer: is not allowed here: prompts are token ids, no tokenizer is loaded",
        ),
        (
            {"engine": f"engine: {{model: {HUB}, args: {{max-num-seqs: 4}}}}"},
            "3:62: engine.args.max-num-seqs: engine arguments are written with underscores, like max_num_seqs",
        ),
        (
            {"engine": f'engine: {{model: {HUB}, args: {{speculative_config: {{model: "{{model}}/draft"}}}}}}'},
            f"3:82: engine.args.speculative_config: {NO_FOLDER}",
        ),
        (
            {"m": 'matrix: {chat_template: [null, "{model}/a"]}'},
            f"6:32: matrix.chat_template[1]: {NO_FOLDER}, found '{{model}}/a'",
        ),
        (
            {"engine": f"engine: {{model: {HUB}, env: {{A: 1}}}}"},
            "3:64: engine.env.A: expected text (quote it), found 1",
        ),
        (
            {"engine": f'engine: {{model: {HUB}, env: {{"A=": "1"}}}}'},
            "3:61: engine.env.A=: not a valid name of an environment variable",
        ),
        (
            {"engine": f'engine: {{model: {HUB}, env: {{A: "1\\0"}}}}'},
            "3:64: engine.env.A: a value of an environment variable holds no NUL character, found '1\\x00'",
        ),
        (
            {"workload": "workload: {batch: 0, input_tokens: 4, output_tokens: 4}"},
            "4:19: workload.batch: must be at least 1, found 0",
        ),
        (
            {"workload": "workload: {batch: 10000001, input_tokens: 4, output_tokens: 4}"},
            "4:19: workload.batch: must be at most 10000000, found 10000001",
        ),
        (
            {"workload": "workload: {batch: true, input_tokens: 4, output_tokens: 4}"},
            "4:19: workload.batch: expected a whole number, found true",
        ),
        (
            {"workload": 'workload: {batch: "3", input_tokens: 4, output_tokens: 4}'},
            "4:19: workload.batch: expected a whole number, found '3'",
        ),
        (
            {"workload": "workload: {batch: 1e3, input_tokens: 4, output_tokens: 4}"},
            "4:19: workload.batch: expected a whole number, found 1000.0",
        ),
        (
            {"workload": "workload: {batch: 12:30, input_tokens: 4, output_tokens: 4}"},
            "4:19: workload.batch: expected a whole number, found '12:30'",
        ),
        ({"workload": "workload: {batch: 012, input_tokens: 4, output_tokens: 4}"}, None),
        (
            {"workload": "workload: {batch: 1, input_tokens: 4, output_tokens: 4, seed: -1}"},
            "4:63: workload.seed: must be at least 0, found -1",
        ),
        (
            {"workload": "workload: {batch: 1, input_tokens: 4, output_tokens: 4, seed: 9223372036854775808}"},
            "4:63: workload.seed: must be below 9223372036854775808, found 9223372036854775808",
        ),
        (
            {"workload": "workload: {batch: 1, input_tokens: 4, output_tokens: 2}"},
            "5:9: gates[0]: itl_median needs output_tokens of at least 3",
        ),
        ({"gates": ""}, "1:1: gates: is missing; add it, for example gates: [" + GATE + "]"),
        ({"gates": "gates: []"}, "5:8: gates: expected at least one entry"),
        ({"gates": "gates: {a: 1}"}, "5:8: gates: expected a list"),
        ({"gates": "gates: [itl_median]"}, "5:9: gates[0]: expected a mapping, found 'itl_median'"),
        (
            {"gates": "gates: [{metric: itl_medan, ignorable: 1%, must_catch: 2%}]"},
            f"5:18: gates[0].metric: expected one of {KNOWN} (did you mean 'itl_median'?), found 'itl_medan'",
        ),
        ({"gates": "gates: [{metric: mbu, ignorable: 1%, must_catch: 2%, floor: 0.5%}]"}, None),
        (
            {"workload": f"workload: {{{BATCH}, images: {{{SIZE}, count: 16, token: 3}}}}"},
            (
                "4:95: workload.images.count: a prompt of 16 tokens has no room for the token of each image and one of "
                "its own, found 16"
            ),
        ),
        ({"workload": f"workload: {{{BATCH}, images: {{{SIZE}, count: 16}}}}"}, None),
        (
            {"workload": f"workload: {{{BATCH}, images: {{{LARGE}, count: 64}}}}"},
            "4:66: workload.images: 17180 million pixels in a batch, at most 268 are held in memory",
        ),
        ({"workload": f"workload: {{{BATCH}, images: {{{LARGE}}}}}"}, None),
        (
            {"workload": f"workload: {{{BATCH}, images: {{{LARGE}}}}}", "m": "matrix: {batch: [1, 5]}"},
            "4:66: workload.images: 336 million pixels in a batch, at most 268 are held in memory",
        ),
        ({"workload": f"workload: {{{BATCH}, images: {{{SIZE}, count: 15, token: 3}}}}"}, None),
        (
            {
                "workload": f"workload: {{{BATCH}, images: {{{SIZE}, count: 15, token: 3}}}}",
                "m": "matrix: {input_tokens: [32, 8]}",
            },
            (
                "4:95: workload.images.count: a prompt of 8 tokens has no room for the token of each image and one of "
                "its own, found 15"
            ),
        ),
        (
            {"workload": f"workload: {{{BATCH}, images: {{{SIZE}}}}}", "gates": f"gates: [{GATE}, {MFU}]"},
            (
                "5:75: gates[1].metric: mfu is read from what a step must move, and what images add to that is not "
                "known, found 'mfu'"
            ),
        ),
        (
            {"gates": "gates: [{metric: mbu, ignorable: 1%, must_catch: 2%, floor: 1ms}]"},
            "5:61: gates[0].floor: expected an amount in a unit of mbu, like 1%, found '1ms'",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 1%}]"},
            "5:9: gates[0].must_catch: is missing; add it, for example must_catch: 0.5%",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 0.5, must_catch: 2%}]"},
            f"5:38: gates[0].ignorable: {PERCENT}, found 0.5",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: -0.5%, must_catch: 2%}]"},
            f"5:38: gates[0].ignorable: {PERCENT}, found '-0.5%'",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 0.5 percent, must_catch: 2%}]"},
            f"5:38: gates[0].ignorable: {PERCENT}, found '0.5 percent'",
        ),
        (
            {"gates": f"gates: [{{metric: itl_p95, ignorable: {'9' * 400}%, must_catch: 2%}}]"},
            f"5:38: gates[0].ignorable: {PERCENT}, found '{'9' * 27}...{'9' * 27}%'",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 2%, must_catch: 2%}]"},
            "5:54: gates[0].must_catch: must be above ignorable (2%), found '2%'",
        ),
        (
            {"gates": "gates: [{metric: output_throughput, ignorable: 2%, must_catch: 100%}]"},
            "5:64: gates[0].must_catch: must be below 100% for a metric where higher is better, found '100%'",
        ),
        ({"gates": "gates: [{metric: itl_p95, ignorable: 0%, must_catch: 150%}]"}, None),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 1%, must_catch: 2%, floor: 1MiB}]"},
            "5:65: gates[0].floor: expected an amount in a unit of itl_p95, like 1ms, found '1MiB'",
        ),
        (
            {"gates": "gates: [{metric: model_memory, ignorable: 1%, must_catch: 2%, floor: 1ms}]"},
            "5:70: gates[0].floor: expected an amount in a unit of model_memory, like 16MiB, found '1ms'",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 1%, must_catch: 2%, floor: 1 parsec}]"},
            "5:65: gates[0].floor: expected an amount in a unit of itl_p95, like 1ms, found '1 parsec'",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 1%, must_catch: 2%, floor: 1}]"},
            "5:65: gates[0].floor: expected an amount in a unit of itl_p95, like 1ms, found 1",
        ),
        (
            {"gates": "gates: [{metric: itl_p95, ignorable: 1%, must_catch: 2%, floor: '1'}]"},
            "5:65: gates[0].floor: expected an amount in a unit of itl_p95, like 1ms, found '1'",
        ),
        (
            {"gates": LINES["gates"].replace("]", ", {metric: itl_median, ignorable: 1%, must_catch: 3%}]")},
            "5:8: gates: itl_median is gated twice",
        ),
        (
            {"gates": "gates: [{metric: kernel_time_per_step, ignorable: 1%, must_catch: 3%}]", "m": "kernels: {}"},
            "5:9: gates[0]: kernel_time_per_step needs the role whose kernels it measures, like role: attention",
        ),
        (
            {"gates": "gates: [{metric: itl_median, role: gemm, ignorable: 1%, must_catch: 3%}]"},
            (
                "5:36: gates[0].role: itl_median is not a metric of a role, remove the role; "
                f"metrics of roles are {BY_ROLE}, found 'gemm'"
            ),
        ),
        (
            {"gates": "gates: [{metric: kernel_throughput, role: gemm, ignorable: 1%, must_catch: 100%}]"},
            "5:76: gates[0].must_catch: must be below 100% for a metric where higher is better, found '100%'",
        ),
        (
            {"gates": "gates: [{metric: host_slack_per_step, ignorable: 1%, must_catch: 3%}]"},
            f"5:9: gates[0]: host_slack_per_step is read from traced trials: add a kernels: block, like {TRACED}",
        ),
        (
            {
                "gates": "gates: [{metric: kernel_time_per_step, role: atention, ignorable: 1%, must_catch: 3%}]",
                "m": "kernels: {}",
            },
            f"5:46: gates[0].role: expected one of {ROLES}, unlisted (did you mean 'attention'?), found 'atention'",
        ),
        (
            {
                "gates": "gates: [{metric: kernel_time_per_step, role: mine, ignorable: 1%, must_catch: 3%}, "
                "{metric: kernel_time_per_step, role: gemm, ignorable: 1%, must_catch: 3%, floor: 1us}]",
                "m": "kernels: {roles: {mine: {match: my_kernel}}}",
            },
            None,
        ),
        (
            {"gates": f"gates: [{GEMM}, {GEMM}]", "m": "kernels: {}"},
            "5:8: gates: kernel_throughput[gemm] is gated twice",
        ),
        ({"m": "measure: {looks: 4}"}, "6:18: measure.looks: expected a list, found 4"),
        ({"m": "measure: {looks: []}"}, "6:18: measure.looks: expected at least one entry"),
        ({"m": "measure: {looks: [4, true]}"}, "6:22: measure.looks[1]: expected a whole number, found true"),
        ({"m": "measure: {looks: [2]}"}, "6:19: measure.looks[0]: must be at least 4, found 2"),
        ({"m": "measure: {looks: [6, 4]}"}, "6:18: measure.looks: looks must increase"),
        ({"m": "measure: {looks: [4, 6]}"}, None),
        (
            {"m": "measure: {looks: [4, 8]}"},
            f"6:18: measure.looks: {OTHER_LOOKS}{{block: [0, 0.8], pass: [0.4, 0.4]}}",
        ),
        ({"m": "measure: {looks: [4, 8], spend: {block: [0, 0.8], pass: [0.4, 0.4]}}"}, None),
        (
            {"m": "measure: {looks: [4, 8], spend: {block: [0.1, 0.2], pass: [0.4, 0.4]}}"},
            "6:10: measure: spend.block must be 0 at 4 pairs: no look blocks before 6",
        ),
        (
            {"m": "measure: {looks: [6, 8], spend: {block: [0.4, 0.4], pass: [0.4]}}"},
            (
                "6:59: measure.spend.pass: needs one weight a look: 2, not 1, "
                "like spend: {block: [0.4, 0.4], pass: [0.4, 0.4]}"
            ),
        ),
        (
            {"m": "measure: {looks: [6, 8], spend: {block: [0.5, 0.4], pass: [0.4, 0.4]}}"},
            "6:10: measure: spend.block sums to 0.9, at most 0.8 may be spent: the rest is for further looks",
        ),
        (
            {"m": "measure: {looks: [6], spend: {block: [-0.1], pass: [0.9]}}"},
            "6:39: measure.spend.block[0]: must be at least 0.0, found -0.1",
        ),
        (
            {"m": "measure: {looks: [6], spend: {block: [0.1], pass_: [0.1]}}"},
            "6:45: measure.spend.pass_: unknown key (did you mean 'pass'?); expected one of block, pass",
        ),
        ({"m": "measure: {iterations: 0}"}, "6:23: measure.iterations: must be at least 1, found 0"),
        ({"m": "measure: {iterations: 10001}"}, "6:23: measure.iterations: must be at most 10000, found 10001"),
        ({"m": "measure: {start_timeout: 90}"}, f"6:26: measure.start_timeout: {DURATION}, found 90"),
        ({"m": "measure: {start_timeout: 0s}"}, f"6:26: measure.start_timeout: {DURATION}, found '0s'"),
        ({"m": "measure: {start_timeout: 1MiB}"}, f"6:26: measure.start_timeout: {DURATION}, found '1MiB'"),
        (
            {"m": "clocks: {mode: lock}"},
            "6:9: clocks: mode: lock needs sm_mhz, the SM clock to hold, like {mode: lock, sm_mhz: 1500}",
        ),
        ({"m": "clocks: {sm_mhz: 1500}"}, "6:9: clocks: sm_mhz and memory_mhz belong to mode: lock"),
        ({"m": "clocks: {memory_mhz: 1500}"}, "6:9: clocks: sm_mhz and memory_mhz belong to mode: lock"),
        ({"m": "clocks: {mode: lock, sm_mhz: 0}"}, "6:30: clocks.sm_mhz: must be at least 1, found 0"),
        ({"m": "clocks: {mode: lok}"}, "6:16: clocks.mode: expected 'observe' or 'lock', found 'lok'"),
        (
            {"m": "kernels: {traced: {when: regressed}}\ncounters: [{role: gemm}]"},
            "7:11: counters: chooses among the launches that traced trials show: leave kernels.traced.when out",
        ),
        (
            {"m": "counters: [{role: gemm}]"},
            ("6:11: counters: chooses among the launches that traced trials show: add a kernels: block, like "
            "kernels: {traced: {iterations: 2}}"),
        ),
        (
            {"m": "kernels: {}\ncounters: [{role: gem}]"},
            f"7:19: counters[0].role: expected one of {ROLES}, unlisted (did you mean 'gemm'?), found 'gem'",
        ),
        (
            {"m": "kernels: {}\ncounters: [{role: gemm, metrics: {dram_bytes: same}}]"},
            ("7:34: counters[0].metrics: dram_bytes: only counters that repeat exactly can be required to be the same: "
            "registers, spills, bf16_operations, waves; give it a bound, or a gate with margins where it repeats "
            "tightly"),
        ),
        (
            {"gates": "gates: [{metric: dram_bytes, role: gemm, ignorable: 1%, must_catch: 3%}]", "m": "kernels: {}"},
            ("5:9: gates[0]: dram_bytes is read from counted trials: add a counters: block, like "
            "counters: [{role: gemm, profile: 4}]"),
        ),
        (
            {"gates": "gates: [{metric: occupancy, role: gemm, ignorable: 1%, must_catch: 3%}]"},
            ("5:18: gates[0].metric: occupancy repeats too badly for margins, or has no better direction: bound it in "
            "the counters: block; counters with margins are dram_bytes, dram_read, registers, instructions, "
            "bf16_operations, found 'occupancy'"),
        ),
        (
            {"gates": "gates: [{metric: itl_median, place: qkv, ignorable: 1%, must_catch: 3%}]"},
            ("5:37: gates[0].place: goes with a counter: dram_bytes, dram_read, registers, instructions, "
            "bf16_operations, found 'qkv'"),
        ),
        ({"m": "kernels: {}\ncounters: [{role: gemm, place: qkv, profile: 4}]\ncounted: {looks: [4]}"}, None),
        (
            {"m": "kernels: {}\ncounters: [{role: gemm}]\ncounted: {step: 1}"},
            "8:17: counted.step: leaves too few decode steps behind it: at most output_tokens - 4 = 0, found 1",
        ),
        (
            {
                "gates": "gates: [{metric: dram_read, role: attention, ignorable: 1%, must_catch: 3%}]",
                "m": "kernels: {}\ncounters: [{role: gemm}]",
            },
            "5:9: gates[0]: no entry of counters: counts attention",
        ),
        ({"m": "matrix: {batch: 3}"}, "6:17: matrix.batch: expected a list, found 3"),
        ({"m": "matrix: {batch: []}"}, "6:17: matrix.batch: expected at least one entry"),
        ({"m": "matrix: {batch: [1, true]}"}, "6:9: matrix: batch needs whole numbers from 1 to 10000000"),
        ({"m": "matrix: {batch: [20000000]}"}, "6:9: matrix: batch needs whole numbers from 1 to 10000000"),
        ({"m": "matrix: {dtype: [a, b, a]}"}, "6:9: matrix: dtype has the same value twice"),
        ({"m": "matrix: {flag: [0, false, '0', null]}"}, None),
        ({"m": "matrix: {model: [a]}"}, "6:10: matrix.model: is not allowed here: engine.model says it"),
        (
            {"m": f"matrix: {{a: {list(range(17))}, b: {list(range(17))}}}"},
            "6:9: matrix: makes 289 cells, a scenario has at most 256",
        ),
        ({"m": "matrix: {output_tokens: [8, 2]}"}, "5:9: gates[0]: itl_median needs output_tokens of at least 3"),
        (
            {
                "workload": "workload: {batch: 1, input_tokens: 4, output_tokens: 1}",
                "m": "matrix: {output_tokens: [8, 16]}",
            },
            None,
        ),
        ({"m": "name: y"}, "6:1: name: is given twice, first in line 2"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_with_its_place(lines: dict[str, str], problem: str | None) -> None:
    """A mistake is reported as file:line:column: field: text; what is none is read."""
    if problem is None:
        parse(text_with(**lines))
    else:
        assert refusal(text_with(**lines)).splitlines()[0] == f"s.yaml:{problem}"


def test_the_python_names_of_aliased_keys_are_unknown_keys() -> None:
    """The file says schema, never version, which is the model's own word."""
    assert "s.yaml:1:1: version: unknown key" in refusal(text_with(schema="version: 1"))


def test_defaults_are_those_of_the_design() -> None:
    """A scenario without measure, clocks and matrix has the design's plan."""
    scenario = parse(text_with()).scenario
    assert scenario.measure.schedule == Schedule((6, 8, 12), (0.0, 0.3, 0.3), (0.32, 0.16, 0.32))
    assert (scenario.measure.warmup_iterations, scenario.measure.iterations) == (2, 20)
    assert scenario.clocks.mode == "observe"
    assert scenario.matrix == {}


@pytest.mark.parametrize(
    ("looks", "weights"),
    [("[6, 8]", ((0.0, 0.3), (0.32, 0.16))), ("[4, 6]", ((0.0, 0.16), (0.16, 0.16)))],
)
def test_weights_of_fewer_looks_are_the_beginning_of_known_ones(looks: str, weights: tuple[Any, Any]) -> None:
    """Two looks spend what the first two of the defaults would, or of those of earlier versions."""
    measure = parse(text_with(m=f"measure: {{looks: {looks}}}")).scenario.measure
    assert (measure.schedule.block, measure.schedule.pass_) == weights


def test_a_scenario_cannot_be_changed_once_read() -> None:
    """Models are frozen."""
    scenario = parse(text_with()).scenario
    with pytest.raises(ValueError, match="frozen"):
        scenario.name = "y"  # type: ignore[misc]  # that it is refused is the point


@pytest.mark.parametrize(
    ("text", "value"), [("0.5%", 0.005), ("2%", 0.02), (" 10 % ", 0.1), ("0%", 0.0), ("0.15%", 0.0015), ("7%", 0.07)]
)
def test_percentages_are_read_exactly(text: str, value: float) -> None:
    """A percentage is the float nearest to what it says."""
    assert parse_percent(text) == value


@given(st.floats(min_value=0, max_value=LARGEST_PERCENTAGE, allow_nan=False))
def test_every_margin_reads_back_as_itself(value: float) -> None:
    """Writing a margin and reading it loses nothing, however small or odd it is."""
    assert parse_percent(format_percent(value)) == value


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1ms", (0.001, "s")),
        ("2.5 us", (2.5e-6, "s")),
        ("15min", (900.0, "s")),
        ("1MiB", (1048576.0, "B")),
        ("3tok/s", (3.0, "tok/s")),
    ],
)
def test_quantities_are_read_in_their_base_unit(text: str, value: tuple[float, str]) -> None:
    """A number with a unit becomes seconds, bytes, tokens or tokens a second."""
    assert parse_quantity(text) == pytest.approx(value)


@pytest.mark.parametrize("text", ["1", "ms", "-1ms", "1 ms ms", "1e3s", "\u0661ms", "9" * 400 + "s", 5, None])
def test_quantities_without_a_known_unit_are_refused(text: Any) -> None:
    """Numbers alone, unknown units and other numerals are no quantity."""
    with pytest.raises(ValueError, match="expected a number with its unit"):
        parse_quantity(text)


def test_a_floor_is_given_in_base_units() -> None:
    """floor: 1ms is 0.001 seconds; no floor is 0."""
    gates = "gates: [{metric: itl_p95, ignorable: 1%, must_catch: 2%, floor: 1ms}, {metric: itl_median, ignorable: 1%, must_catch: 2%}]"  # noqa: E501 (one line of YAML)
    floors = [gate.floor_value for gate in parse(text_with(gates=gates)).scenario.gates]
    assert floors == [0.001, 0.0]


@pytest.mark.parametrize(
    ("content", "problem"),
    [
        (None, "no such file"),
        (b"", "is empty or no mapping, expected 'key: value' lines"),
        (b"\xff\xfe\x00", "not UTF-8 text"),
        (b"# " + b"x" * MAX_BYTES, f"is larger than {MAX_BYTES} bytes, which no scenario is"),
    ],
)
def test_files_that_are_no_scenario_are_refused(tmp_path: Path, content: bytes | None, problem: str) -> None:
    """A missing, empty, binary or huge file is a scenario error that names it."""
    file = tmp_path / "s.yaml"
    if content is not None:
        file.write_bytes(content)
    with pytest.raises(ScenarioError) as caught:
        load(file)
    assert str(caught.value) == f"{file}:1:1: {problem}"


def test_a_folder_is_no_scenario(tmp_path: Path) -> None:
    """Naming a folder is a scenario error."""
    with pytest.raises(ScenarioError, match="is a folder, expected a scenario file"):
        load(tmp_path)


def test_a_device_without_an_end_is_refused() -> None:
    """Reading stops at the size limit, also where the file never ends."""
    with pytest.raises(ScenarioError, match="is larger than"):
        load(Path("/dev/zero"))


def write_with_model(folder: Path, model: str) -> Path:
    """A scenario file with this model."""
    file = folder / "s.yaml"
    file.write_text(text_with(engine=f"engine: {{model: {model}}}"))
    return file


def model_problem(file: Path) -> str:
    """What is wrong with the model of ``file``, without the file's name."""
    with pytest.raises(ScenarioError) as caught:
        load(file)
    return str(caught.value).removeprefix(str(file))


@pytest.mark.parametrize("key", ["config", "path"])
def test_a_models_folder_is_found_from_the_scenario(repository: Path, key: str) -> None:
    """Relative folders are taken from the scenario's own, whatever the current one is."""
    loaded = load(write_with_model(repository, f"{{{key}: models/m}}"))
    assert model_folder(loaded) == (repository / "models" / "m").resolve()


def test_a_model_on_the_hub_has_no_folder() -> None:
    """hub: names no folder, so nothing is looked up."""
    assert model_folder(parse(text_with())) is None


@pytest.mark.parametrize(
    ("model", "problem"),
    [
        ("{config: models/absent}", ":3:26: engine.model.config: has no config.json: models/absent"),
        ("{path: models/absent}", ":3:24: engine.model.path: has no config.json: models/absent"),
        ("{config: ../elsewhere}", ":3:26: engine.model.config: leads out of the repository"),
        ("{config: /etc}", ":3:26: engine.model.config: leads out of the repository"),
        (f"{{config: {'a' * 5000}}}", ":3:26: engine.model.config: cannot be read: File name too long"),
        ("{config: 5}", ":3:26: engine.model.config: expected text (quote it), found 5"),
    ],
)
def test_a_models_folder_must_lie_in_the_repository(repository: Path, model: str, problem: str) -> None:
    """A folder that is missing, outside or impossible is a problem of its field."""
    assert model_problem(write_with_model(repository, model)) == problem


def test_a_models_folder_whose_name_no_file_can_have(repository: Path) -> None:
    """A NUL is a problem of its field, in the words of the interpreter."""
    problem = model_problem(write_with_model(repository, '{config: "a\\0b"}'))
    assert problem.startswith(":3:26: engine.model.config: cannot be read: ")
    assert "embedded null" in problem


def test_links_out_of_the_repository_are_refused(repository: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    """Neither the folder nor its config.json may be a link that leads outside."""
    outside = tmp_path_factory.mktemp("outside")
    (outside / "config.json").write_text("{}")
    (repository / "folder").symlink_to(outside)
    (repository / "file").mkdir()
    (repository / "file" / "config.json").symlink_to(outside / "config.json")
    (repository / "circle").symlink_to("circle")
    field = ":3:26: engine.model.config: "
    assert model_problem(write_with_model(repository, "{config: folder}")) == f"{field}leads out of the repository"
    assert model_problem(write_with_model(repository, "{config: file}")) == (
        f"{field}has a config.json that leads out of the repository"
    )
    # Python 3.13 follows links in a circle to nowhere; before, they were an error.
    problem = model_problem(write_with_model(repository, "{config: circle}"))
    assert problem.startswith((f"{field}cannot be read: Symlink loop", f"{field}has no config.json: circle"))


@pytest.mark.parametrize("mark", [".git", "perfgate.toml", "pyproject.toml"])
def test_the_repository_is_the_nearest_folder_with_a_mark(tmp_path: Path, mark: str) -> None:
    """Any of three files or folders marks the root; without one a folder stands alone."""
    inner = tmp_path / "a" / "b"
    inner.mkdir(parents=True)
    (tmp_path / mark).touch()
    assert repository_root(inner) == tmp_path


def test_fields_are_found_by_line() -> None:
    """where() names the line of a field, or of what encloses it."""
    loaded = parse("# note\n" + text_with())
    assert loaded.where("gates", 0) == "s.yaml:6"
    assert loaded.where("engine", "args", "x") == "s.yaml:4"
    assert loaded.where("measure") == "s.yaml:2"


WORDS = st.text(st.characters(codec="utf-8"), max_size=20)
JSON_VALUES: st.SearchStrategy[Any] = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**63), 2**63) | st.floats(allow_nan=False, allow_infinity=False) | WORDS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(WORDS, inner, max_size=3),
    max_leaves=6,
)
ARGUMENT_NAMES = st.from_regex(r"x_[a-z0-9_]{0,10}", fullmatch=True)
MARGINS = st.tuples(st.floats(0, 0.5), st.floats(0, 0.49)).map(
    lambda m: (format_percent(m[0]), format_percent(m[0] + 0.001 + m[1]))
)
SECONDS = st.floats(min_value=1e-9, max_value=1e6).map(lambda s: f"{s:.12f}s").filter(lambda s: float(s[:-1]) > 0)


@st.composite
def scenarios(draw: st.DrawFn) -> Scenario:
    """Any valid scenario with a model on the hub."""
    of_any_driver = [name for name in metric_names() if not getattr(metric_family(name), "driver", "")]
    metrics = draw(st.lists(st.sampled_from(of_any_driver), min_size=1, max_size=4, unique=True))
    gates = []
    for name in metrics:
        ignorable, must_catch = draw(MARGINS)
        more: dict[str, Any] = (
            {"floor": f"{draw(st.integers(0, 99))}{metric_family(name).unit}"} if draw(st.booleans()) else {}
        )
        if name in PART_METRICS:
            more["role"] = draw(st.sampled_from(["gemm", "unlisted"]))
        gates.append({"metric": name, "ignorable": ignorable, "must_catch": must_catch, **more})
    kinds = {metric_family(name).kind for name in metrics}
    measure = {
        "iterations": draw(st.integers(1, 10_000)),
        "start_timeout": draw(SECONDS),
        "looks": draw(st.sampled_from([[4], [4, 6], [4, 6, 8], [4, 6, 8, 12]])),
    }
    if draw(st.booleans()):
        weight = draw(st.floats(0, 0.2))
        measure |= {"looks": [6, 9], "spend": {"block": [weight, 0], "pass": [0.5, weight]}}
    return Scenario.model_validate(
        {
            "schema": 1,
            "name": draw(st.from_regex(r"[a-z0-9][a-z0-9._-]{0,62}", fullmatch=True)),
            "description": draw(st.text(st.characters(codec="utf-8"))),
            "engine": {
                "model": {"hub": draw(WORDS), "revision": "0123abc"},
                "args": draw(st.dictionaries(ARGUMENT_NAMES, JSON_VALUES, max_size=3)),
                "env": draw(st.dictionaries(st.from_regex(r"[A-Z_]+", fullmatch=True), st.just("no"), max_size=2)),
            },
            "workload": {
                "batch": draw(st.integers(1, 10_000_000)),
                "input_tokens": 7,
                "output_tokens": draw(st.integers(3, 10_000_000)),
                "seed": draw(st.integers(0, 2**63 - 1)),
            },
            "measure": measure,
            "gates": gates,
            **({"kernels": {}} if kinds - {"timed"} else {}),
            **({"counters": [{"profile": draw(st.integers(1, 9))}]} if "counted" in kinds else {}),
            **({"calls": {"ignorable": draw(SECONDS)}} if "called" in kinds else {}),
            "matrix": draw(
                st.dictionaries(
                    ARGUMENT_NAMES, st.lists(JSON_VALUES, min_size=1, max_size=3, unique_by=json.dumps), max_size=2
                )
            ),
        },
        by_name=False,
        by_alias=True,
    )


@pytest.mark.needs("calls", "kernels")
@given(scenarios())
def test_a_dumped_scenario_loads_to_the_same(scenario: Scenario) -> None:
    """Whatever a valid scenario says comes back from its dump, names of words like no and numbers as text included."""
    assert parse(dump(scenario)).scenario == scenario


def test_a_dump_spells_out_the_defaults() -> None:
    """The dump shows what the file leaves out, in the order of the format, with units and signs."""
    lines = dump(parse(text_with()).scenario).splitlines()
    assert lines[:2] == ["schema: 1", "name: x"]
    assert "  start_timeout: 900s" in lines
    assert "  looks: [6, 8, 12]" in lines
    assert "clocks: {mode: observe}" in lines
    assert "- {metric: itl_median, ignorable: 1%, must_catch: 2%}" in lines


def as_json(text: str) -> Any:
    """A YAML text as plain values."""
    return YAML(typ="safe", pure=True).load(text)


def test_the_schema_is_draft_07() -> None:
    """Editors' YAML servers read draft-07, and that is what the schema is."""
    schema = json_schema()
    assert schema["$schema"] == "http://json-schema.org/draft-07/schema#"
    jsonschema.Draft7Validator.check_schema(schema)


@pytest.mark.needs("calls", "kernels")
@pytest.mark.parametrize(
    "lines",
    [
        {"schema": "schema: 2"},
        {"schema": ""},
        {"name": "name: A B"},
        {"engine": "engine: {model: 5}"},
        {"workload": 'workload: {batch: "3", input_tokens: 4, output_tokens: 4}'},
        {"gates": "gates: []"},
        {"gates": "gates: [{metric: itl_median, ignorable: 0.5, must_catch: 2%}]"},
        {"gates": "gates: [{metric: itl_medan, ignorable: 1%, must_catch: 2%}]"},
        {"m": "kernels: {traced: {iterations: 0}}"},
        {"m": "kernels: {per_decode_step: {graph_coverage: 95%}}"},
        {"m": "kernels: {}\ncounters: [{profile: 0}]"},
        {"m": "unknown: 1"},
        {"m": "measure: {start_timeout: 90}"},
        {"m": "clocks: {mode: lok}"},
    ],
)
def test_the_schema_refuses_what_the_reader_refuses(lines: dict[str, str]) -> None:
    """An editor underlines the mistakes that perfgate check would report."""
    text = text_with(**lines)
    refusal(text)
    assert not jsonschema.Draft7Validator(json_schema()).is_valid(as_json(text))
