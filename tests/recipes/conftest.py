"""The recipes are scripts beside the package: their directory is put where a script's own would be."""

import sys
from pathlib import Path

RECIPES = Path(__file__).parents[2] / "recipes"
sys.path.insert(0, str(RECIPES))
