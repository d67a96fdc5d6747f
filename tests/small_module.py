"""A network as a user has it: a module beside params.yaml; tests of training copy this file there."""

import torch
from torch import nn


class Small(nn.Module):
    def __init__(self, classes, maps=False, logs=False):
        super().__init__()
        self.stem = nn.Sequential(nn.Conv2d(3, 8, 3, 2, 1, bias=False), nn.BatchNorm2d(8, eps=1e-3, momentum=0.2), nn.ReLU6(True))
        self.deep = nn.Sequential(nn.Conv2d(8, 8, 3, 1, 1, groups=8), nn.BatchNorm2d(8), nn.ReLU(True), nn.Conv2d(8, 8, 1))
        self.pool = nn.MaxPool2d(3, 1, 1)
        self.wide = nn.Conv2d(16, 16, 3, 1, 1)
        self.maps, self.logs = maps, logs
        self.head = nn.Conv2d(16, classes, 1) if maps else nn.Linear(16, classes)

    def forward(self, image):
        found = self.stem(image)
        found = torch.cat([found + self.deep(found), self.pool(found)], 1)
        found = torch.relu_(self.wide(found))
        if self.logs:
            found = found + torch.log(image.mean((1, 2, 3), keepdim=True))
        return self.head(found if self.maps else found.mean((2, 3)))


def with_statistics(module):
    """Batch norms that scale and shift, as after training."""
    for part in module.modules():
        if isinstance(part, nn.BatchNorm2d):
            nn.init.uniform_(part.weight, 0.5, 1.5)
            nn.init.normal_(part.bias, 0, 0.2)
            nn.init.normal_(part.running_mean, 0, 0.1)
            nn.init.uniform_(part.running_var, 0.5, 2)
    return module


def small(classes=4, maps=False, logs=False):
    return Small(classes, maps, logs)
