# Tells PlatformIO how to compile for the board. The environment variable REPOSITORY names the folder of the
# repository, whose examples/mcu has the start-up code.
import os

from SCons.Script import Default, DefaultEnvironment

env = DefaultEnvironment()
mcu = os.path.join(os.environ["REPOSITORY"], "examples", "mcu")
core = ["-mcpu=cortex-m4", "-mthumb", "-mfloat-abi=hard", "-mfpu=fpv4-sp-d16"]
env.Replace(
    AR="arm-none-eabi-ar", CC="arm-none-eabi-gcc", CXX="arm-none-eabi-g++", LINK="arm-none-eabi-gcc",
    RANLIB="arm-none-eabi-ranlib", SIZETOOL="arm-none-eabi-size", PROGNAME="firmware", PROGSUFFIX=".elf")
env.Append(
    CCFLAGS=core + ["-Os", "-ffunction-sections", "-fdata-sections"]
    + ["-Wall", "-Wextra", "-Werror", "-Wno-unused-function"],
    CFLAGS=["-std=gnu11"],
    CXXFLAGS=["-std=gnu++17", "-fno-exceptions", "-fno-rtti", "-fno-threadsafe-statics"],
    CPPPATH=[mcu],
    CPPDEFINES=[("BOARD_HZ", "25000000u"), ("WATCHDOG", "0x40008000u"), ("WATCHDOG_HZ", "25000000u")],
    LINKFLAGS=core + ["-specs=nano.specs", "-nostartfiles", "-Wl,--gc-sections", "-T", os.path.join(mcu, "mcu.ld")] + [
        "-Wl,--defsym=" + symbol for symbol in ("flash_at=0", "flash_size=1M", "ram_at=0x20000000", "ram_size=256K")])
Default(env.BuildProgram())
