"""How boxes lie in detectors' outputs: a module a family, and a line for each here."""

from __future__ import annotations

from octavo.tasks.detection.families import (
    anchored,
    chosen,
    decoded,
    efficientnms,
    nanodet,
    obb,
    paddle,
    retinaface,
    rtdetr,
    scrfd,
    ssd,
    ssdraw,
    tensorflow,
    torchvision,
    yolonas,
    yolov3,
    yolov4,
    yolov5,
    yolov7,
    yolov8,
    yolov8parts,
    yolov10,
    yolox,
    yunet,
)

__all__ = ["FAMILIES"]

# The first that fits is taken: layouts that follow from the input's size come before those of any number of rows.
FAMILIES = {
    family.name: family
    for family in (
        *efficientnms.FAMILIES,
        *tensorflow.FAMILIES,
        *torchvision.FAMILIES,
        *chosen.FAMILIES,
        paddle.FAMILY,
        *yolov7.FAMILIES,
        *nanodet.FAMILIES,
        yolov3.FAMILY,
        # Its scores alone may look like YOLOv5's rows.
        yolov4.FAMILY,
        *yolov5.FAMILIES,
        *yolov8.FAMILIES,
        obb.FAMILY,
        *yolov8parts.APART,
        yolov8parts.LEVELS,
        yolox.FAMILY,
        *yolox.DECODED,
        *yolov8.ROWS,
        retinaface.FAMILY,
        scrfd.FAMILY,
        yunet.FAMILY,
        ssdraw.FAMILY,
        anchored.FAMILY,
        # Its scores sum to 1, which may be those of a grid in shares, too.
        *ssd.FAMILIES,
        *yolonas.FAMILIES,
        *decoded.FAMILIES,
        *yolov10.FAMILIES,
        obb.CHOSEN,
        rtdetr.CHOSEN,
        rtdetr.FAMILY,
        rtdetr.SOFTMAX,
    )
}
