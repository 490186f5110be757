"""The jar that journals commits of an application: `python -m spark_resources.companion` builds it.

Its sources are in `companion/` of the checkout; a wheel contains the jar.
"""

import hashlib
import os
import tempfile
import zipfile
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import click

from kstreams_assets.errors import ConfigurationError, KStreamsAssetsError
from spark_resources.jars import checkout_root, class_path
from spark_resources.java import compile_java, find_java

COMPANION_JAR: Final = Path(__file__).with_name("kstreams-assets-companion.jar")
COMPANION_PROPERTIES: Final[Mapping[str, str]] = {
    "main.consumer.interceptor.classes": "kstreamsassets.companion.CommitInterceptor",
    "producer.interceptor.classes": "kstreamsassets.companion.AckInterceptor",
}
"""What an application configures, with the jar on its class path."""
COMMITS_ON_DEMAND: Final[Mapping[str, str]] = {
    **COMPANION_PROPERTIES,
    "processor.wrapper.class": "kstreamsassets.companion.CommitWrapper",
}
"""What it configures to commit on demand, besides the name of the control topic."""
RELEASE: Final = 11
"""The oldest Java that Kafka's clients 3.9 to 4.4 support."""

_MANIFEST: Final = "META-INF/MANIFEST.MF"
_EPOCH: Final = (1980, 1, 1, 0, 0, 0)


def companion_jar() -> Path:
    """Return the path of the jar. Raises ConfigurationError if this installation lacks it."""
    if COMPANION_JAR.is_file():
        return COMPANION_JAR
    if checkout_root() is not None:
        raise ConfigurationError(f"{COMPANION_JAR} is missing.", remedy="Run: make jars")
    raise ConfigurationError(
        f"{COMPANION_JAR} is missing: this wheel was built without it.",
        remedy="Install a wheel that `python -m scripts.release wheel` has built.",
    )


def build_companion() -> Path:
    """Compile the companion unless the jar has these sources; return its path.

    The jar also contains the sources. The same sources and JDK give the same bytes.

    Raises:
        ConfigurationError: This is not a checkout.
        JavaNotFoundError, JarsMissingError, ProcessError: As for other Java programs.
    """
    root = checkout_root()
    if root is None:
        raise ConfigurationError(
            "An installed package has no sources of the companion.",
            remedy="Build it in a checkout: make jars",
        )
    folder = root / "companion/src"
    sources = sorted(folder.rglob("*.java"))
    texts = {source.relative_to(folder).as_posix(): source.read_bytes() for source in sources}
    digest = hashlib.sha256(b"".join(texts.values())).hexdigest()
    manifest = f"Manifest-Version: 1.0\nSources: {digest[:48]}\n\n".encode()
    if _manifest_of(COMPANION_JAR) == manifest:
        return COMPANION_JAR
    java = find_java(compiler=True)
    with tempfile.TemporaryDirectory(prefix=".companion-", dir=COMPANION_JAR.parent) as temporary:
        classes = Path(temporary) / "classes"
        options = ("--release", str(RELEASE))
        compile_java(java, sources, classes, class_path=class_path("kafka"), options=options)
        entries = {path.relative_to(classes).as_posix(): path for path in classes.rglob("*.class")}
        contents = texts | {name: path.read_bytes() for name, path in entries.items()}
        jar = Path(temporary) / COMPANION_JAR.name
        with zipfile.ZipFile(jar, "w", zipfile.ZIP_DEFLATED) as archive:
            for name, content in ((_MANIFEST, manifest), *sorted(contents.items())):
                archive.writestr(zipfile.ZipInfo(name, _EPOCH), content, zipfile.ZIP_DEFLATED)
        os.replace(jar, COMPANION_JAR)
    return COMPANION_JAR


def _manifest_of(jar: Path) -> bytes | None:
    if not jar.is_file():
        return None
    with zipfile.ZipFile(jar) as archive:
        return archive.read(_MANIFEST)


@click.command(context_settings={"help_option_names": ["-h", "--help"]})
def main() -> None:
    """Build the jar of the companion from its sources"""
    try:
        click.echo(f"companion: {build_companion()}")
    except KStreamsAssetsError as error:
        raise click.ClickException(str(error)) from error


if __name__ == "__main__":
    main()
