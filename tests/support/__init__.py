"""Pieces that several test files share."""
