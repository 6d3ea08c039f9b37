"""What keeps kernels/ and model_specs/ importable everywhere, and `import porter` cheap."""

import subprocess
import sys
import tomllib
from pathlib import Path
from zipfile import ZipFile

import pytest

ROOT = Path(__file__).resolve().parents[1]
SHIPPED = {  # folder of the repository -> folder of the wheel
    "porter": "porter",
    "kernels/porter_kernels": "porter_kernels",
    "model_specs": "porter/model_specs",
}


def run_python(*arguments: str) -> str:
    ran = subprocess.run([sys.executable, *arguments], cwd=ROOT, capture_output=True, text=True)
    assert ran.returncode == 0, f"{' '.join(arguments)}\n{ran.stderr}"
    return ran.stdout


def test_top_level_kernels_is_not_a_package() -> None:
    # A regular package named `kernels` shadows HuggingFace's and breaks `import transformers`.
    assert not list((ROOT / "kernels").glob("*.py"))
    assert not list((ROOT / "tests").rglob("__init__.py"))


def test_transformers_imports_from_the_repository_root() -> None:
    run_python("-c", "import transformers.integrations.hub_kernels")


def test_builtin_specs_are_found() -> None:
    from porter.specs import builtin_spec_names

    assert builtin_spec_names()


@pytest.mark.parametrize("module", ["porter", "porter.specs", "porter.cli.main"])
def test_import_leaves_torch_alone(module: str) -> None:
    heavy = ("torch", "transformers", "triton")
    loaded = run_python("-c", f"import sys, {module}; print(*(name for name in {heavy} if name in sys.modules))")
    assert loaded.split() == []


def test_pyproject_agrees_with_the_tree() -> None:
    import porter

    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert project["version"] == porter.__version__
    if (ROOT / "README.md").exists():  # hatchling refuses to build with a readme that is not there
        assert project.get("readme") == "README.md"


@pytest.fixture(scope="module")
def wheel_names(tmp_path_factory: pytest.TempPathFactory) -> set[str]:
    folder = tmp_path_factory.mktemp("wheel")
    run_python("-m", "hatchling", "build", "--target", "wheel", "--directory", str(folder))
    (wheel,) = folder.glob("*.whl")
    with ZipFile(wheel) as archive:
        return set(archive.namelist())


@pytest.mark.parametrize("folder", SHIPPED)
def test_wheel_holds_every_file(folder: str, wheel_names: set[str]) -> None:
    paths = [path for path in (ROOT / folder).rglob("*") if path.is_file() and "__pycache__" not in path.parts]
    assert paths
    missing = {f"{SHIPPED[folder]}/{path.relative_to(ROOT / folder).as_posix()}" for path in paths} - wheel_names
    assert not missing


def test_wheel_holds_the_report_templates(wheel_names: set[str]) -> None:
    assert any(name.startswith("porter/reports/templates/") for name in wheel_names)


def test_wheel_brings_no_other_top_level_name(wheel_names: set[str]) -> None:
    # A top-level `kernels` in the wheel would overwrite HuggingFace's, and uninstalling porter would gut it.
    tops = {name.split("/")[0] for name in wheel_names}
    assert {top for top in tops if not top.endswith(".dist-info")} == {"porter", "porter_kernels"}
