"""Identities, lists of pairs, landmarks and the similarity warp: what is read, what is refused, and where points come to lie."""

import json
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from octavo.errors import DataError
from octavo.images.dataset import Images, Item, cut, open_set
from octavo.images.frame import Frame
from octavo.images.pairs import Pair, joined
from octavo.images.preprocess import preprocess
from octavo.images.purpose import open_images
from octavo.images.splits import part_of_identities, pick_identities
from octavo.images.training import Batches
from octavo.images.warp import similarity
from octavo.params.grammar import Data, ImageSet, Input, Split


def photo(path: Path, seed: int) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.fromarray(np.random.default_rng(seed).integers(0, 256, (12, 10, 3), dtype=np.uint8)).save(path)
    return path


def people(root: Path, **counts: int) -> Path:
    """<root>/<name>/<name>_0001.png ..."""
    for person, (name, count) in enumerate(counts.items()):
        for place in range(count):
            photo(root / name / f"{name}_{place + 1:04d}.png", 100 * person + place)
    return root


def identities(root: Path, **settings) -> ImageSet:
    return ImageSet(format="identities", path=str(root), **settings)


def pairs(root: Path, text: str | None = None, **settings) -> ImageSet:
    if text is not None:
        (root / "pairs.txt").write_text(text)
    return ImageSet(format="pairs", path=str(root), **settings)


def validated(images: ImageSet) -> list[Item]:
    return open_images(Data(calibration=images, validation=images), "validation", "m.data")


class TestIdentities:
    def test_a_folder_an_identity_in_the_order_of_the_alphabet(self, tmp_path):
        people(tmp_path, bob=2, ada=1, unlabelled=1)
        (tmp_path / "empty").mkdir()
        photo(tmp_path / "zoe" / "deeper" / "x.png", 7)
        found = {item.name: item.label for item in open_set(identities(tmp_path), "here")}
        assert found == {
            "ada/ada_0001.png": 0,
            "bob/bob_0001.png": 1,
            "bob/bob_0002.png": 1,
            "unlabelled/unlabelled_0001.png": None,
            "zoe/deeper/x.png": 2,
        }

    def test_numbers_and_class_maps_mean_nothing(self, tmp_path):
        people(tmp_path, **{"7": 1, "1000": 1})
        (tmp_path / "classes.json").write_text("{}")
        assert [item.label for item in open_set(identities(tmp_path), "here")] == [0, 1]
        with pytest.raises(DataError, match=r"here\.annotations: format 'identities' reads none"):
            open_set(identities(tmp_path, annotations="pairs.txt"), "here")

    def test_what_gives_no_pairs_cannot_be_validated_but_calibrated_on(self, tmp_path):
        one, lonely = people(tmp_path / "one", ada=3), people(tmp_path / "lonely", ada=1, bob=1)
        with pytest.raises(DataError, match=r"m\.data\.validation: .* no impostor pair, .*: 3 images of 1 identity\b"):
            validated(identities(one))
        with pytest.raises(DataError, match=r"no genuine pair, .*: 2 images of 2 identities"):
            validated(identities(lonely))
        for root in (one, lonely):
            images = identities(root)
            assert open_images(Data(calibration=images, validation=images), "calibration", "m.data")
        both = people(tmp_path / "both", ada=2, bob=2)
        with pytest.raises(DataError, match=r"no impostor pair, .* \(of what `split` and `limit` leave\): 2 images of 1 identity"):
            validated(identities(both, split={"stop": 0.5}))

    @given(st.lists(st.integers(1, 6), min_size=2, max_size=12), st.floats(0.1, 0.9), st.integers(0, 5))
    @settings(deadline=None, max_examples=60)
    def test_no_identity_lies_on_both_sides(self, sizes, border, seed):
        items = [
            Item(Path(), f"{label}_{place}", f"{label}-{place}", label) for label, size in enumerate(sizes) for place in range(size)
        ]
        low, high = (part_of_identities(items, Split(start=a, stop=b, seed=seed)) for a, b in ((0, border), (border, 1)))
        assert sorted(item.name for item in [*low, *high]) == sorted(item.name for item in items)
        assert not {item.label for item in low} & {item.label for item in high}
        assert len({item.label for item in low}) == round(border * len(sizes))
        renamed = [Item(Path(), f"x{item.name}", item.sha256, 99 - item.label) for item in items[::-1]]
        assert {item.sha256 for item in part_of_identities(renamed, Split(start=0, stop=border, seed=seed))} == {
            item.sha256 for item in low
        }, "names, numbers and order decide nothing"

    def test_identities_that_share_a_file_count_as_one(self):
        items = [
            Item(Path(), str(place), digest, label)
            for place, (digest, label) in enumerate([("a", 0), ("b", 0), ("b", 1), ("c", 1)])
        ]
        items.append(Item(Path(), "9", "z", 2))
        for start, stop in ((0, 0.5), (0.5, 1)):
            assert {item.label for item in part_of_identities(items, Split(start=start, stop=stop))} in ({0, 1}, {2})

    def test_a_limit_takes_whole_identities(self, tmp_path):
        items = [Item(Path(), f"{label}_{place}", f"{label}-{place}", label) for label in range(6) for place in range(4)]
        for limit in (4, 9, 23):
            found = pick_identities(items, limit, 0)
            assert len(found) == limit // 4 * 4
            assert all(sum(item.label == label for item in found) in (0, 4) for label in range(6))
        assert len(pick_identities(items, 3, 0)) == 3
        assert {item.label for item in pick_identities(items, 8, 0)} != {item.label for item in pick_identities(items, 8, 1)}
        root = people(tmp_path, ada=2, bob=2, eve=2)
        assert len(cut(open_set(identities(root), "here"), identities(root, limit=5), "here")) == 4


LFW = "2\t1\nada\t1\t2\nada\t1\tbob\t2\nbob\t1\t2\neve\t1\tbob\t1\n"


class TestPairs:
    @pytest.fixture
    def root(self, tmp_path) -> Path:
        return people(tmp_path, ada=2, bob=3, eve=1)

    def test_lfw_s_form(self, root):
        found = {item.name: item for item in validated(pairs(root, LFW))}
        assert {name: item.label for name, item in found.items()} == {
            "ada/ada_0001.png": 0,
            "ada/ada_0002.png": 0,
            "bob/bob_0001.png": 1,
            "bob/bob_0002.png": 1,
            "eve/eve_0001.png": 2,
        }, "bob's third image is in no pair"
        assert found["ada/ada_0001.png"].pairs == (Pair("ada/ada_0002.png", True, 0), Pair("bob/bob_0002.png", False, 0))
        assert found["eve/eve_0001.png"].pairs == (Pair("bob/bob_0001.png", False, 1),)
        assert found["ada/ada_0002.png"].pairs == ()
        assert all(item.labelled for item in found.values())
        assert not found["ada/ada_0001.png"].unlabelled().labelled

    def test_a_count_alone_has_no_folds_and_spaces_will_do(self, root):
        for text in ("1\nada 1 2\nada 1 bob 1\n", "\ufeff1\n\nada\t1\t2\n  ada 1 bob 1  \n\n"):
            first = validated(pairs(root, text))[0]
            assert first.pairs == (Pair("ada/ada_0002.png", True, None), Pair("bob/bob_0001.png", False, None))

    def test_paths_and_who_is_who_by_the_genuine_pairs(self, tmp_path):
        for name in "abcdef":
            photo(tmp_path / "x y" / f"{name}.png", ord(name))
        text = "\n".join(
            f"x y/{first}.png\tx y/{second}.png\t{same}" for first, second, same in ("ab1", "bc1", "de1", "ad0", "ef0")
        )
        found = validated(pairs(tmp_path, text))
        assert [item.label for item in found] == [0, 0, 0, 1, 1, 2]
        assert found[0].pairs == (Pair("x y/b.png", True), Pair("x y/d.png", False))

    def test_where_the_list_lies(self, root, tmp_path_factory, monkeypatch):
        monkeypatch.chdir(tmp_path_factory.mktemp("project"))
        Path("lists").mkdir()
        Path("lists/mine.txt").write_text(LFW)
        assert len(validated(pairs(root, annotations="lists/mine.txt"))) == 5
        with pytest.raises(DataError, match=r"here\.annotations: no file or folder .*other\.txt"):
            open_set(pairs(root, annotations="other.txt"), "here")
        with pytest.raises(DataError, match=r"here\.annotations: no list of pairs .*pairs\.txt"):
            open_set(pairs(root), "here")

    @pytest.mark.parametrize(
        ("text", "message"),
        [
            ("", r"pairs\.txt is empty"),
            ("\n \n", r"pairs\.txt is empty"),
            ("2\t300\n" + LFW[4:], r"pairs\.txt:1 says 2 fold\(s\) of 300 genuine and 300 impostor pairs, 1200 in all; 4 follow"),
            ("3\n", r"pairs\.txt:1 says 1 fold\(s\) of 3 .*; 0 follow"),
            ("0\n", r"pairs\.txt:1 says 1 fold\(s\) of 0"),
            ("1\nada 1 2\nada 1 nobody 1\n", r"pairs\.txt:3: image 1 of 'nobody' is not there: no .*nobody_0001\.jpg"),
            ("1\nada 1 5\nada 1 bob 1\n", r"pairs\.txt:2: image 5 of 'ada' is not there"),
            ("1\nada 1 two\nada 1 bob 1\n", r"pairs\.txt:2: 'ada 1 two' is neither `name n1 n2` nor"),
            ("1\nada 1\nada 1 bob 1\n", r"pairs\.txt:2: 'ada 1' is neither"),
            ("1\nada 1 1\nada 1 bob 1\n", r"pairs\.txt:2: pairs ada/ada_0001\.png with itself"),
            ("1\nada 1 2\nada 1 ada 2\n", r"pairs\.txt:3: an impostor pair of one identity, 'ada'"),
            ("1\n../etc 1 2\nada 1 bob 1\n", r"pairs\.txt:2: the image name '\.\./etc' leads out"),
            ("2 1\nada 1 2\nbob 1 2\nada 1 bob 1\neve 1 bob 1\n", r"pairs\.txt:2: fold 1 of 2 begins here and has 2 genuine and 0"),
            ("ada 1 2\nada 1 bob 1\n", r"pairs\.txt:1: 'ada 1 2' is not `path1 path2 0`"),
            ("ada/ada_0001.png ada/ada_0002.png yes\n", r"pairs\.txt:1: .* is not `path1 path2 0`"),
            ("ada/ada_0001.png ada/ada_0009.png 1\n", r"pairs\.txt:1: no image .*ada_0009\.png"),
            ("/etc/passwd ada/ada_0001.png 1\n", r"pairs\.txt:1: the image name '/etc/passwd' leads out"),
            ("ada/ada_0001.png ./ada/ada_0001.png 1\n", r"pairs\.txt:1: pairs ada/ada_0001\.png with itself"),
            (
                "ada/ada_0001.png ada/ada_0002.png 1\nada/ada_0002.png ada/ada_0001.png 0\n",
                r"pairs\.txt:2: ada/ada_0002\.png and ada/ada_0001\.png are an impostor pair, and one identity",
            ),
        ],
    )
    def test_what_is_wrong_is_named_by_file_and_line(self, root, text, message):
        with pytest.raises(DataError, match=message) as raised:
            open_set(pairs(root, text), "here")
        assert raised.value.mend

    def test_one_kind_of_pairs_tells_nothing(self, root):
        with pytest.raises(DataError, match="no impostor pair, .*: the list names none"):
            validated(pairs(root, "ada/ada_0001.png ada/ada_0002.png 1\n"))
        with pytest.raises(DataError, match="no genuine pair, .*: the list names none"):
            validated(pairs(root, "ada/ada_0001.png bob/bob_0002.png 0\n"))
        with pytest.raises(DataError, match=r"no \w+ pair, .*\(of what `split` and `limit` leave\)"):
            validated(pairs(root, LFW, split={"stop": 0.4}))

    def test_two_files_of_one_number(self, root):
        photo(root / "ada" / "ada_0001.jpg", 5)
        with pytest.raises(DataError, match=r"pairs\.txt:2: image 1 of 'ada' may be any of ada/ada_0001\.jpg, ada/ada_0001\.png"):
            open_set(pairs(root, LFW), "here")

    def test_groups(self):
        assert joined("abcdef", [("c", "b"), ("f", "c"), ("d", "e")]) == dict(a="a", b="b", c="b", f="b", d="d", e="d")


WARP = {"size": [112, 112], "resize": {"rule": "similarity", "template": "arcface"}, "scale": 1}
POINTS = st.lists(st.tuples(st.floats(-100, 100), st.floats(-100, 100)), min_size=2, max_size=6)


class TestWarp:
    @given(POINTS, st.floats(-3.1, 3.1), st.floats(0.05, 20), st.tuples(st.floats(-500, 500), st.floats(-500, 500)))
    @settings(deadline=None)
    def test_any_similarity_is_recovered(self, points, angle, scale, shift):
        source = np.array(points)
        if np.ptp(source, axis=0).max() < 1:
            return
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        found = similarity(source, source @ turn.T + shift)
        assert found[:, :2] == pytest.approx(turn, abs=1e-6 * scale)
        assert source @ found[:, :2].T + found[:, 2] == pytest.approx(source @ turn.T + shift, abs=1e-5 * max(scale, 1))

    @given(st.integers(0, 1000))
    @settings(deadline=None, max_examples=30)
    def test_noisy_points_have_no_better_similarity(self, seed):
        """Least squares: no small change of shift, turn or scale lies nearer; and it is never a mirroring."""
        generator = np.random.default_rng(seed)
        source, target = generator.standard_normal((2, 5, 2))
        best = similarity(source, target)
        assert np.linalg.det(best[:, :2]) >= 0

        def left(matrix: np.ndarray) -> float:
            return ((source @ matrix[:, :2].T + matrix[:, 2] - target) ** 2).sum()

        for change in generator.normal(0, 1e-3, (20, 4)):
            a, b, x, y = change
            assert left(best + np.array([[a, -b, x], [b, a, y]])) >= left(best) - 1e-12

    @given(
        st.floats(-0.6, 0.6),
        st.floats(0.5, 1.5),
        st.floats(60, 90),
        st.floats(60, 90),
        st.sampled_from(["arcface", "arcface_112x96"]),
    )
    @settings(deadline=None, max_examples=25)
    def test_a_dot_on_each_landmark_comes_to_lie_on_the_template(self, angle, scale, x, y, template):
        spec = Input.model_validate(
            WARP | {"size": [112, 112 if template == "arcface" else 96]} | {"resize": {"rule": "similarity", "template": template}}
        )
        target = np.array(spec.template)
        turn = scale * np.array([[np.cos(angle), -np.sin(angle)], [np.sin(angle), np.cos(angle)]])
        points = (target - target.mean(0)) @ turn.T + (x + 40, y + 40)
        rows, columns = np.mgrid[:240, :240]
        for place in (0, 2, 4):
            spot = np.exp(-((columns - points[place][0]) ** 2 + (rows - points[place][1]) ** 2) / (2 * (2 * scale) ** 2))
            image = np.repeat((spot * 255).astype(np.uint8)[:, :, None], 3, 2)
            found = preprocess(image, spec, tuple(map(tuple, points)))[0, 0].astype(float)
            assert found.shape == tuple(spec.size)
            seen = np.array([(found.sum(0) * np.arange(spec.size[1])).sum(), (found.sum(1) * np.arange(spec.size[0])).sum()])
            assert seen / found.sum() == pytest.approx(target[place], abs=0.35)

    def test_templates_follow_the_size(self):
        assert Input.model_validate(WARP).template[0] == pytest.approx((38.2946, 51.6963))
        double = Input.model_validate(WARP | {"size": [224, 224]})
        assert double.template[2] == pytest.approx((2 * 56.0252, 2 * 71.7366))
        narrow = Input.model_validate(WARP | {"size": [112, 96], "resize": {"rule": "similarity", "template": "arcface_112x96"}})
        assert narrow.template[0] == pytest.approx((30.2946, 51.6963))
        own = Input.model_validate(WARP | {"resize": {"rule": "similarity", "template": [[10, 20], [30, 20]]}})
        assert own.at((224, 224)).template == ((20, 40), (60, 40))

    def test_fixed_points_are_shares_of_the_sides(self):
        """The warp of the benchmark's MobileFaceNet: .88 times as large, (125, 113) of 250x250 comes to (55.9, 51.6)."""
        import cv2

        resize = {"rule": "similarity", "points": [[0.5, 0.452], [0.7, 0.452]], "template": [[55.9, 51.6], [99.9, 51.6]]}
        spec = Input.model_validate(WARP | {"resize": resize})
        image = np.random.default_rng(0).integers(0, 256, (250, 250, 3), dtype=np.uint8)
        matrix = np.array([[0.88, 0, 55.9 - 0.88 * 125], [0, 0.88, 51.6 - 0.88 * 113]])
        assert np.abs(preprocess(image, spec)[0].transpose(1, 2, 0) - cv2.warpAffine(image, matrix, (112, 112))).max() <= 1
        large = cv2.resize(image, (500, 500), interpolation=cv2.INTER_NEAREST)
        assert np.abs(preprocess(large, spec) - preprocess(image, spec)).mean() < 30, "any size of the photo"

    def test_what_cannot_be_warped(self):
        spec, image = Input.model_validate(WARP), np.zeros((50, 50, 3), np.uint8)
        with pytest.raises(DataError, match="has no points to warp by"):
            preprocess(image, spec)
        with pytest.raises(DataError, match=r"has 2 points, `input\.resize\.template` 5"):
            preprocess(image, spec, ((1, 1), (2, 2)))
        with pytest.raises(DataError, match="all source points are alike"):
            preprocess(image, spec, ((1.0, 1.0),) * 5)
        with pytest.raises(DataError, match="no frame that maps boxes or masks back"):
            Frame.of(50, 50, spec)


class TestLandmarks:
    points = [[3, 4], [7, 4], [5, 6], [3, 9], [7, 9]]

    @pytest.fixture
    def root(self, tmp_path) -> Path:
        return people(tmp_path, ada=1, bob=1)

    def write(self, root: Path, kind: str, names: list[str]) -> None:
        flat = [value for point in self.points for value in point]
        if kind == "json":
            (root / "marks").write_text("")
            (root / "marks.json").write_text(json.dumps(dict(zip(names, [self.points, flat], strict=False))))
            return
        header = [["name", *(f"{axis}{place}" for place in range(1, 6) for axis in "xy")]] if kind == "csv with header" else []
        (root / "marks.csv").write_text("\n".join(",".join(map(str, row)) for row in [*header, *([name, *flat] for name in names)]))

    @pytest.mark.parametrize("kind", ["csv", "csv with header", "json"])
    def test_each_image_has_its_own(self, root, kind):
        self.write(root, kind, ["ada/ada_0001.png", "bob/bob_0001.png"])
        items = open_set(identities(root, landmarks=f"marks.{kind[:4].strip()}"), "here")
        assert [item.points for item in items] == [tuple(map(tuple, self.points))] * 2
        tensors = [tensor for _, tensor in Images(items, Input.model_validate(WARP))]
        assert all(tensor.shape == (1, 3, 112, 112) and tensor.any() for tensor in tensors)
        (batch,) = Batches(items, Input.model_validate(WARP), 2, flip=False).epoch(0)
        assert {image.tobytes() for image in batch.images} == {tensor[0].tobytes() for tensor in tensors}

    def test_an_image_without_is_named(self, root):
        self.write(root, "csv", ["ada/ada_0001.png"])
        with pytest.raises(DataError, match=r"here\.landmarks: .*marks\.csv has no points for bob/bob_0001\.png \(1 of 2 images\)"):
            open_set(identities(root, landmarks="marks.csv"), "here")
        with pytest.raises(DataError, match=r"here\.landmarks: no file or folder .*none\.csv"):
            open_set(identities(root, landmarks="none.csv"), "here")

    @pytest.mark.parametrize(
        ("name", "text", "message"),
        [
            ("m.csv", "a.png,1,2,3\n", r"m\.csv:1: \['1', '2', '3'\] is no list of points"),
            ("m.csv", "name,x1,y1,x2,y2\na.png,1,2,3,four\n", r"m\.csv:2: .* is no list of points"),
            ("m.csv", "a.png,1,2,3,nan\n", r"m\.csv:1: .* is no list of points"),
            ("m.csv", "a.png,1,2,3,4\na.png,1,2,3,4\n", r"m\.csv:2: a\.png has points already"),
            ("m.json", "[1]", "must map image names to points"),
            ("m.json", "{", "not a readable JSON map"),
            ("m.json", '{"a.png": [[1, 2, 3], [4]]}', r"m\.json: a\.png: .* is no list of points"),
            ("m.json", '{"a.png": 3}', r"m\.json: a\.png: \[3\] is no list of points"),
        ],
    )
    def test_bad_files_are_named(self, root, name, text, message):
        (root / name).write_text(text)
        with pytest.raises(DataError, match=message):
            open_set(identities(root, landmarks=name), "here")
