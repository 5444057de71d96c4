"""A dynamic linker that misses a library: its words, and their cure. A probe and an engine's start both meet them."""

import re

# glibc's words; the rest of the line says why and is always the same.
_MISSING = re.compile(r"error while loading shared libraries: ([^:\s]+):")
# musl's, for the program itself and for what it loads.
_MISSING_MUSL = re.compile(r"^Error loading shared library (\S+?): No such file", re.MULTILINE)
# macOS's: after an upgrade by Homebrew the library of the version before is gone.
_MISSING_MAC = re.compile(r"^dyld\[\d+\]: Library not loaded: (\S+)", re.MULTILINE)
# Debian's and Ubuntu's packages of libraries that llama-server builds ask for.
_PACKAGES = {
    "libcurl.so.4": "libcurl4",
    "libgomp.so.1": "libgomp1",
    "libssl.so.3": "libssl3",
    "libstdc++.so.6": "libstdc++6",
    "libvulkan.so.1": "libvulkan1",
}


def explain_missing_library(program: str, output: str) -> str | None:
    """Which library `program` misses by its output, and how to install it; None when it misses none."""
    if on_mac := _MISSING_MAC.search(output):
        return (
            f"{program} needs the shared library '{on_mac.group(1)}', which is not here. If it is Homebrew's: "
            "`brew reinstall llama.cpp`."
        )
    if on_musl := _MISSING_MUSL.search(output):
        return (
            f"{program} needs the shared library '{on_musl.group(1)}', which is not on this machine. On Alpine: "
            f"`apk search -x so:{on_musl.group(1)}` names the package."
        )
    match = _MISSING.search(output)
    if match is None:
        return None
    library = match.group(1)
    package = _PACKAGES.get(library)
    cure = f"apt-get install {package}" if package else f"apt-file search {library} names the package"
    return (
        f"{program} needs the shared library '{library}', which is not on this machine. On Debian and Ubuntu: `{cure}`."
    )
