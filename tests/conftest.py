"""Settings that all tests share: the same hypothesis examples on every machine, and no database between runs."""

from hypothesis import settings

settings.register_profile("hsplan", deadline=None, derandomize=True, database=None)
settings.load_profile("hsplan")
