"""Datasets that are held out: never calibrated or trained on, validated whole, with figures of their own."""

import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import yaml
from conftest import ROOT, project_params, write_images
from hypothesis import given, settings
from hypothesis import strategies as st
from test_heads import two_heads
from test_segmentation import masks, network, pair, write

from octavo.errors import DataError, ParamsError
from octavo.evidence.pictures import write_pictures
from octavo.evidence.remarks import caption
from octavo.evidence.report import part_tables
from octavo.evidence.validation import Validation
from octavo.images.dataset import Images, open_set
from octavo.images.feeds import Feeds
from octavo.images.purpose import chosen_images, open_images, refuse_calibrated
from octavo.params import load_model
from octavo.params.grammar import Data, Input, Segmentation, Validate
from octavo.runtime.session import Session

COUNTS = {"day": 9, "dusk": 7, "night": 5}


def data(root: Path, *holdout: str, **blocks: dict) -> Data:
    """All three sets are of one root unless `blocks` say otherwise."""
    sets = {purpose: {"format": "masks", "path": str(root)} for purpose in ("calibration", "validation", "train")}
    for purpose, block in blocks.items():
        sets[purpose] = sets[purpose] | block
    return Data.model_validate(sets | {"datasets": {name: {"holdout": True} for name in holdout}})


@pytest.fixture(scope="module")
def root(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("road")
    for seed, (dataset, count) in enumerate(COUNTS.items()):
        for path in write_images(folder / dataset / "images", count, seed=seed, size=(6, 8)):
            write(folder / dataset / "masks" / path.name, np.zeros((6, 8)))
    return folder


def datasets(items) -> dict[str, int]:
    names = [item.dataset for item in items]
    return {name: names.count(name) for name in COUNTS if name in names}


parts = st.tuples(st.integers(0, 9), st.integers(1, 10)).map(lambda ends: {"start": ends[0] / 10, "stop": min(sum(ends), 10) / 10})
cuts = st.fixed_dictionaries(
    {"seed": st.integers(0, 9)},
    optional={"split": st.builds(lambda part, seed: part | {"seed": seed}, parts, st.integers(0, 9)), "limit": st.integers(1, 30)},
)


@given(st.lists(st.sampled_from(sorted(COUNTS)), min_size=1, max_size=2, unique=True), cuts, cuts, st.integers(0, 5))
@settings(deadline=None, max_examples=60)
def test_never_in_calibration_or_training_and_whole_in_validation(root, holdout, for_models, for_validation, seed):
    def opened(spec: Data, purpose: str) -> list:
        try:
            return open_images(spec, purpose, "data")
        except DataError as error:
            if "is empty" not in error.problem:
                raise
            return []

    spec = data(root, *holdout, calibration=for_models, train=for_models, validation=for_validation)
    for purpose in ("calibration", "train"):
        assert not set(datasets(opened(spec, purpose))) & set(holdout)
    found = datasets(opened(spec, "validation"))
    if found:
        assert {name: found[name] for name in holdout} == {name: COUNTS[name] for name in holdout}
        kept = sum(count for name, count in found.items() if name not in holdout)
        assert kept <= for_validation.get("limit", 21)
    # Two parts of one folder share no image, with or without a dataset held out of both.
    first, second = ({"split": {"start": start, "stop": stop, "seed": seed}} for start, stop in ((0, 0.4), (0.4, 1)))
    spec = data(root, *holdout, calibration=first, validation=second)
    calibration, validation = open_images(spec, "calibration", "data"), open_images(spec, "validation", "data")
    assert not {item.sha256 for item in calibration} & {item.sha256 for item in validation}
    assert len(calibration) + len(validation) == sum(COUNTS.values())


class TestDoor:
    def test_without_a_holdout_it_is_the_set(self, root):
        spec = data(root, validation={"limit": 4, "split": {"start": 0.5}})
        assert open_images(spec, "validation", "data") == open_set(spec.validation, "data.validation")
        assert datasets(open_images(spec, "calibration", "data")) == COUNTS

    def test_a_set_that_lies_in_or_above_the_held_out_folder(self, root, tmp_path):
        for dataset in ("day", "night"):
            write_images(tmp_path / "road" / dataset / "images", 2, seed=ord(dataset[0]))
        validation = {"format": "folder", "path": str(tmp_path / "road")}
        calibration = {"format": "folder", "path": str(tmp_path / "road" / "..")}
        above = data(root, "night", calibration=calibration, validation=validation)
        assert {item.name.rpartition("/")[0] for item in open_images(above, "calibration", "data")} == {"road/day/images"}
        inside = data(root, "night", train={"format": "folder", "path": str(root / "night/images")})
        with pytest.raises(DataError, match=r"data\.train: every image of .*night/images is held out \(night\)"):
            open_images(inside, "train", "data")

    def test_the_name_counts_in_another_folder_too(self, root, tmp_path):
        for dataset in ("night", "rain"):
            write_images(tmp_path / dataset / "images", 2, seed=ord(dataset[0]))
        spec = data(root, "night", calibration={"format": "folder", "path": str(tmp_path)})
        assert [item.dataset for item in open_images(spec, "calibration", "data")] == ["rain"] * 2

    def test_names_of_no_dataset(self, root, tmp_path):
        for purpose in ("calibration", "train", "validation"):
            with pytest.raises(
                ParamsError, match=r"data\.datasets\.nigth: .* no dataset of this name\n.*did you mean 'night'\? it has: day, dusk"
            ):
                open_images(data(root, "nigth"), purpose, "data")
        write_images(tmp_path / "some/images", 2, seed=1)
        with pytest.raises(ParamsError, match="datasets lie beside each other, as <path>/<dataset>/images"):
            open_images(data(root, "some", validation={"format": "folder", "path": str(tmp_path / "some")}), "validation", "data")
        # Calibration does not wait for validation's images; `validate` will look.
        away = data(root, "nigth", validation={"path": str(tmp_path / "none")})
        assert datasets(open_images(away, "calibration", "data")) == COUNTS

    def test_all_held_out_and_no_such_set(self, root):
        for purpose in ("calibration", "train", "validation"):
            with pytest.raises(DataError, match=r"is held out \(day, dusk, night\)\n  to mend: mark fewer"):
                open_images(data(root, *COUNTS), purpose, "data")
        bare = Data(**{key: value for key, value in data(root).model_dump().items() if key != "train"})
        with pytest.raises(ParamsError, match=r"data\.train: this key is missing"):
            open_images(bare, "train", "data")

    def test_a_copy_beside_the_held_out_dataset(self, tmp_path):
        for dataset in ("day", "night"):
            for path in write_images(tmp_path / dataset / "images", 2, seed=ord(dataset[0]), size=(6, 8)):
                write(tmp_path / dataset / "masks" / path.name, np.zeros((6, 8)))
        (tmp_path / "day/images/copy.png").write_bytes((tmp_path / "night/images/image_110_001.png").read_bytes())
        write(tmp_path / "day/masks/copy.png", np.zeros((6, 8)))
        for purpose in ("calibration", "train", "validation"):
            with pytest.raises(
                DataError, match=r"what is held out of it share 1 image\(s\) by content, the first: day/images/copy"
            ):
                open_images(data(tmp_path, "night"), purpose, "data")

    def test_calibration_that_a_dataset_was_held_out_of_since(self, root, tmp_path, monkeypatch):
        monkeypatch.chdir(tmp_path)
        blocks = {part: {"format": "masks", "path": str(root)} for part in ("calibration", "validation")}
        params = project_params(task="segmentation", data=blocks) | {"allow_outside": [str(root)]}
        Path("params.yaml").write_text(yaml.safe_dump(params))
        spec = load_model("params.yaml", "small")
        used = [(item.name, item.sha256) for item in open_images(spec.data, "calibration", "data") if item.dataset != "day"]
        assert len(chosen_images(spec, used, "data")) == len(used)
        since = spec.model_copy(update={"data": data(root, "night")})
        with pytest.raises(DataError, match=r"no longer holds night/images/.*\n.*with `-f`"):
            chosen_images(since, used, "data")
        items = open_images(since.data, "validation", "data")
        with pytest.raises(DataError, match=r"calibration and what is held out share 5 image\(s\).*\n.*`dvc repro -f`"):
            refuse_calibrated(used, items, since.data)
        of_day = [item for item in items if item.dataset == "day"]
        refuse_calibrated(used, of_day, since.data)
        with pytest.raises(DataError, match="calibration and validation share 9"):
            refuse_calibrated([(item.name, item.sha256) for item in of_day], of_day, since.data)

    def test_no_stage_and_no_other_room_opens_a_set_by_itself(self):
        """What reads `data:` goes through the door, or a holdout would be forgotten."""
        by_itself = re.compile(r"\b(open_set|list_set|READERS)\b")
        opening = [
            path for folder in ("stages", "octavo") for path in (ROOT / folder).rglob("*.py") if by_itself.search(path.read_text())
        ]
        # `octavo init` writes a `data:` block and reads none: there is no holdout yet.
        allowed = {ROOT / "octavo/images", ROOT / "octavo/images/formats", ROOT / "octavo/intake"}
        assert {path.parent for path in opening} <= allowed
        assert opening


class TestFigures:
    task = Segmentation(name="segmentation", classes=("dark", "bright"))
    spec = Input(size=(32, 32), resize={"rule": "letterbox"})

    @pytest.fixture(scope="class")
    def sessions(self) -> dict[str, Session]:
        coarse = network()
        bias = next(tensor for tensor in coarse.graph.initializer if tensor.name == "bias")
        bias.raw_data = np.array([4.0, -3.2], np.float32).tobytes()
        return {name: Session(model.SerializeToString()) for name, model in (("fp32", network()), ("int8", coarse))}

    @pytest.fixture(scope="class")
    def scenes(self, tmp_path_factory) -> Path:
        root, generator = tmp_path_factory.mktemp("scenes"), np.random.default_rng(0)
        for dataset, light in (("day", 0), ("night", -35), ("rain", -10)):
            for place in range(4):
                truth = np.kron(generator.integers(0, 2, (4, 4)), np.ones((10, 12), int))
                pair(root / dataset, str(place), truth)
                photo = np.where(truth[:, :, None] > 0, 160, 80) + light + generator.normal(0, 25, (40, 48, 3))
                write(root / dataset / "images" / f"{place}.png", photo.clip(0, 255))
        return root

    def record(self, sessions, scenes, items, holdout=()) -> tuple[dict, Validation]:
        validation = Validation(self.task, self.spec, sessions, Feeds("image"), holdout=holdout)
        validation.run(Images(items, self.spec))
        return validation.record(Validate(bootstrap=200)), validation

    def test_the_headline_is_over_the_rest_and_the_held_out_have_their_own(self, sessions, scenes, tmp_path):
        items = open_set(masks(scenes), "here")
        night = [item for item in items if item.dataset == "night"]
        rest = [item for item in items if item.dataset != "night"]
        record, validation = self.record(sessions, scenes, items, ("night",))
        of_rest, _ = self.record(sessions, scenes, rest)
        of_night, _ = self.record(sessions, scenes, night)
        expected = of_rest | {f"{key}.night": value for key, value in of_night.items() if ".gate." not in key and key != "metric"}
        assert record == expected | {"holdout": "night"}
        assert record["images"] == 8
        assert {"int8.miou.night", "int8.retained_low.night", "int8.miou.day", "int8.miou.rain", "images.night"} <= set(record)
        assert record["int8.miou.night"] != record["int8.miou"]
        assert [row["image"] for row in validation.rows()] == [item.name for item in [*rest, *night]]
        names = write_pictures(tmp_path / "pictures", validation, 12)
        assert len(names) == 12
        ((headings, *rows),) = part_tables(record)
        assert headings[:4] == ("variant", "held out", "kept [95 % interval]", "mIoU")
        low, high = (record[f"int8.retained_{end}.night"] for end in ("low", "high"))
        assert rows[1][:3] == ("int8", "night", f"{record['int8.retained.night']:.3f} [{low:.3f}, {high:.3f}]")
        host = {"host.id": "a", "host.cpu": "c", "host.cores": 2, "host.vnni": True, "host.session": "defaults"}
        latency = host | {"fp32.cpu.t1.b1.median_ms": 1.0}
        assert "8 images, 8 labelled; held out, never calibrated on: night (4 images)" in caption(record, latency)

    def test_held_out_images_alone_are_no_validation(self, sessions, scenes):
        items = [item for item in open_set(masks(scenes), "here") if item.dataset == "night"]
        with pytest.raises(DataError, match=r"no readable image is left beside what is held out \(night\)"):
            self.record(sessions, scenes, items, ("night",))

    def test_a_name_that_is_an_output_too(self, scenes):
        sessions = {name: Session(two_heads().SerializeToString()) for name in ("fp32", "int8")}
        task = Segmentation(name="segmentation", output="bright")
        validation = Validation(task, self.spec, sessions, Feeds("image"), holdout=("colour",))
        items = [replace(item, dataset="colour" if item.dataset == "night" else None) for item in open_set(masks(scenes), "here")]
        validation.run(Images(items, self.spec))
        with pytest.raises(DataError, match="the dataset 'colour' is named as a class or an output: int8.sqnr_db.colour is both"):
            validation.record(Validate(bootstrap=100))
