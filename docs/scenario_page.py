"""Writes docs/scenario.md, the reference page of scenarios, from the models that read them."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from perfgate.scenario.declaration import json_schema
from perfgate.scenario.yaml_document import in_flow, read_document

TOUR = Path(__file__).with_name("tour.yaml")
"""A scenario that has every key once, but for those that exclude one another."""
SERVER_TOUR = Path(__file__).with_name("tour-server.yaml")
"""The same for a server, without most of what it shares with the other."""
FIRST = Path(__file__).parents[1] / "scenarios" / "cpu-tiny.yaml"
"""The scenario whose values are explained."""
ELSEWHERE = {
    "engine.model.path": "models/my-weights",
    "engine.model.hub": "meta-llama/Llama-3.1-8B",
    "engine.model.revision": "d04e592bb4f6aa9cfee91e2e20afa771667e1d4b",
    "kernels.traced.when": "regressed",
    "kernels.traced.spend": {"block": [0, 0.8], "pass": [0.4, 0.4]},
    "calls.looks": [6, 9],
    "calls.spend": {"block": [0.4, 0.4], "pass": [0.4, 0.4]},
    "counted.spend": {"block": [0, 0.8], "pass": [0.4, 0.4]},
    "counters[].layer": 5,
    "counters[].match": "flash_fwd",
    "engine.command": ["llama-server", "--port", "{port}", "--model", "{model}/model.gguf"],
    "workload.images": {"width": 336, "height": 336},
    "workload.images.count": 2,
    "workload.images.token": 32000,
    "workload.images.width": 336,
    "workload.images.height": 336,
    "workload.requests": 200,
    "workload.arrival.constant": 4,
    "workload.arrival.bursts": {"rate": 4, "size": 8},
    "workload.arrival.bursts.rate": 4,
    "workload.arrival.bursts.size": 8,
    "workload.arrival.ramp": {"start": 1, "end": 8},
    "workload.arrival.ramp.start": 1,
    "workload.arrival.ramp.end": 8,
    "workload.arrival.closed": {"concurrency": 8, "think": "2s"},
    "workload.arrival.closed.concurrency": 8,
    "workload.arrival.closed.think": "2s",
    "workload.arrival.replay": {"file": "traces/chat.jsonl", "speed": 1.0},
    "workload.arrival.replay.file": "traces/chat.jsonl",
    "workload.arrival.replay.speed": 1.0,
    "workload.arrival.replay.sha256": "0123456789abcdef" * 4,
    "workload.arrival.find": {"least": 1, "most": 32, "slo": {"ttft": "500ms", "tpot": "50ms"}},
    "workload.arrival.find.least": 1,
    "workload.arrival.find.most": 32,
    "workload.arrival.find.slo": {"ttft": "500ms", "tpot": "50ms"},
    "workload.arrival.find.slo.ttft": "500ms",
    "workload.arrival.find.slo.tpot": "50ms",
    "workload.arrival.find.slo.e2e": "10s",
    "workload.arrival.find.share": "99%",
    "workload.arrival.find.steps": 6,
    "workload.input_tokens.fixed": 512,
    "workload.input_tokens.uniform": [256, 768],
    "workload.structured.json": {"type": "object"},
}
"""Examples of keys that the tour has no room for."""
LONGEST = 60
"""Characters of an example of a mapping that has a section of its own."""
CPU_TINY: Mapping[str, str] = {
    "schema": "the version of this format",
    "name": "names the scenario in reports and run folders",
    "description": "for whoever reads the file",
    "engine.driver": "the default, written out",
    "engine.model": "four layers of Llama with dummy weights: it loads in a second, and no model has to be fetched",
    "engine.args.dtype": "what decode runs in on GPUs too; without it the model's own configuration decides",
    "engine.args.max_model_len": "room for 16 + 16 tokens and for trying more, and a small cache",
    "engine.args.max_num_seqs": "the batch: all requests decode in the same steps, which an inter-token latency needs",
    "engine.args.enable_prefix_caching": "every iteration has to compute its prompts; a hit would skip the prefill",
    "engine.args.enforce_eager": "compiling takes longer than everything that is measured here",
    "engine.args.kv_cache_memory_bytes": "64 MiB, many times what the batch needs: without it vLLM reserves most of "
    "the host's memory, and how much depends on what else runs",
    "engine.env.VLLM_CPU_OMP_THREADS_BIND": "nobind: pinned to cores, one busy neighbour makes a step ten times slower",
    "engine.env.OMP_NUM_THREADS": "one thread: two that share a busy core wait for each other",
    "workload.batch": "a batch, small enough for a small machine",
    "workload.input_tokens": "a prompt that is more than a step of decode",
    "workload.output_tokens": "15 decode steps of each request, in a fraction of a second",
    "workload.seed": "the default, written out: prompts are drawn from it",
    "measure.warmup_iterations": "one: there is nothing to compile or capture",
    "measure.iterations": "four: starting the engine takes most of a trial, and only another start is another sample",
    "measure.expect": "what was seen on two shared cores: the price of a run before there is a record",
    "clocks.mode": "there is no GPU whose clocks could be locked",
    "gates": "wide, because restarts of one build spread by 7 % on a shared machine: these margins end an A/A run at "
    "the first looks and always block a doubling",
}
"""Why cpu-tiny says what it says, by key."""

_HEAD = """# The scenario file

Every key that a scenario may have, written from the models in `perfgate/scenario/declaration.py` by `make docs`. A
first one, step by step: [first-scenario.md](first-scenario.md). `perfgate check FILE` says what is wrong in a file
and where, `perfgate check --dump FILE` shows it with its defaults filled in, and `perfgate schema` gives editors
completion.

A scenario is YAML 1.2, without anchors, aliases and tags. Percentages and durations are written with their unit:
`0.5%`, `90s`, `1ms`. Paths start from the file's folder and stay in the repository.

## Every key once

"""
_SERVER = """With `driver: server` the workload is a load ([servers](servers.md)), and engines are not profiled:

"""
_WHY = """
## Why cpu-tiny sets what it sets

`scenarios/cpu-tiny.yaml` shows the whole gate where there is no GPU, in minutes, on a machine that others use too.

| key | value | why |
|---|---|---|
"""


def render_scenario_page() -> str:
    """The page as Markdown."""
    sections = "\n".join(_section(path, node) for path, node in _blocks())
    why = "".join(f"| `{key}` | {_code(value)} | {CPU_TINY.get(key, '')} |\n" for key, value in explained())
    first, second = (f"```yaml\n{tour.read_text(encoding='utf-8')}```\n\n" for tour in (TOUR, SERVER_TOUR))
    return f"{_HEAD}{first}{_SERVER}{second}{sections}{_WHY}{why}"


def rows() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """Every key by its whole path, like ``gates[].floor``, with its schema."""
    for path, node in _blocks():
        for key, field in node["properties"].items():
            yield _join(path, key), field


def example(path: str) -> Any:
    """An example of a key: its value in the tour, else one of its own; ``None`` where there is none."""
    found: list[Any] = [_content(TOUR), _content(SERVER_TOUR)]
    for part in path.split("."):
        key = part.removesuffix("[]")
        if key == "NAME":
            found = [value for one in found for value in one.values()]
        else:
            found = [one[key] for one in found if isinstance(one, Mapping) and key in one]
        if part.endswith("[]"):
            found = [entry for one in found for entry in one]
    return found[0] if found else ELSEWHERE.get(path)


def explained() -> Iterator[tuple[str, Any]]:
    """Every key of cpu-tiny with its value, as deep as there is something to say about it."""
    yield from _explained(_content(FIRST), "")


def _explained(content: Mapping[str, Any], path: str) -> Iterator[tuple[str, Any]]:
    for key, value in content.items():
        here = _join(path, key)
        if isinstance(value, Mapping) and here not in CPU_TINY:
            yield from _explained(value, here)
        else:
            yield here, value


def _blocks() -> Iterator[tuple[str, Mapping[str, Any]]]:
    """The mappings that a scenario is made of, each once, by the path that leads to it first."""
    schema = json_schema()
    seen: set[str] = set()
    waiting: list[tuple[str, Mapping[str, Any]]] = [("", schema)]
    while waiting:
        path, node = waiting.pop(0)
        yield path, node
        inner = []
        for key, field in node["properties"].items():
            for name, suffix in _references(field):
                if name not in seen and "properties" in schema["definitions"][name]:
                    seen.add(name)
                    inner.append((_join(path, key) + suffix, schema["definitions"][name]))
        waiting = inner + waiting


def _references(field: Mapping[str, Any], suffix: str = "") -> Iterator[tuple[str, str]]:
    """The definitions that a field's values are made by, with what is behind the field's name on the way there."""
    if "$ref" in field:
        yield field["$ref"].rpartition("/")[2], suffix
    for part in (*field.get("allOf", ()), *field.get("anyOf", ())):
        yield from _references(part, suffix)
    if isinstance(field.get("items"), Mapping):
        yield from _references(field["items"], f"{suffix}[]")
    if (inner := _values(field)) is not None:
        yield from _references(inner, f"{suffix}.NAME")


def _values(field: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """What the values of a mapping with names of the user's own are."""
    inner = field.get("additionalProperties") or next(iter(field.get("patternProperties", {}).values()), None)
    return inner if isinstance(inner, Mapping) else None


def _has_section(field: Mapping[str, Any]) -> bool:
    return any(name != "JsonValue" for name, _ in _references(field))


def _section(path: str, node: Mapping[str, Any]) -> str:
    of = " of a server" if node.get("title") == "Load" else ""
    head = f"## {path or 'The file'}{of}\n\n{_plain(node['description'])}\n\n" if path else "## The file\n\n"
    lines = ["| key | meaning | takes | default | example |", "|---|---|---|---|---|"]
    for key, field in node["properties"].items():
        whole = _join(path, key)
        default = "required" if key in node.get("required", ()) else _default(field)
        shown = example(whole)
        cells = (f"`{key}`", _plain(field.get("description", "")), _takes(field), default,
                 "see below" if _has_section(field) and len(in_flow(shown)) > LONGEST else _code(shown))  # fmt: skip
        lines.append(f"| {' | '.join(cell.replace('|', chr(92) + '|') for cell in cells)} |")
    return head + "\n".join(lines) + "\n"


def _default(field: Mapping[str, Any]) -> str:
    value = field.get("default")
    if value and isinstance(value, Mapping):
        return "see below"
    return "none" if value in (None, {}, [], "") else _code(value)


def _takes(field: Mapping[str, Any]) -> str:
    """What a value may be, with its range."""
    options = [one for one in (*field.get("anyOf", ()), *field.get("allOf", ())) if one.get("type") != "null"]
    if options:
        return " or ".join(dict.fromkeys(map(_takes, options)))
    if "enum" in field or "const" in field:
        return ", ".join(f"`{value}`" for value in field.get("enum", [field.get("const")]))
    inner = field.get("items") or _values(field)
    of = f": {_takes(inner)}" if isinstance(inner, Mapping) and inner else ""
    words = {"integer": "a whole number", "number": "a number", "boolean": "`true`, `false`", "string": _text(field),
             "array": f"a list{of}", "object": f"a mapping of names{of}"}  # fmt: skip
    unknown = (
        "a mapping, see below" if field.get("$ref", "JsonValue").rpartition("/")[2] != "JsonValue" else "any value"
    )
    return words.get(str(field.get("type")), unknown) + _range(field)


def _text(field: Mapping[str, Any]) -> str:
    pattern = str(field.get("pattern", ""))
    if "ns|us" in pattern:
        return "a duration in `ns`, `us`, `ms`, `s` or `min`"
    if pattern.endswith(r"%\s*$") and "<=" not in pattern:
        return "a percentage with its `%`"
    examples = field.get("examples") or []
    return "text like " + ", ".join(f"`{one}`" for one in examples) if examples else "text"


def _range(field: Mapping[str, Any]) -> str:
    words = {"minimum": "from", "exclusiveMinimum": "above", "maximum": "to", "exclusiveMaximum": "below"}
    return "".join(f" {word} {field[bound]:g}" if isinstance(field[bound], float) else f" {word} {field[bound]}"
                   for bound, word in words.items() if bound in field)  # fmt: skip


def _code(value: Any) -> str:
    return "" if value is None else f"`{in_flow(value)}`"


def _plain(text: str) -> str:
    """Of a docstring: code in single quotes, one line."""
    return " ".join(text.replace("``", "`").split())


def _join(path: str, key: str) -> str:
    return f"{path}.{key}" if path else key


@functools.cache
def _content(file: Path) -> dict[str, Any]:
    return read_document(file.read_text(encoding="utf-8"), file).content


if __name__ == "__main__":
    print(render_scenario_page(), end="")
