"""Synthetic scenes, a small diffusion model of them, and a judge of the generated images."""
