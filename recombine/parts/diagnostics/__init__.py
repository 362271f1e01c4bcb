"""Diagnostics: measurements inside the compiled program. Every file here is found automatically."""
