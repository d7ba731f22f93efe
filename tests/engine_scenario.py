"""A scenario that a real engine runs as fast as one can: nearly all of a trial is the start of the engine."""

from __future__ import annotations

import json
from pathlib import Path

from conftest import CONFIG

LAYERS = 2
ITERATIONS = 16
OUTPUT_TOKENS = 16


def write_engine_scenario(folder: Path, cache: Path, measure: str = "", iterations: int = ITERATIONS) -> Path:
    """A scenario of two layers of Llama in ``folder``, with its model and a ``perfgate.toml``.

    It gates the step time of a batch of four. An iteration takes some 40 ms, so that there are many: a neighbour that
    comes and goes moves the median of many iterations less. All its engines share what vLLM notes of the model's class,
    which takes each empty cache another import of vLLM: 8 of 17 s of a first trial.

    Args:
        folder: Where to write.
        cache: What its engines share; see the fixture ``engine_cache``.
        measure: Keys of ``measure`` beside the iterations, like ``, looks: [4]``.
        iterations: How many are counted in each trial.
    """
    model = folder / "models" / "two-layers"
    model.mkdir(parents=True)
    (model / "config.json").write_text(json.dumps(CONFIG | {"num_hidden_layers": LAYERS, "vocab_size": 512}))
    (folder / "perfgate.toml").touch()
    scenario = folder / "tiny.yaml"
    scenario.write_text(f"""\
schema: 1
name: tiny
engine:
  model: {{config: models/two-layers}}
  args:
    dtype: bfloat16
    max_model_len: 128
    max_num_seqs: 4
    enable_prefix_caching: false
    enforce_eager: true
    kv_cache_memory_bytes: 8388608
  env: {{VLLM_CPU_OMP_THREADS_BIND: nobind, OMP_NUM_THREADS: "1", VLLM_CACHE_ROOT: "{cache}"}}
workload: {{batch: 4, input_tokens: 8, output_tokens: {OUTPUT_TOKENS}}}
measure: {{warmup_iterations: 1, iterations: {iterations}{measure}}}
gates:
  - {{metric: itl_median, ignorable: 10%, must_catch: 50%}}
""")
    return scenario
