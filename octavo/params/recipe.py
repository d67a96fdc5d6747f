"""The stages' own blocks: `calibrate`, `fp16`, `int8`, `qat`, `validate`, `benchmark`."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Field, field_validator, model_validator

from octavo.params.block import Block, Fraction, Number, Positive, Side, Whole

__all__ = [
    "Benchmark",
    "Calibrate",
    "Fp16",
    "Gates",
    "Int8",
    "Qat",
    "TensorRange",
    "Validate",
]

Method = Literal["minmax", "percentile", "entropy", "mse", "peaks"]
# Of an end of a range: the width between two such is a float32 number, too.
_FARTHEST = 1e38
Percentile = Annotated[Number, Field(gt=50, le=100)]


class Calibrate(Block):
    """Which images the statistics are made from."""

    samples: Positive = 200
    # Of these, kept out of the statistics: `quantize_int8` measures its choices on them. At most a quarter of `samples`, so none
    # of fewer than 4: it measures nothing then, and warns.
    held_out: Annotated[Whole, Field(ge=0)] = 16
    seed: Whole = 0


class Fp16(Block):
    """Half-precision weights and activations."""

    # true: inputs and outputs stay float32, so that callers change nothing. false: float16, which `octavo.deploy`, validate and
    # benchmark cast images to; programs of your own must.
    keep_io: bool = True
    # Node names, op types or shell patterns that stay in float32.
    keep_float: tuple[str, ...] = ()


class TensorRange(Block):
    """How the range of one tensor is chosen; what is left out is as in `int8`. A bare pair `[low, high]` stands for `bounds`."""

    method: Method | None = None
    percentile: Percentile | None = None
    # Fixed ends of the range, in the tensor's own units; zero is always inside.
    bounds: tuple[Number, Number] | None = None

    @model_validator(mode="before")
    @classmethod
    def _pair(cls, value: Any) -> Any:
        if isinstance(value, list | tuple) and len(value) != 2:
            raise ValueError(f"{list(value)} is no range: it has two ends, [low, high]")
        return {"bounds": value} if isinstance(value, list | tuple) else value

    @model_validator(mode="after")
    def _in_order(self) -> TensorRange:
        if self.bounds is not None and self.bounds[0] >= self.bounds[1]:
            raise ValueError(f"[{self.bounds[0]:g}, {self.bounds[1]:g}] is no range: the lower end comes first")
        if self.bounds is not None and max(map(abs, self.bounds)) > _FARTHEST:
            raise ValueError(
                f"[{self.bounds[0]:g}, {self.bounds[1]:g}] reaches beyond what float32 holds: codes are spread over all of it, so "
                "name the ends that the tensor's values have; `method: minmax` takes the calibration images'"
            )
        if self.bounds is not None and (self.method or self.percentile):
            raise ValueError("fixed bounds leave nothing for a method to choose: give one of them")
        return self


class Int8(Block):
    """Static and dynamic INT8."""

    # The runtime that the file is for (octavo/quantization/int8/structure/targets.py). cpu: ONNX Runtime on x86 with VNNI.
    # cpu-no-vnni: weights that do not saturate AVX2. arm: ONNX Runtime on ARM64. openvino, tensorrt: Q/DQ where their fusions want
    # them. openvino-no-vnni: both; openvino is taken for it on an x86 without VNNI, where OpenVINO has no exact kernels.
    target: Literal["cpu", "cpu-no-vnni", "arm", "openvino", "openvino-no-vnni", "tensorrt"] = "cpu"
    format: Literal["qdq", "qoperator"] = "qdq"
    # auto: mse, percentile, minmax and equalization are tried and measured on held-out images; peaks where the outputs are maps or
    # boxes.
    method: Literal["auto", "minmax", "percentile", "entropy", "mse", "peaks"] = "auto"
    # For method 'percentile', here or in `ranges`, and an error without it: the share of values, in percent, that the range covers
    # (half of the rest cut on each side).
    percentile: Percentile = 99.99
    # Tensor names or shell patterns with a choice of their own: {method: percentile, percentile: 99.9}, or fixed ends: [-1, 6].
    # Each must match a quantized tensor; a name goes before a pattern, then the order counts. Tensors that share a scale (what a
    # Concat, a MaxPool or a Reshape copies) share what is asked for one of them.
    ranges: dict[str, TensorRange] = Field(default_factory=dict)
    # Tensor names or shell patterns, each must match a quantized tensor: uint16 activations (opset 21). On ONNX Runtime's CPU the
    # layers around them compute in float: it is for the few tensors whose range 256 codes cannot serve.
    bits16: tuple[str, ...] = ()
    # A scale for each output channel of a layer's weights. A PRelu's slopes have one each in any case, and are exact so.
    per_channel: bool = True
    # How a weight scale is chosen: by the largest weight, or with the least squared error of the channel.
    weights: Literal["minmax", "mse"] = "minmax"
    # Symmetric activations (zero point 128; 0 for int8 codes); costs half the range behind ReLU and of HardSwish's gate.
    symmetric: bool = False
    # Give the worst layers back to float, cheapest in latency first, until `fidelity` holds on held-out calibration images.
    repair: bool = True
    # SQNR in dB at the outputs of the last layers, each channel against its own variance (of vectors, with few values each, against
    # that of the channels of its size; of embeddings against that of the whole); of a detector whose outputs are rows of boxes, the
    # share of AP that it is expected to lose: 20 dB are 1 %, 17 are 2 %. auto: 24.5 for vectors (25.5 for those of
    # `task: embedding`), 22.5 for maps of one size (segmentation), 20 for maps of several sizes (detection; where that takes more
    # than a tenth longer than 18 by measured times, as much as a tenth buys).
    fidelity: Annotated[Number, Field(gt=0, le=60)] | Literal["auto"] = "auto"
    # bias: each layer's bias takes back the mean shift that rounding its weights causes.
    correction: Literal["none", "bias"] = "bias"
    # high: channels are equalized, weights are rounded by what their inputs really are (GPTQ-like) and each range is tried against
    # others at the network's outputs; kept where it measures better on held-out images. `fidelity: auto` is then 26.5 dB for
    # vectors.
    # default: the same with `method: auto` where `fidelity` is missed, before `repair`; where the outputs are maps, weights alone.
    effort: Literal["default", "high"] = "default"
    # What last Convs put out stays float where it is a map (boxes, scores, masks): one position decides there, and 8 bits are 2 %
    # of a box. 1x1 Convs have int8 weights all the same (docs/int8.md); others stay float as a whole. Where the answer is a picture
    # of the image (an upscaler's), 8 bits hold it: last Convs are quantized where that is faster.
    float_heads: bool = True
    # Where Q and DQ go. measured: each kind of work is timed in float and in INT8 on this machine; what is faster in float, borders
    # included, stays float. table:<file>: the same from a saved table (a copy of models/<model>/int8/costs.json): same table, same
    # bytes; for targets `cpu` and `cpu-no-vnni`. all: everything that can be INT8 is, and repair goes by estimates, as it does for
    # the other targets.
    placement: str = "measured"
    # Node names, op types or shell patterns that stay in float32, each must match a node.
    keep_float: tuple[str, ...] = ()

    def of_task(self, task: str) -> Int8:
        """The same with what `fidelity: auto` means for a task of this name, where its network alone does not tell.

        Of an embedding every value is compared, of classes the largest: 25.5 dB on few held-out images were 24.5 and 26.5 on others
        (mean cosine .9981 and .9988), 25 dB were 23.9 and 26.2 (.9979 and .9988).
        """
        told = self.fidelity != "auto" or self.effort != "default" or task != "embedding"
        return self if told else self.model_copy(update={"fidelity": 25.5})

    @field_validator("placement")
    @classmethod
    def _is_a_placement(cls, placement: str) -> str:
        word, _, file = placement.partition(":")
        if placement not in ("measured", "all") and (word != "table" or not file):
            raise ValueError(f"{placement!r} is not possible; expected 'measured', 'all' or 'table:FILE'")
        return placement

    @property
    def table(self) -> str | None:
        """The file of costs that `placement` names."""
        return self.placement.removeprefix("table:") if self.placement.startswith("table:") else None

    @model_validator(mode="after")
    def _counts(self) -> Int8:
        lost = [name for name, one in self.ranges.items() if one.percentile and (one.method or self.method) != "percentile"]
        if lost:
            raise ValueError(f"ranges: the percentile of {lost[0]!r} counts beside `method: percentile` alone: add that there")
        # The default stands in every manifest, beside any method.
        given = self.percentile != type(self).model_fields["percentile"].default
        if given and "percentile" not in (self.method, *(one.method for one in self.ranges.values())):
            raise ValueError(
                f"`percentile: {self.percentile:g}` counts with `method: percentile` alone, and `method: {self.method}` stands "
                "beside it: set that method, or leave `percentile` out"
            )
        return self

    @model_validator(mode="after")
    def _runs_there(self) -> Int8:
        if self.target == "arm" and self.format == "qoperator":
            # Exact sums (`session.x64quantprecision`) make uint8 of int8 weights there, and no kernel takes int8 with uint8.
            raise ValueError(
                "target arm takes `format: qdq` only: its operators of int8 activations do not load on x86 without VNNI, and "
                "ONNX Runtime on ARM64 fuses Q/DQ into them by itself"
            )
        if self.target in ("openvino", "openvino-no-vnni", "tensorrt"):
            if self.format == "qoperator":
                raise ValueError(f"target {self.target} takes `format: qdq` only: QLinearConv and its like are ONNX Runtime's")
            if self.bits16:
                raise ValueError(f"target {self.target} has no 16-bit activations: use `keep_float` for the nodes around them")
        if self.table and self.target not in ("cpu", "cpu-no-vnni"):
            raise ValueError(
                f"target {self.target} is placed by estimates: a table holds times of ONNX Runtime's kernels on x86; leave "
                "`placement` out, or use `all`"
            )
        return self


class Qat(Block):
    """Quantization-aware training, on `data.train`."""

    enabled: bool = False
    # octavo: for ONNX Runtime's kernels on x86 (uint8 activations, int8 weights). xnnpack: executorch's, signed activations, which
    # leave about half of the convolutions in float there.
    quantizer: Literal["octavo", "xnnpack"] = "octavo"
    # A scale for each output channel of a weight. false with `symmetric: true` is what every runtime can read.
    per_channel: bool = True
    # Symmetric activations (zero point 128).
    symmetric: bool = False
    # observed: ranges follow what flows by until observers are frozen. learned: from then on scales are trained, too (LSQ).
    scales: Literal["observed", "learned"] = "observed"
    # Share of the distance to FP32's answers in the loss, the rest is the labels' own. auto: 0.5 where there are labels that the
    # task can train on (classes, masks), 1 where there are none.
    distillation: Fraction | Literal["auto"] = "auto"
    # Names of layers (as the module has them: `features.0.0`), `conv2d`, `linear` or shell patterns that stay float.
    keep_float: tuple[str, ...] = ()
    # Names of parameters or shell patterns that are not trained.
    freeze: tuple[str, ...] = ()
    epochs: Positive = 4
    # At most so many optimizer steps; the learning rate decays over what is left of the epochs.
    steps: Positive | None = None
    learning_rate: Annotated[Number, Field(gt=0, le=1)] = 1e-5
    # Images of one optimizer step, over all processes.
    batch: Positive = 32
    # Parts that a batch is computed in where memory is short. auto: as many as keep a part's activations within half of the memory.
    accumulate: Positive | Literal["auto"] = "auto"
    # Epochs after which ranges stand still, and batch norms use their running statistics. auto: 1; but 0 where FP32's answers alone
    # teach, for which its own statistics are the right ones, or an epoch has under 100 steps, too few to tell any.
    freeze_observers: Annotated[Whole, Field(ge=0)] = 2
    freeze_batch_norm: Annotated[Whole, Field(ge=0)] | Literal["auto"] = "auto"
    # Decay of an exponential moving average of the weights, which is then what is judged and written; null: none.
    ema: Annotated[Number, Field(gt=0, lt=1)] | None = None
    # Random mirroring of training images, left and right.
    flip: bool = True
    # Training images that are not trained on: the best checkpoint is the best on them. At most a quarter.
    held_out: Annotated[Whole, Field(ge=1)] = 64
    # Calibration images for a last look at the ranges once training is over; they are taken where they measure better. 0: none.
    calibration_samples: Annotated[Whole, Field(ge=0)] = 200
    # Steps from one checkpoint to the next; there is one at the end of each epoch, too.
    checkpoint_every: Positive = 100
    device: Literal["auto", "cpu", "cuda"] = "auto"
    seed: Whole = 0


class Gates(Block):
    """Bounds that a quantized variant must keep; `validate` writes pass, fail or inconclusive for each."""

    # The task's metric relative to FP32's.
    retained: Fraction = 0.99
    # Mean cosine of the raw outputs to FP32's. auto: 0.995; 0.99 for detection: 0.995 is what 20 dB leave, which INT8 asks of a
    # detector's objects; outputs are mostly background, and may be further off (YOLOX-nano 0.994). `agreement` is of its boxes.
    similarity: Annotated[Number, Field(ge=-1, le=1)] | Literal["auto"] = "auto"
    # Least cosine of the raw outputs to FP32's, the worst image's. auto: 0.98 for embeddings, none for other tasks; null: none.
    similarity_min: Annotated[Number, Field(ge=-1, le=1)] | Literal["auto"] | None = "auto"
    # Embeddings only: the most that the area under the ROC curve may fall, FP32's minus the variant's. auto: 0.01; null: none.
    auc_drop: Fraction | Literal["auto"] | None = "auto"
    # Share of answers that are FP32's: `agreement` of classification, `match_f1` of detection; `cosine_p1` of embeddings. Needs no
    # labels.
    agreement: Fraction = 0.9
    # false: a file larger than FP32's fails.
    allow_larger: bool = True
    # false: an INT8 variant slower than FP32 fails, on the machine that validates: two seconds of timing, cores otherwise idle.
    allow_slower: bool = True
    # The variants that are held to them.
    variants: tuple[Literal["fp16", "int8", "int8_dynamic", "qat"], ...] = ("fp16", "int8", "qat")

    def of_task(self, task: str) -> Gates:
        """The same with what `auto` means for a task of this name."""
        automatic = {
            "similarity": 0.99 if task == "detection" else 0.995,
            "similarity_min": 0.98 if task == "embedding" else None,
            "auc_drop": 0.01 if task == "embedding" else None,
        }
        return self.model_copy(update={key: value for key, value in automatic.items() if getattr(self, key) == "auto"})


class Validate(Block):
    """What is proved, and how surely."""

    gates: Gates = Gates()
    # Resamples of the paired bootstrap over images, and its seed.
    bootstrap: Annotated[Whole, Field(ge=100)] = 2000
    seed: Whole = 0
    # Pictures of the images on which INT8 and FP32 differ most, into metrics/<model>/pictures.
    pictures: Annotated[Whole, Field(ge=0, le=100)] = 6
    # Images on which every layer of the INT8 model is compared with FP32.
    layer_samples: Positive = 8


class Benchmark(Block):
    """What is timed; each combination of provider, threads and batch is one measurement per variant."""

    # auto: the CPU, and CUDA where a GPU can be used. A provider that is named and not there is an error.
    providers: Annotated[tuple[Literal["auto", "cpu", "cuda"], ...], Field(min_length=1)] = ("auto",)
    # Of the CPU; a GPU is measured once, with the most.
    threads: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1, 2)
    batch: Annotated[tuple[Positive, ...], Field(min_length=1)] = (1,)
    # Further input sizes, for graphs whose height and width are dynamic: a number is a square, a pair [height, width]. `validate`
    # measures every variant's accuracy at each, `benchmark` its latency.
    resolutions: tuple[Side | tuple[Side, Side], ...] = ()
    warmup: Positive = 3
    # Interleaved rounds; every variant runs once a round.
    rounds: Annotated[Whole, Field(ge=5)] = 40

    @property
    def sizes(self) -> tuple[tuple[int, int], ...]:
        """`resolutions` as (height, width)."""
        return tuple((size, size) if isinstance(size, int) else size for size in self.resolutions)
