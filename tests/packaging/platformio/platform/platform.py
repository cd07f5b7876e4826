from platformio.public import PlatformBase


class QemuPlatform(PlatformBase):
    pass
