"""Adds one step to what pyproject.toml says: awa_pb2.py is generated, not committed."""
import pathlib
import subprocess

from setuptools import setup
from setuptools.command.build_py import build_py


class GenerateAndBuild(build_py):
    def run(self):
        super().run()
        generate = pathlib.Path(__file__).resolve().parent / "generate"
        subprocess.run([str(generate), self.build_lib], check=True)


setup(cmdclass={"build_py": GenerateAndBuild})
