"""Embeddings as tokens and blocks: what comes back, what is refused, and that both forms are the bytes that docs/codec.md shows."""

import base64
import contextlib
import json
import re
import struct
import subprocess
import sys
import zlib

import numpy as np
import pytest
from conftest import ROOT
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.extra.numpy import array_shapes, arrays

import codec as bench
from octavo.deploy.codec import (
    LIMITS,
    VERSION,
    cosine,
    decode_block,
    decode_token,
    decode_tokens,
    encode_block,
    encode_token,
    encode_tokens,
    quantize,
    read_block,
    read_tokens,
    token_meta,
    write_block,
    write_tokens,
)
from octavo.errors import CodecError

BITS = st.sampled_from(sorted(LIMITS))
# Every finite float32, denormals and the largest among them.
FLOATS = st.floats(width=32, allow_nan=False, allow_infinity=False)
VECTORS = arrays(np.float32, array_shapes(min_dims=2, max_dims=2, max_side=9), elements=FLOATS)
EXAMPLE = np.array([[0.5, -0.25, 0.125, 0.0, 0.4], [-1.5, -1.5, -1.5, -1.5, -1.5]], np.float32)


def magnitudes() -> np.ndarray:
    """Positive float32 of each exponent, with the smallest, the largest and random mantissas."""
    mantissas = np.r_[0, 1, 2**22, 2**23 - 2, 2**23 - 1, np.random.default_rng(0).integers(0, 2**23, 250)].astype(np.uint32)
    return (np.arange(255, dtype=np.uint32)[:, None] << 23 | mantissas).ravel().view(np.float32)


def same_bits(one: np.ndarray, other: np.ndarray) -> bool:
    return one.dtype == other.dtype == np.float32 and one.shape == other.shape and one.tobytes() == other.tobytes()


def embeddings(count: int = 7, dim: int = 33, seed: int = 0) -> np.ndarray:
    vectors = np.random.default_rng(seed).standard_normal((count, dim))
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)


# ---- what comes back ----


@settings(deadline=None)
@given(VECTORS, BITS)
def test_values_come_back_within_half_a_scale(vectors, bits):
    coded = quantize(vectors, bits)
    back = coded.vectors()
    # And half a unit in the last place: the product is rounded to float32.
    exponents = np.frexp(np.maximum(np.abs(back), np.abs(vectors)).astype(np.float64))[1]
    bound = coded.scales[:, None] / 2 + np.ldexp(0.5, np.maximum(exponents - 24, -149))
    assert (np.abs(back.astype(np.float64) - vectors) <= bound * (1 + 1e-12)).all()
    assert np.isfinite(back).all()
    assert np.abs(coded.codes.astype(int)).max() <= LIMITS[bits]


@settings(deadline=None)
@given(VECTORS, BITS)
def test_coding_what_was_decoded_changes_nothing(vectors, bits):
    block = encode_block(vectors, bits)
    assert encode_block(decode_block(block), bits) == block
    tokens = encode_tokens(vectors, bits=bits)
    assert encode_tokens(decode_tokens(tokens), bits=bits) == tokens


@settings(deadline=None)
@given(VECTORS, BITS)
def test_sign_order_and_extremes_are_kept(vectors, bits):
    back = decode_block(encode_block(vectors, bits))
    assert (back * np.sign(vectors) >= 0).all()
    for before, after in zip(vectors, back, strict=True):
        assert (np.diff(after[np.argsort(before, kind="stable")]) >= 0).all()
        peak = np.abs(before).argmax()
        assert after[peak] == before[peak]


@settings(deadline=None)
@given(VECTORS, BITS)
def test_batch_is_one_by_one_and_binary_is_text(vectors, bits):
    tokens = encode_tokens(vectors, bits=bits)
    assert tokens == [encode_token(vector, bits=bits) for vector in vectors]
    together = decode_tokens(tokens)
    assert same_bits(together, np.stack([decode_token(token) for token in tokens]))
    assert same_bits(together, decode_block(encode_block(vectors, bits)))
    assert same_bits(together, decode_tokens([json.loads(token) for token in tokens]))
    # From one form to the other without floats between.
    assert write_tokens(read_block(encode_block(vectors, bits))) == tokens
    assert write_block(read_tokens(tokens)) == encode_block(vectors, bits)


@pytest.mark.parametrize("bits", sorted(LIMITS))
@pytest.mark.parametrize("dim", [1, 2, 5, 128])
def test_constant_vectors_are_exact_at_every_magnitude(bits, dim):
    values = magnitudes()
    values = np.r_[values, -values[values > 0]][:: 1 if dim == 1 else 17]
    constant = np.repeat(values[:, None], dim, axis=1)
    assert same_bits(decode_block(encode_block(constant, bits)), constant)
    some = constant[:: 97 if dim < 128 else 397]
    assert same_bits(decode_tokens(encode_tokens(some, bits=bits)), some)
    signs = np.where(np.arange(dim) % 2, -1, 1).astype(np.float32)
    assert same_bits(decode_block(encode_block(some * signs, bits)), some * signs + np.float32(0))


@pytest.mark.parametrize("bits", sorted(LIMITS))
def test_zero_vectors_are_exact_beside_others(bits):
    vectors = embeddings()
    vectors[2] = 0
    vectors[4] = -0.0
    for back in (decode_block(encode_block(vectors, bits)), decode_tokens(encode_tokens(vectors, bits=bits))):
        assert not back[[2, 4]].any()
        assert back[[0, 1, 3, 5, 6]].any(axis=1).all()
    zero = encode_token(vectors[4], bits=bits)
    assert not np.signbit(decode_token(zero)).any()
    with pytest.raises(CodecError, match=r"scale -0\.0"):
        decode_token(damaged(zero, scale=-0.0))


def test_what_lies_in_memory_does_not_matter():
    vectors = embeddings(6, 10)
    assert encode_block(np.asfortranarray(vectors)) == encode_block(vectors)
    assert encode_block(np.repeat(vectors, 2, axis=1)[:, ::2]) == encode_block(vectors)
    # More than one chunk of the arithmetic.
    many = embeddings(3000, 64)
    assert encode_block(many[1500:1700]) == write_block(quantize(many[1500:1700]))
    assert same_bits(decode_block(encode_block(many))[2500:], decode_block(encode_block(many[2500:])))


def test_callers_metadata_travels():
    vectors = embeddings(2)
    one = {"model": "faces", "box": [1, 2.5, None, True], "name": "Zoë"}
    tokens = encode_tokens(vectors, [one, None])
    assert [token_meta(token) for token in tokens] == [one, {}]
    assert [token_meta(token) for token in encode_tokens(vectors, one)] == [one, one]
    assert all(token.isascii() for token in tokens)
    assert same_bits(decode_tokens(tokens), decode_tokens(encode_tokens(vectors)))
    # What later writers or services add beside it is not ours to refuse.
    more = json.loads(tokens[0])
    more["id"] = 5
    more["meta"]["later"] = {}
    assert same_bits(decode_token(more), decode_token(tokens[0]))
    assert same_bits(decode_token(json.dumps(more, indent=2).encode()), decode_token(tokens[0]))


# ---- matching on codes ----


@settings(max_examples=60, deadline=None)
@given(st.integers(1, 3000), st.integers(0, 10**6), BITS, BITS)
def test_dot_products_of_codes_are_those_of_integers(dim, seed, bits, other_bits):
    generator = np.random.default_rng(seed)
    # Cubes of random numbers, and constant rows: the largest sums there are.
    one = np.r_[generator.standard_normal((3, dim)) ** 3, np.full((1, dim), 2)].astype(np.float32)
    two = np.r_[generator.standard_normal((5, dim)) ** 3, np.full((1, dim), -3), np.zeros((1, dim))].astype(np.float32)
    left, right = quantize(one, bits), quantize(two, other_bits)
    a, b = left.codes.astype(np.int64), right.codes.astype(np.int64)
    lengths = np.sqrt((a**2).sum(axis=1))[:, None] * np.sqrt((b**2).sum(axis=1))
    expected = np.where(lengths > 0, (a @ b.T) / np.maximum(lengths, 1), 0).astype(np.float32)
    found = cosine(left, right)
    assert found.dtype == np.float32
    assert np.array_equal(found, expected)
    assert np.abs(found).max() <= 1
    assert (np.diag(cosine(left, left)) == 1).all()
    assert (found[:, -1] == 0).all()


def test_large_products_that_cancel_leave_the_small_rest():
    dim = 4001
    one = np.full((1, dim), 127, np.float32)
    two = np.where(np.arange(dim) < dim // 2, 127, -127).astype(np.float32)[None]
    two[0, -1] = 1
    # 2000 products of 127 x 127, as many of their negatives, and 127 x 1: float32 alone would round on the way there.
    lengths = np.sqrt(dim * 127**2) * np.sqrt((dim - 1) * 127**2 + 1)
    assert cosine(quantize(one), quantize(two))[0, 0] == np.float32(127 / lengths)


def test_cosine_needs_no_scales_and_goes_over_chunks():
    gallery, probes = embeddings(5000, 128, 1), embeddings(3, 128, 2)
    found = cosine(quantize(probes), quantize(gallery))
    assert np.abs(found - probes @ gallery.T).max() < 6e-3
    scaled = gallery * np.geomspace(1e-30, 1e30, len(gallery), dtype=np.float32)[:, None]
    assert np.abs(cosine(quantize(probes), quantize(scaled)) - found).max() < 6e-3
    with pytest.raises(CodecError, match=r"dimension 128 and 64"):
        cosine(quantize(probes), quantize(embeddings(2, 64)))


# ---- what cannot be coded ----


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
def test_values_without_code_are_refused_by_place(value):
    vectors = embeddings()
    vectors[3, 20] = value
    with pytest.raises(CodecError, match=rf"embedding 3 has {value} at index 20"):
        quantize(vectors)
    # A NaN beside an infinity, at either end.
    vectors[3] = np.inf
    vectors[3, -1] = np.nan
    with pytest.raises(CodecError, match=r"embedding 3 has inf at index 0"):
        encode_block(vectors)


@pytest.mark.parametrize(
    ("wrong", "said"),
    [
        (np.zeros((2, 3)), r"float64.*\n.*astype"),
        (np.zeros((2, 3), np.float16), "float16"),
        (np.zeros((2, 3), ">f4"), r">f4.*byte order"),
        (np.zeros((2, 3), np.int8), "int8"),
        (np.zeros(3, np.float32), r"shape \[3\].*\n.*embedding\[None\]"),
        (np.zeros((2, 3, 1), np.float32), r"shape \[2, 3, 1\]"),
        (np.array(1, np.float32), r"shape \[\]"),
        (np.zeros((0, 3), np.float32), "batch is empty"),
        (np.zeros((2, 0), np.float32), "dimension 0"),
        ([[1.0, 2.0]], "a list"),
    ],
)
def test_other_than_vectors_is_refused(wrong, said):
    for encode in (quantize, encode_tokens, encode_block):
        with pytest.raises(CodecError, match=said):
            encode(wrong)


def test_one_vector_or_many_is_said():
    with pytest.raises(CodecError, match=r"not \[dimension\].*\n.*encode_tokens"):
        encode_token(embeddings())
    with pytest.raises(CodecError, match="a list"):
        encode_token([0.5])
    with pytest.raises(CodecError, match="decode_token"):
        decode_tokens(encode_token(EXAMPLE[0]))


@pytest.mark.parametrize("bits", [0, 4, 7, 16, None, "8"])
def test_other_bits_are_refused(bits):
    with pytest.raises(CodecError, match=r"codes of .* bits.*\n.*8, 6"):
        quantize(EXAMPLE, bits)


@pytest.mark.parametrize(
    ("meta", "said"),
    [
        ({"x": np.float32(1)}, "embedding 0 is not JSON"),
        ({"x": float("nan")}, "embedding 0 is not JSON"),
        ([{}], "1 objects of metadata for 2"),
        ([{}, "face"], "embedding 1 is a str"),
    ],
)
def test_metadata_that_is_no_json_is_refused(meta, said):
    with pytest.raises(CodecError, match=said):
        encode_tokens(EXAMPLE, meta)


# ---- damaged tokens and blocks ----


@pytest.mark.parametrize("bits", sorted(LIMITS))
@pytest.mark.parametrize("dim", [1, 2, 3, 4, 5, 128])
def test_every_truncation_is_refused(bits, dim):
    vectors = embeddings(2, dim)
    block, token = encode_block(vectors, bits), encode_token(vectors[0], bits=bits)
    for end in range(len(block)):
        with pytest.raises(CodecError):
            decode_block(block[:end])
    for end in range(len(token)):
        with pytest.raises(CodecError):
            decode_token(token[:end])
    data = json.loads(token)["data"]
    for shorter in (data[:-1], data[1:], data[:-4], data + "AAAA", data + "=", ""):
        with pytest.raises(CodecError, match=r"'data' has \d+ characters"):
            decode_token(damaged(token, data=shorter))
    with pytest.raises(CodecError, match="bytes where 2 embeddings"):
        decode_block(block + b"\0")


@pytest.mark.parametrize("bits", sorted(LIMITS))
def test_every_flipped_bit_of_a_block_is_refused(bits):
    block = encode_block(EXAMPLE, bits)
    for place in range(8 * len(block)):
        broken = bytearray(block)
        broken[place // 8] ^= 1 << place % 8
        with pytest.raises(CodecError):
            decode_block(broken)


@settings(deadline=None)
@given(st.binary(max_size=60) | st.binary(max_size=60).map(lambda tail: encode_block(EXAMPLE)[:16] + tail))
def test_any_bytes_give_a_clear_error(noise):
    with pytest.raises(CodecError):
        decode_block(noise)


JSON = st.recursive(st.none() | st.booleans() | st.integers() | st.floats() | st.text(), st.lists, max_leaves=3)


@settings(deadline=None)
@given(st.sampled_from(["dim", "data", "meta", "version", "bits", "scale", "user"]), JSON)
def test_any_json_in_a_token_is_read_or_gives_a_clear_error(key, value):
    token = damaged(encode_token(EXAMPLE[0]), **{key: value})
    for form in (token, json.dumps(token)):
        with contextlib.suppress(CodecError):
            assert np.isfinite(decode_token(form)).all()


def damaged(token: str, **changes) -> dict:
    """The token with keys of it, or of its `meta`, replaced."""
    made = json.loads(token)
    for key, value in changes.items():
        (made if key in made else made["meta"])[key] = value
    return made


@pytest.mark.parametrize(
    ("changes", "said"),
    [
        ({"version": 2}, r"version 2.*knows version 1.*\n.*update"),
        ({"version": True}, "version True"),
        ({"version": None}, "version None"),
        ({"bits": 7}, "'meta.bits' is 7"),
        ({"scale": float("nan")}, "token 0 has the scale nan"),
        ({"scale": float("inf")}, "token 0 has the scale inf"),
        ({"scale": 10**400}, "token 0 has the scale inf"),
        ({"scale": -0.5}, "token 0 has the scale -0.5.*not negative"),
        ({"scale": -0.0}, "token 0 has the scale -0.0"),
        ({"scale": 0}, "token 0 has the scale 0.0.*zero vectors only"),
        ({"scale": 1e37}, "token 0 has the scale 1e.37.*fit float32"),
        ({"scale": 1e-60}, "token 0 has the scale 1e-60"),
        ({"scale": "0.5"}, "'meta.scale' is '0.5', not a number"),
        ({"scale": None}, "'meta.scale' is None"),
        ({"dim": 4}, r"'data' has 8 characters|is not the base64"),
        ({"dim": 0}, "'dim' is 0"),
        ({"dim": 5.0}, "'dim' is 5.0"),
        ({"dim": True}, "'dim' is True"),
        ({"dim": 10**18}, "'dim' is 1000000000000000000"),
        ({"data": "f8Bg=H8="}, "base64"),
        ({"data": "f8Bg\nH8="}, "base64"),
        ({"data": "f8-gAGY="}, "not base64"),
        ({"data": "f8AgAGZ="}, "not the base64 of 5 bytes"),
        ({"data": "f8CAAGY="}, "outside of .-127"),
        ({"data": 5}, "'data' is not text"),
        ({"meta": []}, "'meta' is not an object"),
        ({"user": 5}, "'meta.user' is not an object"),
    ],
)
def test_a_damaged_token_says_what_is_wrong(changes, said):
    token = damaged(encode_token(EXAMPLE[0]), **changes)
    for form in (token, json.dumps(token)):
        with pytest.raises(CodecError, match=said):
            decode_token(form)


def test_codes_and_filling_that_six_bits_have_not_are_refused():
    token = encode_token(EXAMPLE[0], bits=6)
    data = json.loads(token)["data"]
    assert decode_token(damaged(token, data=data)).shape == (5,)
    for wrong in ("A" + data[1:], data[:5] + chr(ord(data[5]) + 1) + "==", data[:5] + "Q=="):
        with pytest.raises(CodecError, match=r"token 0: its data|not the base64"):
            decode_token(damaged(token, data=wrong))
    # The bits that fill up the last byte, which base64 itself has no opinion on.
    packed = bytearray(base64.b64decode(data))
    packed[-1] |= 1
    with pytest.raises(CodecError, match="token 0: its data"):
        decode_token(damaged(token, data=base64.b64encode(packed).decode()))


@pytest.mark.parametrize(
    ("other", "said"),
    [
        ("[]", "not a JSON object"),
        ("", "not JSON"),
        (b"\xff\xfe\x00", "not JSON"),
        ("[" * 100_000, "not JSON"),
        ("{}", "no 'dim' and no 'meta' and no 'data'"),
        (5, "token 1 is a int"),
    ],
)
def test_other_than_a_token_is_refused_by_its_place(other, said):
    with pytest.raises(CodecError, match=said):
        decode_tokens([encode_token(EXAMPLE[0]), other])


def test_tokens_of_two_dimensions_or_none_are_refused():
    with pytest.raises(CodecError, match="token 1 has dimension 4, token 0 has 5"):
        decode_tokens([encode_token(EXAMPLE[0]), encode_token(EXAMPLE[0, :4])])
    with pytest.raises(CodecError, match="no tokens"):
        decode_tokens([])


def test_tokens_of_two_sizes_are_read_together():
    vectors = embeddings(4)
    tokens = [encode_token(vector, bits=bits) for vector, bits in zip(vectors, (6, 8, 6, 8), strict=True)]
    read = read_tokens(tokens)
    assert read.bits == 8
    assert same_bits(read.vectors(), np.stack([decode_token(token) for token in tokens]))
    assert same_bits(decode_tokens(write_tokens(read)), read.vectors())
    # A scale that fits 6 bits need not fit 8: each is judged by its own.
    with pytest.raises(CodecError, match="token 1 has the scale -1"):
        read_tokens([tokens[0], damaged(tokens[1], scale=-1)])


@pytest.mark.parametrize(
    ("at", "put", "said"),
    [
        (0, b"RIFF", r"begins with b'RIFF', not b'OVEC'"),
        (4, b"\x02", "version 2; this reader knows version 1"),
        (5, b"\x04", "codes of 4 bits"),
        (6, b"\x01", "reserved bytes 0x0001"),
        (8, bytes(4), "dimension 0"),
        (12, bytes(4), "count 0"),
        (12, b"\xff\xff\xff\xff", "4294967295 embeddings"),
        (16, struct.pack("<d", np.nan), "embedding 0 has the scale nan"),
        (24, struct.pack("<d", -1), "embedding 1 has the scale -1.0"),
        (24, struct.pack("<d", 0), "embedding 1 has the scale 0.0"),
        (37, b"\x80", "embedding 1: its data"),
    ],
)
def test_a_damaged_block_says_what_is_wrong(at, put, said):
    body = bytearray(encode_block(EXAMPLE)[:-4])
    body[at : at + len(put)] = put
    with pytest.raises(CodecError, match=said):
        decode_block(bytes(body) + struct.pack("<I", zlib.crc32(body)))
    if at >= 16:
        with pytest.raises(CodecError, match="checksum"):
            decode_block(bytes(body) + encode_block(EXAMPLE)[-4:])


def test_a_block_is_bytes():
    with pytest.raises(CodecError, match="read the file in binary mode"):
        decode_block("OVEC")
    block = encode_block(EXAMPLE)
    assert same_bits(decode_block(memoryview(bytearray(block))), decode_block(block))


# ---- the format, and what is said about it ----


def test_the_worked_example_of_the_documentation_is_what_is_written():
    page = (ROOT / "docs" / "codec.md").read_text(encoding="utf-8")
    shown = re.findall(r"^\{\"dim\":5.*$", page, re.MULTILINE)
    assert shown == [*encode_tokens(EXAMPLE), encode_token(EXAMPLE[0], bits=6)]
    dump = re.findall(r"^([0-9a-f]{4})  ((?:[0-9a-f]{2} )+) *\S", page, re.MULTILINE)
    assert b"".join(bytes.fromhex(row) for _, row in dump) == encode_block(EXAMPLE)
    position = 0
    for offset, row in dump:
        assert int(offset, 16) == position
        position += len(bytes.fromhex(row))
    assert f"version {VERSION}" in page


def test_a_reader_written_from_the_documentation_agrees():
    """Nothing of octavo but the bytes: struct, base64 and the rule value = code x scale."""
    vectors = embeddings(3, 7)
    for bits, limit in LIMITS.items():
        block = encode_block(vectors, bits)
        magic, version, width, dim, count = struct.unpack_from("<4sBB2xII", block)
        assert (magic, version, width, dim, count) == (b"OVEC", 1, bits, 7, 3)
        size = -(-dim * bits // 8)
        for row in range(count):
            (scale,) = struct.unpack_from("<d", block, 16 + 8 * row)
            start = 16 + 8 * count + size * row
            whole = int.from_bytes(block[start : start + size], "big") >> (8 * size - dim * bits)
            fields = [whole >> bits * (dim - 1 - place) & (2**bits - 1) for place in range(dim)]
            codes = [field - 32 if bits == 6 else field - 256 * (field > 127) for field in fields]
            values = np.array([code * scale for code in codes]).astype(np.float32)
            assert same_bits(values, decode_block(block)[row])
            assert max(map(abs, codes)) == limit
            token = json.loads(encode_token(vectors[row], bits=bits))
            assert base64.b64decode(token["data"]) == block[start : start + size]
            assert token["meta"]["scale"] == scale


def test_sizes_are_those_of_the_documentation():
    vectors = embeddings(1000, 512)
    assert len(encode_block(vectors)) == 16 + 1000 * (8 + 512) + 4
    assert len(encode_block(vectors)) < 0.255 * vectors.nbytes
    tokens, smaller = encode_tokens(vectors), encode_tokens(vectors, bits=6)
    assert max(map(len, tokens)) < 0.285 * len(base64.b64encode(vectors[0].tobytes()))
    assert max(map(len, smaller)) < 0.295 * vectors[0].nbytes


def test_a_service_needs_numpy_alone():
    script = (
        "import sys; sys.modules.update(dict.fromkeys(['torch', 'onnx', 'onnxruntime', 'pydantic', 'cv2', 'yaml', 'scipy']));"
        "import octavo.deploy.codec; print(sorted(name for name in sys.modules if name.startswith('octavo')))"
    )
    done = subprocess.run([sys.executable, "-c", script], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    rooms = {"octavo", "octavo.errors", "octavo.deploy", *(f"octavo.deploy.{name}" for name in MODULES)}
    assert set(json.loads(done.stdout.replace("'", '"'))) == rooms


MODULES = ("codec", "codec.blocks", "codec.codes", "codec.packing", "codec.tokens")


# ---- the benchmark's own figures ----


def test_rates_of_the_benchmark_by_hand():
    others = np.arange(100, dtype=np.float32)
    assert bench.threshold(others, 0.1) == 89
    assert bench.tar(np.array([89, 90, 50, 200.0]), others, 0.1) == 0.5
    assert np.isnan(bench.tar(others, others, 0.05))
    assert bench.auc(np.array([100.0, 49.5, 0]), others) == pytest.approx((1 + 0.5 + 0.005) / 3)
    tied = np.r_[np.zeros(80), np.ones(20)]
    assert (tied > bench.threshold(tied, 0.1)).mean() <= 0.1


def test_pairs_of_one_photo_do_not_count():
    gallery = bench.Gallery(embeddings(6), np.array([0, 0, 0, 1, 1, 1]), np.array([0, 0, 1, 2, 2, 3]))
    one, two = gallery.pairs()
    assert sorted(map(divmod, one.tolist(), [6] * 4)) == [(0, 2), (1, 2), (3, 5), (4, 5)]
    assert len(two) == 9


def test_coded_clusters_match_as_floats_do():
    gallery = bench.clusters(np.random.default_rng(0), 60, 4, 128)
    _, missed = bench.matching({"small": gallery})
    assert not missed
    # What is compared is coded indeed.
    one, two = gallery.pairs()
    by_side = dict(bench.scored(gallery))
    floats, coded = by_side["no"], by_side["both sides, int8"]
    assert bench.auc(coded[one], np.sort(coded[two])) == pytest.approx(bench.auc(floats[one], np.sort(floats[two])), abs=1e-3)
    assert not np.array_equal(floats, coded)
