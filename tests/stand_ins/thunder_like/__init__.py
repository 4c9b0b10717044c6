"""As lightning-thunder: nothing is registered; a backend is an instance that takes objects."""


class Transform:
    pass


class ThunderCompiler:
    def __init__(self, level=1, transforms=()):
        self.level = level
        self.transforms = transforms

    def __call__(self, gm, example_inputs):
        print("compiled by thunder_like", self.level, len(self.transforms))
        return gm.forward

    def build(self, gm, example_inputs):
        print("built by thunder_like", self.level)
        return gm.forward

    @classmethod
    def quick(cls, gm, example_inputs):
        print("quickly compiled by thunder_like")
        return gm.forward

    @staticmethod
    def plain(gm, example_inputs):
        print("plainly compiled by thunder_like")
        return gm.forward


def make(level=1):
    return ThunderCompiler(level=level, transforms=[Transform()])


def fast():
    return ThunderCompiler(level=7)


def closure(level, table):
    def backend(gm, example_inputs):
        print("compiled by a closure", level, table)
        return gm.forward

    return backend


shared = ThunderCompiler(level=4)
COMPILERS = {"slow": ThunderCompiler(level=0)}


class Presets:
    best = ThunderCompiler(level=9)
