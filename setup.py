"""Packaging of keras_fm."""

import pathlib

import setuptools

_HERE = pathlib.Path(__file__).parent


def _version():
    for line in (_HERE / "keras_fm" / "version.py").read_text().splitlines():
        if line.startswith("__version__"):
            return line.split('"')[1]
    raise RuntimeError("keras_fm/version.py holds no version")


# tensorflow-privacy still speaks Keras 2 and needs Python below 3.12.
_DP_SGD = [
    'tensorflow-privacy==0.9.0; python_version < "3.12"',
    'tf-keras>=2.18; python_version < "3.12"',
]
_CORE = [
    "keras>=3.10",
    "numpy>=1.26",
    "absl-py>=1.4",
    "dp-accounting>=0.4.3",
    "scipy>=1.10",
    "scikit-learn>=1.3",
    "matplotlib>=3.7",
    "jinja2>=3.1",
]
_TEST = [
    "pytest>=8",
    "pytest-xdist>=3.5",
    "hypothesis>=6.100",
    "import-linter>=2",
    "ruff>=0.6",
    "mypy>=2,<3",
]

setuptools.setup(
    name="keras-fm",
    version=_version(),
    description=(
        "Private Keras layers and losses by the functional mechanism: "
        "perturb the objective once, then train as long as you like"
    ),
    long_description=(_HERE / "README.md").read_text(),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    packages=setuptools.find_packages(include=["keras_fm", "keras_fm.*"]),
    package_data={
        "keras_fm": ["py.typed"],
        "keras_fm.lab.report": ["templates/*"],
        "keras_fm.lab.compare": ["*.json"],
        "keras_fm.lab.reproduce": ["*.json"],
    },
    python_requires=">=3.10",
    # The JAX and PyTorch forms need no TensorFlow: see the README.
    install_requires=[
        *_CORE,
        'tensorflow>=2.18; python_version < "3.14"',
        "tensorboard>=2.18",
        *_DP_SGD,
    ],
    extras_require={
        "dp-sgd": _DP_SGD,
        "jax": ["jax"],
        "torch": ["torch"],
        "beam": ["apache-beam>=2.60"],
        # pandas 3 takes NumPy 2, which tensorflow-privacy does not.
        "tables": [
            'pandas>=2,<3; python_version < "3.12"',
            'pandas>=2; python_version >= "3.12"',
            "statsmodels>=0.14",
        ],
        # Another dp-accounting than tensorflow-privacy's: an environment of
        # its own, where tensorflow-privacy is not (Python 3.12 or later, or
        # --no-deps: see docs/comparison.md).
        "jax-privacy": [
            'jax-privacy>=2.0,<3; python_version >= "3.11"',
            'jax; python_version >= "3.11"',
        ],
        # The site: see CONTRIBUTING.md.
        "docs": [
            "sphinx>=7.2",
            "myst-parser>=3",
            "furo>=2024.1",
            "sphinx-mathjax-offline",
        ],
        "test": _TEST,
        "test-opendp": [*_TEST, "opendp>=0.16"],
        # Cross-checks of the regression baselines; 0.6.6 needs an old
        # scikit-learn, so it has an environment of its own.
        "test-diffprivlib": [*_TEST, "diffprivlib==0.6.6", "scikit-learn<1.7"],
    },
    entry_points={"console_scripts": ["keras-fm = keras_fm.lab.cli:main"]},
    classifiers=[
        "Programming Language :: Python :: 3",
        *(f"Programming Language :: Python :: 3.{n}" for n in range(10, 14)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Security",
    ],
)
