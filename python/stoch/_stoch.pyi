"""The engine of stoch; the package stoch has the public names."""

from collections.abc import Callable, Sequence as _Sequence


class InvalidInput(ValueError):
    """
    A value, shape, type, file or setting that cannot be used; nothing was done.
    """

class NotFinite(InvalidInput):
    """An operand holds NaN or infinity."""

class DeviceError(RuntimeError):
    """A device failed while it was used."""

class Multiplier:
    """A binary multiplier as all of its products."""

    @property
    def sha256(self) -> str: ...

    def json(self, code: str) -> str:
        """What `stoch inspect --table --json` prints."""

def open_multiplier(path: str, code: str, order: str) -> Multiplier: ...

def keep_counts(npy: bytes) -> str: ...

def parse_multiplier(npy: bytes, code: str, order: str) -> Multiplier: ...

class ScFiles:
    """The files that a model's configuration refers to; "": none."""

    def __init__(self, mp: str, mp_normalise: str, smooth: str, mask: str, mask_bits: int) -> None: ...

class Config:
    """One SC configuration, checked."""

    def __init__(self, settings: _Sequence[tuple[str, str]]) -> None: ...

    def get(self, name: str) -> str:
        """The parameter as text."""

    def resolved(self) -> list[tuple[str, str]]:
        """Every parameter with its default filled in."""

    def describe(self) -> str: ...

def parse_config(text: str) -> list[tuple[str, str]]: ...

def parameters() -> list[tuple[str, str, str, str]]:
    """(name, alias, kind, default as text) of every parameter."""

def streams(config: Config, level: int, side: str, mask: int) -> list[int]:
    """0 or 1 for each cycle of one side of a product."""

def operator_configs(settings: _Sequence[str]) -> tuple[list[tuple[str, str]], str]:
    """([(operator, its configuration as text)], attention) of a model."""

def describe_model_config(settings: _Sequence[str], files: ScFiles) -> tuple[str, bool, bool]:
    """(description, is_batch_invariant, is_chunk_invariant)"""

class Packed:
    """A weight prepared for one configuration on one device."""

    @property
    def shape(self) -> tuple[int, int]: ...

    @property
    def nbytes(self) -> int: ...

    @property
    def device(self) -> str: ...

    @property
    def describe(self) -> str: ...

def product(a: object, b: object, config: Config, out: object, stream: int, check_finite: bool) -> None: ...

def packed_product(a: object, packed: Packed, out: object, stream: int, check_finite: bool) -> None: ...

def pack(b: object, config: Config, cuda: int, stream: int) -> Packed: ...

def counts(a: object, b: object, config: Config, out: object) -> None: ...

def synchronize() -> None: ...

def current_stream(array: object, ordinal: int) -> int | None:
    """
    The stream that the array's library works on now on a CUDA device; None where it has to be asked in Python.
    """

class PromptAttention:
    """Causal attention of whole prompts."""

    def run(self, q: object, k: object, v: object, unit: object, out: object, sequences: int, stream: int) -> None: ...

class ModelPlan:
    """What every operator of every layer of a model runs."""

    def __init__(self, settings: _Sequence[str], files: ScFiles, layers: int, sizes: tuple[int, int, int]) -> None: ...

    def config(self, layer: int, operator: str) -> str:
        """Its configuration as text."""

    def arith(self, layer: int, operator: str) -> str:
        """sc, fp, int2, ..."""

    def describe(self) -> str: ...

    @property
    def per_call(self) -> bool: ...

    @property
    def has_files(self) -> bool: ...

    @property
    def has_lengths(self) -> bool: ...

    def pack(self, layer: int, operator: str, b: object, cuda: int, stream: int) -> Packed: ...

    def attention(self, layer: int, kv_heads: int, head_dim: int, sequences: int, positions: int, cuda: int) -> PromptAttention: ...

    def row_lengths(self, layer: int, operator: str, x: object) -> list[int]: ...

class Request:
    """What to generate, but for the prompt."""

    def __init__(self, max_tokens: int, temperature: float, top_p: float, top_k: int, min_p: float, repeat_penalty: float, presence_penalty: float, frequency_penalty: float, logit_bias: _Sequence[tuple[int, float]], seed: int, stop: _Sequence[str], stop_ids: _Sequence[int], ignore_eos: bool, top_logprobs: int, hash_logits: bool, json_schema: str, regex: str, choices: _Sequence[str], grammar: str) -> None: ...

class TextStream:
    """One request, piece by piece."""

    def next(self) -> str: ...

    def report(self) -> str: ...

class LoadedModel:
    """Engine and tokenizer of one model."""

    def facts(self) -> str: ...

    def encode(self, text: str, add_bos: bool, parse_special: bool) -> list[int]: ...

    def decode(self, ids: _Sequence[int]) -> str: ...

    def eos_ids(self) -> list[int]: ...

    def use_chat(self, chat_template: str, python: str, unsafe: bool) -> None: ...

    def encode_chat(self, conversation: str) -> list[int]: ...

    def render_chat(self, conversation: str) -> str: ...

    def chat_stop_ids(self) -> list[int]: ...

    def chat_template(self) -> str: ...

    def generate(self, request: Request, prompts: _Sequence[_Sequence[int]], progress: Callable[[int, int, str], None] | None) -> list[str]: ...

    def stream(self, request: Request, prompt: _Sequence[int]) -> TextStream: ...

    def logits(self, ids: _Sequence[int], out: object, progress: Callable[[int, int, str], None] | None) -> None: ...

    def hidden(self, ids: _Sequence[int], layers: int, out: object, progress: Callable[[int, int, str], None] | None) -> None: ...

    def logits_sha256(self, ids: _Sequence[int], new_tokens: int) -> str: ...

    def score(self, requests: _Sequence[tuple[_Sequence[int], _Sequence[int]]], progress: Callable[[int, int, str], None] | None) -> list[tuple[float, bool]]: ...

    def perplexity(self, ids: _Sequence[int], ctx: int, max_windows: int, progress: Callable[[int, int, str], None] | None) -> tuple[int, int, float, float, float, float]: ...

def load(model: str, tokenizer: str, sc: _Sequence[str], files: ScFiles, precision: str, device: str, device_map: str, device_map_json: str, max_memory: str, split: str, context: int, batch: int, pass_rows: int, speculate: str, draft_tokens: int, threads: int, cpu_variant: str, progress: Callable[[int, int, str], None] | None) -> LoadedModel: ...

class Sequence:
    """Tokens of one sequence by hand."""

    def append(self, ids: _Sequence[int]) -> None: ...

    @property
    def ids(self) -> list[int]: ...

    @property
    def computed(self) -> int: ...

    @property
    def pending(self) -> int: ...

    @property
    def capacity(self) -> int: ...

    def fork(self) -> Sequence: ...

    def remove(self) -> None: ...

def add_sequence(model: LoadedModel, ids: _Sequence[int], capacity: int) -> Sequence: ...

def step(model: LoadedModel, sequences: _Sequence[Sequence], out: object) -> None: ...

def verify(model: str, device: str, only: _Sequence[str], goldens: str, hashes: str, progress: Callable[[int, int, str], None] | None) -> list[tuple[str, bool, str]]:
    """(name, passed, detail) of every check."""

def run_command(arguments: _Sequence[str], progress: Callable[[int, int, str], None] | None) -> tuple[str, bool]:
    """(what `stoch ARGUMENTS` prints, whether all of its checks passed)"""

def version_text() -> str:
    """What `stoch --version` prints."""
