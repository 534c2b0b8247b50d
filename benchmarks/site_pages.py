"""A hook of mkdocs: the tables beside the results are pages of the site, and links of `docs/` lead to them."""

from pathlib import Path

from mkdocs.config.defaults import MkDocsConfig
from mkdocs.structure.files import File, Files

HERE = Path(__file__).parent


def on_files(files: Files, config: MkDocsConfig) -> Files:
    """Adds the tables: outside of `docs/`, mkdocs finds none."""
    for path in sorted((HERE / "results").glob("*.md")):
        files.append(File(f"results/{path.name}", str(HERE), config.site_dir, config.use_directory_urls))
    return files


def on_page_markdown(markdown: str, **_: object) -> str:
    """Turns links between `docs/` and `benchmarks/results` into those of the site."""
    return markdown.replace("../benchmarks/results/", "results/").replace("../../docs/", "../")
