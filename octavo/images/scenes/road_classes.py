"""What a pixel of a road scene can be."""

__all__ = ["BUILDING", "CAR", "CLASSES", "MARKING", "POLE", "ROAD", "SIDEWALK", "SKY", "VEGETATION", "VOID"]

# Class index -> name.
CLASSES = ("sky", "building", "vegetation", "sidewalk", "road", "marking", "car", "pole")
SKY, BUILDING, VEGETATION, SIDEWALK, ROAD, MARKING, CAR, POLE = range(len(CLASSES))
# What is of no class: the bonnet of the car that carries the camera, and what fog hides.
VOID = 255
