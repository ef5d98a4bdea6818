"""The packages of the distribution: those of the four folders, which ``pyproject.toml`` maps."""

from setuptools import find_packages, setup

FOLDERS = ("models", "inference", "experiments")
patterns = [pattern for folder in FOLDERS for pattern in (folder, f"{folder}.*")]
below = [f"probattn.{name}" for name in find_packages(include=patterns)]
setup(packages=[*find_packages(include=["probattn", "probattn.*"]), *below])
