"""Small detectors of transformers with random weights, shaped so that scores differ and boxes spread, as trained ones do."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import torch

SIZE, QUERIES, CLASSES = 128, 20, 5

_SMALL = dict(
    encoder_hidden_dim=32,
    encoder_in_channels=[32, 48, 64],
    encoder_ffn_dim=64,
    encoder_attention_heads=4,
    d_model=32,
    decoder_in_channels=[32, 32, 32],
    decoder_ffn_dim=64,
    decoder_attention_heads=4,
    decoder_layers=2,
    num_queries=QUERIES,
    num_denoising=0,
    num_labels=CLASSES,
)


def photos(count: int, seed: int = 0) -> list[np.ndarray]:
    """Smooth images, [1, 3, SIZE, SIZE] float32 around 0."""
    generator = np.random.default_rng(seed)
    coarse = generator.standard_normal((count, 3, SIZE // 8, SIZE // 8)).astype(np.float32)
    return [np.repeat(np.repeat(one[None], 8, 2), 8, 3) for one in coarse]


def saved(kind: str, folder: Path) -> Path:
    """`rtdetr`, `rtdetrv2` or `dfine` as `save_pretrained` writes it."""
    import transformers as hf

    torch.manual_seed(0)
    resnet = dict(embedding_size=16, hidden_sizes=[16, 32, 48, 64], depths=[1, 1, 1, 1], layer_type="basic")
    stages = dict(out_features=["stage2", "stage3", "stage4"])
    if kind == "dfine":
        stem = dict(embedding_size=16, hidden_sizes=[16, 32, 48, 64], stem_channels=[3, 8, 16])
        layers = dict(
            stage_in_channels=[16, 16, 32, 48],
            stage_mid_channels=[8, 8, 16, 16],
            stage_out_channels=[16, 32, 48, 64],
            stage_num_blocks=[1, 1, 1, 1],
            stage_downsample=[False, True, True, True],
            stage_light_block=[False, False, True, True],
            stage_kernel_size=[3, 3, 5, 5],
            stage_numb_of_layers=[2, 2, 2, 2],
        )
        backbone = hf.HGNetV2Config(**stem, **layers, **stages)
        model = hf.DFineForObjectDetection(hf.DFineConfig(backbone_config=backbone, **_SMALL, decoder_n_points=[4, 4, 4]))
    elif kind == "rtdetrv2":
        config = hf.RTDetrV2Config(backbone_config=hf.RTDetrResNetConfig(**resnet, **stages), **_SMALL)
        model = hf.RTDetrV2ForObjectDetection(config)
    else:
        model = hf.RTDetrForObjectDetection(hf.RTDetrConfig(backbone_config=hf.RTDetrResNetConfig(**resnet, **stages), **_SMALL))
    spread(model.eval(), lambda: model(pixel_values=torch.from_numpy(np.concatenate(photos(4, seed=9)))))
    model.save_pretrained(folder)
    return folder


def spread(model: torch.nn.Module, run) -> None:
    """Heads that say something, and BatchNorm statistics of real images; as built, all scores are equal."""
    for name, parameter in model.named_parameters():
        head = any(word in name for word in ("score", "class_embed", "bbox", "cls_"))
        if parameter.ndim > 1 and (head or not parameter.abs().max()):
            torch.nn.init.normal_(parameter, std=(0.5 if "bbox" in name else 2.0) / parameter[0].numel() ** 0.5)

    def settle(norm: torch.nn.Module, inputs: tuple[torch.Tensor, ...]) -> None:
        norm.running_mean.copy_(inputs[0].mean((0, 2, 3)))
        norm.running_var.copy_(inputs[0].var((0, 2, 3)) + 1e-4)

    norms = [module for module in model.modules() if "BatchNorm" in type(module).__name__]
    hooks = [norm.register_forward_pre_hook(settle) for norm in norms]
    with torch.no_grad():
        run()
    for hook in hooks:
        hook.remove()
