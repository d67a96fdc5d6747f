"""Arrays of many images lie in a file, and are the same whenever they are asked for."""

import tempfile
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra import numpy as hnp
from onnx import TensorProto, helper

from octavo.errors import OutputError
from octavo.runtime import spilled
from octavo.runtime.session import Session
from octavo.runtime.spilled import Spill

DTYPES = st.sampled_from([np.float32, np.float16, np.float64, np.uint8, np.int64, np.bool_]).map(np.dtype)
ARRAYS = DTYPES.flatmap(lambda dtype: hnp.arrays(dtype, hnp.array_shapes(min_dims=0, max_dims=4, min_side=0, max_side=6)))
FEEDS = st.lists(st.dictionaries(st.sampled_from(["image", "size", "mask"]), ARRAYS), max_size=4)


@settings(max_examples=60, deadline=None)
@given(FEEDS, st.sampled_from([0, 64, 1 << 20]))
def test_what_is_put_is_what_is_read_whatever_its_shape_and_dtype(feeds, large):
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(spilled, "_LARGE", large)
        spill = Spill()
        kept = [spill.put(arrays) for arrays in feeds]
    del spill
    assert [list(found) for found in kept] == [list(arrays) for arrays in feeds]
    for arrays, found in zip(feeds, kept, strict=True):
        for name, value in arrays.items():
            assert found[name].dtype == value.dtype
            np.testing.assert_array_equal(found[name], value)


def test_slices_and_other_orders_of_memory_are_read_as_they_look():
    whole = np.arange(4 * 60 * 80 * 3, dtype=np.float32).reshape(4, 60, 80, 3)
    kept = Spill().put({"part": whole[1:3, ::2], "turned": whole.transpose(0, 3, 1, 2), "fortran": np.asfortranarray(whole)})
    np.testing.assert_array_equal(kept["part"], whole[1:3, ::2])
    np.testing.assert_array_equal(kept["turned"], whole.transpose(0, 3, 1, 2))
    np.testing.assert_array_equal(kept["fortran"], whole)


def test_writing_into_what_was_read_changes_nothing_else():
    kept = Spill().put({"image": np.ones((1, 3, 128, 128), np.float32)})
    mine = kept["image"]
    mine[:] = 7
    assert kept["image"].min() == kept["image"].max() == 1
    assert mine.min() == 7


def test_small_arrays_are_not_worth_a_file():
    small = {"image": np.zeros((1, 3, 32, 32), np.float32)}
    assert Spill().put(small) is small


def test_no_file_is_left_or_seen(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    kept = Spill().put({"image": np.zeros((1, 3, 128, 128), np.float32)})
    assert not kept["image"].any()
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_a_clear_error(tmp_path, monkeypatch):
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "gone"))
    with pytest.raises(OutputError, match=r"temporary folder .*gone could not be written: No such file.*\n.*TMPDIR"):
        Spill().put({"image": np.zeros((1, 3, 128, 128), np.float32)})


def test_sessions_run_on_what_is_read_from_several_threads():
    shape = [1, 3, 64, 64]
    node = helper.make_node("Mul", ["image", "image"], ["square"])
    ends = [helper.make_tensor_value_info(name, TensorProto.FLOAT, shape) for name in ("image", "square")]
    graph = helper.make_graph([node], "g", ends[:1], ends[1:])
    session = Session(helper.make_model(graph, opset_imports=[helper.make_opsetid("", 17)], ir_version=8).SerializeToString())
    images = [np.full([1, 3, 64, 64], place, np.float32) for place in range(24)]
    spill = Spill()
    kept = [spill.put({"image": image, "unread": np.zeros(1 << 16, np.float32)}) for image in images]
    with ThreadPoolExecutor(4) as pool:
        found = list(pool.map(lambda arrays: session.run({"image": arrays["image"]})["square"], kept))
    for place, square in enumerate(found):
        assert square.min() == square.max() == place**2
