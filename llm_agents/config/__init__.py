"""Recipes as text: reading, laying over, checking and explaining them, with nothing heavy imported.

Signatures and docstrings are read from the source files of the classes that a recipe names. None of
those modules is imported, so that a mistyped key is refused in a fraction of a second.
"""
