"""The ``kernels:`` block: what it may say, that it comes back unchanged, and that it is written without harm."""

from __future__ import annotations

import json
from pathlib import Path

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from ruamel.yaml import YAML

from perfgate.errors import ScenarioError
from perfgate.scenario.declaration import LoadedScenario, dump, json_schema, loads, with_kernels
from perfgate.scenario.expected_kernels import Bound, Expectation
from perfgate.scenario.kernel_names import RoleRule
from perfgate.scenario.plan import Cell, Plan, make_plan, resolve_cells
from perfgate.scenario.yaml_document import read_document
from perfgate.scenario.yaml_writing import replace_block
from perfgate.stats.sequential import DEFAULT_SCHEDULE, Schedule

pytestmark = pytest.mark.needs("kernels")

SCENARIO = """schema: 1
name: x
engine: {model: {hub: a/b, revision: 0123abc}}
workload: {batch: 1, input_tokens: 4, output_tokens: 4}
gates: [{metric: itl_median, ignorable: 1%, must_catch: 2%}]
"""
WHOLE = """kernels:
  traced: {iterations: 2, looks: [6, 8, 12]}
  roles: {mine: {match: "flash::|fmha"}, attention: {match: "^x"}}
  per_decode_step:
    patterns:
      - {launches: 438, roles: {gemm: 129, mine: 0, unlisted: 1}, outside_graphs: 20, copies: {h2d: 2, d2h: 2}}
      - {launches: 439, share: "<= 10%"}
    names: {attention: [FlashAttnFwdSm90]}
    graph_coverage: ">= 95%"
  unlisted: {time_share: "<= 2%"}
"""


def parse(block: str) -> LoadedScenario:
    """A scenario with this block, which begins in line 6."""
    return loads(SCENARIO + block, Path("s.yaml"))


def block_of(text: str) -> Expectation:
    """What a block says."""
    found = parse(text).scenario.kernels
    assert found is not None
    return found


def test_a_whole_block_is_read() -> None:
    """Every field arrives, and comes back from the dump and through JSON."""
    found = block_of(WHOLE)
    assert (found.traced.iterations, found.traced.schedule) == (2, DEFAULT_SCHEDULE)
    assert found.rules == (RoleRule("mine", "flash::|fmha"), RoleRule("attention", "^x"))
    first, second = found.per_decode_step.patterns
    assert (first.launches, first.outside_graphs, first.copies) == (438, 20, {"h2d": 2, "d2h": 2})
    assert (second.roles, second.copies, second.share) == (None, None, Bound("<=", 0.1))
    assert found.per_decode_step.graph_coverage == Bound(">=", 0.95)
    assert parse(WHOLE).scenario == loads(dump(parse(WHOLE).scenario), Path("s.yaml")).scenario
    jsonschema.Draft7Validator(json_schema()).validate(YAML(typ="safe", pure=True).load(SCENARIO + WHOLE))


def test_an_empty_block_traces_and_expects_nothing() -> None:
    """``kernels: {}`` asks for traced trials; without the block there are none."""
    found = block_of("kernels: {}")
    assert (found.traced.iterations, found.per_decode_step.patterns, found.unlisted) == (2, (), None)
    assert parse("").scenario.kernels is None


def test_traced_looks_have_weights_of_their_own() -> None:
    """Other looks bring their own weights, by the rules of measure.looks."""
    found = block_of("kernels: {traced: {looks: [6, 9], spend: {block: [0.3, 0.3], pass: [0.4, 0.4]}}}")
    assert found.traced.schedule == Schedule((6, 9), (0.3, 0.3), (0.4, 0.4))


@pytest.mark.parametrize(
    ("block", "problem"),
    [
        ("3", "6:10: kernels: expected a mapping, found 3"),
        (
            "{trace: 1}",
            ("6:11: kernels.trace: unknown key (did you mean 'traced'?); "
            "expected one of traced, roles, per_decode_step, unlisted"),
        ),
        ("{traced: {iterations: true}}", "6:32: kernels.traced.iterations: expected a whole number, found true"),
        (
            "{traced: {looks: [4, 8]}}",
            (
                "6:27: kernels.traced.looks: looks other than [6, 8, 12], [4, 6, 8, 12] or a beginning of them need "
                "their own spend, like spend: {block: [0, 0.8], pass: [0.4, 0.4]}"
            ),
        ),
        (
            "{traced: {when: regressed}, unlisted: {time_share: <= 2 %}}",
            "6:10: kernels: what a step may run is checked in every run: leave traced.when out",
        ),
        ("{roles: [{role: a, match: b}]}", "6:18: kernels.roles: expected a mapping"),
        ("{roles: {a: {mtch: b, match: c}}}", ("6:23: kernels.roles.a.mtch: unknown key (did you mean 'match'?); "
         "expected one of match")),
        ("{roles: {A: {match: b}}}", "6:19: kernels.roles.A: must match ^[a-z][a-z0-9-]{0,30}$"),
        (
            "{roles: {a: {match: '('}}}",
            ("6:30: kernels.roles.a.match: invalid regular expression: missing ), unterminated subpattern at "
            "position 0, found '('"),
        ),
        ("{roles: {unlisted: {match: b}}}", "6:18: kernels.roles: unlisted is the name of what no role matches"),
        ("{per_decode_step: {patterns: [{}]}}", "6:40: kernels.per_decode_step.patterns[0].launches: is missing"),
        (
            "{per_decode_step: {patterns: [{launches: 4, roles: {gem: 1}}]}}",
            ("6:28: kernels.per_decode_step: patterns[0].roles holds 'gem', no role of this scenario "
            "(did you mean 'gemm'?)"),
        ),
        (
            "{per_decode_step: {names: {atention: [x]}}}",
            ("6:28: kernels.per_decode_step: names holds 'atention', no role of this scenario "
            "(did you mean 'attention'?)"),
        ),
        (
            "{per_decode_step: {patterns: [{launches: 4, roles: {gemm: 5}}]}}",
            "6:40: kernels.per_decode_step.patterns[0]: roles add up to 5 launches, more than the 4 of the step",
        ),
        (
            "{per_decode_step: {patterns: [{launches: 4, outside_graphs: 5}]}}",
            "6:40: kernels.per_decode_step.patterns[0]: outside_graphs is more than the 4 launches of the step",
        ),
        (
            "{per_decode_step: {patterns: [{launches: 4, copies: {h2h: 1}}]}}",
            ("6:63: kernels.per_decode_step.patterns[0].copies.h2h: expected one of h2d, h2d-pageable, d2h, "
            "d2h-pageable, d2d, peer, other (did you mean 'h2d'?)"),
        ),
        (
            "{per_decode_step: {graph_coverage: 95%}}",
            ('6:45: kernels.per_decode_step.graph_coverage: expected a bound of a share, quoted, like "<= 10%" or '
            "\">= 95%\", found '95%'"),
        ),
        ("{unlisted: {}}", "6:21: kernels.unlisted.time_share: is missing"),
    ],
)  # fmt: skip
def test_each_mistake_is_one_line_with_its_place(block: str, problem: str) -> None:
    """A mistake in the block is reported like any other."""
    with pytest.raises(ScenarioError) as caught:
        parse(f"kernels: {block}\n")
    assert str(caught.value).splitlines()[0] == f"s.yaml:{problem}"


@pytest.mark.parametrize(("text", "share", "holds"), [("<= 10%", 0.1, True), ("<= 10%", 0.11, False),
                                                      (">=95%", 0.95, True), (" >= 95 % ", 0.94, False)])  # fmt: skip
def test_bounds(text: str, share: float, holds: bool) -> None:  # noqa: FBT001 (a column of the table)
    """A bound includes its limit; blanks do not matter."""
    block = Expectation.model_validate({"unlisted": {"time_share": text}})
    assert block.unlisted is not None
    assert block.unlisted.time_share.holds(share) is holds


def test_a_cell_carries_the_block_and_is_no_other_cell_for_it() -> None:
    """Records keep the block, own roles in their order; the envelope does not decide what may be compared."""
    (cell,) = resolve_cells(parse(WHOLE))
    (without,) = resolve_cells(parse(""))
    assert cell.kernels == parse(WHOLE).scenario.kernels
    assert cell.cell_id == without.cell_id
    sorted_keys = json.dumps(cell.model_dump(mode="json"), sort_keys=True)
    again = Cell.model_validate_json(sorted_keys)
    assert again == cell
    assert again.kernels is not None
    assert [rule.role for rule in again.kernels.rules] == ["mine", "attention"]
    plan = make_plan((parse(WHOLE),), 1)
    assert Plan.model_validate_json(plan.model_dump_json()) == plan


LEARNT = Expectation.model_validate(
    {"per_decode_step": {"patterns": [{"launches": 5, "roles": {"gemm": 5}, "share": Bound("<=", 0.1)}]}}
)
WRITTEN = """kernels:
  per_decode_step:
    patterns:
    - launches: 5
      roles: {gemm: 5}
      share: "<= 10%"
"""


@pytest.mark.parametrize(
    ("before", "old", "behind"),
    [
        (SCENARIO, "", ""),
        (SCENARIO + "# the end\n", "", ""),
        (f"# first\n{SCENARIO}", WHOLE, "\n# of the matrix\nmatrix: {}  # none\n"),
        (SCENARIO, "kernels:\n", "matrix: {}\n"),
        (SCENARIO, "kernels: {}   # later\n", "matrix: {}\n"),
        (SCENARIO, "kernels: {traced: {iterations: 3,\n   looks: [4]}}\n", "\n\n# the end"),
        (SCENARIO, "kernels:\n  roles:\n    a:\n      match: |-\n        x\n", "# behind\nmatrix: {}\n"),
        (SCENARIO, '"kernels":\n  # inside\n  traced:\n    iterations: 3 # three', ""),
        ("\ufeff" + SCENARIO, "kernels: {}\n", "matrix: {}\n"),
    ],
)  # fmt: skip
def test_the_block_is_written_and_the_rest_stays(before: str, old: str, behind: str) -> None:
    """A block is appended, or replaced where it stands; comments and the order of everything else do not change."""
    loaded = loads(before + old + behind, Path("s.yaml"))
    text = with_kernels(loaded, LEARNT)
    assert text == before + WRITTEN + behind
    assert loads(text, Path("s.yaml")).scenario.kernels == LEARNT
    assert with_kernels(loads(text, Path("s.yaml")), LEARNT) == text


def test_other_line_ends_stay() -> None:
    """A file with CRLF has them in the new block too, and one without a last line end gets one."""
    crlf = SCENARIO.replace("\n", "\r\n")
    assert with_kernels(loads(crlf, Path("s.yaml")), LEARNT) == crlf + WRITTEN.replace("\n", "\r\n")
    assert with_kernels(loads(SCENARIO.rstrip("\n"), Path("s.yaml")), LEARNT) == SCENARIO + WRITTEN


def test_what_cannot_be_edited_is_refused() -> None:
    """A file in braces, or with an end mark, is left alone; the error shows what to put in."""
    braces = "{schema: 1, name: x}\n"
    with pytest.raises(ScenarioError, match="is written in braces"):
        replace_block(braces, Path("s.yaml"), "kernels", {})
    with pytest.raises(ScenarioError) as caught:
        with_kernels(loads(SCENARIO + "...\n", Path("s.yaml")), LEARNT)
    assert WRITTEN.rstrip() in str(caught.value)


KEYS = st.sampled_from(["a", "b", "kernels", "z"])
VALUES = st.sampled_from(
    ["1", "{x: 1}", "[1,\n  2]", "\n  x: 1\n  # inside\n  y: 2", "\n- 1\n- 2", '"t # no"', "|\n  x\n  # y", ""]
)
COMMENTS = st.sampled_from(["", "\n", "# note\n", "\n# note\n\n"])


@given(st.lists(st.tuples(KEYS, VALUES, COMMENTS), min_size=1, max_size=4, unique_by=lambda one: one[0]))
def test_any_document_keeps_its_other_lines(parts: list[tuple[str, str, str]]) -> None:
    """Whatever stands around a block, its own content alone changes, and no line of the others."""
    text = "".join(f"{key}: {value}\n{comment}" for key, value, comment in parts)
    edited = replace_block(text, Path("s.yaml"), "kernels", {"new": 1})
    old, new = (read_document(one, Path("s.yaml")).content for one in (text, edited))
    assert new == {**old, "kernels": {"new": 1}}
    rest = iter(edited.splitlines())
    for key, value, comment in parts:
        kept = comment if key == "kernels" else f"{key}: {value}\n{comment}"
        for line in kept.splitlines():
            assert line in rest, "a line is gone, or stands elsewhere"
