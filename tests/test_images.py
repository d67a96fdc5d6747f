"""Decoding, preprocessing, datasets and splits, on real files."""

import io
import json

import cv2
import numpy as np
import onnx.helper as oh
import onnx_ir as ir
import pytest
from conftest import project_params, small_network, write_images
from hypothesis import given, settings
from hypothesis import strategies as st
from PIL import Image

from octavo.calibration.collector import collect
from octavo.errors import DataError, ParamsError
from octavo.graph.passes.shapes import InferShapesPass
from octavo.images.batches import batch_of
from octavo.images.dataset import Classes, Images, Item, image_list, open_set, refuse_overlap
from octavo.images.decode import decode, read_image, read_shape
from octavo.images.frame import Frame
from octavo.images.input_sizes import further_sizes, refuse_fixed_batch, refuse_fixed_sides, refuse_untaken
from octavo.images.packaged import locate, make_set
from octavo.images.preprocess import preprocess
from octavo.images.purpose import open_images
from octavo.images.splits import part, pick
from octavo.params.grammar import Data, ImageSet, Input, ModelSpec, Packaged, Resize, Split
from octavo.runtime.session import Session


def encoded(image: Image.Image, form: str = "PNG", **options: object) -> bytes:
    stream = io.BytesIO()
    image.save(stream, form, **options)
    return stream.getvalue()


GRADIENT = Image.fromarray(np.linspace(0, 255, 30 * 20 * 3).reshape(30, 20, 3).astype(np.uint8))


class TestDecode:
    @pytest.mark.parametrize("mode", ["RGB", "L", "P", "RGBA", "LA", "CMYK", "1"])
    def test_every_mode_becomes_rgb(self, mode):
        form = "TIFF" if mode == "CMYK" else "PNG"
        pixels = decode(encoded(GRADIENT.convert(mode), form), "x")
        assert pixels.shape == (30, 20, 3)
        assert pixels.dtype == np.uint8

    def test_sixteen_bits_are_scaled_not_clipped(self):
        deep = Image.fromarray(np.array([[0, 256, 32768, 65535]], np.uint16))
        assert decode(encoded(deep), "x")[0, :, 0].tolist() == [0, 1, 128, 255]

    def test_the_exif_orientation_is_applied(self):
        exif = Image.Exif()
        exif[0x0112] = 6
        assert decode(encoded(GRADIENT, "JPEG", exif=exif), "x").shape == (20, 30, 3)

    @pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
    def test_a_damaged_entry_of_exif_data_does_not_keep_a_photo_from_being_turned(self, form, tmp_path):
        exif = Image.Exif()
        exif[0x0112], exif[0x011A] = 6, 72.0
        # The resolution said to be text: Pillow reads it so, and cannot write it again.
        entry = bytes.fromhex("011a0005")
        assert entry in exif.tobytes()
        damaged = exif.tobytes().replace(entry, bytes.fromhex("011a0002"))
        (tmp_path / "x").write_bytes(encoded(GRADIENT, form, exif=damaged))
        assert read_image(tmp_path / "x").shape == (20, 30, 3)
        assert read_shape(tmp_path / "x") == (20, 30)

    @pytest.mark.parametrize("form", ["JPEG", "PNG", "WEBP"])
    def test_a_photo_whose_exif_data_are_none_is_read_as_it_lies(self, form, tmp_path):
        (tmp_path / "x").write_bytes(encoded(GRADIENT, form, exif=b"Exif\0\0XX\0*" + bytes(8)))
        assert read_image(tmp_path / "x").shape == (30, 20, 3)
        assert read_shape(tmp_path / "x") == (30, 20)

    @pytest.mark.parametrize("cut", [0, 10, 60])
    @pytest.mark.parametrize("form", ["PNG", "JPEG"])
    def test_a_truncated_file_is_an_error_not_a_grey_image(self, form, cut):
        noisy = Image.fromarray(np.random.default_rng(0).integers(0, 255, (64, 64, 3), dtype=np.uint8))
        with pytest.raises(DataError, match="broken.jpg is"):
            decode(encoded(noisy, form)[: max(0, len(encoded(noisy, form)) * cut // 100)], "broken.jpg")

    def test_text_pixels_without_a_range_and_missing_files(self, tmp_path):
        with pytest.raises(DataError, match="not a readable image"):
            decode(b"hello", "x")
        for kind, words in ((np.float32, "floating-point"), (np.int32, "32 bits")):
            with pytest.raises(DataError, match=f"{words}.* no fixed range"):
                decode(encoded(Image.fromarray(np.zeros((4, 4), kind)), "TIFF"), "x")
        colours = cv2.imencode(".tiff", np.zeros((4, 4, 3), np.float32))[1].tobytes()
        with pytest.raises(DataError, match="or one whose pixels are of a kind that is not read"):
            decode(colours, "x")
        with pytest.raises(DataError, match="cannot be read"):
            read_image(tmp_path / "none.png")

    def test_a_decompression_bomb_is_refused(self, monkeypatch):
        monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
        with pytest.raises(DataError, match="too large"):
            decode(encoded(GRADIENT), "x")


class TestPreprocess:
    image = np.asarray(GRADIENT)

    def test_shorter_and_center_crop_are_torchvision_s(self):
        torch = pytest.importorskip("torch")
        from torchvision import transforms
        from torchvision.transforms import InterpolationMode

        photo = np.random.default_rng(1).integers(0, 255, (75, 101, 3), dtype=np.uint8)
        for resample, mode in (("bilinear", InterpolationMode.BILINEAR), ("bicubic", InterpolationMode.BICUBIC)):
            theirs = transforms.Compose(
                [
                    transforms.Resize(40, mode),
                    transforms.CenterCrop((32, 33)),
                    transforms.ToTensor(),
                    transforms.Normalize([0.485, 0.456, 0.406], [0.229, 0.224, 0.225]),
                ]
            )(Image.fromarray(photo))
            spec = Input(
                size=(32, 33),
                resize=Resize(rule="shorter", to=40, resample=resample),
                crop="center",
                mean=(0.485, 0.456, 0.406),
                std=(0.229, 0.224, 0.225),
            )
            assert torch.allclose(torch.from_numpy(preprocess(photo, spec)[0]), theirs, atol=1e-6)

    def test_letterbox_keeps_the_aspect_ratio_and_pads(self):
        spec = Input(size=(40, 60), resize=Resize(rule="letterbox", pad=7), scale=1)
        tensor = preprocess(self.image, spec)[0]
        # 30x20 fits 40x60 at factor 4/3: 40 x 27, padded left and right.
        assert tensor.shape == (3, 40, 60)
        assert (tensor[:, :, :16] == 7).all()
        assert (tensor[:, :, 43:] == 7).all()
        assert not (tensor[:, :, 16:43] == 7).all()
        corner = preprocess(self.image, Input(size=(40, 60), resize=Resize(rule="letterbox", pad=7, align="top-left"), scale=1))[0]
        assert (corner[:, :, 27:] == 7).all()

    def test_colour_layout_and_normalisation(self):
        plain = dict(size=(30, 20), scale=1)
        rgb = preprocess(self.image, Input(**plain))
        assert np.array_equal(rgb[0], self.image.transpose(2, 0, 1))
        assert np.array_equal(preprocess(self.image, Input(**plain, colour="bgr")), rgb[:, ::-1])
        assert np.array_equal(preprocess(self.image, Input(**plain, layout="nhwc")), rgb.transpose(0, 2, 3, 1))
        assert preprocess(self.image, Input(**plain, colour="gray")).shape == (1, 1, 30, 20)
        raw = preprocess(self.image, Input(**plain, dtype="uint8"))
        assert raw.dtype == np.uint8
        scaled = preprocess(self.image, Input(size=(30, 20), scale=1, mean=(127,), std=(128,)))
        assert np.allclose(scaled, (rgb - 127) / 128)
        assert scaled.dtype == np.float32

    def test_a_crop_larger_than_the_image_is_an_error(self):
        with pytest.raises(DataError, match="smaller than the crop"):
            preprocess(self.image, Input(size=(64, 64), resize=Resize(rule="none"), crop="center"))

    @given(
        rows=st.integers(1, 70),
        columns=st.integers(1, 70),
        rule=st.sampled_from(["stretch", "letterbox", "shorter"]),
        antialias=st.booleans(),
    )
    @settings(max_examples=60, deadline=None)
    def test_any_image_gives_the_size_asked_for_and_finite_values(self, rows, columns, rule, antialias):
        photo = np.full((rows, columns, 3), 200, np.uint8)
        shorter = rule == "shorter"
        resize = Resize(rule=rule, to=24 if shorter else None, antialias=antialias)
        spec = Input(size=(24, 20), resize=resize, crop="center" if shorter else "none", mean=(0.5,), std=(0.25,))
        tensor = preprocess(photo, spec)
        assert tensor.shape == (1, 3, 24, 20)
        assert np.isfinite(tensor).all()


class TestPlacement:
    """Where `Frame` says that a photo lies, against where preprocessing puts it."""

    @given(
        photo=st.tuples(st.integers(1, 300), st.integers(1, 300)),
        size=st.tuples(st.integers(1, 8), st.integers(1, 8)),
        rule=st.sampled_from(["stretch", "shorter", "letterbox"]),
        letterbox=st.fixed_dictionaries(
            {
                "align": st.sampled_from(["centre", "top-left"]),
                "stride": st.sampled_from([None, 1, 8, 16]),
                "pad": st.one_of(st.integers(0, 255), st.tuples(*[st.integers(0, 255)] * 3)),
            }
        ),
        corners=st.tuples(*[st.floats(0, 1)] * 4),
    )
    @settings(max_examples=150, deadline=None)
    def test_boxes_go_forth_and_back_and_the_tensor_is_as_the_frame_says(self, photo, size, rule, letterbox, corners):
        (rows, columns), size = photo, (size[0] * 16, size[1] * 16)
        stride, pad = letterbox["stride"], letterbox["pad"]
        resize = {"letterbox": letterbox, "shorter": {"to": max(size)}, "stretch": {}}[rule]
        spec = Input.model_validate(
            {"size": size, "resize": {"rule": rule, **resize}, "crop": "center" if rule == "shorter" else "none", "scale": 1}
        )
        frame = Frame.of(rows, columns, spec)
        boxes = np.array([corners]) * np.tile((columns, rows), 2)
        assert np.allclose(frame.back(frame.forth(boxes)), boxes, rtol=0, atol=1e-9 * max(rows, columns))
        tensor = preprocess(np.full((rows, columns, 3), 7, np.uint8), spec)[0]
        assert tensor.shape[1:] == frame.input
        assert all(got <= most for got, most in zip(frame.input, size, strict=True))
        if rule == "letterbox":
            if stride:
                assert all(side % stride == 0 for side in frame.input)
                assert all(side - inner < stride for side, inner in zip(frame.input, frame.inner, strict=True))
            (top, left), (height, width) = frame.offset, frame.inner
            assert (tensor[:, top : top + height, left : left + width] == 7).all()
            outside = np.ones(frame.input, bool)
            outside[top : top + height, left : left + width] = False
            assert (tensor[:, outside] == np.reshape(pad if isinstance(pad, tuple) else [pad] * 3, (3, 1))).all()

    @pytest.mark.parametrize("colour", ["rgb", "bgr"])
    @pytest.mark.parametrize("antialias", [True, False])
    @pytest.mark.parametrize(
        "resize",
        [
            {"rule": "stretch"},
            {"rule": "letterbox"},
            {"rule": "letterbox", "align": "top-left"},
            {"rule": "letterbox", "stride": 32},
            {"rule": "letterbox", "stride": 32, "align": "top-left", "pad": [0, 0, 10]},
        ],
    )
    @pytest.mark.parametrize("shape", [(150, 400), (333, 200)])
    def test_a_bright_rectangle_lands_where_the_frame_says(self, shape, resize, antialias, colour):
        spec = Input.model_validate(
            {"size": [192, 256], "resize": {"pad": 0, **resize, "antialias": antialias}, "colour": colour, "scale": 1}
        )
        photo = np.zeros((*shape, 3), np.uint8)
        photo[60:110, 50:170, 0] = 255  # red alone
        tensor = preprocess(photo, spec)[0]
        rows, columns = np.nonzero(tensor[0 if colour == "rgb" else 2] > 127)
        seen = [columns.min(), rows.min(), columns.max() + 1, rows.max() + 1]
        assert np.abs(Frame.of(*shape, spec).forth(np.array([[50.0, 60.0, 170.0, 110.0]])) - seen).max() <= 1
        assert tensor[1].max() == 0

    def test_stride_is_yolov5_s_rectangle(self):
        # letterbox(auto=True): 640 x 0.75 = 480 is a multiple of 32; 640 x 0.666 = 427 becomes 448 with 10 rows above and 11 below.
        spec = Input.model_validate({"size": [640, 640], "resize": {"rule": "letterbox", "stride": 32}})
        assert Frame.of(480, 640, spec) == Frame((480, 640), (480, 640), (0, 0), (480, 640))
        assert Frame.of(427, 640, spec) == Frame((427, 640), (427, 640), (10, 0), (448, 640))
        assert Frame.of(1280, 854, spec) == Frame((1280, 854), (640, 427), (0, 10), (640, 448))

    def test_pad_colours_are_rgb_for_raw_bytes_channels_last_and_grey_too(self):
        photo = np.full((10, 20, 3), 200, np.uint8)
        plain = {"size": [20, 20], "resize": {"rule": "letterbox", "align": "top-left", "pad": [10, 20, 30]}, "scale": 1}
        raw = preprocess(photo, Input.model_validate({**plain, "dtype": "uint8", "layout": "nhwc", "colour": "bgr"}))
        assert raw.dtype == np.uint8
        assert raw.shape == (1, 20, 20, 3)
        assert raw[0, 15, 5].tolist() == [30, 20, 10]
        assert raw[0, 5, 5].tolist() == [200] * 3
        grey = preprocess(photo, Input.model_validate({**plain, "colour": "gray"}))
        assert grey[0, 0, 15, 5] == round(0.299 * 10 + 0.587 * 20 + 0.114 * 30)

    @pytest.mark.parametrize(
        ("block", "problem"),
        [
            ({"size": [640, 650], "resize": {"rule": "letterbox", "stride": 32}}, "must be multiples of `resize.stride` 32"),
            ({"size": [64, 64], "resize": {"rule": "stretch", "stride": 32}}, "`stride` belongs to rule 'letterbox'"),
            ({"size": [64, 64], "resize": {"rule": "letterbox", "stride": 32}, "crop": "center"}, "goes with `crop: none`"),
            ({"size": [64, 64], "resize": {"rule": "letterbox", "pad": [1, 2]}}, "resize.pad"),
            ({"size": [64, 64], "resize": {"rule": "letterbox", "pad": [1, 2, 256]}}, "resize.pad"),
        ],
    )
    def test_settings_that_cannot_be(self, block, problem):
        with pytest.raises(ValueError, match=problem):
            Input.model_validate(block)

    def test_batches_take_one_shape_and_fixed_graphs_are_refused_by_the_setting_s_name(self):
        wide, tall = np.zeros((1, 3, 32, 64)), np.ones((1, 3, 64, 32))
        assert batch_of(iter([wide, tall, wide + 2]), 4)[:, 0, 0, 0].tolist() == [0, 2, 0, 2]
        assert batch_of([wide, tall], 2).shape == (2, 3, 32, 64)
        block = {"size": [64, 64], "resize": {"rule": "letterbox", "stride": 32}}
        spec = Input.model_validate(block)
        refuse_fixed_sides(["batch", 3, "height", None], spec, "models.m.input")
        refuse_fixed_sides([1, 3, 64, 64], Input(size=(64, 64)), "models.m.input")
        with pytest.raises(ParamsError, match=r"models\.m\.input\.resize\.stride: .* the graph takes 64xw alone"):
            refuse_fixed_sides([1, 3, 64, "w"], spec, "models.m.input")
        with pytest.raises(ParamsError, match="64x48 alone"):
            refuse_fixed_sides([1, 64, 48, 3], Input.model_validate({**block, "layout": "nhwc"}), "models.m.input")
        refuse_fixed_batch(["batch", 3, 64, 64], (1, 8))
        refuse_fixed_batch([1, 3, 64, 64], (1,))
        with pytest.raises(
            ParamsError, match=r"`benchmark\.batch` has 3, 8, .*one image at a time(?s:.*)`source\.dynamic_batch: true`"
        ):
            refuse_fixed_batch([1, 3, 64, 64], (1, 3, 8))

    def test_further_resolutions_are_tried_on_one_image_before_they_are_measured(self, tmp_path):
        image = oh.make_tensor_value_info("image", 1, [1, 3, "height", "width"])
        nodes = [oh.make_node("SpaceToDepth", ["image"], ["y"], "halves", blocksize=2)]
        graph = oh.make_graph(nodes, "even", [image], [oh.make_tensor_value_info("y", 1, None)])
        session = Session(oh.make_model(graph, opset_imports=[oh.make_opsetid("", 18)], ir_version=8).SerializeToString())
        write_images(tmp_path, 1, seed=0)
        items = open_set(ImageSet(format="folder", path=str(tmp_path)), "here")

        def sizes(resolutions: list, batch: tuple[int, ...] = (1,)) -> list[tuple[int, int]]:
            block = {"size": [32, 32], "resize": {"rule": "letterbox"}}
            blocks = {"input": block, "benchmark": {"resolutions": resolutions, "batch": list(batch)}}
            spec = ModelSpec.model_validate(project_params(**blocks)["models"]["small"])
            refuse_untaken(spec, session.input_shapes["image"], items, lambda tensor: session.run({"image": tensor}))
            return further_sizes(spec)

        # The model's own size, and one that stands there twice.
        assert sizes([16, 32, [16, 16], [16, 32]]) == [(16, 16), (16, 32)]
        with pytest.raises(ParamsError, match=r"`benchmark\.resolutions` has 17x16, which the graph does not take"):
            sizes([[17, 16]])
        with pytest.raises(ParamsError, match=r"`benchmark\.batch` has 2"):
            sizes([], batch=(1, 2))

    def test_calibration_takes_inputs_of_any_shape(self):
        model = small_network(size=32)
        for place, side in ((2, "height"), (3, "width")):
            model.graph.input[0].type.tensor_type.shape.dim[place].dim_param = side
        graph = InferShapesPass()(ir.from_proto(model)).model
        spec = Input.model_validate({"size": [64, 64], "resize": {"rule": "letterbox", "stride": 16}})
        photos = [np.full((rows, columns, 3), 90, np.uint8) for rows, columns in ((40, 80), (80, 40), (64, 64))]
        tensors = [preprocess(photo, spec) for photo in photos]
        assert {tensor.shape[2:] for tensor in tensors} == {(32, 64), (64, 32), (64, 64)}
        once = collect(graph, lambda: [(str(place), {"image": tensor}) for place, tensor in enumerate(tensors)])
        again = collect(graph, lambda: [(str(place), {"image": tensor}) for place, tensor in enumerate(tensors[::-1])])
        assert once.tensors.keys() == again.tensors.keys()
        assert all(one.high == again.tensors[name].high for name, one in once.tensors.items())


class TestDatasets:
    def test_folder_lists_images_only(self, tmp_path):
        write_images(tmp_path / "a/b", 2, seed=1)
        (tmp_path / "SOURCES.md").write_text("x")
        items = open_set(ImageSet(format="folder", path=str(tmp_path)), "here")
        assert [item.name for item in items] == ["a/b/image_1_000.png", "a/b/image_1_001.png"]
        assert all(item.label is None for item in items)

    @pytest.mark.parametrize("suffix", [".jfif", ".JPE"])
    def test_jpeg_files_by_their_other_names(self, tmp_path, suffix):
        (tmp_path / f"x{suffix}").write_bytes(encoded(GRADIENT, "JPEG"))
        items = open_set(ImageSet(format="folder", path=str(tmp_path)), "here")
        assert [item.read().shape for item in items] == [(30, 20, 3)]

    def test_a_link_to_nothing_is_no_image_less(self, tmp_path):
        """DVC's links, where its cache is gone in part."""
        write_images(tmp_path, 2, seed=0)
        (tmp_path / "lost.png").symlink_to(tmp_path / "cache/12/34")
        with pytest.raises(DataError, match=r"lost\.png is a link to .*cache/12/34, which is not there") as caught:
            open_set(ImageSet(format="folder", path=str(tmp_path)), "here")
        assert "dvc checkout" in caught.value.mend
        assert "on_bad_image: skip" in caught.value.mend

    @pytest.mark.parametrize("format_", ["folder", "imagefolder", "masks"])
    def test_a_link_to_nothing_is_skipped_where_bad_images_are(self, tmp_path, format_):
        """It is counted and named, and of calibration's and validation's images it is one, as it would be if it were there."""
        folder = tmp_path / "images" if format_ == "masks" else tmp_path / "a"
        write_images(folder, 3, seed=0)
        if format_ == "masks":
            (tmp_path / "masks").mkdir()
            for name in [*(path.name for path in folder.iterdir()), "lost.png"]:
                Image.fromarray(np.zeros((40, 48), np.uint8)).save(tmp_path / "masks" / name)
        (folder / "lost.png").symlink_to(tmp_path / "cache/12/34")
        parts = {"calibration": (0.0, 0.5), "validation": (0.5, 1.0)}
        sets = {
            name: {"format": format_, "path": str(tmp_path), "split": {"start": start, "stop": stop}}
            for name, (start, stop) in parts.items()
        }
        data = Data(**sets, on_bad_image="skip")
        items = [item for name in parts for item in open_images(data, name, "here")]
        assert len(items) == len({item.sha256 for item in items}) == 4
        images = Images(items, Input(size=[8, 8]), "skip")
        assert len(list(images)) == 3
        assert images.skipped == [f"{folder.name}/lost.png: {folder.name}/lost.png cannot be read: No such file or directory"]

    def test_a_mask_that_a_link_has_lost_is_no_bad_image(self, tmp_path):
        write_images(tmp_path / "images", 1, seed=0)
        (tmp_path / "masks").mkdir()
        (tmp_path / "masks" / next((tmp_path / "images").iterdir()).name).symlink_to(tmp_path / "cache/12")
        sets = {name: {"format": "masks", "path": str(tmp_path)} for name in ("calibration", "validation")}
        with pytest.raises(DataError, match=r"\.png is a link to .*cache/12, which is not there"):
            open_images(Data(**sets, on_bad_image="skip"), "validation", "here")

    @pytest.mark.parametrize("format_", ["folder", "imagefolder", "identities"])
    def test_what_a_dot_hides_is_no_part_of_a_set(self, tmp_path, format_):
        """macOS' resource forks, and copies that Jupyter keeps."""
        for name in ("a", "b"):
            write_images(tmp_path / name, 2, seed=ord(name))
            (tmp_path / name / "._x.png").write_bytes(b"\0\5\x16\7")
            write_images(tmp_path / name / ".ipynb_checkpoints", 1, seed=ord(name) + 5)
        write_images(tmp_path / ".ipynb_checkpoints", 1, seed=3)
        (tmp_path / "._x.jpg").write_bytes(b"\0\5\x16\7")
        items = open_set(ImageSet(format=format_, path=str(tmp_path)), "here", Classes(2))
        assert [item.path.parent.name for item in items] == ["a", "a", "b", "b"]
        # The set's own folder may lie in such a one.
        write_images(tmp_path / ".cache/photos", 2, seed=4)
        assert len(open_set(ImageSet(format="folder", path=str(tmp_path / ".cache/photos")), "here")) == 2

    def test_imagefolder_labels_by_number_name_map_or_alphabet(self, tmp_path):
        for name in ("10", "9"):
            write_images(tmp_path / "n" / name, 1, seed=int(name))
        by_number = open_set(ImageSet(format="imagefolder", path=str(tmp_path / "n")), "here", Classes(1000))
        assert {item.name.split("/")[0]: item.label for item in by_number} == {"10": 10, "9": 9}
        for name in ("cat", "dog", "unlabelled"):
            write_images(tmp_path / "w" / name, 1, seed=len(name) + ord(name[0]))
        alphabet = open_set(ImageSet(format="imagefolder", path=str(tmp_path / "w")), "here", Classes(2))
        assert {item.name.split("/")[0]: item.label for item in alphabet} == {"cat": 0, "dog": 1, "unlabelled": None}
        by_name = open_set(ImageSet(format="imagefolder", path=str(tmp_path / "w")), "here", Classes(3, ("dog", "cow", "cat")))
        assert {item.name.split("/")[0]: item.label for item in by_name} == {"cat": 2, "dog": 0, "unlabelled": None}
        (tmp_path / "w/classes.json").write_text("\ufeff" + json.dumps({"cat": 281, "dog": 207}), encoding="utf-8")
        mapped = open_set(ImageSet(format="imagefolder", path=str(tmp_path / "w")), "here", Classes(1000))
        assert {item.label for item in mapped} == {281, 207, None}

    def test_an_alphabet_that_does_not_cover_the_classes_is_refused(self, tmp_path):
        for name in ("cat", "dog"):
            write_images(tmp_path / name, 1, seed=ord(name[0]))
        with pytest.raises(DataError, match="2 class folders, the model has 1000 classes"):
            open_set(ImageSet(format="imagefolder", path=str(tmp_path)), "here", Classes(1000))

    def test_labels_outside_the_classes(self, tmp_path):
        write_images(tmp_path / "7", 1, seed=7)
        with pytest.raises(DataError, match=r"labelled class 7, the model has classes 0\.\.3"):
            open_set(ImageSet(format="imagefolder", path=str(tmp_path)), "here", Classes(4))

    @pytest.mark.parametrize("table", ["[1]", '{"a": -1}', '{"a": "x"}', "{", '{"b": 0}'])
    def test_bad_class_maps(self, tmp_path, table):
        write_images(tmp_path / "a", 1, seed=1)
        (tmp_path / "classes.json").write_text(table)
        with pytest.raises(DataError, match=r"classes\.json"):
            open_set(ImageSet(format="imagefolder", path=str(tmp_path)), "here", Classes(4))

    def test_missing_empty_stray_and_unknown(self, tmp_path):
        with pytest.raises(DataError, match=r"here\.path: no folder"):
            open_set(ImageSet(format="folder", path=str(tmp_path / "none")), "here")
        with pytest.raises(DataError, match="holds no image"):
            open_set(ImageSet(format="folder", path=str(tmp_path)), "here")
        write_images(tmp_path, 1, seed=1)
        with pytest.raises(DataError, match="lies beside the class folders"):
            open_set(ImageSet(format="imagefolder", path=str(tmp_path)), "here")
        with pytest.raises(DataError, match="lies beside the identity folders"):
            open_set(ImageSet(format="identities", path=str(tmp_path)), "here")

    def test_linked_folders_are_looked_into_each_once(self, tmp_path):
        write_images(tmp_path / "elsewhere/cats", 1, seed=1)
        write_images(tmp_path / "set/b", 1, seed=2)
        for name, target in (
            ("a", "elsewhere/cats"),
            ("again", "elsewhere/cats"),
            ("b/round", "set"),
            ("b/up", "."),
            ("gone", "none"),
        ):
            (tmp_path / "set" / name).symlink_to(tmp_path / target)
        items = open_set(ImageSet(format="folder", path=str(tmp_path / "set")), "here")
        assert [item.name for item in items] == ["a/image_1_000.png", "b/image_2_000.png"]

    def test_a_shared_image_is_found_by_content_not_by_name(self, tmp_path):
        first = write_images(tmp_path / "a", 2, seed=1)
        write_images(tmp_path / "b", 2, seed=2)
        (tmp_path / "b/renamed.png").write_bytes(first[1].read_bytes())
        a, b = (open_set(ImageSet(format="folder", path=str(tmp_path / name)), name) for name in "ab")
        pairs = [[(item.name, item.sha256) for item in items] for items in (a, b)]
        with pytest.raises(DataError, match=r"share 1 image\(s\) by content, the first: image_1_001.png = renamed.png"):
            refuse_overlap(*pairs, "calibration", "validation")
        refuse_overlap(pairs[0], pairs[1][:2], "calibration", "validation")

    def test_the_policy_for_unreadable_images(self, tmp_path):
        paths = write_images(tmp_path, 3, seed=1)
        paths[1].write_bytes(paths[1].read_bytes()[:50])
        items = open_set(ImageSet(format="folder", path=str(tmp_path)), "here")
        spec = Input(size=(8, 8))
        with pytest.raises(DataError, match="image_1_001.png"):
            list(Images(items, spec))
        lenient = Images(items, spec, "skip")
        assert [item.name for item, _ in lenient] == ["image_1_000.png", "image_1_002.png"]
        assert len(lenient.skipped) == 1
        assert "image_1_001.png" in lenient.skipped[0]
        assert [item.name for item, _ in lenient] == ["image_1_000.png", "image_1_002.png"]
        assert len(lenient.skipped) == 1, "a second pass counts anew"
        with pytest.raises(DataError, match="none of 1 images is readable"):
            list(Images(items[1:2], spec, "skip"))


def make_items(labels: list[int | None], duplicates: int = 0) -> list[Item]:
    items = [Item(None, f"{place:04d}", f"{place:064x}", label) for place, label in enumerate(labels)]
    return items + [Item(None, f"copy{place}", items[place].sha256, items[place].label) for place in range(duplicates)]


class TestSplits:
    @given(
        labels=st.lists(st.integers(0, 4), min_size=2, max_size=80),
        border=st.floats(0.1, 0.9),
        seed=st.integers(0, 5),
        duplicates=st.integers(0, 2),
        shuffled=st.randoms(use_true_random=False),
    )
    @settings(max_examples=80, deadline=None)
    def test_two_parts_are_disjoint_complete_and_blind_to_order(self, labels, border, seed, duplicates, shuffled):
        items = make_items(labels, duplicates)
        first, second = part(items, Split(stop=border, seed=seed)), part(items, Split(start=border, seed=seed))
        assert not {item.sha256 for item in first} & {item.sha256 for item in second}
        assert {item.name for item in first} | {item.name for item in second} == {item.name for item in items}
        assert len({item.sha256 for item in first}) == round(border * len(labels))
        mixed = list(items)
        shuffled.shuffle(mixed)
        assert {item.name for item in part(mixed, Split(stop=border, seed=seed))} == {item.name for item in first}

    def test_parts_are_stratified(self):
        items = make_items([place % 4 for place in range(400)])
        counts = np.bincount([item.label for item in part(items, Split(stop=0.25))])
        assert counts.sum() == 100
        assert counts.min() >= 24

    def test_one_image_a_class_still_splits(self):
        assert len(part(make_items(list(range(100))), Split(stop=0.2))) == 20

    def test_pick_takes_evenly_and_never_twice_the_same(self):
        items = make_items([0] * 90 + [1] * 10, duplicates=5)
        picked = pick(items, 20, seed=3)
        assert len(picked) == len({item.sha256 for item in picked}) == 20
        assert sum(item.label for item in picked) == 2
        assert [item.name for item in pick(items, 1000, 0)] == [item.name for item in items[:100]]

    def test_seeds_differ_and_the_list_s_hash_does_not_depend_on_order(self):
        items = make_items([None] * 50)
        assert {i.name for i in pick(items, 10, 0)} != {i.name for i in pick(items, 10, 1)}
        assert image_list(items) == image_list(items[::-1])
        assert image_list(items) != image_list(items[1:])


class TestPackaged:
    def test_copies_and_crops_with_sources(self, tmp_path):
        licence = "CC0 for the test"
        files = [
            Packaged(package="scikit-image", file="skimage/data/chelsea.png", to="whole/cat.png", licence=licence),
            Packaged(package="scikit-image", file="skimage/data/chelsea.png", to="crops", licence=licence, crops=3),
        ]
        assert make_set(tmp_path / "set", files) == 4
        crops = sorted((tmp_path / "set/crops").iterdir())
        assert [read_image(path).shape[0] >= 224 for path in crops] == [True] * 3
        sources = (tmp_path / "set/SOURCES.md").read_text()
        assert sources.count(licence) == 2
        assert "whole/cat.png" in sources
        again = [path.read_bytes() for path in crops]
        make_set(tmp_path / "set", files)
        assert [path.read_bytes() for path in crops] == again

    def test_a_missing_package_file_and_a_small_photo(self, tmp_path):
        with pytest.raises(DataError, match="'no-such-package' is not installed"):
            locate("no-such-package", "x")
        with pytest.raises(DataError, match="has no file 'nothing.png'"):
            locate("scikit-image", "nothing.png")
        small = Packaged(package="scikit-image", file="skimage/data/chelsea.png", to="c", licence="x", crops=1, least=999)
        with pytest.raises(DataError, match="too small for crops of 999"):
            make_set(tmp_path / "set", [small])
        assert list(tmp_path.iterdir()) == []
