"""Tiny image pipelines with random weights, to try `Diffusion` without a download.

    pipeline = tiny.pipeline("sd15")  # or "sdxl", "sd3", "flux"

They have the classes and layer names of the real pipelines, and draw noise.
"""

from __future__ import annotations

import string
from typing import Any, Literal, get_args

from recombine.basics.errors import require
from recombine.basics.optional_deps import import_library

torch = import_library("torch")
diffusers = import_library("diffusers")
transformers = import_library("transformers")
Kind = Literal["sd15", "sdxl", "sd3", "flux"]
KINDS = get_args(Kind)
WIDTH = 16  # of text encoders; T5 has twice the width, that of two others concatenated


def pipeline(kind: Kind = "sd15", seed: int = 0) -> Any:
    """A pipeline of Stable Diffusion 1.5, XL, 3 or FLUX, for images of 32 x 32 pixels."""
    require(kind in KINDS, f"there is no tiny pipeline {kind!r}: choose one of {', '.join(KINDS)}")
    builders = {"sd15": _sd15, "sdxl": _sdxl, "sd3": _sd3, "flux": _flux}
    rng_state = torch.get_rng_state()
    torch.manual_seed(seed)
    try:
        made = builders[kind]()
    finally:
        torch.set_rng_state(rng_state)
    made.set_progress_bar_config(disable=True)
    return made


def clip_tokenizer() -> Any:
    """A CLIP tokenizer whose tokens are letters; texts are padded to 77 tokens."""
    letters = [*string.ascii_lowercase, *string.digits, *string.punctuation]
    last_letters = [f"{letter}</w>" for letter in letters]  # CLIP marks the end of a word
    tokens = [*letters, *last_letters, "<|startoftext|>", "<|endoftext|>"]
    vocabulary = {token: number for number, token in enumerate(tokens)}
    return transformers.CLIPTokenizer(vocab=vocabulary, merges=[], model_max_length=77)


def t5_tokenizer() -> Any:
    """A T5 tokenizer whose pieces are letters."""
    letters = [*string.ascii_letters, *string.digits, *string.punctuation]
    pieces = ["<pad>", "</s>", "<unk>", "▁", *letters]
    scores = [(piece, 0.0 if piece.startswith("<") else -2.0) for piece in dict.fromkeys(pieces)]
    return transformers.T5TokenizerFast(vocab=scores, extra_ids=0)


def clip(tokenizer: Any, projected: bool = False) -> Any:
    """A CLIP text encoder of two layers."""
    config = transformers.CLIPTextConfig(
        vocab_size=len(tokenizer),
        hidden_size=WIDTH,
        intermediate_size=2 * WIDTH,
        projection_dim=WIDTH,
        num_hidden_layers=2,
        num_attention_heads=4,
        bos_token_id=tokenizer.bos_token_id,
        eos_token_id=tokenizer.eos_token_id,
        pad_token_id=tokenizer.pad_token_id,
    )
    kind = transformers.CLIPTextModelWithProjection if projected else transformers.CLIPTextModel
    return kind(config).eval()


def t5(tokenizer: Any) -> Any:
    """A T5 text encoder of two layers, twice as wide."""
    config = transformers.T5Config(
        vocab_size=len(tokenizer),
        d_model=2 * WIDTH,
        d_ff=2 * WIDTH,
        d_kv=8,
        num_heads=4,
        num_layers=2,
    )
    return transformers.T5EncoderModel(config).eval()


def _vae(channels: int = 4) -> Any:
    return diffusers.AutoencoderKL(
        block_out_channels=(4, 8),
        down_block_types=("DownEncoderBlock2D",) * 2,
        up_block_types=("UpDecoderBlock2D",) * 2,
        latent_channels=channels,
        norm_num_groups=2,
        sample_size=32,
        use_quant_conv=channels == 4,
        use_post_quant_conv=channels == 4,
        shift_factor=0.1,
        scaling_factor=1.0,
    ).eval()


def _unet(**options: Any) -> Any:
    return diffusers.UNet2DConditionModel(
        sample_size=16,
        layers_per_block=1,
        block_out_channels=(8, 16),
        down_block_types=("DownBlock2D", "CrossAttnDownBlock2D"),
        up_block_types=("CrossAttnUpBlock2D", "UpBlock2D"),
        norm_num_groups=4,
        **options,
    ).eval()


def _sd15() -> Any:
    tokenizer = clip_tokenizer()
    return diffusers.StableDiffusionPipeline(
        vae=_vae(),
        text_encoder=clip(tokenizer),
        tokenizer=tokenizer,
        unet=_unet(cross_attention_dim=WIDTH, attention_head_dim=4),
        scheduler=diffusers.PNDMScheduler(
            skip_prk_steps=True, steps_offset=1, beta_schedule="scaled_linear"
        ),
        safety_checker=None,
        feature_extractor=None,
        requires_safety_checker=False,
    )


def _sdxl() -> Any:
    tokenizer = clip_tokenizer()
    unet = _unet(
        cross_attention_dim=2 * WIDTH,
        attention_head_dim=(2, 4),
        transformer_layers_per_block=(1, 2),
        use_linear_projection=True,
        addition_embed_type="text_time",
        addition_time_embed_dim=8,
        projection_class_embeddings_input_dim=6 * 8 + WIDTH,
    )
    return diffusers.StableDiffusionXLPipeline(
        vae=_vae(),
        text_encoder=clip(tokenizer),
        text_encoder_2=clip(tokenizer, projected=True),
        tokenizer=tokenizer,
        tokenizer_2=clip_tokenizer(),
        unet=unet,
        scheduler=diffusers.EulerDiscreteScheduler(timestep_spacing="leading", steps_offset=1),
        add_watermarker=False,
    )


def _sd3() -> Any:
    tokenizer = clip_tokenizer()
    pieces = t5_tokenizer()
    transformer = diffusers.SD3Transformer2DModel(
        sample_size=16,
        patch_size=2,
        in_channels=4,
        out_channels=4,
        num_layers=2,
        attention_head_dim=8,
        num_attention_heads=4,
        joint_attention_dim=2 * WIDTH,
        caption_projection_dim=32,
        pooled_projection_dim=2 * WIDTH,
    )
    return diffusers.StableDiffusion3Pipeline(
        vae=_vae(),
        text_encoder=clip(tokenizer, projected=True),
        text_encoder_2=clip(tokenizer, projected=True),
        text_encoder_3=t5(pieces),
        tokenizer=tokenizer,
        tokenizer_2=clip_tokenizer(),
        tokenizer_3=pieces,
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )


def _flux() -> Any:
    tokenizer = clip_tokenizer()
    pieces = t5_tokenizer()
    transformer = diffusers.FluxTransformer2DModel(
        patch_size=1,
        in_channels=16,
        num_layers=2,
        num_single_layers=2,
        attention_head_dim=16,
        num_attention_heads=2,
        joint_attention_dim=2 * WIDTH,
        pooled_projection_dim=WIDTH,
        axes_dims_rope=(4, 4, 8),
    )
    return diffusers.FluxPipeline(
        vae=_vae(),
        text_encoder=clip(tokenizer),
        text_encoder_2=t5(pieces),
        tokenizer=tokenizer,
        tokenizer_2=pieces,
        transformer=transformer.eval(),
        scheduler=diffusers.FlowMatchEulerDiscreteScheduler(),
    )
