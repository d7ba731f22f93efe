"""Which cells a run measures, what makes two cells the same, and in which order sides and prompts come."""

from __future__ import annotations

import math
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from perfgate.errors import UsageError
from perfgate.machine.atomic_files import sha256_hex
from perfgate.scenario.declaration import Clocks, LoadedScenario, loads
from perfgate.scenario.plan import (
    Cell,
    Orders,
    Plan,
    _cell_id,
    head_first,
    make_plan,
    orders_bound,
    prompts,
    resolve_cells,
    round_order,
)
from perfgate.scenario.workload import Images, Workload

LINES = {
    "name": "name: x",
    "description": "description: d",
    "engine": "engine: {model: {config: models/m}, args: {max_model_len: 64}, env: {A: '1'}}",
    "workload": "workload: {batch: 2, input_tokens: 4, output_tokens: 8}",
    "measure": "measure: {warmup_iterations: 1, iterations: 3}",
    "clocks": "clocks: {mode: observe}",
    "gates": "gates: [{metric: itl_median, ignorable: 1%, must_catch: 2%}]",
}


@pytest.fixture
def repository(tmp_path: Path) -> Path:
    """A repository with one model folder."""
    (tmp_path / ".git").mkdir()
    (tmp_path / "models" / "m").mkdir(parents=True)
    (tmp_path / "models" / "m" / "config.json").write_text('{"vocab_size": 100}')
    return tmp_path


def scenario(folder: Path, **lines: str) -> LoadedScenario:
    """A scenario with some lines replaced or added."""
    return loads("\n".join(["schema: 1", *(LINES | lines).values()]), folder / "s.yaml")


def only_cell(folder: Path, **lines: str) -> Cell:
    """The cell of a scenario without a matrix."""
    (cell,) = resolve_cells(scenario(folder, **lines))
    return cell


def test_a_scenario_without_a_matrix_is_one_cell(repository: Path) -> None:
    """The cell bears the scenario's name and all that it says."""
    cell = only_cell(repository)
    assert (cell.name, cell.scenario, cell.source) == ("x", "x", str(repository / "s.yaml"))
    assert cell.model_folder == str((repository / "models" / "m").resolve())
    assert cell.batch.batch == 2
    assert [plan.where for plan in cell.gates] == [f"{repository / 's.yaml'}:8"]
    assert cell.slug == f"x-{cell.cell_id[:8]}"


def test_a_matrix_makes_a_cell_of_each_combination_the_last_key_fastest(repository: Path) -> None:
    """Workload keys and engine arguments vary alike; the order is the one written."""
    cells = resolve_cells(
        scenario(repository, matrix="matrix: {batch: [8, 1], output_tokens: [16, 4], kv_cache_dtype: [auto, fp8]}")
    )
    points = [(c.batch.batch, c.batch.output_tokens, c.engine.args["kv_cache_dtype"]) for c in cells]
    assert points == [(b, o, k) for b in (8, 1) for o in (16, 4) for k in ("auto", "fp8")]
    assert cells[0].name == 'x[batch=8,output_tokens=16,kv_cache_dtype="auto"]'
    assert all(cell.batch.input_tokens == 4 and cell.engine.args["max_model_len"] == 64 for cell in cells)
    assert len({cell.cell_id for cell in cells}) == len({cell.slug for cell in cells}) == 8


@pytest.mark.parametrize(
    ("matrix", "names"),
    [
        ("{input_tokens: [4, 8]}", ["x[input_tokens=4]", "x[input_tokens=8]"]),
        ("{enforce_eager: [true, false]}", ["x[enforce_eager=true]", "x[enforce_eager=false]"]),
        ("{max_model_len: [32, null]}", ["x[max_model_len=32]", "x[max_model_len=null]"]),
        ("{compilation_config: [{mode: 0}, {mode: 3}]}",
         ['x[compilation_config={"mode": 0}]', 'x[compilation_config={"mode": 3}]']),
    ],
)  # fmt: skip
def test_cells_are_named_by_their_matrix_values(repository: Path, matrix: str, names: list[str]) -> None:
    """Values are written as JSON, so that text and numbers differ."""
    cells = resolve_cells(scenario(repository, matrix=f"matrix: {matrix}"))
    assert [cell.name for cell in cells] == names
    assert all(set(cell.slug) <= set("abcdefghijklmnopqrstuvwxyz0123456789._-") for cell in cells)


@pytest.mark.parametrize(
    "lines",
    [
        {"engine": LINES["engine"].replace("64", "65")},
        {"engine": LINES["engine"].replace("'1'", "'2'")},
        {"engine": "engine: {model: {hub: a/b, revision: 0123abc}, args: {max_model_len: 64}, env: {A: '1'}}"},
        {"engine": "engine: {model: {path: models/m}, args: {max_model_len: 64}, env: {A: '1'}}"},
        {"workload": LINES["workload"].replace("batch: 2", "batch: 3")},
        {"workload": LINES["workload"].replace("input_tokens: 4", "input_tokens: 5")},
        {"workload": LINES["workload"].replace("output_tokens: 8", "output_tokens: 9")},
        {"workload": LINES["workload"].replace("}", ", seed: 1}")},
        {"measure": "measure: {warmup_iterations: 2, iterations: 3}"},
        {"measure": "measure: {warmup_iterations: 1, iterations: 4}"},
    ],
)
def test_what_changes_the_measurement_changes_the_cell(repository: Path, lines: dict[str, str]) -> None:
    """Model, engine arguments, environment, workload and iterations are part of the identity."""
    assert only_cell(repository, **lines).cell_id != only_cell(repository).cell_id


def test_the_models_configuration_is_part_of_the_cell(repository: Path) -> None:
    """The same scenario over a changed config.json is another cell."""
    before = only_cell(repository).cell_id
    (repository / "models" / "m" / "config.json").write_text('{"vocab_size": 101}')
    assert only_cell(repository).cell_id != before


def drafted(source: str) -> dict[str, str]:
    """The lines of a scenario whose arguments name a folder of the model's."""
    args = 'args: {speculative_config: {model: "{model}/draft"}}'
    return {"engine": f"engine: {{model: {{{source}: models/m}}, {args}}}"}


@pytest.mark.parametrize("source", ["config", "path"])
@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("draft/config.json", "[]"),
        ("draft/part/config.json", "[]"),
        ("draft/model.safetensors", "other"),
        ("draft/more.safetensors", ""),
        ("drafts/config.json", None),
        ("other/config.json", None),
    ],
)
def test_a_draft_model_in_the_models_folder_is_part_of_the_cell(
    repository: Path, source: str, name: str, content: str | None
) -> None:
    """The names, sizes and configurations of its files, however deep; folders that no argument names are not."""
    draft = repository / "models" / "m" / "draft"
    (draft / "part").mkdir(parents=True)
    for one, text in {"config.json": "{}", "part/config.json": "{}", "model.safetensors": "1"}.items():
        (draft / one).write_text(text)
    before, plain = (only_cell(repository, **lines).cell_id for lines in (drafted(source), {}))
    (repository / "models" / "m" / name).parent.mkdir(exist_ok=True)
    (repository / "models" / "m" / name).write_text(content or "{}")

    assert (only_cell(repository, **drafted(source)).cell_id != before) is (content is not None)
    assert only_cell(repository).cell_id == plain


def test_a_draft_model_of_another_name_is_another_cell(repository: Path) -> None:
    """Also where it is one value of the matrix."""
    matrix = 'matrix: {speculative_config: [null, {model: "{model}/draft"}]}'
    before = [cell.cell_id for cell in resolve_cells(scenario(repository, matrix=matrix))]
    (repository / "models" / "m" / "draft").mkdir()
    (repository / "models" / "m" / "draft" / "config.json").write_text("{}")
    after = [cell.cell_id for cell in resolve_cells(scenario(repository, matrix=matrix))]
    assert not {*before} & {*after}


@pytest.mark.parametrize(("folder", "named"), [("draft", "./draft"), ("draft", "/draft"), ('a"b', 'a\\"b'),
                                               ("draft", 'draft\\", x: \\"a/../../..')])  # fmt: skip
def test_however_an_argument_writes_the_name_of_a_folder(repository: Path, folder: str, named: str) -> None:
    """Its files are part of the cell."""
    (repository / "models" / "m" / folder).mkdir()
    matrix = f'matrix: {{speculative_config: [{{model: "{{model}}/{named}"}}]}}'
    (before,) = resolve_cells(scenario(repository, matrix=matrix))
    (repository / "models" / "m" / folder / "config.json").write_text("{}")
    (after,) = resolve_cells(scenario(repository, matrix=matrix))
    assert before.cell_id != after.cell_id


@pytest.mark.parametrize("source", ["config", "path"])
def test_a_model_whose_folders_no_argument_names_is_the_cell_that_it_was(repository: Path, source: str) -> None:
    """As in 0.2.0: a folder of it, like 1_Pooling of sentence-transformers, leaves it the baselines that it has."""
    (repository / "models" / "m" / "1_Pooling").mkdir()
    (repository / "models" / "m" / "1_Pooling" / "config.json").write_text("{}")
    listing = {"config": "", "path": '[["config.json", 19]]'}[source]
    cell = only_cell(repository, engine=f"engine: {{model: {{{source}: models/m}}}}")
    assert cell.model_digest == sha256_hex(f'{{"vocab_size": 100}}{listing}'.encode())


@pytest.mark.parametrize("source", ["config", "path"])
@pytest.mark.parametrize("name", ["hf_quant_config.json", "quantize_config.json", "quant_config.json"])
def test_how_a_model_is_quantised_is_part_of_the_cell(repository: Path, source: str, name: str) -> None:
    """ModelOpt, GPTQ and AWQ wrote it into a file beside config.json, which vLLM reads; two may have one size."""
    engine = f"engine: {{model: {{{source}: models/m}}}}"
    digests = {only_cell(repository, engine=engine).model_digest}
    for bits in "48":
        (repository / "models" / "m" / name).write_text(f'{{"quantization": {{"bits": {bits}}}}}')
        digests.add(only_cell(repository, engine=engine).model_digest)
    assert len(digests) == 3


def test_a_prompt_begins_with_a_token_for_each_image() -> None:
    """Which stands nowhere else in it; a prompt is no longer for that."""
    images = Images(count=2, width=8, height=8, token=20)
    plain = Workload(batch=9, input_tokens=30, output_tokens=4)
    drawn = prompts(plain.model_copy(update={"images": images}), 40, 0)

    assert any(20 in prompt[:28] for prompt in prompts(plain, 40, 0))
    assert {tuple(prompt[:2]) for prompt in drawn} == {(20, 20)}
    assert {(len(prompt), prompt.count(20)) for prompt in drawn} == {(30, 2)}


@pytest.mark.parametrize(
    ("images", "file", "counts"),
    [
        ("", "vocab.txt", False),
        *((", images: {width: 8, height: 8}", name, True) for name in ("vocab.txt", "a.json", "a.model", "a.jinja")),
        (", images: {width: 8, height: 8}", "README.md", False),
        (", images: {width: 8, height: 8}", "large.json", False),
    ],
)
def test_the_processor_counts_where_the_model_sees(
    repository: Path, monkeypatch: pytest.MonkeyPatch, images: str, file: str, *, counts: bool
) -> None:
    """The content of what it reads is part of the cell only where requests show images, and only of small files."""
    monkeypatch.setattr("perfgate.scenario.model_digest.MOST_READ", 100)
    line = f"workload: {{batch: 8, input_tokens: 16, output_tokens: 16{images}}}"
    size = 101 if file == "large.json" else 1
    ids = set()
    for letter in "ab":
        (repository / "models" / "m" / file).write_text(letter * size)
        ids.add(only_cell(repository, workload=line).cell_id)
    assert (len(ids) == 2) is counts


def test_the_clock_mode_is_part_of_the_cell(repository: Path) -> None:
    """Locked and observed measurements will be different cells, which a scenario cannot say yet."""
    cell = only_cell(repository)
    locked = Clocks.model_construct(mode="lock", sm_mhz=1500)
    ids = [_cell_id(cell.model_digest, cell.engine, cell.workload, cell.measure, c) for c in (cell.clocks, locked)]
    assert ids[0] == cell.cell_id
    assert ids[1] != cell.cell_id


def test_real_weights_are_told_apart_by_name_and_size(repository: Path) -> None:
    """A weight file added or grown makes another cell where path: is used, and none where weights are dummies."""
    real = {"engine": "engine: {model: {path: models/m}}"}
    before = only_cell(repository, **real).cell_id, only_cell(repository).cell_id
    (repository / "models" / "m" / "w.safetensors").write_bytes(b"1234")
    after = only_cell(repository, **real).cell_id, only_cell(repository).cell_id
    (repository / "models" / "m" / "w.safetensors").write_bytes(b"12345")
    assert len({before[0], after[0], only_cell(repository, **real).cell_id}) == 3
    assert before[1] == after[1]


@pytest.mark.parametrize(
    "lines",
    [
        {"gates": "gates: [{metric: itl_median, ignorable: 3%, must_catch: 4%}]"},
        {"gates": "gates: [{metric: tpot_mean, ignorable: 1%, must_catch: 2%, floor: 1ms}]"},
        {"description": "description: other"},
        {"name": "name: y"},
        {"measure": "measure: {warmup_iterations: 1, iterations: 3, looks: [4, 6]}"},
        {"measure": "measure: {warmup_iterations: 1, iterations: 3, start_timeout: 5s, iteration_timeout: 5s}"},
        {"measure": "measure: {warmup_iterations: 1, iterations: 3, max_dropped_pairs: 0}"},
        {"engine": "engine: {env: {A: '1'}, args: {max_model_len: 64}, driver: vllm, model: {config: ./models/m}}"},
    ],
)
def test_what_only_judges_or_describes_leaves_the_cell_the_same(repository: Path, lines: dict[str, str]) -> None:
    """Gates, margins, looks, timeouts, names and the order of keys are no part of the identity."""
    assert only_cell(repository, **lines).cell_id == only_cell(repository).cell_id


def test_a_matrix_of_one_value_is_the_cell_that_says_it_directly(repository: Path) -> None:
    """A cell is what it resolves to, however the scenario spells it."""
    assert only_cell(repository, matrix="matrix: {batch: [2], max_model_len: [64]}").cell_id == (
        only_cell(repository).cell_id
    )


def test_a_plan_holds_the_cells_of_all_scenarios_in_order(repository: Path) -> None:
    """Scenarios follow each other, with the declared error rates, and the plan survives JSON."""
    first = scenario(repository, matrix="matrix: {batch: [1, 2]}")
    second = scenario(repository, name="name: y", workload="workload: {batch: 9, input_tokens: 4, output_tokens: 4}")
    plan = make_plan((first, second), seed=7)
    assert [cell.batch.batch for cell in plan.cells] == [1, 2, 9]
    assert (plan.seed, plan.orders, plan.alpha, plan.beta) == (7, "coins", 0.01, 0.05)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


def test_the_same_cell_twice_in_a_run_is_a_usage_error(repository: Path) -> None:
    """Two scenarios that measure the same are refused by name."""
    with pytest.raises(UsageError, match="y and x are the same cell"):
        make_plan((scenario(repository), scenario(repository, name="name: y")), seed=0)


def test_a_model_that_vanished_is_a_usage_error(repository: Path) -> None:
    """The model is read when the plan is made; its loss in between is said with its place."""
    loaded = scenario(repository)
    (repository / "models" / "m" / "config.json").unlink()
    with pytest.raises(UsageError, match=r"s\.yaml:4: the model cannot be read"):
        resolve_cells(loaded)


SEEDS = st.integers(0, 2**63)


@given(SEEDS, st.text(max_size=8), st.integers(0, 10_000))
def test_each_block_of_two_pairs_has_one_of_each_order(seed: int, cell_id: str, block: int) -> None:
    """In an older run the head is first in exactly one pair of every two, whatever the seed."""
    assert head_first(seed, cell_id, 2 * block, "blocks") != head_first(seed, cell_id, 2 * block + 1, "blocks")


@given(SEEDS, st.text(max_size=8))
def test_the_first_four_pairs_are_not_all_alike(seed: int, cell_id: str) -> None:
    """Each side is first in one of them at least, whatever the seed."""
    assert 0 < sum(head_first(seed, cell_id, pair, "coins") for pair in range(4)) < 4


@pytest.mark.parametrize(("orders", "expected"), [("blocks", "01011001"), ("coins", "11010010")])
def test_the_order_is_fixed_by_the_seed_for_good(orders: Orders, expected: str) -> None:
    """The draw is the same in every version of Python and perfgate: these are its first eight pairs."""
    assert "".join(str(int(head_first(0, "cell", pair, orders))) for pair in range(8)) == expected


def test_each_pair_has_a_coin_of_its_own() -> None:
    """All orders of four pairs are equally frequent, within five standard deviations; only the first four lack two.

    The orders that can be drawn are equally probable, so none is more so than by fair coins times the bound.
    """
    drawn = [[head_first(seed, "cell", pair, "coins") for pair in range(8)] for seed in range(4000)]
    first, later = (Counter(tuple(row[pairs]) for row in drawn) for pairs in (slice(4), slice(4, 8)))

    assert (len(first), len(later)) == (14, 16)
    for seen in (first, later):
        mean = 4000 / len(seen)
        assert all(abs(count - mean) < 5 * mean**0.5 for count in seen.values())
    assert len(later) / len(first) == orders_bound(1)


@given(SEEDS, st.text(max_size=8), st.lists(st.sampled_from("abcdefgh"), min_size=2, max_size=8, unique=True))
def test_a_round_has_every_build_once(seed: int, cell_id: str, heads: list[str]) -> None:
    """In whatever order heads are named; in the first four each is before the base at least once, and after it."""
    drawn = [round_order(seed, cell_id, number, heads) for number in range(6)]

    assert all(sorted(order) == sorted(["base", *heads]) for order in drawn)
    assert drawn == [round_order(seed, cell_id, number, heads[::-1]) for number in range(6)]
    assert all(0 < sum(order.index(head) < order.index("base") for order in drawn[:4]) < 4 for head in heads)


@pytest.mark.parametrize("heads", [2, pytest.param(4, marks=pytest.mark.slow)])
def test_the_orders_of_one_of_several_heads(heads: int) -> None:
    """Each of sixteen, but for two, is drawn about as often; none more often than by fair coins times the bound.

    Later rounds have every order of the builds equally often. All within five standard deviations.
    """
    names, runs = "abcd"[:heads], 1500
    drawn = [[round_order(seed, "cell", number, names) for number in range(5)] for seed in range(runs)]
    first = Counter(tuple(order.index("a") < order.index("base") for order in row[:4]) for row in drawn)
    later = Counter(row[4] for row in drawn)

    most = runs / 16 * orders_bound(heads)
    assert len(first) == 14
    assert max(first.values()) < most + 5 * most**0.5
    mean = runs / math.factorial(heads + 1)
    assert len(later) == math.factorial(heads + 1)
    assert all(abs(count - mean) < 5 * mean**0.5 for count in later.values())


def test_the_bound_counts_the_rounds_that_are_drawn_again() -> None:
    """By inclusion and exclusion for two heads; with more heads more is drawn again."""
    assert orders_bound(2) == pytest.approx(1 / (1 - 1 / 4 + 2 / 81 + 2 / 1296))
    assert 1 < orders_bound(1) < orders_bound(2) < orders_bound(4) < orders_bound(8) < 2.5


@given(st.integers(1, 6), st.integers(1, 20), st.integers(1, 300), st.integers(0, 5))
def test_prompts_have_the_declared_shape_and_lie_in_the_vocabulary(
    batch: int, length: int, vocabulary: int, iteration: int
) -> None:
    """Rows are requests, columns token ids; special tokens are left out where the vocabulary is large enough."""
    workload = Workload(batch=batch, input_tokens=length, output_tokens=4)
    drawn = prompts(workload, vocabulary, iteration)
    assert [len(row) for row in drawn] == [length] * batch
    lowest = 16 if vocabulary > 32 else 0
    assert all(lowest <= token < vocabulary for row in drawn for token in row)


def test_prompts_are_reproducible_and_differ_between_iterations_and_seeds() -> None:
    """The same iteration always has the same prompts, another iteration or seed has others."""
    drawn = [prompts(workload, 1000, n) for workload in (work(seed=0), work(seed=1)) for n in (0, 1)]
    assert prompts(work(seed=0), 1000, 0) == drawn[0]
    assert len({str(rows) for rows in drawn}) == 4
    assert drawn[0][0] != drawn[0][1]
    assert drawn[0][0][:4] == FIRST_TOKENS


def work(**fields: Any) -> Workload:
    """Two requests of 32 tokens."""
    return Workload(**{"batch": 2, "input_tokens": 32, "output_tokens": 4, **fields})


FIRST_TOKENS = [944, 363, 84, 948]
