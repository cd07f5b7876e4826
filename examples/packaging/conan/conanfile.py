# Conan 2: `conan create examples/packaging/conan`. The version comes from the header. The package contains sources for
# every compiler and machine: its CMake package compiles them once, in the consumer's build.
import os
import re

from conan import ConanFile
from conan.tools.files import copy, load


class Gradckpt(ConanFile):
    name = "gradckpt"
    description = "Trains neural networks inside a byte budget, to the same bits"
    license = "MIT"
    topics = ("machine-learning", "gradient-checkpointing", "header-only")
    package_type = "header-library"
    no_copy_source = True

    @property
    def root(self):
        return os.path.join(self.recipe_folder, "..", "..", "..")

    def set_version(self):
        text = load(self, os.path.join(self.root, "gradckpt.h"))
        self.version = ".".join(re.findall(r"define GCKPT_VERSION_[A-Z]+ +(\d+)", text))

    def export_sources(self):
        for name in "gradckpt.h", "gradckpt_cuda.cu", "LICENSE":
            copy(self, name, self.root, self.export_sources_folder)
        examples = os.path.join(self.root, "examples")
        for name in os.listdir(examples):
            if name.endswith(".h") or name == "README.md":
                copy(self, name, examples, os.path.join(self.export_sources_folder, "examples"))
        copy(self, "gradckpt*", os.path.join(self.recipe_folder, "..", "cmake"),
             os.path.join(self.export_sources_folder, "cmake"))

    def package(self):
        copy(self, "gradckpt.h", self.source_folder, os.path.join(self.package_folder, "include"))
        copy(self, "gradckpt_cuda.cu", self.source_folder, os.path.join(self.package_folder, "share", "gradckpt"))
        copy(self, "*", os.path.join(self.source_folder, "examples"),
             os.path.join(self.package_folder, "share", "gradckpt", "examples"))
        copy(self, "*", os.path.join(self.source_folder, "cmake"),
             os.path.join(self.package_folder, "share", "cmake", "gradckpt"))
        copy(self, "LICENSE", self.source_folder, os.path.join(self.package_folder, "licenses"))

    def package_info(self):
        self.cpp_info.bindirs = []
        self.cpp_info.libdirs = []
        self.cpp_info.builddirs = [os.path.join("share", "cmake", "gradckpt")]
        self.cpp_info.set_property("cmake_find_mode", "none")
