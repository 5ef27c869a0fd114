"""Training loops of several libraries on digits, each healthy or with one mistake.

A loop is a function ``loop(folder, failure, **options)``, whose options are those of a watch.
"""

EPOCHS = 2
STOP_GRADIENT = "no stop-gradient"
PREDICTOR = "no predictor"
MOMENTUM = "momentum 0"  # of methods that need no predictor
LEARNING_RATE = "lr x 100"
SIAMESE = [STOP_GRADIENT, PREDICTOR, LEARNING_RATE]
TEACHER = [STOP_GRADIENT, MOMENTUM, LEARNING_RATE]
LOOPS = {
    "lightly_simsiam": SIAMESE,
    "lightly_dino": TEACHER,
    "lightly_ijepa": TEACHER,
    "lightly_train": TEACHER,
    "stable_pretraining": SIAMESE,
    "hugging_face": SIAMESE,
    "fabric": SIAMESE,
    "ddp": SIAMESE,
    "ijepa": TEACHER,
    "dinov2": TEACHER,
}
