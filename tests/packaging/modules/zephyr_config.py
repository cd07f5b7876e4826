# Runs Kconfig with kconfiglib, as Zephyr does: zephyr_config.py MODULE FRAGMENT prints, in the form of CMake, the
# values that the fragment gives to the module's options. A warning (an option that does not exist, or that cannot be
# set) is an error. Without arguments, only tests whether kconfiglib is installed.
import importlib.util
import os
import sys

# Loads kconfiglib by the path of its file, since esp-idf-kconfig installs another parser under the same package name.
files = [path for path in (os.path.join(folder, "kconfiglib.py") for folder in sys.path) if os.path.isfile(path)]
if not files or len(sys.argv) < 3:
    sys.exit(not files)
spec = importlib.util.spec_from_file_location("kconfiglib", files[0])
kconfiglib = importlib.util.module_from_spec(spec)
sys.modules["kconfiglib"] = kconfiglib
spec.loader.exec_module(kconfiglib)

os.environ["MODULE"] = sys.argv[1]
root = os.path.join(os.path.dirname(os.path.abspath(__file__)), "zephyr", "Kconfig")
kconfig = kconfiglib.Kconfig(root, warn_to_stderr=False)
kconfig.warn_assign_undef = True
kconfig.load_config(sys.argv[2])
if kconfig.warnings:
    sys.exit("\n".join(kconfig.warnings))
for symbol in kconfig.unique_defined_syms:
    if symbol.str_value == "y":
        print("set(CONFIG_%s y)" % symbol.name)
