"""Are the warnings of collapse right, and which measure chooses a good run without labels?"""
