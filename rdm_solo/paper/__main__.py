"""The command."""

from rdm_solo.cli import say_anything
from rdm_solo.paper import markdown

say_anything()
print(markdown(), end="")
