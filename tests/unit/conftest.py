"""What unit tests share: cases that hypothesis draws may take as long as a busy machine wants."""

from hypothesis import settings

settings.register_profile("quire", deadline=None)
settings.load_profile("quire")
