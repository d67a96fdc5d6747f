"""ONNX Runtime sessions, opened one way everywhere, so that what is validated is what is timed and what is deployed."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from onnxruntime.capi import onnxruntime_pybind11_state as _state

from octavo import crash
from octavo.errors import ModelRunError
from octavo.runtime.entries import session_config
from octavo.runtime.memory import return_freed
from octavo.runtime.providers import ON_GPU, PROVIDERS, require_provider

__all__ = ["Session", "halved"]

LEVELS = {
    "off": ort.GraphOptimizationLevel.ORT_DISABLE_ALL,
    "basic": ort.GraphOptimizationLevel.ORT_ENABLE_BASIC,
    "extended": ort.GraphOptimizationLevel.ORT_ENABLE_EXTENDED,
    "all": ort.GraphOptimizationLevel.ORT_ENABLE_ALL,
}

# ONNX Runtime's exceptions share no base class.
_ERRORS = (
    RuntimeError,
    ValueError,
    *(kind for kind in vars(_state).values() if isinstance(kind, type) and issubclass(kind, Exception)),
)


# ONNX Runtime 1.31 on x86 makes uint8 of int8 activations (`int8.target: arm`), but of a QuantizeLinear that it has put behind what
# moves codes only the zero point, not the `output_dtype` that it has from opset 21 on, and refuses the graph then. On ARM64, which
# the file is for, int8 stays.
_MIXED, _PROPAGATES = "output_dtype INT8 does not match y_zero_point type UINT8", "QDQPropagationTransformer"

# A session's threads go on spinning for a while when a run is over, on the cores of whatever session runs next: four sessions that
# take turns on two cores took 45 ms a run instead of 16 (YOLOX-nano). Within a run they spin as always.
_QUIET = {"session.force_spinning_stop": "1"}

# From which severity on ONNX Runtime writes lines of its own: fatal ones alone, as what fails on a CPU is raised in the same words.
# On a GPU its errors say more than that.
_LOGGED, _LOGGED_ON_GPU = 4, 3

_BESIDE = "session.model_external_initializers_file_folder_path"
_OPTIMIZED, _BYTES_BESIDE = "session.optimized_model_external_initializers", "1024"


class Session:
    """An ONNX Runtime session with clear errors.

    Args:
        model: path of the ONNX file, or its bytes.
        provider: a key of `octavo.runtime.providers.PROVIDERS`.
        threads: intra-op threads; 0 takes one a core.
        optimization: `off`, `basic`, `extended` or `all`.
        memory_pattern: false frees each activation once it is used instead of planning one block for all.
        arena: false gives freed memory back to the system instead of keeping it for the next run.
        name: what errors call the graph; its path where None.
        save_optimized: write the graph that really runs here, its weights in `<name>.data` beside it.
        profile: record each kernel's time; `end_profiling` writes them to a file whose name begins so.
        without: optimizers of ONNX Runtime to leave out, by its names for them.
        beside: the folder that external data of a graph in memory lies in.
        entries: session entries in place of `session_config`'s; nothing is added to them but what keeps one session's waiting
            threads off the cores that another one runs on.

    Raises:
        ModelRunError: the provider is not installed or its GPU is not there, or the graph cannot be loaded.
    """

    def __init__(
        self,
        model: str | Path | bytes,
        *,
        provider: str = "cpu",
        threads: int = 0,
        optimization: str = "all",
        memory_pattern: bool = True,
        arena: bool = True,
        name: str | None = None,
        save_optimized: str | Path | None = None,
        profile: str | Path | None = None,
        without: Sequence[str] = (),
        beside: Path | None = None,
        entries: Mapping[str, str] | None = None,
    ) -> None:
        self.provider = provider
        self.name = name or ("<graph in memory>" if isinstance(model, bytes) else str(model))
        require_provider(provider)
        if provider in ON_GPU:
            # The CUDA and cuDNN libraries lie in site-packages, where the loader does not look by itself.
            ort.preload_dlls()
        options = ort.SessionOptions()
        options.intra_op_num_threads = threads
        options.inter_op_num_threads = 1
        options.graph_optimization_level = LEVELS[optimization]
        options.enable_mem_pattern = memory_pattern
        options.enable_cpu_mem_arena = self._keeps = arena
        options.log_severity_level = _LOGGED_ON_GPU if provider in ON_GPU else _LOGGED
        if profile is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(profile)
        for key, value in {**_QUIET, **(session_config() if entries is None else entries)}.items():
            options.add_session_config_entry(key, value)
        if beside is not None:
            options.add_session_config_entry(_BESIDE, str(beside))
        if save_optimized is not None:
            options.optimized_model_filepath = str(save_optimized)
            # Whoever reads the graph wants its nodes; in one message with them weights are held four times.
            options.add_session_config_entry(f"{_OPTIMIZED}_file_name", f"{Path(save_optimized).name}.data")
            options.add_session_config_entry(f"{_OPTIMIZED}_min_size_in_bytes", _BYTES_BESIDE)
        crash.opened(self.name)
        try:
            self._session = _opened(model if isinstance(model, bytes) else str(model), options, PROVIDERS[provider], without)
        except _ERRORS as error:
            raise ModelRunError(
                f"{self.name}: ONNX Runtime cannot load this graph: {_first_line(error)}",
                "an op it lacks needs a newer onnxruntime or another export; a damaged file needs to be made again",
            ) from error
        # ONNX Runtime's Python class holds them for as long as it lives, to load the graph again where a provider fails.
        self._session._model_bytes = None
        used = self._session.get_providers()[0]
        if used != PROVIDERS[provider]:
            raise ModelRunError(
                f"{self.name}: asked for {PROVIDERS[provider]}, ONNX Runtime fell back to {used}",
                "its libraries do not load on this machine; check the driver, or take the provider out of `benchmark.providers`",
            )
        self.inputs = [argument.name for argument in self._session.get_inputs()]
        self.outputs = [argument.name for argument in self._session.get_outputs()]
        self.input_shapes = {argument.name: list(argument.shape) for argument in self._session.get_inputs()}
        self.output_shapes = {argument.name: list(argument.shape) for argument in self._session.get_outputs()}
        self.input_types = {argument.name: argument.type for argument in self._session.get_inputs()}
        self._halves = frozenset(name for name, kind in self.input_types.items() if kind == "tensor(float16)")

    @property
    def signature(self) -> list[dict[str, Any]]:
        """`name`, `shape` and `type` of each input: a name or None in a shape is an open size, the type ONNX Runtime's word."""
        return [{"name": name, "shape": self.input_shapes[name], "type": self.input_types[name]} for name in self.inputs]

    def run(
        self, feeds: Mapping[str, np.ndarray], outputs: Sequence[str] | None = None, *, where: str = ""
    ) -> dict[str, np.ndarray]:
        """Run once.

        Args:
            feeds: as `fed` takes them.
            outputs: names; all where None.
            where: what the input is (a file's name), for the error.

        Returns:
            Output name to array.

        Raises:
            ModelRunError: the run fails (a shape that does not fit, an op that breaks).
        """
        names = list(outputs or self.outputs)
        crash.opened(self.name)
        try:
            return dict(zip(names, self._session.run(names, self.fed(feeds)), strict=True))
        except _ERRORS as error:
            raise self._refused(feeds, error, where) from error

    def shrink(self, feeds: Mapping[str, np.ndarray]) -> None:
        """Give back to the system what runs on the CPU keep for the next one, all but the weights; the next one takes it anew.
        A session without `arena` keeps nothing.

        ONNX Runtime does so at the end of a run alone (`memory.enable_memory_arena_shrinkage`): the graph is run once more.
        Outputs lie in the same blocks, and keep what is beside them: those of this run, and of earlier ones that are held.

        Args:
            feeds: as `fed` takes them.

        Raises:
            ModelRunError: the run fails.
        """
        if not self._keeps:
            return
        options = ort.RunOptions()
        options.add_run_config_entry("memory.enable_memory_arena_shrinkage", "cpu:0")
        try:
            self._session.run(self.outputs, self.fed(feeds), options)
        except _ERRORS as error:
            raise self._refused(feeds, error) from error
        return_freed()

    def fed(self, feeds: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
        """Feeds as the graph takes them: float32 cast to float16 where `fp16: {keep_io: false}` made an input float16."""
        return halved(feeds, self._halves)

    def _refused(self, feeds: Mapping[str, np.ndarray], error: Exception, where: str = "") -> ModelRunError:
        shapes = ", ".join(f"{name} {list(value.shape)} {value.dtype}" for name, value in feeds.items())
        of = f" of {where}" if where else ""
        problem = f"{self.name}: the graph does not run on {shapes}{of}: {_first_line(error)}"
        for name, value in feeds.items():
            declared = self.input_shapes[name]
            if value.shape[:1] == (1,) and len(declared) == 4 and isinstance(declared[0], int) and declared[0] > 1:
                return ModelRunError(
                    f"{problem}; it takes {declared[0]} images at a time",
                    "`source.dynamic_batch: true` opens the batch of an ONNX file; else export it for one image",
                )
        return ModelRunError(problem, "check `input:` in params.yaml (size, layout, dtype) against the graph's input")

    def bound(self, feeds: Mapping[str, np.ndarray]) -> Callable[[], None]:
        """A call that runs once on inputs that lie on the provider's device already, and leaves the outputs there.

        With plain `run` a GPU's time is that of its kernels and of the copies to and from it. The call returns when the outputs
        are computed (I/O binding: https://onnxruntime.ai/docs/performance/tune-performance/iobinding.html).

        Raises:
            ModelRunError: the call, as `run`.
        """
        device = "cuda" if self.provider in ON_GPU else "cpu"
        binding = self._session.io_binding()
        for name, value in self.fed(feeds).items():
            # The graph's own layout of memory: a transposed view has none that could be bound.
            binding.bind_ortvalue_input(name, ort.OrtValue.ortvalue_from_numpy(np.ascontiguousarray(value), device, 0))
        for name in self.outputs:
            binding.bind_output(name, device)

        def once() -> None:
            crash.opened(self.name)
            try:
                self._session.run_with_iobinding(binding)
                binding.synchronize_outputs()
            except _ERRORS as error:
                raise self._refused(feeds, error) from error

        return once

    def end_profiling(self) -> Path:
        """Write the kernels' times and give back the file (JSON in Chrome's trace format)."""
        return Path(self._session.end_profiling())

    def run_finite(self, feeds: Mapping[str, np.ndarray], where: str) -> dict[str, np.ndarray]:
        """Run once and refuse NaN and infinity.

        Args:
            feeds: as `fed` takes them.
            where: what the input is (a file's name), for the error.

        Returns:
            Output name to array; float32 where the graph puts out float16: sums over it, as metrics take them, would overflow.

        Raises:
            ModelRunError: an output is not finite, or the run fails.
        """
        results = self.run(feeds, where=where)
        for name, value in results.items():
            if np.issubdtype(value.dtype, np.floating) and not np.isfinite(value).all():
                bad = "NaN" if np.isnan(value).any() else "infinity"
                raise ModelRunError(
                    f"{self.name}: output {name!r} holds {bad} on {where}",
                    "check the weights and `input:` (scale, mean, std) in params.yaml; an FP16 overflow needs `fp16.keep_float`",
                )
        return {name: value.astype(np.float32) if value.dtype == np.float16 else value for name, value in results.items()}


def _opened(model: str | bytes, options: ort.SessionOptions, provider: str, without: Sequence[str]) -> ort.InferenceSession:
    """A session as asked for; of int8 activations where need be without what ONNX Runtime then fails on."""
    try:
        return ort.InferenceSession(model, options, providers=[provider], disabled_optimizers=list(without))
    except _ERRORS as error:
        if _MIXED not in str(error):
            raise
        return ort.InferenceSession(model, options, providers=[provider], disabled_optimizers=[*without, _PROPAGATES])


def halved(feeds: Mapping[str, np.ndarray], names: Collection[str]) -> dict[str, np.ndarray]:
    """Feeds, those of these names in float16 that are float32."""
    with np.errstate(over="ignore"):  # infinity says so in what comes out
        return {
            name: value.astype(np.float16) if name in names and value.dtype == np.float32 else value
            for name, value in feeds.items()
        }


def _first_line(error: Exception) -> str:
    lines = str(error).strip().splitlines()
    return lines[0] if lines else type(error).__name__
