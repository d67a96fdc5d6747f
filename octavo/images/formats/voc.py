"""PASCAL VOC: an XML file of boxes for each image (http://host.robots.ox.ac.uk/pascal/VOC/voc2012/htmldoc/).

The XML files are the set: all of them, or those of a list (`annotations: ImageSets/Main/val.txt`). Pixels count from 1 and corners
belong to the box there, so xmin..xmax covers the pixel edges xmin - 1 to xmax. An object marked `difficult` is taken as COCO's
crowds are: PASCAL's rule is that finding one is neither right nor wrong, and missing one costs nothing.
"""

from __future__ import annotations

import math
import re
from collections import Counter, defaultdict
from collections.abc import Set
from pathlib import Path, PurePosixPath
from xml.etree.ElementTree import Element, TreeBuilder
from xml.parsers import expat

from octavo.errors import DataError
from octavo.images.formats.annotated import Annotation, Photo, Shape, listed
from octavo.images.formats.class_map import Category, class_indices
from octavo.images.formats.listed import Classes, Listed, files_below, image_files
from octavo.images.formats.places import annotations_path, composed, refuse_outside, shown, text_lines
from octavo.params.grammar import ImageSet
from octavo.progress import say

__all__ = ["class_names_of", "places_of", "read"]

# The encoding that a file says it has, where its declaration can be read as ASCII: not UTF-16.
_ENCODING = re.compile(rb"""\s*<\?xml\b[^>]*?\bencoding\s*=\s*["']([A-Za-z][\w.:-]*)["']""")


def read(root: Path, images: ImageSet, where: str, classes: Classes) -> list[Listed]:
    """Images of `JPEGImages` (else `images`, else the folder) with the boxes of `Annotations` (else beside the images).

    `annotations` may name the folder of XML files, or a text file with the stems of the set's images.

    Raises:
        DataError: there is no XML file, one is malformed or has a DOCTYPE, its image is missing, a box cannot be, or nothing says
            which of the model's classes a name is.
    """
    told = annotations_path(root, images, where)
    photos_at, xml_at = places_of(root)
    if told is not None and told.is_dir():
        xml_at = told
    by_stem: dict[str, list[Path]] = defaultdict(list)
    for path in image_files(photos_at):
        by_stem[_stem(path, photos_at)].append(path)
    spelt = {_stem(path, xml_at): path for path in _xml_files(xml_at)}
    if told is not None and told.is_file():
        stems = _stems(told, root, by_stem.keys())
    else:
        stems = sorted(spelt)
        if not stems:
            raise DataError(f"{where}: {xml_at} holds no XML file", f"name their folder: `{where}.annotations: folder`")
        others = len(by_stem.keys() - set(stems))
        if others:
            say(f"note: {where}: {others} image(s) below {photos_at} have no XML file and are not part of the set")
    missing = [stem for stem in stems if stem not in by_stem]
    if missing:
        raise DataError(
            f"{where}: {len(missing)} image(s) of {len(stems)} are not below {photos_at}: {shown(missing)}",
            f"put them there (`dvc pull`), or take them out of {told or xml_at}",
        )
    photos = [_photo(by_stem[stem], spelt.get(stem, xml_at / f"{stem}.xml")) for stem in stems]
    counts = Counter(box.category for photo in photos for box in photo.annotations)
    categories = [Category(name, str(name)) for name in sorted(counts)]
    # The classes are those that happen to be there: a rare one may be mapped and absent.
    indices = class_indices(categories, counts, images, where, classes, unnamed="told", closed=False)
    return listed(photos, indices, where)


def places_of(root: Path) -> tuple[Path, Path]:
    """The folders that hold the images and the XML files of a set."""
    photos_at = next((root / name for name in ("JPEGImages", "images") if (root / name).is_dir()), root)
    return photos_at, next((root / name for name in ("Annotations", "annotations") if (root / name).is_dir()), photos_at)


def class_names_of(root: Path) -> list[str]:
    """The class names in the XML files of a set's folder, each once, in alphabetical order."""
    files = _xml_files(places_of(root)[1])
    names = {(element.findtext("name") or "").strip() for xml in files for element in _tree(xml).iterfind("object")}
    return sorted(names - {""})


def _xml_files(folder: Path) -> list[Path]:
    """Some programs write a.XML."""
    return [path for path in files_below(folder) if path.suffix.lower() == ".xml"]


def _stem(path: Path, folder: Path) -> str:
    return composed(path.relative_to(folder).with_suffix("").as_posix())


def _stems(file: Path, root: Path, known: Set[str]) -> list[str]:
    """The first column: lists of one class have 1, 0 or -1 in the second, and name every image all the same.

    A name may have spaces where it is that of an image (`known`).
    """
    stems: dict[str, int] = {}
    for number, line in enumerate(text_lines(file), 1):
        here, stem = f"{file}, line {number}", composed(line.strip())
        if not stem:
            continue
        if stem not in known:
            name, *flag = stem.rsplit(maxsplit=1)
            stem = name if flag and flag[0] in ("-1", "0", "1") else stem
        if stem not in known and len(stem.split()) > 1:
            raise DataError(f"{here} is not the name of one image: {line!r}", "one name a line, without folder and suffix")
        refuse_outside(stem, here, root)
        if stem in stems:
            raise DataError(f"{here} names {stem} again, after line {stems[stem]}", "list each image once")
        stems[stem] = number
    return list(stems)


def _photo(paths: list[Path], xml: Path) -> Photo:
    if len(paths) > 1:
        raise DataError(f"{xml} may be about any of {shown([str(path) for path in paths])}", "keep one of them")
    tree = _tree(xml)
    photo = Photo(paths[0], str(xml), _shape(tree, xml))
    for number, element in enumerate(tree.iterfind("object"), 1):
        name = (element.findtext("name") or "").strip()
        here = f"{xml}: object {number}"
        if not name:
            raise DataError(f"{here} has no `name`", "name its class, or remove it")
        here += f" ({name})"
        difficult = (element.findtext("difficult") or "0").strip()
        if difficult not in ("0", "1"):
            raise DataError(f"{here} has `difficult` {difficult!r}", "it is 0 or 1")
        box = element.find("bndbox")
        if box is None:
            raise DataError(f"{here} has no `bndbox`", "detection is scored by boxes: add xmin, ymin, xmax and ymax")
        left, top, right, bottom = (_number(box, key, here) for key in ("xmin", "ymin", "xmax", "ymax"))
        photo.annotations.append(Annotation(name, (left - 1, top - 1, right, bottom), here, difficult == "1"))
    return photo


def _shape(tree: Element, xml: Path) -> Shape | None:
    """(rows, columns); annotation tools that do not know them write 0."""
    size = tree.find("size")
    if size is None or size.find("height") is None or size.find("width") is None:
        return None
    rows, columns = (_number(size, key, f"{xml}: size") for key in ("height", "width"))
    return (int(rows), int(columns)) if rows > 0 and columns > 0 else None


def _number(element: Element, key: str, here: str) -> float:
    text = (element.findtext(key) or "").strip()
    try:
        value = float(text)
    except ValueError:
        value = math.nan
    if not math.isfinite(value):
        raise DataError(f"{here}: `{key}` is {text!r}", "it is a number of pixels")
    return value


def _tree(xml: Path) -> Element:
    """The file's root element; a DOCTYPE, which can define entities that grow without bound, is refused before it is read."""
    try:
        data = xml.read_bytes()
        said = _ENCODING.match(data)
        encoding = said.group(1).decode() if said and not said.group(1).lower().startswith(b"utf") else None
        # Expat knows no encoding of several bytes a letter but Unicode's own: GBK, Big5, Shift_JIS, EUC-KR.
        data = data if encoding is None else data.decode(encoding).encode()
    except (OSError, ValueError, LookupError) as error:
        raise _unreadable(xml, error) from error
    builder = TreeBuilder()
    parser = expat.ParserCreate(None if encoding is None else "utf-8")
    parser.StartElementHandler = builder.start
    parser.EndElementHandler = builder.end
    parser.CharacterDataHandler = builder.data

    def refuse(*_: object) -> None:
        raise DataError(f"{xml}, line {parser.CurrentLineNumber}: a DOCTYPE is not read", "remove it: annotations need none")

    parser.StartDoctypeDeclHandler = refuse
    try:
        parser.Parse(data, True)
    except (expat.ExpatError, ValueError, LookupError) as error:
        raise _unreadable(xml, error) from error
    tree = builder.close()
    if tree.tag != "annotation":
        raise DataError(f"{xml} is <{tree.tag}>, no PASCAL VOC <annotation>", f"take {PurePosixPath(xml).name} out of the folder")
    return tree


def _unreadable(xml: Path, error: Exception) -> DataError:
    return DataError(f"{xml} is not readable XML: {error}", "correct the file or fetch it again")
