"""Folders of images written as tar files: ``python -m rdm_solo.shards FOLDER OUT``."""
