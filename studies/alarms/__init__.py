"""Are the warnings of collapse right? Which measures order runs by accuracy?"""
