"""Scenes that are drawn here, a small diffusion model of them, and a judge of what it made."""
