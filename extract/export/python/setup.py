"""Builds the optional accelerator (eaglebatch/accel.c); where that fails the package works with numpy alone."""

from setuptools import Extension, setup

setup(ext_modules=[Extension("eaglebatch._accel", ["eaglebatch/accel.c"], depends=["eaglebatch/chunks.h"], extra_compile_args=["-O3"], optional=True)])
