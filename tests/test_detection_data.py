"""Annotated boxes from COCO, YOLO and PASCAL VOC files: places, class maps, and everything that can be wrong with them."""

import copy
import json
import math
import unicodedata
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import pytest
import yaml
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from octavo.errors import DataError, ParamsError
from octavo.images.dataset import Classes, Images, Item, open_set
from octavo.images.decode import read_image, read_shape
from octavo.intake.folder import recognised
from octavo.params.grammar import Detection, ImageSet, Input
from octavo.tasks.detection.names import COCO80, COCO91, class_names

WIDTH, HEIGHT = 100, 80
ROWS = [("cat", (10, 20, 40, 60)), ("dog", (0, 0, 100, 80)), ("cat", (99, 79, 100, 80))]
NAMES = ("cat", "dog")


def picture(path: Path, size: tuple[int, int] = (WIDTH, HEIGHT), orientation: int = 1) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    exif = Image.Exif()
    exif[0x0112] = orientation
    # Every picture has its own content.
    Image.new("RGB", size, tuple(np.frombuffer(path.name.encode()[-7:-4].rjust(3), np.uint8))).save(path, exif=exif)


def coco(rows=ROWS) -> dict:
    return {
        "images": [
            {"id": 7, "file_name": "a.png", "width": WIDTH, "height": HEIGHT},
            {"id": 9, "file_name": "b.png", "width": WIDTH, "height": HEIGHT},
        ],
        # Ids with gaps, out of order: their order counts, not their place.
        "categories": [{"id": 18, "name": "dog"}, {"id": 17, "name": "cat"}],
        "annotations": [
            {"id": place, "image_id": 7, "category_id": {"cat": 17, "dog": 18}[name], "bbox": [x, y, right - x, bottom - y]}
            for place, (name, (x, y, right, bottom)) in enumerate(rows)
        ],
    }


def write_coco(root: Path, rows=ROWS, **changes) -> Path:
    for name in "ab":
        picture(root / f"images/{name}.png")
    (root / "instances.json").write_text(json.dumps(coco(rows) | changes))
    return root


def write_yolo(root: Path, rows=ROWS, names: object = NAMES) -> Path:
    for name in "ab":
        picture(root / f"images/val/{name}.png")
    lines = [
        f"{NAMES.index(name)} {(x + right) / 2 / WIDTH} {(y + bottom) / 2 / HEIGHT} {(right - x) / WIDTH} {(bottom - y) / HEIGHT}"
        for name, (x, y, right, bottom) in rows
    ]
    (root / "labels/val").mkdir(parents=True)
    (root / "labels/val/a.txt").write_text("\n".join(lines) + "\n")
    if names:
        (root / "data.yaml").write_text(json.dumps({"names": names, "val": "images/val"}))
    return root


OBJECT = (
    "<object><name>{}</name><difficult>{}</difficult>"
    "<bndbox><xmin>{}</xmin><ymin>{}</ymin><xmax>{}</xmax><ymax>{}</ymax></bndbox></object>"
)
VOC = f"<annotation><size><width>{WIDTH}</width><height>{HEIGHT}</height></size>%s</annotation>"


def write_voc(root: Path, rows=ROWS, **files: str) -> Path:
    for name in "ab":
        picture(root / f"JPEGImages/{name}.png")
    (root / "Annotations").mkdir(exist_ok=True)
    objects = "".join(OBJECT.format(name, 0, x + 1, y + 1, right, bottom) for name, (x, y, right, bottom) in rows)
    for name, text in ({"a": VOC % objects, "b": VOC % ""} | files).items():
        (root / f"Annotations/{name}.xml").write_text(text)
    return root


WRITERS = {"coco": write_coco, "yolo": write_yolo, "voc": write_voc}


def read(root: Path, form: str, classes: Classes = Classes(2, NAMES), **block: object) -> list[Item]:  # noqa: B008 - frozen
    return open_set(ImageSet.model_validate({"format": form, "path": str(root), **block}), "here", classes)


class TestEveryFormat:
    @pytest.mark.parametrize("form", WRITERS)
    def test_boxes_are_in_pixels_and_an_image_without_objects_has_none(self, form, tmp_path):
        first, second = read(WRITERS[form](tmp_path), form)
        assert [Path(item.name).name for item in (first, second)] == ["a.png", "b.png"]
        assert first.objects.xyxy == pytest.approx(np.array([box for _, box in ROWS]))
        assert first.objects.classes.tolist() == [0, 1, 0]
        assert first.objects.area == pytest.approx([30 * 40, 8000, 1])
        assert not first.objects.crowd.any()
        assert first.labelled
        assert second.labelled
        assert second.objects.xyxy.shape == (0, 4)

    @given(
        rows=st.lists(
            st.tuples(st.sampled_from(NAMES), *[st.integers(0, side - 1) for side in (WIDTH, HEIGHT)], st.data()), max_size=6
        )
    )
    @settings(max_examples=25, deadline=None)
    def test_all_three_give_back_what_was_written(self, rows):
        rows = [
            (name, (x, y, data.draw(st.integers(x + 1, WIDTH)), data.draw(st.integers(y + 1, HEIGHT)))) for name, x, y, data in rows
        ]
        for form, write in WRITERS.items():
            with TemporaryDirectory() as folder:
                objects = read(write(Path(folder), rows), form)[0].objects
            assert np.allclose(objects.xyxy, np.array([box for _, box in rows]).reshape(-1, 4), atol=1e-9)
            assert objects.classes.tolist() == [NAMES.index(name) for name, _ in rows]

    @pytest.mark.parametrize("form", WRITERS)
    def test_boxes_that_stick_out_are_clipped_and_far_ones_counted(self, form, tmp_path, capsys):
        rows = [("cat", (-1, 0, 50, 81)), ("dog", (60, 10, 109, 40))]
        objects = read(WRITERS[form](tmp_path, rows), form)[0].objects
        assert objects.xyxy == pytest.approx(np.array([[0, 0, 50, 80], [60, 10, 100, 40]]))
        assert objects.area == pytest.approx([4000, 1200])
        said = capsys.readouterr().out
        assert "note: here: 1 annotated box clipped that stick out by more than 2 pixels, the first: " in said

    @pytest.mark.parametrize("form", ["coco", "voc"])
    def test_shares_of_the_image_where_pixels_are_due_are_refused(self, form, tmp_path):
        rows = [("cat", (0.1, 0.2, 0.4, 0.6)), ("dog", (0, 0, 1, 1)), ("cat", (0.99, 0.99, 1.002, 1))]
        with pytest.raises(DataError, match=r"all 3 annotated boxes lie within the first pixel(.|\n)*multiply x and width by"):
            read(WRITERS[form](tmp_path, rows), form)

    @pytest.mark.parametrize("form", ["coco", "voc"])
    def test_a_first_pixel_in_whole_numbers_is_a_box(self, form, tmp_path):
        assert len(read(WRITERS[form](tmp_path, [("cat", (0, 0, 1, 1))]), form)[0].objects) == 1

    @pytest.mark.parametrize("form", WRITERS)
    def test_a_box_that_is_listed_twice_counts_twice_and_is_told(self, form, tmp_path, capsys):
        rows = [("cat", (10, 10, 20, 20)), ("dog", (10, 10, 20, 20)), ("cat", (10, 10, 20, 20)), ("cat", (10, 10, 20, 21))]
        assert len(read(WRITERS[form](tmp_path, rows), form)[0].objects) == 4
        assert "note: here: 1 annotated box listed again, with the class and corners of one before" in capsys.readouterr().out
        assert len(read(WRITERS[form](tmp_path / "once", rows[:2]), form)[0].objects) == 2
        assert "listed again" not in capsys.readouterr().out

    @pytest.mark.parametrize("form", WRITERS)
    def test_boxes_without_area_are_left_out_and_counted(self, form, tmp_path, capsys):
        rows = [("cat", (10, 10, 10, 20)), ("dog", (5, 5, 9, 9)), ("cat", (-1, 0, 0, 9))]
        assert len(read(WRITERS[form](tmp_path, rows), form)[0].objects) == 1
        assert "note: here: 2 annotated boxes without area left out, the first: " in capsys.readouterr().out

    @pytest.mark.parametrize("form", WRITERS)
    @pytest.mark.parametrize(
        ("box", "problem"),
        [((30, 10, 20, 20), "negative width or height"), ((-30, -30, -10, -10), "lies outside the image of 100x80")],
    )
    def test_boxes_that_cannot_be_are_errors(self, form, box, problem, tmp_path):
        with pytest.raises(DataError, match=problem) as caught:
            read(WRITERS[form](tmp_path, [("cat", box)]), form)
        assert any(
            name in str(caught.value) for name in ("instances.json: annotation 0 of a.png", "a.txt, line 1", "a.xml: object 1")
        )

    def test_an_unreadable_image_is_left_to_the_policy(self, tmp_path):
        write_yolo(tmp_path)
        (tmp_path / "images/val/b.png").write_bytes(b"no image")
        lenient = Images(read(tmp_path, "yolo"), Input(size=(8, 8)), "skip")
        assert [item.path.name for item, _ in lenient] == ["a.png"]
        assert len(lenient.skipped) == 1

    @pytest.mark.parametrize("form", ["coco", "voc"])
    def test_a_size_that_contradicts_the_file_is_an_error(self, form, tmp_path):
        WRITERS[form](tmp_path)
        path = next(tmp_path.rglob("a.png"))
        picture(path, orientation=6)
        assert read_shape(path) == read_image(path).shape[:2] == (WIDTH, HEIGHT)
        with pytest.raises(
            DataError, match=r"says .*a\.png is 100x80 pixels, it is 80x100 \(height and width changed places: its EXIF"
        ):
            read(tmp_path, form)
        picture(path, (HEIGHT, WIDTH))
        with pytest.raises(
            DataError, match=r"is 100x80 .* changed places\)\n.*, or exchange the two there if its boxes are right$"
        ):
            read(tmp_path, form)
        picture(path, (50, 40))
        with pytest.raises(DataError, match="is 100x80 pixels, it is 50x40"):
            read(tmp_path, form)

    def test_yolo_shares_are_of_the_photo_as_it_is_read(self, tmp_path):
        write_yolo(tmp_path)
        picture(tmp_path / "images/val/a.png", (HEIGHT, WIDTH), orientation=6)
        assert read(tmp_path, "yolo")[0].objects.xyxy[0].tolist() == pytest.approx([10, 20, 40, 60])

    @pytest.mark.parametrize("orientation", range(1, 9))
    @pytest.mark.parametrize("suffix", ["png", "jpg"])
    def test_shapes_are_read_from_headers(self, tmp_path, orientation, suffix):
        picture(tmp_path / f"x.{suffix}", orientation=orientation)
        assert read_shape(tmp_path / f"x.{suffix}") == read_image(tmp_path / f"x.{suffix}").shape[:2]

    @pytest.mark.parametrize("form", WRITERS)
    def test_files_written_on_windows(self, form, tmp_path):
        WRITERS[form](tmp_path)
        for path in [path for path in tmp_path.rglob("*") if path.suffix in (".json", ".txt", ".yaml", ".xml")]:
            path.write_bytes(b"\xef\xbb\xbf" + path.read_bytes().replace(b"\n", b"\r\n"))
        assert len(read(tmp_path, form)[0].objects) == 3

    @pytest.mark.parametrize(("form", "labels"), [("yolo", "labels/val/a.txt"), ("voc", "Annotations/a.xml")])
    def test_labels_that_a_link_has_lost_are_no_image_without_objects(self, tmp_path, form, labels):
        WRITERS[form](tmp_path)
        (tmp_path / labels).unlink()
        (tmp_path / labels).symlink_to(tmp_path / "cache/12")
        with pytest.raises(DataError, match=r"a\.(txt|xml) is a link to .*cache/12, which is not there"):
            read(tmp_path, form)

    @pytest.mark.parametrize(("form", "labels"), [("yolo", "labels/val/a.txt"), ("voc", "Annotations/a.xml")])
    def test_a_suffix_in_capitals(self, form, labels, tmp_path):
        file = WRITERS[form](tmp_path) / labels
        file.rename(file.with_suffix(file.suffix.upper()))
        assert len(read(tmp_path, form)[0].objects) == 3
        assert recognised(tmp_path, "detection").format == form
        if form == "yolo":
            (tmp_path / "labels/val/c.TXT").write_text("")
            with pytest.raises(DataError, match=r"1 label file\(s\) have no image: .*c\.TXT"):
                read(tmp_path, form)

    @pytest.mark.parametrize("apart", ["images", "labels"])
    @pytest.mark.parametrize("form", WRITERS)
    def test_names_with_accents_apart_from_their_letters(self, form, apart, tmp_path):
        root = WRITERS[form](tmp_path)
        forms = ("NFD", "NFC") if apart == "images" else ("NFC", "NFD")
        name, label = (unicodedata.normalize(each, "\u00e9t\u00e9") for each in forms)
        for path in [path for path in root.rglob("a.*") if path.is_file()]:
            path.rename(path.with_stem(name if path.suffix == ".png" else label))
        if form == "coco":
            file = root / "instances.json"
            file.write_text(file.read_text().replace("a.png", f"{label}.png"))
        elif form == "yolo":
            (root / "list.txt").write_text(f"images/val/{label}.png\nimages/val/b.png\n")
            assert sum(len(item.objects) for item in read(root, form, annotations="list.txt")) == 3
        else:
            (root / "list.txt").write_text(f"{label}\nb\n")
            assert sum(len(item.objects) for item in read(root, form, annotations="list.txt")) == 3
        found = read(root, form)
        assert sorted((Path(item.name).stem, len(item.objects)) for item in found) == sorted([(name, 3), ("b", 0)])

    @pytest.mark.parametrize("form", WRITERS)
    def test_sets_that_are_links_into_a_cache(self, form, tmp_path):
        WRITERS[form](tmp_path / "cache")
        (tmp_path / "set").mkdir()
        for path in (tmp_path / "cache").iterdir():
            (tmp_path / "set" / path.name).symlink_to(path)
        assert len(read(tmp_path / "set", form)[0].objects) == 3


class TestCoco:
    def test_crowds_and_areas_are_taken_over(self, tmp_path):
        content = coco()
        content["annotations"][0] |= {"iscrowd": 1, "area": 12.5}
        objects = read(write_coco(tmp_path, **content), "coco")[0].objects
        assert objects.crowd.tolist() == [True, False, False]
        assert objects.area == pytest.approx([12.5, 8000, 1])

    def test_objects_to_ignore_count_and_are_told(self, tmp_path, capsys):
        content = coco()
        content["annotations"][0] |= {"ignore": 1}
        content["annotations"][1] |= {"ignore": 1, "iscrowd": 1}
        content["annotations"][2] |= {"ignore": 0}
        objects = read(write_coco(tmp_path, **content), "coco")[0].objects
        assert objects.crowd.tolist() == [False, True, False]
        assert "note: here: 1 annotated box with `ignore: 1`, which COCO's evaluation passes over" in capsys.readouterr().out

    def test_corners_in_place_of_width_and_height_are_refused(self, tmp_path):
        content = coco([("cat", (x, 30, x + 35, 60)) for x in range(20, 65, 9)])
        for entry in content["annotations"]:
            x, y, width, height = entry["bbox"]
            entry["bbox"] = [x, y, x + width, y + height]
        with pytest.raises(DataError, match=r"5 of 5 boxes stick out(.|\n)*subtract x and y from the last two"):
            read(write_coco(tmp_path, **content), "coco")
        # One that is no pair of corners shows that all are as they should be; they may stick out.
        content["annotations"][0]["bbox"] = [50, 30, 20, 25]
        assert len(read(write_coco(tmp_path, **content), "coco")[0].objects) == 5

    def test_the_file_s_list_of_images_is_the_set(self, tmp_path):
        write_coco(tmp_path)
        picture(tmp_path / "images/other.png")
        assert len(read(tmp_path, "coco")) == 2

    def test_where_the_file_may_lie(self, tmp_path, monkeypatch):
        text = (write_coco(tmp_path / "set") / "instances.json").read_text()
        (tmp_path / "set/instances.json").rename(tmp_path / "elsewhere.json")
        root = tmp_path / "set"
        with pytest.raises(DataError, match=r"has no \.json file"):
            read(root, "coco")
        monkeypatch.chdir(tmp_path)
        assert len(read(root, "coco", annotations="elsewhere.json")) == 2
        (root / "annotations").mkdir()
        (root / "annotations/val.json").write_text(text)
        assert len(read(root, "coco")) == 2
        assert len(read(root, "coco", annotations="annotations/val.json")) == 2
        (root / "annotations/train.json").write_text(text)
        with pytest.raises(DataError, match=r"train\.json, val\.json\n.*`here.annotations: file.json`"):
            read(root, "coco")
        with pytest.raises(DataError, match="no file or folder"):
            read(root, "coco", annotations="none.json")
        with pytest.raises(DataError, match="is a folder"):
            read(root, "coco", annotations="annotations")

    @pytest.mark.parametrize("below", ["", "images/"])
    def test_a_missing_image_is_not_that_of_another_part(self, tmp_path, below):
        """Each part numbers its images from 1 on; the boxes of one were scored on the photo of another."""
        write_coco(tmp_path, images=[{"id": 7, "file_name": "val/1.png"}], annotations=[])
        for name in ("train/1.png", "val/2.png"):
            picture(tmp_path / below / name)
        with pytest.raises(DataError, match=r"names 1 image\(s\) of 1 that are not below .*val/1\.png"):
            read(tmp_path, "coco")
        # Deeper within the part, or under a name that no folder here has.
        picture(tmp_path / below / "val/deep/1.png")
        assert read(tmp_path, "coco")[0].path == tmp_path / below / "val/deep/1.png"
        write_coco(tmp_path, images=[{"id": 7, "file_name": "elsewhere/2.png"}], annotations=[])
        assert read(tmp_path, "coco")[0].path == tmp_path / below / "val/2.png"

    def test_images_are_found_by_path_and_by_unique_base_name(self, tmp_path):
        content = coco()
        content["images"][0]["file_name"] = "val2017/a.png"
        content["images"][1]["file_name"] = "images/b.png"
        assert len(read(write_coco(tmp_path, **content), "coco")) == 2
        picture(tmp_path / "deep/a.png")
        with pytest.raises(DataError, match=r"image 7: the image 'val2017/a.png' may be any of .*deep/a.png.*images/a.png"):
            read(tmp_path, "coco")

    def test_roboflow_s_heading_of_the_categories_is_no_class(self, tmp_path):
        heads = [{"id": 0, "name": "pets", "supercategory": "none"}]
        classes = [each | {"supercategory": "pets"} for each in coco()["categories"]]
        root = write_coco(tmp_path, categories=heads + classes)
        assert read(root, "coco", Classes(2, scored=True))[0].objects.classes.tolist() == [0, 1, 0]
        # Of a model that was trained with it the ids are the classes.
        assert read(root, "coco", Classes(3, scored=True))[0].objects.classes.tolist() == [1, 2, 1]
        names = Classes(2, ("dog", "cat"), scored=True)
        assert read(root, "coco", names, class_map={"pets": None, "cat": 0})[0].objects.classes.tolist() == [0, 0, 0]
        for change in ({"supercategory": "zoo"}, {"supercategory": "pets", "name": "pets"}):
            root = write_coco(tmp_path, categories=[heads[0] | change, classes[0] | {"supercategory": "wolves"}, classes[1]])
            with pytest.raises(DataError, match="the set has 3 classes"):
                read(root, "coco", Classes(2, scored=True))
        content = coco()
        content["annotations"][2]["category_id"] = 0
        root = write_coco(tmp_path, categories=heads + classes, annotations=content["annotations"])
        with pytest.raises(DataError, match="the set has 3 classes"):
            read(root, "coco", Classes(2, scored=True))

    @pytest.mark.parametrize("name", ["/etc/a.png", "../a.png", "images/../../a.png", "..\\a.png", "C:\\a.png"])
    def test_names_do_not_lead_out_of_the_set(self, tmp_path, name):
        content = coco()
        content["images"][0]["file_name"] = name
        picture(tmp_path / "a.png")
        with pytest.raises(DataError, match="leads out of the set's folder"):
            read(write_coco(tmp_path / "set", **content), "coco")

    @pytest.mark.parametrize(
        ("change", "problem"),
        [
            (lambda c: c["images"][1].update(id=7), "two images have the id 7"),
            (lambda c: c["images"][1].update(file_name="a.png"), "a.png and a.png are the same file"),
            (lambda c: c["images"][1].update(file_name="images/a.png"), "a.png and images/a.png are the same file"),
            (lambda c: c["images"][1].update(file_name="none.png"), r"names 1 image\(s\) of 2 that are not below .*: none.png"),
            (lambda c: c["images"][1].update(file_name="x" * 5000), r"not below .*: x{200}\.\.\."),
            (lambda c: c["images"][1].pop("file_name"), "image 9 has no `file_name`"),
            (lambda c: c["images"][1].update(id=None), "neither a number nor text"),
            (lambda c: c["images"][1].update(width=-3), "has the height and width 80 and -3"),
            (lambda c: c["images"][1].update(width=math.inf), "has the height and width 80 and inf"),
            (
                lambda c: c["annotations"][1].update(image_id="7"),
                "annotation 1 is of image '7', text; `images` has the id 7, a whole number",
            ),
            (
                lambda c: c["annotations"][1].update(category_id=17.0),
                "is of category 17.0, a float; `categories` has the id 17, a whole number",
            ),
            (lambda c: c["annotations"][1].update(image_id=8), "annotation 1 is of image 8, which `images` does not list"),
            (lambda c: c["annotations"][1].update(category_id=99), "annotation 1 of a.png is of category 99, which `categories`"),
            (lambda c: c["annotations"][1].update(bbox=[1, 2, math.nan, 4]), "annotation 1 of a.png has the bbox .*nan"),
            (lambda c: c["annotations"][1].update(bbox=[1, 2, 10**400, 4]), "annotation 1 of a.png has the bbox"),
            (lambda c: c["annotations"][1].update(bbox=[1, 2, 3]), r"has the bbox \[1, 2, 3\]"),
            (lambda c: c["annotations"][1].update(bbox=[1, 2, "3", 4]), "has the bbox"),
            (lambda c: c["annotations"][1].update(bbox=None, segmentation=[[1, 2, 3, 4, 5, 6]]), "no `bbox`, only a segmentation"),
            (lambda c: c["annotations"][1].update(iscrowd=2), "`iscrowd: 2`"),
            (lambda c: c["annotations"][1].update(area=-1), "`area: -1`"),
            (lambda c: c["categories"][1].update(id=18), "'dog' and 'cat' have the same category id 18"),
            (lambda c: c["categories"][1].pop("name"), "category at place 1 has id 17 and name None"),
            (lambda c: c.pop("annotations"), "has no list `annotations`"),
            (lambda c: c.update(images={}), "has no list `images`"),
            (lambda c: c.update(images=[]), "its list `images` is empty"),
        ],
    )
    def test_what_can_be_wrong_in_the_file(self, tmp_path, change, problem):
        content = copy.deepcopy(coco())
        change(content)
        write_coco(tmp_path)
        (tmp_path / "instances.json").write_text(json.dumps(content))
        with pytest.raises(DataError, match=problem) as caught:
            read(tmp_path, "coco")
        assert "instances.json" in str(caught.value)
        assert caught.value.mend

    @pytest.mark.parametrize("text", ['{"images": [\n{]', "[]", "", "\xff", "[" * 100000])
    def test_what_is_no_file_of_instances(self, tmp_path, text):
        write_coco(tmp_path)
        (tmp_path / "instances.json").write_text(text, encoding="latin-1")
        with pytest.raises(DataError, match=r"instances\.json (is not readable JSON|has no list)"):
            read(tmp_path, "coco")


class TestYolo:
    def test_where_labels_may_lie(self, tmp_path):
        root = write_yolo(tmp_path / "images/set")
        assert len(read(root, "yolo")[0].objects) == 3
        # The folder of one part: labels follow the last `images` of its own path.
        assert len(read(root / "images/val", "yolo", Classes(2))[0].objects) == 3
        (root / "labels/val").rename(root / "mine")
        with pytest.raises(DataError, match=r"none of 2 images has a label file; that of .*a.png would be .*set/labels/val/a.txt"):
            read(root, "yolo")
        (root / "mine/val").mkdir()
        (root / "mine/a.txt").rename(root / "mine/val/a.txt")
        assert len(read(root, "yolo", annotations="mine")[0].objects) == 3
        (root / "mine/val/a.txt").rename(root / "images/val/a.txt")
        assert len(read(root, "yolo")[0].objects) == 3

    def test_a_list_chooses_images(self, tmp_path):
        write_yolo(tmp_path)
        (tmp_path / "val.txt").write_text("./images/val/a.png\n\n")
        assert [item.name for item in read(tmp_path, "yolo", annotations="val.txt")] == ["images/val/a.png"]
        for text, problem in (
            ("../a.png", "leads out"),
            ("none.png", "no image none.png"),
            ("a.png\na.png", "line 2 names a.png again"),
        ):
            (tmp_path / "val.txt").write_text(text)
            with pytest.raises(DataError, match=problem):
                read(tmp_path, "yolo", annotations="val.txt")

    def test_names_come_from_several_files(self, tmp_path):
        write_yolo(tmp_path, names=None)
        other_order = Classes(2, ("dog", "cat"))
        assert read(tmp_path, "yolo", other_order)[0].objects.classes.tolist() == [0, 1, 0], "without names numbers count"
        (tmp_path / "labels/val/classes.txt").write_text("cat\ndog\n")
        assert read(tmp_path, "yolo", other_order)[0].objects.classes.tolist() == [1, 0, 1]
        (tmp_path / "mine.yaml").write_text("names: {0: dog, 1: cat}")
        assert read(tmp_path, "yolo", other_order)[0].objects.classes.tolist() == [0, 1, 0]
        (tmp_path / "other.yaml").write_text("names: [cat, dog]")
        with pytest.raises(DataError, match=r"mine\.yaml, other\.yaml"):
            read(tmp_path, "yolo", other_order)
        assert read(tmp_path, "yolo", other_order, annotations="other.yaml")[0].objects.classes.tolist() == [1, 0, 1]

    def test_names_above_a_part_of_a_set_as_roboflow_has_them(self, tmp_path, capsys):
        root = write_yolo(tmp_path / "valid", names=None)
        other_order = Classes(2, ("dog", "cat"))
        (tmp_path / "data.yaml").write_text("names: {'0': cat, '1': dog}\nval: ../test/images\n")
        assert read(root, "yolo", other_order)[0].objects.classes.tolist() == [0, 1, 0], "it speaks of other folders"
        assert "0 for 'dog'" in capsys.readouterr().out
        for parts in ("val: ../valid/images\n", ""):
            (tmp_path / "data.yaml").write_text("names: {'0': cat, '1': dog}\n" + parts)
            assert read(root, "yolo", other_order)[0].objects.classes.tolist() == [1, 0, 1]
        assert "names the set's classes" not in capsys.readouterr().out

    def test_names_above_images_of_which_the_set_is_a_part(self, tmp_path, capsys):
        root, other_order = write_yolo(tmp_path, names=None) / "images/val", Classes(2, ("dog", "cat"))

        def classes() -> list[int]:
            return read(root, "yolo", other_order)[0].objects.classes.tolist()

        (tmp_path / "project.yaml").write_text("a: {{ template }} ]")
        for parts in ("val: images/train", "val: [images/val2, images/other]", "val: val.txt"):
            (tmp_path / "mine.yaml").write_text(f"names: [cat, dog]\n{parts}\n")
            assert classes() == [0, 1, 0], "it speaks of other folders"
        assert "0 for 'dog'" in capsys.readouterr().out
        for parts in ("val: images/val", "test: ../set/images/val/", "val: [images/train, images/val]", "train: images"):
            (tmp_path / "mine.yaml").write_text(f"names: [cat, dog]\n{parts}\n")
            assert classes() == [1, 0, 1]
        assert "names the set's classes" not in capsys.readouterr().out
        (tmp_path / "other.yml").write_text("names: [dog, cat]\nval: images/val\n")
        with pytest.raises(DataError, match=r"mine\.yaml, .*other\.yml have class names of .*images/val"):
            classes()
        # One called as usual goes before them, and needs no parts.
        for text in ("names: [dog, cat]\nval: images/val", "names: [dog, cat]"):
            (tmp_path / "data.yaml").write_text(text)
            assert classes() == [0, 1, 0]

    def test_a_number_of_classes_in_quotes_is_one(self, tmp_path):
        write_yolo(tmp_path)
        (tmp_path / "data.yaml").write_text("names: [cat, dog]\nnc: '2'\n")
        assert classes_of(tmp_path, "yolo", Classes(2, ("dog", "cat"))) == [1, 0, 1]

    def test_names_above_roboflow_s_images(self, tmp_path):
        root = write_yolo(tmp_path / "valid", names=None)
        (tmp_path / "data.yaml").write_text("names: [cat, dog]\nval: ../valid/images\n")
        for path in (root / "images", root / "images/val"):
            assert read(path, "yolo", Classes(2, ("dog", "cat")))[0].objects.classes.tolist() == [1, 0, 1]

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("names: [", "not readable YAML"),
            ("nc: 2", "has no `names`"),
            ("names: {a: b}", "`names` has the key 'a'"),
            ("names: {yes: cat}", "`names` has the key True"),
            ("names: [no, yes]", "which is no text"),
            ("names: [cat, dog]\nnc: 3", "`nc` is 3, `names` has 2"),
            ("names: [cat, dog]\nnc: '3'", "`nc` is 3, `names` has 2"),
            ("names: {1: cat, 2: dog}", "line 1 has the class 0, names are given for 2, 1 to 2\n"),
        ],
    )
    def test_bad_names(self, tmp_path, text, problem):
        write_yolo(tmp_path)
        (tmp_path / "data.yaml").write_text(text)
        with pytest.raises(DataError, match=problem):
            read(tmp_path, "yolo")

    @pytest.mark.parametrize(
        ("line", "problem"),
        [
            ("0 0.5 0.5 0.1", "line 2 has 4 columns"),
            ("0 0.5 0.5 0.1 0.1 0.9", r"line 2 has 6 columns \(a detection with its score\?\)"),
            ("0 0.5 0.5 0.1 0.1 0.2 0.2 2", r"line 2 has 8 columns \(key points\?\)"),
            ("0 0.1 0.1 0.2 nan 0.2 0.2", "line 2: the box .* is not of finite numbers"),
            ("0 10 10 20 10 20 20", "line 2 is not in shares"),
            ("cat 0.5 0.5 0.1 0.1", "line 2 is not of numbers"),
            ("0.5 0.5 0.5 0.1 0.1", "line 2 has the class 0.5"),
            ("-1 0.5 0.5 0.1 0.1", "line 2 has the class -1"),
            ("nan 0.5 0.5 0.1 0.1", "line 2 has the class nan"),
            ("2 0.5 0.5 0.1 0.1", "line 2 has the class 2, names are given for 2"),
            ("0 50 40 10 10", "line 2 is not in shares"),
            ("0,0.5,0.5,0.1,0.1", "line 2 has ',' in it: '0,0.5,0.5,0.1,0.1'"),
            ("0; 0.5; 0.5; 0.1; 0.1", "line 2 has ';' in it"),
            ("0 0,5 0,5 0,1 0,1", "line 2 has ',' in it"),
            ("0 nan 0.5 0.1 0.1", "line 2: the box .* is not of finite numbers"),
            ("0 0.5 0.5 -0.1 0.1", "line 2: the box .* negative width"),
        ],
    )
    def test_bad_lines(self, tmp_path, line, problem):
        write_yolo(tmp_path)
        (tmp_path / "labels/val/b.txt").write_text(f"1 0.5 0.5 0.1 0.1\n{line}\n")
        with pytest.raises(DataError, match=rf"b\.txt, {problem}"):
            read(tmp_path, "yolo")

    def test_outlines_and_rotated_boxes_are_read_as_the_boxes_that_enclose_them(self, tmp_path, capsys):
        write_yolo(tmp_path)
        (tmp_path / "labels/val/b.txt").write_text("1 0.5 0.5 0.1 0.1\n0 0.1 0.2 0.3 0.1 0.2 0.6\n1 .5 .2 .8 .5 .5 .8 .2 .5\n")
        item = next(item for item in read(tmp_path, "yolo") if item.path.stem == "b")
        shares = item.objects.xyxy / [WIDTH, HEIGHT, WIDTH, HEIGHT]
        np.testing.assert_allclose(shares, [[0.45, 0.45, 0.55, 0.55], [0.1, 0.1, 0.3, 0.6], [0.2, 0.2, 0.8, 0.8]], atol=1e-6)
        assert capsys.readouterr().out.count("2 of ") == 1

    def test_images_without_a_label_file_are_counted(self, tmp_path, capsys):
        """Labels that were lost on the way look alike: whatever is found on such an image is wrong."""
        write_yolo(tmp_path)
        read(tmp_path, "yolo")
        said = capsys.readouterr().out
        assert "note: here: 1 of 2 images have no label file and count as images without objects, the first: " in said
        (tmp_path / "labels/val/b.txt").write_text("")
        read(tmp_path, "yolo")
        assert "no label file" not in capsys.readouterr().out

    def test_key_points_are_no_outlines(self, tmp_path):
        write_yolo(tmp_path)
        lines = [f"0 {x} 0.5 0.2 0.4 {x} 0.4 {x + 0.05} 0.6 0 0" for x in (0.2, 0.5, 0.7)]
        (tmp_path / "labels/val/b.txt").write_text("\n".join(lines))
        with pytest.raises(DataError, match="lines of 11 columns hold key points"):
            read(tmp_path, "yolo")

    def test_labels_without_image_and_images_that_share_one(self, tmp_path):
        write_yolo(tmp_path)
        (tmp_path / "labels/val/c.txt").write_text("")
        with pytest.raises(DataError, match=r"1 label file\(s\) have no image: .*c.txt"):
            read(tmp_path, "yolo")
        (tmp_path / "labels/val/c.txt").unlink()
        picture(tmp_path / "images/val/a.jpg")
        with pytest.raises(DataError, match=r"a\.jpg and .*a\.png have the same label file"):
            read(tmp_path, "yolo")


class TestVoc:
    def test_difficult_objects_are_ignored_as_crowds_are(self, tmp_path):
        write_voc(tmp_path, b=VOC % (OBJECT.format("cat", 1, 1, 1, 9, 9) + OBJECT.format("dog", 0, 1, 1, 9, 9)))
        assert read(tmp_path, "voc")[1].objects.crowd.tolist() == [True, False]

    def test_a_list_chooses_images(self, tmp_path, capsys):
        write_voc(tmp_path)
        picture(tmp_path / "JPEGImages/c.png")
        assert len(read(tmp_path, "voc")) == 2
        assert "1 image(s) below" in capsys.readouterr().out
        (tmp_path / "val.txt").write_text("b -1\n")
        assert [item.path.name for item in read(tmp_path, "voc", annotations="val.txt")] == ["b.png"]
        for text, problem in (
            ("d", r"1 image\(s\) of 1 are not below .*JPEGImages: d"),
            ("c", r"c\.xml is not readable XML: .*No such file"),
            ("../a", "leads out"),
            ("a\na", "line 2 names a again"),
            ("a b c", "line 1 is not the name of one image"),
        ):
            (tmp_path / "val.txt").write_text(text)
            with pytest.raises(DataError, match=problem):
                read(tmp_path, "voc", annotations="val.txt")

    def test_a_list_may_have_names_with_spaces(self, tmp_path):
        write_voc(tmp_path)
        for name in ("a 1", "photo (2)"):
            picture(tmp_path / f"JPEGImages/{name}.png")
            (tmp_path / f"Annotations/{name}.xml").write_text(VOC % "")
        for text, expected in (
            ("a 1\nphoto (2)\n", {"a 1.png", "photo (2).png"}),
            ("photo (2)  -1\na\n", {"photo (2).png", "a.png"}),
        ):
            (tmp_path / "val.txt").write_text(text)
            assert {item.path.name for item in read(tmp_path, "voc", annotations="val.txt")} == expected

    @pytest.mark.parametrize(
        ("text", "problem"),
        [
            ("<annotation>\n<object>\n</annotation>", "not readable XML: mismatched tag: line 3"),
            ("", "not readable XML: no element"),
            ("<results/>", "is <results>, no PASCAL VOC"),
            ('<!DOCTYPE a [<!ENTITY e "x">]><annotation>&e;</annotation>', "line 1: a DOCTYPE is not read"),
            ('<!DOCTYPE a SYSTEM "file:///etc/passwd"><annotation/>', "line 1: a DOCTYPE is not read"),
            (VOC % "<object><bndbox/></object>", "object 1 has no `name`"),
            (VOC % "<object><name>cat</name></object>", r"object 1 \(cat\) has no `bndbox`"),
            (VOC % OBJECT.format("cat", 0, "nan", 1, 2, 3), "`xmin` is 'nan'"),
            (VOC % OBJECT.format("cat", 0, "", 1, 2, 3), "`xmin` is ''"),
            (VOC % OBJECT.format("cat", "maybe", 1, 1, 2, 3), "`difficult` 'maybe'"),
            ("<annotation><size><width>inf</width><height>3</height></size></annotation>", "size: `width` is 'inf'"),
        ],
    )
    def test_bad_files(self, tmp_path, text, problem):
        with pytest.raises(DataError, match=rf"b\.xml.*{problem}"):
            read(write_voc(tmp_path, b=text), "voc")

    @pytest.mark.parametrize(
        ("encoding", "name"),
        [
            ("gb2312", "猫"),
            ("GBK", "猫"),
            ("big5", "貓"),
            ("Shift_JIS", "猫"),
            ("euc-kr", "고양이"),
            ("windows-1251", "кот"),
            ("utf-16", "猫"),
            ("ISO-8859-1", "félin"),
            ("UTF-8", "猫"),
        ],
    )
    def test_files_are_read_in_the_encoding_that_they_say(self, tmp_path, encoding, name):
        write_voc(tmp_path, a=VOC % "")
        text = f"<?xml version='1.0' encoding='{encoding}'?>\n" + VOC % OBJECT.format(name, 0, 1, 1, 9, 9)
        (tmp_path / "Annotations/b.xml").write_bytes(text.encode(encoding))
        assert read(tmp_path, "voc", Classes(2, ("other", name)))[1].objects.classes.tolist() == [1]

    @pytest.mark.parametrize(
        ("encoding", "problem"), [("klingon", "unknown encoding: klingon"), ("gbk", "codec can't decode"), ("hex", "not a text")]
    )
    def test_an_encoding_that_is_none_is_said(self, tmp_path, encoding, problem):
        write_voc(tmp_path, b=VOC % "")
        (tmp_path / "Annotations/b.xml").write_bytes(f'<?xml version="1.0" encoding="{encoding}"?>'.encode() + b"<a>\xff\xff</a>")
        with pytest.raises(DataError, match=rf"b\.xml is not readable XML: .*{problem}"):
            read(tmp_path, "voc")

    def test_missing_and_doubled_images_and_no_annotations(self, tmp_path):
        write_voc(tmp_path, c=VOC % "")
        with pytest.raises(DataError, match=r"1 image\(s\) of 3 are not below .*JPEGImages: c"):
            read(tmp_path, "voc")
        picture(tmp_path / "JPEGImages/c.png")
        picture(tmp_path / "JPEGImages/c.jpg")
        with pytest.raises(DataError, match=r"c\.xml may be about any of .*c\.jpg, .*c\.png"):
            read(tmp_path, "voc")
        for path in (tmp_path / "Annotations").iterdir():
            path.unlink()
        with pytest.raises(DataError, match="holds no XML file"):
            read(tmp_path, "voc")


def classes_of(root: Path, form: str, classes: Classes, **class_map: object) -> list[int]:
    return read(root, form, classes, class_map=class_map)[0].objects.classes.tolist()


class TestClassMap:
    @pytest.mark.parametrize("form", WRITERS)
    def test_names_are_matched_exactly_then_case_aside(self, form, tmp_path):
        root = WRITERS[form](tmp_path)
        assert classes_of(root, form, Classes(3, ("horse", "DOG", "cat"))) == [2, 1, 2]
        assert classes_of(root, form, Classes(3, ("CAT", "cat", "dog"))) == [1, 2, 1]
        assert classes_of(root, form, Classes(2, ("cat ", "dog"))) == [0, 1, 0]

    def test_spaces_around_a_set_s_names_make_no_other_class(self, tmp_path):
        """Annotators leave them there; `class_map` could name " dog" in quotes alone."""
        categories = [{"id": 17, "name": "cat\t"}, {"id": 18, "name": " dog"}]
        assert classes_of(write_coco(tmp_path / "coco", categories=categories), "coco", Classes(2, NAMES)) == [0, 1, 0]
        assert classes_of(write_yolo(tmp_path / "yolo", names=["cat ", " dog"]), "yolo", Classes(2, NAMES)) == [0, 1, 0]

    @pytest.mark.parametrize("form", WRITERS)
    def test_the_map_goes_before_names_and_null_leaves_a_class_out(self, form, tmp_path):
        root = WRITERS[form](tmp_path)
        names = Classes(None, ("animal", "dog"))
        assert classes_of(root, form, names, cat="Animal") == [0, 1, 0]
        assert classes_of(root, form, names, cat=1) == [1, 1, 1]
        assert classes_of(root, form, names, cat=None) == [1]
        assert classes_of(root, form, Classes(5), cat=4, dog=None) == [4, 4]

    @pytest.mark.parametrize("form", WRITERS)
    def test_a_star_speaks_of_all_that_no_class_is_called_as(self, form, tmp_path):
        """A model of one class on a set of many."""
        root = WRITERS[form](tmp_path)
        assert classes_of(root, form, Classes(1, ("dog",)), **{"*": None}) == [0]
        assert classes_of(root, form, Classes(2, ("other", "dog")), **{"*": "other"}) == [0, 1, 0]
        # Its key goes before a name, and that before the star.
        assert classes_of(root, form, Classes(2, ("cat", "dog")), **{"dog": None, "*": 7}) == [0, 0]
        assert classes_of(root, form, Classes(1), **{"cat": 0, "*": None}) == [0, 0]
        with pytest.raises(DataError, match=r"'dog' .*becomes 'Dogs', which is no class of the model, near: dogs"):
            classes_of(root, form, Classes(2, ("cat", "dogs?")), **{"*": "Dogs"})

    def test_a_star_takes_numbers_that_nothing_names(self, tmp_path):
        root = write_yolo(tmp_path, names=None)
        assert read(root, "yolo", Classes(1, ("cat",)), class_map={0: "cat", "*": None})[0].objects.classes.tolist() == [0, 0]

    def test_numbers_are_keys_where_the_format_has_them(self, tmp_path):
        root = write_coco(tmp_path / "coco")
        for block in ({17: 3, 18: None}, {"17": 3, "dog": None}):
            assert read(root, "coco", Classes(5), class_map=block)[0].objects.classes.tolist() == [3, 3]
        content = json.loads((root / "instances.json").read_text())
        content["categories"][0]["name"] = "17"
        (root / "instances.json").write_text(json.dumps(content))
        # A name before a number: the dog is called 17 now, the cat is number 17.
        assert read(root, "coco", Classes(5), class_map={"17": 3, "cat": 1})[0].objects.classes.tolist() == [1, 3, 1]
        root = write_yolo(tmp_path / "yolo", names=None)
        assert read(root, "yolo", Classes(5), class_map={1: 4})[0].objects.classes.tolist() == [0, 4, 0]

    @pytest.mark.parametrize("form", WRITERS)
    def test_a_class_that_matches_none_is_an_error_with_both_ways_out(self, form, tmp_path):
        with pytest.raises(DataError, match=r"'dog'.* \(1 objects, near: dogs\)") as caught:
            classes_of(WRITERS[form](tmp_path), form, Classes(2, ("cat", "dogs")))
        assert "`here.class_map: {dog: name or index}`" in caught.value.mend
        assert '`{dog: null}` to leave its objects out, `{"*": null}` those of all that no class is called as' in caught.value.mend
        assert "task.classes" in caught.value.mend

    @pytest.mark.parametrize("called", ["1", "No", "a: b", "1.5"])
    def test_a_name_that_yaml_reads_otherwise_is_quoted_in_the_way_out(self, called, tmp_path):
        """Of house numbers `{1: index}` would be the class with the number 1, whose name is another."""
        with pytest.raises(DataError) as caught:
            read(write_yolo(tmp_path / "y", names=[called, "dog"]), "yolo", Classes(2, NAMES))
        told = caught.value.mend.split("class_map: ")[1].split("`")[0]
        assert yaml.safe_load(told) == {called: "name or index"}
        root = write_voc(tmp_path / "v")
        xml = root / "Annotations/a.xml"
        xml.write_text(xml.read_text().replace("cat", called))
        with pytest.raises(DataError, match="nothing says") as caught:
            read(root, "voc", Classes(2))
        assert yaml.safe_load(caught.value.mend.split("class_map: ")[1].split(", ...")[0] + "}") == {called: "index"}

    def test_a_category_without_objects_needs_no_match(self, tmp_path):
        assert classes_of(write_coco(tmp_path, ROWS[:1]), "coco", Classes(1, ("cat",))) == [0]

    def test_without_names_the_order_the_number_or_nothing_tells(self, tmp_path):
        assert classes_of(write_coco(tmp_path / "c"), "coco", Classes(2)) == [0, 1, 0], "by category id, not by place"
        assert classes_of(write_yolo(tmp_path / "y", names=None), "yolo", Classes(80)) == [0, 1, 0]
        root = write_voc(tmp_path / "v")
        for classes in (Classes(2), Classes(scored=True)):
            with pytest.raises(
                DataError, match=r"nothing says which of the model's classes the set's 'cat', 'dog' are\n.*task\.classes"
            ):
                classes_of(root, "voc", classes)
        assert classes_of(root, "voc", Classes()) == [0, 1, 0], "calibration asks nothing of the classes"
        assert classes_of(root, "voc", Classes(), cat="feline") == [0, 1, 0]

    @pytest.mark.parametrize("form", ["coco", "yolo"])
    def test_places_are_refused_where_the_set_has_not_all_classes(self, form, tmp_path):
        with pytest.raises(DataError, match=r"the set has 2 classes .*, the model has 80\n.*task\.classes"):
            classes_of(WRITERS[form](tmp_path), form, Classes(80))

    def test_slips_in_the_map(self, tmp_path):
        root = write_coco(tmp_path)
        for told, classes, problem in (
            ({"cta": 1}, Classes(2), r"has no class 'cta', near: cat"),
            ({"cat": "dgo"}, Classes(2, NAMES), "'cat' .* becomes 'dgo', which is no class of the model, near: dog"),
            ({"cat": "dog"}, Classes(2), "nothing says what the model's classes are called"),
            ({"cat": -1}, Classes(2), "becomes class -1"),
            ({"cat": 1}, Classes(scored=True), "nothing says which of the model's classes the set's 'dog'"),
        ):
            with pytest.raises(DataError, match=problem):
                classes_of(root, "coco", classes, **told)

    def test_a_key_that_no_object_is_called_is_told_where_classes_may_be_absent(self, tmp_path, capsys):
        """PASCAL's files list no classes: a rare one may be mapped and absent, and a slip looks the same."""
        root = write_voc(tmp_path / "v")
        names = Classes(2, NAMES)
        assert classes_of(root, "voc", names, Cat=None) == [0, 1, 0]
        assert "note: here.class_map: no object of the set is called 'Cat', near: cat\n" in capsys.readouterr().out
        assert classes_of(root, "voc", names, horse=0, dgo=None) == [0, 1, 0]
        assert "no object of the set is called 'horse', 'dgo', near: dog\n" in capsys.readouterr().out
        assert classes_of(root, "voc", names, cat=None, dog=0) == [0]
        assert "class_map" not in capsys.readouterr().out
        root = write_yolo(tmp_path / "y", names=None)
        assert read(root, "yolo", Classes(5), class_map={7: None})[0].objects.classes.tolist() == [0, 1, 0]
        assert "no object of the set is called 7\n" in capsys.readouterr().out

    def test_indices_are_held_against_the_model_s_classes(self, tmp_path):
        root = write_coco(tmp_path)
        with pytest.raises(DataError, match=r"a\.png has an object of class 2, the model has classes 0\.\.1 \(1 such images\)"):
            classes_of(root, "coco", Classes(2), cat=2)
        with pytest.raises(ParamsError, match=r"`task\.classes` names 2 classes, the model tells 80 apart"):
            classes_of(root, "coco", Classes(80, NAMES))
        write_yolo(tmp_path / "y", names=None)
        with pytest.raises(DataError, match=r"a\.png has an object of class 1, the model has classes 0\.\.0"):
            classes_of(tmp_path / "y", "yolo", Classes(1))


class TestNames:
    def test_coco_s_names_with_and_without_gaps(self):
        assert len(COCO80) == 80
        assert len(COCO91) == 91
        assert [COCO91.index(name) for name in ("person", "stop sign", "toothbrush")] == [1, 13, 90]
        assert tuple(name for name in COCO91 if name not in ("N/A", "__background__")) == COCO80
        # As torchvision's weights have them (FasterRCNN_ResNet50_FPN_Weights.COCO_V1.meta["categories"]).
        gaps = [index for index, name in enumerate(COCO91) if name == "N/A"]
        assert gaps == [12, 26, 29, 30, 45, 66, 68, 69, 71, 83]

    def test_task_classes_become_names(self, tmp_path):
        assert class_names(Detection(name="detection")) is None
        assert class_names(Detection(name="detection", classes="coco80")) == COCO80
        assert class_names(Detection(name="detection", classes="coco90")) == COCO91[1:]
        assert class_names(Detection(name="detection", classes=["a", "b"])) == ("a", "b")
        names = class_names(Detection(name="detection", classes="coco91"))
        assert classes_of(write_coco(tmp_path), "coco", Classes(91, names)) == [17, 18, 17]

    def test_gaps_match_nothing(self, tmp_path):
        content = coco()
        content["categories"][0]["name"] = "N/A"
        with pytest.raises(DataError, match="'N/A'"):
            classes_of(write_coco(tmp_path, **content), "coco", Classes(91, COCO91))
