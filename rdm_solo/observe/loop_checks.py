from dataclasses import dataclass

CHECKED_STEPS = 10


@dataclass(frozen=True)
class Finding:
    check: str
    part: str
    text: str


class LoopChecks:
    def __init__(self, module, branches, views=None):
        pass

    def after_step(self):
        return []

    def detach(self):
        pass
