import os

from SCons.Script import DefaultEnvironment

env = DefaultEnvironment()
core = os.path.join(os.environ["REPOSITORY"], "tests", "packaging", "arduino", "test", "qemu", "cores", "qemu")
env.Append(CPPPATH=[core], CPPDEFINES=[("ARDUINO", 10819)])
env.Prepend(LIBS=[env.BuildLibrary(os.path.join("$BUILD_DIR", "core"), core)])
