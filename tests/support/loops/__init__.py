"""Training loops of several libraries on digits, each healthy or with one mistake.

A loop is a function ``loop(watch, failure, epochs)``. ``watch`` makes the watch or the callback.
"""

STOP_GRADIENT = "no stop-gradient"
LEARNING_RATE = "lr x 100"
PREDICTOR = "no predictor"
MOMENTUM = "momentum 0"  # of methods that need no predictor
