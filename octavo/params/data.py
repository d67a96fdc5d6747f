"""`data:` which images; and data/sources.yaml, what `prepare` copies out of packages or renders."""

from __future__ import annotations

from typing import Annotated, Any, Literal

from pydantic import Discriminator, Field, Tag, field_validator, model_validator

from octavo.params.block import MAX_PIXELS, MOST_PIXELS, Block, ClassKey, Fraction, Level, Positive, Whole

__all__ = [
    "Data",
    "Dataset",
    "HeadMasks",
    "ImageSet",
    "Packaged",
    "PackagedSets",
    "Rendered",
    "Split",
]


class Split(Block):
    """A part of one folder: the images whose place in a seeded, class-stratified order lies in [start, stop) of 0..1.

    Two parts that do not overlap never share an image, and identical files (by content) always fall on the same side.
    """

    start: Fraction = 0.0
    stop: Fraction = 1.0
    seed: Whole = 0

    @model_validator(mode="after")
    def _not_empty(self) -> Split:
        if self.start >= self.stop:
            raise ValueError(f"start {self.start} must be below stop {self.stop}")
        return self


class HeadMasks(Block):
    """The masks of one of several heads; the keys are those of an image set."""

    # Their folder, beside `images`.
    annotations: str
    palette: dict[ClassKey, tuple[Level, Level, Level]] = Field(default_factory=dict)
    class_map: dict[ClassKey, ClassKey | None] = Field(default_factory=dict)


class ImageSet(Block):
    """Images of one purpose."""

    # folder: every image below `path`, no labels. imagefolder: <path>/<class>/<image>; a folder named `unlabelled` counts for
    # fidelity only. coco, yolo, voc: annotated boxes (`octavo.images.formats`). masks: an image and a mask of one name,
    # <path>/images and <path>/masks (or gt_masks, labels), or several such datasets beside each other. identities:
    # <path>/<identity>/<image>. pairs: the images that a list of pairs names, of one identity or of two (LFW's `pairs.txt`).
    format: Literal["folder", "imagefolder", "coco", "yolo", "voc", "masks", "identities", "pairs"]
    path: str
    # imagefolder: a JSON map from folder name to class index; without it <path>/classes.json, folder names that `task.classes` has
    # or that are whole numbers, or their alphabetical order. Looked for below `path`, then below the project's folder: coco: the
    # JSON file; yolo: the folder of labels, a .txt list of images, or the .yaml with names; voc: the folder of XML files, or a list
    # of image names; pairs: the list, without it <path>/pairs.txt.
    annotations: str | None = None
    # For `input.resize: {rule: similarity}` without `points`: a .csv (name, x1, y1, ... a line) or .json (name to points) with the
    # landmarks of every image, in pixels. Looked for below `path`, then below the project's folder.
    landmarks: str | None = None
    # Masks of colours: class, by name or index, to [red, green, blue]; `void` counts for nothing.
    palette: dict[ClassKey, tuple[Level, Level, Level]] = Field(default_factory=dict)
    # Segmentation: values of the masks to the model's classes, by name or index; "*": all others; null counts for nothing.
    # Detection: the set's class names (or numbers) to the model's, by name or index, where they differ; null leaves a class out.
    class_map: dict[ClassKey, ClassKey | None] = Field(default_factory=dict)
    # Masks of a task with several heads: a head's name to its masks, instead of the three keys above. Where a head is not named, or
    # a dataset lacks its folder, that head is held against FP32 alone.
    heads: dict[str, HeadMasks] = Field(default_factory=dict)
    # Of identities and pairs: whole identities fall on one side, never an image here and another of the same identity there.
    split: Split | None = None
    # Take at most this many images, chosen by `seed`; of identities and pairs as many whole identities as that holds.
    limit: Positive | None = None
    seed: Whole = 0

    @model_validator(mode="after")
    def _masks_of_heads(self) -> ImageSet:
        if self.heads and self.format != "masks":
            raise ValueError(f"`heads` are masks, the format is {self.format}: use `format: masks`, or leave them out")
        beside = [key for key in ("annotations", "palette", "class_map") if getattr(self, key)]
        if self.heads and beside:
            raise ValueError(f"`{beside[0]}` stands beside `heads`: say it of each head")
        return self

    @property
    def of_identities(self) -> bool:
        """Whether labels are identities: of no order that a model knows, and never to be torn apart."""
        return self.format in ("identities", "pairs")


class Dataset(Block):
    """One of the datasets that lie beside each other in a set, as <path>/<dataset>/images."""

    # Out of domain: never calibrated or trained on, whatever `split` and `limit` say; validated whole, with metrics of its own.
    holdout: bool = False


class Data(Block):
    """Which images; calibration, validation and training never share one (by content)."""

    calibration: ImageSet
    validation: ImageSet
    train: ImageSet | None = None
    # By name, for all three sets. Each must be in the validation set.
    datasets: dict[str, Dataset] = Field(default_factory=dict)
    on_bad_image: Literal["error", "skip"] = "error"
    # Images of more pixels are bad images, by their header, before they are decoded: a pixel takes 3 bytes, and 12 as floats.
    max_pixels: Annotated[Whole, Field(ge=1, le=MOST_PIXELS)] = MAX_PIXELS

    @property
    def holdout(self) -> tuple[str, ...]:
        """Names of the datasets that are held out."""
        return tuple(sorted(name for name, dataset in self.datasets.items() if dataset.holdout))

    @property
    def reading(self) -> dict[str, Any]:
        """What counts for whoever reads one of the sets, beside that set's own block; with its defaults."""
        return {"on_bad_image": self.on_bad_image, "max_pixels": self.max_pixels, "holdout": list(self.holdout)}


class Packaged(Block):
    """A file that an installed package ships."""

    package: str
    # Its path as the package lists it.
    file: str
    # Author and terms, for data/<set>/SOURCES.md.
    licence: str
    # Where it goes inside the set: a file's path for a copy, a folder for crops.
    to: str
    # 0: copied as it is. n: n seeded square crops of the photo, each as a PNG.
    crops: Annotated[Whole, Field(ge=0)] = 0
    # n: n seeded views of the photo instead, each as a JPEG: a crop, mirrored or not, in other light, blurred, compressed.
    views: Annotated[Whole, Field(ge=0)] = 0
    # Shortest side of a crop, in pixels.
    least: Positive = 224

    @field_validator("to")
    @classmethod
    def _inside(cls, to: str) -> str:
        if to.startswith("/") or ".." in to.split("/"):
            raise ValueError(f"`to` {to!r} must stay inside the set's folder")
        return to

    @model_validator(mode="after")
    def _one_of_both(self) -> Packaged:
        if self.crops and self.views:
            raise ValueError("`crops` stands beside `views`: a photo gives one or the other")
        return self


class Rendered(Block):
    """Scenes that the project draws (octavo/images/rendered.py)."""

    # shapes: with exact boxes, as images and a COCO file. road: with exact masks, as `format: masks` reads them.
    kind: Literal["shapes", "road"] = "shapes"
    scenes: Positive
    # Sets of one kind and different seeds share no scene. Those from 1000 on are the training scripts' (benchmarks/train_*.py).
    seed: Annotated[Whole, Field(ge=0, lt=1000)]


def _made_how(value: Any) -> str:
    return "rendered" if isinstance(value, dict | Rendered) else "packaged"


class PackagedSets(Block):
    """Set name (a folder below data/) to its files: a list of what packages ship, or a map of how to render them."""

    # A set's name is its folder's.
    sets: dict[
        Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9_-]*$")],
        Annotated[Annotated[list[Packaged], Tag("packaged")] | Annotated[Rendered, Tag("rendered")], Discriminator(_made_how)],
    ] = Field(min_length=1)
